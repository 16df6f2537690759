//! What is known about the symbols of a graph: ranges and example values.

use crate::expr::{Atom, Expr, Sym};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is known of one symbol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymInfo {
    /// Smallest possible value.
    pub min: i64,
    /// Largest possible value; `i64::MAX` when unbounded.
    pub max: i64,
    /// The value it had when the graph was traced, if it had one.
    pub hint: Option<i64>,
}

/// Ranges and hints of symbols, and the questions they answer. A question answered `false` means
/// "not provable".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Known symbols by name.
    pub syms: BTreeMap<Sym, SymInfo>,
}

/// Stands for unbounded in range arithmetic; far from overflow when a few are multiplied in i128.
const INF: i128 = i64::MAX as i128;

impl Facts {
    /// The inclusive range of `e`; `i64::MIN`/`i64::MAX` stand for unbounded.
    pub fn range(&self, e: &Expr) -> (i64, i64) {
        let (lo, hi) = self.range128(e);
        (lo.clamp(-INF, INF) as i64, hi.clamp(-INF, INF) as i64)
    }

    fn range128(&self, e: &Expr) -> (i128, i128) {
        let (mut lo, mut hi) = (0i128, 0i128);
        for t in e.terms() {
            let (mut l, mut h) = (1i128, 1i128);
            for a in &t.factors {
                let (x, y) = self.atom_range(a);
                let c = [l * x, l * y, h * x, h * y].map(|v| v.clamp(-INF, INF));
                l = c.into_iter().min().unwrap_or(0);
                h = c.into_iter().max().unwrap_or(0);
            }
            let k = i128::from(t.coef);
            let (a, b) = if k >= 0 { (l * k, h * k) } else { (h * k, l * k) };
            lo = (lo + a).clamp(-INF, INF);
            hi = (hi + b).clamp(-INF, INF);
        }
        (lo, hi)
    }

    fn atom_range(&self, a: &Atom) -> (i128, i128) {
        match a {
            Atom::Sym(s) => match self.syms.get(s) {
                Some(i) => (i128::from(i.min), i128::from(i.max)),
                None => (-INF, INF),
            },
            Atom::FloorDiv(x, y) => {
                let ((a, b), (c, d)) = (self.range128(x), self.range128(y));
                if c >= 1 {
                    let q = |n: i128, m: i128| n.div_euclid(m);
                    let all = [q(a, c), q(a, d), q(b, c), q(b, d)];
                    (all.into_iter().min().unwrap_or(-INF), all.into_iter().max().unwrap_or(INF))
                } else {
                    (-INF, INF)
                }
            }
            Atom::Mod(x, y) => {
                let ((a, b), (c, d)) = (self.range128(x), self.range128(y));
                if c < 1 {
                    (-INF, INF)
                } else if a >= 0 && b < c {
                    (a, b)
                } else {
                    (0, d - 1)
                }
            }
            Atom::Min(x, y) => {
                let ((a, b), (c, d)) = (self.range128(x), self.range128(y));
                (a.min(c), b.min(d))
            }
            Atom::Max(x, y) => {
                let ((a, b), (c, d)) = (self.range128(x), self.range128(y));
                (a.max(c), b.max(d))
            }
        }
    }

    /// Whether `a == b` for every value of the symbols.
    pub fn eq(&self, a: &Expr, b: &Expr) -> bool {
        a == b || self.range(&(a - b)) == (0, 0)
    }

    /// Whether `a >= b` for every value of the symbols.
    pub fn ge(&self, a: &Expr, b: &Expr) -> bool {
        self.range(&(a - b)).0 >= 0
    }

    /// Whether `a != b` for every value of the symbols.
    pub fn ne(&self, a: &Expr, b: &Expr) -> bool {
        let (lo, hi) = self.range(&(a - b));
        lo > 0 || hi < 0
    }

    /// Whether the constant `d` divides `e` for every value of the symbols.
    pub fn divisible(&self, e: &Expr, d: i64) -> bool {
        d != 0 && e.modulo(&Expr::int(d)).is(0)
    }

    /// The value of `e` for the traced sizes; symbols without a hint count as 64, so this is for
    /// cost estimates only.
    pub fn hint(&self, e: &Expr) -> i64 {
        e.eval(&|s| Some(self.syms.get(s).and_then(|i| i.hint).unwrap_or(64))).unwrap_or(64)
    }

    /// `e` with divisions, remainders, minima and maxima resolved where ranges decide them, such as
    /// `(o*n + r) // n = o` for `0 <= r < n`.
    pub fn simplify(&self, e: &Expr) -> Expr {
        if e.as_int().is_some() {
            return e.clone();
        }
        let mut out = Expr::ZERO;
        for t in e.terms() {
            let mut p = Expr::int(t.coef);
            for a in &t.factors {
                p = p * self.simplify_atom(a);
            }
            out = out + p;
        }
        out
    }

    fn simplify_atom(&self, a: &Atom) -> Expr {
        match a {
            Atom::Sym(_) => Expr::from_atom(a.clone()),
            Atom::FloorDiv(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                if self.within(&x, &y) { Expr::ZERO } else { x.floordiv(&y) }
            }
            Atom::Mod(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                if self.within(&x, &y) { x } else { x.modulo(&y) }
            }
            Atom::Min(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                if self.ge(&y, &x) { x } else if self.ge(&x, &y) { y } else { x.minimum(&y) }
            }
            Atom::Max(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                if self.ge(&x, &y) { x } else if self.ge(&y, &x) { y } else { x.maximum(&y) }
            }
        }
    }

    /// Whether `0 <= x < y` is provable.
    fn within(&self, x: &Expr, y: &Expr) -> bool {
        self.ge(x, &Expr::ZERO) && self.ge(y, &(x + &Expr::ONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(list: &[(&str, i64, i64)]) -> Facts {
        let mut f = Facts::default();
        for &(n, min, max) in list {
            f.syms.insert(Sym::new(n), SymInfo { min, max, hint: None });
        }
        f
    }

    #[test]
    fn ranges_decide() {
        let f = facts(&[("n", 2, i64::MAX), ("r", 0, 15)]);
        let (n, r) = (Expr::sym("n"), Expr::sym("r"));
        assert!(f.ge(&n, &Expr::int(2)));
        assert!(!f.ge(&n, &Expr::int(3)));
        assert!(f.ne(&n, &Expr::ONE));
        assert!(f.divisible(&(&n * &Expr::int(32)), 16));
        assert!(!f.divisible(&n, 2));
        assert_eq!(f.simplify(&(&n * &Expr::int(16) + &r).floordiv(&Expr::int(16))), n);
        assert_eq!(f.simplify(&r.modulo(&Expr::int(16))), r);
        assert_eq!(f.simplify(&r.minimum(&n)), r.minimum(&n));
    }
}
