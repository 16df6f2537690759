//! Who makes a matrix product: our kernels or ATen.
//!
//! A cost model answers where it is certain. Otherwise both make a product of the same kind, cut down
//! where it is large, and the faster one is chosen. Measured choices are kept in the process and in the
//! disk cache, so that the same product is decided once and in the same way from then on. Where there
//! is no time left to measure, the model decides.

use crate::entry::{self, BUILD};
use crate::{CompileOptions, guard::guard};
use lj_codegen::Target;
use lj_ir::DType;
use lj_runtime::KernelObject;
use lj_runtime::cache::{Cache, digest};
use lj_runtime::gemm::{Kernels, timing};
use lj_schedule::gemm::{Choice, Problem, Reason, Tile};
use lj_schedule::program::{Program, Step};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The kernels of an element type: linked, and as an object for plans.
struct Unit {
    object: Vec<u8>,
    kernels: Kernels,
}

/// Kernels that this process has made, by what they were made from.
static UNITS: Mutex<BTreeMap<String, Arc<Unit>>> = Mutex::new(BTreeMap::new());
/// Choices that this process has measured.
static CHOICES: Mutex<BTreeMap<String, Choice>> = Mutex::new(BTreeMap::new());

/// Operations of a product that is measured as it is, per thread; larger ones are cut down.
const MOST_FLOPS: i64 = 1 << 26;
/// Rows, columns and summed elements of a product that is measured, at most.
const MOST: (i64, i64) = (512, 2048);
/// Time for one product, of the budget of a graph.
const EACH: Duration = Duration::from_millis(5);
/// Calls of each after which a measurement ends even if there is time.
const CALLS: usize = 12;
/// The part of ATen's time that our kernels may take at most. What was measured on a product with a shorter
/// sum says less about `bf16`, whose sums between blocks take memory.
const MARGIN: f64 = 0.98;
/// Results this close are measured again.
const CLOSE: f64 = 0.03;

/// Chooses for the products of one graph.
pub struct Chooser<'a> {
    options: &'a CompileOptions,
    target: &'a Target,
    threads: usize,
    store: Option<Cache>,
    units: RefCell<BTreeMap<DType, Option<Arc<Unit>>>>,
    /// Time spent here, and of it on measuring.
    spent: Cell<Duration>,
    measured: Cell<Duration>,
}

