//! Functions, loops and statements.
//!
//! **Scopes.** Scope 0 is the function's entry, scope 1 an iteration of the parallel loop, and so on
//! inwards. Code for scope `d` that is asked for while a deeper scope is being emitted goes to the
//! end of scope `d`'s open block, before its branch into the inner loop: that is how invariant code
//! leaves loops.

use crate::Error;
use crate::acc::AccState;
use crate::ir::{Block, IPred, Ir, K, V};
use crate::scan::CarryState;
use crate::target::Target;
use lj_ir::{DType, Expr, PwOp, Sym};
use lj_schedule::loopnest::{AccId, Def, LoopNest, Reg, Stmt};
use std::collections::{BTreeMap, HashMap};

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
    pub(crate) carries: BTreeMap<AccId, CarryState>,
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

/// Emits `nest` as the function `symbol`.
pub(crate) fn emit(ir: &Ir<'_>, nest: &LoopNest, target: &Target, symbol: &str) -> Result<(), Error> {
    let (p, i) = (ir.ty(K::Ptr, 0), ir.ty(K::I64, 0));
    let args = ir.function(symbol, &[p, p, p, i, i, p], &target.attributes());
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
        carries: BTreeMap::new(),
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
    g.parallel_loop(args[3], args[4])?;
    ir.ret();
    Ok(())
}

impl Gen<'_, '_> {
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

    pub(crate) fn bind(&mut self, sym: &Sym, value: V) {
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
    pub(crate) fn block(&mut self, body: &[Stmt]) -> Result<(), Error> {
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
            Def::Scan { carry, value } => (self.scan(*carry, *value)?, self.depth()),
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
}

/// The innermost scope any of `args` belongs to: where what is computed from them can be computed.
fn deepest(args: &[RegVal]) -> usize {
    args.iter().map(|a| a.depth).max().unwrap_or(0)
}
