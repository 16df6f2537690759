//! Where attention was found: whether the kernel can take the place of the calls, and how.

use super::attention::{Probabilities, scores};
use super::build::{Builder, StepArg};
use super::{Part, Policy, Site, View as Graph};
use crate::lang::{EOp, Entry, Fact, Spec};
use egg::Id;
use lj_ir::captured::{CapturedOp, Part as Given};
use lj_ir::{DType, Device, Expr, Op, View};
use std::collections::BTreeSet;

/// Every softmax between two products, and what becomes of it.
pub(super) fn sites(view: &Graph<'_>) -> Vec<Site> {
    let mut out: Vec<Site> = vec![];
    let mut seen = BTreeSet::new();
    for (&at, call) in &view.captured.calls {
        // The first call that is the attention or a view of it.
        let found = attention_in(view, view.class[call.node], 2);
        let Some(first) = found.first() else { continue };
        if !seen.insert(first.part.softmax) {
            continue;
        }
        let site = Site { family: "attention", at, found: true, declined: None, steps: vec![], dead: vec![] };
        out.push(match replacement(view, at, &found) {
            Ok((steps, dead)) => Site { steps, dead, ..site },
            Err(reason) => Site { declined: Some(reason), ..site },
        });
    }
    for (i, n) in view.captured.nodes.iter().enumerate() {
        if n.op == CapturedOp::Part(Given::Softmax) && !seen.contains(&i) {
            out.extend(near_miss(view, i));
        }
    }
    out
}

/// An attention, and the views that lead from it to a call's result.
struct Match<'a> {
    part: &'a Probabilities,
    args: &'a [Id],
    spec: &'a Spec,
    views: Vec<(&'a View, &'a Spec)>,
}

fn attention_in<'a>(view: &'a Graph<'_>, class: Id, depth: usize) -> Vec<Match<'a>> {
    let mut out = vec![];
    for n in &view.eg[class].nodes {
        let Entry { op, fact: Fact::Tensor(spec) } = &view.eg.analysis.table[n.key as usize] else {
            continue;
        };
        match op {
            EOp::Part(Part::Attention(part)) => out.push(Match { part, args: &n.args, spec, views: vec![] }),
            EOp::Op(Op::View(v @ (View::Permute(_) | View::Reshape))) if depth > 0 => {
                for mut m in attention_in(view, view.eg.find(n.args[0]), depth - 1) {
                    m.views.push((v, spec));
                    out.push(m);
                }
            }
            _ => {}
        }
    }
    out.sort_by_key(|m| m.views.len());
    out
}

/// A softmax of products that is multiplied with something, and why it is not attention.
fn near_miss(view: &Graph<'_>, softmax: usize) -> Option<Site> {
    let nodes = &view.captured.nodes;
    let at = nodes[softmax].call;
    let products: BTreeSet<usize> =
        nodes.iter().filter(|n| n.op == CapturedOp::Part(Given::Product)).map(|n| n.call).collect();
    let above = view.above(at);
    let mut below = BTreeSet::new();
    for (p, c) in view.captured.calls.range(at + 1..) {
        if c.reads.iter().any(|r| *r == at || below.contains(r)) {
            below.insert(*p);
        }
    }
    if above.is_disjoint(&products) || below.is_disjoint(&products) {
        return None;
    }
    let none = BTreeSet::new();
    let input = *view.captured.nodes[softmax].args.first()?;
    let f = view.found(view.class[input], &none)?;
    let reason = if scores(&f, view.class[input]).is_empty() {
        "the scores are more than a scaled product and a mask"
    } else {
        "the probabilities are more than cast, dropped and multiplied"
    };
    Some(Site {
        family: "attention",
        at,
        found: false,
        declined: Some(reason.into()),
        steps: vec![],
        dead: vec![],
    })
}

type Replacement = (Vec<super::Step>, Vec<usize>);

/// The steps for the first of `found` that is legal, or why none is.
fn replacement(view: &Graph<'_>, at: usize, found: &[Match<'_>]) -> Result<Replacement, String> {
    let mut why = None;
    let mut best: Option<Replacement> = None;
    // A causal kernel reads no mask; else the fewest steps.
    let mut order: Vec<&Match<'_>> = found.iter().collect();
    order.sort_by_key(|m| (!m.part.scores.causal, m.views.len()));
    for m in order {
        match one(view, at, m) {
            Ok(r) => {
                let causal = m.part.scores.causal;
                if best.as_ref().is_none_or(|b| r.0.len() < b.0.len()) {
                    best = Some(r);
                }
                if causal {
                    break;
                }
            }
            Err(reason) => why = why.or(Some(reason)),
        }
    }
    best.ok_or_else(|| why.unwrap_or_default())
}

