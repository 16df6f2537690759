//! Who shares memory with whom, as far as somebody outside the graph can tell.

use lj_ir::{Graph, Op, ValueId};

/// ATen operators whose results never share memory with their arguments. Any other extern call may
/// return a view, so it keeps its operands as they are.
const FRESH: &[&str] = &[
    "aten._scaled_dot_product",
    "aten._efficient_attention",
    "aten._flash_attention",
    "aten.mm.",
    "aten.bmm.",
    "aten.addmm.",
    "aten.baddbmm.",
    "aten.convolution",
    "aten._embedding_bag",
    "aten.native_",
    "aten._native_batch_norm",
    "aten._batch_norm",
    "aten.max_pool",
    "aten.avg_pool",
    "aten._adaptive_avg_pool",
    "aten.adaptive_max_pool",
    "aten.upsample_",
    "aten.topk.",
    "aten.sort.",
    "aten.cumsum.",
    "aten.cumprod.",
    "aten.scatter",
    "aten.index_put.",
    "aten.nonzero.",
    "aten.max_pool2d_with_indices",
    "aten._softmax",
    "aten._log_softmax",
    "aten._fused_rms_norm",
    "aten.grid_sampler",
    "aten._cdist_",
    "aten._linalg_",
    "aten.nll_loss",
    "aten._thnn_fused",
    "aten.mkldnn_rnn_layer",
    "aten.index_add.",
];

/// Whether a result of the node may share memory with one of its operands.
pub(crate) fn may_alias(op: &Op) -> bool {
    match op {
        Op::View(v) => v.aliases(),
        Op::Extern(c) => c.effect || !FRESH.iter().any(|p| c.target.starts_with(p)),
        _ => false,
    }
}

/// For every value, whether its storage can be seen outside: it is an output or the new contents
/// of an input, or something that may be a view of it is.
pub(crate) fn escapes(g: &Graph) -> Vec<bool> {
    let mut out = vec![false; g.values.len()];
    for v in g.outputs.iter().chain(g.mutations.iter().map(|m| &m.value)) {
        out[v.index()] = true;
    }
    for n in g.nodes.iter().rev() {
        let seen = n.op.has_effect() || n.outputs.iter().any(|v| out[v.index()]);
        if seen && may_alias(&n.op) {
            for v in &n.inputs {
                out[v.index()] = true;
            }
        }
    }
    out
}

/// The value whose storage `v` is a view of, following views only; `v` itself if it is no view.
pub(crate) fn base(g: &Graph, mut v: ValueId) -> ValueId {
    loop {
        match &g.def(v).op {
            Op::View(view) if view.aliases() => v = g.def(v).inputs[0],
            _ => return v,
        }
    }
}