impl<'a> Chooser<'a> {
    /// For a graph that is compiled with these options for `threads` threads.
    pub fn new(options: &'a CompileOptions, target: &'a Target, threads: usize) -> Chooser<'a> {
        let store = options.cache.then(|| entry::cache(options, target));
        let (units, spent, measured) = Default::default();
        Chooser { options, target, threads, store, units, spent, measured }
    }

    /// Seconds spent on choosing.
    pub fn seconds(&self) -> f64 {
        self.spent.get().as_secs_f64()
    }

    /// The kernels that `program` needs.
    pub fn objects(&self, program: &Program) -> Vec<KernelObject> {
        let needed = |dtype: DType| {
            program.steps.iter().any(|s| match s {
                Step::Matmul { gemm, .. } => {
                    gemm.choice.own && gemm.problem.as_ref().is_some_and(|p| p.dtype == dtype)
                }
                _ => false,
            })
        };
        let units = self.units.borrow();
        let found = units.iter().filter(|(d, _)| needed(**d)).filter_map(|(_, u)| u.as_ref());
        found
            .map(|u| KernelObject { bytes: u.object.clone(), kernels: vec![], tile: Some(u.kernels.tile) })
            .collect()
    }

    fn decide(&self, p: &Problem) -> Choice {
        let estimate = estimate(p, self.target, self.threads);
        let fixed = |own: bool, reason: Reason| Choice { own, reason, ..estimate };
        let aten = |reason| fixed(false, reason);
        if self.options.gemm == "aten" || (p.dtype == DType::F32 && !self.options.f32_exact) {
            return aten(Reason::Option);
        }
        let Some(tile) = lj_codegen::gemm::tile(p.dtype, self.target) else {
            return Choice::UNSUPPORTED;
        };
        if self.options.gemm == "own" {
            return if self.unit(tile).is_some() { fixed(true, Reason::Option) } else { Choice::UNSUPPORTED };
        }
        if estimate.own_ns > 2 * estimate.aten_ns {
            return aten(Reason::Model);
        }
        let Some(unit) = self.unit(tile) else { return Choice::UNSUPPORTED };
        if 2 * estimate.own_ns < estimate.aten_ns {
            return fixed(true, Reason::Model);
        }
        self.measure(&unit, p).unwrap_or_else(|| fixed(estimate.own_ns < estimate.aten_ns, Reason::Model))
    }

    /// The kernels of a tile; `None` if they cannot be made.
    fn unit(&self, tile: Tile) -> Option<Arc<Unit>> {
        if let Some(known) = self.units.borrow().get(&tile.dtype) {
            return known.clone();
        }
        let found = self.make(tile);
        self.units.borrow_mut().insert(tile.dtype, found.clone());
        found
    }

    fn make(&self, tile: Tile) -> Option<Arc<Unit>> {
        let what = format!("{tile:?} {} {}", self.target.cpu, self.target.features);
        let mut units = UNITS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(u) = units.get(&what) {
            return Some(u.clone());
        }
        let key = digest(&[b"gemm kernels", what.as_bytes(), BUILD.as_bytes()]);
        let link = |object: Vec<u8>| {
            let kernels = Kernels::new(&object, tile).ok()?;
            Some(Arc::new(Unit { object, kernels }))
        };
        let stored = self.store.as_ref().and_then(|s| s.load(&key)).and_then(link);
        let unit = if let Some(u) = stored {
            u
        } else {
            let made = guard(|| lj_codegen::gemm::compile(&tile, self.target, false)).ok()?;
            if let Some(s) = &self.store {
                // A cache that cannot be written is reported with the program.
                let _ = s.store(&key, &made.object);
            }
            link(made.object)?
        };
        units.insert(what, unit.clone());
        Some(unit)
    }

    /// What was or is measured of a product like `p`; `None` if there is no time or no ATen.
    fn measure(&self, unit: &Unit, p: &Problem) -> Option<Choice> {
        if self.options.gemm_budget_ms == 0 {
            return None;
        }
        let small = reduced(p);
        let scale = flops(p) / flops(&small).max(1.0);
        let margin = if p.k > small.k && p.dtype == DType::BF16 { MARGIN - 0.03 } else { MARGIN };
        let balance = balance(p, unit.kernels.tile, self.threads);
        let scaled = |c: Choice| {
            let (own, aten) = (c.own_ns as f64 * scale, c.aten_ns as f64 * scale);
            Choice {
                own: own < margin * balance * aten,
                reason: Reason::Timed,
                own_ns: own as u64,
                aten_ns: aten as u64,
            }
        };
        let what = format!("{small:?} {} torch={}", self.target.cpu, self.options.torch);
        let known = |c: &Mutex<BTreeMap<String, Choice>>| {
            c.lock().unwrap_or_else(PoisonError::into_inner).get(&what).copied()
        };
        if let Some(c) = known(&CHOICES) {
            return Some(scaled(c));
        }
        let key = digest(&[b"gemm choice", what.as_bytes(), BUILD.as_bytes()]);
        let stored = self.store.as_ref().and_then(|s| s.load(&key));
        let stored: Option<Choice> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let choice = if let Some(c) = stored {
            c
        } else {
            let c = self.time(unit, &small)?;
            if let (Some(s), Ok(bytes)) = (&self.store, serde_json::to_vec(&c)) {
                let _ = s.store(&key, &bytes);
            }
            c
        };
        CHOICES.lock().unwrap_or_else(PoisonError::into_inner).insert(what, choice);
        Some(scaled(choice))
    }

    fn time(&self, unit: &Unit, p: &Problem) -> Option<Choice> {
        let budget = Duration::from_millis(self.options.gemm_budget_ms);
        let left = budget.checked_sub(self.measured.get())?;
        let start = Instant::now();
        let cold = p.m.min(p.n) <= 16 && p.m.max(p.n).saturating_mul(p.k) >= 1 << 18;
        let once = |limit: Duration| {
            let run = || timing::compare(&unit.kernels, p, cold, (limit, CALLS));
            guard(run).ok()
        };
        let mut t = once(EACH.min(left));
        if let Some(first) = t
            && (first.own / first.aten - 1.0).abs() < CLOSE
            && let Some(more) = once(EACH.min(left))
        {
            t = Some(timing::Times {
                own: first.own.min(more.own),
                aten: first.aten.min(more.aten),
                calls: first.calls + more.calls,
            });
        }
        self.measured.set(self.measured.get() + start.elapsed());
        let t = t?;
        Some(Choice {
            own: t.own < t.aten,
            reason: Reason::Timed,
            own_ns: t.own as u64,
            aten_ns: t.aten as u64,
        })
    }
}

impl lj_schedule::gemm::Chooser for Chooser<'_> {
    fn choose(&self, p: &Problem) -> Choice {
        let start = Instant::now();
        let choice = self.decide(p);
        self.spent.set(self.spent.get() + start.elapsed());
        choice
    }
}

/// The share of `threads` threads that are busy when a product's panels are divided among them; what
/// matters little counts as 1.
fn balance(p: &Problem, tile: Tile, threads: usize) -> f64 {
    let (lanes, width) = if p.n >= p.m { (p.n, tile.cols()) } else { (p.m, tile.rows) };
    let parts = (p.batch * ((lanes + width - 1) / width)).max(1) as f64;
    let threads = threads.max(1) as f64;
    let busy = parts / ((parts / threads).ceil() * threads);
    if busy > 0.9 { 1.0 } else { busy }
}

fn flops(p: &Problem) -> f64 {
    2.0 * p.batch as f64 * p.m as f64 * p.n as f64 * p.k as f64
}

