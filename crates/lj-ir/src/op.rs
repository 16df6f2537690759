//! The closed set of operations.

use crate::dtype::{DType, Device, Scalar};
use crate::expr::{Expr, Sym};
use crate::pointwise::PwOp;
use serde::{Deserialize, Serialize};

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Sum; 0 when empty.
    Sum,
    /// Product; 1 when empty.
    Prod,
    /// Largest element; NaN if any is NaN. Importers refuse empty ones.
    Max,
    /// Smallest element; NaN if any is NaN.
    Min,
    /// Index (i64, row-major over the reduced dims) of the first largest element; a NaN is largest.
    ArgMax,
    /// Index of the first smallest element; a NaN is smallest.
    ArgMin,
    /// Logical or of bools; false when empty.
    Any,
    /// Logical and of bools; true when empty.
    All,
}

impl ReduceOp {
    /// Name in `.lj` text.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "amax",
            ReduceOp::Min => "amin",
            ReduceOp::ArgMax => "argmax",
            ReduceOp::ArgMin => "argmin",
            ReduceOp::Any => "any",
            ReduceOp::All => "all",
        }
    }
    /// All of them.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::ArgMax,
        ReduceOp::ArgMin,
        ReduceOp::Any,
        ReduceOp::All,
    ];
    /// Whether the result is an index.
    pub fn is_arg(self) -> bool {
        matches!(self, ReduceOp::ArgMax | ReduceOp::ArgMin)
    }
}

/// How a scan combines an element with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ScanOp {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
    /// Largest element so far: the last of equal ones (0 or −0), NaN from the first NaN on.
    Max,
    /// Smallest element so far, as `Max`.
    Min,
    /// `ln Σ eˣ` of floats, overflowing nowhere.
    LogSumExp,
}

impl ScanOp {
    /// Name in `.lj` text.
    pub fn name(self) -> &'static str {
        match self {
            ScanOp::Sum => "sum",
            ScanOp::Prod => "prod",
            ScanOp::Max => "max",
            ScanOp::Min => "min",
            ScanOp::LogSumExp => "logsumexp",
        }
    }
    /// All of them.
    pub const ALL: [ScanOp; 5] = [ScanOp::Sum, ScanOp::Prod, ScanOp::Max, ScanOp::Min, ScanOp::LogSumExp];
}

/// How a scatter combines what stands at a place with what comes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ScatterOp {
    /// Takes the place of it: the last one stays.
    Set,
    /// Is added; logical or for bools.
    Add,
    /// Is multiplied; logical and for bools.
    Mul,
    /// The larger stays; NaN if either is.
    Max,
    /// The smaller stays; NaN if either is.
    Min,
}

impl ScatterOp {
    /// Name in `.lj` text.
    pub fn name(self) -> &'static str {
        match self {
            ScatterOp::Set => "set",
            ScatterOp::Add => "add",
            ScatterOp::Mul => "mul",
            ScatterOp::Max => "max",
            ScatterOp::Min => "min",
        }
    }
    /// All of them.
    pub const ALL: [ScatterOp; 5] =
        [ScatterOp::Set, ScatterOp::Add, ScatterOp::Mul, ScatterOp::Max, ScatterOp::Min];
}

/// A change of shape that moves no data: an affine map from output to input indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum View {
    /// Output dim `i` is input dim `perm[i]`.
    Permute(Vec<usize>),
    /// Row-major reshape to the output type's shape (also adds and drops dims of extent 1).
    Reshape,
    /// Broadcast to the output type's shape; dims align at the right, input extents of 1 repeat.
    Expand,
    /// `x[..., start:, ...]` with a step along `dim`; the length is the output's extent.
    Slice {
        /// The dim.
        dim: usize,
        /// First index, non-negative.
        start: Expr,
        /// Distance between picked indices, positive.
        step: i64,
    },
    /// `x.select(dim, index)`: drops `dim`.
    Select {
        /// The dim.
        dim: usize,
        /// The index, non-negative.
        index: Expr,
    },
    /// Reverses the dims (not a torch view; the result is a new tensor).
    Flip(Vec<usize>),
    /// Any map of positions: a coordinate per dim of the operand, over [`View::at`] of the output's
    /// dims and the graph's symbols. Elements may be read by several positions (windows that overlap,
    /// a reflected border) or by none (a diagonal). Every coordinate lies within the operand for
    /// every position of the output.
    Map(Vec<Expr>),
}

