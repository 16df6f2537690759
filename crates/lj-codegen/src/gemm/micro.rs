//! Two packed panels to a tile of the result.
//!
//! The sums of a tile stay in registers over all steps; each step loads a row of B and adds its
//! product with every element of A's column. At the end the sums go through a tile on the stack, so
//! that one loop over rows serves whole tiles and those at the edges.

use super::Gen;
use crate::ir::{IPred, K, V};
use lj_schedule::gemm::{UNROLL, VECTORS, micro};

impl Gen<'_, '_> {
    pub(super) fn micro(&self) {
        let ir = self.ir;
        let (rows, words) = (self.tile.rows, self.tile.cols());
        let vector = 4 * i64::from(self.lanes);
        let sums = ir.alloca(ir.ty(K::F32, (rows * words) as u32));
        let (a, b) = (self.pointer(micro::A), self.pointer(micro::B));
        let element = if self.narrow() { K::I32 } else { K::F32 };
        let zero = ir.zero(self.floats());
        let mut init = vec![a, b];
        init.extend((0..rows * VECTORS).map(|_| zero));
        let out = self.repeat((self.i64(0), self.number(micro::STEPS), UNROLL), &init, |_, carried| {
            let (a, b) = (carried[0], carried[1]);
            let mut acc = carried[2..].to_vec();
            for u in 0..UNROLL {
                let row: Vec<V> = (0..VECTORS)
                    .map(|v| ir.load(self.floats(), self.off(b, 4 * u * words + v * vector), 4))
                    .collect();
                for r in 0..rows {
                    let x = ir.load(ir.ty(element, 0), self.off(a, 4 * (u * rows + r)), 4);
                    let x = ir.splat(x, self.lanes);
                    for (v, y) in row.iter().enumerate() {
                        let at = r as usize * VECTORS as usize + v;
                        acc[at] = self.fma(x, *y, acc[at]);
                    }
                }
            }
            let mut next = vec![self.off(a, 4 * UNROLL * rows), self.off(b, 4 * UNROLL * words)];
            next.extend(acc);
            next
        });
        let acc = &out[2..];
        self.branch(
            self.plain(),
            || self.store_tile(acc),
            || {
                for (i, acc) in acc.iter().enumerate() {
                    ir.store(*acc, self.off(sums, i as i64 * vector), 4);
                }
                self.finish(sums);
            },
        );
    }

    /// Whether the tile is whole and final and nothing is added: the usual case of short sums, in which the
    /// way through memory would count.
    fn plain(&self) -> V {
        let is = |n: usize, v: i64| self.ir.icmp(IPred::LLVMIntEQ, self.number(n), self.i64(v));
        let mut all = is(micro::ROWS, self.tile.rows);
        for (n, v) in [(micro::COLS, self.tile.cols()), (micro::PARTIAL, 0), (micro::BIAS, 0)] {
            all = self.ir.and(all, is(n, v));
        }
        if self.narrow() { self.ir.and(all, is(micro::NARROW, 1)) } else { all }
    }

    /// Stores a whole tile from registers.
    fn store_tile(&self, acc: &[V]) {
        let (ir, bytes) = (self.ir, self.tile.dtype.bytes());
        let stride = ir.mul(self.number(micro::OUT_STRIDE), self.i64(bytes));
        let mut row = self.pointer(micro::OUT);
        for values in acc.chunks(VECTORS as usize) {
            for (v, x) in values.iter().enumerate() {
                let x = if self.narrow() { self.rounded(*x) } else { *x };
                let to = self.off(row, v as i64 * i64::from(self.lanes) * bytes);
                ir.store(x, to, bytes as u32);
            }
            row = self.at(row, stride);
        }
    }

    /// Runs `body(row of the sums, row number)` for every row that exists.
    fn each_row(&self, sums: V, body: impl FnOnce(V, V)) {
        let width = self.i64(4 * self.tile.cols());
        self.repeat((self.i64(0), self.number(micro::ROWS), 1), &[], |r, _| {
            body(self.at(sums, self.ir.mul(r, width)), r);
            vec![]
        });
    }

