//! The pre-pass: deletes wrappers that are the identity, before the e-graph.
//!
//! An identity wrapper must not reach the e-graph: united with what it wraps it would be a node
//! whose operand is its own class. It is deleted only where nobody outside can tell: the wrapper's
//! storage does not [escape](crate::alias::escapes), or, for a view, it is not itself an output.

use crate::alias;
use lj_ir::{Expr, Facts, Graph, Node, Op, ValueId, View};

/// A copy of the graph without no-op views, no-op conversions and unseen copies, and how many
/// nodes were deleted for that.
pub(crate) fn clean(g: &Graph) -> (Graph, usize) {
    let escapes = alias::escapes(g);
    let mut viewed = vec![false; g.values.len()];
    let mut visible = vec![false; g.values.len()];
    for n in &g.nodes {
        if matches!(n.op, Op::View(_) | Op::Extern(_)) {
            for v in &n.inputs {
                viewed[v.index()] = true;
            }
        }
    }
    for v in g.outputs.iter().chain(g.mutations.iter().map(|m| &m.value)) {
        visible[v.index()] = true;
    }
    let mut map: Vec<ValueId> = (0..g.values.len() as u32).map(ValueId).collect();
    let mut deleted = 0;
    for n in &g.nodes {
        let ([x], [y]) = (n.inputs.as_slice(), n.outputs.as_slice()) else { continue };
        let (Some(a), Some(b)) = (g.ty(*x).tensor(), g.ty(*y).tensor()) else { continue };
        if a.dtype != b.dtype || a.device != b.device || !same(&a.shape, &b.shape, &g.facts) {
            continue;
        }
        let same_layout = same(&a.strides, &b.strides, &g.facts);
        let delete = match &n.op {
            Op::View(v) => is_identity(v) && same_layout && !visible[y.index()],
            Op::Copy | Op::Convert => !escapes[y.index()] && (same_layout || !viewed[y.index()]),
            _ => false,
        };
        if delete {
            map[y.index()] = map[x.index()];
            deleted += 1;
        }
    }
    if deleted == 0 {
        return (g.without_dead_nodes(), 0);
    }
    let mut out = g.clone();
    for n in &mut out.nodes {
        for v in &mut n.inputs {
            *v = map[v.index()];
        }
    }
    (out.without_dead_nodes(), deleted)
}

/// Whether two lists of expressions are provably equal.
pub(crate) fn same(a: &[Expr], b: &[Expr], facts: &Facts) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| facts.eq(x, y))
}

/// Whether a view whose result has its operand's shape is the identity.
fn is_identity(v: &View) -> bool {
    match v {
        View::Permute(p) => p.iter().enumerate().all(|(i, &d)| i == d),
        View::Reshape | View::Expand => true,
        View::Slice { start, step, .. } => start.is(0) && *step == 1,
        View::Select { .. } => false,
        View::Flip(dims) => dims.is_empty(),
        View::Map(coords) => coords.iter().enumerate().all(|(d, e)| *e == View::at(d)),
    }
}

/// Node and source line, for messages.
pub(crate) fn describe(g: &Graph, n: &Node) -> String {
    let prov = g.provs.get(n.prov as usize);
    let fx = prov.map_or("", |p| p.fx.as_str());
    match prov.and_then(|p| p.line.as_ref()) {
        Some(line) => format!("{fx} ({line})"),
        None => fx.to_string(),
    }
}
