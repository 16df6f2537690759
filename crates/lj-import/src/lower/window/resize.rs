//! Images enlarged and reduced.
//!
//! Where the ratio of the sizes is a multiple of an eighth, positions are exact in floating point:
//! they and the weights are integer expressions, and the scheduler reads memory in order. Other
//! ratios take positions from small tensors that are computed as ATen computes them.

use super::{choices, here, map, padded, position, sum_of};
use crate::cx::{Cx, Lowered, decline};
use crate::fx::FxArg;
use crate::lower::Row;
use lj_ir::{DType, Expr, Op, PwOp, Scalar, TensorType, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.upsample_nearest1d.default", |cx| nearest(cx, 1, false)),
    ("aten.upsample_nearest2d.default", |cx| nearest(cx, 2, false)),
    ("aten.upsample_nearest3d.default", |cx| nearest(cx, 3, false)),
    ("aten._upsample_nearest_exact1d.default", |cx| nearest(cx, 1, true)),
    ("aten._upsample_nearest_exact2d.default", |cx| nearest(cx, 2, true)),
    ("aten._upsample_nearest_exact3d.default", |cx| nearest(cx, 3, true)),
    ("aten.upsample_nearest1d_backward.default", |cx| nearest_backward(cx, 1)),
    ("aten.upsample_nearest2d_backward.default", |cx| nearest_backward(cx, 2)),
    ("aten.upsample_nearest3d_backward.default", |cx| nearest_backward(cx, 3)),
    ("aten._upsample_nearest_exact1d_backward.default", |cx| nearest_backward(cx, 1)),
    ("aten._upsample_nearest_exact2d_backward.default", |cx| nearest_backward(cx, 2)),
    ("aten._upsample_nearest_exact3d_backward.default", |cx| nearest_backward(cx, 3)),
    ("aten.upsample_linear1d.default", |cx| weighted(cx, 1, linear_neighbours)),
    ("aten.upsample_bilinear2d.default", |cx| weighted(cx, 2, linear_neighbours)),
    ("aten.upsample_trilinear3d.default", |cx| weighted(cx, 3, linear_neighbours)),
    ("aten.upsample_linear1d_backward.default", |cx| linear_backward(cx, 1)),
    ("aten.upsample_bilinear2d_backward.default", |cx| linear_backward(cx, 2)),
    ("aten.upsample_trilinear3d_backward.default", |cx| linear_backward(cx, 3)),
    ("aten.upsample_bicubic2d.default", |cx| weighted(cx, 2, cubic_neighbours)),
];

/// One resized dim of the operand.
struct Axis {
    dim: usize,
    from: Expr,
    to: Expr,
    /// The user's factor.
    factor: Option<f64>,
    /// Whether the corners' centres are aligned.
    corners: bool,
}

/// Elements of the operand per element of the result, where `f32` holds it exactly: a fraction with
/// a denominator of at most 8.
type Ratio = (i64, i64);

impl Axis {
    fn ratio(&self) -> Option<Ratio> {
        if self.from == self.to && (self.factor.is_none() || self.corners) {
            return Some((1, 1));
        }
        if self.corners {
            return None;
        }
        if let Some(f) = self.factor {
            return eighths((1.0 / f) as f32);
        }
        if let (Some(n), Some(m)) = (self.from.as_int(), self.to.as_int()) {
            return eighths(n as f32 / m as f32);
        }
        let whole = |e: Option<Expr>| e.and_then(|e| e.as_int());
        let up = whole(self.to.div_exact(&self.from)).and_then(|q| eighths(1.0 / q as f32));
        up.or_else(|| whole(self.from.div_exact(&self.to)).map(|p| (p, 1)))
    }

    /// The last element of the operand.
    fn last(&self) -> Expr {
        &self.from - &Expr::ONE
    }

    /// The ratio as a 0-d tensor, as ATen computes it.
    fn scale(&self, cx: &mut Cx<'_>, dtype: DType) -> Lowered<ValueId> {
        if let Some(f) = self.factor.filter(|_| !self.corners) {
            return Ok(cx.float(1.0 / f, dtype));
        }
        let less = Expr::int(i64::from(self.corners));
        let (from, to) = (&self.from - &less, &self.to - &less);
        if to.is(0) {
            return Ok(cx.float(0.0, dtype));
        }
        if self.corners && !cx.graph.facts.ge(&to, &Expr::ONE) {
            return decline("corners aligned to a symbolic size that may be 1");
        }
        let (from, to) = (cx.sym(&from, dtype), cx.sym(&to, dtype));
        cx.pw(PwOp::Div, &[from, to])
    }

