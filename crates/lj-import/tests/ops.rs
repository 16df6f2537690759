//! What single operators become, as lists of operations.
#![allow(clippy::cloned_ref_to_slice_refs)]

use lj_import::fx::{FxArg, FxGraph, FxKind, FxMeta, FxNode};
use lj_import::{Imported, import};
use lj_ir::{DType, Device, Expr, Op, ReduceOp, Scalar, Sym, SymInfo, TensorType, Type, View};

fn ty(dtype: DType, shape: &[i64]) -> TensorType {
    TensorType::contiguous(dtype, shape.iter().map(|&e| Expr::int(e)).collect())
}

fn node(name: &str, kind: FxKind, args: Vec<FxArg>, meta: FxMeta) -> FxNode {
    FxNode { name: name.into(), kind, args, kwargs: vec![], meta, line: Some("model.py:7: y = f(x)".into()) }
}

fn call(target: &str) -> FxKind {
    FxKind::Call { target: target.into(), effect: false }
}

/// A graph that calls `target` on its inputs, which `args` names by `Node(position)`.
fn graph(inputs: &[TensorType], target: &str, args: Vec<FxArg>, out: FxMeta) -> FxGraph {
    let mut nodes: Vec<FxNode> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| node(&format!("in{i}"), FxKind::Placeholder, vec![], FxMeta::Tensor(t.clone())))
        .collect();
    let at = nodes.len();
    nodes.push(node("y", call(target), args, out));
    nodes.push(node("output", FxKind::Output, vec![FxArg::List(vec![FxArg::Node(at)])], FxMeta::None));
    FxGraph { name: "test".into(), nodes, syms: vec![] }
}

fn run(inputs: &[TensorType], target: &str, args: Vec<FxArg>, out: TensorType) -> Imported {
    import(&graph(inputs, target, args, FxMeta::Tensor(out))).expect("imports")
}

/// Names of the operations, without inputs.
fn ops(i: &Imported) -> Vec<String> {
    let name = |op: &Op| match op {
        Op::Input { .. } => None,
        Op::Pointwise(p) => Some(p.name().to_string()),
        Op::Full(s) => Some(format!("full {s}")),
        Op::FullSym(e) => Some(format!("fullsym {e}")),
        Op::Reduce { op, dims } => Some(format!("{} {dims:?}", op.name())),
        Op::Convert => Some("convert".into()),
        Op::Copy => Some("copy".into()),
        Op::Extern(c) => Some(format!("{} ({})", c.target, c.reason)),
        other => Some(format!("{other:?}")),
    };
    i.graph.nodes.iter().filter_map(|n| name(&n.op)).collect()
}

use DType::*;
use FxArg::{Float, Int, Node};

#[test]
fn sixteen_bit_floats_compute_in_f32_and_round_once() {
    let x = ty(BF16, &[4, 8]);
    // The factor is not rounded to bf16, the summand is: as in ATen's kernels.
    let got = run(&[x.clone()], "aten.mul.Tensor", vec![Node(0), Float(0.1)], x.clone());
    assert_eq!(ops(&got), ["convert", "full 0.10000000149011612", "mul", "convert"]);
    let got = run(&[x.clone()], "aten.add.Tensor", vec![Node(0), Float(0.1)], x.clone());
    assert_eq!(ops(&got), ["convert", "full 0.10009765625", "add", "convert"]);
    let got = run(&[x], "aten.gt.Scalar", vec![Node(0), Float(0.1)], ty(Bool, &[4, 8]));
    // A comparison is on values of the tensor's dtype.
    assert_eq!(ops(&got), ["convert", "full 0.10009765625", "gt"]);
}

#[test]
fn promotion_is_torch_s() {
    let (i, f) = (ty(I32, &[3]), ty(F32, &[3]));
    let got = run(&[i.clone(), f.clone()], "aten.mul.Tensor", vec![Node(0), Node(1)], f.clone());
    assert_eq!(ops(&got), ["convert", "mul"]);
    let got = run(&[i.clone()], "aten.div.Tensor", vec![Node(0), Int(2)], f.clone());
    assert_eq!(ops(&got), ["convert", "full 2.0", "div"]);
    let got = run(&[i.clone()], "aten.add.Tensor", vec![Node(0), Int(1 << 40)], i);
    assert_eq!(ops(&got), ["full 0", "add"], "numbers wrap to the tensor's dtype");
    let (h, s) = (ty(F16, &[3]), ty(F64, &[]));
    let got = run(&[h.clone(), s], "aten.maximum.default", vec![Node(0), Node(1)], h);
    assert_eq!(ops(&got), ["convert", "convert", "convert", "maximum", "convert"]);
}

