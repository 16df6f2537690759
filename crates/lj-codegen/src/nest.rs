//! Functions, loops and statements.
//!
//! **Scopes.** Scope 0 is the function's entry, scope 1 an iteration of the parallel loop, and so on
//! inwards. Code for scope `d` that is asked for while a deeper scope is being emitted goes to the
//! end of scope `d`'s open block, before its branch into the inner loop: that is how invariant code
//! leaves loops.
//!
//! **Vector loops** run `lanes × copies` iterations at a time: a varying register is `copies` vectors
//! of `lanes` elements, and each statement is emitted once per copy. Several copies give independent
//! accumulators, and inner serial loops of such a body are jammed. What is left over runs in a
//! second, masked loop with one copy.
//!
//! **Loops** are guarded and tested at the bottom. Accumulators are carried through them as phis.

use crate::acc::AccState;
use crate::ir::{Block, IPred, Ir, K, V};
use crate::target::Target;
use crate::{Error, check};
use lj_ir::{DType, Expr, PwOp, ReduceOp, Sym};
use lj_schedule::loopnest::{AccId, Def, Loop, LoopNest, Reg, Stmt};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A register's or accumulator's value.
#[derive(Clone, Debug)]
pub(crate) enum Val {
    /// One scalar, the same for all lanes.
    One(V),
    /// One vector per copy of the vector loop's body.
    Lanes(Vec<V>),
}

/// A defined register.
#[derive(Clone, Debug)]
pub(crate) struct RegVal {
    pub(crate) val: Val,
    pub(crate) dtype: DType,
    /// The scope it was defined in.
    pub(crate) depth: usize,
}

/// Things computed once per scope.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Memo {
    /// An expression as a scalar.
    Scalar(Expr),
    /// An expression per lane, of one copy.
    Lanes(Expr, usize),
    /// A scalar in every lane.
    Splat(V),
    /// A pointer plus an expression, in elements of so many bytes.
    Ptr(V, Expr, i64),
    /// A pointer plus a register times an expression.
    PtrReg(V, V, Expr, i64),
}

/// A scope.
#[derive(Default)]
pub(crate) struct Scope {
    /// While a deeper scope is open: the block that branches into it.
    pub(crate) open: Option<Block>,
    pub(crate) memo: HashMap<Memo, V>,
}

/// A symbol or loop variable.
pub(crate) struct Var {
    pub(crate) sym: Sym,
    pub(crate) value: V,
    pub(crate) depth: usize,
}

/// The vector loop being emitted.
#[derive(Clone)]
pub(crate) struct VecLoop {
    pub(crate) var: Sym,
    /// Number of vectors an iteration handles.
    pub(crate) copies: usize,
    /// Active lanes of the only copy, in the masked rest.
    pub(crate) mask: Option<V>,
}

/// A function being emitted.
pub(crate) struct Gen<'a, 'c> {
    pub(crate) ir: &'a Ir<'c>,
    pub(crate) nest: &'a LoopNest,
    pub(crate) target: &'a Target,
    pub(crate) lanes: u32,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) vars: Vec<Var>,
    pub(crate) regs: BTreeMap<Reg, RegVal>,
    pub(crate) consts: BTreeMap<Reg, lj_ir::Scalar>,
    pub(crate) accs: BTreeMap<AccId, AccState>,
    pub(crate) results: BTreeMap<AccId, RegVal>,
    pub(crate) vector: Option<VecLoop>,
    /// Addresses of params and of scratch rows.
    pub(crate) params: Vec<V>,
    pub(crate) scratch: Vec<V>,
    /// 64 bytes that masked-off accesses may touch.
    pub(crate) dummy: V,
    err: V,
    /// While code is moved out: the block it goes to.
    hoisting: Option<Block>,
}

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

