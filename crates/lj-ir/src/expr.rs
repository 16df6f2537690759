//! Symbolic integer expressions in a canonical sum-of-products form.
//!
//! An [`Expr`] is a polynomial with `i64` coefficients over [`Atom`]s: symbols and the non-linear
//! operations (floor division, modulo, minimum, maximum) that did not fold. Equal polynomials have
//! equal representation, so `==` decides equality of everything that is provable by ring
//! arithmetic alone. Constructors simplify without knowing ranges; [`crate::Facts`] knows ranges.
//!
//! Symbols stand for sizes and loop variables. They are compared by name; names are unique within
//! a graph or a kernel.

mod division;

pub use division::{floor_div, floor_mod};

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

/// A named integer unknown, such as `s0` (a size) or `i1` (a loop variable).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sym(Arc<str>);

impl Sym {
    /// The symbol called `name`.
    pub fn new(name: &str) -> Sym {
        Sym(Arc::from(name))
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Sym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Sym {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a product is made of.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Atom {
    /// A symbol.
    Sym(Sym),
    /// Division rounding to minus infinity.
    FloorDiv(Expr, Expr),
    /// The remainder with the sign of the divisor, as Python's `%`.
    Mod(Expr, Expr),
    /// The smaller of two.
    Min(Expr, Expr),
    /// The larger of two.
    Max(Expr, Expr),
}

/// `coef × Π factors`; the factors are sorted and repeat for powers.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Term {
    /// The product's factors, sorted.
    pub factors: Vec<Atom>,
    /// Its non-zero coefficient.
    pub coef: i64,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
enum Repr {
    Const(i64),
    /// Sorted by factors, coefficients non-zero, not a lone constant.
    Sum(Arc<[Term]>),
}

/// A canonical symbolic integer expression.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Expr(Repr);

impl Expr {
    /// The constant 0.
    pub const ZERO: Expr = Expr(Repr::Const(0));
    /// The constant 1.
    pub const ONE: Expr = Expr(Repr::Const(1));

    /// A constant.
    pub const fn int(v: i64) -> Expr {
        Expr(Repr::Const(v))
    }

    /// The symbol called `name`.
    pub fn sym(name: &str) -> Expr {
        Expr::from_atom(Atom::Sym(Sym::new(name)))
    }

    /// One atom as an expression.
    pub fn from_atom(atom: Atom) -> Expr {
        Expr(Repr::Sum(Arc::from([Term { factors: vec![atom], coef: 1 }])))
    }

    /// The value if it is a constant.
    pub fn as_int(&self) -> Option<i64> {
        match &self.0 {
            Repr::Const(v) => Some(*v),
            Repr::Sum(_) => None,
        }
    }

    /// Whether it is the constant `v`.
    pub fn is(&self, v: i64) -> bool {
        self.as_int() == Some(v)
    }

    /// The symbol if it is exactly one symbol.
    pub fn as_sym(&self) -> Option<&Sym> {
        match &self.0 {
            Repr::Sum(t) if t.len() == 1 && t[0].coef == 1 && t[0].factors.len() == 1 => {
                if let Atom::Sym(s) = &t[0].factors[0] { Some(s) } else { None }
            }
            _ => None,
        }
    }

    /// Its terms, sorted; a constant has one term without factors, zero has none.
    pub fn terms(&self) -> Vec<Term> {
        match &self.0 {
            Repr::Const(0) => vec![],
            Repr::Const(v) => vec![Term { factors: vec![], coef: *v }],
            Repr::Sum(t) => t.to_vec(),
        }
    }

    /// Its terms without copying them: either terms, or a constant.
    pub(crate) fn parts(&self) -> (&[Term], i64) {
        match &self.0 {
            Repr::Const(v) => (&[], *v),
            Repr::Sum(t) => (t, 0),
        }
    }

    /// The sum of `terms`, brought into canonical form.
    pub fn from_terms(terms: impl IntoIterator<Item = Term>) -> Expr {
        let mut terms: Vec<Term> = terms.into_iter().collect();
        terms.sort_unstable_by(|a, b| a.factors.cmp(&b.factors));
        terms.dedup_by(|next, sum| {
            let same = next.factors == sum.factors;
            if same {
                sum.coef = sum.coef.wrapping_add(next.coef);
            }
            same
        });
        Expr::from_sorted(terms)
    }

    /// The sum of `terms`, which are sorted and have different factors.
    fn from_sorted(mut terms: Vec<Term>) -> Expr {
        terms.retain(|t| t.coef != 0);
        match terms.as_slice() {
            [] => Expr::ZERO,
            [t] if t.factors.is_empty() => Expr::int(t.coef),
            _ => Expr(Repr::Sum(Arc::from(terms))),
        }
    }

    /// `self × k`.
    fn scale(&self, k: i64) -> Expr {
        match &self.0 {
            Repr::Const(v) => Expr::int(v.wrapping_mul(k)),
            Repr::Sum(_) if k == 1 => self.clone(),
            Repr::Sum(t) => {
                let scaled =
                    t.iter().map(|t| Term { factors: t.factors.clone(), coef: t.coef.wrapping_mul(k) });
                Expr::from_sorted(scaled.collect())
            }
        }
    }

    /// The product of all `exprs`.
    pub fn product<'a>(exprs: impl IntoIterator<Item = &'a Expr>) -> Expr {
        exprs.into_iter().fold(Expr::ONE, |a, b| &a * b)
    }

    /// The smaller of two.
    #[must_use]
    pub fn minimum(&self, o: &Expr) -> Expr {
        match (self - o).as_int() {
            Some(d) => {
                if d <= 0 {
                    self.clone()
                } else {
                    o.clone()
                }
            }
            None if self <= o => Expr::from_atom(Atom::Min(self.clone(), o.clone())),
            None => Expr::from_atom(Atom::Min(o.clone(), self.clone())),
        }
    }

    /// The larger of two.
    #[must_use]
    pub fn maximum(&self, o: &Expr) -> Expr {
        match (self - o).as_int() {
            Some(d) => {
                if d >= 0 {
                    self.clone()
                } else {
                    o.clone()
                }
            }
            None if self <= o => Expr::from_atom(Atom::Max(self.clone(), o.clone())),
            None => Expr::from_atom(Atom::Max(o.clone(), self.clone())),
        }
    }

    /// The atom if the expression is exactly one atom.
    pub fn as_atom(&self) -> Option<Atom> {
        match &self.0 {
            Repr::Sum(t) if t.len() == 1 && t[0].coef == 1 && t[0].factors.len() == 1 => {
                Some(t[0].factors[0].clone())
            }
            _ => None,
        }
    }

    /// Every symbol in it, sorted by name.
    pub fn symbols(&self) -> BTreeSet<Sym> {
        let mut out = BTreeSet::new();
        self.collect_symbols(&mut out);
        out
    }

    fn collect_symbols(&self, out: &mut BTreeSet<Sym>) {
        if let Repr::Sum(terms) = &self.0 {
            for f in terms.iter().flat_map(|t| &t.factors) {
                match f {
                    Atom::Sym(s) => {
                        out.insert(s.clone());
                    }
                    Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                        a.collect_symbols(out);
                        b.collect_symbols(out);
                    }
                }
            }
        }
    }

    /// Whether `s` occurs in it.
    pub fn mentions(&self, s: &Sym) -> bool {
        !matches!(self.0, Repr::Const(_)) && self.symbols().contains(s)
    }

    /// The expression with every symbol replaced by what `f` gives for it (`None` keeps it).
    #[must_use]
    pub fn substitute(&self, f: &dyn Fn(&Sym) -> Option<Expr>) -> Expr {
        let Repr::Sum(terms) = &self.0 else { return self.clone() };
        let mut out = Expr::ZERO;
        for t in terms.iter() {
            let mut p = Expr::int(t.coef);
            for a in &t.factors {
                let e = match a {
                    Atom::Sym(s) => f(s).unwrap_or_else(|| Expr::from_atom(a.clone())),
                    Atom::FloorDiv(x, y) => x.substitute(f).floordiv(&y.substitute(f)),
                    Atom::Mod(x, y) => x.substitute(f).modulo(&y.substitute(f)),
                    Atom::Min(x, y) => x.substitute(f).minimum(&y.substitute(f)),
                    Atom::Max(x, y) => x.substitute(f).maximum(&y.substitute(f)),
                };
                p = &p * &e;
            }
            out = &out + &p;
        }
        out
    }

    /// Its value when every symbol has the value `f` gives; `None` if a symbol has none or a
    /// divisor is zero. Arithmetic wraps.
    pub fn eval(&self, f: &dyn Fn(&Sym) -> Option<i64>) -> Option<i64> {
        let Repr::Sum(terms) = &self.0 else { return self.as_int() };
        let mut sum = 0i64;
        for t in terms.iter() {
            let mut p = t.coef;
            for a in &t.factors {
                let v = match a {
                    Atom::Sym(s) => f(s)?,
                    Atom::FloorDiv(x, y) => {
                        let (x, y) = (x.eval(f)?, y.eval(f)?);
                        if y == 0 {
                            return None;
                        }
                        floor_div(x, y)
                    }
                    Atom::Mod(x, y) => {
                        let (x, y) = (x.eval(f)?, y.eval(f)?);
                        if y == 0 {
                            return None;
                        }
                        floor_mod(x, y)
                    }
                    Atom::Min(x, y) => x.eval(f)?.min(y.eval(f)?),
                    Atom::Max(x, y) => x.eval(f)?.max(y.eval(f)?),
                };
                p = p.wrapping_mul(v);
            }
            sum = sum.wrapping_add(p);
        }
        Some(sum)
    }

    /// `(stride, rest)` with `self = stride × var + rest`, if `self` is linear in `var` with
    /// neither part mentioning it.
    pub fn linear_in(&self, var: &Sym) -> Option<(Expr, Expr)> {
        let (mut stride, mut rest) = (vec![], vec![]);
        for mut t in self.terms() {
            let at = t.factors.iter().position(|f| matches!(f, Atom::Sym(s) if s == var));
            if let Some(at) = at {
                t.factors.remove(at);
                stride.push(t);
            } else {
                rest.push(t);
            }
        }
        let (stride, rest) = (Expr::from_terms(stride), Expr::from_terms(rest));
        (!stride.mentions(var) && !rest.mentions(var)).then_some((stride, rest))
    }
}

impl From<i64> for Expr {
    fn from(v: i64) -> Expr {
        Expr::int(v)
    }
}

macro_rules! by_value {
    ($trait:ident, $method:ident) => {
        impl $trait<Expr> for Expr {
            type Output = Expr;
            fn $method(self, o: Expr) -> Expr {
                (&self).$method(&o)
            }
        }
        impl $trait<&Expr> for Expr {
            type Output = Expr;
            fn $method(self, o: &Expr) -> Expr {
                (&self).$method(o)
            }
        }
        impl $trait<Expr> for &Expr {
            type Output = Expr;
            fn $method(self, o: Expr) -> Expr {
                self.$method(&o)
            }
        }
    };
}
by_value!(Add, add);
by_value!(Sub, sub);
by_value!(Mul, mul);

impl Add<&Expr> for &Expr {
    type Output = Expr;
    fn add(self, o: &Expr) -> Expr {
        let (a, b) = match (&self.0, &o.0) {
            (Repr::Const(a), Repr::Const(b)) => return Expr::int(a.wrapping_add(*b)),
            (Repr::Const(0), _) => return o.clone(),
            (_, Repr::Const(0)) => return self.clone(),
            // The term of a constant has no factors and sorts first.
            _ => (self.terms(), o.terms()),
        };
        let mut out = Vec::with_capacity(a.len() + b.len());
        let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            match x.factors.cmp(&y.factors) {
                Ordering::Less => out.extend(a.next()),
                Ordering::Greater => out.extend(b.next()),
                Ordering::Equal => {
                    let coef = x.coef.wrapping_add(y.coef);
                    out.extend(a.next().map(|t| Term { coef, ..t }));
                    b.next();
                }
            }
        }
        out.extend(a);
        out.extend(b);
        Expr::from_sorted(out)
    }
}