#[test]
fn reductions_drop_dims_and_put_them_back() {
    let x = ty(BF16, &[4, 8]);
    let dims = FxArg::List(vec![Int(-1)]);
    let keep = FxArg::Bool(true);
    let got = run(&[x.clone()], "aten.mean.dim", vec![Node(0), dims.clone(), keep], ty(BF16, &[4, 1]));
    assert_eq!(ops(&got), ["convert", "sum [1]", "full 8.0", "div", "convert", "View(Reshape)"]);
    let got = run(&[ty(Bool, &[4, 8])], "aten.sum.default", vec![Node(0)], ty(I64, &[]));
    assert_eq!(ops(&got), ["convert", "sum [0, 1]"]);
    let got = run(
        &[ty(F32, &[0, 8])],
        "aten.amax.default",
        vec![Node(0), FxArg::List(vec![Int(0)])],
        ty(F32, &[8]),
    );
    assert_eq!(ops(&got), ["aten.amax.default (maximum or minimum over a dim that may be empty)"]);
}

#[test]
fn what_kernels_do_not_know_is_aten_s() {
    let c = ty(C64, &[3]);
    let got = run(&[c.clone()], "aten.neg.default", vec![Node(0)], c.clone());
    assert_eq!(ops(&got), ["aten.neg.default (complex dtype)"]);
    let cuda = TensorType { device: Device::Cuda(0), ..ty(F32, &[3]) };
    let got = run(&[cuda.clone()], "aten.neg.default", vec![Node(0)], cuda);
    assert_eq!(ops(&got), ["aten.neg.default (device cuda:0)"]);
    let x = ty(F32, &[3]);
    let got = run(&[x.clone()], "mylib.op.default", vec![Node(0)], x.clone());
    assert_eq!(ops(&got), ["mylib.op.default (an operator from outside of ATen)"]);
    // Views need no arithmetic.
    let got = run(&[c], "aten.unsqueeze.default", vec![Node(0), Int(0)], ty(C64, &[1, 3]));
    assert_eq!(ops(&got), ["View(Reshape)"]);
}

#[test]
fn negative_embedding_indices_raise() {
    let (table, i) = (ty(F32, &[10, 4]), ty(I64, &[2, 3]));
    let got = run(&[table, i], "aten.embedding.default", vec![Node(0), Node(1)], ty(F32, &[2, 3, 4]));
    assert_eq!(
        ops(&got),
        ["full 0", "full 9223372036854775807", "lt", "where", "Index { dims: [0], at: 0 }"]
    );
}

#[test]
fn random_numbers_keep_their_place() {
    let x = ty(F32, &[3]);
    let meta = FxMeta::List(vec![FxMeta::Tensor(x.clone()), FxMeta::Tensor(ty(Bool, &[3]))]);
    let mut g = graph(
        &[x.clone()],
        "aten.native_dropout.default",
        vec![Node(0), Float(0.5), FxArg::Bool(true)],
        meta,
    );
    g.nodes[2].args = vec![FxArg::List(vec![FxArg::None, Node(0), Int(3)])];
    let got = import(&g).expect("imports");
    assert_eq!(
        ops(&got),
        [
            "aten.native_dropout.default (random numbers are drawn by torch's generator)",
            "full false",
            "fullsym 3"
        ]
    );
    assert!(got.graph.nodes.iter().any(|n| n.op.has_effect()));
    let types: Vec<&Type> = got.graph.outputs.iter().map(|v| got.graph.ty(*v)).collect();
    assert_eq!(types, [&Type::None, &Type::Tensor(x), &Type::SymInt(3.into())]);
}

#[test]
fn copies_into_inputs_are_mutations() {
    let x = ty(F32, &[3]);
    let inputs = [x.clone(), ty(F64, &[])];
    let got = run(&inputs, "aten.copy_.default", vec![Node(0), Node(1)], x);
    assert_eq!(ops(&got), ["convert", "View(Expand)"]);
    assert_eq!(got.graph.mutations.len(), 1);
    assert_eq!(got.graph.mutations[0].input, got.graph.inputs[0]);
}

