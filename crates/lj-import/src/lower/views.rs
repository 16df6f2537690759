//! Views: nothing is moved, so that every dtype and device will do.

use super::Row;
use crate::cx::{Cx, Lowered, Val, decline};
use crate::fx::{FxArg, FxMeta};
use lj_ir::{Expr, Op, TensorType, ValueId, View};

pub(super) const ROWS: &[Row] = &[
    ("aten.view.default", reshape),
    ("aten._unsafe_view.default", reshape),
    ("aten._reshape_alias.default", reshape),
    ("aten.reshape.default", reshape_or_copy),
    ("aten.unsqueeze.default", reshape),
    ("aten.squeeze.default", reshape),
    ("aten.squeeze.dim", reshape),
    ("aten.squeeze.dims", reshape),
    ("prims.squeeze.default", reshape),
    ("prims.collapse_view.default", reshape),
    ("prims.split_dim.default", reshape),
    ("prims.reshape.default", reshape_or_copy),
    ("aten.alias.default", same),
    ("aten.detach.default", same),
    ("aten.lift.default", same),
    ("aten.lift_fresh.default", same),
    ("prims.view_of.default", same),
    ("aten.permute.default", permute),
    ("prims.transpose.default", permute),
    ("aten.t.default", |cx| swap(cx, 0, 1)),
    ("aten.numpy_T.default", |cx| {
        let x = cx.tensor(0, "self")?;
        let perm = (0..cx.rank(x)).rev().collect();
        permuted(cx, x, perm)
    }),
    ("aten.transpose.int", |cx| {
        let x = cx.tensor(0, "self")?;
        let rank = cx.rank(x);
        let (a, b) = (cx.dim(1, "dim0", 0, rank)?, cx.dim(2, "dim1", 1, rank)?);
        swap(cx, a, b)
    }),
    ("aten.expand.default", expand),
    ("prims.broadcast_in_dim.default", broadcast_in_dim),
    ("aten.slice.Tensor", slice),
    ("aten.select.int", select),
    ("aten.split.Tensor", pieces),
    ("aten.split.sizes", pieces),
    ("aten.split_with_sizes.default", pieces),
    ("aten.unsafe_split.Tensor", pieces),
    ("aten.unsafe_split_with_sizes.default", pieces),
    ("aten.split_with_sizes_copy.default", copied_pieces),
    ("aten.split_copy.Tensor", copied_pieces),
    ("aten.chunk.default", pieces),
    ("aten.unsafe_chunk.default", pieces),
    ("aten.unbind.int", unbind),
    ("aten.as_strided.default", as_strided),
    ("_operator.getitem", getitem),
];

/// A view with the result type `ty`, or `x` itself if that changes nothing.
fn view_as(cx: &mut Cx<'_>, view: View, x: ValueId, ty: &TensorType) -> ValueId {
    let own = cx.ty(x);
    if own.shape == ty.shape && own.strides == ty.strides && own.dtype == ty.dtype {
        return x;
    }
    cx.view(view, x, ty.clone())
}

const UNMOVABLE: &str = "a copy in a dtype or on a device that our kernels do not know";

/// Whether our kernels can copy a tensor of this type.
fn movable(t: &TensorType) -> bool {
    t.dtype.moved().in_kernels() && t.device == lj_ir::Device::Cpu
}

fn view(cx: &mut Cx<'_>, view: View, x: ValueId) -> Lowered {
    let ty = cx.result()?;
    Ok(Val::Tensor(view_as(cx, view, x, ty)))
}

fn same(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    Ok(Val::Tensor(x))
}

fn reshape(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    view(cx, View::Reshape, x)
}

/// A view where the strides allow it, a copy otherwise.
fn reshape_or_copy(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let (have, want) = (cx.ty(x).clone(), cx.result()?);
    if lj_ir::shape::view_strides(&have.shape, &have.strides, &want.shape, &cx.graph.facts).is_some() {
        return view(cx, View::Reshape, x);
    }
    if !movable(&have) {
        return decline(UNMOVABLE);
    }
    let ty = TensorType { strides: lj_ir::shape::contiguous_strides(&have.shape), ..have };
    let x = cx.push(Op::Copy, vec![x], ty);
    view(cx, View::Reshape, x)
}

