//! Patterns above autograd: whole operators found in the graph that Dynamo captured.
//!
//! The neighbourhood of some calls ([`Captured`]) goes into an e-graph of its own; the rules of the
//! families absorb what they know (scales, casts, views, masks) into parts of a pattern, until a call's
//! class holds the whole operator. What is legal is decided by the rules where a value is concerned,
//! and here where the calls are: nothing else reads what would no longer be computed, and no memory
//! changes in between. The result is a list of [`Site`]s: calls to be replaced, and by which steps.

mod attention;
mod attention_sites;
mod build;
mod linear_loss;
mod mask;

pub use build::{Step, StepArg};

use crate::error::Error;
use crate::lang::{ENode, EOp, Fact, Graphs, Know, Spec};
use crate::rules::{Exactness, Found, Root, Rule, Term};
use crate::saturate;
use egg::Id;
use lj_ir::captured::{Call, Captured, CapturedOp, Part as GivenPart};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

/// A part of a pattern as a node of the e-graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// A value from elsewhere: this node.
    Leaf(usize),
    /// An operator of the graph, and the node it is; equal ones stay apart.
    Given(GivenPart, usize),
    /// Scaled products of queries and keys, masked: `[q, k]` or `[q, k, mask]`.
    Scores(attention::Scores),
    /// Their softmax.
    Probabilities(attention::Probabilities),
    /// These times the values: `[q, k, v]` or `[q, k, v, mask]`.
    Attention(attention::Probabilities),
    /// The result of this linear layer, or a view of it: `[x, w]`, with a bias as a third operand.
    Rows(usize),
    /// Cross-entropy of a linear layer: `[x, w, target]`, with a bias as a fourth operand.
    LinearLoss(lj_ir::captured::Loss, usize),
}

/// When an operator replaces what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Where it is expected to be faster.
    Auto,
    /// Wherever it is legal.
    Always,
}

/// What became of an operator that was found, or nearly.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// The family: `attention`, `linear-cross-entropy`.
    pub family: &'static str,
    /// Position of the call that is replaced or, if nothing was found, of the one looked at.
    pub at: usize,
    /// Whether the operator was found.
    pub found: bool,
    /// Why it is left as it is.
    pub declined: Option<String>,
    /// What replaces it, in order; the last is the result. Empty if it is declined.
    pub steps: Vec<Step>,
    /// Calls that are not needed any more, in order.
    pub dead: Vec<usize>,
}

/// What families find, and the graph they look at.
pub(crate) struct View<'a> {
    pub captured: &'a Captured,
    pub eg: &'a Graphs,
    /// Class of every node.
    pub class: &'a [Id],
    pub policy: Policy,
}

/// The rules of all families.
pub(crate) fn rules() -> Vec<Rule> {
    let mut rules = attention::rules();
    rules.extend(mask::rules());
    rules.extend(linear_loss::rules());
    rules
}

/// Finds the operators of every family.
///
/// # Errors
/// If a rule is broken; the graph is then used as it is.
pub fn find(captured: &Captured, policy: Policy) -> Result<Vec<Site>, Error> {
    static RULES: LazyLock<Vec<Rule>> = LazyLock::new(crate::rules::captured);
    let know = Know { facts: captured.facts.clone(), fold: true, ..Know::default() };
    let mut eg = Graphs::new(know);
    let mut class: Vec<Id> = vec![];
    for (i, n) in captured.nodes.iter().enumerate() {
        let spec = Spec { dtype: n.dtype, device: n.device, shape: n.shape.clone() };
        let op = match &n.op {
            CapturedOp::Leaf => EOp::Part(Part::Leaf(i)),
            CapturedOp::Op(op) => EOp::Op(op.clone()),
            CapturedOp::Part(part) => EOp::Part(Part::Given(part.clone(), i)),
        };
        let key = eg.analysis.intern(op, Fact::Tensor(Arc::new(spec)));
        let args = n.args.iter().map(|a| class[*a]).collect();
        class.push(eg.add(ENode { key, args }));
    }
    eg.rebuild();
    let rules: Vec<&Rule> = RULES.iter().collect();
    let limit = (eg.total_size() * 40).max(2_000);
    saturate::saturate(&mut eg, &[], &rules, limit, 24)?;
    let class: Vec<Id> = class.into_iter().map(|c| eg.find(c)).collect();
    let view = View { captured, eg: &eg, class: &class, policy };
    let mut sites = attention_sites::sites(&view);
    sites.extend(linear_loss::sites(&view));
    sites.sort_by_key(|s| s.at);
    Ok(sites)
}