/// Emits `nest` as the function `symbol`.
pub(crate) fn emit(ir: &Ir<'_>, nest: &LoopNest, target: &Target, symbol: &str) -> Result<(), Error> {
    let (p, i) = (ir.ty(K::Ptr, 0), ir.ty(K::I64, 0));
    let attributes = [
        ("nounwind", ""),
        ("target-cpu", target.cpu.as_str()),
        ("target-features", target.features.as_str()),
        ("min-legal-vector-width", if target.avx512() { "512" } else { "256" }),
        ("prefer-vector-width", if target.avx512() { "512" } else { "256" }),
    ];
    let args = ir.function(symbol, &[p, p, p, i, i, p], &attributes);
    ir.at_end(ir.block("entry"));
    let params = (0..nest.params.len())
        .map(|n| ir.load(p, ir.gep(p, args[0], ir.int(K::I64, 0, n as i64)), 8))
        .collect();
    let vars = nest
        .syms
        .iter()
        .enumerate()
        .map(|(n, sym)| {
            let value = ir.load(i, ir.gep(i, args[1], ir.int(K::I64, 0, n as i64)), 8);
            Var { sym: sym.clone(), value, depth: 0 }
        })
        .collect();
    let dummy = ir.alloca(ir.ty(K::I64, 8));
    let mut g = Gen {
        ir,
        nest,
        target,
        lanes: target.lanes,
        scopes: vec![Scope::default()],
        vars,
        regs: BTreeMap::new(),
        consts: BTreeMap::new(),
        accs: BTreeMap::new(),
        results: BTreeMap::new(),
        vector: None,
        params,
        scratch: vec![],
        dummy,
        err: args[5],
        hoisting: None,
    };
    let mut offset = Expr::ZERO;
    for s in &nest.scratch {
        let at = g.scalar(&offset)?;
        g.scratch.push(ir.gep(ir.ty(K::I8, 0), args[2], at));
        let bytes = &s.len * &Expr::int(s.dtype.bytes());
        let lines = (&bytes + &Expr::int(63)).floordiv(&Expr::int(64));
        offset = &offset + &(&lines * &Expr::int(64));
    }
    let range = Range { lo: args[3], hi: args[4], step: 1, single: false, nonempty: false, trips: None };
    g.range(&range, &[], &mut |g, v| {
        g.bind(&nest.parallel, v);
        g.block(&nest.body)?;
        g.vars.pop();
        Ok(())
    })?;
    ir.ret();
    Ok(())
}

type Body<'b, 'a, 'c> = &'b mut dyn FnMut(&mut Gen<'a, 'c>, V) -> Result<(), Error>;

impl<'a, 'c> Gen<'a, 'c> {
    pub(crate) fn unsupported<T>(&self, what: impl Into<String>) -> Result<T, Error> {
        Err(Error::Unsupported { nest: self.nest.name.clone(), what: what.into() })
    }

    /// The innermost scope.
    pub(crate) fn depth(&self) -> usize {
        self.scopes.len() - 1
    }

    /// Runs `f` with the builder where code of scope `depth` goes.
    pub(crate) fn at<R>(&mut self, depth: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        let Some(open) = self.scopes[depth].open else { return f(self) };
        // Calls nest: `f` may ask for code of a scope still further out.
        let (here, outer) = (self.ir.current(), self.hoisting.replace(open));
        self.ir.before_terminator(open);
        let r = f(self);
        self.hoisting = outer;
        match outer {
            Some(block) => self.ir.before_terminator(block),
            None => self.ir.at_end(here),
        }
        r
    }

    /// `f`'s value, computed in scope `depth` at most once.
    pub(crate) fn memo(
        &mut self,
        depth: usize,
        key: Memo,
        f: impl FnOnce(&mut Self) -> Result<V, Error>,
    ) -> Result<V, Error> {
        if let Some(&v) = self.scopes[depth].memo.get(&key) {
            return Ok(v);
        }
        let v = self.at(depth, f)?;
        self.scopes[depth].memo.insert(key, v);
        Ok(v)
    }

    fn bind(&mut self, sym: &Sym, value: V) {
        let depth = self.depth();
        self.vars.push(Var { sym: sym.clone(), value, depth });
    }

    /// Number of copies statements are emitted for: 0 outside a vector loop.
    pub(crate) fn copies(&self) -> usize {
        self.vector.as_ref().map_or(0, |v| v.copies)
    }

