//! Loops, and how they carry accumulators.
//!
//! **Vector loops** run `lanes × copies` iterations at a time: a varying register is `copies` vectors
//! of `lanes` elements, and each statement is emitted once per copy. Several copies give independent
//! accumulators, and inner serial loops of such a body are jammed. What is left over runs in a
//! second, masked loop with one copy.
//!
//! **Loops** are guarded and tested at the bottom. Accumulators are carried through them as phis.

use crate::ir::{IPred, K, V};
use crate::nest::{Gen, Scope, VecLoop};
use crate::{Error, check};
use lj_ir::{Expr, ReduceOp};
use lj_schedule::loopnest::{AccId, Def, Loop, Stmt};
use std::collections::BTreeSet;

/// The iterations of one emitted loop.
struct Range {
    lo: V,
    hi: V,
    step: i64,
    /// At most one iteration.
    single: bool,
    /// At least one iteration.
    nonempty: bool,
    /// Number of iterations, if known.
    trips: Option<i64>,
}

/// Iterations after which a float sum goes to a second accumulator, to bound the rounding error.
const CASCADE: i64 = 64;

type Body<'b, 'a, 'c> = &'b mut dyn FnMut(&mut Gen<'a, 'c>, V) -> Result<(), Error>;

impl<'a, 'c> Gen<'a, 'c> {
    /// The loop over `lo..hi` of the parallel variable, which is the whole nest.
    pub(crate) fn parallel_loop(&mut self, lo: V, hi: V) -> Result<(), Error> {
        let nest = self.nest;
        let range = Range { lo, hi, step: 1, single: false, nonempty: false, trips: None };
        self.range(&range, &[], &mut |g, v| {
            g.bind(&nest.parallel, v);
            g.block(&nest.body)?;
            g.vars.pop();
            Ok(())
        })
    }

    pub(crate) fn serial_loop(&mut self, l: &Loop) -> Result<(), Error> {
        for a in &l.accs {
            let copies = match &self.vector {
                Some(v) => v.copies,
                // Updated in vector loops inside: kept in lanes until this loop ends.
                None => vector_loops(&l.body)
                    .into_iter()
                    .filter(|v| updated(&v.body).contains(&a.id))
                    .map(|v| self.copies_for(v))
                    .max()
                    .unwrap_or(0),
            };
            let per_lane = self.vector.is_some();
            self.start_acc(a, copies, per_lane);
        }
        self.start_carries(l)?;
        let trips = (&l.end - &l.begin).as_int();
        if trips.is_none_or(|n| n > 0) {
            let range = Range {
                lo: self.scalar(&l.begin)?,
                hi: self.scalar(&l.end)?,
                step: 1,
                single: trips == Some(1),
                nonempty: trips.is_some_and(|n| n > 0),
                trips,
            };
            self.carried_range(&range, l, &mut |g, v| {
                g.bind(&l.var, v);
                g.block(&l.body)?;
                g.vars.pop();
                Ok(())
            })?;
        }
        self.finish_carries(l);
        l.accs.iter().try_for_each(|a| self.finish_acc(a))
    }

