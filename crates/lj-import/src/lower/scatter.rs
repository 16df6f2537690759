//! Scatters: elements put or combined into a tensor at given places.

mod slices;

use super::Row;
use super::scan::scan;
use crate::cx::{Cx, Lowered, Operand, Val, decline};
use crate::fx::FxArg;
use lj_ir::shape::{broadcast, contiguous_strides};
use lj_ir::{DType, Expr, Op, PwOp, Scalar, ScanOp, ScatterOp, TensorType, ValueId, View};

pub(super) const ROWS: &[Row] = &[
    ("aten.index_put.default", index_put),
    ("aten._unsafe_index_put.default", index_put),
    ("aten.scatter.src", |cx| scatter(cx, "scatter", Some(ScatterOp::Set))),
    ("aten.scatter.value", |cx| scatter(cx, "scatter", Some(ScatterOp::Set))),
    ("aten.scatter.reduce", |cx| scatter(cx, "scatter", None)),
    ("aten.scatter.value_reduce", |cx| scatter(cx, "scatter", None)),
    ("aten.scatter_add.default", |cx| scatter(cx, "scatter_add", Some(ScatterOp::Add))),
    ("aten.scatter_reduce.two", scatter_reduce),
    ("aten.index_add.default", index_add),
    ("aten.index_copy.default", |cx| {
        let (x, dim, index) = rows_of(cx)?;
        let src = cx.tensor(3, "source")?;
        let places = rows(cx, x, dim, index, src, "IndexError: index out of bounds in index_copy")?;
        finish(cx, &places, ScatterOp::Set, x, src)
    }),
    ("aten.index_fill.int_Scalar", index_fill),
    ("aten.index_fill.int_Tensor", index_fill),
    ("aten.index_reduce.default", index_reduce),
    ("aten.put.default", put),
    ("aten.masked_scatter.default", masked_scatter),
    ("aten.masked_scatter_backward.default", masked_scatter_backward),
    ("aten.embedding_dense_backward.default", embedding_backward),
    ("aten.slice_scatter.default", slices::slice_scatter),
    ("aten.select_scatter.default", slices::select_scatter),
];

/// Where elements of a source of shape `domain` go: the attributes of [`Op::Scatter`].
struct Places {
    domain: Vec<Expr>,
    indices: Vec<ValueId>,
    dims: Vec<usize>,
    rest: Vec<usize>,
    /// Whether negative indices count from the end.
    wrap: bool,
    error: String,
}

/// The scatter itself; `ty` is the result's type, to whose dtype the operands are converted.
fn combine(
    cx: &mut Cx<'_>,
    p: &Places,
    op: ScatterOp,
    base: ValueId,
    src: ValueId,
    ty: TensorType,
) -> Lowered<ValueId> {
    let base = cx.convert(base, ty.dtype);
    let base = broadcast_to(cx, base, &ty.shape)?;
    let src = cx.convert(src, ty.dtype);
    let src = broadcast_to(cx, src, &p.domain)?;
    // Or and and are the extremes of bools.
    let op = match (op, ty.dtype) {
        (ScatterOp::Max, DType::Bool) => ScatterOp::Add,
        (ScatterOp::Min, DType::Bool) => ScatterOp::Mul,
        (op, _) => op,
    };
    let inputs = [base, src].into_iter().chain(p.indices.iter().copied()).collect();
    let (dims, rest, wrap, error) = (p.dims.clone(), p.rest.clone(), p.wrap, p.error.clone());
    Ok(cx.push(Op::Scatter { op, dims, rest, wrap, error }, inputs, ty))
}

/// The same in the dtype of the call's result, whose shape may be that of `base` without a dim of 1.
fn finish(cx: &mut Cx<'_>, p: &Places, op: ScatterOp, base: ValueId, src: ValueId) -> Lowered {
    let ty = lifted(cx.result()?);
    let r = combine(cx, p, op, base, src, ty)?;
    lowered(cx, r)
}

