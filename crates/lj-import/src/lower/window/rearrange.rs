//! Diagonals, windows as the user asks for them, and products of neighbours.

use super::{all_of, choices, here, ints, map, padded, position, sum_of};
use crate::cx::{Cx, Lowered, Val, decline};
use crate::lower::Row;
use lj_ir::{DType, Expr, Op, PwOp, Scalar, TensorType, ValueId, View};

pub(super) const ROWS: &[Row] = &[
    ("aten.diagonal.default", diagonal),
    ("aten.diag_embed.default", diag_embed),
    ("aten.diagonal_scatter.default", diagonal_scatter),
    ("aten.unfold.default", unfold),
    ("aten.unfold_backward.default", unfold_backward),
    ("aten.im2col.default", im2col),
    ("aten.col2im.default", col2im),
    ("aten.linalg_cross.default", cross),
];

/// The dims argument pair, distinct.
fn pair(
    cx: &Cx<'_>,
    first: usize,
    names: [&str; 2],
    defaults: [i64; 2],
    rank: usize,
) -> Lowered<(usize, usize)> {
    let a = cx.dim(first, names[0], defaults[0], rank)?;
    let b = cx.dim(first + 1, names[1], defaults[1], rank)?;
    if a == b || rank < 2 { decline("the two dims are one") } else { Ok((a, b)) }
}

fn diagonal(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let rank = cx.rank(x);
    let offset = cx.int(1, "offset", 0)?;
    let (a, b) = pair(cx, 2, ["dim1", "dim2"], [0, 1], rank)?;
    let along = here(rank - 2);
    let mut coords = vec![Expr::ZERO; rank];
    let mut next = 0;
    for (d, c) in coords.iter_mut().enumerate() {
        if d != a && d != b {
            *c = here(next);
            next += 1;
        }
    }
    coords[a] = &along + &Expr::int((-offset).max(0));
    coords[b] = &along + &Expr::int(offset.max(0));
    // A diagonal beside the matrix has no elements.
    if ty.shape[rank - 2].is(0) {
        return decline("an empty diagonal");
    }
    Ok(Val::Tensor(cx.view(View::Map(coords), x, ty)))
}

fn diag_embed(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let rank = ty.rank();
    let offset = cx.int(1, "offset", 0)?;
    let dims = pair(cx, 2, ["dim1", "dim2"], [-2, -1], rank)?;
    let zero = cx.constant(Scalar::Int(0), ty.dtype);
    on_diagonal(cx, zero, x, offset, dims, &ty)
}

fn diagonal_scatter(cx: &mut Cx<'_>) -> Lowered {
    let (x, src) = (cx.tensor(0, "self")?, cx.tensor(1, "src")?);
    let ty = cx.result()?.clone();
    let offset = cx.int(2, "offset", 0)?;
    let dims = pair(cx, 3, ["dim1", "dim2"], [0, 1], ty.rank())?;
    let src = cx.convert(src, ty.dtype);
    on_diagonal(cx, x, src, offset, dims, &ty)
}

/// `x` with `src`, whose last dim runs along it, on a diagonal of dims `a` and `b`.
fn on_diagonal(
    cx: &mut Cx<'_>,
    x: ValueId,
    src: ValueId,
    offset: i64,
    (a, b): (usize, usize),
    ty: &TensorType,
) -> Lowered {
    let Some(n) = cx.ty(src).shape.last().cloned() else { return decline("a diagonal without dims") };
    if cx.rank(src) + 1 != ty.rank() || !cx.graph.facts.ge(&n, &Expr::ONE) {
        return decline("a diagonal that may be empty");
    }
    let mut coords: Vec<Expr> = (0..ty.rank()).filter(|d| *d != a && *d != b).map(here).collect();
    let on = here(a) + Expr::int(offset.min(0));
    coords.push(on.maximum(&Expr::ZERO).minimum(&(&n - &Expr::ONE)));
    let v = map(cx, src, coords, &ty.shape);
    // On the diagonal, `b − a = offset`; the index is in range there.
    let distance = here(b) - here(a) - Expr::int(offset);
    let low = &ty.shape[a] + &Expr::int(offset.abs());
    let distance = position(cx, &distance, &low, &ty.shape, DType::I64);
    let none = cx.constant(Scalar::Int(0), DType::I64);
    let hit = cx.pw(PwOp::Eq, &[distance, none])?;
    let r = cx.pw(PwOp::Where, &[hit, v, x])?;
    cx.done(r)
}

