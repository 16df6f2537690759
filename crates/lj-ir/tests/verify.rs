//! What the verifier refuses, as a table.

use lj_ir::text::parse;
use lj_ir::{Graph, Mutation, NodeId, ValueId};

/// Inputs every case can use.
const INPUTS: &str = "
  %0 = input 0 : f32[s0, 8]
  %1 = input 1 : i64[s0]
  %2 = input 2 : bf16[8]
  %3 = input 3 : bool[8]
  %4 = input 4 : f32[8, 4]
  %5 = input 5 : sym(s0)
  %6 = input 6 : f32[3, s0, 8]
  %7 = input 7 : f32[]
  %8 = input 8 : c64[8]
  %9 = input 9 : f32[8]@cuda:0
";

fn graph(rest: &str) -> Graph {
    let end = if rest.contains("return") { "" } else { "\n return" };
    parse(&format!("graph g (s0: [2, inf], s1: [2, inf], z: [0, 4]) {{{INPUTS}{rest}{end}\n}}")).expect(rest)
}

#[test]
fn legal_nodes_are_accepted() {
    for node in [
        "%10 = pw.add %0, %7 : f32[s0, 8]",
        "%10 = pw.add %0, %6 : f32[3, s0, 8]",
        "%10 = pw.where %3, %2, %2 : bf16[8]",
        "%10 = pw.lt %0, %0 : bool[s0, 8]",
        "%10 = pw.add %9, %7 : f32[8]@cuda:0",
        "%10 = convert %2 : f32[8]",
        "%10 = reduce.sum dims=[0, 2] %6 : f32[s0]",
        "%10 = reduce.argmax dims=[1] %0 : i64[s0]",
        "%10 = reduce.any dims=[0] %3 : bool[]",
        "%10 = reduce.sum dims=[] %7 : f32[]",
        "%10 = scan.sum dim=1 %0 : bf16[s0, 8]",
        "%10 = scan.max reverse dim=0 %1 : i64[s0]",
        "%10 = scan.logsumexp dim=0 %0 : f32[s0, 8]",
        "%10 = view.permute [2, 0, 1] %6 : f32[8, 3, s0]{1, 8*s0, 8}",
        "%10 = view.reshape %0 : f32[2, 4*s0]",
        "%10 = view.reshape %0 : f32[s1, 4]",
        "%10 = view.reshape %8 : c64[2, 4]",
        "%10 = view.expand %7 : f32[s0, 2]{0, 0}",
        "%10 = view.expand %2 : bf16[s0, 8]{0, 1}",
        "%10 = view.slice dim=0 start=0 step=2 %0 : f32[floordiv(s0 + 1, 2), 8]{16, 1}",
        "%10 = view.slice dim=1 start=1 step=2 %0 : f32[s0, 4]{8, 2}",
        "%10 = view.slice dim=1 start=8 step=1 %0 : f32[s0, 0]{8, 1}",
        "%10 = view.select dim=0 index=s0 - 1 %0 : f32[8]",
        "%10 = view.flip [1, 0] %0 : f32[s0, 8]",
        "%10 = full 1 : bf16[3]",
        "%10 = fullsym s0*s1 : f32[]",
        "%10 = full 0 : none\n return %10",
        "%10 = fullsym s0 + 1 : sym(s0 + 1)",
        "%10 = iota start=0 step=-1 : i64[s0]",
        "%10 = index dims=[0] at=0 %4, %1 : f32[s0, 4]",
        "%10 = index dims=[0, 2] at=1 %6, %1, %1 : f32[s0, s0]",
        "%11 = view.reshape %1 : i64[s0, 1]\n %10 = gather dim=1 %0, %11 : f32[s0, 1]",
        "%11 = view.reshape %1 : i64[s0, 1]\n %10 = scatter.add dims=[0] rest=[1] error=\"\" %0, %0, %11 : f32[s0, 8]",
        "%11 = full 0 : i64[]\n %10 = scatter.set dims=[1] rest=[0] wrap error=\"\" %0, %0, %11 : f32[s0, 8]",
        "%10 = cat dim=0 %0, %0 : f32[2*s0, 8]",
        "%10 = pad low=[1, 0] high=[0, -2] value=0.0 %0 : f32[s0 + 1, 6]",
        "%10 = matmul %0, %4 : f32[s0, 4]",
        "%10 = matmul bias %0, %4, %7 : f32[s0, 4]",
        "%11 = view.permute [0, 2, 1] %6 : f32[3, 8, s0]\n %10 = matmul %6, %11 : f32[3, s0, s0]",
        "%10 = extern \"aten.f\"(%0, [%5], k=%0) reason=\"\" : sym(u0)",
        "extern \"aten.f\"() reason=\"\" effect : ()",
        "%10 = copy %0 : f32[s0, 8]\n return %10, %10, %0\n mutate %0 <- %10",
    ] {
        assert_eq!(graph(node).verify(), Ok(()));
    }
}

