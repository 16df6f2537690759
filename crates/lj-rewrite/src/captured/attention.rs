//! Attention spelled out: scaled products of queries and keys, a mask, a softmax, dropout, times the
//! values.
//!
//! The rules grow `Scores` from a product: what is done to its operands or its result is absorbed if it
//! is a scale, a cast, a view or a mask. Rounding to 16 bits in between is left out: the operator keeps
//! these values in `f32`. Scores that are `-inf` in a whole row give NaN in eager; unless that is known
//! not to happen (`sound`), what replaces them must see to it.

use super::build::constant;
use super::{Part, at_part, mask};
use crate::lang::Spec;
use crate::rules::{Exactness, Found, Root, Rule, Term};
use egg::Id;
use lj_ir::captured::Part as Given;
use lj_ir::{DType, Expr, Op, PwOp, ReduceOp, View};

/// What is known of scores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scores {
    /// What the products are multiplied by: the bits of an `f64`.
    pub(super) scale: u64,
    /// The product's node.
    pub(super) product: usize,
    /// Whether it is known that no row of the mask is `-inf` throughout.
    pub(super) sound: bool,
    /// Whether the mask is known to be small where it is not -inf.
    pub(super) gentle: bool,
    /// Whether only columns up to the row's own count; there is no mask then.
    pub(super) causal: bool,
}

/// What is known of probabilities.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Probabilities {
    pub(super) scores: Scores,
    /// The softmax's node.
    pub(super) softmax: usize,
    /// The bits of the probability with which one is dropped.
    pub(super) dropout: u64,
}

impl Scores {
    pub(super) fn scale(&self) -> f64 {
        f64::from_bits(self.scale)
    }

    fn scaled(&self, by: f64) -> Scores {
        Scores { scale: (self.scale() * by).to_bits(), ..self.clone() }
    }
}

pub(super) fn rules() -> Vec<Rule> {
    let code = |name, root, f: fn(&Found<'_>) -> Vec<Term>| Rule::code(name, Exactness::Rounding, root, f);
    vec![
        at_part("attention-product", product),
        code("attention-scale", Root::AnyPw, scale),
        at_part("attention-operand-scale", operand_scale),
        at_part("attention-operand-cast", operand_cast),
        code("attention-mask", Root::AnyPw, add_mask),
        code("attention-fill", Root::Pw(PwOp::Where), fill),
        code("attention-cast", Root::Convert, cast),
        code("attention-view", Root::View, view),
        at_part("attention-softmax", softmax),
        at_part("attention-dropout", dropout),
        at_part("attention-values", values),
    ]
}

/// The scores that a class is, with their operands.
pub(super) fn scores<'a>(f: &'a Found<'_>, class: Id) -> Vec<(&'a Scores, &'a [Id])> {
    f.parts(f.eg.find(class))
        .filter_map(|(p, args)| if let Part::Scores(s) = p { Some((s, args)) } else { None })
        .collect()
}

fn probabilities<'a>(f: &'a Found<'_>, class: Id) -> Vec<(&'a Probabilities, &'a [Id])> {
    f.parts(f.eg.find(class))
        .filter_map(|(p, args)| if let Part::Probabilities(s) = p { Some((s, args)) } else { None })
        .collect()
}

fn swap_last(x: Term) -> Option<Term> {
    let mut shape = x.spec().shape.clone();
    let r = shape.len();
    let mut perm: Vec<usize> = (0..r).collect();
    (r >= 2).then(|| perm.swap(r - 2, r - 1))?;
    shape.swap(r - 2, r - 1);
    Some(x.view(View::Permute(perm), shape))
}

fn terms(f: &Found<'_>, args: &[Id]) -> Option<Vec<Term>> {
    args.iter().map(|a| f.term(*a)).collect()
}

/// A product, as scores that are not scaled or masked yet.
fn product(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::Product, node)) = f.part else { return vec![] };
    let (Some(q), Some(k)) = (f.term(f.arg(0)), f.term(f.arg(1)).and_then(swap_last)) else { return vec![] };
    let new = Scores { scale: 1f64.to_bits(), product: *node, sound: true, gentle: true, causal: false };
    vec![Term::Part(Part::Scores(new), f.spec.clone(), vec![q, k])]
}

