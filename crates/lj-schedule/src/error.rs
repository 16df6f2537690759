//! What can go wrong while scheduling.

/// A graph that cannot be scheduled. The driver then runs it through ATen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A size has no source at run time.
    #[error("no graph input or ATen result determines the symbol {sym}")]
    UnboundSymbol {
        /// The symbol.
        sym: String,
    },
    /// An operation that does not fit a kernel although it was not made an ATen call.
    #[error("{op} cannot be scheduled: {why}{line}")]
    Unsupported {
        /// The operation.
        op: String,
        /// What does not fit.
        why: String,
        /// The user's source line, as ` (at …)`, or empty.
        line: String,
    },
    /// The scheduler broke one of its own rules.
    #[error("internal error in the scheduler: {0}")]
    Internal(String),
}
