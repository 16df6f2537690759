//! The summary of one compilation.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `meta.json` holds. A reader takes the default for a field that is missing and skips one it
/// does not know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Version of ljcompile.
    pub version: String,
    /// Name of the graph: `forward`, `backward`, `inference`.
    pub graph: String,
    /// Dynamo's compile id, such as `0/0`.
    pub compile_id: String,
    /// Whether the compiled code came from the disk cache.
    pub cache_hit: bool,
    /// Time of each stage, in the order they ran.
    pub times: Vec<StageTime>,
    /// How much of what.
    pub counts: Counts,
    /// Operators that ATen or Python runs for want of a lowering.
    pub fallbacks: Vec<Fallback>,
    /// Matrix products, and who makes them.
    pub products: Vec<Product>,
    /// How often each rewrite rule fired.
    pub rules: BTreeMap<String, u64>,
    /// Size of the arena in bytes for the traced sizes.
    pub arena_bytes: u64,
}

/// How long a stage took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageTime {
    /// Name of the stage: `import`, `rewrite`, `codegen`…
    pub stage: String,
    /// Milliseconds of wall-clock time.
    pub ms: f64,
}

/// Sizes of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Nodes of the imported graph.
    pub ops: u64,
    /// Distinct kernels.
    pub kernels: u64,
    /// Steps that call an operator of ATen or Python.
    pub externs: u64,
    /// Steps that multiply matrices.
    pub matmuls: u64,
    /// Steps of the plan in all.
    pub steps: u64,
}

/// Matrix products of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Product {
    /// Dtype and sizes as traced; `T` marks an operand that lies in memory by columns.
    pub what: String,
    /// How many steps make one.
    pub count: u64,
    /// `own` or `aten`.
    pub by: String,
    /// Why: `timed`, `model`, `option`, `no kernels`.
    pub reason: String,
    /// Nanoseconds by our kernels, measured or estimated; 0 if unknown.
    pub own_ns: u64,
    /// The same by ATen.
    pub aten_ns: u64,
}

/// An operator without a lowering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fallback {
    /// The operator as torch prints it.
    pub target: String,
    /// Why.
    pub reason: String,
    /// How many steps call it for this reason.
    pub count: u64,
    /// The first source line of the user's model that needs it.
    pub line: Option<String>,
}