/// Scores times a number, or times a tensor that is the same along a row, which scales the query.
fn scale(f: &Found<'_>) -> Vec<Term> {
    let Op::Pointwise(op @ (PwOp::Mul | PwOp::Div)) = f.op else { return vec![] };
    let mut out = vec![];
    for (x, by) in [(0, 1), (1, 0)] {
        if x == 1 && *op == PwOp::Div {
            continue;
        }
        for (s, args) in scores(f, f.arg(x)) {
            let (Some(args), Some(by)) = (terms(f, args), f.term(f.arg(by))) else { continue };
            if args.len() > 2 || s.causal || !same_type(f, f.arg(x)) {
                continue;
            }
            let Term::Class(by_class, _) = by else { continue };
            if let Some(c) = f.konst(by_class) {
                let c = if *op == PwOp::Div { 1.0 / c.as_f64() } else { c.as_f64() };
                if c.is_finite() {
                    out.push(Term::Part(Part::Scores(s.scaled(c)), f.spec.clone(), args));
                }
                continue;
            }
            let q = args[0].clone();
            let flat = by.spec().shape.last().is_none_or(|e| e.is(1));
            let (narrow, wide) = (q.spec().dtype, f.spec.dtype);
            let spread =
                Term::pointwise(*op, vec![q.clone().convert(wide), by.clone().convert(wide)], f.facts());
            let Some(scaled) = spread.filter(|t| flat && f.same_shape(&t.spec().shape, &q.spec().shape))
            else {
                continue;
            };
            let args = vec![scaled.convert(narrow), args[1].clone()];
            out.push(Term::Part(Part::Scores(s.clone()), f.spec.clone(), args));
        }
    }
    out
}

/// Whether a class has the type of the found node.
fn same_type(f: &Found<'_>, class: Id) -> bool {
    f.tensor(class).is_some_and(|s| s.dtype == f.spec.dtype && f.same_shape(&s.shape, &f.spec.shape))
}

/// Queries or keys that are scaled by a number: so are the scores.
fn operand_scale(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Scores(s)) = f.part else { return vec![] };
    let mut out = vec![];
    if f.node.args.len() > 2 || s.causal {
        return out;
    }
    let Some(args) = terms(f, &f.node.args) else { return out };
    for i in 0..2 {
        for (x, c) in unscaled(f, f.arg(i), 4) {
            let mut args = args.clone();
            args[i] = x;
            out.push(Term::Part(Part::Scores(s.scaled(c)), f.spec.clone(), args));
        }
    }
    out
}

/// A value as a multiple of another, looking through views and casts.
fn unscaled(f: &Found<'_>, class: Id, depth: usize) -> Vec<(Term, f64)> {
    let mut out = vec![];
    let Some(spec) = f.tensor(class) else { return out };
    if depth == 0 {
        return out;
    }
    for (op, args) in f.ops(class) {
        match (op, args) {
            (Op::Pointwise(op @ (PwOp::Mul | PwOp::Div)), [x, y]) => {
                let orders: &[(&Id, &Id)] = if *op == PwOp::Mul { &[(x, y), (y, x)] } else { &[(x, y)] };
                for (x, c) in orders {
                    let (Some(c), Some(x)) = (f.konst(**c), f.term(**x)) else { continue };
                    let c = if *op == PwOp::Div { 1.0 / c.as_f64() } else { c.as_f64() };
                    if c.is_finite() && f.same_shape(&x.spec().shape, &spec.shape) {
                        out.push((x, c));
                    }
                }
            }
            (Op::View(v @ (View::Permute(_) | View::Reshape | View::Expand)), [x]) => {
                let inner = unscaled(f, f.eg.find(*x), depth - 1);
                out.extend(inner.into_iter().map(|(x, c)| (x.view(v.clone(), spec.shape.clone()), c)));
            }
            (Op::Convert, [x]) if f.tensor(*x).is_some_and(|s| s.dtype.is_float()) => {
                let inner = unscaled(f, f.eg.find(*x), depth - 1);
                out.extend(inner.into_iter().map(|(x, c)| (x.convert(spec.dtype), c)));
            }
            _ => {}
        }
    }
    out
}