#[test]
fn other_changes_in_place_are_refused() {
    let x = ty(F32, &[3]);
    let e = import(&graph(&[x.clone()], "aten.relu_.default", vec![Node(0)], FxMeta::Tensor(x)))
        .expect_err("refused");
    assert_eq!(
        e.to_string(),
        "cannot import `y` (aten.relu_.default): changes a tensor in place, which only `copy_` into an input may \
         (from model.py:7: y = f(x))"
    );
}

#[test]
fn malformed_graphs_are_errors() {
    let x = ty(F32, &[3]);
    let meta = FxMeta::Tensor(x.clone());
    let mut late = graph(&[x.clone()], "aten.neg.default", vec![Node(5)], meta.clone());
    assert!(import(&late).is_err());
    late.nodes.pop();
    assert!(import(&late).is_err());
    assert!(import(&FxGraph::default()).is_err());
    let missing = graph(&[x.clone()], "aten.add.Tensor", vec![Node(0)], meta);
    assert!(import(&missing).is_err());
    let opaque = graph(&[x], "mylib.op.default", vec![Node(0)], FxMeta::Other("a sparse tensor".into()));
    assert!(import(&opaque).expect_err("refused").what.contains("a sparse tensor"));
}

#[test]
fn symbolic_slices_clamp_only_where_needed() {
    let s = Expr::sym("s0");
    let x = TensorType::contiguous(F32, vec![s.clone(), 4.into()]);
    let out = TensorType { shape: vec![&s - &Expr::int(2), 4.into()], ..x.clone() };
    let args = vec![Node(0), Int(0), Int(2), Int(i64::MAX)];
    let mut g = graph(&[x], "aten.slice.Tensor", args, FxMeta::Tensor(out));
    g.syms = vec![(Sym::new("s0"), SymInfo { min: 2, max: i64::MAX, hint: Some(9) })];
    let got = import(&g).expect("imports");
    let op = &got.graph.nodes[1].op;
    assert_eq!(op, &Op::View(View::Slice { dim: 0, start: 2.into(), step: 1 }));
}

#[test]
fn variance_is_two_passes() {
    let x = ty(F32, &[4, 8]);
    let mut g = graph(
        &[x],
        "aten.var.correction",
        vec![Node(0), FxArg::List(vec![Int(1)])],
        FxMeta::Tensor(ty(F32, &[4])),
    );
    g.nodes[1].kwargs = vec![("correction".into(), Int(1))];
    let got = import(&g).expect("imports");
    assert_eq!(
        ops(&got),
        ["sum [1]", "full 8.0", "div", "View(Reshape)", "sub", "mul", "sum [1]", "full 7.0", "div"]
    );
    assert!(got.graph.nodes.iter().any(|n| n.op == Op::Reduce { op: ReduceOp::Sum, dims: vec![1] }));
    assert!(got.graph.nodes.iter().any(|n| n.op == Op::Full(Scalar::float(7.0))));
}

#[test]
fn scans_accumulate_as_eager_does() {
    let (x, i) = (ty(F32, &[4, 8]), ty(I64, &[4, 8]));
    let got = run(&[x.clone()], "aten.cumsum.default", vec![Node(0), Int(-1)], x.clone());
    assert_eq!(ops(&got), ["convert", "Scan { op: Sum, dim: 1, reverse: false }"]);
    assert_eq!(got.graph.tensor(got.graph.def(got.graph.outputs[0]).inputs[0]).dtype, F64);
    // Integers are converted to the result's dtype and stay in it.
    let small = ty(I8, &[4, 8]);
    let got = run(&[small], "aten.cumprod.default", vec![Node(0), Int(0)], i);
    assert_eq!(ops(&got), ["convert", "Scan { op: Prod, dim: 0, reverse: false }"]);
    // A row's only element is still added to 0.
    let one = ty(F64, &[4, 1]);
    let got = run(&[one.clone()], "aten.cumsum.default", vec![Node(0), Int(1)], one);
    assert_eq!(ops(&got), ["full 0.0", "add"]);
}

#[test]
fn a_fused_product_and_sum_is_one_operation() {
    let x = ty(F32, &[4]);
    let args = vec![Node(0), Node(1), Node(2)];
    let got = run(&[x.clone(), x.clone(), x.clone()], "prims.fma.default", args, x);
    assert_eq!(ops(&got), ["fma"]);
}

