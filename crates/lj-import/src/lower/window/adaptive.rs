//! Pooling to a given size: windows of uneven length, `i·n/m .. ⌈(i+1)·n/m⌉` of `n` elements for
//! result `i` of `m`.

use super::{MAX_TAPS, all_of, choices, here, map, position, sum_of};
use crate::cx::{Cx, Lowered, Val, decline};
use crate::lower::Row;
use lj_ir::{DType, Expr, PwOp, Scalar, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten._adaptive_avg_pool2d.default", |cx| average(cx, 2)),
    ("aten._adaptive_avg_pool3d.default", |cx| average(cx, 3)),
    ("aten._adaptive_avg_pool2d_backward.default", |cx| average_backward(cx, 2)),
    ("aten._adaptive_avg_pool3d_backward.default", |cx| average_backward(cx, 3)),
    ("aten.adaptive_max_pool2d.default", |cx| largest(cx, 2)),
    ("aten.adaptive_max_pool3d.default", |cx| largest(cx, 3)),
    ("aten.adaptive_max_pool2d_backward.default", |cx| largest_backward(cx, 2)),
    ("aten.adaptive_max_pool3d_backward.default", |cx| largest_backward(cx, 3)),
];

/// One dim: `from` elements seen through `to` windows, or the other way round for a gradient.
struct Dim {
    at: usize,
    from: Expr,
    to: Expr,
    /// Elements of a window at most.
    most: i64,
}

impl Dim {
    fn begin(&self) -> Expr {
        (here(self.at) * &self.from).floordiv(&self.to)
    }

    fn end(&self) -> Expr {
        ((here(self.at) + Expr::ONE) * &self.from + &self.to - Expr::ONE).floordiv(&self.to)
    }

    /// Whether all windows have `most` elements.
    fn even(&self) -> bool {
        self.from.div_exact(&self.to).is_some_and(|n| n.is(self.most))
    }

    /// The length of a window.
    fn len(&self) -> Expr {
        if self.even() { Expr::int(self.most) } else { self.end() - self.begin() }
    }
}

/// The last `n` dims, from the extents `from` to the extents `to`.
fn dims(from: &[Expr], to: &[Expr], n: usize) -> Lowered<Vec<Dim>> {
    let Some(lead) = from.len().checked_sub(n).filter(|_| from.len() == to.len()) else {
        return decline("the rank does not fit");
    };
    let mut out = vec![];
    let mut taps = 1;
    for d in lead..lead + n {
        let (from, to) = (from[d].clone(), to[d].clone());
        let most = match (from.div_exact(&to).and_then(|n| n.as_int()), from.as_int(), to.as_int()) {
            (Some(n), ..) => n,
            (None, Some(_), Some(m)) if m < 1 => return decline("an empty result"),
            (None, Some(n), Some(m)) => {
                let len = |i: i64| ((i + 1) * n + m - 1) / m - i * n / m;
                (0..m).map(len).max().unwrap_or(0)
            }
            _ => return decline("adaptive pooling of a symbolic size"),
        };
        taps *= most;
        out.push(Dim { at: d, from, to, most });
    }
    if (1..=MAX_TAPS).contains(&taps) { Ok(out) } else { decline("adaptive pooling over large windows") }
}

/// Element `taps` of every window of `x`, and whether it is one.
fn tap(
    cx: &mut Cx<'_>,
    x: ValueId,
    dims: &[Dim],
    taps: &[i64],
    shape: &[Expr],
) -> Lowered<(ValueId, Vec<Expr>, Option<ValueId>)> {
    let mut coords: Vec<Expr> = (0..shape.len()).map(here).collect();
    let mut conditions = vec![];
    for (d, &t) in dims.iter().zip(taps) {
        let at = d.begin() + Expr::int(t);
        coords[d.at] = at.clone();
        if t > 0 && !d.even() {
            let (at, end) = (
                position(cx, &at, &Expr::ZERO, shape, DType::I64),
                position(cx, &d.end(), &Expr::ZERO, shape, DType::I64),
            );
            conditions.push(cx.pw(PwOp::Lt, &[at, end])?);
            // Somewhere inside where there is no such element.
            coords[d.at] = coords[d.at].minimum(&(&d.from - &Expr::ONE));
        }
    }
    let condition = all_of(cx, &conditions)?;
    Ok((map(cx, x, coords.clone(), shape), coords, condition))
}

fn counts(dims: &[Dim]) -> Vec<i64> {
    dims.iter().map(|d| d.most).collect()
}

/// `v` divided by the lengths of the windows, one dim after the other as ATen does.
fn divided(cx: &mut Cx<'_>, mut v: ValueId, dims: &[Dim], shape: &[Expr]) -> Lowered<ValueId> {
    let dtype = cx.dtype(v);
    for d in dims {
        let len = d.len();
        let n = if len.symbols().iter().any(|s| lj_ir::View::dim_of(s).is_some()) {
            let n = position(cx, &len, &Expr::ZERO, shape, DType::I64);
            cx.convert(n, dtype)
        } else {
            cx.sym(&len, dtype)
        };
        v = cx.pw(PwOp::Div, &[v, n])?;
    }
    Ok(v)
}

