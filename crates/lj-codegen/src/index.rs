//! Expressions and subscripts, computed as far out as their variables allow.
//!
//! A pointer is built up in one step per scope, outermost first: what does not change in a loop is
//! added before it. The vector loop's variable stands for the iteration of lane 0 in the first copy;
//! the other lanes and copies follow at constant distances if the subscript is linear in it.

use crate::Error;
use crate::convert::kind;
use crate::ir::{IPred, K, V};
use crate::nest::{Gen, Memo, Val};
use lj_ir::expr::Term;
use lj_ir::{Atom, DType, Expr, Sym};
use lj_schedule::loopnest::{Index, Mem};
use std::collections::BTreeMap;

/// The addresses of an access.
pub(crate) enum Access {
    /// One address for all lanes.
    One(V),
    /// Consecutive elements from one address per copy.
    Contig(Vec<V>),
    /// Elements at constant distances from one address per copy: lane `i` is at `i × stride`.
    Strided(Vec<V>, i64),
    /// One vector of addresses per copy.
    Lanes(Vec<V>),
}

impl Gen<'_, '_> {
    fn var(&self, s: &Sym) -> Result<(V, usize), Error> {
        let found = self.vars.iter().rev().find(|v| v.sym == *s).map(|v| (v.value, v.depth));
        found.ok_or_else(|| Error::Invalid {
            nest: self.nest.name.clone(),
            what: format!("symbol {s} is not in scope"),
        })
    }

    /// The scope in which `e` can be computed.
    fn depth_of(&self, e: &Expr) -> Result<usize, Error> {
        e.symbols().iter().try_fold(0, |d, s| Ok(d.max(self.var(s)?.1)))
    }

    /// Whether `e` changes from lane to lane.
    pub(crate) fn varies(&self, e: &Expr) -> bool {
        self.vector.as_ref().is_some_and(|v| e.mentions(&v.var))
    }

    /// The terms of `e` by the scope they belong to.
    fn by_scope(&self, e: &Expr) -> Result<BTreeMap<usize, Vec<Term>>, Error> {
        let mut out: BTreeMap<usize, Vec<Term>> = BTreeMap::new();
        for t in e.terms() {
            let d = self.depth_of(&Expr::from_terms([t.clone()]))?;
            out.entry(d).or_default().push(t);
        }
        Ok(out)
    }

    /// The value of `e` as an i64; the vector variable stands for its first lane.
    pub(crate) fn scalar(&mut self, e: &Expr) -> Result<V, Error> {
        if let Some(v) = e.as_int() {
            return Ok(self.ir.int(K::I64, 0, v));
        }
        if let Some(s) = e.as_sym() {
            return Ok(self.var(s)?.0);
        }
        let depth = self.depth_of(e)?;
        self.memo(depth, Memo::Scalar(e.clone()), |g| {
            let mut sum = None;
            for terms in g.by_scope(e)?.into_values() {
                // Outer parts are values of their own, so that they are hoisted and shared.
                let part = Expr::from_terms(terms);
                let v = if part == *e { g.terms(&part, &|g, x| g.scalar(x), 0)? } else { g.scalar(&part)? };
                sum = Some(sum.map_or(v, |s| g.ir.add(s, v)));
            }
            Ok(sum.unwrap_or_else(|| g.ir.int(K::I64, 0, 0)))
        })
    }

    /// Copy `k` of the value of `e`, an i64 per lane.
    pub(crate) fn per_lane(&mut self, e: &Expr, k: usize) -> Result<V, Error> {
        let lanes = self.lanes;
        let Some(vector) = self.vector.clone().filter(|v| e.mentions(&v.var)) else {
            let v = self.scalar(e)?;
            let depth = self.depth_of(e)?;
            return self.memo(depth, Memo::Splat(v), |g| Ok(g.ir.splat(v, lanes)));
        };
        let depth = self.depth_of(e)?;
        self.memo(depth, Memo::Lanes(e.clone(), k), |g| {
            if e.as_sym() == Some(&vector.var) {
                let (v, _) = g.var(&vector.var)?;
                let first = i64::from(lanes) * k as i64;
                return Ok(g.ir.add(g.ir.splat(v, lanes), g.ir.iota(K::I64, lanes, first, 1)));
            }
            let (varying, fixed): (Vec<Term>, Vec<Term>) =
                e.terms().into_iter().partition(|t| g.varies(&Expr::from_terms([t.clone()])));
            let v = g.terms(&Expr::from_terms(varying), &|g, x| g.per_lane(x, k), lanes)?;
            let fixed = Expr::from_terms(fixed);
            if fixed.is(0) {
                return Ok(v);
            }
            let fixed = g.per_lane(&fixed, k)?;
            Ok(g.ir.add(v, fixed))
        })
    }