    /// A 1-d tensor over the dim as one that broadcasts along it.
    fn along(&self, cx: &mut Cx<'_>, v: ValueId, rank: usize) -> ValueId {
        let mut shape = vec![self.to.clone()];
        shape.resize(rank - self.dim, Expr::ONE);
        cx.reshape(v, shape)
    }

    /// Positions of the result's elements in the operand: `scale·(i + ½) − ½`, or `scale·i` for
    /// aligned corners; with `half` false, `scale·i`.
    fn source(&self, cx: &mut Cx<'_>, dtype: DType, shift: f64, back: f64) -> Lowered<ValueId> {
        let scale = self.scale(cx, dtype)?;
        let i = position(cx, &here(0), &Expr::ZERO, std::slice::from_ref(&self.to), DType::I64);
        let mut at = cx.convert(i, dtype);
        if shift != 0.0 {
            let s = cx.float(shift, dtype);
            at = cx.pw(PwOp::Add, &[at, s])?;
        }
        at = cx.pw(PwOp::Mul, &[scale, at])?;
        if back != 0.0 {
            let b = cx.float(back, dtype);
            at = cx.pw(PwOp::Sub, &[at, b])?;
        }
        Ok(at)
    }

    /// `v`, floating, as an index that is certainly inside.
    fn index(&self, cx: &mut Cx<'_>, v: ValueId) -> Lowered<ValueId> {
        let i = cx.convert(v, DType::I64);
        self.inside(cx, i)
    }

    fn inside(&self, cx: &mut Cx<'_>, i: ValueId) -> Lowered<ValueId> {
        let (zero, last) = (cx.constant(Scalar::Int(0), DType::I64), cx.sym(&self.last(), DType::I64));
        let i = cx.pw(PwOp::Maximum, &[i, zero])?;
        cx.pw(PwOp::Minimum, &[i, last])
    }
}

/// `f` as a fraction if it is a positive multiple of an eighth.
fn eighths(f: f32) -> Option<Ratio> {
    let eighths = f64::from(f) * 8.0;
    if !(1.0..=1e6).contains(&eighths) || eighths.fract() != 0.0 {
        return None;
    }
    let (mut p, mut q) = (eighths as i64, 8);
    while p % 2 == 0 && q > 1 {
        (p, q) = (p / 2, q / 2);
    }
    Some((p, q))
}

/// Where a result reads the operand along a dim.
#[derive(Clone)]
enum Place {
    Exact(Expr),
    Index(ValueId),
}

/// What the factors are called, by number of dims.
const NAMES: [&[&str]; 3] = [&["scales"], &["scales_h", "scales_w"], &["scales_d", "scales_h", "scales_w"]];

/// The last `n` dims from the extents `from` to `to`. Their factors begin at argument `first`.
fn axes(
    cx: &Cx<'_>,
    from: &[Expr],
    to: &[Expr],
    n: usize,
    first: usize,
    corners: bool,
) -> Lowered<Vec<Axis>> {
    let Some(lead) = from.len().checked_sub(n).filter(|_| from.len() == to.len()) else {
        return decline("the rank does not fit");
    };
    let mut out = vec![];
    for k in 0..n {
        let factor = match cx.arg(first + k, NAMES[n - 1][k]) {
            None => None,
            Some(FxArg::Float(f)) => Some(*f).filter(|f| *f > 0.0),
            Some(_) => return decline("a factor known only at run time"),
        };
        let (from, to) = (from[lead + k].clone(), to[lead + k].clone());
        if !cx.graph.facts.ge(&from, &Expr::ONE) {
            return decline("an operand that may be empty");
        }
        out.push(Axis { dim: lead + k, from, to, factor, corners });
    }
    Ok(out)
}

