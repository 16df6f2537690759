//! The loop-nest language: what a kernel computes, before any machine is chosen.
//!
//! A [`LoopNest`] is a function over a range of iterations of one *parallel* variable. Its body is
//! a tree of loops with scalar SSA registers. At most one loop on every path from the root is
//! *vector*: the code generator runs it in lanes. A register defined inside a vector loop from
//! something that depends on the vector variable holds one value per lane; everything else is
//! uniform. Serial loops may stand inside a vector loop (a reduction over an outer dim) or around
//! it.
//!
//! **Semantics.** Registers are assigned once. Loads from and stores to one buffer in one nest never
//! conflict across iterations of the parallel loop. Within one iteration statements run in order.
//! A masked-off load yields `fallback` and touches no memory. Arithmetic registers are never
//! 16-bit floats: a `Load` of those is followed by `Convert`.

use lj_ir::{DType, Expr, PwOp, ReduceOp, Scalar, ScanOp, Sym};
use serde::{Deserialize, Serialize};

/// An SSA register; numbered from 0 within a nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reg(pub u32);

/// An accumulator or carry; numbered from 0 within a nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccId(pub u32);

/// A memory operand of a nest: number `n` of [`LoopNest::params`] or of [`LoopNest::scratch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mem {
    /// A buffer passed by the caller.
    Param(u32),
    /// Memory private to the executing thread.
    Scratch(u32),
}

/// A buffer parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Param {
    /// Element type in memory.
    pub dtype: DType,
    /// Whether the nest stores to it.
    pub written: bool,
    /// Whether the nest loads from it.
    pub read: bool,
}

/// Thread-private memory, reused by every iteration of the parallel loop. Its contents are
/// undefined at the start of an iteration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scratch {
    /// Element type.
    pub dtype: DType,
    /// Number of elements, over [`LoopNest::syms`].
    pub len: Expr,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoopNest {
    /// Descriptive name of the fused operations, such as `mul_sum_rsqrt`; not unique.
    pub name: String,
    /// Buffers, in the order they are passed.
    pub params: Vec<Param>,
    /// Symbolic sizes, in the order they are passed (as i64).
    pub syms: Vec<Sym>,
    /// Thread-private rows.
    pub scratch: Vec<Scratch>,
    /// Variable of the parallel loop. It runs over `[begin, end)`, a part of `0..extent` chosen by
    /// the caller.
    pub parallel: Sym,
    /// Number of iterations in all, over `syms`.
    pub extent: Expr,
    /// What one iteration does.
    pub body: Vec<Stmt>,
}

/// A subscript: `base + Σ regs[i] × strides[i]` in elements. `base` is over symbols and variables of
/// enclosing loops; the registers are i64.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Index {
    /// The part known without loading anything.
    pub base: Expr,
    /// Indirect parts: register and its stride (over symbols).
    pub indirect: Vec<(Reg, Expr)>,
}

/// What a register is assigned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Def {
    /// A constant of the register's dtype.
    Const(Scalar),
    /// The value of an expression over symbols and loop variables, converted to the register's dtype
    /// (from i64, as a cast).
    Expr(Expr),
    /// A load; the register has the memory's dtype.
    Load {
        /// From where.
        mem: Mem,
        /// At which element.
        index: Index,
        /// Bool register: lanes where it is false load nothing and yield `fallback`.
        mask: Option<Reg>,
        /// Value of masked-off lanes.
        fallback: Scalar,
    },
    /// An elementwise operation. Result dtype: the register's.
    Pw {
        /// Which.
        op: PwOp,
        /// Operands, of one dtype except for `Where`.
        args: Vec<Reg>,
    },
    /// Conversion of `arg` to the register's dtype.
    Convert {
        /// The operand.
        arg: Reg,
    },
    /// Final value of an accumulator or carry whose loop has ended. For `ArgMax`/`ArgMin` the register
    /// is i64 and holds the index, otherwise it has the accumulator's dtype.
    Acc(AccId),
    /// `carry = op(carry, value)`, and the register is the new value. In the vector loop that owns the
    /// carry, lanes follow each other in the order of iterations; a carry of a serial loop inside a
    /// vector loop belongs to its lane. Stands in the body of the owning loop itself, once.
    Scan {
        /// The carry.
        carry: AccId,
        /// The value.
        value: Reg,
    },
}

/// What a scan hands from one iteration of a loop to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Carry {
    /// Identity, among the accumulators.
    pub id: AccId,
    /// How it combines.
    pub op: ScanOp,
    /// Dtype of what is combined (never a 16-bit float).
    pub dtype: DType,
    /// What stands before the first iteration, a uniform register defined outside of the loop; the
    /// operation's neutral element if absent.
    pub init: Option<Reg>,
}

/// An accumulator, initialised to the operation's neutral element when its loop starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Acc {
    /// Identity.
    pub id: AccId,
    /// How it combines.
    pub op: ReduceOp,
    /// Dtype of what is accumulated (never a 16-bit float).
    pub dtype: DType,
}

/// A loop.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Loop {
    /// Its variable.
    pub var: Sym,
    /// First value, over symbols and outer variables.
    pub begin: Expr,
    /// One past the last value.
    pub end: Expr,
    /// Whether iterations run in lanes.
    pub vector: bool,
    /// Accumulators that live for the duration of this loop. In a vector loop they are combined
    /// across lanes at the end; a serial loop inside a vector loop has one accumulator per lane.
    /// An accumulator may be updated in any loop nested in the one that owns it.
    pub accs: Vec<Acc>,
    /// What scans carry through this loop.
    pub carries: Vec<Carry>,
    /// What an iteration does.
    pub body: Vec<Stmt>,
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stmt {
    /// `reg: dtype = def`.
    Let {
        /// The register.
        reg: Reg,
        /// Its dtype.
        dtype: DType,
        /// Its value.
        def: Def,
    },
    /// A loop.
    For(Loop),
    /// `mem[index] = value`; the value has the memory's dtype.
    Store {
        /// To where.
        mem: Mem,
        /// At which element.
        index: Index,
        /// What.
        value: Reg,
        /// Bool register: only lanes where it is true store. `None`: all.
        mask: Option<Reg>,
    },
    /// `acc = op(acc, value)`; for `ArgMax`/`ArgMin`, `index` is the i64 position of the value.
    Update {
        /// The accumulator.
        acc: AccId,
        /// The value.
        value: Reg,
        /// Position, for arg-reductions.
        index: Option<Reg>,
    },
    /// Reports error `code` to the caller (an index into the step's messages) if `ok` is false in any
    /// active lane. Execution goes on; what follows must stay safe (clamp first).
    Check {
        /// A bool register.
        ok: Reg,
        /// Which message.
        code: u32,
    },
}