/// A truth value read from a tensor is the symbol that sizes are made of, and a truth value to
/// Python; arithmetic takes it from where it lies.
#[test]
fn truth_values_read_from_a_tensor() {
    let (flag, x) = (ty(Bool, &[]), ty(F32, &[4]));
    let mut g =
        graph(&[flag], "aten._local_scalar_dense.default", vec![Node(0)], FxMeta::Truth(Sym::new("u0")));
    g.syms = vec![(Sym::new("u0"), SymInfo { min: 0, max: 1, hint: None })];
    let output = g.nodes.pop().expect("an output");
    let size = TensorType::contiguous(F32, vec![Expr::sym("u0") + Expr::int(2)]);
    g.nodes.push(node("s", call("sym.add"), vec![Node(1), Int(2)], FxMeta::SymInt(size.shape[0].clone())));
    g.nodes.push(node(
        "z",
        call("aten.zeros.default"),
        vec![FxArg::List(vec![Node(2)])],
        FxMeta::Tensor(size),
    ));
    g.nodes.push(node(
        "x",
        call("aten.ones.default"),
        vec![FxArg::List(vec![Int(4)])],
        FxMeta::Tensor(x.clone()),
    ));
    g.nodes.push(node("m", call("aten.mul.Tensor"), vec![Node(4), Node(1)], FxMeta::Tensor(x)));
    g.nodes.push(FxNode { args: vec![FxArg::List(vec![Node(1), Node(3), Node(5)])], ..output });
    let got = import(&g).expect("imports");
    let read = "aten._local_scalar_dense.default (reads a value into Python)";
    assert_eq!(ops(&got), ["convert", read, read, "full 0.0", "full 1.0", "convert", "mul"]);
    let types: Vec<_> = got.graph.nodes.iter().filter(|n| matches!(n.op, Op::Extern(_))).collect();
    assert_eq!(*got.graph.ty(types[0].outputs[0]), Type::SymInt(Expr::sym("u0")));
    assert_eq!(*got.graph.ty(types[1].outputs[0]), Type::Scalar(Bool));
}

/// A number that is computed when the graph runs: our kernels take it from memory, ATen as a number.
#[test]
fn numbers_known_only_at_run_time() {
    let x = ty(F32, &[4]);
    let mut g = graph(&[x.clone()], "aten._local_scalar_dense.default", vec![Node(0)], FxMeta::SymFloat);
    let output = g.nodes.pop().expect("an output");
    g.nodes[0].meta = FxMeta::Tensor(ty(F32, &[]));
    g.nodes.insert(1, node("y", FxKind::Placeholder, vec![], FxMeta::Tensor(x.clone())));
    g.nodes[2].args = vec![Node(0)];
    g.nodes.push(node("n", call("sym.neg"), vec![Node(2)], FxMeta::SymFloat));
    let mut add = node("a", call("aten.add.Tensor"), vec![Node(1), Node(1)], FxMeta::Tensor(x.clone()));
    add.kwargs = vec![("alpha".into(), Node(3))];
    g.nodes.push(add);
    g.nodes.push(node("f", call("lib.op.default"), vec![Node(4), Node(3)], FxMeta::Tensor(x)));
    g.nodes.push(FxNode { args: vec![FxArg::List(vec![Node(5)])], ..output });
    let got = import(&g).expect("imports");
    assert_eq!(
        ops(&got),
        [
            "convert",
            "neg",
            "convert",
            "fma",
            "aten._local_scalar_dense.default (reads a value into Python)",
            "lib.op.default (an operator from outside of ATen)"
        ]
    );
}

/// Tracing has found that two extents are equal which nothing proves: a copy takes them as equal.
#[test]
fn copies_between_extents_that_a_guard_equates() {
    let n = Expr::sym("s0");
    let half = |e: &Expr| e.floordiv(&Expr::int(2));
    let low = TensorType::contiguous(F32, vec![half(&n)]);
    let high = TensorType::contiguous(F32, vec![half(&(&n + &Expr::ONE))]);
    let args = vec![Node(0), Node(1)];
    let mut g = graph(&[high.clone(), low], "aten.copy.default", args, FxMeta::Tensor(high));
    g.syms = vec![(Sym::new("s0"), SymInfo { min: 2, max: 1 << 40, hint: Some(8) })];
    assert_eq!(ops(&import(&g).expect("imports")), ["View(Reshape)", "copy"]);
}
