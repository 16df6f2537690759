//! From the chosen nodes back to a graph, close to the order the input graph had.
//!
//! Layouts are settled here. A value that nothing pins keeps the strides its class had in the input
//! graph; a view's strides follow from its operand's; a pinned base gets exactly the strides it
//! had, by a copy if the chosen node cannot have them or would share memory with something else.

use crate::clean::{describe, same};
use crate::error::Error;
use crate::extract::Choice;
use crate::lang::{ENode, EOp, Fact, Spec};
use crate::load::{Base, Loaded, base_of};
use egg::Id;
use lj_ir::shape::{contiguous_strides, view_strides};
use lj_ir::{Expr, Graph, Mutation, NodeId, Op, TensorType, Type, ValueId, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};

struct Emit<'a> {
    g: &'a Graph,
    l: &'a Loaded,
    choice: &'a Choice,
    out: Graph,
    /// Results of a class's chosen node.
    done: BTreeMap<Id, Vec<ValueId>>,
    /// First node of the input graph that became this e-node.
    original: HashMap<ENode, NodeId>,
    /// First node of the input graph in this class.
    first: BTreeMap<Id, NodeId>,
    /// Strides for a class whose chosen node is free to choose.
    layout: BTreeMap<Id, Vec<Expr>>,
    /// Rebuilt pinned values, by the value they stand for.
    pinned: BTreeMap<ValueId, ValueId>,
    /// The base value that owns a rebuilt value's storage.
    owner: BTreeMap<ValueId, ValueId>,
    /// Copies made for their layout.
    copies: HashMap<(ValueId, TensorType), ValueId>,
    /// Views, so that none is built twice.
    views: HashMap<(View, ValueId, TensorType), ValueId>,
    /// Bases whose storage must stay apart.
    distinct: BTreeSet<ValueId>,
    last_effect: Option<NodeId>,
}

/// Builds the chosen graph.
pub(crate) fn emit(g: &Graph, l: &Loaded, choice: &Choice) -> Result<Graph, Error> {
    let mut e = Emit {
        g,
        l,
        choice,
        out: Graph {
            name: g.name.clone(),
            facts: g.facts.clone(),
            provs: g.provs.clone(),
            ..Graph::default()
        },
        done: BTreeMap::new(),
        original: originals(l).1,
        first: BTreeMap::new(),
        layout: BTreeMap::new(),
        pinned: BTreeMap::new(),
        owner: BTreeMap::new(),
        copies: HashMap::new(),
        views: HashMap::new(),
        distinct: BTreeSet::new(),
        last_effect: None,
    };
    e.prepare();
    let live = e.live()?;
    for (i, n) in g.nodes.iter().enumerate() {
        let class = l.eg.find(l.node_class[i]);
        let first_of_class = e.first.get(&class) == Some(&NodeId(i as u32));
        if live.contains(&class) && (first_of_class || matches!(n.op, Op::Input { .. }) || n.op.has_effect())
        {
            e.need(class, n.prov)?;
        }
        for v in &n.outputs {
            let base_is_live = || {
                let b = g.value(crate::alias::base(g, *v)).def.index();
                live.contains(&l.eg.find(l.node_class[b]))
            };
            if l.pinned.contains(v) && base_is_live() {
                e.pin(*v)?;
            }
        }
    }
    e.finish()
}

/// The e-nodes of the input graph in canonical form, and the first node that became each.
pub(crate) fn originals(l: &Loaded) -> (std::collections::HashSet<ENode>, HashMap<ENode, NodeId>) {
    let mut map = HashMap::new();
    let mut set = std::collections::HashSet::new();
    for (i, n) in l.enode.iter().enumerate() {
        let mut n = n.clone();
        for a in &mut n.args {
            *a = l.eg.find(*a);
        }
        set.insert(n.clone());
        map.entry(n).or_insert(NodeId(i as u32));
    }
    (set, map)
}

