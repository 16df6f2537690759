//! What can go wrong in the rewrite stage. A caller falls back to the graph it passed in.

/// An error of the rewrite stage. None of them is the user's fault: each is a broken rule or an
/// input graph that does not verify, and the unrewritten graph is still good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two values of different dtype, device or shape were declared equal.
    #[error("rewrite: unequal types were merged: {0}")]
    Conflict(String),
    /// A rule's text does not parse.
    #[error("rewrite: rule `{rule}` is malformed: {what}")]
    BadRule {
        /// Name of the rule.
        rule: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The input graph breaks an invariant of the IR.
    #[error("rewrite: bad input graph at {node}: {what}")]
    BadGraph {
        /// The node, with the user's source line where known.
        node: String,
        /// What was expected and found.
        what: String,
    },
    /// The chosen graph cannot be built without breaking a promise (order of effects, types of
    /// outputs, verifier).
    #[error("rewrite: the chosen graph is not usable: {0}")]
    BadResult(String),
}