/// Queries and keys that were widened: their products are the same without, as they are summed in the
/// wider type.
fn operand_cast(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Scores(s)) = f.part else { return vec![] };
    let mut out = vec![];
    let Some(args) = terms(f, &f.node.args) else { return out };
    for q in narrow(f, f.arg(0), 4) {
        for k in narrow(f, f.arg(1), 4) {
            if q.spec().dtype == k.spec().dtype {
                let mut args = args.clone();
                args.splice(..2, [q.clone(), k]);
                out.push(Term::Part(Part::Scores(s.clone()), f.spec.clone(), args));
            }
        }
    }
    out
}

/// What a value is a widened copy of, looking through views.
fn narrow(f: &Found<'_>, class: Id, depth: usize) -> Vec<Term> {
    let mut out = vec![];
    let Some(spec) = f.tensor(class) else { return out };
    if depth == 0 || spec.dtype != DType::F32 {
        return out;
    }
    for x in f.converts(class) {
        out.extend(f.term(x).filter(|x| matches!(x.spec().dtype, DType::BF16 | DType::F16)));
    }
    for (v, x) in f.views(class) {
        out.extend(narrow(f, x, depth - 1).into_iter().map(|x| x.view(v.clone(), spec.shape.clone())));
    }
    out
}

/// Scores plus or minus a mask.
fn add_mask(f: &Found<'_>) -> Vec<Term> {
    let Op::Pointwise(op @ (PwOp::Add | PwOp::Sub)) = f.op else { return vec![] };
    let mut out = vec![];
    for (x, m) in [(0, 1), (1, 0)] {
        if x == 1 && *op == PwOp::Sub || !same_type(f, f.arg(x)) {
            continue;
        }
        for (s, args) in scores(f, f.arg(x)) {
            let (Some(mut args), Some(mut m)) = (terms(f, args), f.term(f.arg(m))) else { continue };
            if s.causal {
                continue;
            }
            let Term::Class(class, _) = m else { continue };
            let (finite, gentle) = (mask::range(f, class).is_some(), mask::gentle(f, class));
            if *op == PwOp::Add && args.len() == 2 && mask::adds_causally(f, class) && square(&args) {
                let causal = Scores { causal: true, ..s.clone() };
                out.push(Term::Part(Part::Scores(causal), f.spec.clone(), args.clone()));
            }
            if *op == PwOp::Sub {
                let Some(n) = Term::pointwise(PwOp::Neg, vec![m], f.facts()) else { continue };
                m = n;
            }
            if args.len() == 3 {
                let Some(prior) = args.pop() else { continue };
                let both = vec![prior.convert(f.spec.dtype), m];
                let Some(sum) = Term::pointwise(PwOp::Add, both, f.facts()) else { continue };
                m = sum;
            }
            args.push(m);
            let new = Scores { sound: s.sound && finite, gentle: s.gentle && gentle, ..s.clone() };
            out.push(Term::Part(Part::Scores(new), f.spec.clone(), args));
        }
    }
    out
}

/// Whether there are as many keys as queries: only then a causal kernel lets every row see one.
fn square(args: &[Term]) -> bool {
    let long = |t: &Term| t.spec().shape.len().checked_sub(2).map(|d| t.spec().shape[d].clone());
    long(&args[0]) == long(&args[1])
}

/// Scores replaced by a number where a condition holds.
///
/// By `-inf`: the same as adding it. By a number so small that nothing is left of its exponential:
/// the same as `-inf`, except in a row where it is everywhere. Such a row is uniform and passes no
/// gradient to queries and keys: its query is 0, and so are its scores.
fn fill(f: &Found<'_>) -> Vec<Term> {
    let mut out = vec![];
    for (x, k, filled) in [(2, 1, true), (1, 2, false)] {
        let (Some(value), true) = (f.konst(f.arg(k)), same_type(f, f.arg(x))) else { continue };
        if !mask::blocks(value) {
            continue;
        }
        for (s, args) in scores(f, f.arg(x)) {
            let (Some(mut args), Some(c)) = (terms(f, args), f.term(f.arg(0))) else { continue };
            if args.len() > 2 || s.causal {
                continue;
            }
            if mask::allows_causally(f, f.arg(0), filled) && square(&args) {
                let causal = Scores { causal: true, ..s.clone() };
                out.push(Term::Part(Part::Scores(causal), f.spec.clone(), args.clone()));
            }
            out.extend(
                filled_mask(f, c, filled, value.as_f64(), &mut args, s)
                    .map(|new| Term::Part(Part::Scores(new), f.spec.clone(), args)),
            );
        }
    }
    out
}