    /// The sum of the terms of `e`, with `part` for the values of its parts.
    fn terms(
        &mut self,
        e: &Expr,
        part: &dyn Fn(&mut Self, &Expr) -> Result<V, Error>,
        lanes: u32,
    ) -> Result<V, Error> {
        let mut sum = None;
        for t in e.terms() {
            let mut product = None;
            for a in &t.factors {
                let v = match a {
                    Atom::Sym(_) => part(self, &Expr::from_atom(a.clone()))?,
                    Atom::FloorDiv(x, y) => self.floordiv(x, y, part, lanes)?,
                    Atom::Mod(x, y) => self.modulo(x, y, part, lanes)?,
                    Atom::Min(x, y) | Atom::Max(x, y) => {
                        let (x, y) = (part(self, x)?, part(self, y)?);
                        let less = self.ir.icmp(IPred::LLVMIntSLT, x, y);
                        let (a, b) = if matches!(a, Atom::Min(..)) { (x, y) } else { (y, x) };
                        self.ir.select(less, a, b)
                    }
                };
                product = Some(product.map_or(v, |p| self.ir.mul(p, v)));
            }
            let v = match product {
                None => self.ir.int(K::I64, lanes, t.coef),
                Some(p) if t.coef == 1 => p,
                Some(p) if t.coef == -1 => self.ir.neg(p),
                Some(p) => self.ir.mul(p, self.ir.int(K::I64, lanes, t.coef)),
            };
            sum = Some(sum.map_or(v, |s| self.ir.add(s, v)));
        }
        Ok(sum.unwrap_or_else(|| self.ir.int(K::I64, lanes, 0)))
    }

    fn floordiv(
        &mut self,
        x: &Expr,
        y: &Expr,
        part: &dyn Fn(&mut Self, &Expr) -> Result<V, Error>,
        lanes: u32,
    ) -> Result<V, Error> {
        let a = part(self, x)?;
        let ir = self.ir;
        if let Some(n) = power_of_two(y) {
            return Ok(ir.ashr(a, ir.int(K::I64, lanes, n)));
        }
        let b = self.divisor(y, part, lanes)?;
        if lanes > 0 {
            // Exact for operands below 2⁵³, which subscripts are.
            let f = ir.ty(K::F64, lanes);
            let q = ir.fdiv(ir.sitofp(a, f), ir.sitofp(b, f));
            let q = ir.intrinsic("llvm.floor", &[f], &[q]);
            return Ok(ir.fptosi(q, ir.ty(K::I64, lanes)));
        }
        let zero = ir.int(K::I64, 0, 0);
        let q = ir.sdiv(a, b);
        let r = ir.sub(a, ir.mul(q, b));
        let wrong =
            ir.and(ir.icmp(IPred::LLVMIntNE, r, zero), ir.icmp(IPred::LLVMIntSLT, ir.xor(r, b), zero));
        Ok(ir.sub(q, ir.zext(wrong, ir.ty(K::I64, 0))))
    }

    fn modulo(
        &mut self,
        x: &Expr,
        y: &Expr,
        part: &dyn Fn(&mut Self, &Expr) -> Result<V, Error>,
        lanes: u32,
    ) -> Result<V, Error> {
        let a = part(self, x)?;
        if let Some(n) = power_of_two(y) {
            return Ok(self.ir.and(a, self.ir.int(K::I64, lanes, (1 << n) - 1)));
        }
        let q = part(self, &Expr::from_atom(Atom::FloorDiv(x.clone(), y.clone())))?;
        let b = self.divisor(y, part, lanes)?;
        Ok(self.ir.sub(a, self.ir.mul(q, b)))
    }

    /// The value of `y`, or 1 where that is 0: code may be hoisted out of a loop that never runs.
    fn divisor(
        &mut self,
        y: &Expr,
        part: &dyn Fn(&mut Self, &Expr) -> Result<V, Error>,
        lanes: u32,
    ) -> Result<V, Error> {
        let b = part(self, y)?;
        let ir = self.ir;
        if y.as_int().is_some_and(|v| v != 0) {
            return Ok(b);
        }
        let zero = ir.icmp(IPred::LLVMIntEQ, b, ir.int(K::I64, lanes, 0));
        Ok(ir.select(zero, ir.int(K::I64, lanes, 1), b))
    }

    /// An expression as a register's value, and the scope that belongs to.
    pub(crate) fn expr_value(&mut self, e: &Expr, dtype: DType) -> Result<(Val, usize), Error> {
        let depth = self.depth_of(e)?;
        if !self.varies(e) {
            let v = self.scalar(e)?;
            let v = self.at(depth, |g| g.convert(v, DType::I64, dtype, 0));
            return Ok((Val::One(v), depth));
        }
        let lanes = self.lanes;
        let mut out = vec![];
        for k in 0..self.copies() {
            let v = self.per_lane(e, k)?;
            out.push(self.at(depth, |g| g.convert(v, DType::I64, dtype, lanes)));
        }
        Ok((Val::Lanes(out), depth))
    }

