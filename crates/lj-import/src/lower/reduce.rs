//! Reductions.

use super::Row;
use crate::cx::{Cx, Lowered, Val, decline};
use crate::fx::{FxArg, FxMeta};
use lj_ir::{DType, Expr, Op, PwOp, ReduceOp, Scalar, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.sum.default", |cx| arithmetic(cx, ReduceOp::Sum, &["dim", "dtype"], true)),
    ("aten.sum.dim_IntList", |cx| arithmetic(cx, ReduceOp::Sum, &["dim", "keepdim", "dtype"], false)),
    ("prims.sum.default", |cx| arithmetic(cx, ReduceOp::Sum, &["dims"], false)),
    ("aten.prod.default", |cx| arithmetic(cx, ReduceOp::Prod, &["dim", "dtype"], true)),
    ("aten.prod.dim_int", |cx| arithmetic(cx, ReduceOp::Prod, &["dim", "keepdim", "dtype"], false)),
    ("prims.prod.default", |cx| arithmetic(cx, ReduceOp::Prod, &["dims"], false)),
    ("aten.mean.default", |cx| mean(cx, true)),
    ("aten.mean.dim", |cx| mean(cx, false)),
    ("aten.amax.default", |cx| extremum(cx, ReduceOp::Max, false)),
    ("aten.amin.default", |cx| extremum(cx, ReduceOp::Min, false)),
    ("prims.amax.default", |cx| extremum(cx, ReduceOp::Max, false)),
    ("prims.amin.default", |cx| extremum(cx, ReduceOp::Min, false)),
    ("aten.max.default", |cx| extremum(cx, ReduceOp::Max, true)),
    ("aten.min.default", |cx| extremum(cx, ReduceOp::Min, true)),
    ("aten.max.dim", |cx| extremum_with_index(cx, ReduceOp::Max, ReduceOp::ArgMax)),
    ("aten.min.dim", |cx| extremum_with_index(cx, ReduceOp::Min, ReduceOp::ArgMin)),
    ("aten.argmax.default", |cx| position(cx, ReduceOp::ArgMax)),
    ("aten.argmin.default", |cx| position(cx, ReduceOp::ArgMin)),
    ("aten.any.default", |cx| truth(cx, ReduceOp::Any, true)),
    ("aten.any.dim", |cx| truth(cx, ReduceOp::Any, false)),
    ("aten.any.dims", |cx| truth(cx, ReduceOp::Any, false)),
    ("aten.all.default", |cx| truth(cx, ReduceOp::All, true)),
    ("aten.all.dim", |cx| truth(cx, ReduceOp::All, false)),
    ("aten.all.dims", |cx| truth(cx, ReduceOp::All, false)),
    ("aten.var.correction", |cx| variance(cx, false)),
    ("prims.var.default", |cx| variance(cx, false)),
    ("aten.std.correction", |cx| variance(cx, true)),
    ("aten.var_mean.correction", var_mean),
];

/// `x` reduced over `dims`; with no dims left the input itself, except that an index is 0.
fn reduce(cx: &mut Cx<'_>, op: ReduceOp, x: ValueId, dims: &[usize]) -> ValueId {
    let shape = cx.shape(x);
    let dtype = if op.is_arg() { DType::I64 } else { cx.dtype(x) };
    if dims.is_empty() && !op.is_arg() {
        return x;
    }
    let kept = |i: &usize| !dims.contains(i);
    let kept: Vec<Expr> = (0..shape.len()).filter(kept).map(|i| shape[i].clone()).collect();
    let ty = cx.fresh(dtype, kept);
    cx.push(Op::Reduce { op, dims: dims.to_vec() }, vec![x], ty)
}

/// Puts the reduced dims back with extent 1 where the result has them, and finishes.
fn shaped(cx: &mut Cx<'_>, v: ValueId) -> Lowered {
    let ty = cx.result()?.clone();
    shaped_as(cx, v, ty).map(Val::Tensor)
}

