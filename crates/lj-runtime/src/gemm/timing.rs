//! Our kernels against ATen's on one product: the measurement behind a choice.

#![allow(unsafe_code)]

use super::{Kernels, Matrix, Product, Room, run, scratch_bytes};
use crate::error::{Error, Result};
use crate::memory::Block;
use crate::parallel::threads;
use crate::torch::{TensorHandle, Torch, torch};
use lj_ir::DType;
use lj_schedule::gemm::{Order, Problem};
use std::time::{Duration, Instant};

/// Nanoseconds of the fastest calls, and how many were made of each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// By our kernels.
    pub own: f64,
    /// By ATen.
    pub aten: f64,
    /// Calls of each.
    pub calls: usize,
}

/// A product of a problem's kind with operands of its own, to be made by either.
pub struct Bench<'a> {
    kernels: &'a Kernels,
    problem: Problem,
    product: Product,
    room: Room,
    /// Bytes of the larger operand, if it is to be in memory only before each call.
    cold: Option<usize>,
    _memory: Block,
}

fn aligned(bytes: i64) -> i64 {
    // Not a power of two apart, so that operands do not compete for one place in a cache.
    super::up(bytes.max(1), 64) + 64
}

impl<'a> Bench<'a> {
    /// Allocates and fills the operands. With `cold`, each call finds the larger one in memory, not in a
    /// cache, as it is with weights that are used once a step.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(kernels: &'a Kernels, problem: &Problem, cold: bool) -> Result<Bench<'a>> {
        let Problem { dtype, batch, m, n, k, .. } = *problem;
        let bytes = dtype.bytes();
        let sizes = [batch * m * k, batch * k * n, batch * m * n, n].map(|e| aligned(e * bytes));
        let threads = threads();
        let each = scratch_bytes(kernels.tile, m, n, k).next_multiple_of(64) as usize;
        let shared = 4 * ((m.min(n) + 32) * (k + k / 16 + 64)).min(1 << 22);
        let total = sizes.iter().sum::<i64>() + shared + 64;
        let memory = Block::new(total.cast_unsigned() + (each * threads) as u64)?;
        let mut at = memory.ptr();
        let mut take = |bytes: i64| {
            let p = at;
            at = at.wrapping_add(bytes as usize);
            p
        };
        let scratch = take((each * threads) as i64);
        let shared_at = take(super::up(shared, 64));
        let [out, bias] = [take(sizes[2]), take(sizes[3])];
        let [a, b] = [take(sizes[0]), take(sizes[1])];
        for (p, len) in [(bias, sizes[3]), (a, sizes[0]), (b, sizes[1])] {
            // SAFETY: the part was taken from the block.
            unsafe { fill(p, len as usize, dtype) };
        }
        let a = match problem.a {
            Order::Along => Matrix { ptr: a, row: k, col: 1, batch: m * k },
            Order::Across => Matrix { ptr: a, row: 1, col: m, batch: m * k },
        };
        let b = match problem.b {
            Order::Along => Matrix { ptr: b, row: 1, col: k, batch: n * k },
            Order::Across => Matrix { ptr: b, row: n, col: 1, batch: n * k },
        };
        let bias = problem.bias.then_some(Matrix { ptr: bias, row: 0, col: 1, batch: 0 });
        let out = Matrix { ptr: out, row: n, col: 1, batch: m * n };
        Ok(Bench {
            kernels,
            problem: problem.clone(),
            product: Product { batch, m, n, k, a, b, bias, out },
            room: Room { shared: shared_at, shared_bytes: shared as u64, scratch, each, threads },
            cold: cold.then_some(sizes[0].max(sizes[1]) as usize),
            _memory: memory,
        })
    }

    /// Takes the larger operand out of the caches, if it is to be cold.
    fn cool(&self) {
        let Some(bytes) = self.cold else { return };
        let p = &self.product;
        let larger = if p.m > p.n { p.a.ptr } else { p.b.ptr };
        #[cfg(target_arch = "x86_64")]
        for at in (0..bytes).step_by(64) {
            // SAFETY: a line of the operand; every x86-64 has the instruction.
            unsafe { std::arch::x86_64::_mm_clflush(larger.wrapping_add(at)) };
        }
    }

    /// Nanoseconds of one product by our kernels, made `calls` times.
    ///
    /// # Errors
    /// See [`run`].
    pub fn own(&self, calls: usize) -> Result<f64> {
        self.cool();
        // SAFETY: the operands and the result are parts of the block that do not overlap.
        self.clock(calls, || unsafe { run(self.kernels, &self.product, &self.room) })
    }

    /// Nanoseconds of one product by ATen, made `calls` times.
    ///
    /// # Errors
    /// If ATen raises.
    pub fn aten(&self, calls: usize) -> Result<f64> {
        self.cool();
        let t = torch()?;
        self.clock(calls, || aten(t, &self.product, self.problem.dtype))
    }

    fn clock(&self, calls: usize, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
        let alone = self.room.threads == 1;
        let start = now(alone);
        for _ in 0..calls {
            f()?;
        }
        Ok((now(alone) - start) / calls.max(1) as f64)
    }
}