/// `x` read at `places`, one per axis.
fn read(cx: &mut Cx<'_>, x: ValueId, axes: &[Axis], places: &[Place], shape: &[Expr]) -> ValueId {
    let mut coords: Vec<Expr> = (0..shape.len()).map(here).collect();
    let mut partly = shape.to_vec();
    let (mut dims, mut inputs) = (vec![], vec![]);
    for (a, p) in axes.iter().zip(places) {
        match p {
            Place::Exact(e) => coords[a.dim] = e.clone(),
            Place::Index(v) => {
                partly[a.dim] = a.from.clone();
                dims.push(a.dim);
                inputs.push(*v);
            }
        }
    }
    let mapped =
        if coords.iter().enumerate().all(|(d, e)| *e == here(d)) { x } else { map(cx, x, coords, &partly) };
    if dims.is_empty() {
        return mapped;
    }
    // Positions must be adjacent dims for one index: dims between are indexed by themselves.
    let (first, last) = (dims[0], dims[dims.len() - 1]);
    for (d, extent) in shape.iter().enumerate().take(last + 1).skip(first) {
        if !dims.contains(&d) {
            let own = position(cx, &here(0), &Expr::ZERO, std::slice::from_ref(extent), DType::I64);
            let mut wide = vec![extent.clone()];
            wide.resize(last - d + 1, Expr::ONE);
            let own = cx.reshape(own, wide);
            let at = d - first;
            dims.insert(at, d);
            inputs.insert(at, own);
        }
    }
    let trimmed: Vec<ValueId> = inputs
        .iter()
        .zip(&dims)
        .map(|(&v, &d)| {
            let mut wide = vec![shape[d].clone()];
            wide.resize(last - d + 1, Expr::ONE);
            cx.reshape(v, wide)
        })
        .collect();
    let ty = cx.ty(x).clone();
    let strides = lj_ir::shape::contiguous_strides(shape);
    let ty = TensorType { shape: shape.to_vec(), strides, ..ty };
    let inputs = [vec![mapped], trimmed].concat();
    cx.push(Op::Index { at: first, dims }, inputs, ty)
}

fn nearest(cx: &mut Cx<'_>, n: usize, exact: bool) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let axes = axes(cx, &cx.shape(x), &ty.shape, n, 2, false)?;
    let mut places = vec![];
    for a in &axes {
        places.push(if let Some((p, q)) = a.ratio() {
            let (p, q) = (Expr::int(p), Expr::int(q));
            let i = here(a.dim);
            let e = if exact {
                ((i * Expr::int(2) + Expr::ONE) * &p).floordiv(&(&q * &Expr::int(2)))
            } else {
                (i * &p).floordiv(&q)
            };
            let fits = cx.graph.facts.eq(&(&a.to * &p), &(&a.from * &q));
            Place::Exact(if fits { e } else { e.minimum(&a.last()) })
        } else {
            // Also for doubles: the ratio is always a float.
            let at = a.source(cx, DType::F32, if exact { 0.5 } else { 0.0 }, 0.0)?;
            let at = cx.pw(PwOp::Floor, &[at])?;
            Place::Index(a.index(cx, at)?)
        });
    }
    let r = read(cx, x, &axes, &places, &ty.shape);
    let r = cx.push(Op::Copy, vec![r], ty);
    cx.done(r)
}

/// An element receives the gradients of its copies; for whole factors only.
fn nearest_backward(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let grad = cx.tensor(0, "grad_output")?;
    let ty = cx.result()?.clone();
    let axes = axes(cx, &ty.shape, &cx.shape(grad), n, 3, false)?;
    let mut factors = vec![];
    for a in &axes {
        match a.ratio() {
            Some((1, q)) if cx.graph.facts.eq(&a.to, &(&a.from * &Expr::int(q))) => factors.push(q),
            _ => return decline("gradient of an interpolation by an uneven factor"),
        }
    }
    let grad = cx.convert(grad, ty.dtype.compute());
    let terms: Vec<ValueId> = choices(&factors)
        .iter()
        .map(|choice| {
            let mut coords: Vec<Expr> = (0..ty.rank()).map(here).collect();
            for ((a, q), r) in axes.iter().zip(&factors).zip(choice) {
                coords[a.dim] = here(a.dim) * Expr::int(*q) + Expr::int(*r);
            }
            map(cx, grad, coords, &ty.shape)
        })
        .collect();
    let sum = sum_of(cx, &terms)?;
    cx.done(sum)
}

/// Neighbours of a result along an axis, with their weights (tensors that broadcast).
type Neighbours = Vec<(Place, ValueId)>;

