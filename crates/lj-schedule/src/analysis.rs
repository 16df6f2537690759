//! Which values get memory or a kernel of their own, and which are recomputed where they are used.
//!
//! A *leaf* is in memory before any kernel of ours runs: graph inputs, results of ATen calls and of
//! matrix products. A *stored* value must end up in memory (outputs, operands of ATen calls). A
//! *realised* value is computed by exactly one kernel; every other value is *inlined*: its
//! expression is repeated inside each kernel that reads it, which costs no memory traffic.

use crate::coords::view_layout;
use lj_ir::{Expr, Graph, NodeId, Op, ValueId};

/// Where an operand lies: a window on the memory of `root`.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// A leaf or stored value.
    pub root: ValueId,
    /// First element, relative to the root's.
    pub offset: Expr,
    /// Strides in elements.
    pub strides: Vec<Expr>,
}

/// Results of the analysis, by value number.
pub struct Analysis<'g> {
    /// The graph.
    pub graph: &'g Graph,
    /// In memory before our kernels run.
    pub leaf: Vec<bool>,
    /// Must be in memory.
    pub stored: Vec<bool>,
    /// Views that cannot be expressed by strides where they are needed and become copies.
    pub copied: Vec<bool>,
    /// Computed by exactly one kernel.
    pub realised: Vec<bool>,
    /// Estimated cost of computing one element with everything inlined, in additions.
    pub cost: Vec<u32>,
}

/// Concatenations of more parts than this are written part by part.
const MAX_INLINE_CAT: usize = 4;
/// An inlined expression does not grow beyond this many operations.
const MAX_INLINE_OPS: u32 = 160;

/// A use of a value by something that is not a view, possibly through views.
struct Use {
    node: NodeId,
    /// Elements the consumer visits.
    visits: f64,
}

