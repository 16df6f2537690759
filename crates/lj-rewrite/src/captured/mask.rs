//! What is known of a mask: the range of its values, and whether it is causal.
//!
//! Libraries make causal masks of positions that they look up in, or check against, others; the rules
//! here do away with that where the positions only count.

use super::{Part, at_part};
use crate::rules::{Found, Rule, Term};
use egg::Id;
use lj_ir::captured::Part as Given;
use lj_ir::{DType, Expr, Op, PwOp, Scalar, View};

pub(super) fn rules() -> Vec<Rule> {
    vec![
        at_part("mask-lookup", lookup),
        at_part("mask-differences", differences),
        at_part("mask-running-sum", running_sum),
    ]
}

/// Looked up in what counts along its last dim: the index itself, and where the counting begins.
/// Looked up in what is the same everywhere: that.
fn lookup(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::Lookup, _)) = f.part else { return vec![] };
    if let Some(k) = f.konst(f.arg(0)) {
        return vec![constant(f, k)];
    }
    let Some((0, start)) = index(f, f.arg(0), DEPTH) else { return vec![] };
    // An index below 0 counts from the end.
    let forward = index(f, f.arg(2), DEPTH).is_some_and(|(_, first)| f.facts().range(&first).0 >= 0);
    let (Some(start), Some(at), true) = (start.as_int(), f.term(f.arg(2)), forward) else { return vec![] };
    if f.spec.dtype != DType::I64 {
        return vec![];
    }
    let by = Term::scalar(Scalar::Int(start), f.spec, DType::I64);
    Term::pointwise(PwOp::Add, vec![at, by], f.facts()).into_iter().collect()
}

/// Differences of what counts, and is preceded by the number before its first.
fn differences(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::Differences, _)) = f.part else { return vec![] };
    let (Some((0, first)), Some((_, before))) = (index(f, f.arg(0), DEPTH), index(f, f.arg(1), DEPTH)) else {
        return vec![];
    };
    let one = f.tensor(f.arg(1)).and_then(|s| s.shape.last()).is_some_and(|e| e.is(1));
    if one && f.facts().eq(&first, &(before + Expr::ONE)) {
        return vec![constant(f, Scalar::Int(1))];
    }
    vec![]
}

fn running_sum(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::RunningSum, _)) = f.part else { return vec![] };
    let zero = f.konst(f.arg(0)).is_some_and(|k| k.as_f64() == 0.0);
    if zero { vec![constant(f, Scalar::Int(0))] } else { vec![] }
}

fn constant(f: &Found<'_>, k: Scalar) -> Term {
    Term::scalar(k, f.spec, f.spec.dtype).view(View::Expand, f.spec.shape.clone())
}

/// The deepest expression that is looked into.
const DEPTH: usize = 24;

/// The largest finite value.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => 3.389_531_389_251_535_5e38,
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

/// The range of a class's values, if they are known to be finite: `None` means that some may be
/// infinite or NaN.
pub(super) fn range(f: &Found<'_>, class: Id) -> Option<(f64, f64)> {
    bounds(f, class, DEPTH)
}