fn unfold(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let rank = cx.rank(x);
    let dim = cx.dim(1, "dimension", 0, rank)?;
    let Some(step) = cx.expr(3, "step")?.filter(|_| rank > 0) else {
        return decline("windows of a 0-d tensor");
    };
    Ok(Val::Tensor(cx.view(View::windows(rank, dim, &step, &Expr::ONE), x, ty)))
}

/// Adds up, per element, what the windows over it hold there.
fn unfold_backward(cx: &mut Cx<'_>) -> Lowered {
    let grad = cx.tensor(0, "grad_in")?;
    let ty = cx.result()?.clone();
    let rank = ty.rank();
    let dim = cx.dim(2, "dim", 0, rank)?;
    let (size, step) = (cx.int(3, "size", 1)?, cx.int(4, "step", 1)?);
    let most = (size + step - 1) / step;
    if rank == 0 || cx.rank(grad) != rank + 1 || !(1..=32).contains(&most) {
        return decline("gradient of windows that overlap much");
    }
    let windows = cx.ty(grad).shape[dim].clone();
    let grad = cx.convert(grad, ty.dtype.compute());
    let step = Expr::int(step);
    let (mut low, mut high) = (vec![Expr::ZERO; rank + 1], vec![Expr::ZERO; rank + 1]);
    low[dim] = Expr::int(most - 1);
    high[dim] = (&ty.shape[dim] - &Expr::ONE).floordiv(&step) + Expr::ONE - &windows;
    high[rank] = &Expr::int(most) * &step - Expr::int(size);
    let around = padded(cx, grad, low.clone(), high, Scalar::Int(0));
    let mut terms = vec![];
    for j in (0..most).rev() {
        let back = Expr::int(j);
        let mut coords: Vec<Expr> = (0..=rank).map(here).collect();
        coords[dim] = here(dim).floordiv(&step) - &back + &low[dim];
        coords[rank] = here(dim).modulo(&step) + &back * &step;
        terms.push(map(cx, around, coords, &ty.shape));
    }
    let sum = sum_of(cx, &terms)?;
    cx.done(sum)
}

/// Windows of images: `(kernel, dilation, padding, stride)` from argument `first` on.
fn images(cx: &Cx<'_>, first: usize) -> Lowered<[Vec<i64>; 4]> {
    let all = [
        ints(cx, first, "kernel_size", 2, &[])?,
        ints(cx, first + 1, "dilation", 2, &[])?,
        ints(cx, first + 2, "padding", 2, &[])?,
        ints(cx, first + 3, "stride", 2, &[])?,
    ];
    let fits = all[0].iter().chain(&all[1]).chain(&all[3]).all(|v| *v > 0) && all[2].iter().all(|v| *v >= 0);
    if fits { Ok(all) } else { decline("a window without extent") }
}

/// Number of windows along a dim.
fn number(extent: &Expr, k: usize, [kernel, dilation, pad, stride]: &[Vec<i64>; 4]) -> Expr {
    let span = Expr::int(2 * pad[k] - dilation[k] * (kernel[k] - 1) - 1);
    (extent + &span).floordiv(&Expr::int(stride[k])) + Expr::ONE
}

fn im2col(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let windows = images(cx, 1)?;
    let shape = cx.shape(x);
    let Some(lead) = shape.len().checked_sub(3) else { return decline("the rank does not fit") };
    let [kernel, dilation, pad, stride] = &windows;
    // [batch, channels, kernel, kernel, windows, windows], then merged.
    let mut wide: Vec<Expr> = shape[..=lead].to_vec();
    wide.extend(kernel.iter().map(|k| Expr::int(*k)));
    wide.extend((0..2).map(|k| number(&shape[lead + 1 + k], k, &windows)));
    let (mut low, mut high) = (vec![Expr::ZERO; shape.len()], vec![Expr::ZERO; shape.len()]);
    let mut coords: Vec<Expr> = (0..shape.len()).map(here).collect();
    for k in 0..2 {
        (low[lead + 1 + k], high[lead + 1 + k]) = (Expr::int(pad[k]), Expr::int(pad[k]));
        coords[lead + 1 + k] =
            here(lead + 3 + k) * Expr::int(stride[k]) + here(lead + 1 + k) * Expr::int(dilation[k]);
    }
    let x = padded(cx, x, low, high, Scalar::Int(0));
    let x = map(cx, x, coords, &wide);
    let strides = lj_ir::shape::contiguous_strides(&wide);
    let x = cx.push(Op::Copy, vec![x], TensorType { shape: wide, strides, ..ty.clone() });
    Ok(Val::Tensor(cx.view(View::Reshape, x, ty)))
}

