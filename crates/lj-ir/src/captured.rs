//! The neighbourhood of some operators in a graph above autograd, as Dynamo captured it.
//!
//! Patterns whose replacement has a gradient of its own (attention) are found here: what replaces them
//! is differentiated with the rest, so forward and backward gain at once. It is no [`Graph`]: a node
//! may be any torch function, whatever is not part of a pattern is a leaf, layouts are left out.
//!
//! [`Graph`]: crate::Graph

use crate::{DType, Device, Expr, Facts, Op};
use std::collections::BTreeMap;

/// An operator that patterns name and [`Op`] has no operation for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// `a @ b` over the last two dims; the others broadcast.
    Product,
    /// Softmax along the last dim.
    Softmax,
    /// Dropout in training with this probability (the bits of an `f64`).
    Dropout(u64),
    /// `x @ w.T`, with a bias as a third operand if there is one.
    Linear,
    /// Differences of neighbours along the last dim, of `x` after what is put before it: `[x, before]`.
    Differences,
    /// Sum of each element and all before it along the last dim.
    RunningSum,
    /// `x[i, j]` of a 2-d `x` and indices of it that broadcast.
    Lookup,
    /// Cross-entropy of rows of scores `[rows, classes]` and an index a row.
    CrossEntropy(Loss),
}

/// What a cross-entropy does besides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loss {
    /// The index whose rows count for nothing.
    pub ignore_index: i64,
    /// Whether the losses are summed; else their mean is taken.
    pub sum: bool,
}

/// What a node computes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CapturedOp {
    /// Anything.
    Leaf,
    /// A pointwise operation, conversion, view, constant or index.
    Op(Op),
    /// A part of a pattern.
    Part(Part),
}

/// A value of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedNode {
    /// What it is.
    pub op: CapturedOp,
    /// Operands: indices of nodes before it.
    pub args: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Where it is.
    pub device: Device,
    /// Extents.
    pub shape: Vec<Expr>,
    /// Whether a gradient flows to it.
    pub grad: bool,
    /// Position of the call that it is part of.
    pub call: usize,
}

/// A call as the program wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The node that is its result; several calls may have one (`contiguous`).
    pub node: usize,
    /// Calls whose results it reads.
    pub reads: Vec<usize>,
    /// Calls that read its result.
    pub users: Vec<usize>,
}

/// Values, and the calls that they come from by position in the captured graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// In topological order.
    pub nodes: Vec<CapturedNode>,
    /// The calls around the operators asked for. Others may be users of these, never their results.
    pub calls: BTreeMap<usize, Call>,
    /// Calls that may change memory or how later ones run, by position.
    pub barriers: Vec<usize>,
    /// What is known of the symbols.
    pub facts: Facts,
}