impl Emit<'_> {
    /// Finds the first node, the layout and the owners that classes had in the input graph.
    fn prepare(&mut self) {
        let g = self.g;
        for (i, n) in g.nodes.iter().enumerate() {
            let class = self.l.eg.find(self.l.node_class[i]);
            self.first.entry(class).or_insert(NodeId(i as u32));
            if let (Some(t), false) = (n.outputs.first().and_then(|v| g.ty(*v).tensor()), shares(&n.op)) {
                self.layout.entry(class).or_insert_with(|| t.strides.clone());
            }
        }
        // What is seen comes before what is not.
        let mut seen = vec![];
        for &v in g.outputs.iter().chain(g.mutations.iter().map(|m| &m.value)) {
            self.distinct.insert(crate::alias::base(g, v));
            seen.push(v);
        }
        for x in &self.l.externs {
            for &v in x.nodes.iter().flat_map(|n| &g.nodes[n.index()].inputs) {
                seen.push(v);
                if x.distinct {
                    self.distinct.insert(crate::alias::base(g, v));
                }
            }
        }
        let mut demanded = BTreeSet::new();
        for v in seen {
            if let (b, Base::Fresh(t)) = base_of(g, v)
                && let Some(class) = self.l.class[b.index()]
                && demanded.insert(self.l.eg.find(class))
            {
                self.layout.insert(self.l.eg.find(class), t.strides);
            }
        }
    }

    fn chosen(&self, class: Id) -> Result<&ENode, Error> {
        let none = || Error::BadResult(format!("class {class} has no choice"));
        self.choice.node(self.l.eg.find(class)).ok_or_else(none)
    }

    /// The classes that the roots need.
    fn live(&self) -> Result<BTreeSet<Id>, Error> {
        let mut live = BTreeSet::new();
        let mut stack: Vec<Id> = self.l.roots.iter().map(|r| self.l.eg.find(*r)).collect();
        while let Some(c) = stack.pop() {
            if live.insert(c) {
                stack.extend(self.chosen(c)?.args.iter().map(|a| self.l.eg.find(*a)));
            }
        }
        Ok(live)
    }

    /// Builds a class after its operands, without recursion.
    fn need(&mut self, class: Id, prov: u32) -> Result<(), Error> {
        let mut stack = vec![(self.l.eg.find(class), prov)];
        let mut budget = 64 * (self.l.eg.total_size() + 16);
        while let Some(&(c, prov)) = stack.last() {
            budget = budget.checked_sub(1).ok_or_else(|| Error::BadResult("a value needs itself".into()))?;
            if self.done.contains_key(&c) {
                stack.pop();
                continue;
            }
            let node = self.chosen(c)?.clone();
            let prov = match self.original.get(&node).or_else(|| self.first.get(&c)) {
                Some(n) => self.g.nodes[n.index()].prov,
                None => prov,
            };
            let before = stack.len();
            for a in node.args.iter().rev() {
                let a = self.l.eg.find(*a);
                if !self.done.contains_key(&a) {
                    stack.push((a, prov));
                }
            }
            if stack.len() == before {
                let values = self.build(c, &node, prov)?;
                self.done.insert(c, values);
                stack.pop();
            }
        }
        Ok(())
    }

    /// The one value of a built class.
    fn value(&self, class: Id) -> Result<ValueId, Error> {
        let got = self.done.get(&self.l.eg.find(class)).and_then(|v| v.first());
        got.copied().ok_or_else(|| Error::BadResult("an operand was not built".into()))
    }

    fn build(&mut self, class: Id, node: &ENode, prov: u32) -> Result<Vec<ValueId>, Error> {
        let l = self.l;
        let entry = &l.eg.analysis.table[node.key as usize];
        match &entry.op {
            EOp::Input(index) => {
                let v = self.g.inputs.get(*index).copied();
                let v = v.ok_or_else(|| Error::BadResult(format!("no input {index}")))?;
                let ty = self.g.ty(v).clone();
                Ok(self.out.push(Op::Input { index: *index }, vec![], vec![ty], prov))
            }
            EOp::Extern(_) => {
                // The node tells whose operands are meant: calls alike in all but the values of
                // their operands share the operation.
                let made = self.original.get(node).copied();
                self.build_extern(made.ok_or_else(|| Error::BadResult("a call that no node makes".into()))?)
            }
            EOp::Proj(k) => {
                let results = self.done.get(&l.eg.find(node.args[0]));
                let v = results.and_then(|r| r.get(*k as usize)).copied();
                Ok(vec![v.ok_or_else(|| Error::BadResult("a result is missing".into()))?])
            }
            EOp::Part(_) => Err(Error::BadResult("a part of a pattern above autograd".into())),
            EOp::Copy(strides) => {
                let spec = spec(&entry.fact)?;
                let x = self.value(node.args[0])?;
                Ok(vec![self.out.push1(Op::Copy, vec![x], with(spec, strides.clone()), prov)])
            }
            EOp::Op(Op::View(view)) if view.aliases() => {
                let x = self.value(node.args[0])?;
                let spec = spec(&entry.fact)?;
                Ok(vec![self.build_view(node, view, spec, x, prov)?])
            }
            EOp::Op(op) => {
                let inputs: Vec<ValueId> =
                    node.args.iter().map(|a| self.value(*a)).collect::<Result<_, _>>()?;
                let ty = match &entry.fact {
                    Fact::Tensor(s) => {
                        let strides = match self.layout.get(&class) {
                            Some(s) => s.clone(),
                            None => self.like_operand(op, s, &inputs),
                        };
                        Type::Tensor(with(s, strides))
                    }
                    Fact::Other(t) => t.clone(),
                    Fact::Tuple => return Err(Error::BadResult("an operation with several results".into())),
                };
                Ok(self.out.push(op.clone(), inputs, vec![ty], prov))
            }
        }
    }

    /// A layout for a value that the input graph did not have as a tensor of its own: that of an
    /// operand of its shape, so that elements are read in the order they are written in.
    fn like_operand(&self, op: &Op, spec: &Spec, inputs: &[ValueId]) -> Vec<Expr> {
        let facts = &self.g.facts;
        let elementwise = matches!(op, Op::Pointwise(_) | Op::Convert);
        let mut types = inputs.iter().filter_map(|v| self.out.ty(*v).tensor());
        let found = types.find(|t| elementwise && same(&t.shape, &spec.shape, facts) && is_dense(t, facts));
        found.map_or_else(|| contiguous_strides(&spec.shape), |t| t.strides.clone())
    }

    /// A view inside the graph: its strides follow from its operand's.
    fn build_view(
        &mut self,
        node: &ENode,
        view: &View,
        spec: &Spec,
        mut x: ValueId,
        prov: u32,
    ) -> Result<ValueId, Error> {
        let original = self.original.get(node).map(|n| &self.g.nodes[n.index()]);
        let mut from = tensor(&self.out, x)?.clone();
        if let Some(n) = original {
            let (a, b) = (self.g.ty(n.inputs[0]).tensor(), self.g.ty(n.outputs[0]).tensor());
            if let (Some(a), Some(b)) = (a, b)
                && same(&a.strides, &from.strides, &self.g.facts)
            {
                return Ok(self.push_view(view, x, b.clone(), prov));
            }
        }
        let facts = &self.g.facts;
        let strides = if let Some(s) = strides_of(view, &from, &spec.shape, facts) {
            s
        } else {
            // A reshape of something that is not laid out for it.
            from.strides = contiguous_strides(&from.shape);
            x = self.copy(x, from.clone(), prov);
            strides_of(view, &from, &spec.shape, facts).unwrap_or_else(|| contiguous_strides(&spec.shape))
        };
        Ok(self.push_view(view, x, with(spec, strides), prov))
    }

    fn push_view(&mut self, view: &View, x: ValueId, ty: TensorType, prov: u32) -> ValueId {
        let key = (view.clone(), x, ty);
        if let Some(v) = self.views.get(&key) {
            return *v;
        }
        let v = self.out.push1(Op::View(key.0.clone()), vec![x], key.2.clone(), prov);
        self.views.insert(key, v);
        v
    }

    fn copy(&mut self, x: ValueId, ty: TensorType, prov: u32) -> ValueId {
        let key = (x, ty);
        if let Some(v) = self.copies.get(&key) {
            return *v;
        }
        let v = self.out.push1(Op::Copy, vec![x], key.1.clone(), prov);
        self.copies.insert(key, v);
        v
    }

    fn build_extern(&mut self, id: NodeId) -> Result<Vec<ValueId>, Error> {
        let n = &self.g.nodes[id.index()];
        if n.op.has_effect() {
            if self.last_effect.is_some_and(|last| last > id) {
                return Err(Error::BadResult(format!("effects out of order at {}", describe(self.g, n))));
            }
            self.last_effect = Some(id);
        }
        let inputs = n.inputs.iter().map(|v| self.pin(*v)).collect::<Result<_, _>>()?;
        let types = n.outputs.iter().map(|v| self.g.ty(*v).clone()).collect();
        Ok(self.out.push(n.op.clone(), inputs, types, n.prov))
    }

    /// Rebuilds a pinned value of the input graph as it was: base, then view by view.
    fn pin(&mut self, v: ValueId) -> Result<ValueId, Error> {
        let mut chain = vec![];
        let mut at = v;
        let mut built = loop {
            if let Some(done) = self.pinned.get(&at) {
                break *done;
            }
            match &self.g.def(at).op {
                Op::View(w) if w.aliases() => {
                    chain.push(at);
                    at = self.g.def(at).inputs[0];
                }
                _ => {
                    let b = self.pin_base(at)?;
                    self.pinned.insert(at, b);
                    break b;
                }
            }
        };
        for w in chain.into_iter().rev() {
            let n = self.g.def(w);
            if let (Op::View(view), Some(t)) = (&n.op, self.g.ty(w).tensor()) {
                built = self.push_view(view, built, t.clone(), n.prov);
            }
            self.pinned.insert(w, built);
        }
        Ok(built)
    }

    fn pin_base(&mut self, b: ValueId) -> Result<ValueId, Error> {
        let (g, l) = (self.g, self.l);
        let n = g.def(b);
        let (_, base) = base_of(g, b);
        let v = match &base {
            Base::Result(k) => {
                let tuple = l.node_class[g.value(b).def.index()];
                self.need(tuple, n.prov)?;
                let results = self.done.get(&l.eg.find(tuple));
                let v = results.and_then(|r| r.get(*k as usize)).copied();
                v.ok_or_else(|| Error::BadResult("a result is missing".into()))?
            }
            Base::Input(index) => {
                let class = l.eg.find(l.node_class[g.value(b).def.index()]);
                self.need(class, n.prov)?;
                let v = self.value(class)?;
                if self.out.def(v).op != n.op {
                    return Err(Error::BadResult(format!("input {index} was replaced")));
                }
                return Ok(v);
            }
            Base::Fresh(_) => {
                let class =
                    l.class[b.index()].ok_or_else(|| Error::BadResult(format!("{b} has no class")))?;
                self.need(class, n.prov)?;
                self.value(class)?
            }
        };
        let Some(want) = g.ty(b).tensor() else { return Ok(v) };
        let right_layout = same(&tensor(&self.out, v)?.strides, &want.strides, &g.facts);
        if !self.distinct.contains(&b) {
            return Ok(if right_layout { v } else { self.copy(v, want.clone(), n.prov) });
        }
        // Somebody outside can tell whose storage this is: it must be new, and b's alone.
        let fresh = matches!(base, Base::Result(_)) || !shares(&self.out.def(v).op);
        let free = self.owner.get(&v).is_none_or(|o| *o == b);
        if right_layout && fresh && free {
            self.owner.insert(v, b);
            return Ok(v);
        }
        let copy = self.out.push1(Op::Copy, vec![v], want.clone(), n.prov);
        self.owner.insert(copy, b);
        Ok(copy)
    }

    fn finish(mut self) -> Result<Graph, Error> {
        let g = self.g;
        for &v in &g.outputs {
            let new = self.pin(v)?;
            self.out.outputs.push(new);
        }
        for m in &g.mutations {
            let (input, value) = (self.pin(m.input)?, self.pin(m.value)?);
            self.out.mutations.push(Mutation { input, value });
        }
        for &v in &g.inputs {
            let new = self.pin(v)?;
            self.out.inputs.push(new);
        }
        for (old, new) in g.outputs.iter().zip(&self.out.outputs) {
            if g.ty(*old) != self.out.ty(*new) {
                let what = format!("{:?} for {:?}", self.out.ty(*new), g.ty(*old));
                let at = describe(g, g.def(*old));
                return Err(Error::BadResult(format!("an output changed its type at {at}: {what}")));
            }
        }
        Ok(self.out.without_dead_nodes())
    }
}