/// Adds up, per pixel, what the windows over it hold there.
fn col2im(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let windows = images(cx, 2)?;
    let [kernel, dilation, pad, stride] = &windows;
    let Some(lead) = ty.rank().checked_sub(3) else { return decline("the rank does not fit") };
    let dtype = ty.dtype.compute();
    if !dtype.is_float() {
        return decline("sum of integers");
    }
    if kernel.iter().product::<i64>() > 64 {
        return decline("gradient of large windows");
    }
    let count: Vec<Expr> = (0..2).map(|k| number(&ty.shape[lead + 1 + k], k, &windows)).collect();
    let mut wide: Vec<Expr> = ty.shape[..=lead].to_vec();
    wide.extend(kernel.iter().map(|k| Expr::int(*k)));
    wide.extend(count.iter().cloned());
    let x = cx.convert(x, dtype);
    let x = cx.reshape(x, wide.clone());
    let rank = wide.len();
    let (mut low, mut high) = (vec![Expr::ZERO; rank], vec![Expr::ZERO; rank]);
    for k in 0..2 {
        let first = Expr::int(pad[k] - dilation[k] * (kernel[k] - 1)).floordiv(&Expr::int(stride[k]));
        let last = (&ty.shape[lead + 1 + k] + &Expr::int(pad[k] - 1)).floordiv(&Expr::int(stride[k]));
        low[lead + 3 + k] = (-&first).maximum(&Expr::ZERO);
        high[lead + 3 + k] = last + Expr::ONE - &count[k];
    }
    let around = padded(cx, x, low.clone(), high, Scalar::Int(0));
    let zero = cx.constant(Scalar::Int(0), dtype);
    let mut terms = vec![];
    for taps in choices(kernel) {
        let mut coords: Vec<Expr> = (0..=lead).map(here).collect();
        coords.extend(taps.iter().map(|t| Expr::int(*t)));
        let mut conditions = vec![];
        for k in 0..2 {
            let step = Expr::int(stride[k]);
            let from = here(lead + 1 + k) + Expr::int(pad[k] - taps[k] * dilation[k]);
            coords.push(from.floordiv(&step) + &low[lead + 3 + k]);
            if stride[k] > 1 {
                let rest = position(cx, &from.modulo(&step), &Expr::ZERO, &ty.shape, DType::I64);
                let none = cx.constant(Scalar::Int(0), DType::I64);
                conditions.push(cx.pw(PwOp::Eq, &[rest, none])?);
            }
        }
        let v = map(cx, around, coords, &ty.shape);
        terms.push(match all_of(cx, &conditions)? {
            Some(c) => cx.pw(PwOp::Where, &[c, v, zero])?,
            None => v,
        });
    }
    let sum = sum_of(cx, &terms)?;
    cx.done(sum)
}

/// `a[i+1]·b[i+2] − a[i+2]·b[i+1]` along a dim of three elements, counted round.
fn cross(cx: &mut Cx<'_>) -> Lowered {
    let (a, b) = (cx.tensor(0, "self")?, cx.tensor(1, "other")?);
    let ty = cx.result()?.clone();
    let dim = cx.dim(2, "dim", -1, ty.rank())?;
    let dtype = ty.dtype.compute();
    if dtype == DType::Bool {
        return decline("product of bools");
    }
    let turned = |cx: &mut Cx<'_>, v: ValueId, by: i64| {
        let v = cx.convert(v, dtype);
        let v = cx.expand(v, &ty.shape);
        let mut coords: Vec<Expr> = (0..ty.rank()).map(here).collect();
        coords[dim] = (here(dim) + Expr::int(by)).modulo(&Expr::int(3));
        map(cx, v, coords, &ty.shape)
    };
    let (a1, b2) = (turned(cx, a, 1), turned(cx, b, 2));
    let (a2, b1) = (turned(cx, a, 2), turned(cx, b, 1));
    // ATen rounds the products.
    let product = |cx: &mut Cx<'_>, x: ValueId, y: ValueId| -> Lowered<ValueId> {
        let v = cx.pw(PwOp::Mul, &[x, y])?;
        let v = cx.convert(v, ty.dtype);
        Ok(cx.convert(v, dtype))
    };
    let (left, right) = (product(cx, a1, b2)?, product(cx, a2, b1)?);
    let r = cx.pw(PwOp::Sub, &[left, right])?;
    cx.done(r)
}
