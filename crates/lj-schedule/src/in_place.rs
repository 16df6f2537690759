//! Which scatters work in the memory of what they start from, instead of in a copy.

use crate::analysis::Analysis;
use lj_ir::{Op, ValueId};
use std::collections::BTreeMap;

/// Values that share the memory of another, by value.
///
/// A scatter's base that nothing else uses lies where the scatter's result will. If the base of such a
/// chain is a graph input that nothing else uses, and that is overwritten with the chain's result at
/// the end, the chain works in the input and nothing is copied.
pub fn find(a: &Analysis) -> BTreeMap<ValueId, ValueId> {
    let g = a.graph;
    let mut uses = vec![0usize; g.values.len()];
    let inputs = g.nodes.iter().flat_map(|n| &n.inputs);
    for v in inputs.chain(&g.outputs).chain(g.mutations.iter().map(|m| &m.value)) {
        uses[v.index()] += 1;
    }
    let alike = |x: ValueId, y: ValueId| {
        let (x, y) = (g.tensor(x), g.tensor(y));
        let pairs = x.shape.iter().zip(x.strides.iter().zip(&y.strides));
        x.dtype == y.dtype && pairs.into_iter().all(|(n, (s, t))| n.is(1) || g.facts.eq(s, t))
    };
    let mut out = BTreeMap::new();
    for node in &g.nodes {
        let Op::Scatter { .. } = node.op else { continue };
        let (base, v) = (node.inputs[0], node.outputs[0]);
        // Made by one of our kernels: what ATen returns may be somebody else's memory.
        let own = !a.leaf[base.index()] || matches!(g.def(base).op, Op::Matmul { .. });
        if own && a.realised[base.index()] && uses[base.index()] == 1 && alike(base, v) {
            out.insert(base, v);
        }
    }
    for m in &g.mutations {
        let mut v = m.value;
        while matches!(g.def(v).op, Op::Scatter { .. }) && out.get(&g.def(v).inputs[0]) == Some(&v) {
            v = g.def(v).inputs[0];
        }
        let Op::Scatter { .. } = g.def(v).op else { continue };
        // The whole chain lies in the input then.
        let returned = g.outputs.iter().any(|o| a.base(*o) == m.value);
        let alone = uses[m.input.index()] == 1 && !returned;
        let written_once = g.mutations.iter().filter(|o| o.value == m.value).count() == 1;
        if g.def(v).inputs[0] == m.input && alone && written_once && alike(m.input, m.value) {
            out.insert(m.value, m.input);
        }
    }
    out
}
