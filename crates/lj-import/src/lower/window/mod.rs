//! Operators that read their operand at positions computed from those of the result: windows,
//! borders, enlarged images, diagonals. All are [`View::Map`]s with arithmetic on what they read.
//!
//! Gradients are in gather form: every element of the operand adds up what the results that read it
//! receive, in ascending order of the results, which is the order of eager's additions.

mod adaptive;
mod border;
mod pool;
mod rearrange;
mod resize;

use super::Row;
use crate::cx::{Cx, Lowered, decline, dense_like};
use lj_ir::shape::contiguous_strides;
use lj_ir::{DType, Expr, Op, PwOp, Scalar, TensorType, ValueId, View};

pub(super) const ROWS: [&[Row]; 5] =
    [pool::ROWS, adaptive::ROWS, border::ROWS, resize::ROWS, rearrange::ROWS];

/// Windows of at most this many elements are unrolled; larger ones are a reduction.
const MAX_TAPS: i64 = 25;

/// `x` read at `coords`, an expression per dim of `x` over the positions ([`View::at`]) of the result.
fn map(cx: &mut Cx<'_>, x: ValueId, coords: Vec<Expr>, shape: &[Expr]) -> ValueId {
    let ty = cx.ty(x);
    let strides = View::map_strides(&coords, &ty.strides, shape.len())
        .map_or_else(|| contiguous_strides(shape), |(_, strides)| strides);
    let ty = TensorType { dtype: ty.dtype, device: ty.device, shape: shape.to_vec(), strides };
    cx.view(View::Map(coords), x, ty)
}

/// The integer `e` over the positions of a tensor of `shape`; `-low` is a lower bound of it.
fn position(cx: &mut Cx<'_>, e: &Expr, low: &Expr, shape: &[Expr], dtype: DType) -> ValueId {
    let iota = Op::Iota { start: -low, step: Expr::ONE };
    let line = cx.push(iota, vec![], TensorType::contiguous(dtype, vec![Expr::int(1 << 48)]));
    map(cx, line, vec![e + low], shape)
}

/// `x` with `low` and `high` elements of `value` around it, or itself where nothing is added.
fn padded(cx: &mut Cx<'_>, x: ValueId, low: Vec<Expr>, high: Vec<Expr>, value: Scalar) -> ValueId {
    let facts = &cx.graph.facts;
    if low.iter().all(|e| e.is(0)) && high.iter().all(|e| facts.ge(&Expr::ZERO, e)) {
        return x;
    }
    let ty = cx.ty(x);
    let shape: Vec<Expr> = ty.shape.iter().zip(low.iter().zip(&high)).map(|(e, (l, h))| e + l + h).collect();
    // In the operand's order of dims, should it come to lie in memory.
    let strides = dense_like(&shape, ty, facts);
    let ty = TensorType { dtype: ty.dtype, device: ty.device, shape, strides };
    cx.push(Op::Pad { low, high, value: value.cast(ty.dtype) }, vec![x], ty)
}

/// `n` constant integers; one stands for all, none for `default`.
fn ints(cx: &Cx<'_>, i: usize, name: &str, n: usize, default: &[i64]) -> Lowered<Vec<i64>> {
    let list = cx.exprs(i, name)?.unwrap_or_default();
    let list: Option<Vec<i64>> = list.iter().map(Expr::as_int).collect();
    match list {
        None => decline(format!("`{name}` is symbolic")),
        Some(l) if l.is_empty() && default.len() == n => Ok(default.to_vec()),
        Some(l) if l.len() == n => Ok(l),
        Some(l) if l.len() == 1 => Ok(vec![l[0]; n]),
        Some(_) => decline(format!("`{name}` does not fit the number of dims")),
    }
}

/// Every choice of one of `0..counts[d]` per entry, the last changing fastest.
fn choices(counts: &[i64]) -> Vec<Vec<i64>> {
    counts.iter().fold(vec![vec![]], |all, &n| {
        all.iter().flat_map(|head| (0..n).map(move |i| [&head[..], &[i]].concat())).collect()
    })
}

/// `e` at the positions of dim `d` of the result.
fn here(d: usize) -> Expr {
    View::at(d)
}

/// All of `conditions`, or `None` if there are none.
fn all_of(cx: &mut Cx<'_>, conditions: &[ValueId]) -> Lowered<Option<ValueId>> {
    let mut all = None;
    for &c in conditions {
        all = Some(match all {
            None => c,
            Some(a) => cx.pw(PwOp::And, &[a, c])?,
        });
    }
    Ok(all)
}

/// The sum of `terms`, from zero on and in order.
fn sum_of(cx: &mut Cx<'_>, terms: &[ValueId]) -> Lowered<ValueId> {
    let Some((&first, rest)) = terms.split_first() else { return decline("an empty sum") };
    let zero = cx.constant(Scalar::Int(0), cx.dtype(first));
    let mut sum = cx.pw(PwOp::Add, &[zero, first])?;
    for &t in rest {
        sum = cx.pw(PwOp::Add, &[sum, t])?;
    }
    Ok(sum)
}
