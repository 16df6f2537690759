//! Loop order: which dims of a space become loops, in which order, and which are merged.

use crate::coords::Bounds;
use crate::emit::UseKind;
use crate::fuse::space_var;
use lj_ir::{Atom, Expr, Facts, Sym};

/// A loop over one or several merged dims of a space.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The dim whose space variable carries the loop; merged-in dims are held at 0.
    pub dim: usize,
    /// Number of iterations.
    pub extent: Expr,
    /// Whether it is walked from the last element to the first.
    pub reverse: bool,
}

impl Axis {
    /// An axis of `dim`, walked forwards.
    pub fn new(dim: usize, extent: Expr) -> Axis {
        Axis { dim, extent, reverse: false }
    }

    /// The element that iteration `i` is about.
    pub fn at(&self, i: Expr) -> Expr {
        if self.reverse { &self.extent - &Expr::ONE - i } else { i }
    }
}

/// Index expressions of a nest, over space variables.
pub struct Uses {
    list: Vec<(Expr, UseKind)>,
}

impl Uses {
    /// Wraps recorded uses; duplicates do not matter.
    pub fn new(mut list: Vec<(Expr, UseKind)>) -> Uses {
        let mut seen: Vec<(Expr, UseKind)> = vec![];
        list.retain(|u| {
            let new = !seen.contains(u);
            if new {
                seen.push(u.clone());
            }
            new
        });
        Uses { list }
    }

    /// The use that decides the order: the store that varies in most dims (the largest elements win),
    /// else the load that does.
    fn primary(&self, dims: &[usize], stores_first: bool) -> Option<&Expr> {
        let varying = |e: &Expr| dims.iter().filter(|&&d| e.mentions(&space_var(d))).count();
        let rank = |(e, k): &(Expr, UseKind)| match k {
            UseKind::Store(b) => (varying(e), stores_first, *b),
            UseKind::Load(b) => (varying(e), !stores_first, *b),
            UseKind::Value => (0, false, 0),
        };
        let mut best: Option<&(Expr, UseKind)> = None;
        for u in &self.list {
            if u.1 != UseKind::Value && best.is_none_or(|b| rank(u) > rank(b)) {
                best = Some(u);
            }
        }
        best.map(|u| &u.0)
    }

    /// `dims` from the largest stride of the primary use to the smallest.
    pub fn order(&self, dims: &[usize], stores_first: bool, facts: &Facts) -> Vec<usize> {
        let mut out = dims.to_vec();
        if let Some(primary) = self.primary(dims, stores_first) {
            out.sort_by_key(|&d| std::cmp::Reverse(stride_hint(primary, &space_var(d), facts)));
        }
        out
    }

    /// The dim along which most of the traffic is contiguous: every load and store counts with the
    /// bytes it moves over the whole space.
    pub fn contiguous_dim(&self, dims: &[usize], space: &[Expr], facts: &Facts) -> Option<usize> {
        let moved = |e: &Expr, bytes: i64| -> f64 {
            let varying = dims.iter().filter(|&&d| e.mentions(&space_var(d)));
            varying.map(|&d| facts.hint(&space[d]) as f64).product::<f64>() * bytes as f64
        };
        let mut best: Option<(f64, usize)> = None;
        for &d in dims {
            let var = space_var(d);
            let score: f64 = self
                .list
                .iter()
                .filter(|(e, _)| e.linear_in(&var).is_some_and(|(s, _)| s.is(1)))
                .map(|(e, k)| match k {
                    UseKind::Load(b) => moved(e, *b),
                    // A strided store costs more than a strided load.
                    UseKind::Store(b) => 1.5 * moved(e, *b),
                    UseKind::Value => 0.0,
                })
                .sum();
            // Later dims win ties: they are usually the inner ones.
            if score > 0.0 && best.is_none_or(|(s, _)| score >= s) {
                best = Some((score, d));
            }
        }
        best.map(|(_, d)| d)
    }

    /// Whether some use steps along `inner` by a large stride while another dim is contiguous.
    pub fn transposed_dim(&self, dims: &[usize], inner: usize, facts: &Facts) -> Option<usize> {
        self.list.iter().find_map(|(e, k)| {
            if *k == UseKind::Value || stride_hint(e, &space_var(inner), facts) < 16 {
                return None;
            }
            dims.iter()
                .copied()
                .find(|&d| d != inner && e.linear_in(&space_var(d)).is_some_and(|(s, _)| s.is(1)))
        })
    }

    /// The smallest number of consecutive positions along `dim` after which every division and
    /// remainder by a constant comes round again: 1 if none divides that dim's position.
    pub fn period(&self, dim: usize) -> i64 {
        let mut period = 1;
        for (e, _) in &self.list {
            divisions(e, &mut |x, d| {
                let Some(d) = d.as_int().filter(|d| *d > 0) else { return };
                linear_parts(x, &space_var(dim), &mut |f| {
                    if f != 0 {
                        period = lcm(period, d / gcd(d, f));
                    }
                });
            });
        }
        period
    }

