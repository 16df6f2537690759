//! From a graph to an e-graph.
//!
//! Whatever the outside can see is *pinned*: outputs, new contents of inputs and operands of extern
//! calls. A pinned value is a chain of views down to a base that is no view. The chain is kept as
//! it was, node for node; only the base is looked up in the e-graph. So strides and aliasing of
//! what is seen never change, while the values behind it are free.

use crate::alias;
use crate::clean::describe;
use crate::error::Error;
use crate::lang::{ENode, EOp, Fact, Graphs, Know};
use egg::Id;
use lj_ir::{ExternCall, Graph, Node, NodeId, Op, TensorType, Type, ValueId, View};
use std::collections::{BTreeSet, HashMap};

/// What a pinned value rests on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Base {
    /// The graph input itself.
    Input(usize),
    /// This result of an extern call (whose tuple class is the child).
    Result(u32),
    /// A new tensor with exactly this type.
    Fresh(TensorType),
}

#[derive(PartialEq, Eq, Hash)]
struct ExternKey {
    call: ExternCall,
    operands: Vec<(Vec<(View, TensorType)>, Base)>,
    results: Vec<Type>,
    /// Set for calls that must not be merged.
    unique: Option<u32>,
}

/// Extern calls that differ at most in the values of their operands.
pub(crate) struct Extern {
    /// The nodes of the input graph that make such a call.
    pub nodes: Vec<NodeId>,
    /// Whether its operands' storage must stay apart as it was.
    pub distinct: bool,
}

/// The e-graph and how it hangs together with the graph it was made from.
pub(crate) struct Loaded {
    pub eg: Graphs,
    /// Class of every value; for a result of an extern call the class of the projection.
    pub class: Vec<Option<Id>>,
    /// Class of an extern node's tuple of results, or of a node's only result.
    pub node_class: Vec<Id>,
    /// The e-node each node became.
    pub enode: Vec<ENode>,
    pub externs: Vec<Extern>,
    /// Values that must be rebuilt as they were: every value of a pinned chain.
    pub pinned: BTreeSet<ValueId>,
    /// Classes that must be computed.
    pub roots: Vec<Id>,
    /// Classes of pinned bases that are tensors of their own.
    pub own: Vec<Id>,
}

/// The base of `v` and the class that computes it.
pub(crate) fn base_of(g: &Graph, v: ValueId) -> (ValueId, Base) {
    let b = alias::base(g, v);
    let value = g.value(b);
    let base = match (&g.nodes[value.def.index()].op, &value.ty) {
        (Op::Input { index }, _) => Base::Input(*index),
        (Op::Extern(_), _) | (_, Type::SymInt(_) | Type::Scalar(_) | Type::None) => Base::Result(value.index),
        (_, Type::Tensor(t)) => Base::Fresh(t.clone()),
    };
    (b, base)
}