/// The sum of every window of `x`.
fn summed(cx: &mut Cx<'_>, x: ValueId, dims: &[Dim], shape: &[Expr]) -> Lowered<ValueId> {
    let zero = cx.constant(Scalar::Int(0), cx.dtype(x));
    let mut terms = vec![];
    for taps in choices(&counts(dims)) {
        let (v, _, condition) = tap(cx, x, dims, &taps, shape)?;
        terms.push(match condition {
            Some(c) => cx.pw(PwOp::Where, &[c, v, zero])?,
            None => v,
        });
    }
    sum_of(cx, &terms)
}

fn average(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let dtype = ty.dtype.compute();
    if !dtype.is_float() {
        return decline("average of integers");
    }
    let dims = dims(&cx.shape(x), &ty.shape, n)?;
    let x = cx.convert(x, dtype);
    let sum = summed(cx, x, &dims, &ty.shape)?;
    let mean = divided(cx, sum, &dims, &ty.shape)?;
    cx.done(mean)
}

/// The windows that hold an element are again such a range, with the sizes exchanged.
fn average_backward(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let grad = cx.tensor(0, "grad_output")?;
    let ty = cx.result()?.clone();
    let dtype = ty.dtype.compute();
    let out = cx.shape(grad);
    let forward = dims(&ty.shape, &out, n)?;
    let back = dims(&out, &ty.shape, n).or_else(|_| reversed(&forward))?;
    let grad = cx.convert(grad, dtype);
    let share = divided(cx, grad, &forward, &out)?;
    let sum = summed(cx, share, &back, &ty.shape)?;
    cx.done(sum)
}

/// The dims of a gradient whose windows are even: every element lies in one window.
fn reversed(forward: &[Dim]) -> Lowered<Vec<Dim>> {
    if !forward.iter().all(Dim::even) {
        return decline("gradient of adaptive pooling of a symbolic size");
    }
    let back = |d: &Dim| Dim { at: d.at, from: d.to.clone(), to: d.from.clone(), most: 1 };
    Ok(forward.iter().map(back).collect())
}

/// Values and positions of the first largest elements, a NaN counting as larger than all before it.
fn largest(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let (values, indices) = (cx.result_at(0)?.clone(), cx.result_at(1)?.clone());
    let shape = values.shape.clone();
    let dims = dims(&cx.shape(x), &shape, n)?;
    let dtype = cx.dtype(x).compute();
    if !dtype.is_float() {
        return decline("maximum of integers");
    }
    let x = cx.convert(x, dtype);
    let mut best: Option<(ValueId, ValueId)> = None;
    for taps in choices(&counts(&dims)) {
        let (v, coords, condition) = tap(cx, x, &dims, &taps, &shape)?;
        let flat = dims.iter().fold(Expr::ZERO, |e, d| e * &d.from + &coords[d.at]);
        let at = position(cx, &flat, &Expr::ZERO, &shape, DType::I64);
        best = Some(match best {
            None => (v, at),
            Some((value, index)) => {
                let larger = cx.pw(PwOp::Gt, &[v, value])?;
                let nan = cx.pw(PwOp::IsNan, &[v])?;
                let mut take = cx.pw(PwOp::Or, &[larger, nan])?;
                if let Some(c) = condition {
                    take = cx.pw(PwOp::And, &[take, c])?;
                }
                let value = cx.pw(PwOp::Where, &[take, v, value])?;
                (value, cx.pw(PwOp::Where, &[take, at, index])?)
            }
        });
    }
    let Some((value, index)) = best else { return decline("an empty window") };
    let value = cx.done_as(value, values)?;
    let index = cx.done_as(index, indices)?;
    Ok(Val::List(vec![Val::Tensor(value), Val::Tensor(index)]))
}

/// An element receives the gradients of the windows that name its position.
fn largest_backward(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let (grad, x, index) = (cx.tensor(0, "grad_output")?, cx.tensor(1, "self")?, cx.tensor(2, "indices")?);
    let (shape, out) = (cx.shape(x), cx.shape(grad));
    let forward = dims(&shape, &out, n)?;
    let back = dims(&out, &shape, n).or_else(|_| reversed(&forward))?;
    let grad = cx.convert(grad, cx.dtype(grad).compute());
    let own = back.iter().fold(Expr::ZERO, |e, d| e * &d.to + here(d.at));
    let own = position(cx, &own, &Expr::ZERO, &shape, DType::I64);
    let zero = cx.constant(Scalar::Int(0), cx.dtype(grad));
    let mut terms = vec![];
    for taps in choices(&counts(&back)) {
        let (v, _, condition) = tap(cx, grad, &back, &taps, &shape)?;
        let (at, ..) = tap(cx, index, &back, &taps, &shape)?;
        let mut named = cx.pw(PwOp::Eq, &[at, own])?;
        if let Some(c) = condition {
            named = cx.pw(PwOp::And, &[named, c])?;
        }
        terms.push(cx.pw(PwOp::Where, &[named, v, zero])?);
    }
    let sum = sum_of(cx, &terms)?;
    cx.done(sum)
}
