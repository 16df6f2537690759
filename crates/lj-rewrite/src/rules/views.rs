//! Views of views, views that do nothing, and views that others can do without.

use super::Exactness::Exact;
use super::{Found, Root, Rule, Term};
use lj_ir::{Expr, Op, PwOp, ReduceOp, View};

pub(crate) fn rules() -> Vec<Rule> {
    vec![
        Rule::code("view-identity", Exact, Root::View, identity),
        Rule::code("view-of-view", Exact, Root::View, compose),
        Rule::code("permute-is-reshape", Exact, Root::View, permute_is_reshape),
        Rule::code("expand-is-reshape", Exact, Root::View, expand_is_reshape),
        Rule::code("select-of-permute", Exact, Root::View, select_of_permute),
        Rule::code("pointwise-of-expand", Exact, Root::AnyPw, pointwise_of_expand),
        Rule::code("reduce-of-one", Exact, Root::Reduce, reduce_of_one),
    ]
}

/// A view that leaves everything where it is → its operand. Wrappers around what is pinned never
/// get here: a pinned chain is not in the e-graph's choice.
fn identity(f: &Found<'_>) -> Vec<Term> {
    let Op::View(view) = f.op else { return vec![] };
    let Some(x) = f.term(f.arg(0)) else { return vec![] };
    let nothing = match view {
        View::Permute(p) => p.iter().enumerate().all(|(i, &d)| i == d),
        View::Reshape | View::Expand => f.same_shape(&x.spec().shape, &f.spec.shape),
        View::Slice { start, step, .. } => {
            start.is(0) && *step == 1 && f.same_shape(&x.spec().shape, &f.spec.shape)
        }
        View::Select { .. } => false,
        View::Flip(dims) => dims.iter().all(|&d| f.spec.shape[d].is(1)),
        View::Map(_) => false,
    };
    if nothing { vec![x] } else { vec![] }
}

/// Two views of a kind are one.
fn compose(f: &Found<'_>) -> Vec<Term> {
    let Op::View(outer) = f.op else { return vec![] };
    let mut out = vec![];
    for (inner, x) in f.views(f.arg(0)) {
        let one = match (outer, inner) {
            (View::Permute(p), View::Permute(q)) => {
                p.iter().map(|&i| q.get(i).copied()).collect::<Option<Vec<usize>>>().map(View::Permute)
            }
            (View::Reshape, View::Reshape) => Some(View::Reshape),
            (View::Expand, View::Expand) => Some(View::Expand),
            (View::Slice { dim: d, start: s, step }, View::Slice { dim: e, start: t, step: inner })
                if d == e =>
            {
                step.checked_mul(*inner).map(|step| View::Slice {
                    dim: *d,
                    start: t + s * Expr::int(*inner),
                    step,
                })
            }
            (View::Select { dim: d, index }, View::Slice { dim: e, start, step }) if d == e => {
                Some(View::Select { dim: *d, index: start + index * Expr::int(*step) })
            }
            (View::Map(outer), View::Map(inner)) => Some(View::Map(View::placed(inner, outer))),
            (View::Flip(a), View::Flip(b)) if a == b => {
                out.extend(f.term(x));
                None
            }
            _ => None,
        };
        if let (Some(view), Some(x)) = (one, f.term(x)) {
            out.push(x.view(view, f.spec.shape.clone()));
        }
    }
    out
}

/// A permutation that moves only dims of extent 1 past others is a reshape.
fn permute_is_reshape(f: &Found<'_>) -> Vec<Term> {
    let Op::View(View::Permute(p)) = f.op else { return vec![] };
    let kept: Vec<usize> = p.iter().zip(&f.spec.shape).filter(|(_, e)| !e.is(1)).map(|(&d, _)| d).collect();
    if !kept.is_sorted() || p.is_sorted() {
        return vec![];
    }
    f.term(f.arg(0)).map(|x| x.view(View::Reshape, f.spec.shape.clone())).into_iter().collect()
}

/// An expansion that only adds leading dims of extent 1 is a reshape.
fn expand_is_reshape(f: &Found<'_>) -> Vec<Term> {
    let Op::View(View::Expand) = f.op else { return vec![] };
    let Some(x) = f.term(f.arg(0)) else { return vec![] };
    let extra = f.spec.shape.len().saturating_sub(x.spec().shape.len());
    let legal = extra > 0
        && f.spec.shape[..extra].iter().all(|e| e.is(1))
        && f.same_shape(&f.spec.shape[extra..], &x.spec().shape);
    if legal { vec![x.view(View::Reshape, f.spec.shape.clone())] } else { vec![] }
}

/// `select(permute(x))` → `permute(select(x))`, so that the select reaches what is below.
fn select_of_permute(f: &Found<'_>) -> Vec<Term> {
    let Op::View(View::Select { dim, index }) = f.op else { return vec![] };
    let mut out = vec![];
    for (view, x) in f.views(f.arg(0)) {
        let (View::Permute(p), Some(x)) = (view, f.term(x)) else { continue };
        let from = p[*dim];
        let mut shape = x.spec().shape.clone();
        shape.remove(from);
        let rest: Vec<usize> = p.iter().filter(|&&d| d != from).map(|&d| d - usize::from(d > from)).collect();
        let picked = x.view(View::Select { dim: from, index: index.clone() }, shape);
        out.push(if rest.is_sorted() {
            picked
        } else {
            picked.view(View::Permute(rest), f.spec.shape.clone())
        });
    }
    out
}

/// A pointwise operation broadcasts by itself: an expanded operand → what it expands, where the
/// result keeps its shape.
fn pointwise_of_expand(f: &Found<'_>) -> Vec<Term> {
    let Op::Pointwise(op) = f.op else { return vec![] };
    // The exponent of a power must not look like a scalar.
    let last = if *op == PwOp::Pow { 1 } else { f.node.args.len() };
    let args: Option<Vec<Term>> = (0..f.node.args.len()).map(|i| f.term(f.arg(i))).collect();
    let Some(args) = args else { return vec![] };
    let mut out = vec![];
    for i in 0..last {
        for (view, x) in f.views(f.arg(i)) {
            let (View::Expand, Some(x)) = (view, f.term(x)) else { continue };
            let mut args = args.clone();
            args[i] = x;
            let built = Term::pointwise(*op, args, f.facts());
            out.extend(built.filter(|t| f.same_shape(&t.spec().shape, &f.spec.shape)));
        }
    }
    out
}

/// The largest, smallest, any or all of one element is that element. A sum is not: 0 + −0.0 = 0.0.
fn reduce_of_one(f: &Found<'_>) -> Vec<Term> {
    let Op::Reduce { op, dims } = f.op else { return vec![] };
    let Some(x) = f.term(f.arg(0)) else { return vec![] };
    let keeps = matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::Any | ReduceOp::All);
    let ones = dims.iter().all(|&d| x.spec().shape.get(d).is_some_and(|e| e.is(1)));
    if keeps && ones && x.spec().dtype == f.spec.dtype {
        vec![x.view(View::Reshape, f.spec.shape.clone())]
    } else {
        vec![]
    }
}
