//! Packing: which function packs what.

#![allow(unsafe_code)]

use super::Kernels;
use lj_schedule::gemm::{Function, UNROLL, pack as args};

/// An operand as panels see it.
#[derive(Clone, Copy)]
pub(super) struct Side {
    /// Element 0.
    pub ptr: *const u8,
    /// Rows of A, or columns of B.
    pub lanes: i64,
    /// Elements from one to the next.
    pub lane: i64,
    /// Elements from one step of the summed dim to the next.
    pub step: i64,
    /// Elements of the summed dim.
    pub k: i64,
}

/// Steps that are packed of one panel before the next panel of a group: the lines they lie in are still
/// at hand then, even where they compete for a few places of the cache.
const ROUND: i64 = 8;

/// Packs `many` panels of `width` lanes, from panel `first` on, for `len` elements of the summed dim
/// from `begin` on. They lie `stride` words apart from `dst` on.
pub(super) fn pack(
    kernels: &Kernels,
    side: &Side,
    (width, first, many): (i64, i64, i64),
    (begin, len): (i64, i64),
    dst: *mut u8,
    stride: i64,
) {
    if len <= 0 {
        return;
    }
    let (bytes, pair, lanes) = (kernels.tile.dtype.bytes(), kernels.tile.pair(), kernels.tile.lanes);
    let element =
        |lane: i64, k: i64| side.ptr.wrapping_offset(((lane * side.lane + k * side.step) * bytes) as isize);
    let panel = |p: i64| dst.wrapping_add(4 * (p * stride) as usize);
    let call = |f: Function, src: *const u8, dst: *mut u8, count: i64, step: i64, len: i64| {
        let mut a = [0i64; args::LEN];
        a[args::SRC] = src as i64;
        a[args::DST] = dst as i64;
        a[args::COUNT] = count;
        a[args::STRIDE] = step * bytes;
        a[args::STEPS] = len;
        a[args::DST_STRIDE] = 4 * width;
        // SAFETY: the lanes and steps lie in the operand, the panel in memory of the caller's that is
        // large enough (`Cut::stride`).
        unsafe { kernels.get(f)(a.as_ptr()) };
    };
    if side.step == 1 || side.k == 1 {
        for p in 0..many {
            let from = (first + p) * width;
            for part in 0..width.div_euclid(lanes).max(1) {
                // Where no lane is left the last one is repeated, so that no stale memory is used.
                let lane = (from + part * lanes).min(side.lanes - 1);
                let count = (side.lanes - lane).min(lanes.min(width));
                let to = panel(p).wrapping_add(4 * (part * lanes) as usize);
                call(Function::PackAlong, element(lane, begin), to, count, side.lane, len);
            }
        }
    } else if side.lane == 1 || side.lanes == 1 {
        let f = if width > lanes { Function::PackAcross2 } else { Function::PackAcross1 };
        let round = if many > 1 { ROUND * pair } else { len };
        let mut k = 0;
        while k < len {
            let part = round.min(len - k);
            for p in 0..many {
                let lane = (first + p) * width;
                let to = panel(p).wrapping_add(4 * (k / pair * width) as usize);
                let count = (side.lanes - lane).min(width);
                call(f, element(lane, begin + k), to, count, side.step, part);
            }
            k += part;
        }
    } else {
        for p in 0..many {
            scalar(side, kernels.tile.dtype.bytes(), (width, first + p), (begin, len), panel(p));
        }
    }
}

/// A panel of an operand that is contiguous in no dim, element by element.
fn scalar(side: &Side, bytes: i64, (width, p): (i64, i64), (begin, len): (i64, i64), dst: *mut u8) {
    let pair = 4 / bytes;
    let steps = super::up(super::ceil(len, pair), UNROLL);
    for step in 0..steps {
        for lane in 0..width {
            let mut word = [0u8; 4];
            for (i, part) in word.chunks_mut(bytes as usize).enumerate() {
                let k = step * pair + i as i64;
                let at = (p * width + lane).min(side.lanes - 1);
                if k < len {
                    let from = ((at * side.lane + (begin + k) * side.step) * bytes) as isize;
                    // SAFETY: an element of the operand.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            side.ptr.wrapping_offset(from),
                            part.as_mut_ptr(),
                            part.len(),
                        );
                    }
                }
            }
            let to = dst.wrapping_add(4 * (step * width + lane) as usize);
            // SAFETY: a word of the panel.
            unsafe { std::ptr::copy_nonoverlapping(word.as_ptr(), to, 4) };
        }
    }
}
