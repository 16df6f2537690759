//! Accumulators.
//!
//! An accumulator is *narrow* (a scalar) or *wide* (one vector per copy of the vector loop that
//! updates it). A wide accumulator of a serial loop inside a vector loop belongs to its lanes; any
//! other is combined across copies and lanes when its loop ends.

use crate::Error;
use crate::ir::{FPred, IPred, K, V};
use crate::nest::{Gen, RegVal, Val};
use lj_ir::{DType, PwOp, ReduceOp, Scalar};
use lj_schedule::loopnest::{Acc, AccId, Reg};

/// An accumulator whose loop is being emitted.
#[derive(Clone, Debug)]
pub(crate) struct AccState {
    pub(crate) op: ReduceOp,
    pub(crate) dtype: DType,
    /// Whether each lane keeps its own result.
    per_lane: bool,
    /// 0 when narrow.
    lanes: u32,
    /// One value per copy (one when narrow).
    vals: Vec<V>,
    /// For arg-reductions, where the values were found.
    at: Vec<V>,
}

impl Gen<'_, '_> {
    /// Starts an accumulator with `copies` vectors, or a scalar if that is 0.
    pub(crate) fn start_acc(&mut self, a: &Acc, copies: usize, per_lane: bool) {
        let lanes = if copies == 0 { 0 } else { self.lanes };
        let neutral = self.neutral(a.op, a.dtype, lanes);
        let n = copies.max(1);
        let at = if a.op.is_arg() { vec![self.ir.int(K::I64, lanes, i64::MAX); n] } else { vec![] };
        let s = AccState { op: a.op, dtype: a.dtype, per_lane, lanes, vals: vec![neutral; n], at };
        self.accs.insert(a.id, s);
    }

    /// What combining with changes nothing.
    fn neutral(&self, op: ReduceOp, dtype: DType, lanes: u32) -> V {
        use ReduceOp::*;
        let bits = dtype.bytes() * 8;
        let (min, max) = match dtype {
            DType::Bool => (Scalar::Bool(false), Scalar::Bool(true)),
            d if d.is_float() => (Scalar::float(f64::NEG_INFINITY), Scalar::float(f64::INFINITY)),
            DType::U8 => (Scalar::Int(0), Scalar::Int(255)),
            _ => (Scalar::Int(i64::MIN >> (64 - bits)), Scalar::Int(i64::MAX >> (64 - bits))),
        };
        let s = match op {
            Sum | Any => Scalar::Int(0),
            Prod | All => Scalar::Int(1),
            Max | ArgMax => min,
            Min | ArgMin => max,
        };
        self.constant(dtype, lanes, s)
    }

    /// Ends an accumulator: its result becomes readable.
    pub(crate) fn finish_acc(&mut self, a: &Acc) -> Result<(), Error> {
        let Some(mut s) = self.accs.remove(&a.id) else { return Ok(()) };
        let depth = self.depth();
        let (result, dtype) = if s.per_lane || s.lanes == 0 {
            let v = if a.op.is_arg() { s.at } else { s.vals };
            (if s.lanes == 0 { Val::One(v[0]) } else { Val::Lanes(v) }, s.dtype)
        } else {
            let mut pairs: Vec<(V, Option<V>)> =
                s.vals.drain(..).enumerate().map(|(k, v)| (v, s.at.get(k).copied())).collect();
            while pairs.len() > 1 {
                let upper = pairs.split_off(pairs.len().div_ceil(2));
                for (k, p) in upper.into_iter().enumerate() {
                    pairs[k] = self.combine(a.op, a.dtype, pairs[k], p, s.lanes)?;
                }
            }
            let mut pair = pairs[0];
            let mut lanes = s.lanes;
            while lanes > 1 {
                lanes /= 2;
                let half = |g: &Self, from| {
                    let cut = |v| {
                        if lanes == 1 { g.ir.extract(v, from) } else { g.ir.part(v, from, lanes) }
                    };
                    (cut(pair.0), pair.1.map(cut))
                };
                let (low, high) = (half(self, 0), half(self, lanes));
                pair = self.combine(a.op, a.dtype, low, high, if lanes == 1 { 0 } else { lanes })?;
            }
            (Val::One(if a.op.is_arg() { pair.1.unwrap_or(pair.0) } else { pair.0 }), s.dtype)
        };
        let dtype = if a.op.is_arg() { DType::I64 } else { dtype };
        self.results.insert(a.id, RegVal { val: result, dtype, depth });
        Ok(())
    }