impl Neg for &Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        self.scale(-1)
    }
}

impl Sub<&Expr> for &Expr {
    type Output = Expr;
    fn sub(self, o: &Expr) -> Expr {
        self + &-o
    }
}

impl Mul<&Expr> for &Expr {
    type Output = Expr;
    fn mul(self, o: &Expr) -> Expr {
        match (&self.0, &o.0) {
            (_, Repr::Const(k)) => self.scale(*k),
            (Repr::Const(k), _) => o.scale(*k),
            (Repr::Sum(a), Repr::Sum(b)) => Expr::from_terms(a.iter().flat_map(|x| {
                b.iter().map(move |y| {
                    let mut factors = x.factors.clone();
                    factors.extend(y.factors.iter().cloned());
                    factors.sort();
                    Term { factors, coef: x.coef.wrapping_mul(y.coef) }
                })
            })),
        }
    }
}

impl fmt::Display for Expr {
    /// Prints a form [`crate::text`] parses back: `4*s0*s1 + s2 - 1`, `floordiv(a, b)`,
    /// `mod(a, b)`, `min(a, b)`, `max(a, b)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = match &self.0 {
            Repr::Const(v) => return write!(f, "{v}"),
            Repr::Sum(t) => t,
        };
        // Constants last reads better.
        let constant = terms.iter().filter(|t| t.factors.is_empty());
        let others = terms.iter().filter(|t| !t.factors.is_empty());
        for (i, t) in others.chain(constant).enumerate() {
            let magnitude = t.coef.unsigned_abs();
            match (i, t.coef < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            if t.factors.is_empty() {
                write!(f, "{magnitude}")?;
                continue;
            }
            if magnitude != 1 {
                write!(f, "{magnitude}*")?;
            }
            for (j, a) in t.factors.iter().enumerate() {
                if j > 0 {
                    f.write_str("*")?;
                }
                write!(f, "{a}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Sym(s) => crate::text::Symbol(s.name()).fmt(f),
            Atom::FloorDiv(a, b) => write!(f, "floordiv({a}, {b})"),
            Atom::Mod(a, b) => write!(f, "mod({a}, {b})"),
            Atom::Min(a, b) => write!(f, "min({a}, {b})"),
            Atom::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: &str) -> Expr {
        Expr::sym(n)
    }

    #[test]
    fn ring_arithmetic_is_canonical() {
        let (a, b) = (s("a"), s("b"));
        assert_eq!((&a + &b) * (&a - &b), &a * &a - &b * &b);
        assert_eq!(&a - &a, Expr::ZERO);
        assert_eq!((&a * Expr::int(4) + &b - Expr::int(1)).to_string(), "4*a + b - 1");
    }

    #[test]
    fn division_takes_out_what_divides() {
        let (o, n, r) = (s("o"), s("n"), s("r"));
        assert_eq!((&o * &n + &r).floordiv(&n), &o + &r.floordiv(&n));
        assert_eq!((&o * &n + &r).modulo(&n), r.modulo(&n));
        assert_eq!((&o * &n).floordiv(&n), o);
        assert_eq!(Expr::int(-7).floordiv(&Expr::int(2)), Expr::int(-4));
        assert_eq!(Expr::int(-7).modulo(&Expr::int(2)), Expr::ONE);
        assert_eq!(o.floordiv(&2.into()).floordiv(&3.into()), o.floordiv(&6.into()));
        assert_eq!(((&o + &n) * (&o - &n)).div_exact(&(&o - &n)), Some(&o + &n));
    }

    #[test]
    fn linear_parts() {
        let i = Sym::new("i");
        let e = s("i") * s("n") + s("k") + Expr::int(3);
        assert_eq!(e.linear_in(&i), Some((s("n"), s("k") + Expr::int(3))));
        assert_eq!((s("i") * s("i")).linear_in(&i), None);
        assert_eq!(s("i").modulo(&s("n")).linear_in(&i), None);
    }

    #[test]
    fn min_max_fold_when_the_difference_is_constant() {
        assert_eq!(s("a").minimum(&(s("a") + Expr::ONE)), s("a"));
        assert_eq!(s("a").maximum(&s("b")), s("b").maximum(&s("a")));
    }
}
