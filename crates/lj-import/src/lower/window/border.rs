//! Borders that repeat or reflect the operand, and their gradients.

use super::{choices, here, map, padded, position, sum_of};
use crate::cx::{Cx, Lowered, decline};
use crate::lower::Row;
use lj_ir::{DType, Expr, PwOp, Scalar, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.reflection_pad1d.default", |cx| bordered(cx, 1, Border::Reflect)),
    ("aten.reflection_pad2d.default", |cx| bordered(cx, 2, Border::Reflect)),
    ("aten.reflection_pad3d.default", |cx| bordered(cx, 3, Border::Reflect)),
    ("aten.replication_pad1d.default", |cx| bordered(cx, 1, Border::Repeat)),
    ("aten.replication_pad2d.default", |cx| bordered(cx, 2, Border::Repeat)),
    ("aten.replication_pad3d.default", |cx| bordered(cx, 3, Border::Repeat)),
    ("aten.reflection_pad1d_backward.default", |cx| backward(cx, 1, Border::Reflect)),
    ("aten.reflection_pad2d_backward.default", |cx| backward(cx, 2, Border::Reflect)),
    ("aten.reflection_pad3d_backward.default", |cx| backward(cx, 3, Border::Reflect)),
    ("aten.replication_pad1d_backward.default", |cx| backward(cx, 1, Border::Repeat)),
    ("aten.replication_pad2d_backward.default", |cx| backward(cx, 2, Border::Repeat)),
    ("aten.replication_pad3d_backward.default", |cx| backward(cx, 3, Border::Repeat)),
];

#[derive(Clone, Copy, PartialEq)]
enum Border {
    /// The edge is a mirror: the element on it is not repeated.
    Reflect,
    /// The element on the edge goes on.
    Repeat,
}

/// The padding of the last `n` dims as (before, after), the first of them first.
fn padding(cx: &Cx<'_>, i: usize, n: usize, rank: usize) -> Lowered<(usize, Vec<(Expr, Expr)>)> {
    let list = cx.exprs(i, "padding")?.unwrap_or_default();
    let Some(lead) = rank.checked_sub(n).filter(|_| list.len() == 2 * n) else {
        return decline("the padding does not fit the rank");
    };
    Ok((lead, list.chunks(2).rev().map(|p| (p[0].clone(), p[1].clone())).collect()))
}

fn bordered(cx: &mut Cx<'_>, n: usize, border: Border) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let (lead, pads) = padding(cx, 1, n, ty.rank())?;
    let from = cx.shape(x);
    let mut coords: Vec<Expr> = (0..ty.rank()).map(here).collect();
    for (k, (low, _)) in pads.iter().enumerate() {
        let d = lead + k;
        let (at, last) = (here(d) - low, &from[d] - &Expr::ONE);
        coords[d] = match border {
            Border::Repeat => at.maximum(&Expr::ZERO).minimum(&last),
            Border::Reflect => {
                // Distance from the first element, then from the last.
                let at = at.maximum(&-&at);
                let back = &last - &at;
                &last - &back.maximum(&-&back)
            }
        };
    }
    let r = map(cx, x, coords, &ty.shape);
    let r = cx.push(lj_ir::Op::Copy, vec![r], ty);
    cx.done(r)
}

