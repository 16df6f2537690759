//! The pointwise form, and its tiled variant for transposing copies.

use super::rows::Row;
use super::{BLOCK, Lowering, Member, decode};
use crate::axes::{Axis, Uses};
use crate::emit::{Emitter, FinishedNest};
use crate::error::Error;
use crate::fuse::space_var;
use lj_ir::{Expr, Sym};

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
        em.declare(&Sym::new("i0"), last.extent.clone());
        em.place_var(space_var(last.dim), var);
        em.open(Sym::new("i0"), begin, end, true, vec![]);
        self.level(&mut em, members, 0, &[], &Row::default())?;
        Ok(em.finish_nest(p, extent))
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
