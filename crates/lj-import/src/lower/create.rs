//! Constants and index ranges.

use super::Row;
use crate::cx::{Cx, Lowered, Operand, Val, decline};
use lj_ir::{DType, Expr, Op, PwOp, Scalar, TensorType, ValueId, View};

pub(super) const ROWS: &[Row] = &[
    ("aten.full.default", |cx| fill(cx, 1, "fill_value")),
    ("aten.full_like.default", |cx| fill(cx, 1, "fill_value")),
    ("aten.new_full.default", |cx| fill(cx, 2, "fill_value")),
    ("aten.fill.Scalar", |cx| fill(cx, 1, "value")),
    ("aten.fill.Tensor", |cx| fill(cx, 1, "value")),
    ("aten.scalar_tensor.default", |cx| fill(cx, 0, "s")),
    ("prims.full.default", |cx| fill(cx, 1, "fill_value")),
    ("prims.full_like.default", |cx| fill(cx, 1, "fill_value")),
    ("prims.scalar_tensor.default", |cx| fill(cx, 0, "s")),
    ("aten.zeros.default", |cx| constant(cx, 0)),
    ("aten.zeros_like.default", |cx| constant(cx, 0)),
    ("aten.new_zeros.default", |cx| constant(cx, 0)),
    ("aten.ones.default", |cx| constant(cx, 1)),
    ("aten.ones_like.default", |cx| constant(cx, 1)),
    ("aten.new_ones.default", |cx| constant(cx, 1)),
    // What is uninitialised may as well be zero.
    ("aten.empty.memory_format", |cx| constant(cx, 0)),
    ("aten.empty_like.default", |cx| constant(cx, 0)),
    ("aten.empty_strided.default", |cx| constant(cx, 0)),
    ("aten.empty_permuted.default", |cx| constant(cx, 0)),
    ("aten.new_empty.default", |cx| constant(cx, 0)),
    ("aten.new_empty_strided.default", |cx| constant(cx, 0)),
    ("prims.empty_strided.default", |cx| constant(cx, 0)),
    ("prims.empty_permuted.default", |cx| constant(cx, 0)),
    ("aten.arange.default", |cx| range(cx, None, None)),
    ("aten.arange.start", |cx| range(cx, Some(0), None)),
    ("aten.arange.start_step", |cx| range(cx, Some(0), Some(2))),
    ("ljcompile.philox.default", philox),
    ("prims.iota.default", |cx| {
        let start = number(cx, 9, "start")?.unwrap_or(Number::Int(Expr::ZERO));
        let step = number(cx, 9, "step")?.unwrap_or(Number::Int(Expr::ONE));
        ramp(cx, &start, &step)
    }),
];

fn constant(cx: &mut Cx<'_>, v: i64) -> Lowered {
    let ty = cx.result()?.clone();
    let s = Scalar::Int(v).cast(ty.dtype);
    Ok(Val::Tensor(cx.push(Op::Full(s), vec![], ty)))
}

fn fill(cx: &mut Cx<'_>, at: usize, name: &str) -> Lowered {
    let ty = cx.result()?.clone();
    let v = match cx.operand(at, name)? {
        Operand::Const(s) => {
            let s = s.cast(ty.dtype);
            return Ok(Val::Tensor(cx.push(Op::Full(s), vec![], ty)));
        }
        Operand::Sym(e) => cx.sym(&e, ty.dtype),
        Operand::Tensor(v) | Operand::Number(v) => cx.convert(v, ty.dtype),
    };
    let v = cx.expand(v, &ty.shape);
    Ok(Val::Tensor(cx.push(Op::Copy, vec![v], ty)))
}

/// An end or step of a range.
enum Number {
    Int(Expr),
    Float(f64),
}

fn number(cx: &mut Cx<'_>, at: usize, name: &str) -> Lowered<Option<Number>> {
    Ok(match cx.opt_operand(at, name)? {
        None => None,
        Some(Operand::Const(s @ Scalar::Float(_))) => Some(Number::Float(s.as_f64())),
        Some(Operand::Const(s)) => Some(Number::Int(Expr::int(s.as_i64()))),
        Some(Operand::Sym(e)) => Some(Number::Int(e)),
        Some(_) => return decline("a range with an end known only at run time"),
    })
}

/// A range whose start and step, if given, are these arguments.
fn range(cx: &mut Cx<'_>, start: Option<usize>, step: Option<usize>) -> Lowered {
    let start = match start {
        Some(at) => number(cx, at, "start")?,
        None => None,
    };
    let step = match step {
        Some(at) => number(cx, at, "step")?,
        None => None,
    };
    // Only the length of a range of integers is computed before its ends are cut to integers.
    let integer = cx.result()?.dtype.is_int();
    let cut = |n: Number| match n {
        Number::Float(f) if integer => Number::Int(Expr::int(f as i64)),
        n => n,
    };
    let start = cut(start.unwrap_or(Number::Int(Expr::ZERO)));
    let step = cut(step.unwrap_or(Number::Int(Expr::ONE)));
    ramp(cx, &start, &step)
}

/// `start + step × i`; the length is the metadata's.
fn ramp(cx: &mut Cx<'_>, start: &Number, step: &Number) -> Lowered {
    let ty = cx.result()?.clone();
    let (Number::Int(first), Number::Int(by)) = (start, step) else {
        // In double precision, as ATen's accumulation type.
        let steps = iota(cx, &ty, DType::I64, Expr::ZERO, Expr::ONE);
        let steps = cx.convert(steps, DType::F64);
        let by = double(cx, step);
        let first = double(cx, start);
        let scaled = cx.pw(PwOp::Mul, &[steps, by])?;
        let r = cx.pw(PwOp::Add, &[first, scaled])?;
        return cx.done(r);
    };
    let (first, by) = (first.clone(), by.clone());
    let dtype = if ty.dtype.is_int() { ty.dtype } else { DType::I64 };
    let r = iota(cx, &ty, dtype, first, by);
    cx.done(r)
}

fn iota(cx: &mut Cx<'_>, ty: &TensorType, dtype: DType, start: Expr, step: Expr) -> ValueId {
    cx.push(Op::Iota { start, step }, vec![], TensorType { dtype, ..ty.clone() })
}

/// Random bits by position, row-major whatever the layout.
fn philox(cx: &mut Cx<'_>) -> Lowered {
    let ty = cx.result()?.clone();
    let seed = cx.tensor(0, "seed")?;
    let flat = TensorType::contiguous(DType::I64, vec![Expr::product(ty.shape.iter())]);
    let position = iota(cx, &flat, DType::I64, Expr::ZERO, Expr::ONE);
    let position = cx.view(View::Reshape, position, TensorType::contiguous(DType::I64, ty.shape.clone()));
    let bits = cx.pw(PwOp::Philox, &[seed, position])?;
    cx.done(bits)
}

fn double(cx: &mut Cx<'_>, n: &Number) -> ValueId {
    match n {
        Number::Int(e) => cx.sym(e, DType::F64),
        Number::Float(f) => cx.float(*f, DType::F64),
    }
}
