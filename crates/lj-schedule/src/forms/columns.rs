//! The forms with partial results: columns (a partial row per chunk of rows) and split (pieces of
//! long rows), each with the nest that combines them.

use super::rows::Row;
use super::{Lowered, Lowering, Member, decode, linear_of, open_axes, open_axes_from};
use crate::axes::{Axis, Uses};
use crate::emit::{Emitter, FinishedNest, Known, Memory};
use crate::error::Error;
use crate::fuse::{Role, space_var};
use crate::loopnest::Acc;
use lj_ir::{DType, Expr, PwOp, ReduceOp, Scalar, Sym};
use std::collections::BTreeSet;

impl Lowering<'_, '_> {
    /// Number of chunks that rows are cut into.
    pub(super) fn chunks(&self, count: &Expr) -> Expr {
        count.minimum(&Expr::int(4 * self.threads)).maximum(&Expr::ONE)
    }

    pub(super) fn columns(
        &self,
        members: &[Member],
        uses: &mut Uses,
        outer: &[usize],
        inner: &[usize],
    ) -> Result<Lowered, Error> {
        let outer = self.outer_axes(uses, outer);
        let order = self.inner_order(uses, inner);
        let mut inner = uses.merge(&order, &self.group.space, self.facts);
        if inner.is_empty() {
            inner.push(Axis::new(usize::MAX, Expr::ONE));
        }
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&outer, &inner]);
        let rows = Expr::product(outer.iter().map(|a| &a.extent));
        let chunks = self.facts.simplify(&self.chunks(&rows));
        let per = (&rows + &chunks - Expr::ONE).floordiv(&chunks);
        let pe = Expr::sym("p");
        em.declare(&Sym::new("p"), chunks.clone());
        let row_len = Expr::product(inner.iter().map(|a| &a.extent));
        let linear = linear_of(&inner);
        let mut partials = vec![];
        let cols: Vec<&Member> = members.iter().filter(|m| m.role == Role::Col).collect();
        // Partial rows start at the neutral element.
        let place = &pe * &row_len + &linear;
        open_axes(&mut em, &inner, "z", true, vec![]);
        for m in &cols {
            let (op, dtype) = self.reduction(m);
            let mem = em.param(Memory::Partial(m.item.value), dtype, true);
            let neutral = em.constant(neutral(op, dtype), dtype);
            em.store(mem, &place, neutral, None);
            partials.push((m.item.value, dtype, &chunks * &row_len));
        }
        for _ in &inner {
            em.close();
        }
        let begin = &pe * &per;
        em.declare(&Sym::new("i9"), rows.clone());
        decode(&mut em, &outer, &Expr::sym("i9"));
        em.open(Sym::new("i9"), begin.clone(), rows.minimum(&(&begin + &per)), false, vec![]);
        self.levels(
            &mut em,
            members,
            &Row { inner: &inner, vector: true, partial: Some(&place), lane: None },
        )?;
        let first = em.finish_nest(Sym::new("p"), chunks.clone());
        let mut nests = vec![first];
        nests.push(self.combine_columns(&cols, &inner, &chunks, &row_len, &linear));
        Ok(Lowered { nests, partials })
    }

    pub(super) fn combine_columns(
        &self,
        cols: &[&Member],
        inner: &[Axis],
        chunks: &Expr,
        row_len: &Expr,
        linear: &Expr,
    ) -> FinishedNest {
        let mut em = Emitter::new(self.a, self.group.bounds(self.facts), BTreeSet::new(), Sym::new("p"));
        self.hold_others(&mut em, &[inner]);
        let (lead, last) = (&inner[..inner.len() - 1], &inner[inner.len() - 1]);
        let block = Expr::int(1024);
        let blocks = (&last.extent + &Expr::int(1023)).floordiv(&block);
        let extent = Expr::product(lead.iter().map(|a| &a.extent)) * &blocks;
        let pe = Expr::sym("p");
        em.declare(&Sym::new("p"), extent.clone());
        decode(&mut em, lead, &pe.floordiv(&blocks));
        let begin = if lead.is_empty() { pe } else { pe.modulo(&blocks) } * &block;
        em.declare(&Sym::new("i0"), last.extent.clone());
        em.place_var(space_var(last.dim), Expr::sym("i0"));
        em.open(Sym::new("i0"), begin.clone(), last.extent.minimum(&(&begin + &block)), true, vec![]);
        em.declare(&Sym::new("i1"), chunks.clone());
        let accs: Vec<Acc> = cols.iter().map(|m| self.acc(&mut em, m)).collect();
        em.open(Sym::new("i1"), Expr::ZERO, chunks.clone(), false, accs.clone());
        for (m, acc) in cols.iter().zip(&accs) {
            let mem = em.param(Memory::Partial(m.item.value), acc.dtype, false);
            let r = em.load(mem, acc.dtype, &(Expr::sym("i1") * row_len + linear), None);
            em.update(acc.id, r, None);
        }
        em.close();
        for (m, acc) in cols.iter().zip(&accs) {
            let r = em.result(acc);
            let r = em.convert(r, self.a.graph.tensor(m.item.value).dtype);
            self.store(&mut em, m, r);
        }
        em.finish_nest(Sym::new("p"), extent)
    }

    pub(super) fn split(
        &self,
        members: &[Member],
        uses: &mut Uses,
        outer: &[usize],
        inner: &[usize],
    ) -> Result<Lowered, Error> {
        let outer = self.outer_axes(uses, outer);
        let inner = self.inner_axes(uses, inner);
        let rows = Expr::product(outer.iter().map(|a| &a.extent));
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&outer, &inner]);
        let head = inner[0].extent.clone();
        let chunks = self.facts.simplify(&self.chunks(&head));
        let per = (&head + &chunks - Expr::ONE).floordiv(&chunks);
        let pe = Expr::sym("p");
        let extent = &rows * &chunks;
        em.declare(&Sym::new("p"), extent.clone());
        decode(&mut em, &outer, &pe.floordiv(&chunks));
        let chunk = if outer.is_empty() { pe.clone() } else { pe.modulo(&chunks) };
        let begin = &chunk * &per;
        let range = (begin.clone(), head.minimum(&(&begin + &per)));
        let reductions: Vec<&Member> = members.iter().filter(|m| m.role == Role::Row).collect();
        let accs: Vec<Acc> = reductions.iter().map(|m| self.acc(&mut em, m)).collect();
        open_axes_from(&mut em, &inner, "i", true, accs.clone(), Some(range));
        for m in members.iter().filter(|m| m.role != Role::Outer) {
            let r = self.evaluate(&mut em, m)?;
            if let Some(k) =
                reductions.iter().position(|x| x.item.value == m.item.value && m.role == Role::Row)
            {
                em.update(accs[k].id, r, None);
            } else if m.store {
                self.store(&mut em, m, r);
            }
        }
        for _ in &inner {
            em.close();
        }
        let mut partials = vec![];
        for (m, acc) in reductions.iter().zip(&accs) {
            let r = em.result(acc);
            let mem = em.param(Memory::Partial(m.item.value), acc.dtype, true);
            em.store(mem, &pe, r, None);
            partials.push((m.item.value, acc.dtype, extent.clone()));
        }
        let first = em.finish_nest(Sym::new("p"), extent);

        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&outer]);
        em.declare(&Sym::new("p"), rows.clone());
        decode(&mut em, &outer, &pe);
        let accs: Vec<Acc> = reductions.iter().map(|m| self.acc(&mut em, m)).collect();
        em.declare(&Sym::new("i0"), chunks.clone());
        em.open(Sym::new("i0"), Expr::ZERO, chunks.clone(), true, accs.clone());
        for (m, acc) in reductions.iter().zip(&accs) {
            let mem = em.param(Memory::Partial(m.item.value), acc.dtype, false);
            let r = em.load(mem, acc.dtype, &(&pe * &chunks + Expr::sym("i0")), None);
            em.update(acc.id, r, None);
        }
        em.close();
        for (m, acc) in reductions.iter().zip(&accs) {
            let r = em.result(acc);
            let r = em.convert(r, self.a.graph.tensor(m.item.value).dtype);
            em.known.insert(m.item.value, Known::Reg(r));
            if m.store {
                self.store(&mut em, m, r);
            }
        }
        for m in members.iter().filter(|m| m.role == Role::Outer) {
            let r = self.evaluate(&mut em, m)?;
            em.known.insert(m.item.value, Known::Reg(r));
            if m.store {
                self.store(&mut em, m, r);
            }
        }
        let second = em.finish_nest(Sym::new("p"), rows);
        Ok(Lowered { nests: vec![first, second], partials })
    }
}

