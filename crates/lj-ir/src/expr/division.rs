//! Division of expressions: exact quotients, floor division and remainders.

use super::{Atom, Expr, Term};

impl Term {
    fn is_one(&self) -> bool {
        self.factors.is_empty() && self.coef == 1
    }

    /// `self / d` if it is exact.
    fn div_exact(&self, d: &Term) -> Option<Term> {
        if self.coef.checked_rem(d.coef)? != 0 {
            return None;
        }
        let mut factors = self.factors.clone();
        for f in &d.factors {
            let at = factors.iter().position(|x| x == f)?;
            factors.remove(at);
        }
        Some(Term { factors, coef: self.coef / d.coef })
    }

    /// The greatest common divisor, with a positive coefficient.
    fn gcd(&self, o: &Term) -> Term {
        let (mut a, mut b) = (self.coef.unsigned_abs(), o.coef.unsigned_abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let mut left = o.factors.clone();
        let mut factors = self.factors.clone();
        factors.retain(|f| left.iter().position(|x| x == f).map(|at| left.remove(at)).is_some());
        // The divisor 2⁶³ of two coefficients i64::MIN does not fit; 1 divides as well.
        Term { factors, coef: i64::try_from(a).unwrap_or(1) }
    }
}

impl Expr {
    /// `self / d` if `d` divides every term of `self`, that is if the quotient is exact for every
    /// value of the symbols.
    pub fn div_exact(&self, d: &Expr) -> Option<Expr> {
        if d.is(1) {
            return Some(self.clone());
        }
        if d.is(0) {
            return None;
        }
        if self == d {
            return Some(Expr::ONE);
        }
        let dt = d.terms();
        if let [d] = dt.as_slice() {
            let quotients: Option<Vec<Term>> = self.terms().iter().map(|t| t.div_exact(d)).collect();
            return Some(Expr::from_terms(quotients?));
        }
        // Polynomial long division by the leading term; exact or nothing.
        let lead = dt.last()?;
        let mut rest = self.clone();
        let mut quotient = Expr::ZERO;
        for _ in 0..8 {
            if rest.is(0) {
                return Some(quotient);
            }
            let q = rest.terms().iter().rev().find_map(|t| t.div_exact(lead))?;
            let q = Expr::from_terms([q]);
            rest = &rest - &(&q * d);
            quotient = &quotient + &q;
        }
        None
    }

    /// Floor division. The divisor must not be zero.
    ///
    /// Every step holds for negative operands too: with `d` taking out of the dividend what it
    /// divides, `(d·q + r) // d = q + r // d`; common factors cancel; `(a // b) // c = a // (b·c)`
    /// for `c > 0`.
    #[must_use]
    pub fn floordiv(&self, d: &Expr) -> Expr {
        if d.is(0) {
            return Expr::from_atom(Atom::FloorDiv(self.clone(), d.clone()));
        }
        if let Some(q) = self.div_exact(d) {
            return q;
        }
        let (quotient, rest) = self.split_by(d);
        let (factor, rest, d) = rest.cancel(d);
        if !factor.is_one() {
            // What is left may split again: (a² + a) / -2a = (a + 1) / -2.
            return &quotient + &rest.floordiv(&d);
        }
        let fraction = match (rest.as_int(), d.as_int()) {
            (Some(a), Some(b)) => Expr::int(floor_div(a, b)),
            _ => rest.floordiv_reduced(&d),
        };
        &quotient + &fraction
    }

    /// [`Expr::floordiv`] when nothing cancels any more.
    fn floordiv_reduced(&self, d: &Expr) -> Expr {
        if d.is(1) {
            return self.clone();
        }
        if let (Some(Atom::FloorDiv(a, b)), Some(c)) = (self.as_atom(), d.as_int())
            && let Some(bc) = b.as_int().and_then(|b| b.checked_mul(c))
            && c > 0
        {
            return a.floordiv(&Expr::int(bc));
        }
        Expr::from_atom(Atom::FloorDiv(self.clone(), d.clone()))
    }

    /// The remainder with the sign of the divisor. The divisor must not be zero.
    #[must_use]
    pub fn modulo(&self, d: &Expr) -> Expr {
        if d.is(0) {
            return Expr::from_atom(Atom::Mod(self.clone(), d.clone()));
        }
        let (_, rest) = self.split_by(d);
        let (factor, rest, d) = rest.cancel(d);
        if !factor.is_one() {
            return &Expr::from_terms([factor]) * &rest.modulo(&d);
        }
        // (x mod k·d) mod d = x mod d
        if let Some(Atom::Mod(x, m)) = rest.as_atom()
            && m.div_exact(&d).is_some()
        {
            return x.modulo(&d);
        }
        match (rest.as_int(), d.as_int()) {
            (_, Some(1 | -1)) | (Some(0), _) => Expr::ZERO,
            (Some(a), Some(b)) => Expr::int(floor_mod(a, b)),
            _ => Expr::from_atom(Atom::Mod(rest, d)),
        }
    }

    /// `(q, r)` with `self = q·d + r`: `q` has the terms that `d` divides and the whole part of the
    /// constant. `d` is not zero.
    fn split_by(&self, d: &Expr) -> (Expr, Expr) {
        let dt = d.terms();
        let [d] = dt.as_slice() else { return (Expr::ZERO, self.clone()) };
        let (mut quotient, mut rest) = (vec![], vec![]);
        for mut t in self.terms() {
            if let Some(q) = t.div_exact(d) {
                quotient.push(q);
                continue;
            }
            if t.factors.is_empty() && d.factors.is_empty() {
                quotient.push(Term { factors: vec![], coef: floor_div(t.coef, d.coef) });
                t.coef = floor_mod(t.coef, d.coef);
            }
            rest.push(t);
        }
        (Expr::from_terms(quotient), Expr::from_terms(rest))
    }

    /// `(f, self / f, d / f)` for the greatest common monomial `f` (with positive coefficient) of all
    /// terms of both.
    fn cancel(&self, d: &Expr) -> (Term, Expr, Expr) {
        let (a, b) = (self.terms(), d.terms());
        let common = a.iter().chain(&b).cloned().reduce(|x, y| x.gcd(&y));
        let f = common.unwrap_or(Term { factors: vec![], coef: 1 });
        if f.is_one() {
            return (f, self.clone(), d.clone());
        }
        let divide = |e: Vec<Term>| Expr::from_terms(e.iter().filter_map(|t| t.div_exact(&f)));
        let (a, b) = (divide(a), divide(b));
        (f, a, b)
    }
}

/// Division rounding to minus infinity; the most negative integer wraps.
pub fn floor_div(a: i64, b: i64) -> i64 {
    let q = a.wrapping_div(b);
    if (a.wrapping_rem(b) != 0) && ((a < 0) != (b < 0)) { q - 1 } else { q }
}

/// The remainder of [`floor_div`].
pub fn floor_mod(a: i64, b: i64) -> i64 {
    let r = a.wrapping_rem(b);
    if r != 0 && ((r < 0) != (b < 0)) { r + b } else { r }
}