fn permuted(cx: &mut Cx<'_>, x: ValueId, perm: Vec<usize>) -> Lowered {
    if perm.windows(2).all(|w| w[0] < w[1]) {
        return Ok(Val::Tensor(x));
    }
    // Not through `view_as`: a permutation may leave shape and strides as they are (extents 1).
    let ty = cx.result()?.clone();
    Ok(Val::Tensor(cx.view(View::Permute(perm), x, ty)))
}

fn permute(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let rank = cx.rank(x);
    let list = cx.exprs(1, "dims")?.unwrap_or_default();
    let wrap = |e: &Expr| match e.as_int() {
        Some(d) => cx.wrap_dim(d, rank),
        None => decline("a dim is symbolic"),
    };
    let perm = list.iter().map(wrap).collect::<Lowered<Vec<_>>>()?;
    if perm.len() != rank {
        return decline("the permutation's length is not the rank");
    }
    permuted(cx, x, perm)
}

fn swap(cx: &mut Cx<'_>, a: usize, b: usize) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let mut perm: Vec<usize> = (0..cx.rank(x)).collect();
    if perm.len() < 2 {
        return Ok(Val::Tensor(x));
    }
    perm.swap(a, b);
    permuted(cx, x, perm)
}

fn expand(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    view(cx, View::Expand, x)
}

/// Strides spelt out: a reshape and a permutation where the result is one of the operand.
fn as_strided(cx: &mut Cx<'_>) -> Lowered {
    const WHY: &str = "strides spelt out by the user";
    let x = cx.tensor(0, "self")?;
    // The offset is that of the storage; it is known to be the operand's own only when absent, or
    // when the operand is a new tensor.
    let new = !matches!(cx.graph.def(x).op, Op::View(_) | Op::Input { .. } | Op::Extern(_));
    if cx.expr(3, "storage_offset")?.is_some_and(|o| !(o.is(0) && new)) {
        return decline(WHY);
    }
    let ty = cx.result()?;
    let facts = &cx.graph.facts;
    let mut order: Vec<usize> = (0..ty.rank()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(facts.hint(&ty.strides[d])));
    let sorted = |list: &[Expr]| order.iter().map(|&d| list[d].clone()).collect::<Vec<_>>();
    let (shape, strides) = (sorted(&ty.shape), sorted(&ty.strides));
    let own = cx.ty(x).clone();
    let Some(found) = lj_ir::shape::view_strides(&own.shape, &own.strides, &shape, facts) else {
        return decline(WHY);
    };
    let fits = |((f, s), e): ((&Expr, &Expr), &Expr)| e.is(1) || facts.eq(f, s);
    if !found.iter().zip(&strides).zip(&shape).all(fits) {
        return decline(WHY);
    }
    let mut perm = vec![0; order.len()];
    for (at, d) in order.iter().enumerate() {
        perm[*d] = at;
    }
    let flat = TensorType { shape, strides, ..own };
    let x = view_as(cx, View::Reshape, x, &flat);
    permuted(cx, x, perm)
}

/// Dim `i` of the operand becomes dim `dims[i]` of the result; the others repeat.
fn broadcast_in_dim(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "a")?;
    let dims = cx.exprs(2, "broadcast_dimensions")?.unwrap_or_default();
    let ty = cx.result()?;
    let mut shape = vec![Expr::ONE; ty.rank()];
    for (i, d) in dims.iter().enumerate() {
        let at = d.as_int().and_then(|d| usize::try_from(d).ok()).filter(|d| *d < shape.len());
        let (Some(at), Some(extent)) = (at, cx.ty(x).shape.get(i)) else {
            return decline("broadcast dims do not fit");
        };
        shape[at] = extent.clone();
    }
    let x = cx.reshape(x, shape);
    view(cx, View::Expand, x)
}

/// `start` of a slice, counted from either end and clamped to the extent.
pub(super) fn clamp_index(cx: &Cx<'_>, index: Option<Expr>, default: Expr, extent: &Expr) -> Expr {
    let Some(mut i) = index else { return default };
    let facts = &cx.graph.facts;
    let (low, high) = facts.range(&i);
    if high < 0 {
        i = &i + extent;
        // Before the first element counts as the first.
        return if facts.ge(&i, &Expr::ZERO) { i } else { i.maximum(&Expr::ZERO) };
    }
    if low >= 0 {
        if facts.ge(extent, &i) {
            return i;
        }
        if facts.ge(&i, extent) {
            return extent.clone();
        }
        return i.minimum(extent);
    }
    // The sign is unknown: torch has decided it while tracing, so the metadata's range will have it
    // in nearly every case; otherwise this formula is the definition.
    let negative = (&i + extent).maximum(&Expr::ZERO).minimum(extent);
    if facts.hint(&i) < 0 { negative } else { i.minimum(extent) }
}