/// The elementwise operation that combines two partial results.
pub(super) fn combining(op: ReduceOp) -> PwOp {
    match op {
        ReduceOp::Prod => PwOp::Mul,
        ReduceOp::Max | ReduceOp::ArgMax => PwOp::Maximum,
        ReduceOp::Min | ReduceOp::ArgMin => PwOp::Minimum,
        ReduceOp::Any => PwOp::Or,
        ReduceOp::All => PwOp::And,
        ReduceOp::Sum => PwOp::Add,
    }
}

/// The neutral element of a reduction.
fn neutral(op: ReduceOp, dtype: DType) -> Scalar {
    let extreme = |low: bool| {
        if dtype.is_float() {
            return Scalar::float(if low { f64::NEG_INFINITY } else { f64::INFINITY });
        }
        let bits = dtype.bytes() * 8;
        match (dtype, low) {
            (DType::Bool, low) => Scalar::Bool(!low),
            (DType::U8, true) => Scalar::Int(0),
            (DType::U8, false) => Scalar::Int(255),
            (_, true) => Scalar::Int(i64::MIN >> (64 - bits)),
            (_, false) => Scalar::Int(i64::MAX >> (64 - bits)),
        }
    };
    match op {
        ReduceOp::Sum | ReduceOp::Any => Scalar::Int(0).cast(dtype),
        ReduceOp::Prod | ReduceOp::All => Scalar::Int(1).cast(dtype),
        ReduceOp::Max | ReduceOp::ArgMax => extreme(true),
        ReduceOp::Min | ReduceOp::ArgMin => extreme(false),
    }
}