/// Twice the numerator and the denominator of an exact position `(p·(2i+1) − q) / 2q`.
fn exact_source(i: &Expr, (p, q): Ratio) -> (Expr, Expr) {
    let n = (i * &Expr::int(2) + Expr::ONE) * Expr::int(p) - Expr::int(q);
    (n, Expr::int(2 * q))
}

/// `e`, an integer over the position along the axis, divided by `d`, as a tensor along the axis.
fn fraction(cx: &mut Cx<'_>, a: &Axis, e: &Expr, d: &Expr, rank: usize, dtype: DType) -> Lowered<ValueId> {
    let v = position(cx, e, &Expr::ZERO, std::slice::from_ref(&a.to), DType::I64);
    let v = cx.convert(v, dtype);
    let d = cx.sym(d, dtype);
    let v = cx.pw(PwOp::Div, &[v, d])?;
    Ok(a.along(cx, v, rank))
}

fn linear_neighbours(cx: &mut Cx<'_>, a: &Axis, rank: usize, dtype: DType) -> Lowered<Neighbours> {
    let one = cx.float(1.0, dtype);
    if a.from == a.to && a.ratio() == Some((1, 1)) {
        return Ok(vec![(Place::Exact(here(a.dim)), one)]);
    }
    if let Some(ratio) = a.ratio() {
        let place = |i: &Expr| {
            let (n, d) = exact_source(i, ratio);
            let n = n.maximum(&Expr::ZERO);
            (n.floordiv(&d).minimum(&a.last()), n.modulo(&d), d)
        };
        let (first, ..) = place(&here(a.dim));
        let (_, rest, d) = place(&here(0));
        let second = (&first + &Expr::ONE).minimum(&a.last());
        let w = fraction(cx, a, &rest, &d, rank, dtype)?;
        let other = cx.pw(PwOp::Sub, &[one, w])?;
        return Ok(vec![(Place::Exact(first), other), (Place::Exact(second), w)]);
    }
    let mut at = if a.corners { a.source(cx, dtype, 0.0, 0.0)? } else { a.source(cx, dtype, 0.5, 0.5)? };
    let zero = cx.float(0.0, dtype);
    at = cx.pw(PwOp::Maximum, &[at, zero])?;
    let first = a.index(cx, at)?;
    let step = cx.constant(Scalar::Int(1), DType::I64);
    let second = cx.pw(PwOp::Add, &[first, step])?;
    let second = a.inside(cx, second)?;
    let floor = cx.convert(first, dtype);
    let w = cx.pw(PwOp::Sub, &[at, floor])?;
    let w = cx.pw(PwOp::Maximum, &[w, zero])?;
    let w = cx.pw(PwOp::Minimum, &[w, one])?;
    let other = cx.pw(PwOp::Sub, &[one, w])?;
    let (w, other) = (a.along(cx, w, rank), a.along(cx, other, rank));
    Ok(vec![(Place::Index(first), other), (Place::Index(second), w)])
}

/// The weighted sum over neighbours along `axes[k..]`, the last axis innermost.
fn interpolated(
    cx: &mut Cx<'_>,
    x: ValueId,
    axes: &[Axis],
    near: &[Neighbours],
    chosen: &mut Vec<Place>,
    shape: &[Expr],
) -> Lowered<ValueId> {
    let Some(list) = near.get(chosen.len()) else { return Ok(read(cx, x, axes, chosen, shape)) };
    let mut sum = None;
    for (place, weight) in list.clone() {
        chosen.push(place);
        let v = interpolated(cx, x, axes, near, chosen, shape)?;
        chosen.pop();
        let term = if list.len() == 1 { v } else { cx.pw(PwOp::Mul, &[v, weight])? };
        sum = Some(match sum {
            None => term,
            Some(s) => cx.pw(PwOp::Add, &[s, term])?,
        });
    }
    sum.map_or_else(|| decline("no neighbours"), Ok)
}

