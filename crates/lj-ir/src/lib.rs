//! The tensor intermediate representation every stage of ljcompile reads and writes.
//!
//! `lj-ir` depends on no other crate of the project. It knows nothing of Python, FX, LLVM, torch's
//! C ABI or of how a graph is scheduled; it defines
//!
//! * [`DType`], [`Scalar`] and [`Device`];
//! * [`Expr`], symbolic integer expressions in a canonical form, and [`Facts`], what is known of
//!   their symbols (ranges, hints);
//! * [`Graph`], a functional SSA graph of tensor values over a small closed set of [`Op`]s;
//! * the verifier ([`Graph::verify`]) and the `.lj` text form ([`text`]).
//!
//! **Invariants.** Nodes stand in topological order. Values never change: mutation exists only as
//! [`Graph::mutations`], applied after everything else. Arithmetic on 16-bit floats does not exist:
//! importers spell out the conversions, so rounding is visible and can be reasoned about.

pub mod captured;
pub mod dtype;
pub mod expr;
pub mod facts;
pub mod graph;
pub mod op;
pub mod pointwise;
pub mod shape;
pub mod text;
pub mod verify;

pub use dtype::{DType, Device, Scalar};
pub use expr::{Atom, Expr, Sym};
pub use facts::{Facts, SymInfo};
pub use graph::{Graph, Mutation, Node, NodeId, Prov, TensorType, Type, Value, ValueId};
pub use op::{Arg, ExternCall, Op, ReduceOp, ScanOp, ScatterOp, View};
pub use pointwise::PwOp;
pub use verify::VerifyError;
