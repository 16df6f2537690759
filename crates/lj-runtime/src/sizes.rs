//! Symbolic sizes at run time: every expression of a plan, compiled to a flat table that is
//! evaluated once per vector of symbol values.

use crate::error::{Error, Result};
use lj_ir::expr::floor_div;
use lj_ir::{Atom, Expr, Sym};
use std::collections::BTreeMap;

/// A run of consecutive values of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// The values.
    pub fn of(self, values: &[i64]) -> &[i64] {
        &values[self.start as usize..(self.start + self.len) as usize]
    }
}

/// One value of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Id(u32);

impl Id {
    /// The value.
    pub fn of(self, values: &[i64]) -> i64 {
        values[self.0 as usize]
    }
}

/// An instruction of a stack machine.
#[derive(Clone, Copy, Debug)]
enum Code {
    Const(i64),
    Sym(u32),
    Add,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

/// An expression of the table.
#[derive(Debug)]
struct Entry {
    /// Its code, a part of [`Table::code`]; empty for a constant.
    code: std::ops::Range<u32>,
    /// The value of a constant.
    value: i64,
    /// After which step it can be evaluated: 0 before the first, n after n steps.
    ready: u32,
    /// For messages.
    text: Expr,
}

/// The expressions of a plan.
#[derive(Debug, Default)]
pub struct Table {
    entries: Vec<Entry>,
    code: Vec<Code>,
    spans: BTreeMap<Vec<Expr>, Span>,
    /// Index and time of binding per symbol.
    syms: BTreeMap<Sym, (u32, u32)>,
    /// For every time later than 0 at which expressions become ready: which.
    later: BTreeMap<u32, Vec<u32>>,
}

impl Table {
    /// A table over symbols; symbol `i` gets its value before step `ready[i]` (0: at the start).
    pub fn new(syms: impl IntoIterator<Item = (Sym, u32)>) -> Table {
        let syms = syms.into_iter().enumerate().map(|(i, (s, ready))| (s, (i as u32, ready))).collect();
        Table { syms, ..Table::default() }
    }

    /// The index of a symbol.
    pub fn symbol(&self, s: &Sym) -> Option<usize> {
        self.syms.get(s).map(|(i, _)| *i as usize)
    }

    /// Adds expressions, in a row.
    ///
    /// # Errors
    /// If one has a symbol without a source.
    pub fn list(&mut self, exprs: &[Expr]) -> Result<Span> {
        if let Some(span) = self.spans.get(exprs) {
            return Ok(*span);
        }
        let span = Span { start: self.entries.len() as u32, len: exprs.len() as u32 };
        for e in exprs {
            let start = self.code.len() as u32;
            let ready = if e.as_int().is_some() { 0 } else { self.compile(e)? };
            let id = self.entries.len() as u32;
            if ready > 0 {
                self.later.entry(ready).or_default().push(id);
            }
            self.entries.push(Entry {
                code: start..self.code.len() as u32,
                value: e.as_int().unwrap_or(0),
                ready,
                text: e.clone(),
            });
        }
        self.spans.insert(exprs.to_vec(), span);
        Ok(span)
    }

    /// Adds one expression.
    ///
    /// # Errors
    /// If it has a symbol without a source.
    pub fn one(&mut self, e: &Expr) -> Result<Id> {
        Ok(Id(self.list(std::slice::from_ref(e))?.start))
    }

    /// The step before which the value is known.
    pub fn ready(&self, id: Id) -> u32 {
        self.entries[id.0 as usize].ready
    }

    /// The step before which all values of a list are known.
    pub fn span_ready(&self, s: Span) -> u32 {
        (s.start..s.start + s.len).map(|i| self.entries[i as usize].ready).max().unwrap_or(0)
    }

    /// Whether some values depend on results of steps.
    pub fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Appends the code of `e`; returns when its last symbol is bound.
    fn compile(&mut self, e: &Expr) -> Result<u32> {
        let terms = e.terms();
        let mut ready = 0;
        if terms.is_empty() {
            self.code.push(Code::Const(0));
        }
        for (i, t) in terms.iter().enumerate() {
            let mut first = true;
            if t.coef != 1 || t.factors.is_empty() {
                self.code.push(Code::Const(t.coef));
                first = false;
            }
            for a in &t.factors {
                ready = ready.max(self.compile_atom(a)?);
                if !first {
                    self.code.push(Code::Mul);
                }
                first = false;
            }
            if i > 0 {
                self.code.push(Code::Add);
            }
        }
        Ok(ready)
    }

