//! Kernel forms: how a group becomes one or two loop nests.
//!
//! | form | when | shape of the nest |
//! |---|---|---|
//! | pointwise | no reductions | parallel over leading dims or blocks, vector over the contiguous dim |
//! | rows | the contiguous dim is reduced | parallel over rows; one loop over the row per *level* |
//! | lanes | the contiguous dim is kept | vector over it, serial loops over the reduced dims inside |
//! | columns | reductions over everything but the contiguous dims | parallel over chunks of rows with a partial row each, then a nest that combines the partial rows |
//! | split | few long rows | parallel over pieces of rows, then a nest that combines |

use crate::analysis::Analysis;
use crate::axes::{Axis, Uses};
use crate::coords::Bounds;
use crate::emit::{Emitter, FinishedNest, Known, Memory, dot};
use crate::error::Error;
use crate::fuse::{Group, Role, space_var};
use crate::items::{Dest, Item};
use crate::loopnest::{Acc, Mem, Reg};
use lj_ir::{DType, Expr, Facts, Op, PwOp, ReduceOp, Scalar, Sym, ValueId};
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
pub fn lower(a: &Analysis, items: &[Item], group: &Group, stored: &dyn Fn(ValueId) -> bool, threads: usize) -> Result<Lowered, Error> {
    Lowering { a, items, group, stored, threads: threads.max(1) as i64, facts: &a.graph.facts }.lower()
}

struct Lowering<'a, 'g> {
    a: &'a Analysis<'g>,
    items: &'a [Item],
    group: &'a Group,
    stored: &'a dyn Fn(ValueId) -> bool,
    threads: i64,
    facts: &'a Facts,
}

