//! Slices put back into what they were taken from.

use super::{finish, rows};
use crate::cx::{Cx, Lowered, Val, decline};
use crate::lower::views::clamp_index;
use lj_ir::{DType, Expr, Op, Scalar, ScatterOp, TensorType, ValueId};

/// The constant that fills `x`, if one does.
fn fill_of(cx: &Cx<'_>, mut x: ValueId) -> Option<Scalar> {
    loop {
        let node = cx.graph.def(x);
        match &node.op {
            Op::Full(s) => return Some(*s),
            Op::View(_) | Op::Copy => x = node.inputs[0],
            _ => return None,
        }
    }
}

/// `x` with `src` in place of `x[..., start : start+len, ...]`.
fn replaced(cx: &mut Cx<'_>, x: ValueId, src: ValueId, dim: usize, start: &Expr, len: &Expr) -> Lowered {
    let ty = cx.result()?.clone();
    let src = cx.convert(src, ty.dtype);
    let mut part = cx.shape(x);
    let extent = part[dim].clone();
    part[dim] = len.clone();
    let src = cx.expand(src, &part);
    let end = start + len;
    let after = &extent - &end;
    if start.is(0) && cx.graph.facts.eq(len, &extent) {
        return Ok(Val::Tensor(cx.push(Op::Copy, vec![src], ty)));
    }
    // Zeros around a piece (the gradient of a slice) are padding.
    if let Some(value) = fill_of(cx, x) {
        let mut low = vec![Expr::ZERO; part.len()];
        let mut high = low.clone();
        (low[dim], high[dim]) = (start.clone(), after);
        let value = value.cast(ty.dtype);
        return Ok(Val::Tensor(cx.push(Op::Pad { low, high, value }, vec![src], ty)));
    }
    let mut parts = vec![];
    if !start.is(0) {
        parts.push(cx.narrow(x, dim, &Expr::ZERO, start));
    }
    parts.push(src);
    if !after.is(0) {
        parts.push(cx.narrow(x, dim, &end, &after));
    }
    Ok(Val::Tensor(cx.push(Op::Cat { dim }, parts, ty)))
}

pub(super) fn slice_scatter(cx: &mut Cx<'_>) -> Lowered {
    let (x, src) = (cx.tensor(0, "self")?, cx.tensor(1, "src")?);
    let dim = cx.dim(2, "dim", 0, cx.rank(x))?;
    let step = cx.int(5, "step", 1)?;
    let extent = cx.ty(x).shape[dim].clone();
    let start = cx.expr(3, "start")?;
    let start = clamp_index(cx, start, Expr::ZERO, &extent);
    let len = cx.ty(src).shape[dim].clone();
    if step != 1 {
        let index = steps(cx, start, step, len);
        let p = rows(cx, x, dim, index, src, "IndexError: index out of range in slice_scatter")?;
        return finish(cx, &p, ScatterOp::Set, x, src);
    }
    replaced(cx, x, src, dim, &start, &len)
}

pub(super) fn select_scatter(cx: &mut Cx<'_>) -> Lowered {
    let (x, src) = (cx.tensor(0, "self")?, cx.tensor(1, "src")?);
    let dim = cx.dim(2, "dim", 0, cx.rank(x))?;
    let Some(index) = cx.expr(3, "index")? else { return decline("the index is missing") };
    let extent = cx.ty(x).shape[dim].clone();
    let index = if cx.graph.facts.range(&index).1 < 0 { &index + &extent } else { index };
    if !cx.graph.facts.ge(&index, &Expr::ZERO) {
        return decline("an index of unknown sign");
    }
    let mut shape = cx.shape(src);
    shape.insert(dim, Expr::ONE);
    let src = cx.reshape(src, shape);
    replaced(cx, x, src, dim, &index, &Expr::ONE)
}

/// `start, start + step, …`.
fn steps(cx: &mut Cx<'_>, start: Expr, step: i64, len: Expr) -> ValueId {
    let ty = TensorType::contiguous(DType::I64, vec![len]);
    cx.push(Op::Iota { start, step: Expr::int(step) }, vec![], ty)
}
