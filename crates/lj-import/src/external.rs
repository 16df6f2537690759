//! Calls that ATen runs, and why.

use crate::Error;
use crate::cx::{Cx, Stop, Val};
use crate::fx::{FxArg, FxKind, FxMeta};
use lj_ir::{Arg, DType, ExternCall, Op, Type, ValueId};

/// Reasons by what the operator's name contains; the first match counts.
const REASONS: &[(&[&str], &str)] = &[
    (&["convolution", "conv_"], CONVOLUTION),
    (&["attention"], ATTENTION),
    (
        &[
            "dropout",
            "rand",
            "bernoulli",
            "normal_functional",
            "multinomial",
            "uniform",
            "exponential",
            "poisson",
            "rrelu",
            "log_normal",
            "geometric",
            "cauchy",
        ],
        RANDOM,
    ),
    (&["aten.normal.", "aten.normal_"], RANDOM),
    (
        &[
            "aten.mm",
            "aten.bmm",
            "aten.mv",
            "aten.dot",
            "aten.vdot",
            "aten.addr.",
            "addmm",
            "addmv",
            "_scaled_mm",
        ],
        MATMUL,
    ),
    (&["lstm", "gru", "rnn_"], "recurrent cells are ATen's"),
    (&["sort", "topk", "kthvalue", "median", "mode.", "msort", "searchsorted", "bucketize"], "sorting"),
    (&["unique", "nonzero", "masked_select"], "the result's size depends on data"),
    (&["scatter", "index_put", ".put"], "a scatter without a lowering"),
    (&["pool"], "pooling is ATen's"),
    (&["upsample", "grid_sampler", "im2col", "col2im"], "interpolation is ATen's"),
    (&["linalg", "cholesky", "triangular", "_svd", "ormqr", "geqrf", "lu_"], "linear algebra is ATen's"),
    (&["fft"], "Fourier transforms are ATen's"),
    (&["embedding_bag"], "embedding bags are ATen's"),
    (&["as_strided"], "strides spelt out by the user"),
    (&["_local_scalar_dense", "item"], "reads a value into Python"),
    (&["higher_order."], "a higher-order operator"),
    (&["c10d", "_c10d_functional", "collective"], "communication"),
];

const CONVOLUTION: &str = "convolution is ATen's";
const ATTENTION: &str = "attention kernel is ATen's";
const MATMUL: &str = "matrix multiplication is ATen's";
const RANDOM: &str = "random numbers are drawn by torch's generator";
const UNKNOWN: &str = "no lowering for this operator yet";

/// Whether `target` is one of those that a library's kernel serves wherever they run.
pub(crate) fn is_library(target: &str) -> bool {
    [CONVOLUTION, ATTENTION, MATMUL].contains(&reason(target))
}

/// Why an operator without a row in the table is ATen's.
pub(crate) fn reason(target: &str) -> &'static str {
    if !["aten.", "prims.", "rngprims.", "higher_order.", "_c10d_functional."]
        .iter()
        .any(|p| target.starts_with(p))
    {
        return "an operator from outside of ATen";
    }
    let hit = REASONS.iter().find(|(names, _)| names.iter().any(|n| target.contains(n)));
    hit.map_or(UNKNOWN, |(_, reason)| reason)
}

/// View operators whose results would share memory with the plan's buffers: their copying twins.
const COPIES: &[(&str, &str)] = &[
    ("aten.as_strided.default", "aten.as_strided_copy.default"),
    ("aten.diagonal.default", "aten.diagonal_copy.default"),
    ("aten.unfold.default", "aten.unfold_copy.default"),
    ("aten.view.dtype", "aten.view_copy.dtype"),
    ("aten.view_as_real.default", "aten.view_as_real_copy.default"),
    ("aten.view_as_complex.default", "aten.view_as_complex_copy.default"),
    ("aten._conj.default", "aten._conj_copy.default"),
    ("aten._neg_view.default", "aten._neg_view_copy.default"),
    ("aten.slice.Tensor", "aten.slice_copy.Tensor"),
    ("aten.select.int", "aten.select_copy.int"),
];

/// Adds a call of ATen for the current node.
pub(crate) fn call(cx: &mut Cx<'_>, target: &str, reason: &str, effect: bool) -> Result<Val, Error> {
    if target == "aten.copy_.default" {
        return crate::run::copy_into(cx);
    }
    let name = target.split('.').nth(1).unwrap_or_default();
    if target.starts_with("aten.") && name.ends_with('_') && !name.ends_with("__") {
        return Err(cx.error("changes a tensor in place, which only `copy_` into an input may"));
    }
    let mut inputs = vec![];
    let node = cx.node;
    let args: Vec<Arg> = node.args.iter().map(|a| arg(cx, a, &mut inputs)).collect::<Result<_, _>>()?;
    let kwargs = node
        .kwargs
        .iter()
        .map(|(k, a)| Ok((k.clone(), arg(cx, a, &mut inputs)?)))
        .collect::<Result<_, Error>>()?;
    if name == "as_strided"
        && let Some(x) = inputs.first_mut()
        && matches!(cx.graph.def(*x).op, Op::View(_))
    {
        // It reads its operand's storage. What is a new tensor in eager may be a view here.
        let ty = cx.ty(*x).clone();
        *x = cx.graph.push1(Op::Copy, vec![*x], ty, cx.prov);
    }
    let copying = COPIES.iter().find(|(view, _)| *view == target).map(|(_, copy)| *copy);
    // A view of an input that nothing writes to may be one: AOTAutograd reads its offset. Not one
    // that only sets a bit, which memory does not show.
    let lazy = ["_conj", "_neg_view"].contains(&name);
    let copying = copying.filter(|_| lazy || !inputs.first().is_some_and(|v| constant_input(cx, *v)));
    let target = copying.unwrap_or(target);
    let call = ExternCall {
        target: target.into(),
        args,
        kwargs,
        reason: reason.into(),
        effect: effect || reason == RANDOM,
    };
    let mut types = vec![];
    result_types(cx, &node.meta, &mut types)?;
    if copying.is_some() {
        types.iter_mut().for_each(dense);
    }
    let types = if types.is_empty() { vec![Type::None] } else { types };
    let values = cx.graph.push(Op::Extern(call), inputs, types, cx.prov);
    let mut values = values.into_iter();
    Ok(result(&node.meta, &mut values))
}

