//! Conversions and copies.

use super::Row;
use crate::cx::{Cx, Lowered, Val};
use lj_ir::{DType, Device, Op};

pub(super) const ROWS: &[Row] = &[
    ("aten._to_copy.default", copy),
    ("aten.clone.default", copy),
    ("aten.lift_fresh_copy.default", copy),
    ("aten.contiguous.default", copy),
    ("aten.expand_copy.default", expand_copy),
    ("aten.to.dtype", copy),
    ("prims.convert_element_type.default", copy),
    ("prims.clone.default", copy),
    ("aten.copy.default", copy_other),
];

/// A new tensor in the dtype and layout of the metadata.
fn copy(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    fresh(cx, x)
}

fn fresh(cx: &mut Cx<'_>, x: lj_ir::ValueId) -> Lowered {
    let ty = cx.result()?.clone();
    // What keeps its bits is moved, whatever it means.
    if cx.dtype(x) != ty.dtype || ty.dtype.moved() == DType::C128 || ty.device != Device::Cpu {
        super::computable(cx)?;
    }
    let op = if cx.dtype(x) == ty.dtype { Op::Copy } else { Op::Convert };
    let x = cx.expand(x, &ty.shape);
    Ok(Val::Tensor(cx.push(op, vec![x], ty)))
}

fn expand_copy(cx: &mut Cx<'_>) -> Lowered {
    copy(cx)
}

/// `self.copy_(src)` without the mutation: `src` in the shape, dtype and layout of `self`.
fn copy_other(cx: &mut Cx<'_>) -> Lowered {
    let src = cx.tensor(1, "src")?;
    fresh(cx, src)
}
