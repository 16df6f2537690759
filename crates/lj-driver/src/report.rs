//! What a compilation did: counts, times, fallbacks, faults.

use lj_import::fx::{FxGraph, FxKind, FxNode};
use lj_schedule::program::{Program, Step};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Operators of one kind that ATen runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The overload.
    pub target: String,
    /// Why it is not lowered.
    pub reason: String,
    /// How often it is called.
    pub count: u64,
    /// The first source line of the user's that needs it.
    pub line: Option<String>,
}

/// A stage that failed and was done without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// Which.
    pub stage: String,
    /// Its error.
    pub message: String,
}

/// The report of one graph. Its JSON is the constructor call of `ljcompile.stats.Record`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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
    /// Seconds by stage, in the order they ran.
    #[serde(serialize_with = "as_map")]
    pub seconds: Vec<(String, f64)>,
    /// `hit`, `miss`, `off`.
    pub cache: String,
    /// Stages that failed.
    pub faults: Vec<Fault>,
}

fn as_map<S: Serializer>(pairs: &[(String, f64)], s: S) -> Result<S::Ok, S::Error> {
    let mut map = s.serialize_map(Some(pairs.len()))?;
    for (k, v) in pairs {
        map.serialize_entry(k, v)?;
    }
    map.end()
}

impl Report {
    /// Counts of the FX graph.
    pub fn new(fx: &FxGraph) -> Report {
        let op = |n: &&FxNode| match &n.kind {
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
        let mut fallbacks: BTreeMap<(&str, &str), (u64, Option<&String>)> = BTreeMap::new();
        for step in &program.steps {
            match step {
                Step::Kernel { .. } => self.kernels += 1,
                Step::Matmul { .. } => self.matmuls += 1,
                Step::Extern { call, prov, .. } => {
                    let f = fallbacks.entry((&call.target, &call.reason)).or_default();
                    let line = program.lines.get(*prov as usize).and_then(|(_, l)| l.as_ref());
                    f.0 += 1;
                    f.1 = f.1.or(line);
                }
            }
        }
        self.distinct_kernels = program.nests.len();
        self.fallbacks = fallbacks
            .into_iter()
            .map(|((target, reason), (count, line))| Fallback {
                target: target.into(),
                reason: reason.into(),
                count,
                line: line.cloned(),
            })
            .collect();
    }

    /// Adds `seconds` to the time of a stage.
    pub fn time(&mut self, stage: &str, seconds: f64) {
        match self.seconds.iter_mut().find(|(s, _)| s == stage) {
            Some((_, t)) => *t += seconds,
            None => self.seconds.push((stage.into(), seconds)),
        }
    }
}