/// Whether `v` lies in the memory of a graph input that no `copy_` changes.
fn constant_input(cx: &Cx<'_>, mut v: ValueId) -> bool {
    while let Op::View(_) = cx.graph.def(v).op {
        v = cx.graph.def(v).inputs[0];
    }
    let written = |n: &crate::fx::FxNode| {
        let copies = matches!(&n.kind, FxKind::Call { target, .. } if target == "aten.copy_.default");
        match n.args.first() {
            Some(FxArg::Node(at)) if copies => {
                matches!(cx.vals.get(*at), Some(Val::Tensor(input)) if *input == v)
            }
            _ => false,
        }
    };
    matches!(cx.graph.def(v).op, Op::Input { .. }) && !cx.fx.nodes.iter().any(written)
}

/// A copy of an expanded tensor does not overlap itself.
fn dense(ty: &mut Type) {
    if let Type::Tensor(t) = ty
        && t.shape.iter().zip(&t.strides).any(|(n, s)| s.is(0) && !n.is(1))
    {
        t.strides = lj_ir::shape::contiguous_strides(&t.shape);
    }
}

fn arg(cx: &mut Cx<'_>, a: &FxArg, inputs: &mut Vec<ValueId>) -> Result<Arg, Error> {
    Ok(match a {
        FxArg::Node(n) => match cx.val(*n).cloned() {
            Ok(val) => value(cx, &val, inputs),
            Err(Stop::Fail(e)) => return Err(e),
            Err(Stop::Decline(why)) => return Err(cx.error(why)),
        },
        FxArg::None => Arg::None,
        FxArg::Bool(b) => Arg::Bool(*b),
        FxArg::Int(i) => Arg::Int((*i).into()),
        FxArg::Float(f) => Arg::Float(f.to_bits()),
        FxArg::Str(s) => Arg::Str(s.clone()),
        FxArg::DType(d) => Arg::DType(*d),
        FxArg::Device(d) => Arg::Device(*d),
        FxArg::Layout(l) => Arg::Layout(l.clone()),
        FxArg::MemoryFormat(m) => Arg::MemoryFormat(m.clone()),
        FxArg::List(l) => Arg::List(l.iter().map(|a| arg(cx, a, inputs)).collect::<Result<_, _>>()?),
        FxArg::Tuple(l) => Arg::Tuple(l.iter().map(|a| arg(cx, a, inputs)).collect::<Result<_, _>>()?),
        FxArg::Object(i) => Arg::Object(*i),
    })
}

fn value(cx: &mut Cx<'_>, val: &Val, inputs: &mut Vec<ValueId>) -> Arg {
    match val {
        // ATen wants the number itself.
        Val::Number(v) => {
            let ty = Type::Scalar(cx.dtype(*v));
            let number = Val::Scalar(crate::run::read(cx, *v, ty, false));
            value(cx, &number, inputs)
        }
        Val::Tensor(v) | Val::Scalar(v) => {
            let at = inputs.iter().position(|i| i == v).unwrap_or(inputs.len());
            if at == inputs.len() {
                inputs.push(*v);
            }
            Arg::Input(at)
        }
        Val::Int(e) => Arg::Int(e.clone()),
        Val::List(l) => Arg::List(l.iter().map(|v| value(cx, v, inputs)).collect()),
        Val::None => Arg::None,
    }
}

/// The types of the results, lists flattened.
fn result_types(cx: &Cx<'_>, meta: &FxMeta, out: &mut Vec<Type>) -> Result<(), Error> {
    out.push(match meta {
        FxMeta::Tensor(t) => Type::Tensor(t.clone()),
        FxMeta::SymInt(e) => Type::SymInt(e.clone()),
        FxMeta::SymFloat => Type::Scalar(DType::F64),
        FxMeta::SymBool | FxMeta::Truth(_) => Type::Scalar(DType::Bool),
        FxMeta::None => Type::None,
        FxMeta::List(l) => return l.iter().try_for_each(|m| result_types(cx, m, out)),
        FxMeta::Other(what) => return Err(cx.error(format!("gives {what}, which the IR has no type for"))),
    });
    Ok(())
}

/// The results in the structure of the metadata.
fn result(meta: &FxMeta, values: &mut impl Iterator<Item = ValueId>) -> Val {
    match meta {
        FxMeta::List(l) => Val::List(l.iter().map(|m| result(m, values)).collect()),
        FxMeta::SymInt(e) => {
            values.next();
            Val::Int(e.clone())
        }
        FxMeta::None | FxMeta::Other(_) => {
            values.next();
            Val::None
        }
        FxMeta::Tensor(_) => values.next().map_or(Val::None, Val::Tensor),
        FxMeta::SymFloat | FxMeta::SymBool | FxMeta::Truth(_) => values.next().map_or(Val::None, Val::Scalar),
    }
}
