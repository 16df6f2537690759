//! The emitter: values at coordinates become loop-nest statements.
//!
//! Statements go to the outermost loop in which everything they need exists, so what does not vary
//! in a loop is computed before it. Coordinates are expressions over the *space variables* of a
//! group; [`Emitter::place_vars`] says which loop variable each of them stands for.

mod registers;
mod values;

use crate::analysis::Analysis;
use crate::coords::Bounds;
use crate::loopnest::{Acc, AccId, Carry, Def, Index, Loop, LoopNest, Mem, Param, Reg, Scratch, Stmt};
use crate::nest_info::{collect_symbols, loop_vars};
use lj_ir::{Atom, DType, Expr, PwOp, ReduceOp, Scalar, ScanOp, Sym, ValueId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What a parameter of a nest is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memory {
    /// The memory of a leaf or stored value.
    Value(ValueId),
    /// Partial results of the reduction that computes the value.
    Partial(ValueId),
}

/// How a value that was computed before is found again.
#[derive(Clone, Debug)]
pub enum Known {
    /// In a register.
    Reg(Reg),
    /// In memory, at this element (over space variables).
    At(Mem, Expr),
}

/// How an index expression is used; recorded to choose the loop order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UseKind {
    /// A load of so many bytes an element.
    Load(i64),
    /// A store of so many bytes an element.
    Store(i64),
    /// A value that depends on the coordinate.
    Value,
}

type Key = (ValueId, Vec<Expr>, Option<Reg>);

struct Scope {
    var: Option<Sym>,
    head: Option<(Expr, Expr, bool, Vec<Acc>)>,
    carries: Vec<Carry>,
    body: Vec<Stmt>,
    memo: BTreeMap<Key, Reg>,
    /// What registers of this scope hold, so that nothing is computed twice.
    defs: HashMap<(DType, Def), Reg>,
}

impl Scope {
    fn new(var: Sym, head: Option<(Expr, Expr, bool, Vec<Acc>)>) -> Scope {
        let (carries, memo, defs) = (vec![], BTreeMap::new(), HashMap::new());
        Scope { var: Some(var), head, carries, body: vec![], memo, defs }
    }
}

/// Builds one loop nest.
pub struct Emitter<'a, 'g> {
    /// The graph and its analysis.
    pub a: &'a Analysis<'g>,
    /// Ranges of space and loop variables.
    pub bounds: Bounds,
    /// Values that this nest computes itself.
    pub members: BTreeSet<ValueId>,
    /// Values that can be read back.
    pub known: BTreeMap<ValueId, Known>,
    /// What each parameter is.
    pub params: Vec<(Memory, Param)>,
    /// Messages of failed checks, by code.
    pub checks: Vec<(String, String)>,
    /// Every index expression, when recording.
    pub uses: Vec<(Expr, UseKind)>,
    place: BTreeMap<Sym, Expr>,
    scopes: Vec<Scope>,
    regs: Vec<(DType, usize)>,
    reg_syms: BTreeMap<Sym, Reg>,
    /// Registers with a known truth value, and those that hold an integer expression.
    truths: BTreeMap<Reg, bool>,
    exprs: BTreeMap<Reg, Expr>,
    scratch: Vec<Scratch>,
    accs: u32,
    names: Vec<&'static str>,
}

impl<'a, 'g> Emitter<'a, 'g> {
    /// An emitter whose outermost scope is one iteration of the parallel loop over `parallel`.
    pub fn new(a: &'a Analysis<'g>, bounds: Bounds, members: BTreeSet<ValueId>, parallel: Sym) -> Self {
        let scope = Scope::new(parallel, None);
        Emitter {
            a,
            bounds,
            members,
            known: BTreeMap::new(),
            params: vec![],
            checks: vec![],
            uses: vec![],
            place: BTreeMap::new(),
            scopes: vec![scope],
            regs: vec![],
            reg_syms: BTreeMap::new(),
            truths: BTreeMap::new(),
            exprs: BTreeMap::new(),
            scratch: vec![],
            accs: 0,
            names: vec![],
        }
    }

    /// From now on space variable `var` is `e`, over loop variables.
    pub fn place_var(&mut self, var: Sym, e: Expr) {
        self.place.insert(var, e);
        // What was found at coordinates over this variable lies elsewhere from now on.
        for s in &mut self.scopes {
            s.memo.clear();
        }
    }

    /// Declares the range of a loop variable.
    pub fn declare(&mut self, var: &Sym, extent: Expr) {
        self.bounds.extents.insert(var.clone(), extent);
    }

