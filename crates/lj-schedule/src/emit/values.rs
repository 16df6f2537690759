//! Values: what an element of a tensor is, as registers, down to the memory it is read from.

use super::registers::within;
use super::{Emitter, Key, Known, Memory, dot};
use crate::affine;
use crate::coords::{broadcast_coords, view_coords};
use crate::error::Error;
use crate::items::index_operand_coords;
use crate::loopnest::{Reg, Stmt};
use lj_ir::{DType, Expr, Op, PwOp, Scalar, ValueId};

impl Emitter<'_, '_> {
    /// The register that holds element `coords` (over space variables) of `v`.
    pub fn value(&mut self, v: ValueId, coords: &[Expr], mask: Option<Reg>) -> Result<Reg, Error> {
        let mask = match mask.map(|m| self.truth(m)) {
            // Nobody looks at what no lane asks for.
            Some(Some(false)) => return Ok(self.constant(Scalar::Int(0), self.a.graph.tensor(v).dtype)),
            Some(Some(true)) => None,
            _ => mask,
        };
        match self.known.get(&v).cloned() {
            Some(Known::Reg(r)) => return Ok(r),
            Some(Known::At(mem, flat)) => {
                let key = (v, coords.to_vec(), None);
                if let Some(r) = self.remembered(&key) {
                    return Ok(r);
                }
                let dtype = self.a.graph.tensor(v).dtype;
                let r = self.load_here(mem, dtype, &flat, None);
                self.remember(key, r);
                return Ok(r);
            }
            None => {}
        }
        let key = (v, coords.to_vec(), mask);
        if let Some(r) = self.remembered(&key) {
            return Ok(r);
        }
        let r = if self.a.realised[v.index()] && !self.members.contains(&v) {
            let ty = self.a.graph.tensor(v).clone();
            let mem = self.param(Memory::Value(v), ty.dtype, false);
            self.load(mem, ty.dtype, &dot(coords, &ty.strides), mask)
        } else {
            self.compute(v, coords, mask)?
        };
        self.remember(key, r);
        Ok(r)
    }

    fn remembered(&self, key: &Key) -> Option<Reg> {
        self.scopes.iter().find_map(|s| s.memo.get(key)).copied()
    }

    fn remember(&mut self, key: Key, r: Reg) {
        let depth = self.reg_depth(r);
        self.scopes[depth].memo.insert(key, r);
    }

    fn compute(&mut self, v: ValueId, coords: &[Expr], mask: Option<Reg>) -> Result<Reg, Error> {
        let g = self.a.graph;
        let node = g.def(v);
        let ty = g.tensor(v);
        let shape = |x: ValueId| &g.tensor(x).shape;
        match &node.op {
            Op::Pointwise(op) => {
                let mut args = vec![];
                if let (PwOp::Where, &[c, a, b]) = (op, node.inputs.as_slice()) {
                    let c = self.value(c, &broadcast_coords(shape(c), coords), mask)?;
                    if let Some(truth) = self.truth(c) {
                        let x = if truth { a } else { b };
                        return self.value(x, &broadcast_coords(shape(x), coords), mask);
                    }
                }
                for &x in &node.inputs {
                    args.push(self.value(x, &broadcast_coords(shape(x), coords), mask)?);
                }
                if matches!(op, PwOp::FloorDiv | PwOp::TruncDiv | PwOp::Remainder | PwOp::Fmod)
                    && self.dtype(args[1]).is_int()
                {
                    self.check_divisor(args[1], mask);
                }
                Ok(self.pw(*op, args, ty.dtype))
            }
            Op::Convert => {
                let x = node.inputs[0];
                let r = self.value(x, &broadcast_coords(shape(x), coords), mask)?;
                Ok(self.convert(r, ty.dtype))
            }
            Op::Copy => {
                let x = node.inputs[0];
                self.value(x, &broadcast_coords(shape(x), coords), mask)
            }
            Op::View(view) => {
                let x = node.inputs[0];
                let c = view_coords(view, shape(x), &ty.shape, coords, &self.bounds);
                self.value(x, &c, mask)
            }
            Op::Full(s) => Ok(self.constant(*s, ty.dtype)),
            Op::FullSym(e) => Ok(self.expr(e, ty.dtype)),
            Op::Iota { start, step } => {
                let e = start + &(step * &coords[0]);
                Ok(self.expr(&e, ty.dtype))
            }
            Op::Index { dims, at } => {
                self.note("index");
                let index = node.inputs[1..].to_vec();
                let rank = index.iter().map(|&x| shape(x).len()).max().unwrap_or(0);
                let x = node.inputs[0];
                let (mut picked, mut mask) = (vec![], mask);
                for (&i, &d) in index.iter().zip(dims) {
                    let at_index = broadcast_coords(shape(i), &coords[*at..*at + rank]);
                    if let Some(c) = affine::known(self, i, &at_index, &shape(x)[d]) {
                        picked.push(c);
                        continue;
                    }
                    let inside = within(g, i, &shape(x)[d]);
                    let r = self.value(i, &at_index, mask)?;
                    if inside {
                        let r = self.convert(r, DType::I64);
                        picked.push(self.symbol(r));
                        continue;
                    }
                    let (c, m) = self.checked_index(
                        r,
                        &shape(x)[d],
                        true,
                        mask,
                        "IndexError: index out of range in self",
                    );
                    picked.push(c);
                    mask = m;
                }
                let c = index_operand_coords(shape(x).len(), dims, *at, rank, coords, &picked);
                self.value(x, &c, mask)
            }
            Op::Gather { dim } => {
                self.note("gather");
                let (x, i) = (node.inputs[0], node.inputs[1]);
                let r = self.value(i, coords, mask)?;
                let what = "IndexError: index out of bounds in gather";
                let (c, mask) = self.checked_index(r, &shape(x)[*dim], false, mask, what);
                let mut at = coords.to_vec();
                at[*dim] = c;
                self.value(x, &at, mask)
            }
            Op::Cat { dim } => self.cat(&node.inputs.clone(), *dim, coords, mask, ty.dtype),
            Op::Pad { low, high, value } => {
                self.note("pad");
                let x = node.inputs[0];
                let inner: Vec<Expr> = coords.iter().zip(low).map(|(c, l)| c - l).collect();
                let mut inside = mask;
                for d in 0..inner.len() {
                    let facts = &self.bounds.facts;
                    let (below, above) = (facts.ge(&Expr::ZERO, &low[d]), facts.ge(&Expr::ZERO, &high[d]));
                    if !below {
                        inside = self.and_in_range(inside, &inner[d], None);
                    }
                    if !above {
                        let extent = shape(x)[d].clone();
                        inside = self.and_in_range(inside, &inner[d], Some(&extent));
                    }
                }
                let r = self.value(x, &inner, inside)?;
                let Some(m) = inside else { return Ok(r) };
                let fill = self.constant(*value, ty.dtype);
                Ok(self.pw(PwOp::Where, vec![m, r, fill], ty.dtype))
            }
            other => Err(Error::Internal(format!("{other:?} reached the emitter"))),
        }
    }