    /// How far from the beginning and from the end of the loop over `var` the minima and maxima are
    /// undecided, with the position along `dim` given by `x`.
    pub fn borders(&self, dim: usize, x: &Expr, var: &Sym, bounds: &Bounds) -> (i64, i64) {
        let (mut low, mut high) = (0, 0);
        let Some(last) = bounds.extents.get(var).map(|n| n - &Expr::ONE) else { return (0, 0) };
        for (e, _) in self.list.iter().filter(|(e, _)| e.mentions(&space_var(dim))) {
            let placed = e.substitute(&|s| (*s == space_var(dim)).then(|| x.clone()));
            extrema(&bounds.simplify(&placed), &mut |a, b| {
                let Some((factor, rest)) = (a - b).linear_in(var) else { return };
                let Some(k) = factor.as_int().filter(|k| *k != 0) else { return };
                // Where the difference changes its sign: near the beginning or near the end.
                if let Some(c) = rest.as_int() {
                    low = low.max(-lj_ir::expr::floor_div(c, k));
                }
                if let Some(c) = bounds.facts.simplify(&(&rest + &(&factor * &last))).as_int() {
                    high = high.max(-lj_ir::expr::floor_div(c, -k));
                }
            });
        }
        // A loop of few iterations has its end near its beginning.
        match last.as_int() {
            Some(n) => (if low > n / 2 { 0 } else { low }, if high > n / 2 { 0 } else { high }),
            None => (low, high),
        }
    }

    /// Drops dims of extent 1 and merges neighbours that every use walks as one.
    pub fn merge(&mut self, order: &[usize], space: &[Expr], facts: &Facts) -> Vec<Axis> {
        let mut out: Vec<Axis> = vec![];
        for &d in order {
            if space[d].is(1) {
                continue;
            }
            let inner = space_var(d);
            if let Some(top) = out.last_mut() {
                let outer = space_var(top.dim);
                let whole = self.list.iter().all(|(e, _)| {
                    let Some((so, rest)) = e.linear_in(&outer) else { return false };
                    let Some((si, _)) = rest.linear_in(&inner) else { return false };
                    !so.mentions(&inner) && facts.eq(&so, &(&si * &space[d]))
                });
                if whole {
                    for (e, _) in &mut self.list {
                        *e = e.substitute(&|s| (*s == outer).then_some(Expr::ZERO));
                    }
                    *top = Axis::new(d, &top.extent * &space[d]);
                    // The merged axis has the inner dim's stride, but more iterations.
                    continue;
                }
            }
            out.push(Axis::new(d, space[d].clone()));
        }
        out
    }
}

fn stride_hint(e: &Expr, var: &Sym, facts: &Facts) -> i64 {
    e.linear_in(var).map_or(0, |(s, _)| facts.hint(&s).abs())
}

/// Calls `f` with the dividend and the divisor of every division and remainder in `e`.
fn divisions(e: &Expr, f: &mut dyn FnMut(&Expr, &Expr)) {
    for a in e.terms().iter().flat_map(|t| &t.factors) {
        if let Atom::FloorDiv(x, y) | Atom::Mod(x, y) = a {
            f(x, y);
        }
        if let Atom::FloorDiv(x, y) | Atom::Mod(x, y) | Atom::Min(x, y) | Atom::Max(x, y) = a {
            divisions(x, f);
            divisions(y, f);
        }
    }
}

/// Calls `f` with the constant factor of `var` in `e`, or, where `e` chooses among several
/// expressions, in each of them.
fn linear_parts(e: &Expr, var: &Sym, f: &mut dyn FnMut(i64)) {
    if let Some((factor, _)) = e.linear_in(var) {
        return factor.as_int().into_iter().for_each(f);
    }
    for a in e.terms().iter().flat_map(|t| &t.factors) {
        if let Atom::Min(x, y) | Atom::Max(x, y) = a {
            linear_parts(x, var, f);
            linear_parts(y, var, f);
        }
    }
}

/// Calls `f` with the two sides of every minimum and maximum in `e`.
fn extrema(e: &Expr, f: &mut dyn FnMut(&Expr, &Expr)) {
    for a in e.terms().iter().flat_map(|t| &t.factors) {
        if let Atom::Min(x, y) | Atom::Max(x, y) = a {
            f(x, y);
        }
        if let Atom::FloorDiv(x, y) | Atom::Mod(x, y) | Atom::Min(x, y) | Atom::Max(x, y) = a {
            extrema(x, f);
            extrema(y, f);
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

fn lcm(a: i64, b: i64) -> i64 {
    (a / gcd(a, b)).saturating_mul(b)
}