    pub(crate) fn reg(&self, r: Reg) -> Result<&RegVal, Error> {
        self.regs.get(&r).ok_or_else(|| Error::Invalid {
            nest: self.nest.name.clone(),
            what: format!("register %{} is used before it is defined", r.0),
        })
    }

    /// Copy `k` of a value as a vector.
    pub(crate) fn lanes_of(&mut self, v: &RegVal, k: usize) -> Result<V, Error> {
        match &v.val {
            Val::Lanes(l) => l.get(k).copied().map_or_else(|| self.unsupported("copies differ"), Ok),
            Val::One(x) => {
                let (x, lanes) = (*x, self.lanes);
                self.memo(v.depth, Memo::Splat(x), |g| Ok(g.ir.splat(x, lanes)))
            }
        }
    }

    /// Emits statements in order.
    fn block(&mut self, body: &[Stmt]) -> Result<(), Error> {
        for s in body {
            match s {
                Stmt::Let { reg, dtype, def } => self.define_reg(*reg, *dtype, def)?,
                Stmt::For(l) if l.vector => self.vector_loop(l)?,
                Stmt::For(l) => self.serial_loop(l)?,
                Stmt::Store { mem, index, value, mask } => self.store(*mem, index, *value, *mask)?,
                Stmt::Update { acc, value, index } => self.update(*acc, *value, *index)?,
                Stmt::Check { ok, code } => self.check(*ok, *code)?,
            }
        }
        Ok(())
    }

    fn define_reg(&mut self, reg: Reg, dtype: DType, def: &Def) -> Result<(), Error> {
        let (val, depth) = match def {
            Def::Const(s) => {
                self.consts.insert(reg, *s);
                (Val::One(self.constant(dtype, 0, *s)), 0)
            }
            Def::Expr(e) => self.expr_value(e, dtype)?,
            Def::Load { mem, index, mask, fallback } => {
                (self.load(*mem, index, *mask, *fallback)?, self.depth())
            }
            Def::Pw { op, args } => {
                let consts: Vec<_> = args.iter().map(|a| self.consts.get(a).copied()).collect();
                let args = args.iter().map(|&a| self.reg(a).cloned()).collect::<Result<Vec<_>, _>>()?;
                let arg_dtype = args.last().map_or(dtype, |a| a.dtype);
                // An integer power is a loop, which cannot be moved.
                let depth = if *op == PwOp::Pow { self.depth() } else { deepest(&args) };
                let val = self.at(depth, |g| {
                    g.map(&args, |g, vals, lanes| g.pw(*op, arg_dtype, vals, lanes, &consts))
                })?;
                (val, depth)
            }
            Def::Convert { arg } => {
                let arg = self.reg(*arg)?.clone();
                let (from, depth) = (arg.dtype, arg.depth);
                let val = self.at(depth, |g| {
                    g.map(&[arg], |g, vals, lanes| Ok(g.convert(vals[0], from, dtype, lanes)))
                })?;
                (val, depth)
            }
            Def::Acc(id) => match self.results.get(id) {
                Some(r) => (r.val.clone(), r.depth),
                None => return self.unsupported(format!("accumulator {} is read inside its loop", id.0)),
            },
        };
        if !matches!(def, Def::Const(_)) {
            self.consts.remove(&reg);
        }
        self.regs.insert(reg, RegVal { val, dtype, depth });
        Ok(())
    }

    /// Applies `f` to scalars if all arguments are uniform, to vectors for each copy otherwise.
    pub(crate) fn map(
        &mut self,
        args: &[RegVal],
        mut f: impl FnMut(&mut Self, &[V], u32) -> Result<V, Error>,
    ) -> Result<Val, Error> {
        let uniform: Option<Vec<V>> =
            args.iter().map(|a| if let Val::One(v) = a.val { Some(v) } else { None }).collect();
        if let Some(vals) = uniform {
            return Ok(Val::One(f(self, &vals, 0)?));
        }
        let lanes = self.lanes;
        let mut out = vec![];
        for k in 0..self.copies() {
            let vals = args.iter().map(|a| self.lanes_of(a, k)).collect::<Result<Vec<_>, _>>()?;
            out.push(f(self, &vals, lanes)?);
        }
        Ok(Val::Lanes(out))
    }