fn shaped_as(cx: &mut Cx<'_>, v: ValueId, ty: lj_ir::TensorType) -> Lowered<ValueId> {
    let v = cx.convert(v, ty.dtype);
    if cx.rank(v) == ty.rank() {
        return cx.done_as(v, ty);
    }
    Ok(cx.view(lj_ir::View::Reshape, v, ty))
}

/// The dims to reduce: argument 1 unless the overload reduces `all`.
fn dims(cx: &Cx<'_>, name: &str, x: ValueId, all: bool) -> Lowered<Vec<usize>> {
    let rank = cx.rank(x);
    if all {
        return Ok((0..rank).collect());
    }
    // For prims an empty list means no dims.
    let prims =
        matches!(&cx.node.kind, crate::fx::FxKind::Call { target, .. } if target.starts_with("prims."));
    if prims && matches!(cx.arg(1, name), Some(FxArg::List(l)) if l.is_empty()) {
        return Ok(vec![]);
    }
    cx.dims(1, name, rank)
}

/// Sums and products: in the opmath type of the result.
fn arithmetic(cx: &mut Cx<'_>, op: ReduceOp, names: &[&str], all: bool) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let over = dims(cx, names[0], x, all)?;
    let dtype = cx.result()?.dtype;
    if dtype == DType::Bool {
        return decline("sum or product with a bool result");
    }
    // `dtype=` converts the input first, which may round (f32 summed as bf16).
    let x = cx.convert(x, dtype);
    let x = cx.convert(x, dtype.compute());
    let r = reduce(cx, op, x, &over);
    shaped(cx, r)
}

fn count(cx: &Cx<'_>, x: ValueId, dims: &[usize]) -> Expr {
    Expr::product(dims.iter().map(|d| &cx.ty(x).shape[*d]))
}

fn mean_of(cx: &mut Cx<'_>, x: ValueId, dims: &[usize]) -> Lowered<ValueId> {
    let n = count(cx, x, dims);
    let sum = reduce(cx, ReduceOp::Sum, x, dims);
    let n = cx.sym(&n, cx.dtype(x));
    cx.pw(PwOp::Div, &[sum, n])
}

fn mean(cx: &mut Cx<'_>, all: bool) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let over = dims(cx, "dim", x, all)?;
    let dtype = cx.result()?.dtype;
    let x = cx.convert(x, dtype);
    let x = cx.convert(x, dtype.compute());
    let r = mean_of(cx, x, &over)?;
    shaped(cx, r)
}

/// Declines unless every reduced extent is provably positive: eager raises for empty ones.
fn nonempty(cx: &Cx<'_>, x: ValueId, dims: &[usize]) -> Lowered<()> {
    let positive = dims.iter().all(|d| cx.graph.facts.ge(&cx.ty(x).shape[*d], &Expr::ONE));
    if positive { Ok(()) } else { decline("maximum or minimum over a dim that may be empty") }
}

fn largest(cx: &mut Cx<'_>, op: ReduceOp, x: ValueId, dims: &[usize]) -> ValueId {
    let d = cx.dtype(x);
    let op = match (d, op) {
        (DType::Bool, ReduceOp::Max) => ReduceOp::Any,
        (DType::Bool, ReduceOp::Min) => ReduceOp::All,
        _ => op,
    };
    let x = cx.convert(x, d.compute());
    reduce(cx, op, x, dims)
}

fn extremum(cx: &mut Cx<'_>, op: ReduceOp, all: bool) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let over = dims(cx, "dim", x, all)?;
    nonempty(cx, x, &over)?;
    let r = largest(cx, op, x, &over);
    shaped(cx, r)
}

/// Values and indices along one dim.
fn extremum_with_index(cx: &mut Cx<'_>, op: ReduceOp, arg: ReduceOp) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let rank = cx.rank(x);
    let dim = cx.dim(1, "dim", 0, rank)?;
    let over: Vec<usize> = if rank == 0 { vec![] } else { vec![dim] };
    nonempty(cx, x, &over)?;
    let (values, indices) = (cx.result_at(0)?.clone(), cx.result_at(1)?.clone());
    let v = largest(cx, op, x, &over);
    let v = shaped_as(cx, v, values)?;
    let wide = widened(cx, x);
    let i = reduce(cx, arg, wide, &over);
    let i = shaped_as(cx, i, indices)?;
    Ok(Val::List(vec![Val::Tensor(v), Val::Tensor(i)]))
}

