//! The graph itself.

use crate::dtype::{DType, Device};
use crate::expr::Expr;
use crate::facts::Facts;
use crate::op::Op;
use crate::shape::contiguous_strides;
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl $name {
            /// As an index.
            pub fn index(self) -> usize { self.0 as usize }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}
id!(
    /// A value of a graph.
    ValueId, "%"
);
id!(
    /// A node of a graph.
    NodeId, "n"
);

/// Type of a tensor: dtype, device, extents and strides (in elements).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Where it lives.
    pub device: Device,
    /// Extents.
    pub shape: Vec<Expr>,
    /// Strides in elements: the layout it is given when it is materialised.
    pub strides: Vec<Expr>,
}

impl TensorType {
    /// A contiguous tensor on the CPU.
    pub fn contiguous(dtype: DType, shape: Vec<Expr>) -> TensorType {
        let strides = contiguous_strides(&shape);
        TensorType { dtype, device: Device::Cpu, shape, strides }
    }
    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
    /// Number of elements.
    pub fn numel(&self) -> Expr {
        Expr::product(&self.shape)
    }
}

/// Type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// A Python integer whose value is this expression.
    SymInt(Expr),
    /// A Python scalar (float or bool) known only at run time, such as `.item()` of a tensor.
    Scalar(DType),
    /// `None` (an absent result or output).
    None,
}

impl Type {
    /// The tensor type, if it is a tensor.
    pub fn tensor(&self) -> Option<&TensorType> {
        if let Type::Tensor(t) = self { Some(t) } else { None }
    }
}

/// A value: result `index` of node `def`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// The node that defines it.
    pub def: NodeId,
    /// Which result of that node.
    pub index: u32,
}

/// Where a node comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prov {
    /// Name of the FX node.
    pub fx: String,
    /// The user's source line, as `file:line: text`, if known.
    pub line: Option<String>,
}

/// One operation with its operands and results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Results; one except for [`Op::Extern`].
    pub outputs: Vec<ValueId>,
    /// Where it comes from; an index into [`Graph::provs`].
    pub prov: u32,
}

/// At the end of the graph, `value` is copied into the graph input `input`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutation {
    /// The input that changes.
    pub input: ValueId,
    /// Its new contents (same shape; converted if the dtype differs).
    pub value: ValueId,
}

/// A functional SSA graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    /// For people: `forward`, `backward`, `inference`.
    pub name: String,
    /// What is known of the symbols.
    pub facts: Facts,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// All values.
    pub values: Vec<Value>,
    /// The values of the [`Op::Input`] nodes, by position.
    pub inputs: Vec<ValueId>,
    /// Results, in order; the same value may stand twice.
    pub outputs: Vec<ValueId>,
    /// Copies into inputs at the end, in order.
    pub mutations: Vec<Mutation>,
    /// Provenance table; entry 0 is "unknown".
    pub provs: Vec<Prov>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: &str) -> Graph {
        Graph { name: name.into(), provs: vec![Prov::default()], ..Graph::default() }
    }

    /// Adds a node with one result per type and returns its results.
    pub fn push(&mut self, op: Op, inputs: Vec<ValueId>, types: Vec<Type>, prov: u32) -> Vec<ValueId> {
        let def = NodeId(self.nodes.len() as u32);
        let first = self.values.len() as u32;
        let outputs: Vec<ValueId> = (0..types.len() as u32).map(|i| ValueId(first + i)).collect();
        for (index, ty) in types.into_iter().enumerate() {
            self.values.push(Value { ty, def, index: index as u32 });
        }
        self.nodes.push(Node { op, inputs, outputs: outputs.clone(), prov });
        outputs
    }

    /// Adds a node with one tensor result.
    pub fn push1(&mut self, op: Op, inputs: Vec<ValueId>, ty: TensorType, prov: u32) -> ValueId {
        self.push(op, inputs, vec![Type::Tensor(ty)], prov)[0]
    }

    /// Adds a graph input.
    pub fn push_input(&mut self, ty: Type, prov: u32) -> ValueId {
        let index = self.inputs.len();
        let v = self.push(Op::Input { index }, vec![], vec![ty], prov)[0];
        self.inputs.push(v);
        v
    }

    /// The value.
    pub fn value(&self, v: ValueId) -> &Value {
        &self.values[v.index()]
    }

    /// The type of a value.
    pub fn ty(&self, v: ValueId) -> &Type {
        &self.values[v.index()].ty
    }

    /// The tensor type of a value.
    ///
    /// # Panics
    /// If the value is not a tensor.
    pub fn tensor(&self, v: ValueId) -> &TensorType {
        self.ty(v).tensor().unwrap_or_else(|| panic!("{v} is not a tensor"))
    }

    /// The node that defines a value.
    pub fn def(&self, v: ValueId) -> &Node {
        &self.nodes[self.values[v.index()].def.index()]
    }

    /// For every value, the nodes that read it (with repetition), in order.
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users = vec![vec![]; self.values.len()];
        for (i, n) in self.nodes.iter().enumerate() {
            for v in &n.inputs {
                users[v.index()].push(NodeId(i as u32));
            }
        }
        users
    }

    /// The provenance of a node.
    pub fn prov(&self, n: NodeId) -> &Prov {
        &self.provs[self.nodes[n.index()].prov as usize]
    }

    /// A copy without nodes whose results nothing needs. Inputs and effects stay; ids change.
    #[must_use]
    pub fn without_dead_nodes(&self) -> Graph {
        let mut live = vec![false; self.nodes.len()];
        let mut stack: Vec<NodeId> = vec![];
        let roots = self.outputs.iter().chain(self.mutations.iter().flat_map(|m| [&m.input, &m.value]));
        stack.extend(roots.map(|v| self.value(*v).def));
        for (i, n) in self.nodes.iter().enumerate() {
            if n.op.has_effect() || matches!(n.op, Op::Input { .. }) {
                stack.push(NodeId(i as u32));
            }
        }
        while let Some(n) = stack.pop() {
            if !std::mem::replace(&mut live[n.index()], true) {
                stack.extend(self.nodes[n.index()].inputs.iter().map(|v| self.value(*v).def));
            }
        }
        let mut out = Graph {
            name: self.name.clone(),
            facts: self.facts.clone(),
            provs: self.provs.clone(),
            ..Graph::default()
        };
        let mut map = vec![ValueId(u32::MAX); self.values.len()];
        for (n, _) in self.nodes.iter().zip(&live).filter(|(_, l)| **l) {
            let inputs = n.inputs.iter().map(|v| map[v.index()]).collect();
            let types = n.outputs.iter().map(|v| self.ty(*v).clone()).collect();
            let new = out.push(n.op.clone(), inputs, types, n.prov);
            for (a, b) in n.outputs.iter().zip(new) {
                map[a.index()] = b;
            }
        }
        out.inputs = self.inputs.iter().map(|v| map[v.index()]).collect();
        out.outputs = self.outputs.iter().map(|v| map[v.index()]).collect();
        out.mutations = self
            .mutations
            .iter()
            .map(|m| Mutation { input: map[m.input.index()], value: map[m.value.index()] })
            .collect();
        out
    }
}