/// An element receives the gradients of its own place and of its copies on either side.
fn backward(cx: &mut Cx<'_>, n: usize, border: Border) -> Lowered {
    let (grad, x) = (cx.tensor(0, "grad_output")?, cx.tensor(1, "self")?);
    let shape = cx.shape(x);
    let rank = shape.len();
    let (lead, pads) = padding(cx, 2, n, rank)?;
    let dtype = cx.dtype(grad).compute();
    if !cx.ty(grad).strides.last().is_some_and(|s| s.is(1)) {
        return decline("gradient of a border, channels last: ATen's is faster");
    }
    let grad = cx.convert(grad, dtype);
    if border == Border::Repeat {
        return repeated_backward(cx, grad, &shape, lead, &pads);
    }
    // Where the copies in front, the element and the copies behind lie; outside are zeros.
    let facts = cx.graph.facts.clone();
    let (mut low, mut high) = (vec![Expr::ZERO; rank], vec![Expr::ZERO; rank]);
    let mut places: Vec<Vec<(Expr, Option<Expr>)>> = vec![];
    for (k, (before, after)) in pads.iter().enumerate() {
        let (d, n) = (lead + k, &shape[lead + k]);
        if !facts.ge(before, &Expr::ZERO) || !facts.ge(after, &Expr::ZERO) {
            return decline("gradient of a border that cuts");
        }
        // Copy i in front is at before − i, for 1 ≤ i ≤ before; behind at before + 2(n−1) − i.
        let i = here(d);
        let own = &i + before;
        let mut list = vec![];
        if !before.is(0) {
            list.push((before - &i, Some(i.clone())));
            low[d] = (n - &Expr::ONE - before).maximum(&Expr::ZERO);
        }
        list.push((own.clone(), None));
        if !after.is(0) {
            let from_end = n - &Expr::ONE - &i;
            list.push((&own + &from_end * Expr::int(2), Some(from_end)));
            high[d] = (n - &Expr::ONE - after).maximum(&Expr::ZERO);
        }
        places.push(list);
    }
    let around = padded(cx, grad, low.clone(), high, Scalar::Int(0));
    let zero = cx.constant(Scalar::Int(0), dtype);
    let counts: Vec<i64> = places.iter().map(|l| l.len() as i64).collect();
    let mut terms = vec![];
    for choice in choices(&counts) {
        let mut coords: Vec<Expr> = (0..rank).map(here).collect();
        let mut conditions = vec![];
        for (k, &c) in choice.iter().enumerate() {
            let (at, distance) = &places[k][c as usize];
            coords[lead + k] = at + &low[lead + k];
            if let Some(distance) = distance {
                // The edge itself has no copy.
                let distance = position(cx, distance, &Expr::ZERO, &shape, DType::I64);
                let none = cx.constant(Scalar::Int(0), DType::I64);
                conditions.push(cx.pw(PwOp::Ne, &[distance, none])?);
            }
        }
        let v = map(cx, around, coords, &shape);
        terms.push(match super::all_of(cx, &conditions)? {
            Some(c) => cx.pw(PwOp::Where, &[c, v, zero])?,
            None => v,
        });
    }
    let sum = sum_of(cx, &terms)?;
    cx.done(sum)
}

/// The most copies of an edge whose gradients are added one by one.
const MAX_COPIES: i64 = 4;

fn repeated_backward(
    cx: &mut Cx<'_>,
    grad: ValueId,
    shape: &[Expr],
    lead: usize,
    pads: &[(Expr, Expr)],
) -> Lowered {
    let rank = shape.len();
    let dtype = cx.dtype(grad);
    let zero = cx.constant(Scalar::Int(0), dtype);
    let mut v = grad;
    // Dim after dim: an edge adds up what its copies received.
    for (k, (before, after)) in pads.iter().enumerate().rev() {
        let d = lead + k;
        let (Some(b), Some(a)) = (before.as_int(), after.as_int()) else {
            return decline("gradient of a symbolic border");
        };
        if !(0..=MAX_COPIES).contains(&b) || !(0..=MAX_COPIES).contains(&a) {
            return decline("gradient of a wide or cutting border");
        }
        let mut to = cx.shape(v);
        to[d] = shape[d].clone();
        let last = &shape[d] - &Expr::ONE;
        let at = |e: Expr| {
            let mut coords: Vec<Expr> = (0..rank).map(here).collect();
            coords[d] = e;
            coords
        };
        let edge = |cx: &mut Cx<'_>, distance: Expr| {
            let distance = position(cx, &distance, &Expr::ZERO, &to, DType::I64);
            let none = cx.constant(Scalar::Int(0), DType::I64);
            cx.pw(PwOp::Eq, &[distance, none])
        };
        let mut terms = vec![];
        for t in 0..b {
            let copy = map(cx, v, at(here(d) * Expr::ZERO + Expr::int(t)), &to);
            let first = edge(cx, here(d))?;
            terms.push(cx.pw(PwOp::Where, &[first, copy, zero])?);
        }
        terms.push(map(cx, v, at(here(d) + before), &to));
        for t in 1..=a {
            let copy = map(cx, v, at(&last + before + Expr::int(t)), &to);
            let end = edge(cx, &last - &here(d))?;
            terms.push(cx.pw(PwOp::Where, &[end, copy, zero])?);
        }
        v = sum_of(cx, &terms)?;
    }
    cx.done(v)
}
