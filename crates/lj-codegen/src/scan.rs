//! Running values of scans.
//!
//! In the vector loop that owns it a carry is a scalar: the lanes are combined by steps of 1, 2, 4, …
//! lanes, and with what came before. In a serial loop it is a plain value, one for each lane if the
//! loop stands in a vector loop.

use crate::Error;
use crate::ir::{FPred, IPred, V};
use crate::nest::{Gen, RegVal, Val};
use lj_ir::{DType, PwOp, Scalar, ScanOp};
use lj_schedule::loopnest::{AccId, Carry, Loop, Reg};

/// A carry whose loop is being emitted.
#[derive(Clone, Debug)]
pub(crate) struct CarryState {
    op: ScanOp,
    dtype: DType,
    /// Whether each lane has its own.
    per_lane: bool,
    /// One value per copy if each lane has its own, else one scalar.
    pub(crate) vals: Vec<V>,
}

impl Gen<'_, '_> {
    /// Starts the carries of `l`, which is about to be emitted.
    pub(crate) fn start_carries(&mut self, l: &Loop) -> Result<(), Error> {
        let lanes = if self.vector.is_some() { self.lanes } else { 0 };
        let copies = self.copies().max(1);
        for Carry { id, op, dtype, init } in &l.carries {
            let mut vals = vec![self.before_all(*op, *dtype, lanes); copies];
            if let Some(r) = init {
                let r = self.reg(*r)?.clone();
                for (k, v) in vals.iter_mut().enumerate() {
                    *v = match (&r.val, lanes) {
                        (Val::One(v), 0) => *v,
                        _ => self.lanes_of(&r, k)?,
                    };
                }
            }
            self.carries.insert(*id, CarryState { op: *op, dtype: *dtype, per_lane: lanes > 0, vals });
        }
        Ok(())
    }

    /// Ends the carries of `l`: their last values become readable.
    pub(crate) fn finish_carries(&mut self, l: &Loop) {
        let depth = self.depth();
        for c in &l.carries {
            let Some(s) = self.carries.remove(&c.id) else { continue };
            let val = if s.per_lane { Val::Lanes(s.vals) } else { Val::One(s.vals[0]) };
            self.results.insert(c.id, RegVal { val, dtype: s.dtype, depth });
        }
    }

    /// What an element combines with as if nothing had come before it. (A sum starts from 0 as eager's
    /// does, though that hides a −0.)
    fn before_all(&self, op: ScanOp, dtype: DType, lanes: u32) -> V {
        let bits = dtype.bytes() * 8;
        let (least, most) = match dtype {
            d if d.is_float() => (Scalar::float(f64::NEG_INFINITY), Scalar::float(f64::INFINITY)),
            DType::U8 => (Scalar::Int(0), Scalar::Int(255)),
            _ => (Scalar::Int(i64::MIN >> (64 - bits)), Scalar::Int(i64::MAX >> (64 - bits))),
        };
        let s = match op {
            ScanOp::Sum => Scalar::Int(0),
            ScanOp::Prod => Scalar::Int(1),
            ScanOp::Max | ScanOp::LogSumExp => least,
            ScanOp::Min => most,
        };
        self.constant(dtype, lanes, s)
    }

    /// `Def::Scan`.
    pub(crate) fn scan(&mut self, carry: AccId, value: Reg) -> Result<Val, Error> {
        let value = self.reg(value)?.clone();
        let Some(mut s) = self.carries.get(&carry).cloned() else {
            return self.unsupported(format!("carry {} is used outside its loop", carry.0));
        };
        let mut out = vec![];
        if self.copies() == 0 {
            let Val::One(v) = value.val else {
                return self.unsupported("a varying value outside a vector loop");
            };
            s.vals[0] = self.step(s.op, s.dtype, s.vals[0], v, 0)?;
            out.push(s.vals[0]);
        }
        for k in 0..self.copies() {
            let v = self.lanes_of(&value, k)?;
            out.push(if s.per_lane {
                s.vals[k] = self.step(s.op, s.dtype, s.vals[k], v, self.lanes)?;
                s.vals[k]
            } else {
                let (all, last) = self.along_lanes(s.op, s.dtype, s.vals[0], v)?;
                s.vals[0] = last;
                all
            });
        }
        self.carries.insert(carry, s);
        Ok(if self.copies() == 0 { Val::One(out[0]) } else { Val::Lanes(out) })
    }