fn bounds(f: &Found<'_>, class: Id, depth: usize) -> Option<(f64, f64)> {
    let class = f.eg.find(class);
    let dtype = f.tensor(class)?.dtype;
    let fits = |(lo, hi): (f64, f64)| {
        let end = largest(dtype);
        (lo >= -end && hi <= end).then_some((lo, hi))
    };
    if let Some(k) = f.konst(class) {
        return fits((k.as_f64(), k.as_f64())).filter(|(lo, _)| lo.is_finite());
    }
    if depth == 0 {
        return None;
    }
    let of = |c: Id| bounds(f, c, depth - 1);
    for (op, args) in f.ops(class) {
        let found = match (op, args) {
            (Op::View(_) | Op::Convert, [x]) => of(*x).and_then(fits),
            (Op::Pointwise(PwOp::Where), [_, x, y]) => {
                of(*x).zip(of(*y)).map(|((a, b), (c, d))| (a.min(c), b.max(d)))
            }
            (Op::Pointwise(PwOp::Neg), [x]) => of(*x).map(|(a, b)| (-b, -a)),
            (Op::Pointwise(PwOp::Add), [x, y]) => {
                of(*x).zip(of(*y)).and_then(|((a, b), (c, d))| fits((a + c, b + d)))
            }
            (Op::Pointwise(PwOp::Sub), [x, y]) => {
                of(*x).zip(of(*y)).and_then(|((a, b), (c, d))| fits((a - d, b - c)))
            }
            (Op::Pointwise(PwOp::Mul), [x, y]) => of(*x).zip(of(*y)).and_then(|((a, b), (c, d))| {
                let all = [a * c, a * d, b * c, b * d];
                fits((
                    all.iter().copied().fold(f64::MAX, f64::min),
                    all.iter().copied().fold(f64::MIN, f64::max),
                ))
            }),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    (dtype == DType::Bool).then_some((0.0, 1.0))
}

/// Whether every value is -inf or small, so that a row's logarithm of its sum of exponentials keeps
/// what tells the scores apart.
pub(super) fn gentle(f: &Found<'_>, class: Id) -> bool {
    small_or_shut(f, class, DEPTH)
}

fn small_or_shut(f: &Found<'_>, class: Id, depth: usize) -> bool {
    let class = f.eg.find(class);
    let small = |v: f64| v.abs() <= 64.0;
    if let Some(k) = f.konst(class) {
        return k.as_f64() == f64::NEG_INFINITY || small(k.as_f64());
    }
    if depth == 0 {
        return false;
    }
    let of = |c: &Id| small_or_shut(f, *c, depth - 1);
    range(f, class).is_some_and(|(lo, hi)| small(lo) && small(hi))
        || f.ops(class).any(|(op, args)| match (op, args) {
            (Op::View(_) | Op::Convert, [x]) => of(x),
            (Op::Pointwise(PwOp::Where), [_, x, y]) | (Op::Pointwise(PwOp::Add), [x, y]) => of(x) && of(y),
            _ => false,
        })
}

/// A relation of a column and a row.
#[derive(Clone, Copy, PartialEq)]
struct Band {
    /// The largest `column - row` for which it holds, or does not hold if `inverse`.
    last: i64,
    inverse: bool,
}

/// Whether an additive mask is 0 up to the diagonal and blocks everything after it.
pub(super) fn adds_causally(f: &Found<'_>, mask: Id) -> bool {
    additive(f, mask, DEPTH)
}

fn additive(f: &Found<'_>, class: Id, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    f.ops(class).any(|(op, args)| match (op, args) {
        (Op::Convert | Op::View(View::Reshape | View::Expand), [x]) => additive(f, *x, depth - 1),
        (Op::Pointwise(PwOp::Where), [c, x, y]) => {
            let zero = |c: &Id| f.konst(*c).is_some_and(|k| k.as_f64() == 0.0);
            let wall = |c: &Id| f.konst(*c).is_some_and(blocks);
            (zero(x) && wall(y) && allows_causally(f, *c, false))
                || (wall(x) && zero(y) && allows_causally(f, *c, true))
        }
        _ => false,
    })
}

/// Whether a score of this size, or one lowered by it, leaves nothing of its exponential beside one
/// that is not.
pub(super) fn blocks(k: Scalar) -> bool {
    k.as_f64() <= -1e4
}

/// Whether a condition holds (or, if `inverse`, fails) exactly up to the diagonal.
pub(super) fn allows_causally(f: &Found<'_>, condition: Id, inverse: bool) -> bool {
    band(f, condition, DEPTH) == Some(Band { last: 0, inverse })
}

fn band(f: &Found<'_>, class: Id, depth: usize) -> Option<Band> {
    if depth == 0 {
        return None;
    }
    let truth = |c: &Id| f.konst(*c).is_some_and(|k| k.as_f64() == 1.0);
    f.ops(class).find_map(|(op, args)| match (op, args) {
        (Op::Convert, [x]) if f.tensor(*x).is_some_and(|s| s.dtype == DType::Bool) => band(f, *x, depth - 1),
        (Op::View(View::Reshape | View::Expand), [x]) => {
            // The last two dims must stay where they are.
            let (from, to) = (&f.tensor(*x)?.shape, &f.tensor(class)?.shape);
            let kept = from.len() >= 2
                && to.len() >= 2
                && f.same_shape(&from[from.len() - 2..], &to[to.len() - 2..]);
            if kept { band(f, *x, depth - 1) } else { None }
        }
        (Op::Pointwise(PwOp::And), [x, y]) if truth(y) => band(f, *x, depth - 1),
        (Op::Pointwise(PwOp::And), [x, y]) if truth(x) => band(f, *y, depth - 1),
        (Op::Pointwise(PwOp::Not), [x]) => band(f, *x, depth - 1).map(|b| Band { inverse: !b.inverse, ..b }),
        (Op::Pointwise(op @ (PwOp::Eq | PwOp::Ne)), [x, y]) => {
            // `tril(ones) == 0`.
            let k = f.konst(*y)?.as_f64();
            selected(f, *x, depth - 1).and_then(|(inside, outside, b)| {
                let (i, o) = ((inside == k) == (*op == PwOp::Eq), (outside == k) == (*op == PwOp::Eq));
                (i != o).then_some(Band { inverse: b.inverse == i, ..b })
            })
        }
        (Op::Pointwise(op), [x, y]) => compared(f, *op, *x, *y, depth - 1),
        _ => None,
    })
}