/// Nanoseconds: of the calling thread's own time, which other processes do not disturb, or of the clock.
fn now(own: bool) -> f64 {
    let clock = if own { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// Torch with one thread, for the calling thread; restored when dropped.
pub struct OneThread(i32, unsafe extern "C" fn(i32));

impl OneThread {
    /// `None` where torch cannot be told.
    pub fn new() -> Option<OneThread> {
        let t = torch().ok()?;
        let (get, set) = (t.num_threads?, t.set_num_threads?);
        // SAFETY: a getter, and a setter that is given a valid number.
        unsafe {
            let before = get();
            if before != 1 {
                set(1);
            }
            Some(OneThread(before, set))
        }
    }
}

impl Drop for OneThread {
    fn drop(&mut self) {
        if self.0 != 1 {
            // SAFETY: the number that torch gave.
            unsafe { (self.1)(self.0) };
        }
    }
}

/// Calls that are shorter are clocked together.
const SAMPLE_NS: f64 = 20_000.0;

/// Makes the product by both in turns, in one thread and by its own time, after a call each that does
/// not count: for about `budget`, at least twice each and at most `most` times.
///
/// How well either spreads over threads is not measured: on a machine that has other work to do the
/// clock says nothing, and both divide a product into equal parts.
///
/// # Errors
/// If either fails, or there is too little memory.
pub fn compare(
    kernels: &Kernels,
    problem: &Problem,
    cold: bool,
    (budget, most): (Duration, usize),
) -> Result<Times> {
    // A thread of its own has none of the modes of the caller's, which is in the middle of tracing.
    std::thread::scope(|s| {
        let work = || compare_here(kernels, problem, cold, (budget, most));
        s.spawn(work).join().unwrap_or_else(|_| Err(Error::Abi("the timing of a product panicked".into())))
    })
}

fn compare_here(
    kernels: &Kernels,
    problem: &Problem,
    cold: bool,
    (budget, most): (Duration, usize),
) -> Result<Times> {
    let _one = OneThread::new().ok_or_else(|| Error::Abi("torch cannot run in one thread".into()))?;
    let bench = Bench::new(kernels, problem, cold)?;
    let start = Instant::now();
    bench.aten(1)?;
    bench.own(1)?;
    let (own, aten) = (bench.own(1)?, bench.aten(1)?);
    let mut best = Times { own, aten, calls: 1 };
    let calls = |ns: f64| if cold { 1 } else { (SAMPLE_NS / ns.max(1.0)).clamp(1.0, 100.0) as usize };
    let (n, m) = (calls(own), calls(aten));
    while best.calls < 2 || (best.calls < most && start.elapsed() < budget) {
        best.own = best.own.min(bench.own(n)?);
        best.aten = best.aten.min(bench.aten(m)?);
        best.calls += 1;
    }
    Ok(best)
}

/// A pattern of ordinary numbers between -0.5 and 0.5.
///
/// # Safety
/// `len` bytes at `p` may be written.
unsafe fn fill(p: *mut u8, len: usize, dtype: DType) {
    let mut pattern = vec![];
    for i in 0..1024u32 {
        let x = ((i * 7919 % 1021) as f32 / 1021.0) - 0.5;
        match dtype {
            DType::BF16 => pattern.extend(((x.to_bits() >> 16) as u16).to_le_bytes()),
            _ => pattern.extend(x.to_le_bytes()),
        }
    }
    for at in (0..len).step_by(pattern.len()) {
        let n = pattern.len().min(len - at);
        // SAFETY: within the `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), p.add(at), n) };
    }
}

fn aten(t: &Torch, p: &Product, dtype: DType) -> Result<()> {
    let batched = p.batch != 1;
    let tensor = |m: &Matrix, rows: i64, cols: i64| {
        let (sizes, strides) = ([p.batch, rows, cols], [m.batch, m.row, m.col]);
        let from = usize::from(!batched);
        // SAFETY: the handle lives no longer than this call, the memory longer.
        unsafe { TensorHandle::from_blob(m.ptr, &sizes[from..], &strides[from..], dtype) }
    };
    let (a, b, out) = (tensor(&p.a, p.m, p.k)?, tensor(&p.b, p.k, p.n)?, tensor(&p.out, p.m, p.n)?);
    let (o, a, b) = (out.as_raw(), a.as_raw(), b.as_raw());
    let code = if let Some(bias) = &p.bias {
        // SAFETY: as above.
        let c = unsafe { TensorHandle::from_blob(bias.ptr, &[p.n], &[1], dtype)? };
        let f = if batched { t.baddbmm_out } else { t.addmm_out };
        // SAFETY: all handles are valid for the duration of the call.
        unsafe { f(o, c.as_raw(), a, b, 1.0, 1.0) }
    } else {
        let f = if batched { t.bmm_out } else { t.mm_out };
        // SAFETY: as above.
        unsafe { f(o, a, b) }
    };
    t.check(code, "aten.mm.out")
}