/// A member with its coordinates.
#[derive(Clone)]
struct Member<'a> {
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
        let hint = |dims: &[usize]| dims.iter().map(|&d| self.facts.hint(&self.group.space[d]) as f64).product::<f64>();
        let has = |r: Role| members.iter().any(|m| m.role == r);
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
            return Ok(Lowered { nests: vec![self.rows(&members, &mut uses, &outer, &inner)?], partials: vec![] });
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
        Ok(Lowered { nests: vec![self.lanes(&members, &mut uses, &outer, &inner, vector)?], partials: vec![] })
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
            out[i].keep = m.role == Role::Full
                && m.item.dest == Dest::Own
                && (m.store || self.a.cost[m.item.value.index()] >= KEEP_COST)
                && out.iter().any(|o| {
                    o.level > m.level && o.role != Role::Outer && o.item.reads.iter().any(|(v, _)| *v == m.item.value)
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
            match m.role {
                Role::Row | Role::Outer => {
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
        if m.item.reduce.is_some() {
            let x = self.a.graph.def(m.item.value).inputs[0];
            let r = em.value(x, &m.domain, None)?;
            let dtype = em.dtype(r).compute();
            return Ok(em.convert(r, dtype));
        }
        em.value(m.item.value, &m.domain, None)
    }

    fn store(&self, em: &mut Emitter<'a, '_>, m: &Member, r: Reg) {
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
        let r = em.convert(r, ty.dtype);
        let mem = em.param(Memory::Value(target), ty.dtype, true);
        em.store(mem, &dot(&coords, &ty.strides), r, None);
    }

    /// Places the variables of `axes` on an index that runs over all of them, `p` in row-major order.
    fn decode(&self, em: &mut Emitter<'a, '_>, axes: &[Axis], p: &Expr) {
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

    /// Holds every space variable at 0 that no loop carries.
    fn hold_others(&self, em: &mut Emitter<'a, '_>, axes: &[&[Axis]]) {
        for d in 0..self.group.space.len() {
            if !axes.iter().any(|a| a.iter().any(|x| x.dim == d)) {
                em.place_var(space_var(d), Expr::ZERO);
            }
        }
    }

    fn pointwise(&self, members: &[Member], mut uses: Uses, all: &[usize]) -> Result<FinishedNest, Error> {
        let order = uses.order(all, true, self.facts);
        let axes = uses.merge(&order, &self.group.space, self.facts);
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&axes]);
        let p = Sym::new("p");
        let pe = Expr::sym("p");
        let Some((last, lead)) = axes.split_last() else {
            self.level(&mut em, members, 0, &[], None)?;
            return Ok(em.finish_nest(p, Expr::ONE));
        };
        let var = Expr::sym("i0");
        let total = self.facts.hint(&Expr::product(axes.iter().map(|a| &a.extent)));
        let dims: Vec<usize> = axes.iter().map(|a| a.dim).collect();
        if let Some(across) = uses.transposed_dim(&dims, last.dim, self.facts).filter(|_| total > 4096) {
            return self.tiled(em, members, &axes, across);
        }
        // As few leading dims as give enough parallel iterations, so that little is decoded.
        let mut taken = 0;
        let mut count = 1;
        while taken < lead.len() && count < 8 * self.threads {
            count *= self.facts.hint(&lead[taken].extent);
            taken += 1;
        }
        let long = self.facts.hint(&last.extent) > 2 * BLOCK && (lead.is_empty() || count < 2 * self.threads);
        let outer = Expr::product(lead[..taken].iter().map(|a| &a.extent));
        let (extent, begin, end) = if long {
            let blocks = (&last.extent + &Expr::int(BLOCK - 1)).floordiv(&Expr::int(BLOCK));
            let (o, b) = if taken == 0 { (Expr::ZERO, pe.clone()) } else { (pe.floordiv(&blocks), pe.modulo(&blocks)) };
            self.decode(&mut em, &lead[..taken], &o);
            let begin = &b * &Expr::int(BLOCK);
            let end = last.extent.minimum(&(&begin + &Expr::int(BLOCK)));
            (&outer * &blocks, begin, end)
        } else {
            self.decode(&mut em, &lead[..taken], &pe);
            (outer, Expr::ZERO, last.extent.clone())
        };
        em.declare(&p, extent.clone());
        for (k, ax) in lead[taken..].iter().enumerate() {
            let v = Sym::new(&format!("i{}", k + 1));
            em.declare(&v, ax.extent.clone());
            em.place_var(space_var(ax.dim), Expr::sym(v.name()));
            em.open(v, Expr::ZERO, ax.extent.clone(), false, vec![]);
        }
        em.declare(&Sym::new("i0"), last.extent.clone());
        em.place_var(space_var(last.dim), var);
        em.open(Sym::new("i0"), begin, end, true, vec![]);
        self.level(&mut em, members, 0, &[], None)?;
        Ok(em.finish_nest(p, extent))
    }

    /// A transposing copy: tiles of 16 by 128, so that lines stay in cache while they are needed.
    fn tiled(&self, mut em: Emitter<'a, '_>, members: &[Member], axes: &[Axis], across: usize) -> Result<FinishedNest, Error> {
        let (tile_across, tile_along) = (Expr::int(16), Expr::int(128));
        let last = &axes[axes.len() - 1];
        let cross = axes.iter().find(|a| a.dim == across).unwrap_or(last);
        let rest: Vec<Axis> = axes[..axes.len() - 1].iter().filter(|a| a.dim != across).cloned().collect();
        let blocks = (&cross.extent + &Expr::int(15)).floordiv(&tile_across);
        let extent = Expr::product(rest.iter().map(|a| &a.extent)) * &blocks;
        let (p, pe) = (Sym::new("p"), Expr::sym("p"));
        em.declare(&p, extent.clone());
        self.decode(&mut em, &rest, &pe.floordiv(&blocks));
        let first = if rest.is_empty() { &pe * &tile_across } else { pe.modulo(&blocks) * &tile_across };
        let strips = (&last.extent + &Expr::int(127)).floordiv(&tile_along);
        em.open(Sym::new("i2"), Expr::ZERO, strips, false, vec![]);
        em.declare(&Sym::new("i1"), cross.extent.clone());
        em.place_var(space_var(cross.dim), Expr::sym("i1"));
        em.open(Sym::new("i1"), first.clone(), cross.extent.minimum(&(&first + &tile_across)), false, vec![]);
        let begin = Expr::sym("i2") * &tile_along;
        em.declare(&Sym::new("i0"), last.extent.clone());
        em.place_var(space_var(last.dim), Expr::sym("i0"));
        em.open(Sym::new("i0"), begin.clone(), last.extent.minimum(&(&begin + &tile_along)), true, vec![]);
        self.level(&mut em, members, 0, &[], None)?;
        Ok(em.finish_nest(p, extent))
    }

    /// Axes of the reduced dims, at least one.
    fn inner_axes(&self, uses: &mut Uses, inner: &[usize]) -> Vec<Axis> {
        let order = uses.order(inner, false, self.facts);
        let mut axes = uses.merge(&order, &self.group.space, self.facts);
        if axes.is_empty() {
            let d = self.group.rows.as_ref().and_then(|r| r.iter().position(|x| *x)).unwrap_or(usize::MAX);
            axes.push(Axis { dim: d, extent: Expr::ONE });
        }
        axes
    }

    fn rows(&self, members: &[Member], uses: &mut Uses, outer: &[usize], inner: &[usize]) -> Result<FinishedNest, Error> {
        let order = uses.order(outer, false, self.facts);
        let outer = uses.merge(&order, &self.group.space, self.facts);
        let inner = self.inner_axes(uses, inner);
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&outer, &inner]);
        let extent = Expr::product(outer.iter().map(|a| &a.extent));
        em.declare(&Sym::new("p"), extent.clone());
        self.decode(&mut em, &outer, &Expr::sym("p"));
        self.levels(&mut em, members, &inner, true, None)?;
        Ok(em.finish_nest(Sym::new("p"), extent))
    }

    fn lanes(&self, members: &[Member], uses: &mut Uses, outer: &[usize], inner: &[usize], vector: Option<usize>) -> Result<FinishedNest, Error> {
        let order = uses.order(outer, false, self.facts);
        let mut outer = uses.merge(&order, &self.group.space, self.facts);
        let inner = self.inner_axes(uses, inner);
        let at = outer.iter().position(|a| Some(a.dim) == vector).unwrap_or(outer.len() - 1);
        let last = outer.remove(at);
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&outer, std::slice::from_ref(&last), &inner]);
        let blocks = (&last.extent + &Expr::int(COLUMN_BLOCK - 1)).floordiv(&Expr::int(COLUMN_BLOCK));
        let extent = Expr::product(outer.iter().map(|a| &a.extent)) * &blocks;
        let pe = Expr::sym("p");
        em.declare(&Sym::new("p"), extent.clone());
        self.decode(&mut em, &outer, &pe.floordiv(&blocks));
        let begin = if outer.is_empty() { pe } else { pe.modulo(&blocks) } * Expr::int(COLUMN_BLOCK);
        em.declare(&Sym::new("i0"), last.extent.clone());
        em.place_var(space_var(last.dim), Expr::sym("i0"));
        let end = last.extent.minimum(&(&begin + &Expr::int(COLUMN_BLOCK)));
        em.open(Sym::new("i0"), begin, end, true, vec![]);
        self.levels(&mut em, members, &inner, false, None)?;
        Ok(em.finish_nest(Sym::new("p"), extent))
    }

    /// Number of chunks that rows are cut into.
    fn chunks(&self, count: &Expr) -> Expr {
        count.minimum(&Expr::int(4 * self.threads)).maximum(&Expr::ONE)
    }

    fn columns(&self, members: &[Member], uses: &mut Uses, outer: &[usize], inner: &[usize]) -> Result<Lowered, Error> {
        let order = uses.order(outer, false, self.facts);
        let outer = uses.merge(&order, &self.group.space, self.facts);
        let order = uses.order(inner, false, self.facts);
        let mut inner = uses.merge(&order, &self.group.space, self.facts);
        if inner.is_empty() {
            inner.push(Axis { dim: usize::MAX, extent: Expr::ONE });
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
        self.open_axes(&mut em, &inner, "z", true, vec![]);
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
        self.decode(&mut em, &outer, &Expr::sym("i9"));
        em.open(Sym::new("i9"), begin.clone(), rows.minimum(&(&begin + &per)), false, vec![]);
        self.levels(&mut em, members, &inner, true, Some(&place))?;
        let first = em.finish_nest(Sym::new("p"), chunks.clone());
        let mut nests = vec![first];
        nests.push(self.combine_columns(&cols, &inner, &chunks, &row_len, &linear)?);
        Ok(Lowered { nests, partials })
    }

    fn combine_columns(&self, cols: &[&Member], inner: &[Axis], chunks: &Expr, row_len: &Expr, linear: &Expr) -> Result<FinishedNest, Error> {
        let mut em = Emitter::new(self.a, self.group.bounds(self.facts), BTreeSet::new(), Sym::new("p"));
        self.hold_others(&mut em, &[inner]);
        let (lead, last) = (&inner[..inner.len() - 1], &inner[inner.len() - 1]);
        let block = Expr::int(1024);
        let blocks = (&last.extent + &Expr::int(1023)).floordiv(&block);
        let extent = Expr::product(lead.iter().map(|a| &a.extent)) * &blocks;
        let pe = Expr::sym("p");
        em.declare(&Sym::new("p"), extent.clone());
        self.decode(&mut em, lead, &pe.floordiv(&blocks));
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
        Ok(em.finish_nest(Sym::new("p"), extent))
    }

    fn split(&self, members: &[Member], uses: &mut Uses, outer: &[usize], inner: &[usize]) -> Result<Lowered, Error> {
        let order = uses.order(outer, false, self.facts);
        let outer = uses.merge(&order, &self.group.space, self.facts);
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
        self.decode(&mut em, &outer, &pe.floordiv(&chunks));
        let chunk = if outer.is_empty() { pe.clone() } else { pe.modulo(&chunks) };
        let begin = &chunk * &per;
        let range = (begin.clone(), head.minimum(&(&begin + &per)));
        let reductions: Vec<&Member> = members.iter().filter(|m| m.role == Role::Row).collect();
        let accs: Vec<Acc> = reductions.iter().map(|m| self.acc(&mut em, m)).collect();
        self.open_axes_from(&mut em, &inner, "i", true, accs.clone(), Some(range));
        for m in members.iter().filter(|m| m.role != Role::Outer) {
            let r = self.evaluate(&mut em, m)?;
            if let Some(k) = reductions.iter().position(|x| x.item.value == m.item.value && m.role == Role::Row) {
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
        self.decode(&mut em, &outer, &pe);
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

    fn reduction(&self, m: &Member) -> (ReduceOp, DType) {
        let op = m.item.reduce.as_ref().map_or(ReduceOp::Sum, |(op, _)| *op);
        let x = self.a.graph.def(m.item.value).inputs[0];
        (op, self.a.graph.tensor(x).dtype.compute())
    }

    fn acc(&self, em: &mut Emitter<'a, '_>, m: &Member) -> Acc {
        let (op, dtype) = self.reduction(m);
        em.acc(op, dtype)
    }

    fn open_axes(&self, em: &mut Emitter<'a, '_>, axes: &[Axis], prefix: &str, vector: bool, accs: Vec<Acc>) {
        self.open_axes_from(em, axes, prefix, vector, accs, None);
    }

    /// Opens a loop per axis, the last in lanes if `vector`; the outermost owns `accs` and may run
    /// over a part of its range.
    fn open_axes_from(&self, em: &mut Emitter<'a, '_>, axes: &[Axis], prefix: &str, vector: bool, accs: Vec<Acc>, range: Option<(Expr, Expr)>) {
        let mut accs = Some(accs);
        let mut range = range;
        for (k, ax) in axes.iter().enumerate() {
            // Names repeat from level to level; loops of one name never nest.
            let var = Sym::new(&format!("i{prefix}{k}"));
            em.declare(&var, ax.extent.clone());
            em.place_var(space_var(ax.dim), Expr::sym(var.name()));
            let (begin, end) = range.take().unwrap_or((Expr::ZERO, ax.extent.clone()));
            em.open(var, begin, end, vector && k + 1 == axes.len(), accs.take().unwrap_or_default());
        }
    }

    /// All levels of a row: once-per-row members, then a loop over the row, and again.
    fn levels(&self, em: &mut Emitter<'a, '_>, members: &[Member], inner: &[Axis], vector: bool, partial: Option<&Expr>) -> Result<(), Error> {
        let last = members.iter().map(|m| m.level).max().unwrap_or(0);
        let row_len = Expr::product(inner.iter().map(|a| &a.extent));
        let linear = linear_of(inner);
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
                .filter(|m| m.level == level && m.role != Role::Outer && (m.role != Role::Full || m.store || m.keep))
                .collect();
            if here.is_empty() {
                continue;
            }
            let reductions: Vec<&Member> = here.iter().copied().filter(|m| m.role == Role::Row).collect();
            let accs: Vec<Acc> = reductions.iter().map(|m| self.acc(em, m)).collect();
            self.open_axes(em, inner, &format!("{}_", char::from(b'a' + (level % 26) as u8)), vector, accs.clone());
            let kept = self.level(em, members, level, &accs, partial.map(|p| (p, &row_len, &linear)))?;
            for _ in inner {
                em.close();
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
    fn level(&self, em: &mut Emitter<'a, '_>, members: &[Member], level: usize, accs: &[Acc], partial: Option<(&Expr, &Expr, &Expr)>) -> Result<Vec<(ValueId, Mem, Expr)>, Error> {
        let mut kept = vec![];
        let mut next = 0;
        for m in members.iter().filter(|m| m.level == level && m.role != Role::Outer) {
            match m.role {
                Role::Row => {
                    let r = self.evaluate(em, m)?;
                    let acc = &accs[next];
                    next += 1;
                    let index = acc.op.is_arg().then(|| self.position(em, m));
                    em.update(acc.id, r, index);
                }
                Role::Col => {
                    let Some((place, _, _)) = partial else {
                        return Err(Error::Internal("a column reduction outside of columns".into()));
                    };
                    let r = self.evaluate(em, m)?;
                    let (op, dtype) = self.reduction(m);
                    let mem = em.param(Memory::Partial(m.item.value), dtype, false);
                    em.param(Memory::Partial(m.item.value), dtype, true);
                    let before = em.load_here(mem, dtype, place);
                    let after = em.pw(combining(op), vec![before, r], dtype);
                    em.store(mem, place, after, None);
                }
                _ => {
                    if !m.store && !m.keep {
                        continue;
                    }
                    let r = self.evaluate(em, m)?;
                    if m.store {
                        self.store(em, m, r);
                    }
                    if m.keep {
                        kept.push(self.keep(em, m, r));
                    }
                }
            }
        }
        Ok(kept)
    }

    fn keep(&self, em: &mut Emitter<'a, '_>, m: &Member, r: Reg) -> (ValueId, Mem, Expr) {
        let v = m.item.value;
        let ty = self.a.graph.tensor(v);
        if m.store {
            let mem = em.param(Memory::Value(v), ty.dtype, false);
            return (v, mem, dot(&m.result, &ty.strides));
        }
        let rows = self.group.rows.clone().unwrap_or_default();
        let (mut len, mut flat) = (Expr::ONE, Expr::ZERO);
        for d in (0..rows.len()).rev().filter(|&d| rows[d]) {
            flat = flat + Expr::sym(space_var(d).name()) * &len;
            len = &len * &self.group.space[d];
        }
        let mem = em.scratch(ty.dtype, len);
        em.store(mem, &flat, r, None);
        (v, mem, flat)
    }

    /// Row-major position within the reduced dims.
    fn position(&self, em: &mut Emitter<'a, '_>, m: &Member) -> Reg {
        let mut e = Expr::ZERO;
        if let Some((_, mask)) = &m.item.reduce {
            for ((c, extent), _) in m.domain.iter().zip(&m.item.domain).zip(mask).filter(|(_, r)| **r) {
                e = e * extent + c;
            }
        }
        em.expr(&e, DType::I64)
    }
}

/// The row-major linear index of the axes' space variables.
fn linear_of(axes: &[Axis]) -> Expr {
    axes.iter().fold(Expr::ZERO, |e, a| e * &a.extent + Expr::sym(space_var(a.dim).name()))
}

fn combining(op: ReduceOp) -> PwOp {
    match op {
        ReduceOp::Prod => PwOp::Mul,
        ReduceOp::Max | ReduceOp::ArgMax => PwOp::Maximum,
        ReduceOp::Min | ReduceOp::ArgMin => PwOp::Minimum,
        ReduceOp::Any => PwOp::Or,
        ReduceOp::All => PwOp::And,
        ReduceOp::Sum => PwOp::Add,
    }
}

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

/// The nest that adds rows (`Op::EmbeddingGrad`): parallel over blocks of columns, so that every
/// element is added to in ascending order by one thread.
pub fn embedding_grad(a: &Analysis, v: ValueId) -> Result<FinishedNest, Error> {
    let g = a.graph;
    let node = g.def(v);
    let Op::EmbeddingGrad { padding_idx } = node.op else {
        return Err(Error::Internal("not an embedding gradient".into()));
    };
    let (grad, index) = (node.inputs[0], node.inputs[1]);
    let ty = g.tensor(v).clone();
    let (rows, cols) = (ty.shape[0].clone(), ty.shape[1].clone());
    let bounds = Bounds { facts: g.facts.clone(), ..Bounds::default() };
    let mut em = Emitter::new(a, bounds, BTreeSet::new(), Sym::new("p"));
    let block = Expr::int(64);
    let extent = (&cols + &Expr::int(63)).floordiv(&block);
    let begin = Expr::sym("p") * &block;
    let end = cols.minimum(&(&begin + &block));
    em.declare(&Sym::new("p"), extent.clone());
    for (name, e) in [("i0", &cols), ("i1", &rows), ("i2", &cols)] {
        em.declare(&Sym::new(name), e.clone());
    }
    let out = em.param(Memory::Value(v), ty.dtype, true);
    em.param(Memory::Value(v), ty.dtype, false);
    em.open(Sym::new("i1"), Expr::ZERO, rows.clone(), false, vec![]);
    em.open(Sym::new("i2"), begin.clone(), end.clone(), true, vec![]);
    let zero = em.constant(Scalar::Int(0), ty.dtype);
    em.store(out, &dot(&[Expr::sym("i1"), Expr::sym("i2")], &ty.strides), zero, None);
    em.close();
    em.close();
    let shape = g.tensor(index).shape.clone();
    let mut at = vec![];
    for (k, e) in shape.iter().enumerate() {
        let var = Sym::new(&format!("i{}", 3 + k));
        em.declare(&var, e.clone());
        at.push(Expr::sym(var.name()));
        em.open(var, Expr::ZERO, e.clone(), false, vec![]);
    }
    let i = em.value(index, &at, None)?;
    let i = em.convert(i, DType::I64);
    let counts = (padding_idx >= 0).then(|| {
        let padding = em.constant(Scalar::Int(padding_idx), DType::I64);
        em.pw(PwOp::Ne, vec![i, padding], DType::Bool)
    });
    let (row, mask) = em.checked_index(i, &rows, false, counts, "index out of range in self");
    em.open(Sym::new("i0"), begin, end, true, vec![]);
    at.push(Expr::sym("i0"));
    let x = em.value(grad, &at, None)?;
    let compute = ty.dtype.compute();
    let x = em.convert(x, compute);
    let place = dot(&[row, Expr::sym("i0")], &ty.strides);
    let before = em.load_here(out, ty.dtype, &place);
    let before = em.convert(before, compute);
    let sum = em.pw(PwOp::Add, vec![before, x], compute);
    let sum = em.convert(sum, ty.dtype);
    em.store(out, &place, sum, mask);
    Ok(em.finish_nest(Sym::new("p"), extent))
}
