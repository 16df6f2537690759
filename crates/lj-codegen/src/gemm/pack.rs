//! Panels: an operand in the order in which the micro-kernel reads it.

use super::Gen;
use crate::ir::{K, V};
use lj_schedule::gemm::{UNROLL, pack};

impl Gen<'_, '_> {
    /// Rows that are contiguous along the summed dim: squares of `lanes × lanes` words, transposed in
    /// registers.
    pub(super) fn pack_along(&self) {
        let ir = self.ir;
        let lanes = i64::from(self.lanes);
        let (src, dst) = (self.pointer(pack::SRC), self.pointer(pack::DST));
        let (stride, to) = (self.number(pack::STRIDE), self.number(pack::DST_STRIDE));
        let last = ir.sub(self.number(pack::COUNT), self.i64(1));
        let rows: Vec<V> =
            (0..lanes).map(|r| self.at(src, ir.mul(self.least(self.i64(r), last), stride))).collect();
        let len = self.number(pack::STEPS);
        let pair = self.tile.pair();
        // An element number; a word is `pair` of them.
        self.repeat((self.i64(0), len, lanes * pair), &[dst], |k, carried| {
            let mask = self.mask(ir.sub(len, k), self.lanes * pair as u32);
            let offset = ir.mul(k, self.i64(self.tile.dtype.bytes()));
            let square: Vec<V> = rows
                .iter()
                .map(|row| {
                    let p = self.at(*row, offset);
                    if pair == 1 {
                        return self.masked_load(self.floats(), p, mask);
                    }
                    let x = self.masked_load(ir.ty(K::I16, 2 * self.lanes), p, mask);
                    ir.bitcast(x, self.floats())
                })
                .collect();
            let mut p = carried[0];
            for column in self.transposed(&square) {
                ir.store(column, p, 4);
                p = self.at(p, to);
            }
            vec![p]
        });
    }

    /// The columns of a square whose rows are given: pairs of rows are interleaved within 128-bit
    /// parts by words, then by pairs of words, then the parts are transposed.
    fn transposed(&self, rows: &[V]) -> Vec<V> {
        let (ir, n) = (self.ir, self.lanes);
        // Lane `p + i` of the result, for every part starting at lane `p`, is lane `pick[i]` of a's
        // part, or of b's if it is 4 or more.
        let within = |a: V, b: V, pick: [u32; 4]| {
            let lane = |i: u32| {
                let (part, from) = (i / 4 * 4, pick[(i % 4) as usize]);
                part + if from < 4 { from } else { n + from - 4 }
            };
            ir.shuffle(a, b, &(0..n).map(lane).collect::<Vec<_>>())
        };
        let mut words = vec![];
        for two in rows.chunks(2) {
            words.push(within(two[0], two[1], [0, 4, 1, 5]));
            words.push(within(two[0], two[1], [2, 6, 3, 7]));
        }
        // `quads[4g + c]`, part p: column 4p + c of rows 4g .. 4g + 4.
        let mut quads = vec![];
        for four in words.chunks(4) {
            for (a, b) in [(four[0], four[2]), (four[1], four[3])] {
                quads.push(within(a, b, [0, 1, 4, 5]));
                quads.push(within(a, b, [2, 3, 6, 7]));
            }
        }
        let parts = n / 4;
        // Parts of a and b in a given order.
        let across = |a: V, b: V, pick: &[u32]| {
            let lanes = pick.iter().flat_map(|part| (0..4).map(move |i| 4 * part + i));
            ir.shuffle(a, b, &lanes.collect::<Vec<_>>())
        };
        (0..n)
            .map(|column| {
                let (part, c) = (column / 4, (column % 4) as usize);
                let group = |g: usize| quads[4 * g + c];
                if parts == 2 {
                    return across(group(0), group(1), &[part, 2 + part]);
                }
                // Even or odd parts of two groups, then of all four. LLVM joins the equal halves.
                let odd = part % 2;
                let half = |g| across(group(g), group(g + 1), &[odd, odd + 2, odd + 4, odd + 6]);
                let high = part / 2;
                across(half(0), half(2), &[high, high + 2, high + 4, high + 6])
            })
            .collect()
    }

    /// What is contiguous across the summed dim: `vectors` vectors a step.
    pub(super) fn pack_across(&self, vectors: i64) {
        let ir = self.ir;
        let lanes = i64::from(self.lanes);
        let (src, dst) = (self.pointer(pack::SRC), self.pointer(pack::DST));
        let (stride, to) = (self.number(pack::STRIDE), self.number(pack::DST_STRIDE));
        let count = self.number(pack::COUNT);
        let masks: Vec<V> =
            (0..vectors).map(|v| self.mask(ir.sub(count, self.i64(v * lanes)), self.lanes)).collect();
        let (len, pair) = (self.number(pack::STEPS), self.tile.pair());
        let bytes = self.tile.dtype.bytes();
        let twice = ir.mul(stride, self.i64(pair));
        let ends = self.repeat((self.i64(0), len, pair), &[src, dst], |k, carried| {
            let [src, dst] = [carried[0], carried[1]];
            for (v, mask) in masks.iter().enumerate() {
                let p = self.off(src, v as i64 * lanes * bytes);
                let word = if pair == 1 {
                    self.masked_load(self.floats(), p, *mask)
                } else {
                    let ty = ir.ty(K::I16, self.lanes);
                    let low = self.masked_load(ty, p, *mask);
                    let second = self.less(ir.add(k, self.i64(1)), len);
                    let mask = ir.and(*mask, ir.splat(second, self.lanes));
                    let high = self.masked_load(ty, self.at(p, stride), mask);
                    let wide = |x| ir.zext(x, ir.ty(K::I32, self.lanes));
                    ir.or(wide(low), ir.shl(wide(high), ir.int(K::I32, self.lanes, 16)))
                };
                ir.store(word, self.off(dst, v as i64 * lanes * 4), 4);
            }
            vec![self.at(src, twice), self.at(dst, to)]
        });
        // Zeros to a multiple of the micro-kernel's steps.
        let steps = ir.lshr(ir.add(len, self.i64(pair - 1)), self.i64(pair.ilog2().into()));
        let missing = ir.and(ir.sub(self.i64(0), steps), self.i64(UNROLL - 1));
        self.repeat((self.i64(0), missing, 1), &[ends[1]], |_, carried| {
            for v in 0..vectors {
                ir.store(ir.zero(self.floats()), self.off(carried[0], v * lanes * 4), 4);
            }
            vec![self.at(carried[0], to)]
        });
    }
}
