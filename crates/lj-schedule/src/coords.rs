//! Index arithmetic: how the coordinates of a value's element map to those of its operand.

use lj_ir::shape::refine;
use lj_ir::{Atom, Expr, Facts, Sym, View};
use std::collections::BTreeMap;

/// What is known of loop variables: `0 <= var < extent`, with symbolic extents.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Ranges of the graph's symbols.
    pub facts: Facts,
    /// Extent of each loop variable.
    pub extents: BTreeMap<Sym, Expr>,
}

impl Bounds {
    /// `e` with floor divisions and remainders resolved where the ranges of loop variables decide
    /// them: `(o*n + r) // n = o` for `0 <= r < n`.
    pub fn simplify(&self, e: &Expr) -> Expr {
        if e.as_int().is_some() || e.terms().iter().all(|t| t.factors.iter().all(is_sym)) {
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
        self.join_div_mod(out)
    }

    fn simplify_atom(&self, a: &Atom) -> Expr {
        let (x, y, rebuilt) = match a {
            Atom::Sym(_) => return Expr::from_atom(a.clone()),
            Atom::FloorDiv(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                let e = x.floordiv(&y);
                (x, y, e)
            }
            Atom::Mod(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                let e = x.modulo(&y);
                (x, y, e)
            }
            Atom::Min(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                return match self.range(&(&x - &y)) {
                    (0.., _) => y,
                    (_, ..=0) => x,
                    _ => self.facts.simplify(&x.minimum(&y)),
                };
            }
            Atom::Max(x, y) => {
                let (x, y) = (self.simplify(x), self.simplify(y));
                return match self.range(&(&x - &y)) {
                    (0.., _) => x,
                    (_, ..=0) => y,
                    _ => self.facts.simplify(&x.maximum(&y)),
                };
            }
        };
        let is_div = matches!(a, Atom::FloorDiv(..));
        if self.below(&x, &y) {
            return if is_div { Expr::ZERO } else { x };
        }
        // Taking out the divisible terms may have left a remainder that is small enough.
        let mut out = Expr::ZERO;
        for t in rebuilt.terms() {
            let mut p = Expr::int(t.coef);
            for f in &t.factors {
                p = p * match f {
                    Atom::FloorDiv(r, d) if self.below(r, d) => Expr::ZERO,
                    Atom::Mod(r, d) if self.below(r, d) => r.clone(),
                    other => Expr::from_atom(other.clone()),
                };
            }
            out = out + p;
        }
        out
    }

    /// `d*(x // d) + x % d = x`.
    fn join_div_mod(&self, e: Expr) -> Expr {
        let mods: Vec<(Expr, Expr)> = e
            .terms()
            .iter()
            .flat_map(|t| t.factors.clone())
            .filter_map(|f| if let Atom::Mod(x, d) = f { Some((x, d)) } else { None })
            .collect();
        let mut e = e;
        for (x, d) in mods {
            let modulo = Sym::new("$mod");
            let division = Sym::new("$div");
            let replaced = replace_atom(&e, &Atom::Mod(x.clone(), d.clone()), &modulo);
            let replaced = replace_atom(&replaced, &Atom::FloorDiv(x.clone(), d.clone()), &division);
            let Some((cm, rest)) = replaced.linear_in(&modulo) else { continue };
            let Some((cd, rest)) = rest.linear_in(&division) else { continue };
            if !cd.is(0) && cd == &cm * &d {
                e = self.simplify(&(&cm * &x + rest));
            }
        }
        e
    }

    /// Whether `0 <= x < y` is provable.
    pub fn below(&self, x: &Expr, y: &Expr) -> bool {
        self.upper(x).is_some_and(|u| self.facts.ge(y, &(&u + &Expr::ONE)))
    }

    /// The smallest and the largest value of `e`, as far as ranges of loop variables and of the
    /// graph's symbols tell.
    pub fn range(&self, e: &Expr) -> (i64, i64) {
        let (mut low, mut high) = (e.clone(), e.clone());
        for s in e.symbols() {
            let Some(extent) = self.extents.get(&s) else { continue };
            let last = extent - &Expr::ONE;
            let at_end = |e: &Expr, end: &Expr| e.substitute(&|x| (*x == s).then(|| end.clone()));
            let Some((factor, _)) = e.linear_in(&s) else {
                return (i64::MIN, i64::MAX);
            };
            if self.facts.ge(&factor, &Expr::ZERO) {
                (low, high) = (at_end(&low, &Expr::ZERO), at_end(&high, &last));
            } else if self.facts.ge(&Expr::ZERO, &factor) {
                (low, high) = (at_end(&low, &last), at_end(&high, &Expr::ZERO));
            } else {
                return (i64::MIN, i64::MAX);
            }
        }
        (self.facts.range(&low).0, self.facts.range(&high).1)
    }

    /// An upper bound of a non-negative expression; `None` if it may be negative or is not a plain
    /// polynomial in variables and sizes.
    fn upper(&self, x: &Expr) -> Option<Expr> {
        for t in x.terms() {
            if t.coef < 0 {
                return None;
            }
            for f in &t.factors {
                let Atom::Sym(s) = f else { return None };
                let known =
                    self.extents.contains_key(s) || self.facts.syms.get(s).is_some_and(|i| i.min >= 0);
                if !known {
                    return None;
                }
            }
        }
        Some(x.substitute(&|s| self.extents.get(s).map(|e| e - &Expr::ONE)))
    }
}

fn is_sym(a: &Atom) -> bool {
    matches!(a, Atom::Sym(_))
}

fn replace_atom(e: &Expr, what: &Atom, by: &Sym) -> Expr {
    let mut out = Expr::ZERO;
    for t in e.terms() {
        let mut p = Expr::int(t.coef);
        for f in &t.factors {
            p = p * if f == what {
                Expr::from_atom(Atom::Sym(by.clone()))
            } else {
                Expr::from_atom(f.clone())
            };
        }
        out = out + p;
    }
    out
}

/// Coordinates of the operand's element that element `coords` of a broadcast result reads.
pub fn broadcast_coords(shape: &[Expr], coords: &[Expr]) -> Vec<Expr> {
    let skip = coords.len() - shape.len();
    shape.iter().zip(&coords[skip..]).map(|(e, c)| if e.is(1) { Expr::ZERO } else { c.clone() }).collect()
}

/// Coordinates in the view's operand of element `coords` of the view.
pub fn view_coords(view: &View, from: &[Expr], to: &[Expr], coords: &[Expr], bounds: &Bounds) -> Vec<Expr> {
    match view {
        View::Permute(perm) => {
            let mut out = vec![Expr::ZERO; from.len()];
            for (c, &p) in coords.iter().zip(perm) {
                out[p] = c.clone();
            }
            out
        }
        View::Expand => broadcast_coords(from, coords),
        View::Slice { dim, start, step } => {
            let mut out = coords.to_vec();
            out[*dim] = start + &(&coords[*dim] * &Expr::int(*step));
            out
        }
        View::Select { dim, index } => {
            let mut out = coords.to_vec();
            out.insert(*dim, index.clone());
            out
        }
        View::Flip(dims) => {
            let mut out = coords.to_vec();
            for &d in dims {
                out[d] = &(&from[d] - &Expr::ONE) - &coords[d];
            }
            out
        }
        View::Reshape => reshape_coords(from, to, coords, bounds),
        View::Map(map) => View::placed(map, coords).iter().map(|e| bounds.simplify(e)).collect(),
    }
}

fn reshape_coords(from: &[Expr], to: &[Expr], coords: &[Expr], bounds: &Bounds) -> Vec<Expr> {
    if let Some((parts, cover_to, cover_from)) = refine(to, from, &bounds.facts) {
        // Coordinates along the common refinement, then joined to those of the operand.
        let mut part_coords = Vec::with_capacity(parts.len());
        let mut at = 0;
        for (c, &n) in coords.iter().zip(&cover_to) {
            for k in 0..n {
                let inner = Expr::product(&parts[at + k + 1..at + n]);
                let mut e = c.floordiv(&inner);
                if k > 0 {
                    e = e.modulo(&parts[at + k]);
                }
                part_coords.push(bounds.simplify(&e));
            }
            at += n;
        }
        return join_parts(&part_coords, &parts, &cover_from);
    }
    let mut linear = Expr::ZERO;
    for (c, e) in coords.iter().zip(to) {
        linear = linear * e + c;
    }
    let mut out = vec![Expr::ZERO; from.len()];
    let mut inner = Expr::ONE;
    for d in (0..from.len()).rev() {
        let mut e = linear.floordiv(&inner);
        if d > 0 {
            e = e.modulo(&from[d]);
        }
        out[d] = bounds.simplify(&e);
        inner = &inner * &from[d];
    }
    out
}

/// Coordinates of dims that cover `cover[d]` consecutive parts each.
pub fn join_parts(part_coords: &[Expr], parts: &[Expr], cover: &[usize]) -> Vec<Expr> {
    let mut at = 0;
    cover
        .iter()
        .map(|&n| {
            let mut e = Expr::ZERO;
            for k in at..at + n {
                e = e * &parts[k] + &part_coords[k];
            }
            at += n;
            e
        })
        .collect()
}

/// Strides of a view over strides of its operand, with the offset it adds, or `None` when it cannot
/// be expressed by strides. Negative strides are not expressible.
pub fn view_layout(
    view: &View,
    from: &[Expr],
    strides: &[Expr],
    to: &[Expr],
    facts: &Facts,
) -> Option<(Expr, Vec<Expr>)> {
    match view {
        View::Permute(perm) => Some((Expr::ZERO, perm.iter().map(|&p| strides[p].clone()).collect())),
        View::Expand => {
            let new = to.len() - from.len();
            let s = (0..to.len()).map(|i| {
                if i < new || (from[i - new].is(1) && !to[i].is(1)) {
                    Expr::ZERO
                } else {
                    strides[i - new].clone()
                }
            });
            Some((Expr::ZERO, s.collect()))
        }
        View::Slice { dim, start, step } => {
            let mut s = strides.to_vec();
            s[*dim] = &s[*dim] * &Expr::int(*step);
            Some((start * &strides[*dim], s))
        }
        View::Select { dim, index } => {
            let mut s = strides.to_vec();
            let stride = s.remove(*dim);
            Some((index * &stride, s))
        }
        View::Flip(_) => None,
        View::Map(coords) => {
            let (offset, strides) = View::map_strides(coords, strides, to.len())?;
            let forward = |e: &Expr| facts.ge(e, &Expr::ZERO);
            (forward(&offset) && strides.iter().all(forward)).then_some((offset, strides))
        }
        View::Reshape => lj_ir::shape::reshape_strides(from, strides, to, facts).map(|s| (Expr::ZERO, s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_reshape_is_affine_again() {
        let (b, s, h) = (Expr::sym("s0"), Expr::sym("s1"), Expr::int(64));
        let mut bounds = Bounds::default();
        for n in ["s0", "s1"] {
            bounds.facts.syms.insert(Sym::new(n), lj_ir::SymInfo { min: 2, max: i64::MAX, hint: None });
        }
        bounds.extents.insert(Sym::new("x0"), b.clone());
        bounds.extents.insert(Sym::new("x1"), s.clone());
        bounds.extents.insert(Sym::new("x2"), h.clone());
        let x = |i: usize| Expr::sym(&format!("x{i}"));
        // [b*s, h] read by coordinates of [b, s, h], and back.
        let flat = reshape_coords(
            &[&b * &s, h.clone()],
            &[b.clone(), s.clone(), h.clone()],
            &[x(0), x(1), x(2)],
            &bounds,
        );
        assert_eq!(flat, vec![x(0) * &s + x(1), x(2)]);
        let back = reshape_coords(&[b.clone(), s.clone(), h.clone()], &[&b * &s, h], &flat, &bounds);
        assert_eq!(back, vec![x(0), x(1), x(2)]);
    }

    #[test]
    fn division_and_remainder_join() {
        let mut bounds = Bounds::default();
        bounds.extents.insert(Sym::new("m"), Expr::int(1000));
        let m = Expr::sym("m");
        let d = Expr::int(7);
        let e = m.floordiv(&d) * Expr::int(14) + m.modulo(&d) * Expr::int(2);
        assert_eq!(bounds.simplify(&e), m * Expr::int(2));
    }
}