    /// Adds what is to be added and stores the tile.
    fn finish(&self, sums: V) {
        let ir = self.ir;
        let (floats, vector) = (self.floats(), 4 * i64::from(self.lanes));
        let cols = self.number(micro::COLS);
        let masks: Vec<V> = (0..VECTORS)
            .map(|v| self.mask(ir.sub(cols, self.i64(v * i64::from(self.lanes))), self.lanes))
            .collect();
        let given = |n: usize| ir.icmp(IPred::LLVMIntNE, self.number(n), self.i64(0));
        let scaled = |n: usize, r: V, bytes: i64| ir.mul(ir.mul(self.number(n), self.i64(bytes)), r);
        let add = |row: V, v: i64, x: V| {
            let p = self.off(row, v * vector);
            ir.store(ir.fadd(ir.load(floats, p, 4), x), p, 4);
        };
        self.branch(
            given(micro::PARTIAL),
            || {
                self.each_row(sums, |row, r| {
                    let from = self.at(self.pointer(micro::PARTIAL), scaled(micro::PARTIAL_STRIDE, r, 4));
                    for (v, mask) in masks.iter().enumerate() {
                        let v = v as i64;
                        add(row, v, self.masked_load(floats, self.off(from, v * vector), *mask));
                    }
                });
            },
            || {},
        );
        let bytes = self.tile.dtype.bytes();
        self.branch(
            given(micro::BIAS),
            || {
                let element = ir.ty(if self.narrow() { K::I16 } else { K::F32 }, 0);
                let one = self.i64(1);
                let contiguous = ir.icmp(IPred::LLVMIntEQ, self.number(micro::BIAS_COL), one);
                self.each_row(sums, |row, r| {
                    let from = self.at(self.pointer(micro::BIAS), scaled(micro::BIAS_ROW, r, bytes));
                    self.branch(
                        contiguous,
                        || {
                            for (v, mask) in masks.iter().enumerate() {
                                let v = v as i64;
                                let p = self.off(from, v * i64::from(self.lanes) * bytes);
                                add(row, v, self.widened_load(p, *mask));
                            }
                        },
                        || {
                            let x = ir.splat(ir.load(element, from, bytes as u32), self.lanes);
                            let x = if self.narrow() { self.widen(x) } else { x };
                            for v in 0..VECTORS {
                                add(row, v, x);
                            }
                        },
                    );
                });
            },
            || {},
        );
        let store = |narrow: bool| {
            let bytes = if narrow { bytes } else { 4 };
            let value = |row: V, v: i64| {
                let x = ir.load(floats, self.off(row, v * vector), 4);
                if narrow { self.rounded(x) } else { x }
            };
            let to = |r: V| self.at(self.pointer(micro::OUT), scaled(micro::OUT_STRIDE, r, bytes));
            let step = i64::from(self.lanes) * bytes;
            let whole = ir.icmp(IPred::LLVMIntEQ, cols, self.i64(self.tile.cols()));
            self.branch(
                whole,
                || {
                    self.each_row(sums, |row, r| {
                        let to = to(r);
                        for v in 0..VECTORS {
                            ir.store(value(row, v), self.off(to, v * step), bytes as u32);
                        }
                    });
                },
                || {
                    self.each_row(sums, |row, r| {
                        let to = to(r);
                        for (v, mask) in masks.iter().enumerate() {
                            let v = v as i64;
                            self.masked_store(value(row, v), self.off(to, v * step), *mask);
                        }
                    });
                },
            );
        };
        if self.narrow() {
            self.branch(given(micro::NARROW), || store(true), || store(false));
        } else {
            store(false);
        }
    }

    /// A masked load of elements of the operands' type, as `f32`.
    fn widened_load(&self, p: V, mask: V) -> V {
        if !self.narrow() {
            return self.masked_load(self.floats(), p, mask);
        }
        self.widen(self.masked_load(self.ir.ty(K::I16, self.lanes), p, mask))
    }

    /// `f32` as `bfloat16`. As with ATen's own kernels on machines that have the instruction, results
    /// below the normal range become 0.
    fn rounded(&self, x: V) -> V {
        let x = self.ir.intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", &[], &[x]);
        self.ir.bitcast(x, self.ir.ty(K::I16, self.lanes))
    }

    /// `bfloat16` as `f32`.
    fn widen(&self, x: V) -> V {
        let ir = self.ir;
        let bits = ir.zext(x, ir.ty(K::I32, self.lanes));
        ir.bitcast(ir.shl(bits, ir.int(K::I32, self.lanes, 16)), self.floats())
    }
}
