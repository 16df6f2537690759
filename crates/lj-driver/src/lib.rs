//! The whole way from an FX graph to a plan that runs: import → stitch → rewrite → schedule →
//! codegen → link, with the disk cache around it, the verifier between stages, and what each stage
//! leaves for people to read.
//!
//! A stage that fails, by an error or a panic, is done without where that is possible (rewriting);
//! otherwise [`compile`] fails and the caller runs the FX graph as it is. Strict mode makes every
//! fault an error. This crate knows nothing of Python.

mod artifacts;
mod entry;
mod gemm;
mod guard;
mod options;
mod pipeline;
mod report;

pub use lj_dump::Artifact;
pub use lj_rewrite::captured::{Site, Step, StepArg};
pub use options::CompileOptions;
pub use report::{Fallback, Fault, Report};

use lj_import::captured::CapturedCall;
use lj_import::fx::FxGraph;
use lj_ir::{Sym, SymInfo};
use lj_rewrite::captured::Policy;
use lj_runtime::Plan;

/// Why a graph was not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A stage that cannot be done without failed.
    #[error("{stage}: {message}")]
    Stage {
        /// Which.
        stage: String,
        /// Its error.
        message: String,
    },
    /// The observer asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Is told how far a compilation is.
pub trait Observer {
    /// `stage` starts now. `false` stops the compilation with [`Error::Interrupted`].
    fn stage(&self, stage: &'static str) -> bool;
}

/// An observer that does not care.
impl Observer for () {
    fn stage(&self, _: &'static str) -> bool {
        true
    }
}

/// What the driver is to compile and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The graph.
    pub fx: &'a FxGraph,
    /// The graph as FX prints it, for dumps.
    pub fx_text: Option<&'a str>,
    /// Dynamo's compile id, such as `0/0`; empty if unknown.
    pub compile_id: &'a str,
    /// Whether [`Compiled::artifacts`] is wanted.
    pub want_artifacts: bool,
}

/// A compiled graph.
pub struct Compiled {
    /// What runs.
    pub plan: Plan,
    /// What was done.
    pub report: Report,
    /// One text per stage, if wanted.
    pub artifacts: Vec<Artifact>,
    /// Things the user should know once: what it is about (`cache`, `dump`) and a sentence.
    pub warnings: Vec<(&'static str, String)>,
}

/// Finds operators that are spelled out in a graph above autograd, around the given calls. `always`:
/// also where ours is not expected to be faster.
///
/// # Errors
/// If the search fails; the graph is then used as it is.
pub fn find_operators(
    calls: &[CapturedCall],
    barriers: &[usize],
    syms: &[(Sym, SymInfo)],
    always: bool,
) -> Result<Vec<Site>, Error> {
    let policy = if always { Policy::Always } else { Policy::Auto };
    let find = || lj_rewrite::captured::find(&lj_import::captured::import(calls, barriers, syms), policy);
    guard::guard(find).map_err(|message| Error::Stage { stage: "captured".into(), message })
}

/// Compiles a graph.
///
/// # Errors
/// If a stage fails that cannot be done without, or any stage in strict mode, or the observer stops
/// it. The graph can then still be run operator by operator.
pub fn compile(
    request: &Request<'_>,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<Compiled, Error> {
    pipeline::Pipeline::new(request, options, observer).run()
}