    fn check(&mut self, ok: Reg, code: u32) -> Result<(), Error> {
        let ok = self.reg(ok)?.clone();
        let mask = self.vector.as_ref().and_then(|v| v.mask);
        let ok = match ok.val {
            Val::One(v) => v,
            Val::Lanes(l) => {
                let mut all = l[0];
                if let Some(m) = mask {
                    all = self.ir.or(all, self.ir.not(m));
                }
                for &v in &l[1..] {
                    all = self.ir.and(all, v);
                }
                self.all_lanes(all)
            }
        };
        let (fail, go_on) = (self.ir.block("fail"), self.ir.block("checked"));
        self.ir.cond_br(ok, go_on, fail);
        self.ir.at_end(fail);
        self.ir.store(self.ir.int(K::I64, 0, i64::from(code) + 1), self.err, 8);
        self.ir.br(go_on);
        self.ir.at_end(go_on);
        Ok(())
    }

    /// Whether every lane of a vector of bools is true, as a scalar.
    pub(crate) fn all_lanes(&self, v: V) -> V {
        let bits = self.ir.bitcast(v, self.ir.int_ty(self.lanes));
        let ones = self.ir.not(self.ir.zero(self.ir.int_ty(self.lanes)));
        self.ir.icmp(IPred::LLVMIntEQ, bits, ones)
    }

    /// Whether any lane of a vector of bools is true, as a scalar.
    pub(crate) fn any_lane(&self, v: V) -> V {
        let bits = self.ir.bitcast(v, self.ir.int_ty(self.lanes));
        self.ir.icmp(IPred::LLVMIntNE, bits, self.ir.zero(self.ir.int_ty(self.lanes)))
    }

    // ---- loops -----------------------------------------------------------------------------

    fn serial_loop(&mut self, l: &Loop) -> Result<(), Error> {
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
        l.accs.iter().try_for_each(|a| self.finish_acc(a))
    }

    fn vector_loop(&mut self, l: &Loop) -> Result<(), Error> {
        if self.vector.is_some() {
            return self.unsupported("a vector loop inside a vector loop");
        }
        let copies = self.copies_for(l);
        for a in &l.accs {
            self.start_acc(a, copies, false);
        }
        let lanes = i64::from(self.lanes);
        let step = lanes * copies as i64;
        let extent = &l.end - &l.begin;
        let (lo, hi) = (self.scalar(&l.begin)?, self.scalar(&l.end)?);
        let known = extent.as_int().map(|n| n.max(0));
        let ir = self.ir;
        let split = match known {
            Some(n) => self.scalar(&(&l.begin + &Expr::int(n / step * step)))?,
            None => {
                let zero = ir.int(K::I64, 0, 0);
                let n = ir.sub(hi, lo);
                let n = ir.select(ir.icmp(IPred::LLVMIntSGT, n, zero), n, zero);
                ir.add(lo, ir.and(n, ir.int(K::I64, 0, -step)))
            }
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
        let carried: Vec<AccId> = updated(&l.body).into_iter().filter(|a| self.accs.contains_key(a)).collect();
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
            while copies > 1 && (vectors < copies || (copies > 2 && vectors % copies != 0 && vectors % 2 == 0)) {
                copies /= 2;
            }
        }
        copies as usize
    }
}

/// The innermost scope any of `args` belongs to: where what is computed from them can be computed.
fn deepest(args: &[RegVal]) -> usize {
    args.iter().map(|a| a.depth).max().unwrap_or(0)
}

/// Accumulators updated in `body`, in order.
pub(crate) fn updated(body: &[Stmt]) -> BTreeSet<AccId> {
    let mut out = BTreeSet::new();
    for s in body {
        match s {
            Stmt::Update { acc, .. } => {
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