fn one(view: &Graph<'_>, at: usize, m: &Match<'_>) -> Result<Replacement, String> {
    let Match { part: p, args, spec, views } = m;
    let captured = view.captured;
    let facts = &captured.facts;
    let specs: Vec<&Spec> = args
        .iter()
        .filter_map(|a| match &view.eg[view.eg.find(*a)].data.fact {
            Fact::Tensor(s) => Some(&**s),
            _ => None,
        })
        .collect();
    let [q, k, v, rest @ ..] = specs.as_slice() else { return Err("an operand is no tensor".into()) };
    let call = &captured.calls[&at];
    let dtype = spec.dtype;
    if spec.device != Device::Cpu {
        return Err("the operator is known on the CPU only".into());
    }
    if !matches!(dtype, DType::F32 | DType::BF16) || [q, k, v].iter().any(|s| s.dtype != dtype) {
        return Err("queries, keys and values are not all float32 or all bfloat16".into());
    }
    let wide = |n: usize| captured.nodes[n].dtype == DType::F64;
    if wide(p.softmax) || wide(p.scores.product) {
        return Err("the scores are float64".into());
    }
    if f64::from_bits(p.dropout) > 0.0 {
        return Err("dropout: the kernel draws no random numbers".into());
    }
    let rank = spec.shape.len();
    if [q, k, v].iter().any(|s| s.shape.len() != rank) || rank < 2 {
        return Err("queries, keys and values have unequal ranks".into());
    }
    let (l, s, d, dv) = (&q.shape[rank - 2], &k.shape[rank - 2], &q.shape[rank - 1], &v.shape[rank - 1]);
    if spec.shape.iter().chain([s, d]).any(|e| facts.range(e).0 < 1) {
        return Err("an extent may be 0".into());
    }
    let pad = if facts.eq(d, dv) {
        0
    } else {
        let more = (d - dv).as_int().filter(|n| *n > 0 && dv.as_int().is_some());
        more.ok_or("values are wider than keys")?
    };
    let mut b = Builder::new(view, at);
    let missing = || "an operand is not the result of a call".to_string();
    let mut operands = vec![];
    for (a, s) in args.iter().zip(&specs).take(3) {
        let x = b.value(*a).ok_or_else(missing)?;
        let shape = [&spec.shape[..rank - 2], &s.shape[rank - 2..]].concat();
        operands.push(to_four_dims(&mut b, x, &s.shape, &shape).ok_or("a batch of unknown extents")?);
    }
    if pad > 0 {
        operands[2] = b.step("pad", vec![operands[2].clone(), StepArg::Int(pad)]);
    }
    let mut mask_arg = StepArg::None;
    if let [mask] = rest {
        let class = args[3];
        let with_gradient = captured
            .calls
            .iter()
            .any(|(_, c)| view.class[c.node] == view.eg.find(class) && captured.nodes[c.node].grad);
        let x = b.value(class).ok_or_else(missing)?;
        let reads_gradient = with_gradient || needs_gradient(view, &b, &x);
        if reads_gradient && captured.nodes[call.node].grad {
            return Err("the mask needs a gradient".into());
        }
        mask_arg = mask_operand(&mut b, x, mask, rank, dtype).ok_or("a mask of too many dims")?;
    }
    if !p.scores.gentle && captured.nodes[call.node].grad {
        return Err("the mask may shut a row: the kernel has another gradient for it".into());
    }
    let fix = (!p.scores.sound)
        .then(|| b.step("row_is_open", vec![mask_arg.clone(), StepArg::DType(dtype.torch_name())]));
    let [q4, k4, v4] = operands.as_slice() else { return Err(missing()) };
    let kernel = vec![
        q4.clone(),
        k4.clone(),
        v4.clone(),
        mask_arg,
        StepArg::Bool(p.scores.causal),
        StepArg::Float(p.scores.scale()),
    ];
    let mut x = b.step("attention", kernel);
    if let Some(fix) = fix {
        x = b.step("mul", vec![x, fix]);
    }
    if pad > 0 {
        x = b.step("slice", vec![x, StepArg::Int(-1), StepArg::Int(0), StepArg::Int(-pad)]);
    }
    x = from_four_dims(&mut b, x, &spec.shape).ok_or("a batch of unknown extents")?;
    let mut shape = &spec.shape;
    for (v, to) in views {
        x = match v {
            View::Permute(p) => {
                let dims = p.iter().map(|d| *d as i64).collect();
                b.step("permute", vec![x, StepArg::Ints(dims)])
            }
            _ => b.reshape(x, shape, &to.shape).ok_or("a result of unknown extents")?,
        };
        shape = &to.shape;
    }
    let dead = view.replaceable(at, &b.steps, &[p.scores.product, p.softmax])?;
    if view.policy == Policy::Auto {
        let batch: f64 = spec.shape[..rank - 2].iter().map(|e| facts.hint(e) as f64).product();
        worthwhile(dtype, p.scores.causal, facts.hint(l), facts.hint(s), batch)?;
    }
    Ok((b.steps, dead))
}