/// Sums and products of 16-bit floats that ATen rounds once, at the end.
fn finish_wide(cx: &mut Cx<'_>, p: &Places, op: ScatterOp, base: ValueId, src: ValueId) -> Lowered {
    let ty = lifted(cx.result()?);
    let r = combine(cx, p, op, base, src, TensorType { dtype: ty.dtype.compute(), ..ty })?;
    lowered(cx, r)
}

/// A 0-d type as one of a single element.
fn lifted(ty: &TensorType) -> TensorType {
    let mut ty = ty.clone();
    if ty.shape.is_empty() {
        (ty.shape, ty.strides) = (vec![Expr::ONE], vec![Expr::ONE]);
    }
    ty
}

/// A 0-d tensor as one of a single element.
fn lift(cx: &mut Cx<'_>, v: ValueId) -> ValueId {
    if cx.rank(v) == 0 { cx.reshape(v, vec![Expr::ONE]) } else { v }
}

/// Makes `r` the result, which may be 0-d.
fn lowered(cx: &mut Cx<'_>, r: ValueId) -> Lowered {
    let ty = cx.result()?.clone();
    if ty.rank() > 0 {
        return cx.done(r);
    }
    let r = cx.convert(r, ty.dtype);
    Ok(Val::Tensor(cx.view(View::Reshape, r, ty)))
}

/// `v` broadcast to `shape`; extents that tracing found equal count as equal.
fn broadcast_to(cx: &mut Cx<'_>, v: ValueId, shape: &[Expr]) -> Lowered<ValueId> {
    let own = cx.shape(v);
    let Some(lead) = shape.len().checked_sub(own.len()) else {
        return decline("the operands' shapes do not fit");
    };
    let want = own.iter().zip(&shape[lead..]).map(|(a, b)| if a.is(1) { a.clone() } else { b.clone() });
    let want: Vec<Expr> = want.collect();
    let v = cx.retyped(v, &want)?;
    Ok(cx.expand(v, shape))
}

/// Places along `dim`, an index for each element of the source, whose shape is the index's.
fn along(cx: &mut Cx<'_>, rank: usize, dim: usize, index: ValueId, what: &str) -> Lowered<Places> {
    let index = cx.convert(index, DType::I64);
    let domain = cx.shape(index);
    if domain.len() != rank {
        return decline("the index has another rank than the tensor");
    }
    let rest = (0..rank).filter(|d| *d != dim).collect();
    let error = format!("RuntimeError: index out of bounds in {what}");
    Ok(Places { domain, indices: vec![index], dims: vec![dim], rest, wrap: false, error })
}

/// The part of `src` that the index covers.
fn covered(cx: &mut Cx<'_>, src: ValueId, domain: &[Expr]) -> Lowered<ValueId> {
    let mut src = lift(cx, src);
    if cx.rank(src) != domain.len() {
        return decline("the source has another rank than the index");
    }
    for (d, want) in domain.iter().enumerate() {
        if !cx.graph.facts.eq(want, &cx.ty(src).shape[d]) {
            src = cx.narrow(src, d, &Expr::ZERO, want);
        }
    }
    Ok(src)
}

/// `scatter*`; without an operation, that of the argument `reduce`.
fn scatter(cx: &mut Cx<'_>, what: &str, op: Option<ScatterOp>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let dim = cx.dim(1, "dim", 0, cx.rank(x))?;
    let index = cx.tensor(2, "index")?;
    let op = match (op, cx.str_arg(4, "reduce")) {
        (Some(op), _) => op,
        (None, Some("add")) => ScatterOp::Add,
        (None, Some("multiply")) => ScatterOp::Mul,
        (None, _) => return decline("a scatter with an unknown reduction"),
    };
    let (x, index) = (lift(cx, x), lift(cx, index));
    let p = along(cx, cx.rank(x), dim, index, what)?;
    let number = matches!(cx.arg(3, "value"), Some(FxArg::Int(_) | FxArg::Float(_) | FxArg::Bool(_)));
    let src = if number {
        let s = cx.number(3, "value", Scalar::Int(0))?;
        let dtype = cx.dtype(x);
        cx.constant(s, dtype)
    } else {
        let src = cx.tensor(3, "src")?;
        covered(cx, src, &p.domain)?
    };
    if op == ScatterOp::Set { finish(cx, &p, op, x, src) } else { finish_wide(cx, &p, op, x, src) }
}