    /// The running values of a vector's lanes after `old`, and the last of them as a scalar.
    fn along_lanes(&mut self, op: ScanOp, dtype: DType, old: V, value: V) -> Result<(V, V), Error> {
        let lanes = self.lanes;
        let none = self.before_all(op, dtype, lanes);
        // What inactive lanes hold must not come into the last one.
        let mask = self.vector.as_ref().and_then(|v| v.mask);
        let mut p = mask.map_or(value, |m| self.ir.select(m, value, none));
        let mut distance = 1;
        while distance < lanes {
            let from: Vec<u32> =
                (0..lanes).map(|i| if i < distance { i } else { lanes + i - distance }).collect();
            let shifted = self.ir.shuffle(none, p, &from);
            p = self.step(op, dtype, shifted, p, lanes)?;
            distance *= 2;
        }
        let before = self.ir.splat(old, lanes);
        let all = self.step(op, dtype, before, p, lanes)?;
        // The way from vector to vector is one scalar operation, except where that is a dear one.
        let last = if op == ScanOp::LogSumExp {
            self.ir.extract(all, lanes - 1)
        } else {
            let total = self.ir.extract(p, lanes - 1);
            self.step(op, dtype, old, total, 0)?
        };
        Ok((all, last))
    }

    /// `op` of a running value `a` and the element `b` that follows it.
    fn step(&mut self, op: ScanOp, dtype: DType, a: V, b: V, lanes: u32) -> Result<V, Error> {
        let no = [None, None];
        let ir = self.ir;
        match op {
            ScanOp::Sum => self.pw(PwOp::Add, dtype, &[a, b], lanes, &no),
            ScanOp::Prod => self.pw(PwOp::Mul, dtype, &[a, b], lanes, &no),
            ScanOp::LogSumExp => {
                let low = self.pw(PwOp::Minimum, dtype, &[a, b], lanes, &no)?;
                let high = self.pw(PwOp::Maximum, dtype, &[a, b], lanes, &no)?;
                let e = self.pw(PwOp::Exp, dtype, &[ir.fsub(low, high)], lanes, &no)?;
                let l = self.pw(PwOp::Log1p, dtype, &[e], lanes, &no)?;
                // ∞ − ∞ is no distance.
                let infinite = self.pw(PwOp::IsInf, dtype, &[low], lanes, &no)?;
                let equal = ir.and(infinite, ir.fcmp(FPred::LLVMRealOEQ, low, high));
                Ok(ir.select(equal, high, ir.fadd(l, high)))
            }
            ScanOp::Max | ScanOp::Min => {
                let most = op == ScanOp::Max;
                // The later of equal ones; a NaN beats everything, a later NaN an earlier one.
                let take = if dtype.is_float() {
                    let p = if most { FPred::LLVMRealOGE } else { FPred::LLVMRealOLE };
                    ir.or(ir.fcmp(p, b, a), ir.fcmp(FPred::LLVMRealUNO, b, b))
                } else {
                    let p = match (most, dtype == DType::U8) {
                        (true, false) => IPred::LLVMIntSGT,
                        (true, true) => IPred::LLVMIntUGT,
                        (false, false) => IPred::LLVMIntSLT,
                        (false, true) => IPred::LLVMIntULT,
                    };
                    ir.icmp(p, b, a)
                };
                Ok(ir.select(take, b, a))
            }
        }
    }
}