/// Whether ATen's kernel is at least as fast as products and a fused softmax. Measured on AVX-512,
/// forward and backward (`docs/performance.md`): it gains by what a causal mask lets it skip, from
/// some hundred keys on; in 16 bits its products are slower than ours are.
fn worthwhile(dtype: DType, causal: bool, l: i64, s: i64, _batch: f64) -> Result<(), String> {
    let least = match (dtype, causal) {
        (DType::F32, true) => 640,
        (DType::F32, false) => 2048,
        _ => 4096,
    };
    if l >= least && s >= least && (causal || dtype == DType::F32) {
        return Ok(());
    }
    Err(format!("{l} × {s} scores: products and a fused softmax are faster"))
}

fn needs_gradient(view: &Graph<'_>, b: &Builder<'_>, x: &StepArg) -> bool {
    let call = |p: &usize| view.captured.calls.get(p).is_some_and(|c| view.captured.nodes[c.node].grad);
    match x {
        StepArg::Call(p) => call(p),
        StepArg::Step(i) => b.steps[*i].args.iter().any(|a| needs_gradient(view, b, a)),
        _ => false,
    }
}

/// An operand with its batch expanded, and with exactly two batch dims.
fn to_four_dims(b: &mut Builder<'_>, mut x: StepArg, from: &[Expr], to: &[Expr]) -> Option<StepArg> {
    let sizes = b.expansion(from, to)?;
    if sizes.iter().any(|s| *s != -1) {
        x = b.step("expand", vec![x, StepArg::Ints(sizes)]);
    }
    for _ in to.len()..4 {
        x = b.step("unsqueeze", vec![x, StepArg::Int(0)]);
    }
    if to.len() > 4 {
        x = b.step("flatten", vec![x, StepArg::Int(0), StepArg::Int(to.len() as i64 - 4)]);
    }
    Some(x)
}

fn from_four_dims(b: &mut Builder<'_>, mut x: StepArg, shape: &[Expr]) -> Option<StepArg> {
    for _ in shape.len()..4 {
        x = b.step("squeeze", vec![x, StepArg::Int(0)]);
    }
    if shape.len() > 4 {
        let sizes: Option<Vec<i64>> = shape.iter().map(Expr::as_int).collect();
        x = b.step("reshape", vec![x, StepArg::Ints(sizes?)]);
    }
    Some(x)
}

/// A mask as the kernel takes it: two or four dims, in `f32` or the operands' type.
fn mask_operand(
    b: &mut Builder<'_>,
    mut x: StepArg,
    spec: &Spec,
    rank: usize,
    dtype: DType,
) -> Option<StepArg> {
    let mut dims = spec.shape.len();
    let batch = spec.shape.len().saturating_sub(2);
    if rank > 4 && !spec.shape[..batch].iter().all(|e| e.is(1)) {
        return None;
    }
    while dims > 4 {
        x = b.step("squeeze", vec![x, StepArg::Int(0)]);
        dims -= 1;
    }
    while dims != 2 && dims != 4 {
        x = b.step("unsqueeze", vec![x, StepArg::Int(0)]);
        dims += 1;
    }
    if spec.dtype != dtype && spec.dtype != DType::F32 {
        x = b.step("convert", vec![x, StepArg::DType(dtype.torch_name())]);
    }
    Some(x)
}