impl View {
    /// Whether torch's result of the corresponding operator shares its input's storage: for a map, if
    /// strides can express it.
    pub fn aliases(&self) -> bool {
        match self {
            View::Flip(_) => false,
            View::Map(coords) => coords.iter().all(|e| View::linear(e).is_some()),
            _ => true,
        }
    }

    /// The position along dim `dim` of the output, in the coordinates of a [`View::Map`].
    pub fn at(dim: usize) -> Expr {
        Expr::sym(&format!("at{dim}"))
    }

    /// The dim whose position `s` is.
    pub fn dim_of(s: &Sym) -> Option<usize> {
        s.name().strip_prefix("at")?.parse().ok()
    }

    /// `coords` of a map with each position replaced.
    pub fn placed(coords: &[Expr], at: &[Expr]) -> Vec<Expr> {
        let put = |s: &Sym| View::dim_of(s).and_then(|d| at.get(d).cloned());
        coords.iter().map(|e| e.substitute(&put)).collect()
    }

    /// A map that cuts dim `dim` of a tensor of rank `rank` into windows: window `i` along `dim`
    /// begins at `i × step`; its elements, `dilation` apart, run along a new last dim.
    pub fn windows(rank: usize, dim: usize, step: &Expr, dilation: &Expr) -> View {
        let coord = |d| {
            let at = View::at(d);
            if d == dim { &at * step + &View::at(rank) * dilation } else { at }
        };
        View::Map((0..rank).map(coord).collect())
    }

    /// A coordinate of a map as a constant part and a factor per output dim, if it is linear with
    /// factors that are not negative constants.
    fn linear(e: &Expr) -> Option<(Expr, Vec<(usize, Expr)>)> {
        let (mut rest, mut factors) = (e.clone(), vec![]);
        for s in e.symbols() {
            let Some(d) = View::dim_of(&s) else { continue };
            let (factor, other) = rest.linear_in(&s)?;
            if factor.as_int().is_some_and(|v| v < 0)
                || factor.symbols().iter().any(|s| View::dim_of(s).is_some())
            {
                return None;
            }
            factors.push((d, factor));
            rest = other;
        }
        Some((rest, factors))
    }

    /// The offset and the strides that a map gives a result of rank `rank` over an operand of the
    /// given strides; `None` if strides cannot express it.
    pub fn map_strides(coords: &[Expr], strides: &[Expr], rank: usize) -> Option<(Expr, Vec<Expr>)> {
        let (mut offset, mut out) = (Expr::ZERO, vec![Expr::ZERO; rank]);
        for (e, stride) in coords.iter().zip(strides) {
            let (start, factors) = View::linear(e)?;
            offset = offset + start * stride;
            for (d, factor) in factors {
                *out.get_mut(d)? = &out[d] + &(factor * stride);
            }
        }
        Some((offset, out))
    }
}

/// An argument of an operator that ATen runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arg {
    /// `inputs[i]` of the node: a tensor.
    Input(usize),
    /// `None`.
    None,
    /// A bool.
    Bool(bool),
    /// An integer, possibly symbolic.
    Int(Expr),
    /// The bits of an `f64`.
    Float(u64),
    /// A string.
    Str(String),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(Device),
    /// `torch.layout` by name, such as `strided`.
    Layout(String),
    /// `torch.memory_format` by name, such as `contiguous_format`.
    MemoryFormat(String),
    /// A list, or a tuple where either will do.
    List(Vec<Arg>),
    /// A tuple that must not become a list.
    Tuple(Vec<Arg>),
    /// A Python object only the callback can pass on (a generator, a sub-graph, a process group);
    /// an index into the table of constants that came with the FX graph.
    Object(usize),
}

/// A call of an operator that we do not lower: ATen runs it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExternCall {
    /// The overload as torch prints it, such as `aten.convolution.default`.
    pub target: String,
    /// Positional arguments.
    pub args: Vec<Arg>,
    /// Keyword arguments, in the order they were given.
    pub kwargs: Vec<(String, Arg)>,
    /// Why we do not lower it (a constant sentence, shown by `explain`).
    pub reason: String,
    /// Whether it has effects (random numbers, collectives, host calls) and must keep its place
    /// among the other effectful calls and must not be removed or merged.
    pub effect: bool,
}