/// Makes operands of scores out of a condition.
fn filled_mask(
    f: &Found<'_>,
    c: Term,
    filled: bool,
    value: f64,
    args: &mut Vec<Term>,
    s: &Scores,
) -> Option<Scores> {
    let like = Spec { dtype: f.spec.dtype, device: f.spec.device, shape: vec![] };
    let (zero, wall) = (constant(0.0, &like), constant(f64::NEG_INFINITY, &like));
    let c = if filled { c } else { Term::pointwise(PwOp::Not, vec![c], f.facts())? };
    if value == f64::NEG_INFINITY {
        args.push(Term::pointwise(PwOp::Where, vec![c, wall, zero], f.facts())?);
        // Its gradient stops at the fill, NaN or not.
        return Some(Scores { sound: false, gentle: false, ..s.clone() });
    }
    let mut shape = c.spec().shape.clone();
    let last = shape.len().checked_sub(1)?;
    let reduce = Op::Reduce { op: ReduceOp::All, dims: vec![last] };
    let rest = Spec { shape: shape[..last].to_vec(), ..(**c.spec()).clone() };
    let all = Term::node(reduce, rest, vec![c.clone()]);
    shape[last] = Expr::ONE;
    let all = all.view(View::Reshape, shape);
    let some = Term::pointwise(PwOp::Not, vec![all.clone()], f.facts())?;
    let c = Term::pointwise(PwOp::And, vec![c, some], f.facts())?;
    args.push(Term::pointwise(PwOp::Where, vec![c, wall, zero], f.facts())?);
    let q = args[0].clone();
    let zero = constant(0.0, q.spec());
    let cleared = Term::pointwise(PwOp::Where, vec![all, zero, q.clone()], f.facts())?;
    if !f.same_shape(&cleared.spec().shape, &q.spec().shape) {
        return None;
    }
    args[0] = cleared;
    Some(s.clone())
}

/// Scores or probabilities of another float type.
fn cast(f: &Found<'_>) -> Vec<Term> {
    if !f.spec.dtype.is_float() {
        return vec![];
    }
    let x = f.arg(0);
    let scores = scores(f, x).into_iter().map(|(s, a)| (Part::Scores(s.clone()), a));
    let probabilities = probabilities(f, x).into_iter().map(|(p, a)| (Part::Probabilities(p.clone()), a));
    scores
        .chain(probabilities)
        .filter_map(|(part, args)| Some(Term::Part(part, f.spec.clone(), terms(f, args)?)))
        .collect()
}

fn keeps_matrices(f: &Found<'_>, from: &[Expr], to: &[Expr]) -> bool {
    from.len() >= 2 && to.len() >= 2 && f.same_shape(&from[from.len() - 2..], &to[to.len() - 2..])
}

/// Scores that are not masked yet: other batch dims, or transposed.
fn view(f: &Found<'_>) -> Vec<Term> {
    let Op::View(view) = f.op else { return vec![] };
    let mut out = vec![];
    for (s, args) in scores(f, f.arg(0)) {
        let (Some(args), Some(from)) = (terms(f, args), f.tensor(f.arg(0))) else { continue };
        if args.len() > 2 || s.causal {
            continue;
        }
        let (from, to) = (&from.shape, &f.spec.shape);
        let r = to.len();
        let args = match view {
            View::Reshape if keeps_matrices(f, from, to) => {
                let batch = |t: Term| {
                    let shape = &t.spec().shape;
                    // A batch that broadcasts has no such view.
                    let own = f.same_shape(&shape[..shape.len() - 2], &from[..from.len() - 2]);
                    let shape = [&to[..r - 2], &shape[shape.len() - 2..]].concat();
                    own.then(|| t.view(View::Reshape, shape))
                };
                args.into_iter().map(batch).collect::<Option<Vec<Term>>>()
            }
            View::Permute(p) if r >= 2 && p[..r - 2].is_sorted() && p[r - 2..] == [r - 1, r - 2] => {
                Some(args.into_iter().rev().collect())
            }
            _ => None,
        };
        out.extend(args.map(|a| Term::Part(Part::Scores(s.clone()), f.spec.clone(), a)));
    }
    out
}