    pub(crate) fn vector_loop(&mut self, l: &Loop) -> Result<(), Error> {
        if self.vector.is_some() {
            return self.unsupported("a vector loop inside a vector loop");
        }
        let copies = self.copies_for(l);
        for a in &l.accs {
            self.start_acc(a, copies, false);
        }
        self.start_carries(l)?;
        let lanes = i64::from(self.lanes);
        let step = lanes * copies as i64;
        let extent = &l.end - &l.begin;
        let (lo, hi) = (self.scalar(&l.begin)?, self.scalar(&l.end)?);
        let known = extent.as_int().map(|n| n.max(0));
        let ir = self.ir;
        let split = if let Some(n) = known {
            self.scalar(&(&l.begin + &Expr::int(n / step * step)))?
        } else {
            let zero = ir.int(K::I64, 0, 0);
            let n = ir.sub(hi, lo);
            let n = ir.select(ir.icmp(IPred::LLVMIntSGT, n, zero), n, zero);
            ir.add(lo, ir.and(n, ir.int(K::I64, 0, -step)))
        };
        let main = known.map(|n| n / step);
        if main != Some(0) {
            let nonempty = main.is_some();
            let range = Range { lo, hi: split, step, single: main == Some(1), nonempty, trips: main };
            self.lane_loop(l, &range, copies)?;
        }
        let rest = known.map(|n| n % step);
        if rest != Some(0) {
            let single = copies == 1 || rest.is_some_and(|r| r <= lanes);
            let range = Range {
                lo: split,
                hi,
                step: lanes,
                single,
                nonempty: rest.is_some(),
                trips: Some(rest.map_or(copies as i64, |r| (r + lanes - 1) / lanes)),
            };
            self.lane_loop(l, &range, 0)?;
        }
        self.finish_carries(l);
        l.accs.iter().try_for_each(|a| self.finish_acc(a))
    }

    /// One emission of a vector loop: with `copies`, or, if that is 0, one masked copy.
    fn lane_loop(&mut self, l: &Loop, range: &Range, copies: usize) -> Result<(), Error> {
        let hi = range.hi;
        self.carried_range(range, l, &mut |g, v| {
            g.bind(&l.var, v);
            let mask = (copies == 0).then(|| {
                let (ir, lanes) = (g.ir, g.lanes);
                let left = ir.trunc(ir.sub(hi, v), ir.ty(K::I32, 0));
                ir.icmp(IPred::LLVMIntULT, ir.iota(K::I32, lanes, 0, 1), ir.splat(left, lanes))
            });
            g.vector = Some(VecLoop { var: l.var.clone(), copies: copies.max(1), mask });
            let done = g.block(&l.body);
            g.vector = None;
            g.vars.pop();
            done
        })
    }

    /// A loop that carries the accumulators its body updates. Long float sums cascade, as eager's do:
    /// [`CASCADE`] iterations are summed from zero and then added to what came before, and so on for
    /// runs of runs.
    fn carried_range(&mut self, r: &Range, l: &Loop, body: Body<'_, 'a, 'c>) -> Result<(), Error> {
        let carried: Vec<AccId> = updated(&l.body).into_iter().filter(|a| self.lives(*a)).collect();
        let sums: Vec<AccId> = carried
            .iter()
            .copied()
            .filter(|a| self.accs.get(a).is_some_and(|s| s.op == ReduceOp::Sum && s.dtype.is_float()))
            .collect();
        // A sum of an outer loop is also summed from zero in each inner loop, unless that is short.
        let outer = sums.iter().any(|a| !l.accs.iter().any(|o| o.id == *a));
        let apart = outer && r.trips.is_none_or(|n| n > 8);
        let runs: Vec<i64> = if sums.is_empty() {
            vec![]
        } else {
            let longest = if l.vector { 2 } else { 3 };
            (1..=longest).rev().map(|i| CASCADE.pow(i)).filter(|&n| r.trips.is_none_or(|t| t > n)).collect()
        };
        let before = if apart { self.set_aside(&sums) } else { vec![] };
        self.cascade(r, &runs, &carried, &sums, body)?;
        self.add_back(before);
        Ok(())
    }

    /// The loop `r`, split into runs of the lengths `runs` (in iterations, longest first).
    fn cascade(
        &mut self,
        r: &Range,
        runs: &[i64],
        carried: &[AccId],
        sums: &[AccId],
        body: Body<'_, 'a, 'c>,
    ) -> Result<(), Error> {
        let Some((run, rest)) = runs.split_first() else { return self.range(r, carried, body) };
        let (step, hi) = (r.step, r.hi);
        let chunk = step * run;
        let chunks = Range { lo: r.lo, hi, step: chunk, single: false, nonempty: r.nonempty, trips: None };
        self.range(&chunks, carried, &mut |g, lo| {
            let before = g.set_aside(sums);
            let end = g.ir.add(lo, g.ir.int(K::I64, 0, chunk));
            let end = g.ir.select(g.ir.icmp(IPred::LLVMIntSLT, end, hi), end, hi);
            let inner = Range { lo, hi: end, step, single: false, nonempty: true, trips: None };
            g.cascade(&inner, rest, carried, sums, body)?;
            g.add_back(before);
            Ok(())
        })
    }

