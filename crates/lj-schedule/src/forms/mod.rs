//! Kernel forms: how a group becomes one or two loop nests.
//!
//! | form | when | shape of the nest |
//! |---|---|---|
//! | pointwise | no reductions | parallel over leading dims or blocks, vector over the contiguous dim |
//! | rows | the contiguous dim is reduced | parallel over rows; one loop over the row per *level* |
//! | lanes | the contiguous dim is kept | vector over it, serial loops over the reduced dims inside |
//! | columns | reductions over everything but the contiguous dims | parallel over chunks of rows with a partial row each, then a nest that combines the partial rows |
//! | split | few long rows | parallel over pieces of rows, then a nest that combines |
//! | scan | a running value along the row | as rows or lanes; few long rows in two passes over pieces |
//!
//! A matrix product is no nest; [`gemm`] says what our kernels for it need to know.

mod columns;
pub mod gemm;
mod pointwise;
mod rows;
mod scan;
mod scatter;

pub use scatter::scatter;

use crate::analysis::Analysis;
use crate::axes::{Axis, Uses};
use crate::emit::{Emitter, FinishedNest, Known, Memory, dot};
use crate::error::Error;
use crate::fuse::{Group, Role, space_var};
use crate::items::{Dest, Item};
use crate::loopnest::{Acc, Reg};
use lj_ir::{DType, Expr, Facts, ReduceOp, Sym, ValueId};
use std::collections::BTreeSet;

/// A partial-result buffer: the value it belongs to, its dtype and number of elements.
pub type Partial = (ValueId, DType, Expr);

/// The nests of a group, in run order.
pub struct Lowered {
    /// The nests.
    pub nests: Vec<FinishedNest>,
    /// Buffers between them.
    pub partials: Vec<Partial>,
}

/// Elements of a block when a single long dim is cut for parallelism.
const BLOCK: i64 = 4096;
/// Lanes-form blocks: columns a parallel iteration covers.
const COLUMN_BLOCK: i64 = 64;
/// Values cheaper than this are computed again on a later level instead of kept in a row.
const KEEP_COST: u32 = 6;

/// Lowers a group. `stored[v]` tells which values need memory; `threads` scales chunk counts.
pub fn lower(
    a: &Analysis,
    items: &[Item],
    group: &Group,
    stored: &dyn Fn(ValueId) -> bool,
    threads: usize,
) -> Result<Lowered, Error> {
    Lowering { a, items, group, stored, threads: threads.max(1) as i64, facts: &a.graph.facts }.lower()
}

pub(crate) struct Lowering<'a, 'g> {
    a: &'a Analysis<'g>,
    items: &'a [Item],
    group: &'a Group,
    stored: &'a dyn Fn(ValueId) -> bool,
    threads: i64,
    facts: &'a Facts,
}

/// A member with its coordinates.
#[derive(Clone)]
pub(crate) struct Member<'a> {
    item: &'a Item,
    role: Role,
    /// Coordinates of the domain and of the result, over space variables.
    domain: Vec<Expr>,
    result: Vec<Expr>,
    /// Loop over the row in which it is computed; for once-per-row members, the loop before which.
    level: usize,
    /// Must be written to memory.
    store: bool,
    /// Read on a later level, and dear enough to be kept.
    keep: bool,
}