#[test]
fn illegal_nodes_are_refused() {
    for (node, message) in [
        // Arity and kinds.
        ("%10 = pw.add %0 : f32[s0, 8]", "expected 2 operands, found 1"),
        ("%10 = pw.add %0, %5 : f32[s0, 8]", "every operand must be a tensor"),
        ("%10, %11 = pw.neg %0 : (f32[s0, 8], f32[s0, 8])", "expected one result, found 2"),
        ("%10 = pw.neg %0 : sym(s0)", "the result must be a tensor"),
        ("%10 = full 1 %0 : f32[]", "expected 0 operands, found 1"),
        ("%10 = matmul %0, %4, %7 : f32[s0, 4]", "expected 2 operands, found 3"),
        ("%10 = cat dim=0 : f32[]", "nothing to concatenate"),
        ("%10 = extern \"f\"($1) operands=[%0] reason=\"\" : none", "an argument is operand 1 of 1"),
        ("%10 = extern \"f\"([$0, [$2]]) operands=[%0] reason=\"\" : none", "an argument is operand 2 of 1"),
        // Dtypes.
        ("%10 = pw.add %0, %1 : f32[s0, 8]", "expected the dtype f32 of operand 1, found i64"),
        ("%10 = pw.add %0, %0 : f64[s0, 8]", "expected the result dtype f32, found f64"),
        ("%10 = pw.eq %0, %0 : f32[s0, 8]", "expected the result dtype bool, found f32"),
        ("%10 = pw.add %2, %2 : bf16[8]", "`add` does not exist for bf16"),
        ("%10 = pw.exp %1 : i64[s0]", "`exp` does not exist for i64"),
        ("%10 = pw.neg %8 : c64[8]", "kernels cannot compute on c64"),
        ("%10 = pw.where %2, %2, %2 : bf16[8]", "expected the dtype bool of operand 0, found bf16"),
        ("%10 = pw.where %3, %2, %4 : bf16[8]", "expected the dtype bf16 of operand 2, found f32"),
        ("%10 = convert %8 : f32[8]", "kernels cannot compute on c64"),
        ("%10 = copy %0 : f64[s0, 8]", "expected the result dtype f32, found f64"),
        ("%10 = reduce.sum dims=[0] %2 : bf16[]", "`sum` does not exist for bf16"),
        ("%10 = reduce.amax dims=[0] %2 : bf16[]", "`amax` does not exist for bf16"),
        ("%10 = reduce.sum dims=[0] %3 : bool[]", "`sum` does not exist for bool"),
        ("%10 = reduce.any dims=[0] %1 : bool[]", "`any` does not exist for i64"),
        ("%10 = reduce.argmin dims=[0] %1 : i32[]", "expected the result dtype i64, found i32"),
        ("%10 = reduce.sum dims=[0] %1 : f32[]", "expected the result dtype i64, found f32"),
        ("%10 = view.reshape %0 : i32[s0, 8]", "expected the result dtype f32, found i32"),
        ("%10 = iota start=0 step=1 : f32[3]", "expected an integer dtype, found f32"),
        ("%10 = index dims=[0] at=0 %4, %2 : f32[8, 4]", "expected the dtype i64 of operand 1, found bf16"),
        ("%10 = gather dim=0 %2, %3 : bf16[8]", "expected the dtype i64 of operand 1, found bool"),
        ("%10 = cat dim=0 %2, %3 : bf16[16]", "expected the dtype bf16 of operand 1, found bool"),
        ("%10 = matmul %4, %4 : f32[8, 4]", "expected the shape [4, 4], found [8, 4]"),
        // Devices.
        ("%10 = pw.neg %9 : f32[8]", "an operand is on cuda:0, the result on cpu"),
        ("%10 = pw.add %9, %7 : f32[8]", "an operand is on cuda:0, the result on cpu"),
        ("%10 = view.reshape %7 : f32[1]@cuda:0", "a view cannot change the device"),
        // Shapes.
        ("%10 = pw.add %0, %4 : f32[s0, 8]", "the shapes [s0, 8] and [8, 4] do not broadcast"),
        ("%11 = full 1.0 : f32[s1]\n %10 = pw.add %11, %7 : f32[s0]", "expected the shape [s1], found [s0]"),
        ("%10 = pw.neg %0 : f32[8, s0]", "expected the shape [s0, 8], found [8, s0]"),
        ("%10 = convert %2 : f32[8, 1]", "expected the shape [8], found [8, 1]"),
        ("%10 = reduce.sum dims=[2, 0] %6 : f32[s0]", "the dims [2, 0] are not ascending dims"),
        ("%10 = reduce.sum dims=[0, 0] %6 : f32[s0]", "the dims [0, 0] are not ascending dims"),
        ("%10 = reduce.sum dims=[2] %0 : f32[s0]", "the dims [2] are not ascending dims of a 2-d tensor"),
        ("%10 = reduce.sum dims=[] %0 : f32[s0, 8]", "no dims to reduce"),
        ("%10 = reduce.sum dims=[1] %0 : f32[s0, 1]", "expected the shape [s0], found [s0, 1]"),
        ("%10 = view.permute [0, 0] %0 : f32[s0, s0]", "[0, 0] is not a permutation of 2 dims"),
        ("%10 = view.permute [0] %0 : f32[s0]", "[0] is not a permutation of 2 dims"),
        ("%10 = view.permute [1, 0] %0 : f32[s0, 8]", "expected the shape [8, s0], found [s0, 8]"),
        ("%10 = view.reshape %0 : f32[s0, 9]", "expected the number of elements 8*s0, found 9*s0"),
        ("%10 = view.expand %0 : f32[8]", "cannot expand [s0, 8] to [8]"),
        ("%10 = view.expand %0 : f32[s1, 8]", "cannot expand [s0, 8] to [s1, 8]"),
        ("%10 = view.slice dim=2 start=0 step=1 %0 : f32[s0, 8]", "there is no dim 2 in a 2-d tensor"),
        ("%10 = view.slice dim=1 start=0 step=0 %0 : f32[s0, 8]", "the step 0 is not positive"),
        ("%10 = view.slice dim=1 start=-1 step=1 %0 : f32[s0, 1]", "the start -1 is negative"),
        (
            "%10 = view.slice dim=1 start=1 step=2 %0 : f32[s0, 5]",
            "the last index 9 is outside of the extent 8",
        ),
        (
            "%10 = view.slice dim=0 start=1 step=1 %0 : f32[s0, 8]",
            "the last index s0 is outside of the extent s0",
        ),
        (
            "%10 = view.slice dim=0 start=1 step=1 %0 : f32[s1, 4]",
            "expected the shape [s1, 8], found [s1, 4]",
        ),
        ("%10 = view.select dim=0 index=s0 %0 : f32[8]", "the index s0 is outside of the extent s0"),
        ("%10 = view.select dim=1 index=-1 %0 : f32[s0]", "the index -1 is outside of the extent 8"),
        ("%10 = view.select dim=1 index=0 %0 : f32[8]", "expected the shape [s0], found [8]"),
        ("%10 = scan.sum dim=2 %0 : f32[s0, 8]", "there is no dim 2 in a 2-d tensor"),
        ("%10 = scan.sum dim=0 %2 : bf16[8]", "a scan of `sum` does not exist for bf16"),
        ("%10 = scan.logsumexp dim=0 %1 : i64[s0]", "a scan of `logsumexp` does not exist for i64"),
        ("%10 = scan.sum dim=1 %0 : f32[s0]", "expected the shape [s0, 8], found [s0]"),
        ("%10 = view.flip [1, 1] %0 : f32[s0, 8]", "[1, 1] are not distinct dims of a 2-d tensor"),
        ("%10 = fullsym s0 : sym(s0 + 1)", "the result is s0 + 1, not s0"),
        ("%10 = full 0 %0 : none", "expected no operands"),
        ("%10 = fullsym s0 : i64[1]", "expected the shape [], found [1]"),
        ("%10 = iota start=0 step=1 : i64[2, 2]", "expected one dim, found 2"),
        ("%10 = full 0 : f32[-3]", "the extent -3 is negative"),
        ("%10 = full 0 : f32[z - 5]", "the extent z - 5 is negative"),
        ("%10 = full 0 : f32[3, 4]{1}", "1 strides for 2 extents"),
        ("%10 = index dims=[] at=0 %4 : f32[8, 4]", "no dims to index"),
        ("%10 = index dims=[0] at=2 %4, %1 : f32[4, s0]", "the index dims cannot stand at 2 of 1 dims"),
        ("%10 = index dims=[0] at=1 %4, %1 : f32[s0, 4]", "expected the shape [4, s0], found [s0, 4]"),
        ("%10 = gather dim=0 %0, %1 : f32[s0]", "the index has 1 dims, the tensor 2"),
        (
            "%11 = full 0 : i64[s0, 9]\n %10 = gather dim=0 %0, %11 : f32[s0, 9]",
            "the index's extent 9 of dim 1 is larger than 8",
        ),
        (
            "%11 = full 0 : i64[s0, 2]\n %10 = gather dim=1 %0, %11 : f32[s0, 8]",
            "expected the shape [s0, 2], found [s0, 8]",
        ),
        (
            "%11 = full 0 : i64[9]\n %10 = scatter.add dims=[0] rest=[1] error=\"\" %0, %0, %11 : f32[s0, 8]",
            "the index [9] does not broadcast to [s0, 8]",
        ),
        (
            "%11 = full 0 : i64[]\n %10 = scatter.add dims=[0] rest=[] error=\"\" %0, %0, %11 : f32[s0, 8]",
            "[] are not 1 distinct dims of a 2-d tensor",
        ),
        (
            "%11 = full 0 : i64[]\n %10 = scatter.add dims=[0] rest=[0, 0] error=\"\" %6, %6, %11 : f32[3, s0, 8]",
            "[0, 0] are not 2 distinct dims of a 3-d tensor",
        ),
        (
            "%11 = full 0 : i64[]\n %10 = scatter.max dims=[0] rest=[] error=\"\" %3, %3, %11 : bool[8]",
            "`max` does not exist for bool",
        ),
        ("%10 = cat dim=0 %0, %4 : f32[s0 + 8, 8]", "expected the shape [8, 8], found [8, 4]"),
        ("%10 = cat dim=0 %0, %0 : f32[s0, 8]", "expected the extent 2*s0, found s0"),
        ("%10 = cat dim=2 %0 : f32[s0, 8]", "there is no dim 2 in a 2-d tensor"),
        (
            "%10 = pad low=[1] high=[0, 0] value=0.0 %0 : f32[s0, 8]",
            "low, high and the result have [1, 2, 2] dims",
        ),
        (
            "%10 = pad low=[1, 0] high=[0, 0] value=0.0 %0 : f32[s0, 8]",
            "expected the extent s0 + 1, found s0",
        ),
        ("%10 = matmul %0, %6 : f32[3, s0, 8]", "operands of 2 and 3 dims"),
        ("%10 = matmul %4, %0 : f32[8, 8]", "expected the shape [4, 8], found [s0, 8]"),
        ("%10 = matmul bias %0, %4, %2 : f32[s0, 4]", "expected the dtype f32 of operand 2, found bf16"),
        ("%10 = matmul bias %0, %4, %4 : f32[s0, 4]", "do not broadcast"),
        // Ends.
        ("return\n mutate %0 <- %6", "mutate %0 <- %6: expected the shape [s0, 8], found [3, s0, 8]"),
        ("%10 = copy %0 : f32[s0, 8]\n return\n mutate %10 <- %0", "%10 is not an input of the graph"),
        ("return\n mutate %5 <- %5", "both must be tensors"),
    ] {
        let error = graph(node).verify().expect_err(node).to_string();
        assert!(error.contains(message), "{node}\n  expected: {message}\n  found: {error}");
    }
}