    /// `op` of two partial results (value and, for arg-reductions, position).
    fn combine(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        a: (V, Option<V>),
        b: (V, Option<V>),
        lanes: u32,
    ) -> Result<(V, Option<V>), Error> {
        use ReduceOp::*;
        let pw = |g: &mut Self, p| g.pw(p, dtype, &[a.0, b.0], lanes, &[None, None]);
        let v = match op {
            Sum => pw(self, PwOp::Add)?,
            Prod => pw(self, PwOp::Mul)?,
            Max => pw(self, PwOp::Maximum)?,
            Min => pw(self, PwOp::Minimum)?,
            Any => self.ir.or(a.0, b.0),
            All => self.ir.and(a.0, b.0),
            ArgMax | ArgMin => {
                let (Some(ai), Some(bi)) = (a.1, b.1) else {
                    return self.unsupported("an arg-reduction without a position");
                };
                let ir = self.ir;
                let earlier = ir.icmp(IPred::LLVMIntSLT, bi, ai);
                let take = if dtype.is_float() {
                    let (beats, nan) =
                        (if op == ArgMax { FPred::LLVMRealOGT } else { FPred::LLVMRealOLT }, |v| {
                            ir.fcmp(FPred::LLVMRealUNO, v, v)
                        });
                    let (na, nb) = (nan(a.0), nan(b.0));
                    let beats = ir.or(ir.fcmp(beats, b.0, a.0), ir.and(nb, ir.not(na)));
                    let ties = ir.or(ir.fcmp(FPred::LLVMRealOEQ, a.0, b.0), ir.and(na, nb));
                    ir.or(beats, ir.and(ties, earlier))
                } else {
                    let unsigned = matches!(dtype, DType::U8 | DType::Bool);
                    let p = match (op == ArgMax, unsigned) {
                        (true, false) => IPred::LLVMIntSGT,
                        (true, true) => IPred::LLVMIntUGT,
                        (false, false) => IPred::LLVMIntSLT,
                        (false, true) => IPred::LLVMIntULT,
                    };
                    let ties = ir.icmp(IPred::LLVMIntEQ, a.0, b.0);
                    ir.or(ir.icmp(p, b.0, a.0), ir.and(ties, earlier))
                };
                return Ok((ir.select(take, b.0, a.0), Some(ir.select(take, bi, ai))));
            }
        };
        Ok((v, None))
    }

    /// `acc = op(acc, value)`.
    pub(crate) fn update(&mut self, acc: AccId, value: Reg, index: Option<Reg>) -> Result<(), Error> {
        let value = self.reg(value)?.clone();
        let index = index.map(|i| self.reg(i).cloned()).transpose()?;
        let Some(s) = self.accs.get(&acc).cloned() else {
            return self.unsupported(format!("accumulator {} is updated outside its loop", acc.0));
        };
        let mask = self.vector.as_ref().and_then(|v| v.mask).filter(|_| !s.per_lane);
        for k in 0..self.copies().max(1) {
            let old = (s.vals[k], s.at.get(k).copied());
            let new = if self.copies() > 0 {
                let v = self.lanes_of(&value, k)?;
                let i = index.as_ref().map(|i| self.lanes_of(i, k)).transpose()?;
                (v, i)
            } else {
                let one = |v: &RegVal| if let Val::One(v) = v.val { Some(v) } else { None };
                let (Some(v), i) = (one(&value), index.as_ref().and_then(one)) else {
                    return self.unsupported("a varying value outside a vector loop");
                };
                if s.lanes == 0 {
                    (v, i)
                } else {
                    // A scalar joins a wide accumulator in its first lane.
                    let neutral = self.neutral(s.op, s.dtype, s.lanes);
                    let last = self.ir.int(K::I64, s.lanes, i64::MAX);
                    (self.ir.insert(neutral, v, 0), i.map(|i| self.ir.insert(last, i, 0)))
                }
            };
            let (mut v, mut at) = self.combine(s.op, s.dtype, old, new, s.lanes)?;
            if let Some(m) = mask {
                v = self.ir.select(m, v, old.0);
                at = at.zip(old.1).map(|(new, old)| self.ir.select(m, new, old));
            }
            if let Some(s) = self.accs.get_mut(&acc) {
                s.vals[k] = v;
                if let Some(at) = at {
                    s.at[k] = at;
                }
            }
        }
        Ok(())
    }

    // ---- carrying through loops ------------------------------------------------------------

    /// Whether `a` is an accumulator or carry whose loop is being emitted.
    pub(crate) fn lives(&self, a: AccId) -> bool {
        self.accs.contains_key(&a) || self.carries.contains_key(&a)
    }

    /// All values of `accs`, in a fixed order.
    pub(crate) fn carried_values(&self, accs: &[AccId]) -> Vec<V> {
        let mut out = vec![];
        for a in accs {
            if let Some(s) = self.accs.get(a) {
                out.extend(s.vals.iter().chain(&s.at));
            } else if let Some(s) = self.carries.get(a) {
                out.extend(&s.vals);
            }
        }
        out
    }

    /// The inverse of [`Gen::carried_values`].
    pub(crate) fn set_carried(&mut self, accs: &[AccId], values: &[V]) {
        let mut values = values.iter().copied();
        for a in accs {
            let slots: Vec<&mut V> = match self.accs.get_mut(a) {
                Some(s) => s.vals.iter_mut().chain(&mut s.at).collect(),
                None => self.carries.get_mut(a).map(|s| s.vals.iter_mut().collect()).unwrap_or_default(),
            };
            for slot in slots {
                if let Some(v) = values.next() {
                    *slot = v;
                }
            }
        }
    }

    /// Resets `sums` to zero and returns what they held.
    pub(crate) fn set_aside(&mut self, sums: &[AccId]) -> Vec<(AccId, Vec<V>)> {
        let mut out = vec![];
        for &a in sums {
            if let Some(s) = self.accs.get(&a) {
                let zero = self.neutral(s.op, s.dtype, s.lanes);
                if let Some(s) = self.accs.get_mut(&a) {
                    let n = s.vals.len();
                    out.push((a, std::mem::replace(&mut s.vals, vec![zero; n])));
                }
            }
        }
        out
    }

    /// Adds what [`Gen::set_aside`] returned.
    pub(crate) fn add_back(&mut self, before: Vec<(AccId, Vec<V>)>) {
        for (a, old) in before {
            if let Some(s) = self.accs.get_mut(&a) {
                for (v, old) in s.vals.iter_mut().zip(old) {
                    *v = self.ir.fadd(old, *v);
                }
            }
        }
    }
}