/// Builds the e-graph of `g`.
pub(crate) fn load(g: &Graph) -> Result<Loaded, Error> {
    let escapes = alias::escapes(g);
    let know = Know { facts: g.facts.clone(), fold: true, ..Know::default() };
    let mut l = Loaded {
        eg: Graphs::new(know),
        class: vec![None; g.values.len()],
        node_class: Vec::with_capacity(g.nodes.len()),
        enode: Vec::with_capacity(g.nodes.len()),
        externs: vec![],
        pinned: BTreeSet::new(),
        roots: vec![],
        own: vec![],
    };
    let mut extern_index: HashMap<ExternKey, usize> = HashMap::new();
    for (i, n) in g.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let bad = |what: &str| Error::BadGraph { node: describe(g, n), what: what.into() };
        let enode = match &n.op {
            Op::Extern(call) => {
                let seen = n.op.has_effect() || n.outputs.iter().any(|v| escapes[v.index()]);
                let unique = seen && alias::may_alias(&n.op);
                let mut args = Vec::with_capacity(n.inputs.len());
                let mut operands = Vec::with_capacity(n.inputs.len());
                for &v in &n.inputs {
                    l.pin(g, v);
                    let (b, base) = base_of(g, v);
                    let class = l.base_class(g, b, &base);
                    args.push(class.ok_or_else(|| bad("an operand is defined after its use"))?);
                    operands.push((views(g, v), base));
                }
                let key = ExternKey {
                    call: call.clone(),
                    operands,
                    results: n.outputs.iter().map(|v| g.ty(*v).clone()).collect(),
                    unique: unique.then_some(id.0),
                };
                let index = *extern_index.entry(key).or_insert_with(|| {
                    l.externs.push(Extern { nodes: vec![], distinct: unique });
                    l.externs.len() - 1
                });
                l.externs[index].nodes.push(id);
                let key = l.eg.analysis.intern(EOp::Extern(index), Fact::Tuple);
                ENode { key, args: args.into() }
            }
            op => {
                let [out] = n.outputs.as_slice() else { return Err(bad("expected one result")) };
                let args: Option<Vec<Id>> = n.inputs.iter().map(|v| l.class[v.index()]).collect();
                let args = args.ok_or_else(|| bad("an operand is defined after its use"))?;
                let eop = match op {
                    Op::Input { index } => EOp::Input(*index),
                    Op::Copy => EOp::Copy(g.ty(*out).tensor().map(|t| t.strides.clone()).unwrap_or_default()),
                    Op::Full(s) => match g.ty(*out).tensor() {
                        Some(t) if t.dtype.in_kernels() => EOp::Op(Op::Full(s.cast(t.dtype))),
                        _ => EOp::Op(op.clone()),
                    },
                    _ => EOp::Op(op.clone()),
                };
                let key = l.eg.analysis.intern(eop, Fact::of(g.ty(*out)));
                ENode { key, args: args.into() }
            }
        };
        let class = l.eg.add(enode.clone());
        if let Op::Extern(_) = &n.op {
            for (k, v) in n.outputs.iter().enumerate() {
                let key = l.eg.analysis.intern(EOp::Proj(k as u32), Fact::of(g.ty(*v)));
                l.class[v.index()] = Some(l.eg.add(ENode { key, args: Box::new([class]) }));
            }
        } else {
            l.class[n.outputs[0].index()] = Some(class);
        }
        l.node_class.push(class);
        l.enode.push(enode);
        if n.op.has_effect() || matches!(n.op, Op::Input { .. }) {
            l.roots.push(class);
        }
    }
    for &v in g.outputs.iter().chain(g.mutations.iter().map(|m| &m.value)) {
        l.pin(g, v);
        let (b, base) = base_of(g, v);
        let root = l.base_class(g, b, &base);
        l.roots.extend(root);
    }
    l.eg.rebuild();
    Ok(l)
}

impl Loaded {
    /// The class that computes a base: for a result of an extern call the whole call's.
    fn base_class(&mut self, g: &Graph, b: ValueId, base: &Base) -> Option<Id> {
        match base {
            Base::Result(_) => Some(*self.node_class.get(g.value(b).def.index())?),
            Base::Input(_) => self.class[b.index()],
            Base::Fresh(_) => {
                self.own.extend(self.class[b.index()]);
                self.class[b.index()]
            }
        }
    }

    fn pin(&mut self, g: &Graph, mut v: ValueId) {
        let base = alias::base(g, v);
        while self.pinned.insert(v) && v != base {
            v = g.def(v).inputs[0];
        }
    }
}

/// The views between `v` and its base, outermost first, with their types.
fn views(g: &Graph, mut v: ValueId) -> Vec<(View, TensorType)> {
    let base = alias::base(g, v);
    let mut out = vec![];
    while v != base {
        let n: &Node = g.def(v);
        if let (Op::View(view), Type::Tensor(t)) = (&n.op, g.ty(v)) {
            out.push((view.clone(), t.clone()));
        }
        v = n.inputs[0];
    }
    out
}