/// The largest or smallest value of a dtype.
fn extreme(d: DType, largest: bool) -> Scalar {
    let bits = d.bytes() * 8;
    match (d, largest) {
        (DType::Bool, largest) => Scalar::Bool(largest),
        (d, true) if d.is_float() => Scalar::float(f64::INFINITY),
        (d, false) if d.is_float() => Scalar::float(f64::NEG_INFINITY),
        (DType::U8, largest) => Scalar::Int(if largest { 255 } else { 0 }),
        (_, true) => Scalar::Int(i64::MAX >> (64 - bits)),
        (_, false) => Scalar::Int(i64::MIN >> (64 - bits)),
    }
}

/// `scatter_reduce` and `index_reduce`. `wide`: whether 16-bit floats are combined in `f32`.
fn reduced(
    cx: &mut Cx<'_>,
    p: &Places,
    x: ValueId,
    src: ValueId,
    (how, include_self): (&str, bool),
    wide: bool,
) -> Lowered {
    let ty = lifted(cx.result()?);
    let (op, neutral) = match how {
        "sum" | "mean" => (ScatterOp::Add, Scalar::Int(0)),
        "prod" => (ScatterOp::Mul, Scalar::Int(1)),
        "amax" => (ScatterOp::Max, extreme(ty.dtype, false)),
        "amin" => (ScatterOp::Min, extreme(ty.dtype, true)),
        _ => return decline("an unknown reduction"),
    };
    let mut base = x;
    if !include_self {
        let neutral = cx.constant(neutral, ty.dtype);
        base = combine(cx, p, ScatterOp::Set, base, neutral, ty.clone())?;
    }
    let dtype = if wide { ty.dtype.compute() } else { ty.dtype };
    let r = combine(cx, p, op, base, src, TensorType { dtype, ..ty.clone() })?;
    if how != "mean" {
        return lowered(cx, r);
    }
    if ty.dtype == DType::Bool {
        return decline("a mean of bools");
    }
    // ATen rounds sum and count to the dtype before it divides.
    let one = cx.constant(Scalar::Int(1), dtype);
    let start = cx.constant(Scalar::Int(i64::from(include_self)), dtype);
    let count = combine(cx, p, ScatterOp::Add, start, one, TensorType { dtype, ..ty.clone() })?;
    let compute = ty.dtype.compute();
    let round = |cx: &mut Cx<'_>, v| {
        let v = cx.convert(v, ty.dtype);
        cx.convert(v, compute)
    };
    let (r, count) = (round(cx, r), round(cx, count));
    let one = cx.constant(Scalar::Int(1), compute);
    let count = cx.pw(PwOp::Maximum, &[count, one])?;
    let op = if compute.is_float() { PwOp::Div } else { PwOp::FloorDiv };
    let r = cx.pw(op, &[r, count])?;
    lowered(cx, r)
}

fn scatter_reduce(cx: &mut Cx<'_>) -> Lowered {
    let (x, index, src) = (cx.tensor(0, "self")?, cx.tensor(2, "index")?, cx.tensor(3, "src")?);
    let dim = cx.dim(1, "dim", 0, cx.rank(x))?;
    let how = cx.str_arg(4, "reduce").unwrap_or_default();
    let include_self = cx.bool(5, "include_self", true)?;
    let (x, index) = (lift(cx, x), lift(cx, index));
    let p = along(cx, cx.rank(x), dim, index, "scatter_reduce")?;
    let src = covered(cx, src, &p.domain)?;
    reduced(cx, &p, x, src, (how, include_self), true)
}

