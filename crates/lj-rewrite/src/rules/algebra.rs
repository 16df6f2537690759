//! Identities of pointwise arithmetic.
//!
//! Each line holds for −0.0, ±∞ and NaN, and for wrapping integers where the operation takes them.
//! What does not hold is not here: `x + 0.0` (turns −0.0 into 0.0), `x * 0`, `x - x`, `x / x`,
//! `-(x - y)` (the zero's sign), and everything that reassociates or distributes.

use super::Exactness::{Exact, Rounding};
use super::{Found, Match, Root, Rule, Term};
use crate::error::Error;
use lj_ir::{DType, Op, PwOp, Scalar};

pub(crate) fn rules() -> Result<Vec<Rule>, Error> {
    let same = |name, left, right| Rule::pattern(name, Exact, left, right);
    let ints = |name, left, right| Rule::pattern_if(name, Exact, left, right, |m| !m.dtype().is_float());
    let pow = |name, left, right| Rule::pattern_if(name, Exact, left, right, scalar_exponent);
    Ok(vec![
        same("add-negative-zero", "(add ?x -0.0)", "?x")?,
        ints("add-zero", "(add ?x 0)", "?x")?,
        same("sub-zero", "(sub ?x 0)", "?x")?,
        same("sub-from-negative-zero", "(sub -0.0 ?x)", "(neg ?x)")?,
        ints("sub-from-zero", "(sub 0 ?x)", "(neg ?x)")?,
        same("mul-one", "(mul ?x 1)", "?x")?,
        same("mul-minus-one", "(mul ?x -1)", "(neg ?x)")?,
        same("div-one", "(div ?x 1)", "?x")?,
        same("div-minus-one", "(div ?x -1)", "(neg ?x)")?,
        same("one-div", "(div 1 ?x)", "(reciprocal ?x)")?,
        same("neg-neg", "(neg (neg ?x))", "?x")?,
        same("not-not", "(not (not ?x))", "?x")?,
        same("abs-abs", "(abs (abs ?x))", "(abs ?x)")?,
        same("abs-neg", "(abs (neg ?x))", "(abs ?x)")?,
        same("add-neg", "(add ?x (neg ?y))", "(sub ?x ?y)")?,
        same("sub-neg", "(sub ?x (neg ?y))", "(add ?x ?y)")?,
        same("mul-neg-neg", "(mul (neg ?x) (neg ?y))", "(mul ?x ?y)")?,
        same("div-neg-neg", "(div (neg ?x) (neg ?y))", "(div ?x ?y)")?,
        Rule::computed("mul-neg-constant", Exact, "(mul (neg ?x) #c)", "(mul ?x @)", negated)?,
        Rule::computed("div-neg-constant", Exact, "(div (neg ?x) #c)", "(div ?x @)", negated)?,
        same("maximum-same", "(maximum ?x ?x)", "?x")?,
        same("minimum-same", "(minimum ?x ?x)", "?x")?,
        same("maximum-twice", "(maximum (maximum ?x ?y) ?y)", "(maximum ?x ?y)")?,
        same("minimum-twice", "(minimum (minimum ?x ?y) ?y)", "(minimum ?x ?y)")?,
        same("and-same", "(and ?x ?x)", "?x")?,
        same("or-same", "(or ?x ?x)", "?x")?,
        same("floor-floor", "(floor (floor ?x))", "(floor ?x)")?,
        same("where-same", "(where ?c ?x ?x)", "?x")?,
        same("where-true", "(where 1 ?x ?y)", "?x")?,
        same("where-false", "(where 0 ?x ?y)", "?y")?,
        same("where-not", "(where (not ?c) ?x ?y)", "(where ?c ?y ?x)")?,
        same("where-where", "(where ?c (where ?c ?x ?y) ?z)", "(where ?c ?x ?z)")?,
        Rule::computed("div-power-of-two", Exact, "(div ?x #c)", "(mul ?x @)", exact_reciprocal)?,
        // ATen computes powers with these scalar exponents in exactly this way. Not so ±0.5: the power
        // of −∞ is ∞ where the root is NaN, so the importer writes a root where ATen takes one.
        pow("pow-one", "(pow ?x 1)", "?x")?,
        pow("pow-two", "(pow ?x 2)", "(mul ?x ?x)")?,
        pow("pow-three", "(pow ?x 3)", "(mul (mul ?x ?x) ?x)")?,
        pow("pow-minus-one", "(pow ?x -1)", "(reciprocal ?x)")?,
        pow("pow-minus-two", "(pow ?x -2)", "(reciprocal (mul ?x ?x))")?,
        Rule::pattern("reciprocal-sqrt", Rounding, "(reciprocal (sqrt ?x))", "(rsqrt ?x)")?,
        Rule::pattern("div-sqrt", Rounding, "(div ?x (sqrt ?y))", "(mul ?x (rsqrt ?y))")?,
        Rule::computed("mul-constants", Rounding, "(mul (mul ?x #a) #b)", "(mul ?x @)", product)?,
        Rule::code("scalar-constant", Exact, Root::AnyPw, scalar_constant),
    ])
}

