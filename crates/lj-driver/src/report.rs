//! What a compilation did: counts, times, fallbacks, faults.

use lj_import::fx::{FxGraph, FxKind};
use lj_schedule::program::{Program, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Operators of one kind that ATen runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The overload.
    pub target: String,
    /// Why it is not lowered.
    pub reason: String,
    /// How often it is called.
    pub count: usize,
}

/// A stage that failed and was done without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which.
    pub stage: String,
    /// Its error.
    pub message: String,
}

/// The report of one graph. Its JSON is the constructor call of `ljcompile.stats.Record`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `forward`, `backward`, `inference`.
    pub name: String,
    /// Operator calls in the FX graph.
    pub ops: usize,
    /// Kernel launches in the plan.
    pub kernels: usize,
    /// Kernels generated for them.
    pub distinct_kernels: usize,
    /// Matrix products by ATen into the plan's memory.
    pub matmuls: usize,
    /// What ATen runs otherwise, sorted by target and reason.
    pub fallbacks: Vec<Fallback>,
    /// Seconds by stage.
    pub seconds: BTreeMap<String, f64>,
    /// `hit`, `miss`, `off`.
    pub cache: String,
    /// Stages that failed.
    pub faults: Vec<Fault>,
}

impl Report {
    /// Counts of the FX graph.
    pub fn new(fx: &FxGraph) -> Report {
        let op = |n: &&lj_import::fx::FxNode| match &n.kind {
            FxKind::Call { target, .. } => target != "_operator.getitem" && !target.starts_with("sym."),
            _ => false,
        };
        Report {
            name: fx.name.clone(),
            ops: fx.nodes.iter().filter(op).count(),
            cache: "off".into(),
            ..Report::default()
        }
    }

    /// Adds the counts of the program.
    pub fn count(&mut self, program: &Program) {
        let mut fallbacks: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for step in &program.steps {
            match step {
                Step::Kernel { .. } => self.kernels += 1,
                Step::Matmul { .. } => self.matmuls += 1,
                Step::Extern { call, .. } => {
                    *fallbacks.entry((&call.target, &call.reason)).or_default() += 1;
                }
            }
        }
        self.distinct_kernels = program.nests.len();
        self.fallbacks = fallbacks
            .into_iter()
            .map(|((t, r), count)| Fallback { target: t.into(), reason: r.into(), count })
            .collect();
    }
}
