//! Inner products of a few rows, without packing: for results with few rows or columns, where every
//! element of the large operand is used once or a few times and memory sets the pace.

use super::Gen;
use crate::ir::{K, V};
use lj_schedule::gemm::dot;

impl Gen<'_, '_> {
    /// All inner products of `many` rows with `few`.
    pub(super) fn dot(&self, (many, few): (i64, i64)) {
        let ir = self.ir;
        let rows = |n: i64, base: usize, stride: usize, count: usize| -> Vec<V> {
            let (p, stride) = (self.pointer(base), self.number(stride));
            let last = ir.sub(self.number(count), self.i64(1));
            (0..n).map(|r| self.at(p, ir.mul(self.least(self.i64(r), last), stride))).collect()
        };
        let w = rows(many, dot::W, dot::W_STRIDE, dot::W_ROWS);
        let x = rows(few, dot::X, dot::X_STRIDE, dot::X_ROWS);
        let len = self.number(dot::LEN_K);
        // Elements of a vector.
        let step = i64::from(self.lanes) * self.tile.pair();
        let bytes = self.tile.dtype.bytes();
        let add = |k: V, acc: &[V], load: &dyn Fn(V) -> V| -> Vec<V> {
            let offset = ir.mul(k, self.i64(bytes));
            let x: Vec<V> = x.iter().map(|p| load(self.at(*p, offset))).collect();
            let mut out = vec![];
            for (i, p) in w.iter().enumerate() {
                let w = load(self.at(*p, offset));
                out.extend(x.iter().enumerate().map(|(j, x)| self.fma(w, *x, acc[i * few as usize + j])));
            }
            out
        };
        let zeros = vec![ir.zero(self.floats()); (many * few) as usize];
        let whole = ir.and(len, self.i64(-step));
        let acc = self.repeat((self.i64(0), whole, step), &zeros, |k, acc| {
            add(k, acc, &|p| ir.load(self.floats(), p, bytes as u32))
        });
        let acc = self.repeat((whole, len, step), &acc, |k, acc| {
            let mask = self.mask(ir.sub(len, k), step as u32);
            let ty = ir.ty(if self.narrow() { K::I16 } else { K::F32 }, step as u32);
            add(k, acc, &|p| ir.bitcast(self.masked_load(ty, p, mask), self.floats()))
        });
        let out = self.pointer(dot::OUT);
        for i in 0..many {
            for j in 0..few {
                let sum = self.sum(acc[(i * few + j) as usize]);
                ir.store(sum, self.off(out, 4 * (j * many + i)), 4);
            }
        }
    }

    /// The sum of all lanes, by halves.
    fn sum(&self, v: V) -> V {
        let ir = self.ir;
        let (mut v, mut n) = (v, self.lanes);
        while n > 1 {
            n /= 2;
            v = ir.fadd(ir.part(v, 0, n), ir.part(v, n, n));
        }
        ir.extract(v, 0)
    }
}