    /// Opens a loop. `extent` bounds `end - begin` for simplification of indices.
    pub fn open(&mut self, var: Sym, begin: Expr, end: Expr, vector: bool, accs: Vec<Acc>) {
        self.scopes.push(Scope::new(var, Some((begin, end, vector, accs))));
    }

    /// Closes the innermost loop.
    pub fn close(&mut self) {
        let Some(Scope { var, head, carries, body, .. }) = self.scopes.pop() else { return };
        if let (Some((begin, end, vector, accs)), Some(var), Some(parent)) =
            (head, var, self.scopes.last_mut())
        {
            parent.body.push(Stmt::For(Loop { var, begin, end, vector, accs, carries, body }));
        }
    }

    /// A fresh accumulator.
    pub fn acc(&mut self, op: ReduceOp, dtype: DType) -> Acc {
        self.accs += 1;
        self.note(op.name());
        Acc { id: AccId(self.accs - 1), op, dtype }
    }

    /// Makes the innermost loop the owner of an accumulator.
    pub fn own(&mut self, acc: Acc) {
        if let Some((_, _, _, accs)) = self.scopes.last_mut().and_then(|s| s.head.as_mut()) {
            accs.push(acc);
        }
    }

    /// A fresh thread-private row.
    pub fn scratch(&mut self, dtype: DType, len: Expr) -> Mem {
        self.scratch.push(Scratch { dtype, len });
        Mem::Scratch(self.scratch.len() as u32 - 1)
    }

    /// Adds to the nest's name.
    pub fn note(&mut self, name: &'static str) {
        if self.names.len() < 6 && self.names.last() != Some(&name) {
            self.names.push(name);
        }
    }

    fn depth(&self) -> usize {
        self.scopes.len() - 1
    }

    fn depth_of(&self, e: &Expr) -> usize {
        e.symbols()
            .iter()
            .map(|s| match self.reg_syms.get(s) {
                Some(r) => self.regs[r.0 as usize].1,
                None => self.scopes.iter().position(|sc| sc.var.as_ref() == Some(s)).unwrap_or(0),
            })
            .max()
            .unwrap_or(0)
    }

    fn reg_depth(&self, r: Reg) -> usize {
        self.regs[r.0 as usize].1
    }

    /// The dtype of a register.
    pub fn dtype(&self, r: Reg) -> DType {
        self.regs[r.0 as usize].0
    }

    /// The final value of an accumulator, in the current scope.
    pub fn result(&mut self, acc: &Acc) -> Reg {
        let dtype = if acc.op.is_arg() { DType::I64 } else { acc.dtype };
        self.define_here(dtype, Def::Acc(acc.id), self.depth())
    }

    /// The running value of a scan along the innermost loop, `value` included, and the carry, for its
    /// final value. `init` is what stands before the loop.
    pub fn scan(&mut self, op: ScanOp, value: Reg, init: Option<Reg>) -> (Reg, AccId) {
        self.note(op.name());
        let (id, dtype, depth) = (AccId(self.accs), self.dtype(value), self.depth());
        self.accs += 1;
        self.scopes[depth].carries.push(Carry { id, op, dtype, init });
        (self.define(dtype, Def::Scan { carry: id, value }, depth), id)
    }

    /// The final value of a carry, in the current scope.
    pub fn carried(&mut self, carry: AccId, dtype: DType) -> Reg {
        self.define_here(dtype, Def::Acc(carry), self.depth())
    }

    /// A constant.
    pub fn constant(&mut self, value: Scalar, dtype: DType) -> Reg {
        self.define(dtype, Def::Const(value.cast(dtype)), 0)
    }

    /// An elementwise operation, as far out as its operands allow.
    pub fn pw(&mut self, op: PwOp, args: Vec<Reg>, dtype: DType) -> Reg {
        if let Some(r) = self.folded(op, &args) {
            return r;
        }
        let depth = args.iter().map(|r| self.reg_depth(*r)).max().unwrap_or(0);
        self.note(op.name());
        self.define(dtype, Def::Pw { op, args }, depth)
    }

    /// `r` as `dtype`.
    pub fn convert(&mut self, r: Reg, dtype: DType) -> Reg {
        if self.dtype(r) == dtype {
            return r;
        }
        self.define(dtype, Def::Convert { arg: r }, self.reg_depth(r))
    }

    /// An expression over space variables as one over loop variables.
    fn finish(&self, e: &Expr) -> Expr {
        self.bounds.simplify(&e.substitute(&|s| self.place.get(s).cloned()))
    }

    /// The value of an expression over space variables, as `dtype`.
    pub fn expr(&mut self, e: &Expr, dtype: DType) -> Reg {
        self.uses.push((e.clone(), UseKind::Value));
        let e = self.finish(e);
        self.finished_expr(&e, dtype)
    }