/// The operands that `index_add` and its like begin with.
fn rows_of(cx: &mut Cx<'_>) -> Lowered<(ValueId, usize, ValueId)> {
    let x = cx.tensor(0, "self")?;
    let dim = cx.dim(1, "dim", 0, cx.rank(x))?;
    let index = cx.tensor(2, "index")?;
    let n = cx.ty(index).numel();
    let index = cx.reshape(index, vec![n]);
    Ok((lift(cx, x), dim, cx.convert(index, DType::I64)))
}

/// Places of whole slices: `index[i]` along `dim` for the source's slice `i`. The source's shape is
/// that of `x` but for `dim`; `src` may be a number for all.
fn rows(
    cx: &mut Cx<'_>,
    x: ValueId,
    dim: usize,
    index: ValueId,
    src: ValueId,
    error: &str,
) -> Lowered<Places> {
    let rank = cx.rank(x);
    let n = cx.ty(index).shape[0].clone();
    let mut domain = cx.shape(x);
    domain[dim] = n.clone();
    if !matches!(cx.rank(src), 0 | 1) && cx.rank(src) != rank {
        return decline("the source has another rank than the tensor");
    }
    let mut shape = vec![n];
    shape.extend(std::iter::repeat_n(Expr::ONE, rank - 1 - dim));
    let index = cx.reshape(index, shape);
    let rest = (0..rank).filter(|d| *d != dim).collect();
    Ok(Places { domain, indices: vec![index], dims: vec![dim], rest, wrap: false, error: error.into() })
}

fn index_add(cx: &mut Cx<'_>) -> Lowered {
    let long = cx.dtype(cx.tensor(2, "index")?) == DType::I64;
    let (x, dim, index) = rows_of(cx)?;
    let mut src = cx.tensor(3, "source")?;
    let alpha = cx.number(4, "alpha", Scalar::Int(1))?;
    let one = alpha.as_f64() == 1.0;
    let dtype = cx.dtype(x);
    if !one {
        // The factor is rounded to the dtype, and so is the product.
        let factor = cx.constant(alpha, dtype);
        let (a, b) = (cx.convert(src, dtype.compute()), cx.convert(factor, dtype.compute()));
        let product = cx.pw(PwOp::Mul, &[a, b])?;
        src = cx.convert(product, dtype);
    }
    // ATen adds whole slices, except where it takes the way of `scatter_add`.
    let rank = cx.rank(cx.tensor(0, "self")?);
    let wide = rank > 1 && one && long && (dim == 0 || dim + 1 == rank);
    let error = if wide {
        "RuntimeError: index out of bounds in index_add"
    } else {
        "IndexError: index out of range in index_add"
    };
    let p = rows(cx, x, dim, index, src, error)?;
    if wide { finish_wide(cx, &p, ScatterOp::Add, x, src) } else { finish(cx, &p, ScatterOp::Add, x, src) }
}

fn index_fill(cx: &mut Cx<'_>) -> Lowered {
    let (x, dim, index) = rows_of(cx)?;
    let value = match cx.operand(3, "value")? {
        Operand::Tensor(v) if cx.rank(v) == 0 => v,
        Operand::Const(s) => {
            let dtype = cx.dtype(x);
            cx.constant(s, dtype)
        }
        _ => return decline("a value known only at run time"),
    };
    let mut p = rows(cx, x, dim, index, value, "IndexError: index out of bounds in index_fill")?;
    p.wrap = true;
    finish(cx, &p, ScatterOp::Set, x, value)
}

fn index_reduce(cx: &mut Cx<'_>) -> Lowered {
    let (x, dim, index) = rows_of(cx)?;
    let src = cx.tensor(3, "source")?;
    let how = cx.str_arg(4, "reduce").unwrap_or_default();
    let include_self = cx.bool(5, "include_self", true)?;
    if how == "mean" && cx.dtype(x).compute() != cx.dtype(x) {
        return decline("index_reduce to a mean of 16-bit floats");
    }
    let p = rows(cx, x, dim, index, src, "IndexError: index out of range in index_reduce")?;
    reduced(cx, &p, x, src, (how, include_self), false)
}

