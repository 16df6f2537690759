//! Facts about finished loop nests: the symbols they mention, an estimate of what they cost.

use crate::loopnest::{Def, Index, LoopNest, Stmt};
use lj_ir::{DType, Expr, Sym};
use std::collections::{BTreeMap, BTreeSet};

/// Variables of the loops in `body`, and of the parallel loop.
pub(crate) fn loop_vars(body: &[Stmt], parallel: &Sym) -> BTreeSet<Sym> {
    fn go(body: &[Stmt], out: &mut BTreeSet<Sym>) {
        for s in body {
            if let Stmt::For(l) = s {
                out.insert(l.var.clone());
                go(&l.body, out);
            }
        }
    }
    let mut out = BTreeSet::from([parallel.clone()]);
    go(body, &mut out);
    out
}

/// Adds every symbol that expressions in `body` mention.
pub(crate) fn collect_symbols(body: &[Stmt], out: &mut BTreeSet<Sym>) {
    let index = |i: &Index, out: &mut BTreeSet<Sym>| {
        out.extend(i.base.symbols());
        for (_, s) in &i.indirect {
            out.extend(s.symbols());
        }
    };
    for s in body {
        match s {
            Stmt::Let { def: Def::Expr(e), .. } => out.extend(e.symbols()),
            Stmt::Let { def: Def::Load { index: i, .. }, .. } | Stmt::Store { index: i, .. } => index(i, out),
            Stmt::For(l) => {
                out.extend(l.begin.symbols());
                out.extend(l.end.symbols());
                collect_symbols(&l.body, out);
            }
            _ => {}
        }
    }
}

/// Estimated time of one iteration of the parallel loop, in picoseconds on one core.
pub(crate) fn cost(nest: &LoopNest) -> Expr {
    fn go(body: &[Stmt], regs: &mut BTreeMap<u32, DType>, lanes: i64) -> Expr {
        let mut sum = Expr::ZERO;
        for s in body {
            sum = sum
                + match s {
                    Stmt::Let { reg, dtype, def } => {
                        regs.insert(reg.0, *dtype);
                        Expr::int(
                            lanes
                                * match def {
                                    Def::Load { index, .. } if !index.indirect.is_empty() => 60,
                                    Def::Load { .. } => 10 + 12 * dtype.bytes(),
                                    Def::Pw { op, .. } => 20 * i64::from(op.cost()),
                                    Def::Convert { .. } => 30,
                                    Def::Scan { .. } => 60,
                                    _ => 0,
                                },
                        )
                    }
                    Stmt::Store { value, .. } => {
                        Expr::int(lanes * (20 + 20 * regs.get(&value.0).map_or(4, |d| d.bytes())))
                    }
                    Stmt::Update { .. } => Expr::int(lanes * 20),
                    Stmt::Check { .. } => Expr::int(lanes * 20),
                    Stmt::For(l) => {
                        let trips = (&l.end - &l.begin).substitute(&|s| {
                            let name = s.name();
                            (name.starts_with('i') || name == "p").then_some(Expr::ZERO)
                        });
                        trips * go(&l.body, regs, if l.vector { 1 } else { lanes })
                    }
                };
        }
        sum
    }
    // Scalar code costs about as much as a vector of 8 lanes.
    go(&nest.body, &mut BTreeMap::new(), 8) + Expr::int(2000)
}
