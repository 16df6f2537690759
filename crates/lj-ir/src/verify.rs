//! The verifier: every stage's output must pass it.
//!
//! What a later stage relies on for memory safety (an operand is as large as the iteration space
//! says) must be provable from [`crate::Facts`]. Where a legal graph may need arithmetic that the
//! facts cannot do (number of elements of a reshape, bounds of slices, sums of paddings) only what
//! is provably wrong is refused.

mod ops;

use crate::graph::{Graph, Node, NodeId, TensorType, Type, ValueId};
use crate::op::Op;
use crate::text;

/// What is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {what}")]
pub struct VerifyError {
    /// The node, as `.lj` text with its provenance; or the graph, where no single node is at fault.
    pub node: String,
    /// What was expected and found.
    pub what: String,
}

/// The check of one thing: `Err` says what was expected and found.
type Check<T = ()> = Result<T, String>;

/// Fails with a formatted message unless a condition holds.
macro_rules! ensure {
    ($cond:expr, $($message:tt)*) => {
        if !$cond {
            return Err(format!($($message)*));
        }
    };
}
use ensure;

impl Graph {
    /// Checks every invariant of the IR. Never panics, whatever the graph.
    pub fn verify(&self) -> Result<(), VerifyError> {
        let whole = |what: String| VerifyError { node: format!("graph {}", self.name), what };
        self.verify_facts().map_err(whole)?;
        self.verify_values().map_err(whole)?;
        for (i, node) in self.nodes.iter().enumerate() {
            let n = NodeId(i as u32);
            let check = self.verify_node(n, node).and_then(|()| ops::check(self, node));
            check.map_err(|what| VerifyError { node: text::node(self, n), what })?;
        }
        self.verify_ends().map_err(whole)
    }

    fn verify_facts(&self) -> Check {
        for (sym, info) in &self.facts.syms {
            ensure!(info.min <= info.max, "the range of {sym} is empty: [{}, {}]", info.min, info.max);
        }
        Ok(())
    }

    /// Every value is the result of exactly one node.
    fn verify_values(&self) -> Check {
        let mut results = 0;
        for (i, node) in self.nodes.iter().enumerate() {
            for (index, &v) in node.outputs.iter().enumerate() {
                let Some(value) = self.values.get(v.index()) else {
                    return Err(format!("n{i} defines {v}, but there are {} values", self.values.len()));
                };
                ensure!(
                    value.def == NodeId(i as u32) && value.index as usize == index,
                    "n{i} defines {v} as result {index}, but {v} is result {} of {}",
                    value.index,
                    value.def
                );
            }
            results += node.outputs.len();
        }
        // Two results cannot be one value, as it has one (node, index); so counting suffices.
        ensure!(
            results == self.values.len(),
            "there are {} values, but the nodes define {results}",
            self.values.len()
        );
        Ok(())
    }

    /// What holds for every node, whatever the operation.
    fn verify_node(&self, n: NodeId, node: &Node) -> Check {
        for &v in &node.inputs {
            let Some(value) = self.values.get(v.index()) else { return Err(format!("{v} does not exist")) };
            ensure!(value.def < n, "{v} is used before it is defined");
        }
        ensure!((node.prov as usize) < self.provs.len(), "provenance {} is not in the table", node.prov);
        for t in node.outputs.iter().filter_map(|&v| self.ty(v).tensor()) {
            ensure!(
                t.shape.len() == t.strides.len(),
                "{} strides for {} extents",
                t.strides.len(),
                t.shape.len()
            );
            for e in &t.shape {
                ensure!(self.facts.range(e).1 >= 0, "the extent {e} is negative");
            }
        }
        if let Op::Input { index } = node.op {
            ensure!(node.inputs.is_empty() && node.outputs.len() == 1, "an input is one value");
            ensure!(
                self.inputs.get(index) == Some(&node.outputs[0]),
                "the graph's input {index} is {}",
                self.inputs.get(index).map_or("missing".to_string(), ToString::to_string)
            );
        }
        Ok(())
    }

    /// Inputs, results and mutations of the graph.
    fn verify_ends(&self) -> Check {
        for (i, v) in self.inputs.iter().enumerate() {
            ensure!(v.index() < self.values.len(), "input {i} is {v}, which does not exist");
            let op = &self.def(*v).op;
            ensure!(
                matches!(op, Op::Input { index } if *index == i),
                "input {i} is {v}, which is not `input {i}`"
            );
        }
        for v in &self.outputs {
            ensure!(v.index() < self.values.len(), "the result {v} does not exist");
        }
        for m in &self.mutations {
            self.verify_mutation(m.input, m.value)
                .map_err(|e| format!("mutate {} <- {}: {e}", m.input, m.value))?;
        }
        Ok(())
    }

    fn verify_mutation(&self, input: ValueId, value: ValueId) -> Check {
        for v in [input, value] {
            ensure!(v.index() < self.values.len(), "{v} does not exist");
        }
        ensure!(matches!(self.def(input).op, Op::Input { .. }), "{input} is not an input of the graph");
        let (Type::Tensor(a), Type::Tensor(b)) = (self.ty(input), self.ty(value)) else {
            return Err("both must be tensors".into());
        };
        same_shape(self, b, &a.shape)
    }
}

/// Whether `t` provably has the shape `shape`.
fn same_shape(graph: &Graph, t: &TensorType, shape: &[crate::Expr]) -> Check {
    let same = t.shape.len() == shape.len() && t.shape.iter().zip(shape).all(|(a, b)| graph.facts.eq(a, b));
    ensure!(same, "expected the shape {shape:?}, found {:?}", t.shape);
    Ok(())
}