fn index_put(cx: &mut Cx<'_>) -> Lowered {
    let (x, values) = (cx.tensor(0, "self")?, cx.tensor(2, "values")?);
    let Some(FxArg::List(list)) = cx.arg(1, "indices") else { return decline("the indices are no list") };
    let accumulate = cx.bool(3, "accumulate", false)?;
    let (mut dims, mut indices) = (vec![], vec![]);
    for (dim, a) in list.iter().enumerate() {
        if !matches!(a, FxArg::None) {
            dims.push(dim);
            indices.push(cx.as_tensor(a)?);
        }
    }
    let Some(&first) = indices.first() else { return decline("no index at all") };
    if indices.iter().any(|i| matches!(cx.dtype(*i), DType::Bool | DType::U8)) {
        let leading = indices.len() == 1 && dims[0] == 0 && cx.dtype(first) == DType::Bool;
        return if leading {
            masked_put(cx, x, first, values, accumulate)
        } else {
            decline("boolean mask: how many elements it picks depends on data")
        };
    }
    let mut shape: Vec<Expr> = vec![];
    for i in &indices {
        match broadcast(&shape, &cx.ty(*i).shape, &cx.graph.facts) {
            Some(s) => shape = s,
            None => return decline("the indices' shapes do not broadcast"),
        }
    }
    // As for `index`: index dims stand where the first indexed dim was, or in front.
    let adjacent = dims.windows(2).all(|w| w[1] == w[0] + 1);
    let at = if adjacent { dims[0] } else { 0 };
    let own = cx.shape(x);
    let kept = own.iter().enumerate().filter(|(d, _)| !dims.contains(d));
    let mut domain: Vec<Expr> = kept.map(|(_, e)| e.clone()).collect();
    let after = domain.len() - at;
    domain.splice(at..at, shape.iter().cloned());
    let rest = (0..at).chain(at + shape.len()..domain.len()).collect();
    for i in &mut indices {
        *i = cx.convert(*i, DType::I64);
        let mut shape = cx.shape(*i);
        shape.extend(std::iter::repeat_n(Expr::ONE, after));
        *i = cx.reshape(*i, shape);
    }
    let error = "IndexError: index out of bounds in index_put".into();
    let p = Places { domain, indices, dims, rest, wrap: true, error };
    let op = if accumulate { ScatterOp::Add } else { ScatterOp::Set };
    finish(cx, &p, op, x, values)
}

/// `x[mask] = values` where what is put does not depend on how many elements the mask picks.
fn masked_put(cx: &mut Cx<'_>, x: ValueId, mask: ValueId, values: ValueId, accumulate: bool) -> Lowered {
    let (rank, covered) = (cx.rank(x), cx.rank(mask));
    let after = rank - covered;
    let mut values = values;
    let shape = cx.shape(values);
    if shape.len() > after {
        if shape.len() > after + 1 || !shape[0].is(1) {
            return decline("boolean mask: how many elements it picks depends on data");
        }
        values = cx.reshape(values, shape[1..].to_vec());
    }
    let mut shape = cx.shape(mask);
    shape.extend(std::iter::repeat_n(Expr::ONE, after));
    let mask = cx.reshape(mask, shape);
    let d = cx.dtype(x);
    let mut values = cx.convert(values, d);
    if accumulate {
        let (a, b) = (cx.convert(x, d.compute()), cx.convert(values, d.compute()));
        let sum = cx.pw(PwOp::Add, &[a, b])?;
        values = cx.convert(sum, d);
    }
    let r = cx.pw(PwOp::Where, &[mask, values, x])?;
    cx.done(r)
}

