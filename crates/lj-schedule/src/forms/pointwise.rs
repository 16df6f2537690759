//! The pointwise form, and its tiled variant for transposing copies.

use super::rows::Row;
use super::{BLOCK, Lowering, Member, decode};
use crate::axes::{Axis, Uses};
use crate::emit::{Emitter, FinishedNest};
use crate::error::Error;
use crate::fuse::space_var;
use lj_ir::{Expr, Sym};

/// Phases of the innermost loop at most.
const MAX_PHASES: i64 = 8;
/// Iterations of the innermost loop that are run apart at either end, at most.
const MAX_BORDER: i64 = 16;
/// Additions that all phases together may cost.
const MAX_UNROLLED: i64 = 400;

impl<'a> Lowering<'a, '_> {
    pub(super) fn pointwise(
        &self,
        members: &[Member],
        mut uses: Uses,
        all: &[usize],
    ) -> Result<FinishedNest, Error> {
        let order = uses.order(all, true, self.facts);
        let axes = uses.merge(&order, &self.group.space, self.facts);
        let mut em = self.emitter(members);
        self.hold_others(&mut em, &[&axes]);
        let p = Sym::new("p");
        let pe = Expr::sym("p");
        let Some((last, lead)) = axes.split_last() else {
            self.level(&mut em, members, 0, &[], &Row::default())?;
            return Ok(em.finish_nest(p, Expr::ONE));
        };
        let total = self.facts.hint(&Expr::product(axes.iter().map(|a| &a.extent)));
        let dims: Vec<usize> = axes.iter().map(|a| a.dim).collect();
        if let Some(across) = uses.transposed_dim(&dims, last.dim, self.facts).filter(|_| total > 4096) {
            return self.tiled(em, members, &axes, across);
        }
        let phases = self.phases(members, &uses, last);
        let whole = &last.extent;
        let count = (whole + &Expr::int(phases - 1)).floordiv(&Expr::int(phases));
        let last = &Axis { dim: last.dim, extent: count, reverse: last.reverse };
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
            let (o, b) = if taken == 0 {
                (Expr::ZERO, pe.clone())
            } else {
                (pe.floordiv(&blocks), pe.modulo(&blocks))
            };
            decode(&mut em, &lead[..taken], &o);
            let begin = &b * &Expr::int(BLOCK);
            let end = last.extent.minimum(&(&begin + &Expr::int(BLOCK)));
            (&outer * &blocks, begin, end)
        } else {
            decode(&mut em, &lead[..taken], &pe);
            (outer, Expr::ZERO, last.extent.clone())
        };
        em.declare(&p, extent.clone());
        for (k, ax) in lead[taken..].iter().enumerate() {
            let v = Sym::new(&format!("i{}", k + 1));
            em.declare(&v, ax.extent.clone());
            em.place_var(space_var(ax.dim), Expr::sym(v.name()));
            em.open(v, Expr::ZERO, ax.extent.clone(), false, vec![]);
        }
        let (low, high) = if long { (0, 0) } else { self.borders(&em, &uses, last, phases) };
        let segments = if (low, high) == (0, 0) {
            vec![(Expr::ZERO, last.extent.clone(), begin, end)]
        } else {
            let (low, high) = (Expr::int(low), Expr::int(high));
            let middle = &last.extent - &low - &high;
            let segment = |from: Expr, n: &Expr| (from, n.clone(), Expr::ZERO, n.clone());
            vec![
                segment(Expr::ZERO, &low),
                segment(low.clone(), &middle),
                segment(&last.extent - &high, &high),
            ]
        };
        for (k, (from, count, begin, end)) in segments.into_iter().enumerate().filter(|(_, s)| !s.1.is(0)) {
            let var = Sym::new(["i0", "i0b", "i0c"][k]);
            // Two or three elements are sooner done one by one.
            let lanes = k == 1 || count.as_int().is_none_or(|n| n > 3) || (low, high) == (0, 0);
            em.declare(&var, count);
            em.open(var.clone(), begin, end, lanes, vec![]);
            for r in 0..phases {
                let x = (&from + &Expr::sym(var.name())) * Expr::int(phases) + Expr::int(r);
                em.place_var(space_var(last.dim), x);
                // The extent need not be a multiple.
                let x = Expr::sym(space_var(last.dim).name());
                let mask = if phases == 1 { None } else { em.and_in_range(None, &x, Some(whole)) };
                for m in members.iter().filter(|m| m.store) {
                    let r = em.value(m.item.value, &m.domain, mask)?;
                    self.store_where(&mut em, m, r, mask);
                }
            }
            em.close();
        }
        Ok(em.finish_nest(p, extent))
    }

    /// Elements of the innermost loop that one iteration should compute: where subscripts divide the
    /// loop's variable by `n` (an enlarged image, the gradient of a strided window), lanes over every
    /// `n`-th element have no division left, and what they read is contiguous.
    fn phases(&self, members: &[Member], uses: &Uses, last: &Axis) -> i64 {
        let n = uses.period(last.dim);
        let cost: u32 = members.iter().map(|m| self.a.cost[m.item.value.index()]).sum();
        let fits = (2..=MAX_PHASES).contains(&n)
            && i64::from(cost) * n <= MAX_UNROLLED
            && self.facts.hint(&last.extent) >= 8 * n;
        if fits { n } else { 1 }
    }

    /// How many iterations at the beginning and at the end of the innermost loop to run apart, so
    /// that in the others every minimum and maximum of subscripts (an edge that is repeated or
    /// reflected) is decided.
    fn borders(&self, em: &Emitter<'a, '_>, uses: &Uses, last: &Axis, phases: i64) -> (i64, i64) {
        let var = Sym::new("i0");
        let mut bounds = em.bounds.clone();
        let (mut low, mut high) = (0, 0);
        // What is nested in a decided minimum is seen in the next round.
        for _ in 0..4 {
            let rest = &last.extent - &Expr::int(low + high);
            bounds.extents.insert(var.clone(), rest);
            let (a, b) = (0..phases).fold((0, 0), |(a, b), r| {
                let i = Expr::sym("i0") + Expr::int(low);
                let x = i * Expr::int(phases) + Expr::int(r);
                let (c, d) = uses.borders(last.dim, &x, &var, &bounds);
                (a.max(c), b.max(d))
            });
            if (a, b) == (0, 0) {
                break;
            }
            (low, high) = (low + a, high + b);
        }
        let fits = low + high > 0
            && low.max(high) <= MAX_BORDER
            && self.facts.ge(&last.extent, &Expr::int(low + high))
            && self.facts.hint(&last.extent) >= 16 + low + high;
        if fits { (low, high) } else { (0, 0) }
    }

    /// A transposing copy: tiles of 16 by 128, so that lines stay in cache while they are needed.
    pub(super) fn tiled(
        &self,
        mut em: Emitter<'a, '_>,
        members: &[Member],
        axes: &[Axis],
        across: usize,
    ) -> Result<FinishedNest, Error> {
        let (tile_across, tile_along) = (Expr::int(16), Expr::int(128));
        let last = &axes[axes.len() - 1];
        let cross = axes.iter().find(|a| a.dim == across).unwrap_or(last);
        let rest: Vec<Axis> = axes[..axes.len() - 1].iter().filter(|a| a.dim != across).cloned().collect();
        let blocks = (&cross.extent + &Expr::int(15)).floordiv(&tile_across);
        let extent = Expr::product(rest.iter().map(|a| &a.extent)) * &blocks;
        let (p, pe) = (Sym::new("p"), Expr::sym("p"));
        em.declare(&p, extent.clone());
        decode(&mut em, &rest, &pe.floordiv(&blocks));
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
        self.level(&mut em, members, 0, &[], &Row::default())?;
        Ok(em.finish_nest(p, extent))
    }
}
