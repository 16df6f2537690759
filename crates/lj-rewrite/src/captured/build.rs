//! A value of the e-graph as steps: calls that are there, and operators to be called.

use super::{View as Graph, places};
use crate::lang::{EOp, Spec};
use crate::rules::Term;
use egg::Id;
use lj_ir::{Expr, Op, PwOp, ReduceOp, Scalar, View};
use std::collections::{BTreeMap, BTreeSet};

/// One operator to be called, by the name the surgery knows it by.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name.
    pub name: String,
    /// Arguments.
    pub args: Vec<StepArg>,
}

/// An argument of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepArg {
    /// The result of the call at a position of the graph.
    Call(usize),
    /// The result of a step.
    Step(usize),
    /// None.
    None,
    /// A bool.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A number.
    Float(f64),
    /// A dtype, by torch's name.
    DType(&'static str),
}

impl Step {
    /// Positions of the calls that `steps` read.
    pub fn calls(steps: &[Step]) -> impl Iterator<Item = usize> {
        steps.iter().flat_map(|s| &s.args).filter_map(|a| match a {
            StepArg::Call(p) => Some(*p),
            _ => None,
        })
    }
}

/// Collects steps.
pub(super) struct Builder<'a> {
    view: &'a Graph<'a>,
    places: BTreeMap<Id, usize>,
    /// Calls at or after this position are not there yet.
    before: usize,
    pub steps: Vec<Step>,
    done: BTreeMap<Id, StepArg>,
}

/// What a step costs when several spellings will do; a call that is there costs nothing.
fn price(op: &Op) -> Option<usize> {
    Some(match op {
        Op::View(View::Permute(_) | View::Reshape | View::Expand) | Op::Full(_) => 1,
        Op::View(View::Slice { .. }) => 2,
        Op::Convert => 10,
        Op::Pointwise(_) => 20,
        Op::Reduce { op: ReduceOp::All | ReduceOp::Max, .. } => 20,
        _ => return None,
    })
}