    fn compile_atom(&mut self, a: &Atom) -> Result<u32> {
        let (x, y, code) = match a {
            Atom::Sym(s) => {
                let (index, ready) =
                    *self.syms.get(s).ok_or_else(|| Error::Program(format!("symbol `{s}` has no source")))?;
                self.code.push(Code::Sym(index));
                return Ok(ready);
            }
            Atom::FloorDiv(x, y) => (x, y, Code::FloorDiv),
            Atom::Mod(x, y) => (x, y, Code::Mod),
            Atom::Min(x, y) => (x, y, Code::Min),
            Atom::Max(x, y) => (x, y, Code::Max),
        };
        let ready = self.compile(x)?.max(self.compile(y)?);
        self.code.push(code);
        Ok(ready)
    }

    /// Evaluates everything that is known before the first step.
    ///
    /// # Errors
    /// If a value overflows or a divisor is zero.
    pub fn evaluate(&self, syms: &[i64]) -> Result<Vec<i64>> {
        let mut values = Vec::with_capacity(self.entries.len());
        let mut stack = vec![];
        for e in &self.entries {
            values.push(if e.ready == 0 { self.run(e, syms, &mut stack)? } else { 0 });
        }
        Ok(values)
    }

    /// Evaluates what becomes known before step `step` (later than 0).
    ///
    /// # Errors
    /// If a value overflows or a divisor is zero.
    pub fn evaluate_later(&self, step: u32, syms: &[i64], values: &mut [i64]) -> Result<()> {
        let mut stack = vec![];
        for id in self.later.get(&step).into_iter().flatten() {
            values[*id as usize] = self.run(&self.entries[*id as usize], syms, &mut stack)?;
        }
        Ok(())
    }

    fn run(&self, e: &Entry, syms: &[i64], stack: &mut Vec<i64>) -> Result<i64> {
        if e.code.is_empty() {
            return Ok(e.value);
        }
        stack.clear();
        for c in &self.code[e.code.start as usize..e.code.end as usize] {
            step(*c, syms, stack).ok_or_else(|| Error::Size(format!("{}", e.text)))?;
        }
        stack.pop().ok_or_else(|| Error::Size(format!("{}", e.text)))
    }
}

fn step(c: Code, syms: &[i64], stack: &mut Vec<i64>) -> Option<()> {
    let v = match c {
        Code::Const(v) => v,
        Code::Sym(i) => *syms.get(i as usize)?,
        _ => {
            let (y, x) = (stack.pop()?, stack.pop()?);
            match c {
                Code::Add => x.checked_add(y)?,
                Code::Mul => x.checked_mul(y)?,
                Code::FloorDiv if y != 0 => floor_div(x, y),
                Code::Mod if y != 0 => x.wrapping_sub(y.wrapping_mul(floor_div(x, y))),
                Code::Min => x.min(y),
                Code::Max => x.max(y),
                _ => return None,
            }
        }
    };
    stack.push(v);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_equal_those_of_the_expressions() {
        let (a, b) = (Expr::sym("a"), Expr::sym("b"));
        let exprs = [
            &a * &b,
            &(&a * &Expr::int(3)) + &Expr::int(-7),
            (&a + &Expr::int(5)).floordiv(&b),
            (&a - &b).modulo(&Expr::int(4)),
            a.minimum(&(&b * &b)),
            a.maximum(&Expr::int(11)),
            Expr::int(42),
        ];
        let mut t = Table::new([(Sym::new("a"), 0), (Sym::new("b"), 0)]);
        let span = t.list(&exprs).unwrap();
        assert_eq!(t.list(&exprs).unwrap(), span);
        for (x, y) in [(10, 3), (-9, 4), (0, 1), (1 << 40, 7)] {
            let values = t.evaluate(&[x, y]).unwrap();
            let want: Vec<i64> = exprs
                .iter()
                .map(|e| e.eval(&|s| Some(if s.name() == "a" { x } else { y })).unwrap())
                .collect();
            assert_eq!(span.of(&values), want);
        }
        assert!(matches!(t.evaluate(&[1 << 62, 1 << 62]), Err(Error::Size(_))));
        assert!(matches!(t.evaluate(&[1, 0]), Err(Error::Size(_))));
    }

    #[test]
    fn later_symbols() {
        let mut t = Table::new([(Sym::new("u0"), 3)]);
        let id = t.one(&(&Expr::sym("u0") * &Expr::int(2))).unwrap();
        assert_eq!(t.ready(id), 3);
        let mut values = t.evaluate(&[0]).unwrap();
        t.evaluate_later(3, &[21], &mut values).unwrap();
        assert_eq!(id.of(&values), 42);
        assert!(matches!(t.one(&Expr::sym("x")), Err(Error::Program(_))));
    }
}