    fn finished_expr(&mut self, e: &Expr, dtype: DType) -> Reg {
        if !e.symbols().iter().any(|s| self.reg_syms.contains_key(s)) {
            let depth = self.depth_of(e);
            return self.define(dtype, Def::Expr(e.clone()), depth);
        }
        let mut sum: Option<Reg> = None;
        for t in e.terms() {
            let mut product: Option<Reg> = None;
            for f in &t.factors {
                let r = match f {
                    Atom::Sym(s) => match self.reg_syms.get(s) {
                        Some(r) => *r,
                        None => self.finished_expr(&Expr::from_atom(f.clone()), DType::I64),
                    },
                    Atom::FloorDiv(x, y) => self.finished_binary(PwOp::FloorDiv, x, y),
                    Atom::Mod(x, y) => self.finished_binary(PwOp::Remainder, x, y),
                    Atom::Min(x, y) => self.finished_binary(PwOp::Minimum, x, y),
                    Atom::Max(x, y) => self.finished_binary(PwOp::Maximum, x, y),
                };
                product = Some(match product {
                    None => r,
                    Some(p) => self.pw(PwOp::Mul, vec![p, r], DType::I64),
                });
            }
            let term = match product {
                None => self.constant(Scalar::Int(t.coef), DType::I64),
                Some(p) if t.coef == 1 => p,
                Some(p) => {
                    let c = self.constant(Scalar::Int(t.coef), DType::I64);
                    self.pw(PwOp::Mul, vec![p, c], DType::I64)
                }
            };
            sum = Some(match sum {
                None => term,
                Some(s) => self.pw(PwOp::Add, vec![s, term], DType::I64),
            });
        }
        let r = match sum {
            Some(r) => r,
            None => self.constant(Scalar::Int(0), DType::I64),
        };
        self.convert(r, dtype)
    }

    fn finished_binary(&mut self, op: PwOp, x: &Expr, y: &Expr) -> Reg {
        let a = self.finished_expr(x, DType::I64);
        let b = self.finished_expr(y, DType::I64);
        self.pw(op, vec![a, b], DType::I64)
    }

    fn index(&mut self, flat: &Expr) -> Index {
        let mut base = self.finish(flat);
        let mut indirect = vec![];
        for s in base.symbols() {
            let Some(&r) = self.reg_syms.get(&s) else { continue };
            if let Some((stride, rest)) = base.linear_in(&s) {
                indirect.push((r, stride));
                base = rest;
            } else {
                let r = self.finished_expr(&self.finish(flat), DType::I64);
                return Index { base: Expr::ZERO, indirect: vec![(r, Expr::ONE)] };
            }
        }
        // Strides must be uniform; a product of two indirect parts is not.
        if indirect.iter().any(|(_, s)| s.symbols().iter().any(|x| self.reg_syms.contains_key(x))) {
            let r = self.finished_expr(&self.finish(flat), DType::I64);
            return Index { base: Expr::ZERO, indirect: vec![(r, Expr::ONE)] };
        }
        Index { base, indirect }
    }

    fn index_depth(&self, i: &Index) -> usize {
        i.indirect.iter().map(|(r, _)| self.reg_depth(*r)).chain([self.depth_of(&i.base)]).max().unwrap_or(0)
    }

    /// The parameter for a piece of memory. Elements that are not computed on are moved as bits.
    pub fn param(&mut self, memory: Memory, dtype: DType, write: bool) -> Mem {
        let dtype = dtype.moved();
        let at = self.params.iter().position(|(m, _)| *m == memory).unwrap_or_else(|| {
            self.params.push((memory, Param { dtype, written: false, read: false }));
            self.params.len() - 1
        });
        let p = &mut self.params[at].1;
        p.written |= write;
        p.read |= !write;
        Mem::Param(at as u32)
    }

    /// A load of element `flat` (over space variables).
    pub fn load(&mut self, mem: Mem, dtype: DType, flat: &Expr, mask: Option<Reg>) -> Reg {
        let dtype = dtype.moved();
        self.uses.push((flat.clone(), UseKind::Load(dtype.bytes())));
        let index = self.index(flat);
        let depth = self.index_depth(&index).max(mask.map_or(0, |m| self.reg_depth(m)));
        let fallback = Scalar::Int(0).cast(dtype);
        self.define(dtype, Def::Load { mem, index, mask, fallback }, depth)
    }

