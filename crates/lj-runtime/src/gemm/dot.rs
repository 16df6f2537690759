//! Products with few rows or few columns, as inner products: every element of the large operand is
//! read once from memory, and nothing is packed.

#![allow(unsafe_code)]

use super::{Kernels, Matrix, Product, ceil};
use crate::parallel::{grain, parallel_for};
use lj_ir::DType;
use lj_schedule::gemm::{Function, Tile, dot};

/// Most rows (or columns) of the result.
const MOST: i64 = 16;
/// Shorter sums spend their time at the ends.
const LEAST_K: i64 = 32;

/// Whether a product is made this way.
pub(super) fn fits(p: &Product) -> bool {
    let along = p.a.col == 1 && p.b.row == 1;
    along && p.m.min(p.n) <= MOST && p.k >= LEAST_K
}

/// Makes it; `false` if a parallel loop fails.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run(kernels: &Kernels, p: &Product, threads: usize) -> bool {
    // `w` has many rows, `x` few: both along the summed dim.
    let (a, b) = (p.a, p.b.transposed());
    let turned = p.m > p.n;
    let (w, x, many, few) = if turned { (a, b, p.m, p.n) } else { (b, a, p.n, p.m) };
    let place = |m: Matrix| if turned { m.transposed() } else { m };
    let (out, bias) = (place(p.out), p.bias.map(place));
    let f = if few == 1 { Function::Dot1 } else { Function::Dot4 };
    let (wide, deep) = Tile::dot(f);
    let dtype = kernels.tile.dtype;
    let bytes = dtype.bytes();
    let groups = ceil(many, wide);
    let body = |begin: i64, end: i64, _: usize| {
        for g in begin..end {
            let (item, first) = (g / groups, g % groups * wide);
            for second in (0..few).step_by(deep as usize) {
                let (rows, cols) = ((many - first).min(wide), (few - second).min(deep));
                let mut sums = [0f32; 16];
                let mut args = [0i64; dot::LEN];
                args[dot::W] = w.at(item, first, 0, bytes) as i64;
                args[dot::W_STRIDE] = w.row * bytes;
                args[dot::W_ROWS] = rows;
                args[dot::X] = x.at(item, second, 0, bytes) as i64;
                args[dot::X_STRIDE] = x.row * bytes;
                args[dot::X_ROWS] = cols;
                args[dot::LEN_K] = p.k;
                args[dot::OUT] = sums.as_mut_ptr() as i64;
                // SAFETY: the rows lie in the operands; the sums have room for a call's.
                unsafe { kernels.get(f)(args.as_ptr()) };
                for j in 0..cols {
                    for i in 0..rows {
                        let mut v = sums[(j * wide + i) as usize];
                        // Rows of the result as they are here are `x`'s.
                        let at = |m: &Matrix| m.at(item, second + j, first + i, bytes);
                        // SAFETY: elements of the addend and of the result; no other thread has this one.
                        unsafe {
                            if let Some(bias) = &bias {
                                v += read(at(bias), dtype);
                            }
                            write(at(&out), dtype, v);
                        }
                    }
                }
            }
        }
    };
    let all = p.batch * groups;
    let work = all as f64 * wide as f64 * p.k as f64;
    let ns = work * (bytes as f64 / 20.0).max(few as f64 * 2.0 / 60.0);
    parallel_for(0, all, grain(all, ns, threads), &body)
}

unsafe fn read(p: *const u8, dtype: DType) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::BF16 => f32::from_bits(u32::from(p.cast::<u16>().read_unaligned()) << 16),
            _ => p.cast::<f32>().read_unaligned(),
        }
    }
}

unsafe fn write(p: *mut u8, dtype: DType, v: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::BF16 => p.cast::<u16>().write_unaligned(to_bf16(v)),
            _ => p.cast::<f32>().write_unaligned(v),
        }
    }
}

/// Rounds to nearest, ties to even.
fn to_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    if v.is_nan() { 0x7fc0 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}