    /// `mask` and (`c >= 0` or `c < end`).
    pub fn and_in_range(&mut self, mask: Option<Reg>, c: &Expr, end: Option<&Expr>) -> Option<Reg> {
        let distance = self.finish(&end.map_or_else(|| c.clone(), |n| n - c));
        if self.bounds.range(&distance).0 >= i64::from(end.is_some()) {
            return mask;
        }
        let i = self.expr(c, DType::I64);
        let cond = match end {
            None => {
                let zero = self.constant(Scalar::Int(0), DType::I64);
                self.pw(PwOp::Ge, vec![i, zero], DType::Bool)
            }
            Some(n) => {
                let n = self.expr(n, DType::I64);
                self.pw(PwOp::Lt, vec![i, n], DType::Bool)
            }
        };
        Some(match mask {
            None => cond,
            Some(m) => self.pw(PwOp::And, vec![m, cond], DType::Bool),
        })
    }

    fn cat(
        &mut self,
        parts: &[ValueId],
        dim: usize,
        coords: &[Expr],
        mask: Option<Reg>,
        dtype: DType,
    ) -> Result<Reg, Error> {
        self.note("cat");
        let mut offset = Expr::ZERO;
        let mut result: Option<Reg> = None;
        for (k, &x) in parts.iter().enumerate() {
            let extent = self.a.graph.tensor(x).shape[dim].clone();
            let mut c = coords.to_vec();
            c[dim] = &coords[dim] - &offset;
            let mut inside = mask;
            if k > 0 {
                inside = self.and_in_range(inside, &c[dim], None);
            }
            if k + 1 < parts.len() {
                inside = self.and_in_range(inside, &c[dim], Some(&extent));
            }
            let r = self.value(x, &c, inside)?;
            // Later parts win where they are inside; the first needs no condition.
            result = Some(match (result, inside) {
                (Some(before), Some(m)) => self.pw(PwOp::Where, vec![m, r, before], dtype),
                _ => r,
            });
            offset = offset + extent;
        }
        result.ok_or_else(|| Error::Internal("cat of nothing".into()))
    }

    fn check_divisor(&mut self, divisor: Reg, mask: Option<Reg>) {
        let zero = self.constant(Scalar::Int(0), self.dtype(divisor));
        let ok = self.pw(PwOp::Ne, vec![divisor, zero], DType::Bool);
        self.check(ok, mask, "RuntimeError", "ZeroDivisionError");
    }

    /// Reports an error if `ok` is false where `mask` is true.
    pub(super) fn check(&mut self, ok: Reg, mask: Option<Reg>, exception: &str, message: &str) {
        let ok = match mask {
            None => ok,
            Some(m) => {
                let off = self.pw(PwOp::Not, vec![m], DType::Bool);
                self.pw(PwOp::Or, vec![ok, off], DType::Bool)
            }
        };
        let entry = (exception.to_string(), message.to_string());
        let code = self.checks.iter().position(|c| *c == entry).unwrap_or_else(|| {
            self.checks.push(entry);
            self.checks.len() - 1
        });
        // Hoisted out of loops that may not run at all, it must not complain of them.
        let depth = self.reg_depth(ok);
        let mut ok = ok;
        for inner in depth + 1..self.scopes.len() {
            let Some((begin, end, ..)) = &self.scopes[inner].head else { continue };
            let left = end - begin;
            if self.bounds.facts.ge(&left, &Expr::ONE) {
                continue;
            }
            if self.bounds.facts.ge(&Expr::ZERO, &left) {
                return;
            }
            let left = self.finished_expr(&left, DType::I64);
            let none = self.constant(Scalar::Int(0), DType::I64);
            let idle = self.pw(PwOp::Le, vec![left, none], DType::Bool);
            ok = self.pw(PwOp::Or, vec![ok, idle], DType::Bool);
        }
        let depth = self.reg_depth(ok);
        self.scopes[depth].body.push(Stmt::Check { ok, code: code as u32 });
    }
}
