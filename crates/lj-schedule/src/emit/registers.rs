//! Registers: nothing is computed twice, and conditions that are known are decided now.

use super::Emitter;
use crate::loopnest::{Def, Reg, Stmt};
use lj_ir::{DType, Expr, Graph, Op, PwOp, Scalar, ValueId, View};

impl Emitter<'_, '_> {
    /// Defines a register in the scope at `depth`, or finds the one that holds this already.
    pub(super) fn define(&mut self, dtype: DType, def: Def, depth: usize) -> Reg {
        let key = (dtype, def);
        if let Some(r) = self.scopes[..=depth].iter().find_map(|s| s.defs.get(&key)) {
            return *r;
        }
        let r = self.define_here(dtype, key.1.clone(), depth);
        self.scopes[depth].defs.insert(key, r);
        r
    }

    /// Defines a register that holds what its definition gives at this point.
    pub(super) fn define_here(&mut self, dtype: DType, def: Def, depth: usize) -> Reg {
        let reg = Reg(self.regs.len() as u32);
        match &def {
            Def::Const(Scalar::Bool(b)) => drop(self.truths.insert(reg, *b)),
            Def::Const(Scalar::Int(v)) if dtype == DType::I64 => {
                self.exprs.insert(reg, Expr::int(*v));
            }
            Def::Expr(e) if dtype == DType::I64 => {
                self.exprs.insert(reg, e.clone());
            }
            _ => {}
        }
        self.regs.push((dtype, depth));
        self.scopes[depth].body.push(Stmt::Let { reg, dtype, def });
        reg
    }

    /// The truth value that `r` always has.
    pub(super) fn truth(&self, r: Reg) -> Option<bool> {
        self.truths.get(&r).copied()
    }

    /// The result of a condition, or of a choice by one, that is known now. Unrolled loops have many.
    pub(super) fn folded(&mut self, op: PwOp, args: &[Reg]) -> Option<Reg> {
        match (op, args) {
            (PwOp::And | PwOp::Or, &[a, b]) => {
                let (sure, other) = match (self.truth(a), self.truth(b)) {
                    (Some(t), _) => (t, b),
                    (None, Some(t)) => (t, a),
                    (None, None) => return None,
                };
                // The neutral element leaves the other; the absorbing one is the result.
                let neutral = op == PwOp::And;
                Some(if sure == neutral { other } else { self.constant(Scalar::Bool(sure), DType::Bool) })
            }
            (PwOp::Not, &[a]) => self.truth(a).map(|t| self.constant(Scalar::Bool(!t), DType::Bool)),
            (PwOp::Where, &[c, a, b]) => {
                if a == b {
                    return Some(a);
                }
                self.truth(c).map(|t| if t { a } else { b })
            }
            (PwOp::Lt | PwOp::Le | PwOp::Gt | PwOp::Ge | PwOp::Eq | PwOp::Ne, &[a, b]) => {
                let (low, high) = self.bounds.range(&(self.exprs.get(&a)? - self.exprs.get(&b)?));
                let decided = |yes: bool, no: bool| if yes { Some(true) } else { no.then_some(false) };
                let truth = match op {
                    PwOp::Lt => decided(high < 0, low >= 0),
                    PwOp::Le => decided(high <= 0, low > 0),
                    PwOp::Gt => decided(low > 0, high <= 0),
                    PwOp::Ge => decided(low >= 0, high < 0),
                    PwOp::Eq => decided((low, high) == (0, 0), low > 0 || high < 0),
                    _ => decided(low > 0 || high < 0, (low, high) == (0, 0)),
                };
                truth.map(|t| self.constant(Scalar::Bool(t), DType::Bool))
            }
            _ => None,
        }
    }
}

/// Whether every element of the index `v` is provably in `0..extent`: it has been clamped.
pub(super) fn within(g: &Graph, v: ValueId, extent: &Expr) -> bool {
    let last = extent - &Expr::ONE;
    let bound = |v: ValueId, low: bool| {
        bounded(g, v, &|e| if low { g.facts.ge(e, &Expr::ZERO) } else { g.facts.ge(&last, e) }, low)
    };
    bound(v, true) && bound(v, false)
}

/// Whether every element of `v` has a bound, from below or from above, that satisfies `holds`.
fn bounded(g: &Graph, v: ValueId, holds: &dyn Fn(&Expr) -> bool, low: bool) -> bool {
    let node = g.def(v);
    let of = |i: usize| bounded(g, node.inputs[i], holds, low);
    match &node.op {
        Op::Full(Scalar::Int(c)) => holds(&Expr::int(*c)),
        Op::FullSym(e) => holds(e),
        Op::Iota { start, step } if step.is(1) => {
            let last = start + &g.tensor(v).numel() - Expr::ONE;
            holds(if low { start } else { &last })
        }
        Op::View(View::Reshape | View::Expand | View::Permute(_)) | Op::Copy => of(0),
        Op::Pointwise(PwOp::Maximum) => {
            if low {
                of(0) || of(1)
            } else {
                of(0) && of(1)
            }
        }
        Op::Pointwise(PwOp::Minimum) => {
            if low {
                of(0) && of(1)
            } else {
                of(0) || of(1)
            }
        }
        _ => false,
    }
}
