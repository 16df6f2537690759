//! The forms of scans: one loop walks the row in order and carries the running values. Lanes run
//! along the row where it is contiguous (a prefix within the vector, then the carry), across rows
//! where it is not, and very short rows are walked element by element. Few long rows are walked in
//! pieces: first what each piece comes to, then every piece from what the pieces before it come to.

use super::{Lowered, Lowering, Member, decode};
use crate::axes::{Axis, Uses};
use crate::emit::{Emitter, Known, Memory};
use crate::error::Error;
use crate::fuse::{Role, space_var};
use crate::items::Dest;
use crate::loopnest::{AccId, Reg};
use lj_ir::{Expr, ReduceOp, ScanOp, Sym};

/// Rows at least this long are cut into pieces if there are too few to go round.
const LONG: f64 = 32768.0;
/// Rows shorter than this are walked element by element.
const SHORT: f64 = 8.0;

impl<'a> Lowering<'a, '_> {
    pub(super) fn scans(
        &self,
        members: &[Member],
        uses: &mut Uses,
        outer: &[usize],
        inner: &[usize],
        vector: Option<usize>,
    ) -> Result<Lowered, Error> {
        let rows = self.group.rows.as_deref().unwrap_or_default();
        let along = vector.is_none_or(|v| rows[v]);
        if !along {
            let nest = self.lanes(members, uses, outer, inner, vector)?;
            return Ok(Lowered { nests: vec![nest], partials: vec![] });
        }
        let few = self.hint(outer) < 2.0 * self.threads as f64;
        if few && self.hint(inner) >= LONG && pieces_fit(members) {
            return self.pieces(members, uses, outer, inner);
        }
        Ok(Lowered {
            nests: vec![self.rows(members, uses, outer, inner, self.hint(inner) >= SHORT)?],
            partials: vec![],
        })
    }

    /// The running value of a scan at its place in the loop, as its result's dtype, and its carry.
    /// Other members find it as long as the loop is open.
    pub(super) fn running(
        &self,
        em: &mut Emitter<'a, '_>,
        m: &Member,
        init: Option<Reg>,
    ) -> Result<(Reg, AccId), Error> {
        let Some((op, ..)) = m.item.scan else {
            return Err(Error::Internal(format!("{} is no scan", m.item.value)));
        };
        let r = self.evaluate(em, m)?;
        let (r, carry) = em.scan(op, r, init);
        let r = em.convert(r, self.a.graph.tensor(m.item.value).dtype);
        em.known.insert(m.item.value, Known::Reg(r));
        Ok((r, carry))
    }

    fn pieces(
        &self,
        members: &[Member],
        uses: &mut Uses,
        outer: &[usize],
        inner: &[usize],
    ) -> Result<Lowered, Error> {
        let outer = self.outer_axes(uses, outer);
        let axis = self.inner_axes(uses, inner).remove(0);
        let chunks = self.facts.simplify(&self.chunks(&axis.extent));
        let per = (&axis.extent + &chunks - Expr::ONE).floordiv(&chunks);
        let extent = Expr::product(outer.iter().map(|a| &a.extent)) * &chunks;
        let pe = Expr::sym("p");
        let chunk = if outer.is_empty() { pe.clone() } else { pe.modulo(&chunks) };
        let walk = Walk { outer: &outer, axis: &axis, chunks: &chunks, chunk: &chunk, per: &per };
        let scans = || members.iter().filter_map(|m| m.item.scan.map(|(op, ..)| (m, op)));
        let dtype = |m: &Member| self.a.graph.tensor(self.a.graph.def(m.item.value).inputs[0]).dtype;

        let mut em = self.emitter(members);
        self.start(&mut em, &walk, &extent);
        walk.open(&mut em);
        let mut ends = vec![];
        let mut partials = vec![];
        for (m, op) in scans() {
            // A sum does not need the values between.
            ends.push(if op == ScanOp::Sum {
                let r = self.evaluate(&mut em, m)?;
                let acc = em.acc(ReduceOp::Sum, dtype(m));
                em.own(acc.clone());
                em.update(acc.id, r, None);
                acc.id
            } else {
                self.running(&mut em, m, None)?.1
            });
            em.known.remove(&m.item.value);
            partials.push((m.item.value, dtype(m), extent.clone()));
        }
        em.close();
        for ((m, _), end) in scans().zip(ends) {
            let r = em.carried(end, dtype(m));
            let mem = em.param(Memory::Partial(m.item.value), dtype(m), true);
            em.store(mem, &pe, r, None);
        }
        let first = em.finish_nest(Sym::new("p"), extent.clone());

        let mut em = self.emitter(members);
        self.start(&mut em, &walk, &extent);
        em.declare(&Sym::new("i1"), chunks.clone());
        em.open(Sym::new("i1"), Expr::ZERO, chunk.clone(), false, vec![]);
        let mut before = vec![];
        for (m, op) in scans() {
            let mem = em.param(Memory::Partial(m.item.value), dtype(m), false);
            let place = pe.floordiv(&chunks) * &chunks + Expr::sym("i1");
            let place = if outer.is_empty() { Expr::sym("i1") } else { place };
            let r = em.load(mem, dtype(m), &place, None);
            before.push(em.scan(op, r, None).1);
        }
        em.close();
        let mut inits = vec![];
        for ((m, _), carry) in scans().zip(before) {
            inits.push(em.carried(carry, dtype(m)));
        }
        let mut inits = inits.into_iter();
        walk.open(&mut em);
        for m in members {
            let r = match m.item.scan {
                Some(_) => self.running(&mut em, m, inits.next())?.0,
                None if m.store => self.evaluate(&mut em, m)?,
                None => continue,
            };
            if m.store {
                self.store(&mut em, m, r);
            }
        }
        em.close();
        let second = em.finish_nest(Sym::new("p"), extent);
        Ok(Lowered { nests: vec![first, second], partials })
    }

    /// Places the dims that are not scanned, and none but those.
    fn start(&self, em: &mut Emitter<'a, '_>, walk: &Walk<'_>, extent: &Expr) {
        self.hold_others(em, &[walk.outer, std::slice::from_ref(walk.axis)]);
        em.declare(&Sym::new("p"), extent.clone());
        decode(em, walk.outer, &Expr::sym("p").floordiv(walk.chunks));
    }
}

/// Whether rows can be walked in pieces: nothing but values and scans of what comes from outside.
fn pieces_fit(members: &[Member]) -> bool {
    let own = |v| members.iter().any(|m| m.item.value == v && m.item.dest == Dest::Own);
    members.iter().all(|m| match m.role {
        Role::Scan => !m.item.reads.iter().any(|(v, _)| own(*v)),
        role => role == Role::Full,
    })
}

/// Rows in pieces.
struct Walk<'e> {
    outer: &'e [Axis],
    axis: &'e Axis,
    /// Number of pieces, which piece is walked, and its length.
    chunks: &'e Expr,
    chunk: &'e Expr,
    per: &'e Expr,
}

impl Walk<'_> {
    /// Opens the loop over a piece.
    fn open(&self, em: &mut Emitter) {
        let begin = self.chunk * self.per;
        let end = self.axis.extent.minimum(&(&begin + self.per));
        em.declare(&Sym::new("i0"), self.axis.extent.clone());
        em.place_var(space_var(self.axis.dim), self.axis.at(Expr::sym("i0")));
        em.open(Sym::new("i0"), begin, end, true, vec![]);
    }
}