fn slice(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let rank = cx.rank(x);
    let dim = cx.dim(1, "dim", 0, rank)?;
    let step = cx.int(4, "step", 1)?;
    let Some(extent) = cx.ty(x).shape.get(dim).cloned() else { return decline("slice of a 0-d tensor") };
    let start = cx.expr(2, "start")?;
    if let Some(s) = &start
        && s.as_int().is_none()
    {
        let (low, high) = cx.graph.facts.range(s);
        if low < 0 && high >= 0 {
            return decline("a slice whose start has an unknown sign");
        }
    }
    let start = clamp_index(cx, start, Expr::ZERO, &extent);
    let ty = cx.result()?;
    if start.is(0) && step == 1 && cx.graph.facts.eq(&ty.shape[dim], &extent) {
        return Ok(Val::Tensor(x));
    }
    view(cx, View::Slice { dim, start, step }, x)
}

fn select(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let rank = cx.rank(x);
    let dim = cx.dim(1, "dim", 0, rank)?;
    let Some(index) = cx.expr(2, "index")? else { return decline("the index is missing") };
    let (low, high) = cx.graph.facts.range(&index);
    let index = if high < 0 {
        &index + &cx.ty(x).shape[dim]
    } else if low >= 0 {
        index
    } else {
        return decline("an index of unknown sign");
    };
    let ty = cx.result()?.clone();
    Ok(Val::Tensor(cx.view(View::Select { dim, index }, x, ty)))
}

fn metas<'a>(cx: &Cx<'a>) -> Lowered<Vec<&'a TensorType>> {
    let FxMeta::List(l) = &cx.node.meta else { return decline("several results were expected") };
    (0..l.len()).map(|i| cx.result_at(i)).collect()
}

/// Consecutive pieces along a dim; their extents are in the metadata.
fn pieces(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let dim = cx.dim(2, "dim", 0, cx.rank(x))?;
    let mut start = Expr::ZERO;
    let mut out = vec![];
    for ty in metas(cx)? {
        let view = View::Slice { dim, start: start.clone(), step: 1 };
        out.push(Val::Tensor(view_as(cx, view, x, ty)));
        start = &start + &ty.shape[dim];
    }
    Ok(Val::List(out))
}

/// The same as new tensors.
fn copied_pieces(cx: &mut Cx<'_>) -> Lowered {
    let Val::List(views) = pieces(cx)? else { return decline("several results were expected") };
    let metas = metas(cx)?;
    if metas.iter().any(|t| !movable(t)) {
        return decline(UNMOVABLE);
    }
    let copy = |(v, ty): (Val, &&TensorType)| match v {
        Val::Tensor(v) => Val::Tensor(cx.push(Op::Copy, vec![v], (*ty).clone())),
        other => other,
    };
    Ok(Val::List(views.into_iter().zip(&metas).map(copy).collect()))
}

fn unbind(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let dim = cx.dim(1, "dim", 0, cx.rank(x))?;
    let metas = metas(cx)?;
    let view = |i: usize| View::Select { dim, index: Expr::int(i as i64) };
    Ok(Val::List(
        metas.iter().enumerate().map(|(i, ty)| Val::Tensor(cx.view(view(i), x, (*ty).clone()))).collect(),
    ))
}

fn getitem(cx: &mut Cx<'_>) -> Lowered {
    let fail = |cx: &Cx<'_>, what: &str| Err(crate::cx::Stop::Fail(cx.error(what)));
    let (Some(FxArg::Node(n)), Some(FxArg::Int(i))) = (cx.node.args.first(), cx.node.args.get(1)) else {
        return fail(cx, "getitem takes a node and an integer");
    };
    match cx.val(*n)? {
        Val::List(l) => {
            let at = if *i < 0 { *i + l.len() as i64 } else { *i };
            match usize::try_from(at).ok().and_then(|at| l.get(at)) {
                Some(v) => Ok(v.clone()),
                None => fail(cx, "getitem is out of range"),
            }
        }
        _ => fail(cx, "getitem of something that is not a list"),
    }
}
