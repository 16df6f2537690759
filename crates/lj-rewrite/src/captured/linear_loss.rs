//! Cross-entropy of a linear layer: the scores of all classes are a product that nothing else reads,
//! and need not be there all at once.
//!
//! `Rows` grow from the layer: casts of its result are those of the loss, and views of its result that
//! keep the classes together are views of its operand.

use super::build::{Builder, StepArg};
use super::{Part, Policy, Site, View as Graph, at_part};
use crate::lang::{EOp, Fact, Spec};
use crate::rules::{Exactness, Found, Root, Rule, Term};
use egg::Id;
use lj_ir::captured::{CapturedOp, Loss, Part as Given};
use lj_ir::{DType, Device, Op, View};

pub(super) fn rules() -> Vec<Rule> {
    let code = |name, root, f: fn(&Found<'_>) -> Vec<Term>| Rule::code(name, Exactness::Rounding, root, f);
    vec![
        at_part("linear-rows", rows),
        code("linear-rows-cast", Root::Convert, cast),
        code("linear-rows-view", Root::View, view),
        at_part("linear-cross-entropy", loss),
    ]
}

/// The layer's result, as rows of scores.
fn rows(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::Linear, node)) = f.part else { return vec![] };
    let args = f.node.args.iter().map(|a| f.term(*a)).collect::<Option<Vec<_>>>();
    args.map(|a| Term::Part(Part::Rows(*node), f.spec.clone(), a)).into_iter().collect()
}

fn rows_in<'a>(f: &'a Found<'_>, class: Id) -> impl Iterator<Item = (usize, Vec<Term>)> + 'a {
    f.parts(f.eg.find(class)).filter_map(|(p, args)| {
        let Part::Rows(node) = p else { return None };
        Some((*node, args.iter().map(|a| f.term(*a)).collect::<Option<Vec<_>>>()?))
    })
}

fn cast(f: &Found<'_>) -> Vec<Term> {
    let widens = f.tensor(f.arg(0)).is_some_and(|s| s.dtype.widens_exactly_to(f.spec.dtype));
    rows_in(f, f.arg(0))
        .filter(|_| widens && f.spec.dtype.is_float())
        .map(|(node, a)| Term::Part(Part::Rows(node), f.spec.clone(), a))
        .collect()
}

fn view(f: &Found<'_>) -> Vec<Term> {
    let Op::View(view) = f.op else { return vec![] };
    let (to, Some(from)) = (&f.spec.shape, f.tensor(f.arg(0))) else { return vec![] };
    let (Some((classes, lead)), Some(before)) = (to.split_last(), from.shape.last()) else { return vec![] };
    let legal = match view {
        View::Reshape => true,
        View::Slice { dim, .. } => *dim < lead.len(),
        _ => false,
    };
    if !legal || !f.facts().eq(classes, before) {
        return vec![];
    }
    rows_in(f, f.arg(0))
        .filter_map(|(node, mut a)| {
            let features = a[0].spec().shape.last()?.clone();
            a[0] = a[0].clone().view(view.clone(), [lead, &[features]].concat());
            Some(Term::Part(Part::Rows(node), f.spec.clone(), a))
        })
        .collect()
}

fn loss(f: &Found<'_>) -> Vec<Term> {
    let Some(Part::Given(Given::CrossEntropy(loss), _)) = f.part else { return vec![] };
    let Some(target) = f.term(f.arg(1)) else { return vec![] };
    rows_in(f, f.arg(0))
        .map(|(node, mut a)| {
            a.insert(2, target.clone());
            Term::Part(Part::LinearLoss(loss.clone(), node), f.spec.clone(), a)
        })
        .collect()
}

/// Every cross-entropy of a linear layer, and what becomes of it.
pub(super) fn sites(view: &Graph<'_>) -> Vec<Site> {
    let mut out = vec![];
    for n in &view.captured.nodes {
        if !matches!(n.op, CapturedOp::Part(Given::CrossEntropy(_))) {
            continue;
        }
        let at = n.call;
        let class = view.class[view.captured.calls[&at].node];
        let found =
            view.eg[class].nodes.iter().find_map(|n| match &view.eg.analysis.table[n.key as usize].op {
                EOp::Part(Part::LinearLoss(loss, linear)) => Some((loss, *linear, &*n.args)),
                _ => None,
            });
        let Some((loss, linear, args)) = found else { continue };
        let site = Site {
            family: "linear-cross-entropy",
            at,
            found: true,
            declined: None,
            steps: vec![],
            dead: vec![],
        };
        out.push(match replacement(view, at, loss, linear, args) {
            Ok((steps, dead)) => Site { steps, dead, ..site },
            Err(reason) => Site { declined: Some(reason.into()), ..site },
        });
    }
    out
}

type Replacement = (Vec<super::Step>, Vec<usize>);

fn replacement(
    view: &Graph<'_>,
    at: usize,
    loss: &Loss,
    linear: usize,
    args: &[Id],
) -> Result<Replacement, &'static str> {
    let spec = |c: &Id| -> Option<&Spec> {
        match &view.eg[view.eg.find(*c)].data.fact {
            Fact::Tensor(s) => Some(s),
            _ => None,
        }
    };
    let (x, w) = spec(&args[0]).zip(spec(&args[1])).ok_or("an operand is no tensor")?;
    if x.device != Device::Cpu {
        return Err("the operator is known on the CPU only");
    }
    if !matches!(x.dtype, DType::F32 | DType::BF16) || w.dtype != x.dtype {
        return Err("the layer is neither float32 nor bfloat16");
    }
    let mut b = Builder::new(view, at);
    let mut steps = vec![];
    for a in args {
        steps.push(b.value(*a).ok_or("an operand is not the result of a call")?);
    }
    if steps.len() == 3 {
        steps.push(StepArg::None);
    }
    steps.extend([
        StepArg::Int(loss.ignore_index),
        StepArg::Bool(loss.sum),
        StepArg::DType(view.captured.nodes[view.captured.calls[&at].node].dtype.torch_name()),
    ]);
    b.step("linear_cross_entropy", steps);
    let dead = view
        .replaceable(at, &b.steps, &[linear])
        .map_err(|e| if e.starts_with("something") { "something else reads the scores" } else { e })?;
    let facts = &view.captured.facts;
    let size = |s: &Spec| s.shape.first().map_or(0, |e| facts.hint(e));
    // Parts save memory and take eager's time; fused with our own products all scores at once are up to
    // 1.5 times as fast (`docs/performance.md`). From 128 MiB of `f32` scores on, memory counts more.
    if view.policy == Policy::Auto && size(x).saturating_mul(size(w)) < 32 << 20 {
        return Err("the scores are few");
    }
    Ok((b.steps, dead))
}
