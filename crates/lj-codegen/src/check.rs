//! The verifier of loop nests: what it accepts, the rest of the crate can compile.

use crate::Error;
use lj_ir::pointwise::PwResult;
use lj_ir::{DType, Expr, PwOp, Sym};
use lj_schedule::loopnest::{Acc, AccId, Carry, Def, Index, Loop, LoopNest, Mem, Reg, Stmt};
use std::collections::BTreeMap;

/// Estimated cost of one iteration of `body`, in additions.
pub(crate) fn cost(body: &[Stmt]) -> u32 {
    body.iter()
        .map(|s| match s {
            Stmt::Let { def: Def::Pw { op, .. }, .. } => op.cost(),
            Stmt::Let { def: Def::Load { index, .. }, .. } => 1 + 8 * index.indirect.len() as u32,
            Stmt::Let { def: Def::Convert { .. }, .. } | Stmt::Update { .. } | Stmt::Store { .. } => 1,
            Stmt::Let { def: Def::Scan { .. }, .. } => 4,
            Stmt::Let { .. } | Stmt::Check { .. } => 0,
            Stmt::For(l) => 2 + cost(&l.body),
        })
        .sum()
}

struct Checker<'a> {
    nest: &'a LoopNest,
    syms: Vec<Sym>,
    /// Dtype, and whether it varies from lane to lane.
    regs: BTreeMap<Reg, (DType, bool)>,
    /// Registers defined so far, innermost last.
    defined: Vec<Reg>,
    accs: BTreeMap<AccId, Acc>,
    /// Carries of the innermost loop that no scan has used yet.
    carries: BTreeMap<AccId, Carry>,
    results: BTreeMap<AccId, DType>,
    vector: Option<Sym>,
}

/// Refuses a nest that breaks the rules of the language.
pub(crate) fn check(nest: &LoopNest) -> Result<(), Error> {
    let mut c = Checker {
        nest,
        syms: nest.syms.clone(),
        regs: BTreeMap::new(),
        defined: vec![],
        accs: BTreeMap::new(),
        carries: BTreeMap::new(),
        results: BTreeMap::new(),
        vector: None,
    };
    for d in nest.params.iter().map(|p| p.dtype).chain(nest.scratch.iter().map(|s| s.dtype)) {
        c.ensure(d.in_kernels(), || format!("memory of dtype {d}"))?;
    }
    for s in &nest.scratch {
        c.expr(&s.len)?;
    }
    c.syms.push(nest.parallel.clone());
    c.block(&nest.body)
}