/// A choice between two constants by a band: the value where it holds, elsewhere, and the band.
fn selected(f: &Found<'_>, class: Id, depth: usize) -> Option<(f64, f64, Band)> {
    if depth == 0 {
        return None;
    }
    f.ops(class).find_map(|(op, args)| match (op, args) {
        (Op::Convert | Op::View(View::Reshape | View::Expand), [x]) => selected(f, *x, depth - 1),
        (Op::Pointwise(PwOp::Where), [c, x, y]) => {
            Some((f.konst(*x)?.as_f64(), f.konst(*y)?.as_f64(), band(f, *c, depth - 1)?))
        }
        _ => None,
    })
}

fn compared(f: &Found<'_>, op: PwOp, x: Id, y: Id, depth: usize) -> Option<Band> {
    let ((dim_x, x), (dim_y, y)) = (index(f, x, depth)?, index(f, y, depth)?);
    // As `column + x op row + y`.
    let (op, gap) = match (dim_x, dim_y) {
        (0, 1) => (op, &y - &x),
        (1, 0) => {
            let turned = match op {
                PwOp::Le => PwOp::Ge,
                PwOp::Lt => PwOp::Gt,
                PwOp::Ge => PwOp::Le,
                PwOp::Gt => PwOp::Lt,
                _ => return None,
            };
            (turned, &x - &y)
        }
        _ => return None,
    };
    let gap = gap.as_int()?;
    Some(match op {
        PwOp::Le => Band { last: gap, inverse: false },
        PwOp::Lt => Band { last: gap - 1, inverse: false },
        PwOp::Gt => Band { last: gap, inverse: true },
        PwOp::Ge => Band { last: gap - 1, inverse: true },
        _ => return None,
    })
}

/// The dim, from the end, along which a class counts in ones, and where it begins.
fn index(f: &Found<'_>, class: Id, depth: usize) -> Option<(usize, Expr)> {
    if depth == 0 {
        return None;
    }
    let shape = &f.tensor(class)?.shape;
    f.ops(class).find_map(|(op, args)| match (op, args) {
        (Op::Iota { start, step }, []) if step.is(1) => Some((0, start.clone())),
        (Op::Convert, [x]) if f.tensor(class)?.dtype.is_int() => index(f, *x, depth - 1),
        (Op::View(View::Expand), [x]) => index(f, *x, depth - 1),
        (Op::View(View::Reshape), [x]) => {
            let (_, start) = index(f, *x, depth - 1)?;
            let long =
                |s: &[Expr]| -> Vec<usize> { (0..s.len()).filter(|d| !s[s.len() - 1 - d].is(1)).collect() };
            let [to] = long(shape)[..] else { return None };
            (long(&f.tensor(*x)?.shape).len() == 1).then_some((to, start))
        }
        (Op::View(View::Slice { dim, start: first, step: 1 }), [x]) => {
            let (d, start) = index(f, *x, depth - 1)?;
            (d + dim + 1 == shape.len()).then(|| (d, start + first.clone()))
        }
        (Op::Pointwise(op @ (PwOp::Add | PwOp::Sub)), [x, y]) => {
            let turned = *op == PwOp::Add && f.konst(*y).is_none();
            let (x, y) = if turned { (y, x) } else { (x, y) };
            let Scalar::Int(k) = f.konst(*y)? else { return None };
            let k = if *op == PwOp::Sub { k.checked_neg()? } else { k };
            index(f, *x, depth - 1).map(|(d, start)| (d, start + Expr::int(k)))
        }
        _ => None,
    })
}