impl<'a> Builder<'a> {
    pub fn new(view: &'a Graph<'a>, before: usize) -> Builder<'a> {
        Builder { view, places: places(view), before, steps: vec![], done: BTreeMap::new() }
    }

    pub fn step(&mut self, name: &str, args: Vec<StepArg>) -> StepArg {
        self.steps.push(Step { name: name.into(), args });
        StepArg::Step(self.steps.len() - 1)
    }

    /// The value of a class; `None` if no spelling of it can be called.
    pub fn value(&mut self, class: Id) -> Option<StepArg> {
        let class = self.view.eg.find(class);
        if let Some(arg) = self.done.get(&class) {
            return Some(arg.clone());
        }
        let (_, node) = self.cheapest(class, &mut BTreeSet::new())?;
        let arg = match node {
            None => StepArg::Call(self.places[&class]),
            Some(i) => {
                let node = self.view.eg[class].nodes[i].clone();
                let entry = &self.view.eg.analysis.table[node.key as usize];
                let (EOp::Op(op), crate::lang::Fact::Tensor(spec)) = (&entry.op, &entry.fact) else {
                    return None;
                };
                let args = node.args.iter().map(|a| self.value(*a)).collect::<Option<Vec<_>>>()?;
                self.call(op, spec, args, node.args.first().copied())?
            }
        };
        self.done.insert(class, arg.clone());
        Some(arg)
    }

    /// The price of a class and the node that has it, or none for a call that is there.
    fn cheapest(&self, class: Id, open: &mut BTreeSet<Id>) -> Option<(usize, Option<usize>)> {
        let class = self.view.eg.find(class);
        if self.places.get(&class).is_some_and(|p| *p < self.before) {
            return Some((0, None));
        }
        if open.len() > 16 || !open.insert(class) {
            return None;
        }
        let mut best: Option<(usize, Option<usize>)> = None;
        for (i, n) in self.view.eg[class].nodes.iter().enumerate() {
            let EOp::Op(op) = &self.view.eg.analysis.table[n.key as usize].op else { continue };
            let Some(mut price) = price(op) else { continue };
            let whole = n.args.iter().all(|a| self.cheapest(*a, open).map(|(p, _)| price += p).is_some());
            if whole && best.is_none_or(|(p, _)| price < p) {
                best = Some((price, Some(i)));
            }
        }
        open.remove(&class);
        best
    }

    fn call(&mut self, op: &Op, spec: &Spec, mut args: Vec<StepArg>, first: Option<Id>) -> Option<StepArg> {
        let from = first.and_then(|c| match &self.view.eg[self.view.eg.find(c)].data.fact {
            crate::lang::Fact::Tensor(s) => Some(s.shape.clone()),
            _ => None,
        });
        let name = match op {
            Op::View(View::Permute(p)) => {
                args.push(StepArg::Ints(p.iter().map(|d| *d as i64).collect()));
                "permute".to_string()
            }
            Op::View(View::Reshape) => return self.reshape(args.pop()?, &from?, &spec.shape),
            Op::View(View::Expand) => {
                args.push(StepArg::Ints(self.expansion(&from?, &spec.shape)?));
                "expand".into()
            }
            Op::View(View::Slice { dim, start, step: 1 }) => {
                let (from, facts) = (from?, &self.view.captured.facts);
                let tail = facts.eq(&(start + &spec.shape[*dim]), &from[*dim]);
                // The rest of the dim, or all but a number of elements at its end.
                let cut = (&from[*dim] - &(start + &spec.shape[*dim])).as_int()?;
                let end = if tail { StepArg::None } else { StepArg::Int(-cut) };
                args.extend([StepArg::Int(*dim as i64), StepArg::Int(start.as_int()?), end]);
                "slice".into()
            }
            Op::Full(v) => {
                let dtype = StepArg::DType(spec.dtype.torch_name());
                let value = match v {
                    Scalar::Bool(b) => StepArg::Bool(*b),
                    Scalar::Int(i) => StepArg::Int(*i),
                    Scalar::Float(_) => StepArg::Float(v.as_f64()),
                };
                let scalar = self.step("full", vec![value, dtype]);
                let shape = StepArg::Ints(self.expansion(&[], &spec.shape)?);
                return Some(if spec.shape.is_empty() {
                    scalar
                } else {
                    self.step("expand", vec![scalar, shape])
                });
            }
            Op::Convert => {
                args.push(StepArg::DType(spec.dtype.torch_name()));
                "convert".into()
            }
            Op::Pointwise(op) => name_of(*op)?.into(),
            Op::Reduce { op, dims } => {
                let [dim] = dims[..] else { return None };
                args.push(StepArg::Int(dim as i64));
                match op {
                    ReduceOp::All => "all".into(),
                    ReduceOp::Max => "amax".into(),
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(self.step(&name, args))
    }

    /// A reshape: by sizes where they are known, else by dims of extent 1 or dims joined.
    pub fn reshape(&mut self, x: StepArg, from: &[Expr], to: &[Expr]) -> Option<StepArg> {
        let sizes: Option<Vec<i64>> = to.iter().map(Expr::as_int).collect();
        if let Some(sizes) = sizes {
            return Some(self.step("reshape", vec![x, StepArg::Ints(sizes)]));
        }
        let facts = &self.view.captured.facts;
        let same =
            |a: &[Expr], b: &[Expr]| a.len() == b.len() && a.iter().zip(b).all(|(x, y)| facts.eq(x, y));
        if same(from, to) {
            return Some(x);
        }
        // One extent may be anything if all others are numbers.
        let unknown: Vec<usize> = (0..to.len()).filter(|d| to[*d].as_int().is_none()).collect();
        if unknown.len() == 1 {
            let sizes = to.iter().map(|e| e.as_int().unwrap_or(-1)).collect();
            return Some(self.step("reshape", vec![x, StepArg::Ints(sizes)]));
        }
        for at in 0..to.len() {
            if to[at].is(1) && same(from, &[&to[..at], &to[at + 1..]].concat()) {
                return Some(self.step("unsqueeze", vec![x, StepArg::Int(at as i64)]));
            }
        }
        for at in 0..from.len() {
            if from[at].is(1) && same(to, &[&from[..at], &from[at + 1..]].concat()) {
                return Some(self.step("squeeze", vec![x, StepArg::Int(at as i64)]));
            }
            let until = at + (from.len() + 1).checked_sub(to.len())?;
            if until <= from.len() && until > at {
                let joined = from[at..until].iter().fold(Expr::ONE, |a, b| &a * b);
                if same(to, &[&from[..at], &[joined], &from[until..]].concat()) {
                    let ends = [StepArg::Int(at as i64), StepArg::Int(until as i64 - 1)];
                    let [first, last] = ends;
                    return Some(self.step("flatten", vec![x, first, last]));
                }
            }
        }
        None
    }

    /// The sizes of an expansion, −1 where nothing is expanded.
    pub fn expansion(&self, from: &[Expr], to: &[Expr]) -> Option<Vec<i64>> {
        let extra = to.len().checked_sub(from.len())?;
        let facts = &self.view.captured.facts;
        to.iter()
            .enumerate()
            .map(|(d, e)| match d.checked_sub(extra) {
                Some(i) if facts.eq(&from[i], e) => Some(-1),
                _ => e.as_int(),
            })
            .collect()
    }
}

fn name_of(op: PwOp) -> Option<&'static str> {
    Some(match op {
        PwOp::Add => "add",
        PwOp::Sub => "sub",
        PwOp::Mul => "mul",
        PwOp::Div => "div",
        PwOp::Neg => "neg",
        PwOp::Not => "logical_not",
        PwOp::And => "logical_and",
        PwOp::Where => "where",
        PwOp::Eq => "eq",
        PwOp::Ne => "ne",
        PwOp::Le => "le",
        PwOp::Lt => "lt",
        PwOp::Ge => "ge",
        PwOp::Gt => "gt",
        _ => return None,
    })
}

/// A constant of a dtype, as an operand of a pointwise operation with `like`.
pub(super) fn constant(v: f64, like: &Spec) -> Term {
    Term::scalar(Scalar::float(v), like, like.dtype)
}
