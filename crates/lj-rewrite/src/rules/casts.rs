//! Conversions: cancelling the exact ones, and moving them out of the way of other patterns.

use super::Exactness::Exact;
use super::{Found, Root, Rule, Term};
use crate::fold;
use lj_ir::{DType, Op, PwOp, Scalar, View};

pub(crate) fn rules() -> Vec<Rule> {
    vec![
        Rule::code("convert-convert", Exact, Root::Convert, convert_convert),
        Rule::code("convert-out-of-view", Exact, Root::View, out_of_view),
        Rule::code("convert-into-expand", Exact, Root::Convert, into_expand),
        Rule::code("convert-where", Exact, Root::Convert, convert_where),
        Rule::code("compare-widened", Exact, Root::AnyPw, compare_widened),
    ]
}

/// `convert(convert(x: a → b) → c)` is `convert(x → c)` where b holds every value of a: the first
/// conversion changes no number, so the second one sees the same real number either way.
fn convert_convert(f: &Found<'_>) -> Vec<Term> {
    let mid = f.arg(0);
    let Some(b) = f.tensor(mid).map(|s| s.dtype) else { return vec![] };
    f.converts(mid)
        .filter_map(|x| f.term(x))
        .filter(|x| same_by_the_way(x.spec().dtype, b, f.spec.dtype))
        .map(|x| x.convert(f.spec.dtype))
        .collect()
}

/// Whether a direct conversion does what the one by way of `mid` does, bit for bit.
fn same_by_the_way(from: DType, mid: DType, to: DType) -> bool {
    if !from.widens_exactly_to(mid) {
        return false;
    }
    if from == to {
        return true;
    }
    // ATen rounds to `f32` first on its way from these to a 16-bit float.
    let narrow = matches!(to, DType::F16 | DType::BF16);
    let long = matches!(from, DType::I16 | DType::I32 | DType::I64 | DType::F64);
    // An integer wraps where the float of the same value is undefined.
    let wraps = from.is_int() && mid.is_float() && to.is_int() && !from.widens_exactly_to(to);
    !(wraps || narrow && long)
}

/// `view(convert(x))` → `convert(view(x))`: exact conversions move towards the result until they
/// meet others and cancel. Not for expand, where it would convert every repetition; and for a part of
/// `x` only where it meets another at once, or where the rest is not wanted: four quarters converted
/// one by one are no better than the whole.
fn out_of_view(f: &Found<'_>) -> Vec<Term> {
    let Op::View(view) = f.op else { return vec![] };
    let (part, rest_unwanted) = match view {
        // Their elements may be read several times.
        View::Expand | View::Map(_) => return vec![],
        View::Slice { .. } | View::Select { .. } => (true, f.only_user(f.arg(0))),
        _ => (false, false),
    };
    let may_cancel = |from: DType| from.widens_exactly_to(f.spec.dtype) && (!part || f.is_converted());
    f.converts(f.arg(0))
        .filter_map(|x| f.term(x))
        .filter(|x| rest_unwanted || may_cancel(x.spec().dtype))
        .map(|x| x.view(view.clone(), f.spec.shape.clone()).convert(f.spec.dtype))
        .collect()
}

/// `convert(expand(x))` → `expand(convert(x))`.
fn into_expand(f: &Found<'_>) -> Vec<Term> {
    f.views(f.arg(0))
        .filter(|(v, _)| matches!(v, View::Expand))
        .filter_map(|(_, x)| f.term(x))
        .map(|x| x.convert(f.spec.dtype).view(View::Expand, f.spec.shape.clone()))
        .collect()
}

/// `convert(where(c, convert(x), convert(y)))` back to the type of x and y, which may be 16-bit:
/// choosing is the same before and after an exact conversion. Constants that the narrow type holds
/// count as converted.
fn convert_where(f: &Found<'_>) -> Vec<Term> {
    let narrow = f.spec.dtype;
    let mut out = vec![];
    for (op, args) in f.ops(f.arg(0)) {
        let (Op::Pointwise(PwOp::Where), [c, x, y]) = (op, args) else { continue };
        let (Some(c), Some(x), Some(y)) = (f.term(*c), narrowed(f, *x, narrow), narrowed(f, *y, narrow))
        else {
            continue;
        };
        out.extend(Term::pointwise(PwOp::Where, vec![c, x, y], f.facts()));
    }
    out
}

/// `compare(convert(x), constant)` needs no conversion where x's integer type holds the constant.
fn compare_widened(f: &Found<'_>) -> Vec<Term> {
    let Op::Pointwise(op) = f.op else { return vec![] };
    if !matches!(op, PwOp::Eq | PwOp::Ne | PwOp::Lt | PwOp::Le | PwOp::Gt | PwOp::Ge) {
        return vec![];
    }
    let mut out = vec![];
    for side in 0..2 {
        for x in f.converts(f.arg(side)) {
            let Some(dtype) = f.tensor(x).map(|s| s.dtype).filter(|d| op.accepts(*d)) else { continue };
            let operands: Option<Vec<Term>> = (0..2).map(|i| narrowed(f, f.arg(i), dtype)).collect();
            out.extend(operands.and_then(|a| Term::pointwise(*op, a, f.facts())));
        }
    }
    out
}

/// The class as a value of `narrow` that converts to it exactly, if there is one.
fn narrowed(f: &Found<'_>, class: egg::Id, narrow: DType) -> Option<Term> {
    let wide = f.tensor(class)?;
    if !narrow.in_kernels() || !narrow.widens_exactly_to(wide.dtype) {
        return None;
    }
    let from = f.converts(class).find(|x| f.tensor(*x).is_some_and(|s| s.dtype == narrow));
    if let Some(x) = from {
        return f.term(x);
    }
    let k: Scalar = f.konst(class)?;
    let small = fold::convert(k, narrow)?;
    let back = fold::convert(small, wide.dtype)?;
    if !crate::lang::same_scalar(back, k) {
        return None;
    }
    let spec = super::Spec { dtype: narrow, ..(**wide).clone() };
    Some(Term::node(Op::Full(small), spec, vec![]))
}
