//! The schedule's result: what runs, in which order, on which memory.

use crate::gemm::{Choice, Problem};
use crate::loopnest::LoopNest;
use lj_ir::{DType, Device, Expr, ExternCall, Sym, TensorType, Type};
use serde::{Deserialize, Serialize};

/// Number of a buffer of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufId(pub u32);

/// Who owns a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BufferKind {
    /// The tensor passed as graph input `n`. Element 0 is where its `data_ptr` points.
    Input(u32),
    /// A slice of the plan's arena, placed at run time by [`crate::arena`].
    Arena,
    /// A fresh torch tensor that (also) leaves the plan as an output.
    Fresh,
    /// A tensor made by an ATen call.
    Extern,
}

/// A piece of memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Where.
    pub device: Device,
    /// Number of elements.
    pub elems: Expr,
    /// Shape and strides it is allocated with (`Fresh`), or is expected to have (`Input`, `Extern`).
    pub ty: TensorType,
    /// Who owns it.
    pub kind: BufferKind,
    /// First step that touches it (0 for inputs).
    pub first: u32,
    /// Last step that touches it; the number of steps if it is needed at the end.
    pub last: u32,
}

/// A strided window on a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorRef {
    /// The buffer.
    pub buf: BufId,
    /// First element.
    pub offset: Expr,
    /// Extents.
    pub shape: Vec<Expr>,
    /// Strides in elements.
    pub strides: Vec<Expr>,
}

/// A run-time scalar slot (a Python float or bool that an ATen call returned, or a scalar input).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotId(pub u32);

/// An operand of an ATen call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Operand {
    /// A tensor.
    Tensor(TensorRef),
    /// An integer.
    SymInt(Expr),
    /// A scalar from a slot.
    Slot(SlotId),
    /// `None`.
    None,
}

/// A result of an ATen call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ExternResult {
    /// A tensor, kept in a buffer of kind `Extern`. If its strides are not the expected ones the
    /// runtime copies it to a tensor that has them.
    Tensor(BufId),
    /// A Python int; its expression is a symbol that is bound to it.
    SymInt(Expr),
    /// A Python float or bool.
    Slot(SlotId),
    /// `None`, or a result nothing needs.
    None,
}

/// Who makes a matrix product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gemm {
    /// The product at the traced sizes, if it is one that our kernels may make.
    pub problem: Option<Problem>,
    /// Who, and why.
    pub choice: Choice,
    /// Arena memory for packed panels; none if few are needed.
    pub workspace: Option<BufId>,
}

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm { problem: None, choice: Choice::UNSUPPORTED, workspace: None }
    }
}

/// One step. Steps run in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// One of our kernels.
    Kernel {
        /// Index into [`Program::nests`].
        nest: u32,
        /// For each parameter, buffer and offset in elements.
        args: Vec<(BufId, Expr)>,
        /// Value of each of the nest's symbols.
        syms: Vec<Expr>,
        /// Estimated cost of one iteration of the parallel loop, in nanoseconds on one core, over the
        /// program's symbols; decides how many threads take part.
        cost: Expr,
        /// Messages for failed checks: exception type (`IndexError`, `RuntimeError`) and text.
        checks: Vec<(String, String)>,
        /// Provenance numbers of the fused nodes (into [`Program::lines`]).
        provs: Vec<u32>,
    },
    /// `out = a @ b (+ bias)` into existing memory. Two dims, or three when batched.
    Matmul {
        /// Result.
        out: TensorRef,
        /// Left operand.
        a: TensorRef,
        /// Right operand.
        b: TensorRef,
        /// Addend that broadcasts to the result.
        bias: Option<TensorRef>,
        /// By whom.
        gemm: Box<Gemm>,
        /// Provenance.
        prov: u32,
    },
    /// Any other operator, by ATen.
    Extern {
        /// What to call; `Arg::Input(i)` is `inputs[i]`.
        call: ExternCall,
        /// Operands.
        inputs: Vec<Operand>,
        /// Results, one per result of the operator.
        outputs: Vec<ExternResult>,
        /// Provenance.
        prov: u32,
    },
}

/// Where the value of a symbol comes from at run time. Sources are tried in order of the program's
/// list, so every symbol has one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SymSource {
    /// Graph input `n` is this integer.
    Input(u32),
    /// `size(dim)` of tensor input `n`.
    Size(u32, u32),
    /// `stride(dim)` of tensor input `n`.
    Stride(u32, u32),
    /// Result `result` of the ATen call that is step `step`: the integer itself.
    StepInt {
        /// The step.
        step: u32,
        /// Which result.
        result: u32,
    },
    /// `size(dim)` of result `result` of step `step`.
    StepSize {
        /// The step.
        step: u32,
        /// Which result.
        result: u32,
        /// Which dim.
        dim: u32,
    },
}

/// A result of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// A tensor: the whole of a `Fresh`/`Extern` buffer, or a view of one.
    Tensor(TensorRef),
    /// Graph input `n` itself, the same Python object.
    Input(u32),
    /// An integer.
    SymInt(Expr),
    /// A scalar from a slot.
    Slot(SlotId),
    /// `None`.
    None,
}

/// A plan before code generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// `forward`, `backward`, `inference`.
    pub name: String,
    /// Types of the graph inputs (checked when strict).
    pub inputs: Vec<Type>,
    /// Symbols and their sources.
    pub syms: Vec<(Sym, SymSource)>,
    /// Distinct kernels. Steps that differ only in buffers and sizes share one.
    pub nests: Vec<LoopNest>,
    /// Memory.
    pub buffers: Vec<Buffer>,
    /// Number of scalar slots.
    pub slots: u32,
    /// Graph inputs that are scalars, with the slots they go to.
    pub scalar_inputs: Vec<(u32, SlotId)>,
    /// What runs.
    pub steps: Vec<Step>,
    /// Results.
    pub outputs: Vec<Output>,
    /// Provenance: FX name and source line, by number.
    pub lines: Vec<(String, Option<String>)>,
}