/// `x` in a type that can be compared: 16-bit floats as `f32`, bools as `u8`.
fn widened(cx: &mut Cx<'_>, x: ValueId) -> ValueId {
    let d = cx.dtype(x);
    cx.convert(x, if d == DType::Bool { DType::U8 } else { d.compute() })
}

fn position(cx: &mut Cx<'_>, op: ReduceOp) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let rank = cx.rank(x);
    let over: Vec<usize> = match cx.expr(1, "dim")? {
        None => (0..rank).collect(),
        Some(_) if rank == 0 => vec![],
        Some(_) => vec![cx.dim(1, "dim", 0, rank)?],
    };
    nonempty(cx, x, &over)?;
    let wide = widened(cx, x);
    let r = reduce(cx, op, wide, &over);
    shaped(cx, r)
}

fn truth(cx: &mut Cx<'_>, op: ReduceOp, all: bool) -> Lowered {
    let x = cx.tensor(0, "self")?;
    // An empty list of dims means none for `any.dims`, all when absent.
    let over = match cx.arg(1, "dim") {
        Some(FxArg::List(l)) if l.is_empty() => vec![],
        _ => dims(cx, "dim", x, all)?,
    };
    let x = cx.convert(x, DType::Bool);
    let r = reduce(cx, op, x, &over);
    shaped(cx, r)
}

/// Two passes: the mean, then the squared distances over `n − correction`, which counts as 0 when
/// negative (the result is then NaN or ∞, as eager's).
fn moments(cx: &mut Cx<'_>) -> Lowered<(ValueId, ValueId, Vec<usize>)> {
    let x = cx.tensor(0, "self")?;
    let over = dims(cx, "dim", x, false)?;
    let prims = cx.node.args.len() > 2;
    let correction = if prims {
        cx.number(2, "correction", Scalar::Int(1))?
    } else {
        cx.number(9, "correction", Scalar::Int(1))?
    };
    let d = cx.dtype(x).compute();
    if !d.is_float() {
        return decline("variance of integers");
    }
    let x = cx.convert(x, d);
    let n = count(cx, x, &over);
    let mean = mean_of(cx, x, &over)?;
    let mut kept = cx.shape(x);
    for i in &over {
        kept[*i] = Expr::ONE;
    }
    let wide = cx.reshape(mean, kept);
    let distance = cx.pw(PwOp::Sub, &[x, wide])?;
    let square = cx.pw(PwOp::Mul, &[distance, distance])?;
    let sum = reduce(cx, ReduceOp::Sum, square, &over);
    let c = correction.as_f64();
    let dof = if c.fract() == 0.0 {
        let dof = (&n - &Expr::int(c as i64)).maximum(&Expr::ZERO);
        cx.sym(&dof, d)
    } else if let Some(n) = n.as_int() {
        cx.float((n as f64 - c).max(0.0), d)
    } else {
        return decline("fractional correction with symbolic sizes");
    };
    let var = cx.pw(PwOp::Div, &[sum, dof])?;
    Ok((var, mean, over))
}

fn variance(cx: &mut Cx<'_>, root: bool) -> Lowered {
    let (mut var, _, _) = moments(cx)?;
    if root {
        var = cx.pw(PwOp::Sqrt, &[var])?;
    }
    shaped(cx, var)
}

fn var_mean(cx: &mut Cx<'_>) -> Lowered {
    let FxMeta::List(_) = &cx.node.meta else { return decline("several results were expected") };
    let types = (cx.result_at(0)?.clone(), cx.result_at(1)?.clone());
    let (var, mean, _) = moments(cx)?;
    let var = shaped_as(cx, var, types.0)?;
    let mean = shaped_as(cx, mean, types.1)?;
    Ok(Val::List(vec![Val::Tensor(var), Val::Tensor(mean)]))
}