/// The neighbours of a result along an axis of `rank` dims, with their weights.
type Near = fn(&mut Cx<'_>, &Axis, usize, DType) -> Lowered<Neighbours>;

/// Weighted sums over the neighbours along the last `n` dims.
fn weighted(cx: &mut Cx<'_>, n: usize, neighbours: Near) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let dtype = ty.dtype.compute();
    if !dtype.is_float() {
        return decline("interpolation of integers");
    }
    let corners = cx.bool(2, "align_corners", false)?;
    let axes = axes(cx, &cx.shape(x), &ty.shape, n, 3, corners)?;
    let x = cx.convert(x, dtype);
    let near = axes.iter().map(|a| neighbours(cx, a, ty.rank(), dtype)).collect::<Lowered<Vec<_>>>()?;
    let r = interpolated(cx, x, &axes, &near, &mut vec![], &ty.shape)?;
    let r = if near.iter().all(|l| l.len() == 1) {
        cx.push(Op::Copy, vec![r], TensorType { dtype, ..ty })
    } else {
        r
    };
    cx.done(r)
}

/// An element receives from the results around it; for whole factors only, where these are at fixed
/// distances.
fn linear_backward(cx: &mut Cx<'_>, n: usize) -> Lowered {
    const WHY: &str = "gradient of an interpolation by an uneven factor";
    let grad = cx.tensor(0, "grad_output")?;
    let ty = cx.result()?.clone();
    let dtype = ty.dtype.compute();
    if cx.bool(3, "align_corners", false)? {
        return decline(WHY);
    }
    let axes = axes(cx, &ty.shape, &cx.shape(grad), n, 4, false)?;
    let grad = cx.convert(grad, dtype);
    let (mut low, mut high) = (vec![Expr::ZERO; ty.rank()], vec![Expr::ZERO; ty.rank()]);
    let mut near: Vec<Vec<(Expr, ValueId)>> = vec![];
    let mut count = 1;
    for a in &axes {
        let q = match a.ratio() {
            Some((1, q)) if cx.graph.facts.eq(&a.to, &(&a.from * &Expr::int(q))) => q,
            _ => return decline(WHY),
        };
        let reach = if q == 1 { 1 } else { 2 * q };
        count *= reach;
        // Results `q·i − q/2 .. q·i + 3q/2` have element i as a neighbour.
        let begin = if q == 1 { 0 } else { -q / 2 };
        low[a.dim] = Expr::int(-begin);
        high[a.dim] = Expr::int(begin + reach - q);
        let line = std::slice::from_ref(&a.from);
        let own = position(cx, &here(0), &Expr::ZERO, line, DType::I64);
        let mut list = vec![];
        for c in begin..begin + reach {
            let result = here(0) * Expr::int(q) + Expr::int(c);
            let (m, d) = exact_source(&result, (1, q));
            let m = m.maximum(&Expr::ZERO);
            let first = m.floordiv(&d).minimum(&a.last());
            let second = (&first + &Expr::ONE).minimum(&a.last());
            let zero = cx.float(0.0, dtype);
            let one = cx.float(1.0, dtype);
            let w = position(cx, &m.modulo(&d), &Expr::ZERO, line, DType::I64);
            let w = cx.convert(w, dtype);
            let d = cx.sym(&d, dtype);
            let w = cx.pw(PwOp::Div, &[w, d])?;
            let other = cx.pw(PwOp::Sub, &[one, w])?;
            let mut weight = None;
            for (at, w) in [(first, other), (second, w)] {
                let at = position(cx, &at, &Expr::ZERO, line, DType::I64);
                let hit = cx.pw(PwOp::Eq, &[at, own])?;
                let w = cx.pw(PwOp::Where, &[hit, w, zero])?;
                weight = Some(match weight {
                    None => w,
                    Some(v) => cx.pw(PwOp::Add, &[v, w])?,
                });
            }
            let Some(weight) = weight else { return decline(WHY) };
            let mut shape = vec![a.from.clone()];
            shape.resize(ty.rank() - a.dim, Expr::ONE);
            let weight = cx.reshape(weight, shape);
            list.push((here(a.dim) * Expr::int(q) + Expr::int(c) + &low[a.dim], weight));
        }
        near.push(list);
    }
    if count > 64 {
        return decline("gradient of an interpolation by a large factor");
    }
    let around = padded(cx, grad, low, high, Scalar::Int(0));
    let r = spread(cx, around, &axes, &near, &mut vec![], &ty.shape)?;
    cx.done(r)
}

fn spread(
    cx: &mut Cx<'_>,
    grad: ValueId,
    axes: &[Axis],
    near: &[Vec<(Expr, ValueId)>],
    chosen: &mut Vec<Expr>,
    shape: &[Expr],
) -> Lowered<ValueId> {
    let Some(list) = near.get(chosen.len()) else {
        let mut coords: Vec<Expr> = (0..shape.len()).map(here).collect();
        for (a, e) in axes.iter().zip(chosen) {
            coords[a.dim] = e.clone();
        }
        return Ok(map(cx, grad, coords, shape));
    };
    let mut terms = vec![];
    for (at, weight) in list {
        chosen.push(at.clone());
        let v = spread(cx, grad, axes, near, chosen, shape)?;
        chosen.pop();
        terms.push(cx.pw(PwOp::Mul, &[v, *weight])?);
    }
    sum_of(cx, &terms)
}

/// Weights of the four neighbours at distance `t` from the second: Keys' kernel with a = −¾.
fn cubic_weights(cx: &mut Cx<'_>, t: ValueId) -> Lowered<[ValueId; 4]> {
    const A: f64 = -0.75;
    let dtype = cx.dtype(t);
    let number = |cx: &mut Cx<'_>, v: f64| cx.float(v, dtype);
    // ((A+2)·x − (A+3))·x·x + 1
    let inner = |cx: &mut Cx<'_>, x: ValueId| -> Lowered<ValueId> {
        let (a, b, one) = (number(cx, A + 2.0), number(cx, A + 3.0), number(cx, 1.0));
        let v = cx.pw(PwOp::Mul, &[a, x])?;
        let v = cx.pw(PwOp::Sub, &[v, b])?;
        let v = cx.pw(PwOp::Mul, &[v, x])?;
        let v = cx.pw(PwOp::Mul, &[v, x])?;
        cx.pw(PwOp::Add, &[v, one])
    };
    // ((A·x − 5A)·x + 8A)·x − 4A
    let outer = |cx: &mut Cx<'_>, x: ValueId| -> Lowered<ValueId> {
        let [a, b, c, d] = [A, 5.0 * A, 8.0 * A, 4.0 * A].map(|v| number(cx, v));
        let v = cx.pw(PwOp::Mul, &[a, x])?;
        let v = cx.pw(PwOp::Sub, &[v, b])?;
        let v = cx.pw(PwOp::Mul, &[v, x])?;
        let v = cx.pw(PwOp::Add, &[v, c])?;
        let v = cx.pw(PwOp::Mul, &[v, x])?;
        cx.pw(PwOp::Sub, &[v, d])
    };
    let one = number(cx, 1.0);
    let before = cx.pw(PwOp::Add, &[t, one])?;
    let back = cx.pw(PwOp::Sub, &[one, t])?;
    let beyond = cx.pw(PwOp::Add, &[back, one])?;
    Ok([outer(cx, before)?, inner(cx, t)?, inner(cx, back)?, outer(cx, beyond)?])
}