/// Whether the result of `op` is not a tensor of its own.
fn shares(op: &Op) -> bool {
    match op {
        Op::View(v) => v.aliases(),
        Op::Input { .. } | Op::Extern(_) => true,
        _ => false,
    }
}

/// Whether a tensor fills its storage without gaps or repetition, in whatever order of dims.
fn is_dense(t: &TensorType, facts: &lj_ir::Facts) -> bool {
    let mut left: Vec<usize> = (0..t.shape.len()).filter(|&i| !t.shape[i].is(1)).collect();
    let mut expected = Expr::ONE;
    while !left.is_empty() {
        let Some(at) = left.iter().position(|&i| facts.eq(&t.strides[i], &expected)) else { return false };
        expected = &expected * &t.shape[left.remove(at)];
    }
    true
}

fn spec(fact: &Fact) -> Result<&Spec, Error> {
    match fact {
        Fact::Tensor(s) => Ok(s),
        _ => Err(Error::BadResult("a tensor was expected".into())),
    }
}

fn tensor(g: &Graph, v: ValueId) -> Result<&TensorType, Error> {
    g.ty(v).tensor().ok_or_else(|| Error::BadResult(format!("{v} is no tensor")))
}

fn with(spec: &Spec, strides: Vec<Expr>) -> TensorType {
    TensorType { dtype: spec.dtype, device: spec.device, shape: spec.shape.clone(), strides }
}

