//! Our kernels against ATen's on one product: the measurement behind a choice.

#![allow(unsafe_code)]

use super::{Kernels, Matrix, Product, Room, run, scratch_bytes};
use crate::error::Result;
use crate::memory::Block;
use crate::parallel::threads;
use crate::torch::{PlainMode, TensorHandle, Torch, torch};
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
    /// Copies of the larger operand, used in turn; the offset of each in bytes.
    copies: Vec<usize>,
    turn: usize,
    _memory: Block,
}

fn aligned(bytes: i64) -> i64 {
    // Not a power of two apart, so that operands do not compete for one place in a cache.
    super::up(bytes.max(1), 64) + 64
}

impl<'a> Bench<'a> {
    /// Allocates and fills the operands. With `cold`, the larger operand has so many copies that together
    /// they take up as many bytes: each call then finds it in memory, not in a cache.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(kernels: &'a Kernels, problem: &Problem, cold: i64) -> Result<Bench<'a>> {
        let Problem { dtype, batch, m, n, k, .. } = *problem;
        let bytes = dtype.bytes();
        let sizes = [batch * m * k, batch * k * n, batch * m * n, n].map(|e| aligned(e * bytes));
        let large = sizes[0].max(sizes[1]);
        let copies = if cold > 0 { (cold / large).clamp(1, 64) } else { 1 };
        let threads = threads();
        let each = scratch_bytes(kernels.tile, m, n, k).next_multiple_of(64) as usize;
        let shared = 4 * ((m.min(n) + 32) * (k + k / 16 + 64)).min(1 << 22);
        let total = sizes.iter().sum::<i64>() + shared + 64 + (copies - 1) * large;
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
        // The larger operand comes last, with its copies behind it.
        let (first, second) = if sizes[0] > sizes[1] { (1, 0) } else { (0, 1) };
        let p = take(sizes[first]);
        let q = take(large * copies);
        for (p, len) in [(bias, sizes[3]), (p, sizes[first]), (q, large * copies)] {
            // SAFETY: the part was taken from the block.
            unsafe { fill(p, len as usize, dtype) };
        }
        let (a, b) = if second == 1 { (p, q) } else { (q, p) };
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
            copies: (0..copies).map(|c| (c * large) as usize).collect(),
            turn: 0,
            _memory: memory,
        })
    }

    /// The product with the next copy of its larger operand.
    fn next(&mut self) -> Product {
        self.turn = (self.turn + 1) % self.copies.len();
        let mut p = self.product;
        let larger = if p.m * p.k > p.k * p.n { &mut p.a } else { &mut p.b };
        larger.ptr = larger.ptr.wrapping_add(self.copies[self.turn]);
        p
    }

    /// Makes the product by our kernels.
    ///
    /// # Errors
    /// See [`run`].
    pub fn own(&mut self) -> Result<f64> {
        let p = self.next();
        let start = Instant::now();
        // SAFETY: the operands and the result are parts of the block that do not overlap.
        unsafe { run(self.kernels, &p, &self.room)? };
        Ok(start.elapsed().as_nanos() as f64)
    }

    /// Makes the product by ATen.
    ///
    /// # Errors
    /// If ATen raises.
    pub fn aten(&mut self) -> Result<f64> {
        let p = self.next();
        let t = torch()?;
        let start = Instant::now();
        aten(t, &p, self.problem.dtype)?;
        Ok(start.elapsed().as_nanos() as f64)
    }

    /// The result, element `i` in memory; for tests.
    pub fn result(&self, i: i64) -> f64 {
        let out = self.product.out.ptr.cast_const();
        // SAFETY: the caller names an element of the result.
        unsafe {
            match self.problem.dtype {
                DType::BF16 => {
                    f64::from(f32::from_bits(u32::from(*out.cast::<u16>().offset(i as isize)) << 16))
                }
                _ => f64::from(*out.cast::<f32>().offset(i as isize)),
            }
        }
    }
}

/// Calls both in turns, after one call each that does not count, for about `budget`, at least twice
/// each and at most `most` times.
///
/// # Errors
/// If either fails, or there is too little memory.
pub fn compare(
    kernels: &Kernels,
    problem: &Problem,
    cold: i64,
    (budget, most): (Duration, usize),
) -> Result<Times> {
    let _plain = PlainMode::new(torch()?);
    let mut bench = Bench::new(kernels, problem, cold)?;
    let start = Instant::now();
    bench.aten()?;
    bench.own()?;
    let mut best = Times { own: f64::INFINITY, aten: f64::INFINITY, calls: 0 };
    while best.calls < 2 || (best.calls < most && start.elapsed() < budget) {
        best.own = best.own.min(bench.own()?);
        best.aten = best.aten.min(bench.aten()?);
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
    let code = match &p.bias {
        Some(bias) => {
            // SAFETY: as above.
            let c = unsafe { TensorHandle::from_blob(bias.ptr, &[p.n], &[1], dtype)? };
            let f = if batched { t.baddbmm_out } else { t.addmm_out };
            // SAFETY: all handles are valid for the duration of the call.
            unsafe { f(o, c.as_raw(), a, b, 1.0, 1.0) }
        }
        None => {
            let f = if batched { t.bmm_out } else { t.mm_out };
            // SAFETY: as above.
            unsafe { f(o, a, b) }
        }
    };
    t.check(code, "aten.mm.out")
}
