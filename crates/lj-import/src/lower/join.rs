//! Concatenation, padding and repetition.

use super::Row;
use crate::cx::{Cx, Lowered, Val, decline};
use lj_ir::{Expr, Op, Scalar, TensorType, ValueId, View};

pub(super) const ROWS: &[Row] = &[
    ("aten.cat.default", |cx| {
        let list = cx.tensors(0, "tensors")?;
        // Empty 1-d tensors are skipped, whatever the rank of the others (a legacy of torch's).
        let counts = |v: &&ValueId| !matches!(cx.ty(**v).shape.as_slice(), [n] if n.is(0));
        let list: Vec<ValueId> = list.iter().filter(counts).copied().collect();
        cat(cx, list)
    }),
    ("prims.cat.default", |cx| {
        let list = cx.tensors(0, "tensors")?;
        cat(cx, list)
    }),
    ("aten.stack.default", stack),
    ("aten.constant_pad_nd.default", pad),
    ("aten.repeat.default", repeat),
];

fn cat(cx: &mut Cx<'_>, list: Vec<ValueId>) -> Lowered {
    let ty = cx.result()?.clone();
    let dim = cx.dim(1, "dim", 0, ty.rank())?;
    let mut parts = vec![];
    for v in list {
        let v = cx.convert(v, ty.dtype);
        let mut shape = ty.shape.clone();
        if let (Some(to), Some(own)) = (shape.get_mut(dim), cx.ty(v).shape.get(dim)) {
            *to = own.clone();
        }
        parts.push(cx.retyped(v, &shape)?);
    }
    let list = parts;
    match list.as_slice() {
        [] => decline("nothing to concatenate"),
        [one] => Ok(Val::Tensor(cx.push(Op::Copy, vec![*one], ty))),
        _ => Ok(Val::Tensor(cx.push(Op::Cat { dim }, list, ty))),
    }
}

fn stack(cx: &mut Cx<'_>) -> Lowered {
    let list = cx.tensors(0, "tensors")?;
    let ty = cx.result()?.clone();
    let dim = cx.dim(1, "dim", 0, ty.rank())?;
    let mut parts = vec![];
    for v in list {
        let v = cx.convert(v, ty.dtype);
        let mut shape = cx.shape(v);
        shape.insert(dim, Expr::ONE);
        let v = cx.reshape(v, shape);
        let mut want = ty.shape.clone();
        want[dim] = Expr::ONE;
        parts.push(cx.retyped(v, &want)?);
    }
    if let [one] = parts.as_slice() {
        return Ok(Val::Tensor(cx.push(Op::Copy, vec![*one], ty)));
    }
    Ok(Val::Tensor(cx.push(Op::Cat { dim }, parts, ty)))
}

/// `pad` holds (before, after) per dim, from the last dim.
fn pad(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let list = cx.exprs(1, "pad")?.unwrap_or_default();
    let value = cx.number(2, "value", Scalar::Int(0))?;
    let ty = cx.result()?.clone();
    let rank = cx.rank(x);
    if list.len() % 2 != 0 || list.len() / 2 > rank {
        return decline("the padding does not fit the rank");
    }
    let (mut low, mut high) = (vec![Expr::ZERO; rank], vec![Expr::ZERO; rank]);
    for (i, both) in list.chunks(2).enumerate() {
        (low[rank - 1 - i], high[rank - 1 - i]) = (both[0].clone(), both[1].clone());
    }
    let value = value.cast(ty.dtype);
    if low.iter().chain(&high).all(|e| e.is(0)) {
        return Ok(Val::Tensor(cx.push(Op::Copy, vec![x], ty)));
    }
    Ok(Val::Tensor(cx.push(Op::Pad { low, high, value }, vec![x], ty)))
}

/// Each dim `n` repeated `r` times is the expansion `[r, n]`, made row-major and merged.
fn repeat(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let times = cx.exprs(1, "repeats")?.unwrap_or_default();
    let ty = cx.result()?.clone();
    let Some(lead) = times.len().checked_sub(cx.rank(x)) else {
        return decline("fewer repetitions than dims");
    };
    let mut shape = vec![Expr::ONE; lead];
    shape.extend(cx.shape(x));
    let (mut apart, mut repeated) = (vec![], vec![]);
    for (n, r) in shape.iter().zip(&times) {
        apart.extend([Expr::ONE, n.clone()]);
        repeated.extend([r.clone(), n.clone()]);
    }
    let x = cx.reshape(x, apart);
    let x = cx.expand(x, &repeated);
    let wide =
        TensorType { strides: lj_ir::shape::contiguous_strides(&repeated), shape: repeated, ..ty.clone() };
    let x = cx.push(Op::Copy, vec![x], wide);
    Ok(Val::Tensor(cx.view(View::Reshape, x, ty)))
}