fn cubic_neighbours(cx: &mut Cx<'_>, a: &Axis, rank: usize, dtype: DType) -> Lowered<Neighbours> {
    let clamped = |e: Expr| e.maximum(&Expr::ZERO).minimum(&a.last());
    if let Some(ratio) = a.ratio().filter(|_| !a.corners) {
        let (n, d) = exact_source(&here(0), ratio);
        let t = fraction(cx, a, &n.modulo(&d), &d, rank, dtype)?;
        let (n, d) = exact_source(&here(a.dim), ratio);
        let first = n.floordiv(&d);
        let weights = cubic_weights(cx, t)?;
        let at = |k: i64| Place::Exact(clamped(&first + &Expr::int(k - 1)));
        return Ok(weights.into_iter().enumerate().map(|(k, w)| (at(k as i64), w)).collect());
    }
    let at = if a.corners { a.source(cx, dtype, 0.0, 0.0)? } else { a.source(cx, dtype, 0.5, 0.5)? };
    let floor = cx.pw(PwOp::Floor, &[at])?;
    let t = cx.pw(PwOp::Sub, &[at, floor])?;
    let first = cx.convert(floor, DType::I64);
    let mut out = vec![];
    for (k, w) in cubic_weights(cx, t)?.into_iter().enumerate() {
        let k = cx.constant(Scalar::Int(k as i64 - 1), DType::I64);
        let i = cx.pw(PwOp::Add, &[first, k])?;
        let i = a.inside(cx, i)?;
        let w = a.along(cx, w, rank);
        out.push((Place::Index(i), w));
    }
    Ok(out)
}