/// An operation. Shapes, strides and dtypes of results are in the value types.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// Graph input `index`.
    Input {
        /// Position among the graph's inputs.
        index: usize,
    },
    /// Elementwise. Inputs broadcast as in numpy: dims align at the right and an extent that is
    /// literally 1 repeats. All inputs have one dtype except where [`PwOp`] says otherwise.
    Pointwise(PwOp),
    /// Conversion to the output's dtype, as `Tensor.to` does it.
    Convert,
    /// A new tensor equal to the input (`clone`, `contiguous`): distinct storage when it is a graph
    /// output, free otherwise.
    Copy,
    /// Reduces `dims` (sorted, non-empty unless the input is 0-d) and drops them.
    Reduce {
        /// How.
        op: ReduceOp,
        /// Which dims.
        dims: Vec<usize>,
    },
    /// Combines each element with all before it along `dim`, in the operand's dtype; every result is
    /// converted to the output's dtype, but what goes on is not.
    Scan {
        /// How.
        op: ScanOp,
        /// Along which dim.
        dim: usize,
        /// Whether from the last element to the first, with all after it.
        reverse: bool,
    },
    /// A view of the only input.
    View(View),
    /// A constant tensor; no inputs. With a result of type `None` it stands for an absent output of
    /// the graph.
    Full(Scalar),
    /// A 0-d tensor holding a symbolic integer converted to the dtype; no inputs. With a result of
    /// type `SymInt` it is that integer itself, as an output of the graph.
    FullSym(Expr),
    /// 1-d `start + step × i` in the output's (integer) dtype; no inputs.
    Iota {
        /// First element.
        start: Expr,
        /// Difference of neighbours.
        step: Expr,
    },
    /// Advanced indexing: inputs are `x` and one i64 index tensor per entry of `dims` (broadcast
    /// together to `index shape`). The indexed dims of `x` are replaced by the index shape, which
    /// stands at position `at` of the output. Negative indices count from the end; out of range
    /// raises `IndexError`.
    Index {
        /// Indexed dims of `x`, sorted.
        dims: Vec<usize>,
        /// Where the index dims stand in the output.
        at: usize,
    },
    /// `torch.gather(x, dim, index)`: inputs are `x` and an i64 index of the output's shape.
    /// Out of range (negative too) raises.
    Gather {
        /// The indexed dim.
        dim: usize,
    },
    /// A copy of `base` with the elements of `src` put or combined into it. Inputs are `base`, `src` and
    /// one i64 index tensor per entry of `dims`, which broadcasts to the shape of `src`. Element `c` of
    /// `src` goes to the place that the indices give along `dims` and coordinates `rest` of `c` along
    /// the other dims of `base`, in their order. Elements come in ascending row-major order of `c`, and
    /// each combination is rounded to the dtype. An index out of range raises `error` (`exception:
    /// message`).
    Scatter {
        /// How.
        op: ScatterOp,
        /// Indexed dims of `base`, sorted.
        dims: Vec<usize>,
        /// Which dims of `src` are the other dims of `base`.
        rest: Vec<usize>,
        /// Whether negative indices count from the end; else they are out of range.
        wrap: bool,
        /// What an index out of range raises.
        error: String,
    },
    /// Concatenation along `dim`; at least one input.
    Cat {
        /// The dim.
        dim: usize,
    },
    /// Constant padding. Per dim of the input, elements added before and after; negative crops.
    Pad {
        /// Added before, per dim.
        low: Vec<Expr>,
        /// Added after, per dim.
        high: Vec<Expr>,
        /// The constant.
        value: Scalar,
    },
    /// `a @ b` for 2-d (`[m,k] @ [k,n]`) or, batched, 3-d operands with equal batch; with `bias` a
    /// third input is added that broadcasts to the result (`addmm`/`baddbmm` with alpha = beta = 1).
    Matmul {
        /// Whether a third input is added.
        bias: bool,
    },
    /// A call of an operator of ATen (or of a custom library).
    Extern(ExternCall),
}

impl Op {
    /// Whether the node must not be removed, merged or reordered among its kind.
    pub fn has_effect(&self) -> bool {
        matches!(self, Op::Extern(c) if c.effect)
    }
}