/// `of` through a view of other batch dims: what it gives for what is viewed, and that viewed again.
fn through_view(f: &Found<'_>, of: impl Fn(Id, &Spec) -> Vec<Term>) -> Vec<Term> {
    let mut out = vec![];
    for (v, x) in f.views(f.arg(0)) {
        let Some(inner) = f.tensor(x) else { continue };
        if matches!(v, View::Reshape) && keeps_matrices(f, &inner.shape, &f.spec.shape) {
            let spec = Spec { dtype: f.spec.dtype, ..(**inner).clone() };
            out.extend(of(x, &spec).into_iter().map(|t| t.view(View::Reshape, f.spec.shape.clone())));
        }
    }
    out
}

fn softmax(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::Softmax, node)) = f.part else { return vec![] };
    let of = |class: Id, spec: &Spec| -> Vec<Term> {
        let new = |s: &Scores| Probabilities { scores: s.clone(), softmax: *node, dropout: 0f64.to_bits() };
        scores(f, class)
            .into_iter()
            .filter_map(|(s, a)| {
                Some(Term::Part(Part::Probabilities(new(s)), spec.clone().into(), terms(f, a)?))
            })
            .collect()
    };
    let mut out = of(f.arg(0), f.spec);
    out.extend(through_view(f, of));
    out
}

fn dropout(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::Dropout(p), _)) = f.part else { return vec![] };
    let of = |class: Id, spec: &Spec| -> Vec<Term> {
        probabilities(f, class)
            .into_iter()
            .filter(|(x, _)| f64::from_bits(x.dropout) == 0.0)
            .filter_map(|(x, a)| {
                let new = Probabilities { dropout: *p, ..x.clone() };
                Some(Term::Part(Part::Probabilities(new), spec.clone().into(), terms(f, a)?))
            })
            .collect()
    };
    let mut out = of(f.arg(0), f.spec);
    out.extend(through_view(f, of));
    out
}

/// Probabilities times values; also transposed, values times probabilities.
fn values(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::Product, node)) = f.part else { return vec![] };
    let mut out = vec![];
    let (a, b) = (f.arg(0), f.arg(1));
    let Some(v) = f.term(b) else { return out };
    for (p, args) in probabilities(f, a) {
        let Some(mut args) = terms(f, args) else { continue };
        args.insert(2, v.clone());
        out.push(Term::Part(Part::Attention(p.clone()), f.spec.clone(), args));
    }
    for (view, inner) in f.views(a) {
        let (Some(from), Some(to)) = (f.tensor(inner), f.tensor(a)) else { continue };
        if !matches!(view, View::Reshape) || !keeps_matrices(f, &from.shape, &to.shape) {
            continue;
        }
        let batch = |s: &[Expr]| s[..s.len() - 2].to_vec();
        let tail = |s: &[Expr]| s[s.len() - 2..].to_vec();
        if !f.same_shape(&batch(&v.spec().shape), &batch(&to.shape)) {
            continue;
        }
        for (p, args) in probabilities(f, inner) {
            let Some(mut args) = terms(f, args) else { continue };
            let v = v.clone().view(View::Reshape, [batch(&from.shape), tail(&v.spec().shape)].concat());
            args.insert(2, v);
            let shape = [batch(&from.shape), tail(&f.spec.shape)].concat();
            let spec = Spec { shape, ..(**f.spec).clone() };
            let out_term = Term::Part(Part::Attention(p.clone()), spec.into(), args);
            out.push(out_term.view(View::Reshape, f.spec.shape.clone()));
        }
    }
    for (view, inner) in f.views(b) {
        let View::Permute(p) = view else { continue };
        let r = p.len();
        let swaps = r >= 2 && p[..r - 2].is_sorted() && p[r - 2..] == [r - 1, r - 2];
        if swaps && !probabilities(f, inner).is_empty() {
            let (Some(p), Some(v)) = (f.term(inner), f.term(a).and_then(swap_last)) else { continue };
            let mut shape = f.spec.shape.clone();
            shape.swap(r - 2, r - 1);
            let spec = Spec { shape, ..(**f.spec).clone() };
            let turned = Term::Part(Part::Given(Given::Product, *node), spec.into(), vec![p, v]);
            out.extend(swap_last(turned));
        }
    }
    out
}