impl<'a> Lowering<'a, '_> {
    fn lower(&self) -> Result<Lowered, Error> {
        let rows = self.group.rows.clone();
        let members = self.members()?;
        let mut uses = self.record(&members)?;
        let all: Vec<usize> = (0..self.group.space.len()).filter(|&d| !self.group.space[d].is(1)).collect();
        let Some(rows) = rows else {
            return Ok(Lowered { nests: vec![self.pointwise(&members, uses, &all)?], partials: vec![] });
        };
        let vector = uses.contiguous_dim(&all, &self.group.space, self.facts).or(all.last().copied());
        let (inner, outer): (Vec<usize>, Vec<usize>) = all.iter().partition(|&&d| rows[d]);
        let hint = |dims: &[usize]| self.hint(dims);
        let has = |r: Role| members.iter().any(|m| m.role == r);
        if has(Role::Scan) {
            return self.scans(&members, &mut uses, &outer, &inner, vector);
        }
        let one_level = members.iter().all(|m| m.level == 0 || m.role == Role::Outer);
        let row_arg = members.iter().any(|m| m.item.reduce.as_ref().is_some_and(|(op, _)| op.is_arg()));
        if vector.is_none_or(|v| rows[v]) {
            if has(Role::Col) {
                return self.columns(&members, &mut uses, &outer, &inner);
            }
            let few = hint(&outer) < 2.0 * self.threads as f64;
            if one_level && !row_arg && few && hint(&inner) >= 32768.0 {
                return self.split(&members, &mut uses, &outer, &inner);
            }
            return Ok(Lowered {
                nests: vec![self.rows(&members, &mut uses, &outer, &inner, true)?],
                partials: vec![],
            });
        }
        if has(Role::Col) {
            // Rows across memory and columns along it: rare; rows with strided loads.
            return self.columns(&members, &mut uses, &outer, &inner);
        }
        let only_rows = members.iter().all(|m| matches!(m.role, Role::Row | Role::Full));
        if one_level && only_rows && !row_arg && hint(&inner) >= 64.0 && hint(&outer) <= 16384.0 {
            let flipped: Vec<Member> = members
                .iter()
                .map(|m| Member { role: if m.role == Role::Row { Role::Col } else { m.role }, ..m.clone() })
                .collect();
            return self.columns(&flipped, &mut uses, &inner, &outer);
        }
        Ok(Lowered {
            nests: vec![self.lanes(&members, &mut uses, &outer, &inner, vector)?],
            partials: vec![],
        })
    }

    /// Estimated number of points of `dims`.
    fn hint(&self, dims: &[usize]) -> f64 {
        dims.iter().map(|&d| self.facts.hint(&self.group.space[d]) as f64).product()
    }

    fn members(&self) -> Result<Vec<Member<'a>>, Error> {
        let mut out: Vec<Member> = vec![];
        for (&i, &role) in self.group.items.iter().zip(&self.group.roles) {
            let item = &self.items[i];
            let (domain, result) = self
                .group
                .coords(item, role, self.facts)
                .ok_or_else(|| Error::Internal(format!("{} left its group's space", item.value)))?;
            let mut level = 0;
            for (v, _) in &item.reads {
                for m in out.iter().filter(|m| m.item.value == *v && m.item.dest == Dest::Own) {
                    level = level.max(m.level + usize::from(m.role == Role::Row));
                }
            }
            let store = item.dest != Dest::Own || (self.stored)(item.value);
            out.push(Member { item, role, domain, result, level, store, keep: false });
        }
        for i in 0..out.len() {
            let m = &out[i];
            out[i].keep = matches!(m.role, Role::Full | Role::Scan)
                && m.item.dest == Dest::Own
                && (m.store || m.role == Role::Scan || self.a.cost[m.item.value.index()] >= KEEP_COST)
                && out.iter().any(|o| {
                    o.level > m.level
                        && o.role != Role::Outer
                        && o.item.reads.iter().any(|(v, _)| *v == m.item.value)
                });
        }
        Ok(out)
    }

    fn emitter(&self, members: &[Member]) -> Emitter<'a, '_> {
        let own: BTreeSet<ValueId> =
            members.iter().filter(|m| m.item.dest == Dest::Own).map(|m| m.item.value).collect();
        Emitter::new(self.a, self.group.bounds(self.facts), own, Sym::new("p"))
    }

    /// Emits everything once with loop variables equal to space variables, to see the indices.
    fn record(&self, members: &[Member]) -> Result<Uses, Error> {
        let mut em = self.emitter(members);
        for m in members {
            let r = self.evaluate(&mut em, m)?;
            if m.item.reduce.as_ref().is_some_and(|(op, _)| op.is_arg()) {
                rows::position(&mut em, m);
            }
            match m.role {
                Role::Row | Role::Outer | Role::Scan => {
                    em.known.insert(m.item.value, Known::Reg(r));
                }
                _ => {}
            }
            if m.store {
                self.store(&mut em, m, r);
            }
        }
        Ok(Uses::new(std::mem::take(&mut em.uses)))
    }

    /// The value of a member at its place in the loop: of what it reduces, for reductions.
    fn evaluate(&self, em: &mut Emitter<'a, '_>, m: &Member) -> Result<Reg, Error> {
        if m.item.reduce.is_some() || m.item.scan.is_some() {
            let x = self.a.graph.def(m.item.value).inputs[0];
            let r = em.value(x, &m.domain, None)?;
            let dtype = em.dtype(r).compute();
            return Ok(em.convert(r, dtype));
        }
        em.value(m.item.value, &m.domain, None)
    }

    fn store(&self, em: &mut Emitter<'a, '_>, m: &Member, r: Reg) {
        self.store_where(em, m, r, None);
    }

    fn store_where(&self, em: &mut Emitter<'a, '_>, m: &Member, r: Reg, mask: Option<Reg>) {
        let g = self.a.graph;
        let (target, coords) = match &m.item.dest {
            Dest::Own => (m.item.value, m.result.clone()),
            Dest::Input(v) => (*v, m.result.clone()),
            Dest::Window { cat, dim, offset } => {
                let mut c = m.result.clone();
                c[*dim] = &c[*dim] + offset;
                (*cat, c)
            }
        };
        let ty = g.tensor(target);
        let r = em.convert(r, ty.dtype.moved());
        let mem = em.param(Memory::Value(target), ty.dtype, true);
        em.store(mem, &dot(&coords, &ty.strides), r, mask);
    }

    /// Holds every space variable at 0 that no loop carries.
    fn hold_others(&self, em: &mut Emitter<'a, '_>, axes: &[&[Axis]]) {
        for d in 0..self.group.space.len() {
            if !axes.iter().any(|a| a.iter().any(|x| x.dim == d)) {
                em.place_var(space_var(d), Expr::ZERO);
            }
        }
    }

    /// Order of loops over the reduced dims. The first of equal elements is the first that a loop
    /// comes to, so where positions are asked for they must ascend.
    fn inner_order(&self, uses: &Uses, inner: &[usize]) -> Vec<usize> {
        let positions = self
            .group
            .items
            .iter()
            .any(|&i| self.items[i].reduce.as_ref().is_some_and(|(op, _)| op.is_arg()));
        if positions { inner.to_vec() } else { uses.order(inner, false, self.facts) }
    }

    /// Axes of the dims that are kept, in the order in which memory is walked.
    fn outer_axes(&self, uses: &mut Uses, outer: &[usize]) -> Vec<Axis> {
        let order = uses.order(outer, false, self.facts);
        uses.merge(&order, &self.group.space, self.facts)
    }

    /// Axes of the reduced dims, at least one.
    fn inner_axes(&self, uses: &mut Uses, inner: &[usize]) -> Vec<Axis> {
        let order = self.inner_order(uses, inner);
        let mut axes = uses.merge(&order, &self.group.space, self.facts);
        if axes.is_empty() {
            let d = self.group.rows.as_ref().and_then(|r| r.iter().position(|x| *x)).unwrap_or(usize::MAX);
            axes.push(Axis::new(d, Expr::ONE));
        }
        // All scans of a group go one way.
        let scans = self.group.items.iter().filter_map(|&i| self.items[i].scan);
        if scans.into_iter().any(|(_, _, reverse)| reverse) {
            for a in &mut axes {
                a.reverse = true;
            }
        }
        axes
    }

    fn reduction(&self, m: &Member) -> (ReduceOp, DType) {
        let op = m.item.reduce.as_ref().map_or(ReduceOp::Sum, |(op, _)| *op);
        let x = self.a.graph.def(m.item.value).inputs[0];
        (op, self.a.graph.tensor(x).dtype.compute())
    }

    fn acc(&self, em: &mut Emitter<'a, '_>, m: &Member) -> Acc {
        let (op, dtype) = self.reduction(m);
        em.acc(op, dtype)
    }
}