/// A product of the same kind that takes a millisecond or so: beyond some hundred rows and columns the
/// rate hardly depends on how many there are.
fn reduced(p: &Problem) -> Problem {
    let wide = MOST.0;
    let mut r = p.clone();
    if r.m.min(r.n) <= 16 {
        // Memory sets the pace; the large operand should not fit in a cache near the core.
        let many = (1 << 22) / r.k.max(1);
        r.m = r.m.min(many.max(wide));
        r.n = r.n.min(many.max(wide));
        return r;
    }
    (r.m, r.n, r.k) = (r.m.min(wide), r.n.min(wide), r.k.min(MOST.1));
    while flops(&r) > MOST_FLOPS as f64 {
        let largest = r.batch.max(r.m / 64).max(r.n / 64).max(r.k / 64);
        if largest <= 1 {
            break;
        }
        let half = |x: &mut i64| *x = (*x / 2).max(1);
        match largest {
            l if l == r.batch => half(&mut r.batch),
            l if l == r.k / 64 => half(&mut r.k),
            l if l == r.n / 64 => half(&mut r.n),
            _ => half(&mut r.m),
        }
    }
    r
}

/// Estimated times. Rates are those of one core, in operations a nanosecond, as measured on Zen 4 and
/// scaled by the width of vectors; ATen's libraries reach more of it on Intel's machines, and use
/// matrix units where there are some.
fn estimate(p: &Problem, target: &Target, threads: usize) -> Choice {
    let Problem { dtype, batch, m, n, k, .. } = *p;
    let narrow = dtype == DType::BF16;
    let peak = if target.has("avx512f") { 118.0 } else { 59.0 } * if narrow { 2.0 } else { 1.0 };
    let intel = !target.cpu.starts_with("znver");
    let tile = lj_codegen::gemm::tile(dtype, target);
    let (rows, cols) = tile.map_or((12, 32), |t| (t.rows, t.cols()));
    let up = |x: i64, to: i64| (x.max(1) + to - 1) / to * to;
    let few = m.min(n) <= 16;
    // Rows of a tile that do not exist are computed all the same.
    let padded = if few { flops(p) } else { 2.0 * (batch * up(m, rows) * up(n, cols) * up(k, 4)) as f64 };
    let parts = (batch * (m.max(n) / cols)).max(1) as f64;
    let team = (threads as f64).min(parts);
    let bytes = dtype.bytes() as f64 * batch as f64 * ((m * k) + (k * n) + m * n) as f64;
    let memory = bytes / (20.0 * team.min(4.0));
    let packing = if few { 0.0 } else { bytes / (16.0 * team) };
    let own = (padded / (0.96 * peak * team)).max(memory) + packing + 150.0;
    let library = if narrow && target.has("amx-bf16") {
        8.0 * peak
    } else if intel {
        0.95 * peak
    } else {
        0.84 * peak
    };
    let aten = (flops(p) / (library * team)).max(1.15 * memory) + if narrow { 2000.0 } else { 800.0 };
    Choice { own: own < aten, reason: Reason::Model, own_ns: own as u64, aten_ns: aten as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lj_schedule::gemm::Order;

    fn problem(dtype: DType, batch: i64, m: i64, n: i64, k: i64) -> Problem {
        Problem { dtype, batch, m, n, k, a: Order::Along, b: Order::Along, bias: false }
    }

    #[test]
    fn large_products_are_measured_on_small_ones() {
        for (batch, m, n, k) in [(1, 512, 8192, 512), (1, 8192, 512, 512), (64, 1024, 1024, 1024)] {
            let r = reduced(&problem(DType::F32, batch, m, n, k));
            assert!(flops(&r) <= MOST_FLOPS as f64, "{r}");
            assert!(r.m >= 256 && r.n >= 256 && r.k >= 256, "{r}");
        }
        let small = problem(DType::F32, 2, 100, 70, 33);
        assert_eq!(reduced(&small), small);
        // One row: most of a large operand stays.
        let r = reduced(&problem(DType::BF16, 1, 1, 128_256, 4096));
        assert_eq!((r.m, r.n, r.k), (1, 1024, 4096));
    }

    #[test]
    fn the_model_knows_overheads_and_matrix_units() {
        let zen = Target::new("znver4", "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512bf16,+avx2,+fma");
        let tiny = estimate(&problem(DType::F32, 1, 8, 16, 4), &zen, 2);
        assert!(tiny.own && 2 * tiny.own_ns < tiny.aten_ns, "{tiny}");
        let large = estimate(&problem(DType::F32, 1, 512, 1408, 512), &zen, 2);
        assert!(large.own && 2 * large.own_ns > large.aten_ns, "{large}");
        let features = "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512bf16,+amx-bf16,+avx2,+fma";
        let amx =
            estimate(&problem(DType::BF16, 1, 512, 1408, 512), &Target::new("sapphirerapids", features), 2);
        assert!(!amx.own && amx.own_ns > 2 * amx.aten_ns, "{amx}");
    }
}