/// The strides of a view of `from` with this shape, or `None` if it needs a copy.
fn strides_of(view: &View, from: &TensorType, shape: &[Expr], facts: &lj_ir::Facts) -> Option<Vec<Expr>> {
    let mut s = from.strides.clone();
    match view {
        View::Permute(p) => p.iter().map(|&i| s.get(i).cloned()).collect(),
        View::Reshape => view_strides(&from.shape, &from.strides, shape, facts),
        View::Expand => {
            let extra = shape.len().checked_sub(from.shape.len())?;
            Some(
                (0..shape.len())
                    .map(|i| match i.checked_sub(extra) {
                        Some(j) if facts.eq(&from.shape[j], &shape[i]) => s[j].clone(),
                        _ => Expr::ZERO,
                    })
                    .collect(),
            )
        }
        View::Slice { dim, step, .. } => {
            let d = s.get_mut(*dim)?;
            *d = &*d * &Expr::int(*step);
            Some(s)
        }
        View::Select { dim, .. } => {
            (*dim < s.len()).then(|| s.remove(*dim))?;
            Some(s)
        }
        View::Flip(_) => Some(contiguous_strides(shape)),
        View::Map(coords) if view.aliases() => View::map_strides(coords, &s, shape.len()).map(|(_, s)| s),
        View::Map(_) => Some(contiguous_strides(shape)),
    }
}
