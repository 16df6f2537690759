//! Scans: running sums, products and extremes along one dim.

use super::Row;
use crate::cx::{Cx, Lowered, Val, decline};
use lj_ir::{DType, Expr, Op, PwOp, Scalar, ScanOp, TensorType, ValueId, View};

pub(super) const ROWS: &[Row] = &[
    ("aten.cumsum.default", |cx| running(cx, ScanOp::Sum)),
    ("aten.cumprod.default", |cx| running(cx, ScanOp::Prod)),
    ("aten.logcumsumexp.default", |cx| running(cx, ScanOp::LogSumExp)),
    ("aten.cummax.default", |cx| extremes(cx, ScanOp::Max)),
    ("aten.cummin.default", |cx| extremes(cx, ScanOp::Min)),
];

/// What ATen accumulates a dtype in (`acc_type` on the CPU). Integers wrap either way.
fn accumulator(d: DType) -> DType {
    match d {
        DType::F16 | DType::BF16 => DType::F32,
        DType::F32 => DType::F64,
        other => other,
    }
}

/// The scan itself; `None` where there is but one element to a row.
pub(super) fn scan(cx: &mut Cx<'_>, op: ScanOp, x: ValueId, dim: usize, ty: TensorType) -> Option<ValueId> {
    let one = cx.ty(x).shape.get(dim).is_none_or(|e| e.is(1));
    (!one).then(|| cx.push(Op::Scan { op, dim, reverse: false }, vec![x], ty))
}

/// `x.flip(dim)` where `x` is a scan of something flipped likewise: the scan of that from the other
/// end (the gradient of a running sum).
pub(super) fn turned(cx: &mut Cx<'_>, x: ValueId, dims: &[usize], ty: &TensorType) -> Option<ValueId> {
    let &Op::Scan { op, dim, reverse } = &cx.graph.def(x).op else { return None };
    let mut from = cx.graph.def(x).inputs[0];
    let mut dtypes = vec![];
    while let Op::Convert = cx.graph.def(from).op {
        dtypes.push(cx.dtype(from));
        from = cx.graph.def(from).inputs[0];
    }
    let Op::View(View::Flip(flipped)) = &cx.graph.def(from).op else { return None };
    if dims != [dim] || flipped != dims {
        return None;
    }
    from = cx.graph.def(from).inputs[0];
    for d in dtypes.into_iter().rev() {
        from = cx.convert(from, d);
    }
    Some(cx.push(Op::Scan { op, dim, reverse: !reverse }, vec![from], ty.clone()))
}

fn running(cx: &mut Cx<'_>, op: ScanOp) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let dim = cx.dim(1, "dim", 0, cx.rank(x))?;
    let ty = cx.result()?.clone();
    if ty.dtype == DType::Bool {
        return decline("a running sum or product of bools");
    }
    // `dtype=` converts the input first.
    let x = cx.convert(x, ty.dtype);
    let wide = cx.convert(x, accumulator(ty.dtype));
    match scan(cx, op, wide, dim, ty) {
        Some(r) => Ok(Val::Tensor(r)),
        // ATen copies a 0-d tensor, but adds a row's only element to 0, which −0 shows.
        None if cx.rank(x) > 0 && op != ScanOp::Prod && cx.dtype(wide).is_float() => {
            let zero = cx.float(0.0, cx.dtype(wide));
            let r = cx.pw(PwOp::Add, &[wide, zero])?;
            cx.done(r)
        }
        None => cx.done(x),
    }
}

/// Values and indices. An element is the latest extreme where it equals the running one or is NaN,
/// and the last such position is the running largest of them.
fn extremes(cx: &mut Cx<'_>, op: ScanOp) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let rank = cx.rank(x);
    let dim = cx.dim(1, "dim", 0, rank)?;
    let (values, indices) = (cx.result_at(0)?.clone(), cx.result_at(1)?.clone());
    let d = cx.dtype(x);
    let wide = cx.convert(x, if d == DType::Bool { DType::U8 } else { d.compute() });
    let ty = TensorType { dtype: cx.dtype(wide), ..values.clone() };
    let Some(v) = scan(cx, op, wide, dim, ty) else {
        let v = cx.done_as(x, values)?;
        let i = cx.push(Op::Full(Scalar::Int(0)), vec![], indices);
        return Ok(Val::List(vec![Val::Tensor(v), Val::Tensor(i)]));
    };
    let mut hit = cx.pw(PwOp::Eq, &[wide, v])?;
    if cx.dtype(wide).is_float() {
        let nan = cx.pw(PwOp::IsNan, &[wide])?;
        hit = cx.pw(PwOp::Or, &[hit, nan])?;
    }
    let n = cx.shape(x)[dim].clone();
    let small = cx.graph.facts.ge(&Expr::int(1 << 31), &n);
    let position = if small { DType::I32 } else { DType::I64 };
    let steps = TensorType::contiguous(position, vec![n.clone()]);
    let steps = cx.push(Op::Iota { start: Expr::ZERO, step: Expr::ONE }, vec![], steps);
    let mut shape = vec![Expr::ONE; rank];
    shape[dim] = n;
    let steps = cx.reshape(steps, shape);
    let zero = cx.constant(Scalar::Int(0), position);
    let at = cx.pw(PwOp::Where, &[hit, steps, zero])?;
    let i = cx.push(Op::Scan { op: ScanOp::Max, dim, reverse: false }, vec![at], indices);
    let v = cx.done_as(v, values)?;
    Ok(Val::List(vec![Val::Tensor(v), Val::Tensor(i)]))
}