    /// A load that must happen at this point of the innermost loop (of memory the nest writes).
    pub fn load_here(&mut self, mem: Mem, dtype: DType, flat: &Expr, mask: Option<Reg>) -> Reg {
        let dtype = dtype.moved();
        self.uses.push((flat.clone(), UseKind::Load(dtype.bytes())));
        let index = self.index(flat);
        let fallback = Scalar::Int(0).cast(dtype);
        self.define_here(dtype, Def::Load { mem, index, mask, fallback }, self.depth())
    }

    /// A store to element `flat` (over space variables), in the innermost loop.
    pub fn store(&mut self, mem: Mem, flat: &Expr, value: Reg, mask: Option<Reg>) {
        self.uses.push((flat.clone(), UseKind::Store(self.dtype(value).bytes())));
        let index = self.index(flat);
        let depth = self.depth();
        self.scopes[depth].body.push(Stmt::Store { mem, index, value, mask });
    }

    /// Feeds an accumulator, in the innermost loop.
    pub fn update(&mut self, acc: AccId, value: Reg, index: Option<Reg>) {
        let depth = self.depth();
        self.scopes[depth].body.push(Stmt::Update { acc, value, index });
    }

    /// A fresh symbol that stands for a register in index expressions.
    pub fn symbol(&mut self, r: Reg) -> Expr {
        let s = Sym::new(&format!("$r{}", r.0));
        self.reg_syms.insert(s.clone(), r);
        Expr::from_atom(Atom::Sym(s))
    }

    /// A checked index register as a coordinate in `0..extent`, with the mask under which it may be
    /// used. `wrap`: negative indices count from the end. `error` is what an index out of range raises,
    /// `exception: message`.
    pub fn checked_index(
        &mut self,
        r: Reg,
        extent: &Expr,
        wrap: bool,
        mask: Option<Reg>,
        error: &str,
    ) -> (Expr, Option<Reg>) {
        let r = self.convert(r, DType::I64);
        if let Some(e) = self.exprs.get(&r) {
            let (low, below) = (self.bounds.range(e).0, self.bounds.range(&(extent - e)).0);
            if low >= 0 && below >= 1 {
                return (e.clone(), mask);
            }
        }
        let n = self.expr(extent, DType::I64);
        let zero = self.constant(Scalar::Int(0), DType::I64);
        let mut i = r;
        if wrap {
            let wrapped = self.pw(PwOp::Add, vec![r, n], DType::I64);
            let negative = self.pw(PwOp::Lt, vec![r, zero], DType::Bool);
            i = self.pw(PwOp::Where, vec![negative, wrapped, r], DType::I64);
        }
        let low = self.pw(PwOp::Ge, vec![i, zero], DType::Bool);
        let high = self.pw(PwOp::Lt, vec![i, n], DType::Bool);
        let ok = self.pw(PwOp::And, vec![low, high], DType::Bool);
        let (exception, message) = error.split_once(": ").unwrap_or(("IndexError", error));
        self.check(ok, mask, exception, message);
        if self.bounds.facts.ge(extent, &Expr::ONE) {
            let safe = self.pw(PwOp::Where, vec![ok, i, zero], DType::I64);
            return (self.symbol(safe), mask);
        }
        let both = match mask {
            None => ok,
            Some(m) => self.pw(PwOp::And, vec![ok, m], DType::Bool),
        };
        (self.symbol(i), Some(both))
    }

    /// The finished nest.
    pub fn finish_nest(mut self, parallel: Sym, extent: Expr) -> FinishedNest {
        while self.scopes.len() > 1 {
            self.close();
        }
        let body = self.scopes.pop().map(|s| s.body).unwrap_or_default();
        let mut syms = extent.symbols();
        for s in &self.scratch {
            syms.extend(s.len.symbols());
        }
        collect_symbols(&body, &mut syms);
        let vars = loop_vars(&body, &parallel);
        syms.retain(|s| !vars.contains(s));
        let name = if self.names.is_empty() { "copy".to_string() } else { self.names.join("_") };
        let nest = LoopNest {
            name,
            params: self.params.iter().map(|(_, p)| p.clone()).collect(),
            syms: syms.into_iter().collect(),
            scratch: self.scratch,
            parallel,
            extent,
            body,
        };
        FinishedNest { nest, memory: self.params.into_iter().map(|(m, _)| m).collect(), checks: self.checks }
    }
}

/// A nest with the meaning of its parameters.
pub struct FinishedNest {
    /// The nest.
    pub nest: LoopNest,
    /// What each parameter is.
    pub memory: Vec<Memory>,
    /// Messages of failed checks.
    pub checks: Vec<(String, String)>,
}

/// `Σ coords × strides`.
pub fn dot(coords: &[Expr], strides: &[Expr]) -> Expr {
    coords.iter().zip(strides).fold(Expr::ZERO, |a, (c, s)| a + c * s)
}
