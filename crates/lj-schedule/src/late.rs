//! Sizes that are known only once an ATen call has run: what needs them runs after it.

use lj_ir::{Arg, Expr, Graph, NodeId, Op, Sym, Type, View};
use std::collections::{BTreeMap, BTreeSet};

/// For every value, the nodes whose results give a symbol that the value, or what it is computed
/// from, is made with.
pub fn definers(graph: &Graph) -> Vec<BTreeSet<NodeId>> {
    let mut known: BTreeSet<Sym> = BTreeSet::new();
    for &v in &graph.inputs {
        exprs_of_type(graph.ty(v), &mut |e| known.extend(e.as_sym().cloned()));
    }
    let mut definer: BTreeMap<Sym, NodeId> = BTreeMap::new();
    let mut needs: Vec<BTreeSet<NodeId>> = vec![BTreeSet::new(); graph.values.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        if let Op::Extern(_) = node.op {
            for &v in &node.outputs {
                let sizes = match graph.ty(v) {
                    Type::SymInt(e) => std::slice::from_ref(e),
                    Type::Tensor(t) => &t.shape,
                    Type::Scalar(_) | Type::None => &[],
                };
                for s in sizes.iter().filter_map(Expr::as_sym).filter(|s| !known.contains(s)) {
                    definer.entry(s.clone()).or_insert(id);
                }
            }
        }
        let mut own = BTreeSet::new();
        let mut note = |e: &Expr| own.extend(e.symbols().iter().filter_map(|s| definer.get(s).copied()));
        exprs_of_op(&node.op, &mut note);
        for &v in &node.outputs {
            exprs_of_type(graph.ty(v), &mut note);
        }
        for v in &node.inputs {
            own.extend(needs[v.index()].iter().copied());
        }
        own.remove(&id);
        for v in &node.outputs {
            needs[v.index()].clone_from(&own);
        }
    }
    needs
}

fn exprs_of_type(ty: &Type, f: &mut impl FnMut(&Expr)) {
    match ty {
        Type::Tensor(t) => t.shape.iter().chain(&t.strides).for_each(f),
        Type::SymInt(e) => f(e),
        Type::Scalar(_) | Type::None => {}
    }
}

fn exprs_of_op(op: &Op, f: &mut impl FnMut(&Expr)) {
    match op {
        Op::View(View::Slice { start: e, .. } | View::Select { index: e, .. }) | Op::FullSym(e) => f(e),
        Op::View(View::Map(coords)) => coords.iter().for_each(f),
        Op::Iota { start, step } => [start, step].into_iter().for_each(f),
        Op::Pad { low, high, .. } => low.iter().chain(high).for_each(f),
        Op::Extern(call) => {
            call.args.iter().chain(call.kwargs.iter().map(|(_, a)| a)).for_each(|a| exprs_of_arg(a, f));
        }
        _ => {}
    }
}

fn exprs_of_arg(arg: &Arg, f: &mut impl FnMut(&Expr)) {
    match arg {
        Arg::Int(e) => f(e),
        Arg::List(l) | Arg::Tuple(l) => l.iter().for_each(|a| exprs_of_arg(a, f)),
        _ => {}
    }
}
