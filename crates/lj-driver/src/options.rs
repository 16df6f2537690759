//! What a compilation can be told.

use serde::Deserialize;
use std::path::PathBuf;

/// Options of a compilation. They arrive as JSON from `ljcompile.options.Options`, which checks
/// names and types for the user; the fields of the two must agree.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools)] // independent switches of the user
pub struct CompileOptions {
    /// A fault in a stage is an error instead of a fallback.
    pub strict: bool,
    /// Verify the graph after every stage (debug builds always do).
    pub verify: bool,
    /// Use the disk cache.
    pub cache: bool,
    /// Where it is.
    pub cache_dir: PathBuf,
    /// Directory for artifacts.
    pub dump: Option<PathBuf>,
    /// Run the rewrite stage.
    pub rewrite: bool,
    /// Allow rewrite rules that may change last bits.
    pub rounding: bool,
    /// Size limit of the e-graph.
    pub node_limit: usize,
    /// Who makes matrix products: `auto`, `own`, `aten`.
    pub gemm: String,
    /// Milliseconds a graph's compilation may spend on timing them. With 0 the cost model decides alone,
    /// whatever was measured before.
    pub gemm_budget_ms: u64,
    /// Whether products of `f32` must have `f32`'s precision; ATen may round operands otherwise.
    pub f32_exact: bool,
    /// Threads that generate code.
    pub compile_threads: usize,
    /// Debugging: kernels work between guard pages, `before` or `after` each buffer.
    pub fence: Option<String>,
    /// Version of torch, part of the cache key.
    pub torch: String,
}

impl CompileOptions {
    /// Whether the verifier runs after every stage.
    pub fn verifies(&self) -> bool {
        self.verify || cfg!(debug_assertions)
    }

    /// The part of the options that results depend on, as text for the cache key.
    pub fn key(&self) -> String {
        format!(
            "rewrite={} rounding={} node_limit={} gemm={} timed={} f32_exact={} \
             torch={}",
            self.rewrite,
            self.rounding,
            self.node_limit,
            self.gemm,
            self.gemm_budget_ms > 0,
            self.f32_exact,
            self.torch
        )
    }
}
