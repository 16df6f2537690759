//! Gathers: elements picked by indices.

use super::Row;
use crate::cx::{Cx, Lowered, Val, decline};
use crate::fx::FxArg;
use lj_ir::{DType, Expr, Op, PwOp, Scalar, TensorType, ValueId, View};

pub(super) const ROWS: &[Row] = &[
    ("aten.index.Tensor", index),
    ("aten._unsafe_index.Tensor", index),
    ("aten.index_select.default", |cx| {
        let x = cx.tensor(0, "self")?;
        let rank = cx.rank(x);
        let dim = cx.dim(1, "dim", 0, rank)?;
        let index = cx.tensor(2, "index")?;
        if rank == 0 {
            return decline("index_select of a 0-d tensor");
        }
        let n = cx.graph.tensor(index).numel();
        let index = cx.reshape(index, vec![n]);
        let index = strict(cx, index)?;
        indexed(cx, x, vec![dim], dim, vec![index])
    }),
    ("aten.embedding.default", |cx| {
        let (table, index) = (cx.tensor(0, "weight")?, cx.tensor(1, "indices")?);
        let index = strict(cx, index)?;
        indexed(cx, table, vec![0], 0, vec![index])
    }),
    ("aten.gather.default", gather),
    ("aten.flip.default", |cx| {
        let x = cx.tensor(0, "self")?;
        let dims = match cx.exprs(1, "dims")? {
            Some(l) if !l.is_empty() => cx.dims(1, "dims", cx.rank(x))?,
            _ => vec![],
        };
        let ty = cx.result()?.clone();
        if let Some(r) = super::scan::turned(cx, x, &dims, &ty) {
            return Ok(Val::Tensor(r));
        }
        let op = if dims.is_empty() { Op::Copy } else { Op::View(View::Flip(dims)) };
        Ok(Val::Tensor(cx.push(op, vec![x], ty)))
    }),
    ("aten.take.default", |cx| {
        let x = cx.tensor(0, "self")?;
        let index = cx.tensor(1, "index")?;
        let n = cx.ty(x).numel();
        let x = cx.reshape(x, vec![n]);
        let index = cx.convert(index, DType::I64);
        indexed(cx, x, vec![0], 0, vec![index])
    }),
];

/// An index of which negative values raise: `Op::Index` would count them from the end, so they
/// become the largest integer, which is out of range of everything.
pub(super) fn strict(cx: &mut Cx<'_>, index: ValueId) -> Lowered<ValueId> {
    let index = cx.convert(index, DType::I64);
    let zero = cx.constant(Scalar::Int(0), DType::I64);
    let outside = cx.constant(Scalar::Int(i64::MAX), DType::I64);
    let negative = cx.pw(PwOp::Lt, &[index, zero])?;
    cx.pw(PwOp::Where, &[negative, outside, index])
}

fn indexed(cx: &mut Cx<'_>, x: ValueId, dims: Vec<usize>, at: usize, indices: Vec<ValueId>) -> Lowered {
    let ty = cx.result()?.clone();
    let mut inputs = vec![x];
    inputs.extend(indices);
    Ok(Val::Tensor(cx.push(Op::Index { dims, at }, inputs, ty)))
}

fn index(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let Some(FxArg::List(list)) = cx.arg(1, "indices") else { return decline("the indices are no list") };
    let (mut dims, mut indices) = (vec![], vec![]);
    for (dim, a) in list.iter().enumerate() {
        if matches!(a, FxArg::None) {
            continue;
        }
        let i = cx.as_tensor(a)?;
        if matches!(cx.dtype(i), DType::Bool | DType::U8) {
            return decline("boolean mask: the result's size depends on data");
        }
        dims.push(dim);
        indices.push(cx.convert(i, DType::I64));
    }
    if dims.is_empty() {
        return decline("no index at all");
    }
    // Index dims stand where the first indexed dim was, or in front when the dims are apart.
    let adjacent = dims.windows(2).all(|w| w[1] == w[0] + 1);
    let at = if adjacent { dims[0] } else { 0 };
    indexed(cx, x, dims, at, indices)
}

fn gather(cx: &mut Cx<'_>) -> Lowered {
    let mut x = cx.tensor(0, "self")?;
    let mut index = cx.tensor(2, "index")?;
    let rank = cx.rank(x);
    let dim = cx.dim(1, "dim", 0, rank)?;
    if cx.rank(index) != rank {
        return decline("the index has another rank than the tensor");
    }
    index = cx.convert(index, DType::I64);
    let ty = cx.result()?.clone();
    if rank == 0 {
        let one = vec![Expr::ONE];
        x = cx.reshape(x, one.clone());
        index = cx.reshape(index, one.clone());
        let flat = TensorType { strides: one.clone(), shape: one, ..ty.clone() };
        let r = cx.push(Op::Gather { dim: 0 }, vec![x, index], flat);
        return Ok(Val::Tensor(cx.view(View::Reshape, r, ty)));
    }
    for d in (0..rank).filter(|d| *d != dim) {
        let (want, have) = (cx.ty(index).shape[d].clone(), cx.ty(x).shape[d].clone());
        if !cx.graph.facts.eq(&want, &have) {
            x = cx.narrow(x, d, &Expr::ZERO, &want);
        }
    }
    Ok(Val::Tensor(cx.push(Op::Gather { dim }, vec![x, index], ty)))
}