#[test]
fn errors_name_the_node_and_the_source_line() {
    let e = graph("%10 = pw.exp %1 : i64[s0] // fx=exp_3 line=\"m.py:7: y = x.exp()\"").verify().unwrap_err();
    assert_eq!(
        e.to_string(),
        "%10 = pw.exp %1 : i64[s0]  // fx=exp_3 line=\"m.py:7: y = x.exp()\": `exp` does not exist for i64"
    );
}

/// How to break a graph, and the complaint.
type Break = (fn(&mut Graph), &'static str);

#[test]
fn broken_structure_is_refused() {
    let base = graph("%10 = pw.neg %0 : f32[s0, 8]\n return %10");
    let breaks: [Break; 13] = [
        (|g| g.nodes[10].inputs[0] = ValueId(99), "%99 does not exist"),
        (|g| g.nodes[10].inputs[0] = ValueId(10), "%10 is used before it is defined"),
        (|g| g.nodes[10].outputs[0] = ValueId(99), "n10 defines %99, but there are 11 values"),
        (|g| g.nodes[10].outputs[0] = ValueId(9), "n10 defines %9 as result 0, but %9 is result 0 of n9"),
        (|g| g.nodes[10].outputs.clear(), "there are 11 values, but the nodes define 10"),
        (|g| g.values[10].def = NodeId(77), "n10 defines %10 as result 0, but %10 is result 0 of n77"),
        (|g| g.nodes[10].prov = 5, "provenance 5 is not in the table"),
        (|g| g.nodes.swap(9, 10), "n9 defines %10 as result 0, but %10 is result 0 of n10"),
        (|g| g.outputs.push(ValueId(11)), "the result %11 does not exist"),
        (|g| g.inputs.push(ValueId(10)), "input 10 is %10, which is not `input 10`"),
        (|g| g.inputs.swap(0, 1), "the graph's input 0 is %1"),
        (|g| g.mutations.push(Mutation { input: ValueId(0), value: ValueId(50) }), "%50 does not exist"),
        (|g| g.facts.syms.values_mut().for_each(|i| i.max = -1), "the range of s0 is empty: [2, -1]"),
    ];
    for (break_it, message) in breaks {
        let mut g = base.clone();
        break_it(&mut g);
        let error = g.verify().expect_err(message).to_string();
        assert!(error.contains(message), "expected: {message}\n  found: {error}");
    }
    assert_eq!(base.verify(), Ok(()));
}