    /// Where element `index` of `mem` is, and the memory's dtype.
    pub(crate) fn access(&mut self, mem: Mem, index: &Index) -> Result<(Access, DType), Error> {
        let (mut p, dtype) = match mem {
            Mem::Param(n) => (self.params[n as usize], self.nest.params[n as usize].dtype),
            Mem::Scratch(n) => (self.scratch[n as usize], self.nest.scratch[n as usize].dtype),
        };
        let bytes = dtype.bytes();
        let elem = self.ir.ty(kind(dtype, true), 0);
        let lanes = i64::from(self.lanes);
        // The part per lane that is not linear in the vector variable.
        let (linear, rest) = self.split_linear(&index.base);
        let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
        for (depth, terms) in self.by_scope(&linear)? {
            parts.entry(depth).or_default().0 = terms;
        }
        let mut varying = vec![];
        for (r, stride) in &index.indirect {
            let r = self.reg(*r)?.clone();
            match r.val {
                Val::One(v) => {
                    let depth = r.depth.max(self.depth_of(stride)?);
                    parts.entry(depth).or_default().1.push((v, stride.clone()));
                }
                Val::Lanes(_) => varying.push((r, stride.clone())),
            }
        }
        for (depth, (terms, regs)) in parts {
            if !terms.is_empty() {
                let e = Expr::from_terms(terms);
                p = self.memo(depth, Memo::Ptr(p, e.clone(), bytes), |g| {
                    let i = g.scalar(&e)?;
                    Ok(g.ir.gep(elem, p, i))
                })?;
            }
            for (v, stride) in regs {
                p = self.memo(depth, Memo::PtrReg(p, v, stride.clone(), bytes), |g| {
                    let s = g.scalar(&stride)?;
                    Ok(g.ir.gep(elem, p, g.ir.mul(v, s)))
                })?;
            }
        }
        let copies = self.copies();
        let vector = self.vector.clone();
        let stride = vector.map_or(Expr::ZERO, |v| linear.linear_in(&v.var).map_or(Expr::ZERO, |(s, _)| s));
        if varying.is_empty() && rest.is(0) {
            if stride.is(0) {
                return Ok((Access::One(p), dtype));
            }
            let mut starts = vec![];
            for k in 0..copies {
                let e = &stride * &Expr::int(lanes * k as i64);
                starts.push(if k == 0 {
                    p
                } else {
                    let depth = self.depth();
                    self.memo(depth, Memo::Ptr(p, e.clone(), bytes), |g| {
                        let i = g.scalar(&e)?;
                        Ok(g.ir.gep(elem, p, i))
                    })?
                });
            }
            if stride.is(1) {
                return Ok((Access::Contig(starts), dtype));
            }
            if let Some(s) = stride.as_int() {
                return Ok((Access::Strided(starts, s), dtype));
            }
        }
        // Addresses per lane: the scalar pointer is that of lane 0, copy 0.
        let mut all = vec![];
        for k in 0..copies {
            let mut offset = None;
            let mut plus = |g: &Self, v| offset = Some(offset.map_or(v, |o| g.ir.add(o, v)));
            if !stride.is(0) {
                let s = self.per_lane(&stride, k)?;
                let iota = self.ir.iota(K::I64, self.lanes, lanes * k as i64, 1);
                plus(self, self.ir.mul(s, iota));
            }
            if !rest.is(0) {
                let v = self.per_lane(&rest, k)?;
                plus(self, v);
            }
            for (r, stride) in &varying {
                let v = self.lanes_of(r, k)?;
                let s = self.per_lane(stride, k)?;
                plus(self, if stride.is(1) { v } else { self.ir.mul(v, s) });
            }
            let offset = offset.unwrap_or_else(|| self.ir.int(K::I64, self.lanes, 0));
            all.push(self.ir.gep(elem, p, offset));
        }
        Ok((Access::Lanes(all), dtype))
    }

    /// `e` as a sum of a part that is linear in the vector variable and the rest.
    fn split_linear(&self, e: &Expr) -> (Expr, Expr) {
        let Some(v) = &self.vector else { return (e.clone(), Expr::ZERO) };
        let (linear, rest): (Vec<Term>, Vec<Term>) =
            e.terms().into_iter().partition(|t| Expr::from_terms([t.clone()]).linear_in(&v.var).is_some());
        (Expr::from_terms(linear), Expr::from_terms(rest))
    }
}

/// What is added to a pointer in one scope: terms, and registers times strides.
type Part = (Vec<Term>, Vec<(V, Expr)>);

/// The exponent if `e` is a constant power of two.
fn power_of_two(e: &Expr) -> Option<i64> {
    let v = e.as_int()?;
    (v > 0 && v & (v - 1) == 0).then(|| i64::from(v.trailing_zeros()))
}
