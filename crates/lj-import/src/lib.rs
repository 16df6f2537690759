//! Import: an FX graph as data ([`fx::FxGraph`]) becomes a [`lj_ir::Graph`].
//!
//! One table maps each operator to a function that lowers it ([`targets`] lists it); what has no
//! entry, or whose lowering declines (a dtype, device or argument it does not handle), becomes
//! [`lj_ir::Op::Extern`] with a reason and is run by ATen. How to add a lowering:
//! `docs/lowerings.md`.
//!
//! **Invariants.** The result has eager's dtypes, shapes, strides and promotion; each ATen operator
//! on 16-bit floats rounds its result once, as eager does. This crate knows nothing of Python, of
//! how the graph is scheduled or of code generation.

pub mod captured;
mod cx;
mod external;
pub mod fx;
mod lower;
mod promote;
mod run;

use fx::FxNode;
pub use run::import;

/// A graph that cannot be imported: the caller runs the FX graph as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot import `{node}`{target}: {what}{}", line.as_ref().map(|l| format!(" (from {l})")).unwrap_or_default())]
pub struct Error {
    /// Name of the FX node.
    pub node: String,
    /// ` (aten.…)`, or empty when the node is not a call.
    pub target: String,
    /// What is wrong.
    pub what: String,
    /// The user's source line, where known.
    pub line: Option<String>,
}

impl Error {
    pub(crate) fn at(node: &FxNode, what: impl Into<String>) -> Error {
        let target = match &node.kind {
            fx::FxKind::Call { target, .. } => format!(" ({target})"),
            _ => String::new(),
        };
        Error { node: node.name.clone(), target, what: what.into(), line: node.line.clone() }
    }
}

/// A graph and what the importer has to say about it.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The graph, verified, without dead nodes.
    pub graph: lj_ir::Graph,
}

impl Imported {
    /// The operators that ATen runs and why, with how often each occurs, sorted.
    pub fn fallbacks(&self) -> Vec<(String, String, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for node in &self.graph.nodes {
            if let lj_ir::Op::Extern(call) = &node.op {
                *counts.entry((call.target.clone(), call.reason.clone())).or_insert(0) += 1;
            }
        }
        counts.into_iter().map(|((target, reason), n)| (target, reason, n)).collect()
    }
}

/// Every operator that has a lowering, sorted.
pub fn targets() -> Vec<&'static str> {
    lower::table().keys().copied().collect()
}

/// What an operator costs, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Nothing: it rearranges metadata, or computes sizes.
    Free,
    /// A matrix product, a convolution or attention: a library's kernel wherever it runs.
    Library,
    /// Anything else.
    Other,
}

/// The kind of cost of a call of `target`.
pub fn cost(target: &str) -> Cost {
    if target.starts_with("sym.") || lower::is_data_free(target) {
        Cost::Free
    } else if external::is_library(target) {
        Cost::Library
    } else {
        Cost::Other
    }
}
