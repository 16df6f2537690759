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

/// Whether `e` is made of symbols alone, with nothing to resolve.
fn is_polynomial(e: &Expr) -> bool {
    e.parts().0.iter().flat_map(|t| &t.factors).all(|f| matches!(f, Atom::Sym(_)))
}

fn clamp(v: i128) -> i128 {
    v.clamp(-INF, INF)
}

impl Facts {
    /// The inclusive range of `e`; beyond ±(2⁶³ − 1), which stand for unbounded, nothing is said.
    pub fn range(&self, e: &Expr) -> (i64, i64) {
        let (lo, hi) = self.range128(e);
        (lo as i64, hi as i64)
    }

    /// Bounds within ±`INF`.
    fn range128(&self, e: &Expr) -> (i128, i128) {
        let (terms, constant) = e.parts();
        let (mut lo, mut hi) = (clamp(constant.into()), clamp(constant.into()));
        for t in terms {
            let k = i128::from(t.coef);
            let (mut l, mut h) = (k, k);
            for a in &t.factors {
                let (x, y) = self.atom_range(a);
                let c = [l * x, l * y, h * x, h * y].map(clamp);
                l = c[0].min(c[1]).min(c[2]).min(c[3]);
                h = c[0].max(c[1]).max(c[2]).max(c[3]);
            }
            // A sum with something unbounded is unbounded, whatever the rest.
            lo = if lo == -INF || l == -INF { -INF } else { clamp(lo + l) };
            hi = if hi == INF || h == INF { INF } else { clamp(hi + h) };
        }
        (lo, hi)
    }

    fn atom_range(&self, a: &Atom) -> (i128, i128) {
        match a {
            Atom::Sym(s) => match self.syms.get(s) {
                Some(i) => (clamp(i.min.into()), clamp(i.max.into())),
                None => (-INF, INF),
            },
            Atom::FloorDiv(x, y) => {
                let ((a, b), (c, d)) = (self.range128(x), self.range128(y));
                if c < 1 {
                    return (-INF, INF);
                }
                // Monotonic in both for a dividend of one sign, so the corners decide.
                let q = [a.div_euclid(c), a.div_euclid(d), b.div_euclid(c), b.div_euclid(d)];
                let lo = q[0].min(q[1]).min(q[2]).min(q[3]);
                let hi = q[0].max(q[1]).max(q[2]).max(q[3]);
                (if a == -INF { -INF } else { lo }, if b == INF { INF } else { hi })
            }
            Atom::Mod(x, y) => {
                let ((a, b), (c, d)) = (self.range128(x), self.range128(y));
                if c < 1 {
                    (-INF, INF)
                } else if a >= 0 && b < c {
                    (a, b)
                } else if a >= 0 {
                    (0, b.min(d - 1))
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

    /// The range of `a - b`, simplified if that may help.
    fn difference(&self, a: &Expr, b: &Expr) -> (i64, i64) {
        let d = a - b;
        self.range(&if is_polynomial(&d) { d } else { self.simplify(&d) })
    }

    /// Whether `a == b` for every value of the symbols.
    pub fn eq(&self, a: &Expr, b: &Expr) -> bool {
        a == b || self.difference(a, b) == (0, 0)
    }

    /// Whether `a >= b` for every value of the symbols.
    pub fn ge(&self, a: &Expr, b: &Expr) -> bool {
        self.difference(a, b).0 >= 0
    }

    /// Whether `a != b` for every value of the symbols.
    pub fn ne(&self, a: &Expr, b: &Expr) -> bool {
        let (lo, hi) = self.difference(a, b);
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
    #[must_use]
    pub fn simplify(&self, e: &Expr) -> Expr {
        let mut now = self.simplify_once(e);
        // What a division leaves may be resolved in turn; each round leaves less.
        for _ in 0..4 {
            let next = self.simplify_once(&now);
            if next == now {
                break;
            }
            now = next;
        }
        now
    }

    fn simplify_once(&self, e: &Expr) -> Expr {
        if is_polynomial(e) {
            return e.clone();
        }
        let mut out = Expr::ZERO;
        for t in e.parts().0 {
            let mut p = Expr::int(t.coef);
            for a in &t.factors {
                p = p * self.simplify_atom(a);
            }
            out = out + p;
        }
        out
    }

    fn simplify_atom(&self, a: &Atom) -> Expr {
        let both = |x: &Expr, y: &Expr| (self.simplify_once(x), self.simplify_once(y));
        match a {
            Atom::Sym(_) => Expr::from_atom(a.clone()),
            Atom::FloorDiv(x, y) => {
                let (x, y) = both(x, y);
                if self.within(&x, &y) { Expr::ZERO } else { x.floordiv(&y) }
            }
            Atom::Mod(x, y) => {
                let (x, y) = both(x, y);
                if self.within(&x, &y) { x } else { x.modulo(&y) }
            }
            Atom::Min(x, y) => {
                let (x, y) = both(x, y);
                match self.range(&(&x - &y)) {
                    (_, hi) if hi <= 0 => x,
                    (lo, _) if lo >= 0 => y,
                    _ => x.minimum(&y),
                }
            }
            Atom::Max(x, y) => {
                let (x, y) = both(x, y);
                match self.range(&(&x - &y)) {
                    (lo, _) if lo >= 0 => x,
                    (_, hi) if hi <= 0 => y,
                    _ => x.maximum(&y),
                }
            }
        }
    }

    /// Whether `0 <= x < y` is provable by ranges alone.
    fn within(&self, x: &Expr, y: &Expr) -> bool {
        self.range(x).0 >= 0 && self.range(&(y - x)).0 >= 1
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