fn put(cx: &mut Cx<'_>) -> Lowered {
    let (x, index, source) = (cx.tensor(0, "self")?, cx.tensor(1, "index")?, cx.tensor(2, "source")?);
    let op = if cx.bool(3, "accumulate", false)? { ScatterOp::Add } else { ScatterOp::Set };
    let flat = |cx: &mut Cx<'_>, v| {
        let n = cx.ty(v).numel();
        cx.reshape(v, vec![n])
    };
    let index = cx.convert(index, DType::I64);
    let (base, index, source) = (flat(cx, x), flat(cx, index), flat(cx, source));
    let (domain, error) = (cx.shape(index), "IndexError: index out of range in put".into());
    let p = Places { domain, indices: vec![index], dims: vec![0], rest: vec![], wrap: true, error };
    let ty = TensorType::contiguous(cx.dtype(x), cx.shape(base));
    let r = combine(cx, &p, op, base, source, ty)?;
    unflattened(cx, r)
}

/// `r`, a row of elements, as the result.
fn unflattened(cx: &mut Cx<'_>, r: ValueId) -> Lowered {
    let ty = cx.result()?.clone();
    if lj_ir::shape::is_contiguous(&ty.shape, &ty.strides, &cx.graph.facts) {
        return Ok(Val::Tensor(cx.view(View::Reshape, r, ty)));
    }
    let strides = contiguous_strides(&ty.shape);
    let r = cx.view(View::Reshape, r, TensorType { strides, ..ty.clone() });
    Ok(Val::Tensor(cx.push(Op::Copy, vec![r], ty)))
}

/// The number of elements before each that the flat mask picks, plus 1, and the mask.
fn picked(cx: &mut Cx<'_>, mask: ValueId, shape: &[Expr]) -> Lowered<(ValueId, ValueId)> {
    let mask = broadcast_to(cx, mask, shape)?;
    let n = Expr::product(shape);
    let mask = cx.reshape(mask, vec![n.clone()]);
    let ones = cx.convert(mask, DType::I64);
    let ty = TensorType::contiguous(DType::I64, vec![n]);
    let count = scan(cx, ScanOp::Sum, ones, 0, ty).unwrap_or(ones);
    Ok((count, mask))
}

fn masked_scatter(cx: &mut Cx<'_>) -> Lowered {
    let (x, mask, source) = (cx.tensor(0, "self")?, cx.tensor(1, "mask")?, cx.tensor(2, "source")?);
    let shape = cx.result()?.shape.clone();
    if cx.dtype(mask) != DType::Bool {
        return decline("a mask of integers");
    }
    let (count, flat) = picked(cx, mask, &shape)?;
    // One more element, for where the mask picks nothing; too few elements raise.
    let n = cx.ty(source).numel();
    let source = cx.reshape(source, vec![n.clone()]);
    let padded = TensorType::contiguous(cx.dtype(source), vec![&n + &Expr::ONE]);
    let (low, high, value) = (vec![Expr::ZERO], vec![Expr::ONE], Scalar::Int(0).cast(padded.dtype));
    let source = cx.push(Op::Pad { low, high, value }, vec![source], padded);
    let size = cx.sym(&n, DType::I64);
    let one = cx.constant(Scalar::Int(1), DType::I64);
    let outside = cx.constant(Scalar::Int(i64::MAX), DType::I64);
    let at = cx.pw(PwOp::Sub, &[count, one])?;
    let exists = cx.pw(PwOp::Lt, &[at, size])?;
    let at = cx.pw(PwOp::Where, &[exists, at, outside])?;
    let at = cx.pw(PwOp::Where, &[flat, at, size])?;
    let taken = TensorType::contiguous(cx.dtype(source), cx.shape(at));
    let taken = cx.push(Op::Index { dims: vec![0], at: 0 }, vec![source, at], taken);
    let taken = cx.reshape(taken, shape.clone());
    let mask = broadcast_to(cx, mask, &shape)?;
    let r = cx.pw(PwOp::Where, &[mask, taken, x])?;
    cx.done(r)
}

