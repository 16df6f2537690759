//! What a node costs, in nanoseconds of one core: bytes moved and flops over round measured rates.
//!
//! Kernels are counted after fusion only roughly: what materialises (products, extern calls) pays a
//! launch, pointwise operations pay for their elements, views next to nothing.

use crate::lang::{ENode, EOp, Fact, Graphs, Spec};
use egg::Id;
use lj_ir::Op;
use std::collections::{BTreeSet, HashSet};

/// Memory, ns per byte (20 GB/s and core).
const BYTE: f64 = 0.05;
/// Matrix products, ns per flop (100 GFLOP/s and core).
const FLOP: f64 = 0.01;
/// A vectorised pointwise operation of unit cost, ns per element.
const ELEMENT: f64 = 0.05;
/// Starting something that cannot be fused.
const LAUNCH: f64 = 2000.0;
/// A view or constant.
const FREE: f64 = 0.1;
/// What a node that a rule made must win by: ties go to the graph as it was.
const MADE: f64 = 1e-3;

/// The cost model.
pub(crate) struct Cost<'a> {
    /// Nodes of the input graph, canonical.
    pub originals: &'a HashSet<ENode>,
    /// Classes that must be a tensor of their own: a view there needs a copy.
    pub own: &'a BTreeSet<Id>,
}

impl Cost<'_> {
    /// The cost of `node` as the choice of `class`; always positive.
    pub fn of(&self, eg: &Graphs, node: &ENode, class: Id) -> f64 {
        let own = match (&eg.analysis.table[node.key as usize].op, &eg[class].data.fact) {
            (EOp::Extern(_), _) => LAUNCH,
            (EOp::Input(_) | EOp::Proj(_), _) => MADE,
            (op, Fact::Tensor(spec)) => tensor(eg, node, op, spec),
            _ => FREE,
        };
        let copy = match (&eg.analysis.table[node.key as usize].op, &eg[class].data.fact) {
            (EOp::Op(Op::View(v)), Fact::Tensor(s)) if v.aliases() && self.own.contains(&class) => {
                1.0 + 2.0 * elements(eg, s) * s.dtype.bytes() as f64 * BYTE
            }
            _ => 0.0,
        };
        own + copy + if self.originals.contains(node) { 0.0 } else { MADE }
    }
}

fn elements(eg: &Graphs, s: &Spec) -> f64 {
    s.shape.iter().map(|e| eg.analysis.facts.hint(e).max(0) as f64).product()
}

fn tensor(eg: &Graphs, node: &ENode, op: &EOp, spec: &Spec) -> f64 {
    let facts = &eg.analysis.facts;
    let numel = |s: &Spec| elements(eg, s);
    let arg = |i: usize| match node.args.get(i).map(|a| &eg[*a].data.fact) {
        Some(Fact::Tensor(s)) => (numel(s), numel(s) * s.dtype.bytes() as f64),
        _ => (0.0, 0.0),
    };
    let n = numel(spec);
    let bytes = n * spec.dtype.bytes() as f64;
    let read = || (0..node.args.len()).map(|i| arg(i).1).sum::<f64>();
    match op {
        EOp::Copy(_) => 1.0 + (bytes + read()) * BYTE,
        EOp::Op(op) => match op {
            Op::Full(_) | Op::FullSym(_) if spec.shape.is_empty() => FREE,
            Op::Full(_) | Op::Iota { .. } => 2.0 * FREE,
            Op::View(view) => {
                if view.aliases() {
                    FREE
                } else {
                    1.0 + n * ELEMENT
                }
            }
            Op::Pointwise(p) => 1.0 + n * ELEMENT * f64::from(p.cost()),
            Op::Convert => 1.0 + n * ELEMENT,
            Op::Reduce { .. } => 1.0 + arg(0).0 * ELEMENT + bytes * BYTE,
            Op::Matmul { .. } => {
                let k = match node.args.first().map(|a| &eg[*a].data.fact) {
                    Some(Fact::Tensor(s)) => s.shape.last().map_or(1.0, |e| facts.hint(e) as f64),
                    _ => 1.0,
                };
                LAUNCH + 2.0 * n * k * FLOP + (bytes + read()) * BYTE
            }
            _ => 1.0 + (bytes + read()) * BYTE,
        },
        _ => FREE,
    }
}