fn negated(m: &Match<'_, '_>) -> Option<Scalar> {
    crate::fold::pointwise(PwOp::Neg, m.dtype(), &[m.value("#c")?])
}

/// 1/c where c is a power of two and neither is subnormal in the dtype, so that dividing by c and
/// multiplying by 1/c round the same real number.
fn exact_reciprocal(m: &Match<'_, '_>) -> Option<Scalar> {
    let c = m.value("#c")?.as_f64();
    let limit = if m.dtype() == DType::F32 { 126 } else { 1022 };
    let power = c.is_normal() && c.to_bits().trailing_zeros() >= 52;
    let exponent = ((c.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    (power && exponent.abs() <= limit && exponent != 0).then(|| Scalar::float(1.0 / c))
}

/// The exponent is a Python scalar (a 0-d constant), for which ATen takes its shortcuts.
fn scalar_exponent(m: &Match<'_, '_>) -> bool {
    m.found.tensor(m.found.arg(1)).is_some_and(|s| s.shape.is_empty())
}

/// a·b for integers, which wrap; for floats only where the intermediate product cannot overflow
/// when the whole does not, nor lose a subnormal that the whole would keep by much: both factors
/// are near 1 and the first does not grow.
fn product(m: &Match<'_, '_>) -> Option<Scalar> {
    let (a, b) = (m.value("#a")?, m.value("#b")?);
    let (x, y) = (a.as_f64().abs(), b.as_f64().abs());
    let near = |v: f64| (2f64.powi(-20)..=2f64.powi(20)).contains(&v);
    let legal = !m.dtype().is_float() || (near(x) && near(y) && (x <= 1.0 || y >= 1.0));
    if legal { crate::fold::pointwise(PwOp::Mul, m.dtype(), &[a, b]) } else { None }
}

/// A constant operand with a shape → a 0-d one, where the result's shape does not need it.
fn scalar_constant(f: &Found<'_>) -> Vec<Term> {
    // A power with a tensor exponent is not one with a scalar exponent.
    let Op::Pointwise(op) = f.op else { return vec![] };
    if *op == PwOp::Pow {
        return vec![];
    }
    let mut args = vec![];
    let mut changed = false;
    for i in 0..f.node.args.len() {
        let (Some(term), konst) = (f.term(f.arg(i)), f.konst(f.arg(i))) else { return vec![] };
        let spec = term.spec().clone();
        match konst {
            Some(k) if !spec.shape.is_empty() => {
                changed = true;
                args.push(Term::scalar(k, &spec, spec.dtype));
            }
            _ => args.push(term),
        }
    }
    if !changed {
        return vec![];
    }
    let built = Term::pointwise(*op, args, f.facts());
    built.into_iter().filter(|t| f.same_shape(&t.spec().shape, &f.spec.shape)).collect()
}
