//! The forms with the reduced dims inside: rows (lanes along the row) and lanes (lanes across rows).

use super::{COLUMN_BLOCK, Lowering, Member, decode, linear_of, open_axes};
use crate::axes::{Axis, Uses};
use crate::emit::{Emitter, FinishedNest, Known, Memory, dot};
use crate::error::Error;
use crate::forms::columns::combining;
use crate::fuse::{Role, space_var};
use crate::loopnest::{Acc, Mem, Reg};
use lj_ir::{DType, Expr, Sym, ValueId};

/// How the loops over a row run.
#[derive(Clone, Copy, Default)]
pub(super) struct Row<'e> {
    /// Axes of the reduced dims.
    pub inner: &'e [Axis],
    /// Whether the innermost of them runs in lanes.
    pub vector: bool,
    /// Where the partial result of a column reduction lies, if there are any.
    pub partial: Option<&'e Expr>,
    /// If lanes run across rows: number of the row among the [`COLUMN_BLOCK`] of its block. Each of
    /// them needs private memory of its own.
    pub lane: Option<&'e Expr>,
}

impl<'a> Lowering<'a, '_> {
    pub(super) fn rows(
        &self,
        members: &[Member],
        uses: &mut Uses,
        outer: &[usize],
        inner: &[usize],
        vector: bool,
    ) -> Result<FinishedNest, Error> {
        let outer = self.outer_axes(uses, outer);
        let inner = self.inner_axes(uses, inner);
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&outer, &inner]);
        let extent = Expr::product(outer.iter().map(|a| &a.extent));
        em.declare(&Sym::new("p"), extent.clone());
        decode(&mut em, &outer, &Expr::sym("p"));
        self.levels(&mut em, members, &Row { inner: &inner, vector, partial: None, lane: None })?;
        Ok(em.finish_nest(Sym::new("p"), extent))
    }

    pub(super) fn lanes(
        &self,
        members: &[Member],
        uses: &mut Uses,
        outer: &[usize],
        inner: &[usize],
        vector: Option<usize>,
    ) -> Result<FinishedNest, Error> {
        let mut outer = self.outer_axes(uses, outer);
        let inner = self.inner_axes(uses, inner);
        let at = outer.iter().position(|a| Some(a.dim) == vector).unwrap_or(outer.len() - 1);
        let last = outer.remove(at);
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&outer, std::slice::from_ref(&last), &inner]);
        let blocks = (&last.extent + &Expr::int(COLUMN_BLOCK - 1)).floordiv(&Expr::int(COLUMN_BLOCK));
        let extent = Expr::product(outer.iter().map(|a| &a.extent)) * &blocks;
        let pe = Expr::sym("p");
        em.declare(&Sym::new("p"), extent.clone());
        decode(&mut em, &outer, &pe.floordiv(&blocks));
        let begin = if outer.is_empty() { pe } else { pe.modulo(&blocks) } * Expr::int(COLUMN_BLOCK);
        em.declare(&Sym::new("i0"), last.extent.clone());
        em.place_var(space_var(last.dim), Expr::sym("i0"));
        let end = last.extent.minimum(&(&begin + &Expr::int(COLUMN_BLOCK)));
        em.open(Sym::new("i0"), begin.clone(), end, true, vec![]);
        let lane = Expr::sym(space_var(last.dim).name()) - &begin;
        self.levels(
            &mut em,
            members,
            &Row { inner: &inner, vector: false, partial: None, lane: Some(&lane) },
        )?;
        Ok(em.finish_nest(Sym::new("p"), extent))
    }

    /// All levels of a row: once-per-row members, then a loop over the row, and again.
    pub(super) fn levels(
        &self,
        em: &mut Emitter<'a, '_>,
        members: &[Member],
        row: &Row<'_>,
    ) -> Result<(), Error> {
        let last = members.iter().map(|m| m.level).max().unwrap_or(0);
        for level in 0..=last {
            for m in members.iter().filter(|m| m.role == Role::Outer && m.level == level) {
                let r = self.evaluate(em, m)?;
                em.known.insert(m.item.value, Known::Reg(r));
                if m.store {
                    self.store(em, m, r);
                }
            }
            let here: Vec<&Member> = members
                .iter()
                .filter(|m| {
                    m.level == level && m.role != Role::Outer && (m.role != Role::Full || m.store || m.keep)
                })
                .collect();
            if here.is_empty() {
                continue;
            }
            let reductions: Vec<&Member> = here.iter().copied().filter(|m| m.role == Role::Row).collect();
            let accs: Vec<Acc> = reductions.iter().map(|m| self.acc(em, m)).collect();
            open_axes(
                em,
                row.inner,
                &format!("{}_", char::from(b'a' + (level % 26) as u8)),
                row.vector,
                accs.clone(),
            );
            let kept = self.level(em, members, level, &accs, row)?;
            for _ in row.inner {
                em.close();
            }
            for m in here.iter().filter(|m| m.role == Role::Scan) {
                em.known.remove(&m.item.value);
            }
            for (v, mem, flat) in kept {
                em.known.insert(v, Known::At(mem, flat));
            }
            for (m, acc) in reductions.iter().zip(&accs) {
                let r = em.result(acc);
                let r = em.convert(r, self.a.graph.tensor(m.item.value).dtype);
                em.known.insert(m.item.value, Known::Reg(r));
                if m.store {
                    self.store(em, m, r);
                }
            }
        }
        Ok(())
    }

    /// What the loop of one level does. Returns the values that can be read back afterwards.
    #[allow(clippy::type_complexity)]
    pub(super) fn level(
        &self,
        em: &mut Emitter<'a, '_>,
        members: &[Member],
        level: usize,
        accs: &[Acc],
        row: &Row<'_>,
    ) -> Result<Vec<(ValueId, Mem, Expr)>, Error> {
        let mut kept = vec![];
        let mut next = 0;
        for m in members.iter().filter(|m| m.level == level && m.role != Role::Outer) {
            match m.role {
                Role::Row => {
                    let r = self.evaluate(em, m)?;
                    let acc = &accs[next];
                    next += 1;
                    let index = acc.op.is_arg().then(|| position(em, m));
                    em.update(acc.id, r, index);
                }
                Role::Col => {
                    let Some(place) = row.partial else {
                        return Err(Error::Internal("a column reduction outside of columns".into()));
                    };
                    let r = self.evaluate(em, m)?;
                    let (op, dtype) = self.reduction(m);
                    let mem = em.param(Memory::Partial(m.item.value), dtype, false);
                    em.param(Memory::Partial(m.item.value), dtype, true);
                    let before = em.load_here(mem, dtype, place, None);
                    let after = em.pw(combining(op), vec![before, r], dtype);
                    em.store(mem, place, after, None);
                }
                _ => {
                    if m.role != Role::Scan && !m.store && !m.keep {
                        continue;
                    }
                    let r = if m.role == Role::Scan {
                        self.running(em, m, None)?.0
                    } else {
                        self.evaluate(em, m)?
                    };
                    if m.store {
                        self.store(em, m, r);
                    }
                    if m.keep {
                        kept.push(self.keep(em, m, r, row));
                    }
                }
            }
        }
        Ok(kept)
    }

    fn keep(&self, em: &mut Emitter<'a, '_>, m: &Member, r: Reg, row: &Row<'_>) -> (ValueId, Mem, Expr) {
        let v = m.item.value;
        let ty = self.a.graph.tensor(v);
        if m.store {
            let mem = em.param(Memory::Value(v), ty.dtype, false);
            return (v, mem, dot(&m.result, &ty.strides));
        }
        // Numbered as the loops run: merged axes need not be in the order of the dims.
        let mut len = Expr::product(row.inner.iter().map(|a| &a.extent));
        let mut flat = linear_of(row.inner);
        if let Some(lane) = row.lane {
            len = len * Expr::int(COLUMN_BLOCK);
            flat = flat * Expr::int(COLUMN_BLOCK) + lane;
        }
        let mem = em.scratch(ty.dtype, len);
        em.store(mem, &flat, r, None);
        (v, mem, flat)
    }
}

/// Row-major position within the reduced dims.
pub(super) fn position(em: &mut Emitter, m: &Member) -> Reg {
    let mut e = Expr::ZERO;
    if let Some((_, mask)) = &m.item.reduce {
        for ((c, extent), _) in m.domain.iter().zip(&m.item.domain).zip(mask).filter(|(_, r)| **r) {
            e = e * extent + c;
        }
    }
    em.expr(&e, DType::I64)
}
