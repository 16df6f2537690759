//! What a compilation did: counts, times, fallbacks, faults.

use lj_dump::Product;
use lj_import::Cost;
use lj_import::fx::{FxGraph, FxKind, FxNode};
use lj_ir::{DType, Expr, Facts};
use lj_schedule::program::{BufId, ExternResult, Operand, Program, Step, TensorRef};
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
    /// Bytes of its operands and results, at the traced sizes.
    pub bytes: u64,
    /// Whether it is a matrix product, a convolution or attention.
    pub library: bool,
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
    /// Those that neither rearrange metadata nor are matrix products, convolutions or attention.
    pub own_ops: usize,
    /// Kernel launches in the plan.
    pub kernels: usize,
    /// Bytes that these read and write, each buffer once a launch, at the traced sizes.
    pub kernel_bytes: u64,
    /// Kernels generated for them.
    pub distinct_kernels: usize,
    /// Matrix products into the plan's memory.
    pub matmuls: usize,
    /// Those of them that our own kernels make.
    pub own_matmuls: usize,
    /// They by kind, in the order in which they first occur.
    pub products: Vec<Product>,
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
        let own = |n: &&FxNode| match &n.kind {
            FxKind::Call { target, .. } => lj_import::cost(target) == Cost::Other,
            _ => false,
        };
        Report {
            name: fx.name.clone(),
            ops: fx.nodes.iter().filter(op).count(),
            own_ops: fx.nodes.iter().filter(op).filter(own).count(),
            cache: "off".into(),
            ..Report::default()
        }
    }

    /// Adds the counts of the program; `facts` holds the traced sizes.
    pub fn count(&mut self, program: &Program, facts: &Facts) {
        let sized = |elems: &Expr, dtype: DType| (facts.hint(elems) * dtype.bytes()).max(0) as u64;
        let whole = |b: &BufId| program.buffers.get(b.0 as usize).map_or(0, |b| sized(&b.elems, b.dtype));
        let window = |r: &TensorRef| {
            let dtype = program.buffers.get(r.buf.0 as usize).map_or(DType::U8, |b| b.dtype);
            sized(&Expr::product(&r.shape), dtype)
        };
        let mut fallbacks: BTreeMap<(&str, &str), Fallback> = BTreeMap::new();
        for step in &program.steps {
            match step {
                Step::Kernel { nest, args, .. } => {
                    self.kernels += 1;
                    let Some(nest) = program.nests.get(*nest as usize) else { continue };
                    let passes = nest.params.iter().map(|p| u64::from(p.read) + u64::from(p.written));
                    self.kernel_bytes += args.iter().zip(passes).map(|((b, _), n)| n * whole(b)).sum::<u64>();
                }
                Step::Matmul { gemm, out, .. } => {
                    self.matmuls += 1;
                    self.own_matmuls += usize::from(gemm.choice.own);
                    let dtype = program.buffers.get(out.buf.0 as usize).map(|b| b.dtype);
                    let what = gemm.problem.as_ref().map(ToString::to_string);
                    let what = what.or_else(|| dtype.map(|d| d.to_string())).unwrap_or_default();
                    let c = gemm.choice;
                    let by = if c.own { "own" } else { "aten" };
                    match self.products.iter_mut().find(|p| p.what == what && p.by == by) {
                        Some(p) => p.count += 1,
                        None => self.products.push(Product {
                            what,
                            count: 1,
                            by: by.into(),
                            reason: c.reason.to_string(),
                            own_ns: c.own_ns,
                            aten_ns: c.aten_ns,
                        }),
                    }
                }
                Step::Extern { call, prov, inputs, outputs } => {
                    let f = fallbacks.entry((&call.target, &call.reason)).or_insert_with(|| Fallback {
                        target: call.target.clone(),
                        reason: call.reason.clone(),
                        count: 0,
                        bytes: 0,
                        library: lj_import::cost(&call.target) == Cost::Library,
                        line: None,
                    });
                    f.count += 1;
                    f.bytes += inputs
                        .iter()
                        .map(|i| if let Operand::Tensor(r) = i { window(r) } else { 0 })
                        .sum::<u64>();
                    f.bytes += outputs
                        .iter()
                        .map(|o| if let ExternResult::Tensor(b) = o { whole(b) } else { 0 })
                        .sum::<u64>();
                    if f.line.is_none() {
                        f.line = program.lines.get(*prov as usize).and_then(|(_, l)| l.clone());
                    }
                }
            }
        }
        self.distinct_kernels = program.nests.len();
        self.fallbacks = fallbacks.into_values().collect();
    }

    /// Counts `seconds` of stage `from` as stage `to`.
    pub fn split(&mut self, from: &str, to: &str, seconds: f64) {
        if seconds > 0.0 {
            self.time(from, -seconds);
            self.time(to, seconds);
        }
    }

    /// Adds `seconds` to the time of a stage.
    pub fn time(&mut self, stage: &str, seconds: f64) {
        match self.seconds.iter_mut().find(|(s, _)| s == stage) {
            Some((_, t)) => *t += seconds,
            None => self.seconds.push((stage.into(), seconds)),
        }
    }
}