/// Places the variables of `axes` on an index that runs over all of them, `p` in row-major order.
fn decode(em: &mut Emitter, axes: &[Axis], p: &Expr) {
    let mut inner = Expr::ONE;
    for (k, ax) in axes.iter().enumerate().rev() {
        let mut e = p.floordiv(&inner);
        if k > 0 {
            e = e.modulo(&ax.extent);
        }
        em.place_var(space_var(ax.dim), e);
        inner = &inner * &ax.extent;
    }
}

/// Opens a loop per axis, the last in lanes if `vector`; the outermost owns `accs`.
fn open_axes(em: &mut Emitter, axes: &[Axis], prefix: &str, vector: bool, accs: Vec<Acc>) {
    open_axes_from(em, axes, prefix, vector, accs, None);
}

/// [`open_axes`] with the outermost loop over `range` instead of the whole axis.
fn open_axes_from(
    em: &mut Emitter,
    axes: &[Axis],
    prefix: &str,
    vector: bool,
    accs: Vec<Acc>,
    range: Option<(Expr, Expr)>,
) {
    let mut accs = Some(accs);
    let mut range = range;
    for (k, ax) in axes.iter().enumerate() {
        // Names repeat from level to level; loops of one name never nest.
        let var = Sym::new(&format!("i{prefix}{k}"));
        em.declare(&var, ax.extent.clone());
        em.place_var(space_var(ax.dim), ax.at(Expr::sym(var.name())));
        let (begin, end) = range.take().unwrap_or((Expr::ZERO, ax.extent.clone()));
        em.open(var, begin, end, vector && k + 1 == axes.len(), accs.take().unwrap_or_default());
    }
}

/// The row-major linear index of the axes' space variables.
fn linear_of(axes: &[Axis]) -> Expr {
    axes.iter().fold(Expr::ZERO, |e, a| e * &a.extent + Expr::sym(space_var(a.dim).name()))
}