impl View<'_> {
    /// The class as rules see it.
    fn found<'a>(&'a self, class: Id, none: &'a BTreeSet<Id>) -> Option<Found<'a>> {
        let class = self.eg.find(class);
        let Fact::Tensor(spec) = &self.eg[class].data.fact else { return None };
        let node = self.eg[class].nodes.first()?;
        Some(Found { eg: self.eg, roots: none, class, node, op: &lj_ir::Op::Copy, part: None, spec })
    }

    /// Positions of the calls that only `at` needs: all that read them are among them, or `at` itself.
    fn dead(&self, at: usize) -> BTreeSet<usize> {
        let mut dead = BTreeSet::from([at]);
        // Positions are in topological order, so one pass from the end sees every reader first.
        for (&p, call) in self.captured.calls.range(..at).rev() {
            if !call.users.is_empty() && call.users.iter().all(|u| dead.contains(u)) {
                dead.insert(p);
            }
        }
        dead
    }

    /// Calls on the way from `ends` to `at`.
    fn since(&self, ends: &BTreeSet<usize>, at: usize) -> BTreeSet<usize> {
        let mut out = BTreeSet::new();
        for p in self.between(at, ends) {
            // In order, so what a call reads has been seen.
            let read = |c: &Call| c.reads.iter().any(|r| ends.contains(r) || out.contains(r));
            if self.captured.calls.get(&p).is_some_and(read) {
                out.insert(p);
            }
        }
        out
    }

    /// Calls from which `at` is reached without passing one of `ends`.
    fn between(&self, at: usize, ends: &BTreeSet<usize>) -> BTreeSet<usize> {
        let (mut seen, mut stack) = (BTreeSet::from([at]), vec![at]);
        while let Some(p) = stack.pop() {
            let Some(call) = self.captured.calls.get(&p) else { continue };
            for r in &call.reads {
                let imported = self
                    .captured
                    .calls
                    .get(r)
                    .is_some_and(|c| !matches!(self.captured.nodes[c.node].op, CapturedOp::Leaf));
                if imported && !ends.contains(r) && seen.insert(*r) {
                    stack.push(*r);
                }
            }
        }
        seen
    }

    /// Calls that `at` is computed from, through calls that are not known too.
    fn above(&self, at: usize) -> BTreeSet<usize> {
        let (mut seen, mut stack) = (BTreeSet::from([at]), vec![at]);
        while let Some(p) = stack.pop() {
            let reads = self.captured.calls.get(&p).map_or(&[][..], |c| &c.reads);
            stack.extend(reads.iter().filter(|r| seen.insert(**r)));
        }
        seen
    }

    /// Whether a call between the first of `region` and `at` may change memory or how others run.
    fn disturbed(&self, region: &BTreeSet<usize>, at: usize) -> bool {
        let first = region.first().copied().unwrap_or(at);
        self.captured.barriers.iter().any(|b| (first..at).contains(b))
    }

    /// Whether the calls would be legal to leave out and `steps` to be run at `at` instead; the calls
    /// that are then dead.
    fn replaceable(&self, at: usize, steps: &[Step], gone: &[usize]) -> Result<Vec<usize>, &'static str> {
        let dead = self.dead(at);
        if gone.iter().any(|n| !dead.contains(&self.captured.nodes[*n].call)) {
            return Err("something else reads the scores or the probabilities");
        }
        let ends = Step::calls(steps).collect();
        if self.disturbed(&self.since(&ends, at), at) {
            return Err("memory or a mode changes in between");
        }
        // What the steps still read stays, and what it reads with it.
        let mut needed: BTreeSet<usize> = BTreeSet::new();
        let mut stack: Vec<usize> = ends.into_iter().collect();
        while let Some(p) = stack.pop() {
            if needed.insert(p) {
                stack.extend(self.captured.calls.get(&p).iter().flat_map(|c| c.reads.iter().copied()));
            }
        }
        Ok(dead.into_iter().filter(|p| !needed.contains(p)).collect())
    }
}

/// The smallest position at which each class is a call's result.
pub(crate) fn places(view: &View<'_>) -> BTreeMap<Id, usize> {
    let mut out = BTreeMap::new();
    for (p, c) in view.captured.calls.iter().rev() {
        out.insert(view.class[c.node], *p);
    }
    out
}

/// A rule at a part of a pattern.
fn at_part(name: &'static str, f: fn(&Found<'_>) -> Vec<Term>) -> Rule {
    Rule::code(name, Exactness::Rounding, Root::Part, f)
}