    /// Emits `for v in lo..hi step step { body }`.
    fn range(&mut self, r: &Range, carried: &[AccId], body: Body<'_, 'a, 'c>) -> Result<(), Error> {
        let ir = self.ir;
        let (top, exit) = (ir.block("loop"), ir.block("done"));
        let outer = self.depth();
        let before = ir.current();
        if r.nonempty {
            ir.br(top);
        } else {
            ir.cond_br(ir.icmp(IPred::LLVMIntSLT, r.lo, r.hi), top, exit);
        }
        let saved = self.scopes[outer].open.replace(before);
        debug_assert!(saved.is_none());
        self.scopes.push(Scope::default());
        ir.at_end(top);
        let initial = self.carried_values(carried);
        let mut phis = vec![];
        let mut var = r.lo;
        if !r.single {
            var = ir.phi(ir.type_of(r.lo));
            ir.incoming(var, r.lo, before);
            for &v in &initial {
                let p = ir.phi(ir.type_of(v));
                ir.incoming(p, v, before);
                phis.push(p);
            }
            self.set_carried(carried, &phis);
        }
        body(self, var)?;
        let last = ir.current();
        let finals = self.carried_values(carried);
        if r.single {
            ir.br(exit);
        } else {
            let next = ir.add(var, ir.int(K::I64, 0, r.step));
            ir.cond_br(ir.icmp(IPred::LLVMIntSLT, next, r.hi), top, exit);
            ir.incoming(var, next, last);
            for (&p, &v) in phis.iter().zip(&finals) {
                ir.incoming(p, v, last);
            }
        }
        self.scopes.pop();
        self.scopes[outer].open = None;
        ir.at_end(exit);
        if !r.nonempty {
            let mut out = vec![];
            for (&a, &b) in initial.iter().zip(&finals) {
                let p = ir.phi(ir.type_of(a));
                ir.incoming(p, a, before);
                ir.incoming(p, b, last);
                out.push(p);
            }
            self.set_carried(carried, &out);
        }
        Ok(())
    }

    /// How many vectors an iteration of vector loop `l` should handle.
    fn copies_for(&self, l: &Loop) -> usize {
        let cost = check::cost(&l.body);
        let reduces = !updated(&l.body).is_empty();
        let mut copies = match (reduces, cost) {
            (true, ..=8) => 4,
            (true, ..=16) => 2,
            (false, ..=4) => 2,
            _ => 1,
        };
        if let Some(n) = (&l.end - &l.begin).as_int() {
            let vectors = n / i64::from(self.lanes);
            while copies > 1
                && (vectors < copies || (copies > 2 && vectors % copies != 0 && vectors % 2 == 0))
            {
                copies /= 2;
            }
        }
        copies as usize
    }
}

/// Accumulators and carries updated in `body`, in order.
pub(crate) fn updated(body: &[Stmt]) -> BTreeSet<AccId> {
    let mut out = BTreeSet::new();
    for s in body {
        match s {
            Stmt::Update { acc, .. } | Stmt::Let { def: Def::Scan { carry: acc, .. }, .. } => {
                out.insert(*acc);
            }
            Stmt::For(l) => out.extend(updated(&l.body)),
            _ => {}
        }
    }
    out
}

/// The vector loops in `body`.
fn vector_loops(body: &[Stmt]) -> Vec<&Loop> {
    let mut out = vec![];
    for s in body {
        if let Stmt::For(l) = s {
            if l.vector {
                out.push(l);
            } else {
                out.extend(vector_loops(&l.body));
            }
        }
    }
    out
}