impl Checker<'_> {
    fn ensure(&self, ok: bool, what: impl FnOnce() -> String) -> Result<(), Error> {
        if ok { Ok(()) } else { Err(Error::Invalid { nest: self.nest.name.clone(), what: what() }) }
    }

    fn expr(&self, e: &Expr) -> Result<(), Error> {
        for s in e.symbols() {
            self.ensure(self.syms.contains(&s), || format!("{e}: symbol {s} is not in scope"))?;
        }
        Ok(())
    }

    fn reg(&self, r: Reg) -> Result<(DType, bool), Error> {
        self.regs.get(&r).copied().ok_or_else(|| Error::Invalid {
            nest: self.nest.name.clone(),
            what: format!("register %{} is used where it is not defined", r.0),
        })
    }

    fn bool_reg(&self, r: Option<Reg>) -> Result<(), Error> {
        let Some(r) = r else { return Ok(()) };
        let (d, _) = self.reg(r)?;
        self.ensure(d == DType::Bool, || format!("mask %{} is {d}, not bool", r.0))
    }

    fn access(&self, mem: Mem, index: &Index, write: bool) -> Result<(DType, bool), Error> {
        let dtype = match mem {
            Mem::Param(n) => self.nest.params.get(n as usize).map(|p| {
                let allowed = if write { p.written } else { p.read };
                (p.dtype, allowed)
            }),
            Mem::Scratch(n) => self.nest.scratch.get(n as usize).map(|s| (s.dtype, true)),
        };
        let Some((dtype, allowed)) = dtype else {
            self.ensure(false, || format!("{mem:?} does not exist"))?;
            return Ok((DType::F32, false));
        };
        self.ensure(allowed, || {
            format!("{mem:?} is {} but not declared so", if write { "stored to" } else { "loaded" })
        })?;
        self.expr(&index.base)?;
        let mut varies = self.varies(&index.base);
        for (r, stride) in &index.indirect {
            let (d, v) = self.reg(*r)?;
            self.ensure(d == DType::I64, || format!("subscript %{} is {d}, not i64", r.0))?;
            self.expr(stride)?;
            varies |= v;
        }
        Ok((dtype, varies))
    }

    fn varies(&self, e: &Expr) -> bool {
        self.vector.as_ref().is_some_and(|v| e.mentions(v))
    }

    fn block(&mut self, body: &[Stmt]) -> Result<(), Error> {
        // What a block defines, registers and results of accumulators, ends with it.
        let (outer, results) = (self.defined.len(), self.results.clone());
        let result = body.iter().try_for_each(|s| self.stmt(s));
        for r in self.defined.split_off(outer) {
            self.regs.remove(&r);
        }
        self.results = results;
        result
    }

    fn stmt(&mut self, s: &Stmt) -> Result<(), Error> {
        match s {
            Stmt::Let { reg, dtype, def } => {
                self.ensure(!self.regs.contains_key(reg), || format!("%{} is assigned twice", reg.0))?;
                self.ensure(dtype.in_kernels(), || format!("register %{} of dtype {dtype}", reg.0))?;
                let varies = self.def(*reg, *dtype, def)?;
                self.regs.insert(*reg, (*dtype, varies));
                self.defined.push(*reg);
                Ok(())
            }
            Stmt::For(l) => self.for_loop(l),
            Stmt::Store { mem, index, value, mask } => {
                let (dtype, _) = self.access(*mem, index, true)?;
                let (d, _) = self.reg(*value)?;
                self.ensure(d == dtype, || format!("%{} of {d} is stored to memory of {dtype}", value.0))?;
                self.bool_reg(*mask)
            }
            Stmt::Update { acc, value, index } => {
                let Some(a) = self.accs.get(acc).cloned() else {
                    return self.ensure(false, || format!("accumulator {} is not live", acc.0));
                };
                let (d, _) = self.reg(*value)?;
                self.ensure(d == a.dtype, || format!("accumulator {} of {} gets {d}", acc.0, a.dtype))?;
                self.ensure(index.is_some() == a.op.is_arg(), || {
                    format!("accumulator {} ({}): position missing or superfluous", acc.0, a.op.name())
                })?;
                if let Some(i) = index {
                    let (d, _) = self.reg(*i)?;
                    self.ensure(d == DType::I64, || format!("position %{} is {d}, not i64", i.0))?;
                }
                Ok(())
            }
            Stmt::Check { ok, .. } => self.bool_reg(Some(*ok)),
        }
    }

    /// Checks a definition and says whether it varies from lane to lane.
    fn def(&mut self, reg: Reg, dtype: DType, def: &Def) -> Result<bool, Error> {
        Ok(match def {
            Def::Const(_) => false,
            Def::Expr(e) => {
                self.expr(e)?;
                self.varies(e)
            }
            Def::Load { mem, index, mask, .. } => {
                let (d, varies) = self.access(*mem, index, false)?;
                self.ensure(d == dtype, || format!("%{} of {dtype} is loaded from memory of {d}", reg.0))?;
                self.bool_reg(*mask)?;
                varies || mask.is_some_and(|m| self.regs.get(&m).is_some_and(|r| r.1))
            }
            Def::Convert { arg } => self.reg(*arg)?.1,
            Def::Acc(a) => {
                let Some(d) = self.results.get(a) else {
                    self.ensure(false, || format!("accumulator {} has no result yet", a.0))?;
                    return Ok(false);
                };
                self.ensure(*d == dtype, || format!("%{}: result of accumulator {} is {d}", reg.0, a.0))?;
                self.vector.is_some()
            }
            Def::Scan { carry, value } => {
                let Some(c) = self.carries.remove(carry) else {
                    let what = || format!("carry {} is not of the innermost loop, or used twice", carry.0);
                    self.ensure(false, what)?;
                    return Ok(false);
                };
                let (d, _) = self.reg(*value)?;
                self.ensure(d == c.dtype, || format!("carry {} of {} gets {d}", carry.0, c.dtype))?;
                self.ensure(dtype == d, || format!("%{}: a scan of {d} is not {dtype}", reg.0))?;
                self.vector.is_some()
            }
            Def::Pw { op, args } => {
                self.ensure(args.len() == op.arity(), || {
                    format!("{} of {} operands", op.name(), args.len())
                })?;
                let args = args.iter().map(|&a| self.reg(a)).collect::<Result<Vec<_>, _>>()?;
                let values = if *op == PwOp::Where {
                    self.ensure(args[0].0 == DType::Bool, || "where of a condition that is not bool".into())?;
                    &args[1..]
                } else {
                    &args[..]
                };
                let d = values[0].0;
                self.ensure(values.iter().all(|v| v.0 == d), || format!("{} of mixed dtypes", op.name()))?;
                self.ensure(op.accepts(d), || format!("{} of {d}", op.name()))?;
                let expected = if op.result() == PwResult::Bool { DType::Bool } else { d };
                self.ensure(dtype == expected, || {
                    format!("%{}: {} of {d} is not {dtype}", reg.0, op.name())
                })?;
                args.iter().any(|a| a.1)
            }
        })
    }

    fn for_loop(&mut self, l: &Loop) -> Result<(), Error> {
        self.expr(&l.begin)?;
        self.expr(&l.end)?;
        self.ensure(!self.syms.contains(&l.var), || format!("loop variable {} shadows another", l.var))?;
        if self.varies(&l.begin) || self.varies(&l.end) {
            return Err(Error::Unsupported {
                nest: self.nest.name.clone(),
                what: format!("the bounds of loop {} differ from lane to lane", l.var),
            });
        }
        for a in &l.accs {
            let kernel = a.dtype.in_kernels() && !matches!(a.dtype, DType::F16 | DType::BF16);
            self.ensure(kernel, || format!("accumulator {} of dtype {}", a.id.0, a.dtype))?;
            let fresh = self.accs.insert(a.id, a.clone()).is_none();
            self.ensure(fresh, || format!("accumulator {} is live twice", a.id.0))?;
            self.results.remove(&a.id);
        }
        for c in &l.carries {
            let kernel = c.dtype.in_kernels() && !matches!(c.dtype, DType::F16 | DType::BF16 | DType::Bool);
            self.ensure(kernel, || format!("carry {} of dtype {}", c.id.0, c.dtype))?;
            self.ensure(!self.accs.contains_key(&c.id), || format!("carry {} is an accumulator", c.id.0))?;
            self.results.remove(&c.id);
            if let Some(r) = c.init {
                let (d, varies) = self.reg(r)?;
                self.ensure(d == c.dtype && !varies, || {
                    format!("carry {} cannot start from %{}", c.id.0, r.0)
                })?;
            }
        }
        if l.vector {
            self.ensure(self.vector.is_none(), || format!("vector loop {} inside a vector loop", l.var))?;
            self.vector = Some(l.var.clone());
        }
        self.syms.push(l.var.clone());
        let own = l.carries.iter().map(|c| (c.id, c.clone())).collect();
        let outer = std::mem::replace(&mut self.carries, own);
        self.block(&l.body)?;
        self.carries = outer;
        self.syms.pop();
        if l.vector {
            self.vector = None;
        }
        for a in &l.accs {
            self.accs.remove(&a.id);
            self.results.insert(a.id, if a.op.is_arg() { DType::I64 } else { a.dtype });
        }
        for c in &l.carries {
            self.results.insert(c.id, c.dtype);
        }
        Ok(())
    }
}