impl<'g> Analysis<'g> {
    /// Decides for every value of `graph`.
    pub fn new(graph: &'g Graph) -> Analysis<'g> {
        let n = graph.values.len();
        let mut a = Analysis {
            graph,
            leaf: vec![false; n],
            stored: vec![false; n],
            copied: vec![false; n],
            realised: vec![false; n],
            cost: vec![0; n],
        };
        for node in &graph.nodes {
            if matches!(node.op, Op::Input { .. } | Op::Extern(_) | Op::Matmul { .. }) {
                for v in &node.outputs {
                    a.leaf[v.index()] = true;
                }
            }
        }
        a.mark_stored();
        a.mark_realised();
        a
    }

    fn is_view(&self, v: ValueId) -> bool {
        matches!(self.graph.def(v).op, Op::View(_)) && !self.copied[v.index()]
    }

    /// The value a chain of views starts from.
    pub fn base(&self, mut v: ValueId) -> ValueId {
        while self.is_view(v) {
            v = self.graph.def(v).inputs[0];
        }
        v
    }

    /// Where `v` lies in the memory of its base, with the strides its type promises; `None` when
    /// that needs a copy.
    pub fn place(&self, v: ValueId) -> Option<Place> {
        let ty = self.graph.tensor(v);
        if !self.is_view(v) {
            return Some(Place { root: v, offset: Expr::ZERO, strides: ty.strides.clone() });
        }
        let facts = &self.graph.facts;
        let node = self.graph.def(v);
        let Op::View(view) = &node.op else { return None };
        let from = self.place(node.inputs[0])?;
        let shape = &self.graph.tensor(node.inputs[0]).shape;
        let (offset, strides) = view_layout(view, shape, &from.strides, &ty.shape, facts)?;
        Some(Place { root: from.root, offset: from.offset + offset, strides })
    }

    /// [`Analysis::place`] if it has exactly the strides that the value's type promises.
    pub fn exact_place(&self, v: ValueId) -> Option<Place> {
        let ty = self.graph.tensor(v);
        let p = self.place(v)?;
        let numel = ty.numel();
        let same = numel.is(0)
            || ty
                .shape
                .iter()
                .zip(ty.strides.iter().zip(&p.strides))
                .all(|(e, (want, have))| e.is(1) || self.graph.facts.eq(want, have));
        same.then_some(Place { strides: ty.strides.clone(), ..p })
    }

    fn store(&mut self, v: ValueId) {
        if self.graph.ty(v).tensor().is_none() {
            return;
        }
        match self.exact_place(v) {
            Some(p) => self.stored[p.root.index()] = true,
            None => self.copy(v),
        }
    }

    fn copy(&mut self, v: ValueId) {
        self.copied[v.index()] = true;
        self.stored[v.index()] = true;
    }

    fn mark_stored(&mut self) {
        let graph = self.graph;
        let mutated: Vec<ValueId> = graph.mutations.iter().map(|m| m.input).collect();
        for m in &graph.mutations {
            // A view of an input would change while the copies are being made.
            let is_input = matches!(graph.def(self.base(m.value)).op, Op::Input { .. });
            if is_input && matches!(graph.def(m.value).op, Op::View(_)) {
                self.copy(m.value);
            } else {
                self.store(m.value);
            }
        }
        for &v in &graph.outputs {
            if graph.ty(v).tensor().is_none() {
                continue;
            }
            if matches!(graph.def(v).op, Op::View(_)) && mutated.contains(&self.base(v)) {
                self.copy(v);
            } else {
                self.store(v);
            }
        }
        for node in &graph.nodes {
            if matches!(node.op, Op::Extern(_) | Op::Matmul { .. }) {
                for &v in &node.inputs {
                    self.store(v);
                }
            }
        }
    }

    /// Estimated number of elements of `v`.
    pub fn numel(&self, v: ValueId) -> f64 {
        self.graph.facts.hint(&self.graph.tensor(v).numel()) as f64
    }

    fn uses(&self, v: ValueId, users: &[Vec<NodeId>], out: &mut Vec<Use>) {
        for &n in &users[v.index()] {
            let node = &self.graph.nodes[n.index()];
            match &node.op {
                Op::View(_) if !self.copied[node.outputs[0].index()] => {
                    self.uses(node.outputs[0], users, out);
                }
                Op::Extern(_) | Op::Matmul { .. } => {}
                op => {
                    let visits = match op {
                        Op::Reduce { .. } => self.numel(node.inputs[0]),
                        // Each element of a part is read once.
                        Op::Cat { .. } | Op::Pad { .. } => self.numel(v),
                        Op::Scatter { .. } => self.numel(v),
                        _ => self.numel(node.outputs[0]),
                    };
                    out.push(Use { node: n, visits });
                }
            }
        }
    }

    fn mark_realised(&mut self) {
        let graph = self.graph;
        let users = graph.users();
        let mut ops = vec![0u32; graph.values.len()];
        for node in &graph.nodes {
            let Some(&v) = node.outputs.first() else { continue };
            if self.leaf[v.index()] || graph.ty(v).tensor().is_none() {
                for o in &node.outputs {
                    self.cost[o.index()] = 1;
                    self.realised[o.index()] = self.leaf[o.index()];
                }
                continue;
            }
            let i = v.index();
            let own = match &node.op {
                Op::Pointwise(p) => p.cost(),
                Op::View(_) | Op::Copy | Op::Full(_) | Op::FullSym(_) => 0,
                Op::Index { .. } | Op::Gather { .. } => 6,
                Op::Cat { .. } => 2 * node.inputs.len() as u32,
                Op::Pad { .. } => 3,
                _ => 1,
            };
            let inlined = |x: &&ValueId| !self.realised[x.index()];
            let sum = |f: &dyn Fn(usize) -> u32| {
                node.inputs.iter().filter(inlined).map(|x| f(x.index())).fold(0u32, u32::saturating_add)
            };
            let loads = node.inputs.iter().filter(|x| self.realised[x.index()]).count() as u32;
            self.cost[i] = own.saturating_add(sum(&|x| self.cost[x])).saturating_add(loads);
            ops[i] = u32::from(own > 0).saturating_add(sum(&|x| ops[x]));
            self.realised[i] = match &node.op {
                Op::View(_) => self.copied[i],
                Op::Reduce { .. } | Op::Scan { .. } | Op::Scatter { .. } => true,
                _ if self.stored[i] || ops[i] > MAX_INLINE_OPS => true,
                Op::Cat { .. } if node.inputs.len() > MAX_INLINE_CAT => true,
                // What lies in memory is read through a mask as often as it is needed.
                Op::Pad { .. } if self.realised[self.base(node.inputs[0]).index()] => false,
                Op::Full(_) | Op::FullSym(_) | Op::Iota { .. } => false,
                _ => self.worth_realising(v, &users),
            };
        }
    }

    /// Compares computing `v` again for every use with writing it once and reading it.
    fn worth_realising(&self, v: ValueId, users: &[Vec<NodeId>]) -> bool {
        let mut uses = vec![];
        self.uses(v, users, &mut uses);
        uses.sort_by_key(|u| u.node);
        uses.dedup_by_key(|u| u.node);
        let numel = self.numel(v).max(1.0);
        let visits: f64 = uses.iter().map(|u| u.visits / numel).sum();
        let again = (visits - 1.0) * f64::from(self.cost[v.index()]);
        let memory = 2.0 + visits;
        visits > 1.0 && again > memory
    }
}