/// The elements that the mask picks, one after the other, and zeros.
fn masked_scatter_backward(cx: &mut Cx<'_>) -> Lowered {
    let (grad, mask) = (cx.tensor(0, "grad_output")?, cx.tensor(1, "mask")?);
    let shape = cx.shape(grad);
    let (count, flat) = picked(cx, mask, &shape)?;
    let n = cx.result()?.numel();
    let grad = cx.reshape(grad, cx.shape(count));
    // What is not picked goes to an element more, which is cut off.
    let last = cx.sym(&n, DType::I64);
    let one = cx.constant(Scalar::Int(1), DType::I64);
    let at = cx.pw(PwOp::Sub, &[count, one])?;
    let at = cx.pw(PwOp::Minimum, &[at, last])?;
    let at = cx.pw(PwOp::Where, &[flat, at, last])?;
    let dtype = cx.result()?.dtype;
    let zero = cx.constant(Scalar::Int(0), dtype);
    let error = "RuntimeError: index out of bounds in masked_scatter_backward".into();
    let p =
        Places { domain: cx.shape(at), indices: vec![at], dims: vec![0], rest: vec![], wrap: false, error };
    let ty = TensorType::contiguous(dtype, vec![&n + &Expr::ONE]);
    let r = combine(cx, &p, ScatterOp::Set, zero, grad, ty)?;
    let r = cx.narrow(r, 0, &Expr::ZERO, &n);
    let ty = TensorType::contiguous(dtype, vec![n]);
    let r = cx.push(Op::Copy, vec![r], ty);
    unflattened(cx, r)
}

fn embedding_backward(cx: &mut Cx<'_>) -> Lowered {
    let (grad, index) = (cx.tensor(0, "grad_output")?, cx.tensor(1, "indices")?);
    let padding_idx = cx.int(3, "padding_idx", -1)?;
    let ty = cx.result()?.clone();
    let index = cx.convert(index, DType::I64);
    let mut shape = cx.shape(index);
    shape.push(Expr::ONE);
    let index = cx.reshape(index, shape);
    let domain = cx.shape(grad);
    let rest = vec![domain.len() - 1];
    let error = "IndexError: index out of range in self".to_string();
    let p = Places { domain, indices: vec![index], dims: vec![0], rest, wrap: false, error };
    let zero = cx.constant(Scalar::Int(0), ty.dtype);
    let mut grad = grad;
    if cx.bool(4, "scale_grad_by_freq", false)? {
        if ty.dtype.compute() != ty.dtype {
            return decline("embedding gradient of 16-bit floats scaled by frequency");
        }
        let n = ty.shape[0].clone();
        let one = cx.constant(Scalar::Int(1), ty.dtype);
        let mut count = TensorType::contiguous(ty.dtype, vec![n.clone()]);
        let flat = cx.ty(index).numel();
        let flat = cx.reshape(index, vec![flat]);
        let error = p.error.clone();
        let counted = Places {
            domain: cx.shape(flat),
            indices: vec![flat],
            dims: vec![0],
            rest: vec![],
            wrap: false,
            error,
        };
        let counts = combine(cx, &counted, ScatterOp::Add, zero, one, count.clone())?;
        count.shape = cx.shape(index);
        count.strides = contiguous_strides(&count.shape);
        let count = cx.push(Op::Index { dims: vec![0], at: 0 }, vec![counts, index], count);
        let scale = cx.pw(PwOp::Div, &[one, count])?;
        grad = cx.pw(PwOp::Mul, &[grad, scale])?;
    }
    if padding_idx >= 0 {
        // Nothing is added to 0 but zeros: the row stays as it is.
        let padding = cx.constant(Scalar::Int(padding_idx), DType::I64);
        let counts = cx.pw(PwOp::Ne, &[index, padding])?;
        grad = cx.pw(PwOp::Where, &[counts, grad, zero])?;
    }
    finish(cx, &p, ScatterOp::Add, zero, grad)
}
