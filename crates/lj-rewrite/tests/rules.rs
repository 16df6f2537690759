//! For every rule: where it fires and what is left, and where it must not fire.

use lj_ir::text::{parse, print};
use lj_rewrite::{Config, Rewritten, rewrite, rule_names};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Inputs `a b: f32[4,8]`, `i j: i64[4,8]`, `p: bool[4,8]`, `v: f32[8]`, `h: bf16[4,8]`,
/// `d: f64[4,8]`, `u: u8[4,8]`, `w: f32[8,8]`, `o: f32[1,8]`, `n: f32[]`, `s: i32[4,8]`,
/// `g: bf16[8,8]`, `k: bf16[8]`, `t: f32[2,4,8]`; then the nodes of a test, one a line.
const INPUTS: &[(&str, &str)] = &[
    ("a", "f32[4, 8]"),
    ("b", "f32[4, 8]"),
    ("i", "i64[4, 8]"),
    ("j", "i64[4, 8]"),
    ("p", "bool[4, 8]"),
    ("v", "f32[8]"),
    ("h", "bf16[4, 8]"),
    ("d", "f64[4, 8]"),
    ("u", "u8[4, 8]"),
    ("w", "f32[8, 8]"),
    ("o", "f32[1, 8]"),
    ("n", "f32[]"),
    ("s", "i32[4, 8]"),
    ("g", "bf16[8, 8]"),
    ("k", "bf16[8]"),
    ("t", "f32[2, 4, 8]"),
];

/// Rewrites the graph whose nodes are `body`: `name = op names : type`, separated by `;`; the last
/// one is its result.
fn run(body: &str, config: &Config) -> Rewritten {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut text = String::from("graph t () {\n");
    for (k, (name, ty)) in INPUTS.iter().enumerate() {
        names.insert((*name).to_string(), k);
        let _ = writeln!(text, "  %{k} = input {k} : {ty}");
    }
    for line in body.split(';').map(str::trim).filter(|l| !l.is_empty()) {
        let (name, rest) = line.split_once('=').expect("name = node");
        let (call, ty) = rest.split_once(" : ").expect("a type");
        // Operands are the single letters after the operation.
        let call: Vec<String> = call
            .split(' ')
            .map(|w| match names.get(w.trim_end_matches(',')) {
                Some(k) => format!("%{k}{}", if w.ends_with(',') { "," } else { "" }),
                None => w.to_string(),
            })
            .collect();
        let id = names.len();
        let _ = writeln!(text, "  %{id} = {} : {ty}", call.join(" ").trim());
        names.insert(name.trim().to_string(), id);
    }
    let _ = write!(text, "  return %{}\n}}\n", names.len() - 1);
    let graph = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    graph.verify().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let done = rewrite(&graph, config).unwrap_or_else(|e| panic!("{e}\n{text}"));
    done.graph.verify().unwrap();
    done
}

/// The operations that are left, without inputs, by name.
fn left(done: &Rewritten) -> String {
    let text = print(&done.graph);
    let ops = text.lines().filter_map(|l| l.split_once(" = ")).map(|(_, r)| r);
    let names = ops.filter(|r| !r.starts_with("input")).map(|r| {
        let call = r.split(" : ").next().unwrap_or("");
        call.split(" %").next().unwrap_or("").to_string()
    });
    names.collect::<Vec<_>>().join("; ")
}

/// Rule, body, the operations that must be left.
const FIRES: &[(&str, &str, &str)] = &[
    (
        "add-negative-zero",
        "c = full -0.0 : f32[]; x = pw.add c, a : f32[4, 8]; y = pw.exp x : f32[4, 8]",
        "pw.exp",
    ),
    ("add-zero", "c = full 0 : i64[]; x = pw.add i, c : i64[4, 8]; y = pw.not x : i64[4, 8]", "pw.not"),
    ("sub-zero", "c = full 0.0 : f32[]; x = pw.sub a, c : f32[4, 8]; y = pw.exp x : f32[4, 8]", "pw.exp"),
    ("sub-from-negative-zero", "c = full -0.0 : f32[]; x = pw.sub c, a : f32[4, 8]", "pw.neg"),
    ("sub-from-zero", "c = full 0 : i64[]; x = pw.sub c, i : i64[4, 8]", "pw.neg"),
    ("mul-one", "c = full 1.0 : f32[4, 8]; x = pw.mul c, a : f32[4, 8]; y = pw.exp x : f32[4, 8]", "pw.exp"),
    // The result is an output of its own: it must not become the input.
    ("mul-one", "c = full 1.0 : f32[]; x = pw.mul c, a : f32[4, 8]", "copy"),
    // The constant gave the result its shape.
    (
        "mul-one",
        "c = full 1.0 : f32[4, 8]; x = pw.mul c, v : f32[4, 8]; y = reduce.sum dims=[0] x : f32[8]",
        "view.expand; reduce.sum dims=[0]",
    ),
    ("mul-minus-one", "c = full -1.0 : f32[]; x = pw.mul a, c : f32[4, 8]", "pw.neg"),
    ("div-one", "c = full 1.0 : f32[]; x = pw.div a, c : f32[4, 8]; y = pw.exp x : f32[4, 8]", "pw.exp"),
    ("div-minus-one", "c = full -1.0 : f32[]; x = pw.div a, c : f32[4, 8]", "pw.neg"),
    ("one-div", "c = full 1.0 : f32[]; x = pw.div c, a : f32[4, 8]", "pw.reciprocal"),
    ("neg-neg", "x = pw.neg a : f32[4, 8]; y = pw.neg x : f32[4, 8]; z = pw.exp y : f32[4, 8]", "pw.exp"),
    (
        "not-not",
        "x = pw.not p : bool[4, 8]; y = pw.not x : bool[4, 8]; z = pw.where y, a, b : f32[4, 8]",
        "pw.where",
    ),
    ("abs-abs", "x = pw.abs a : f32[4, 8]; y = pw.abs x : f32[4, 8]", "pw.abs"),
    ("abs-neg", "x = pw.neg a : f32[4, 8]; y = pw.abs x : f32[4, 8]", "pw.abs"),
    ("add-neg", "x = pw.neg a : f32[4, 8]; y = pw.add x, b : f32[4, 8]", "pw.sub"),
    ("sub-neg", "x = pw.neg a : f32[4, 8]; y = pw.sub b, x : f32[4, 8]", "pw.add"),
    (
        "mul-neg-neg",
        "x = pw.neg a : f32[4, 8]; y = pw.neg b : f32[4, 8]; z = pw.mul x, y : f32[4, 8]",
        "pw.mul",
    ),
    (
        "div-neg-neg",
        "x = pw.neg a : f32[4, 8]; y = pw.neg b : f32[4, 8]; z = pw.div x, y : f32[4, 8]",
        "pw.div",
    ),
    (
        "mul-neg-constant",
        "c = full 3.0 : f32[]; x = pw.neg a : f32[4, 8]; z = pw.mul x, c : f32[4, 8]",
        "full -3.0; pw.mul",
    ),
    (
        "div-neg-constant",
        "c = full 3.0 : f32[]; x = pw.neg a : f32[4, 8]; z = pw.div x, c : f32[4, 8]",
        "full -3.0; pw.div",
    ),
    ("maximum-same", "x = pw.maximum a, a : f32[4, 8]; z = pw.exp x : f32[4, 8]", "pw.exp"),
    ("minimum-same", "x = pw.minimum a, a : f32[4, 8]; z = pw.exp x : f32[4, 8]", "pw.exp"),
    (
        "maximum-twice",
        "c = full 0.0 : f32[]; x = pw.maximum a, c : f32[4, 8]; z = pw.maximum c, x : f32[4, 8]",
        "full 0.0; pw.maximum",
    ),
    ("minimum-twice", "x = pw.minimum a, b : f32[4, 8]; z = pw.minimum x, a : f32[4, 8]", "pw.minimum"),
    ("and-same", "x = pw.and p, p : bool[4, 8]; z = pw.not x : bool[4, 8]", "pw.not"),
    ("or-same", "x = pw.or i, i : i64[4, 8]; z = pw.not x : i64[4, 8]", "pw.not"),
    ("floor-floor", "x = pw.floor a : f32[4, 8]; z = pw.floor x : f32[4, 8]", "pw.floor"),
    ("where-same", "x = pw.where p, a, a : f32[4, 8]; z = pw.exp x : f32[4, 8]", "pw.exp"),
    (
        "where-true",
        "c = full true : bool[]; x = pw.where c, a, b : f32[4, 8]; z = pw.exp x : f32[4, 8]",
        "pw.exp",
    ),
    (
        "where-false",
        "c = full false : bool[4, 8]; x = pw.where c, a, b : f32[4, 8]; z = pw.exp x : f32[4, 8]",
        "pw.exp",
    ),
    ("where-not", "x = pw.not p : bool[4, 8]; z = pw.where x, a, b : f32[4, 8]", "pw.where"),
    ("where-where", "x = pw.where p, a, b : f32[4, 8]; z = pw.where p, x, v : f32[4, 8]", "pw.where"),
    ("div-power-of-two", "c = full -8.0 : f32[]; x = pw.div a, c : f32[4, 8]", "full -0.125; pw.mul"),
    ("pow-one", "c = full 1.0 : f32[]; x = pw.pow a, c : f32[4, 8]; z = pw.exp x : f32[4, 8]", "pw.exp"),
    ("pow-two", "c = full 2.0 : f32[]; x = pw.pow a, c : f32[4, 8]", "pw.mul"),
    ("pow-two", "c = full 2 : i64[]; x = pw.pow i, c : i64[4, 8]", "pw.mul"),
    ("pow-three", "c = full 3.0 : f32[]; x = pw.pow a, c : f32[4, 8]", "pw.mul; pw.mul"),
    ("pow-minus-one", "c = full -1.0 : f32[]; x = pw.pow a, c : f32[4, 8]", "pw.reciprocal"),
    ("pow-minus-two", "c = full -2.0 : f32[]; x = pw.pow a, c : f32[4, 8]", "pw.mul; pw.reciprocal"),
    ("reciprocal-sqrt", "x = pw.sqrt a : f32[4, 8]; z = pw.reciprocal x : f32[4, 8]", "pw.rsqrt"),
    ("div-sqrt", "x = pw.sqrt a : f32[4, 8]; z = pw.div b, x : f32[4, 8]", "pw.rsqrt; pw.mul"),
    (
        "mul-constants",
        "c = full 0.1 : f32[]; x = pw.mul a, c : f32[4, 8]; e = full 3.0 : f32[]; z = pw.mul e, x : f32[4, 8]",
        "full 0.30000001192092896; pw.mul",
    ),
    ("scalar-constant", "c = full 3.0 : f32[4, 8]; x = pw.mul a, c : f32[4, 8]", "full 3.0; pw.mul"),
    (
        "convert-convert",
        "x = convert h : f32[4, 8]; y = convert x : bf16[4, 8]; z = view.reshape y : bf16[32]; q = convert z : f32[32]",
        "view.reshape; convert",
    ),
    ("convert-convert", "x = convert u : i32[4, 8]; y = convert x : f32[4, 8]", "convert"),
    (
        "convert-out-of-view",
        "x = convert h : f32[4, 8]; y = view.permute [1, 0] x : f32[8, 4]{1, 8}; z = convert y : bf16[8, 4]{1, 8}; q = convert z : f64[8, 4]",
        "view.permute [1, 0]; convert",
    ),
    (
        "convert-out-of-view",
        "x = convert h : f32[4, 8]; y = view.slice dim=1 start=0 step=1 x : f32[4, 4]{8, 1}; q = pw.exp y : f32[4, 4]",
        "view.slice dim=1 start=0 step=1; convert; pw.exp",
    ),
    (
        "convert-into-expand",
        "x = view.expand o : f32[4, 8]{0, 1}; y = convert x : f64[4, 8]; z = reduce.sum dims=[0] y : f64[8]",
        "convert; view.expand; reduce.sum dims=[0]",
    ),
    (
        "convert-where",
        "x = convert h : f32[4, 8]; c = full 0.5 : f32[]; y = pw.where p, x, c : f32[4, 8]; z = convert y : bf16[4, 8]",
        "full 0.5; pw.where",
    ),
    (
        "compare-widened",
        "x = convert s : i64[4, 8]; c = full 7 : i64[]; y = pw.lt x, c : bool[4, 8]",
        "full 7; pw.lt",
    ),
    (
        "view-identity",
        "x = pw.exp a : f32[4, 8]; y = view.permute [1, 0] x : f32[8, 4]{1, 8}; q = pw.neg y : f32[8, 4]; r = pw.neg q : f32[8, 4]; z = view.permute [1, 0] r : f32[4, 8]{1, 4}; e = reduce.sum dims=[0] z : f32[8]",
        "pw.exp; reduce.sum dims=[0]",
    ),
    (
        "view-of-view",
        "x = view.reshape a : f32[2, 16]; y = view.reshape x : f32[32]; z = pw.exp y : f32[32]",
        "view.reshape; pw.exp",
    ),
    (
        "view-of-view",
        "x = view.slice dim=1 start=1 step=2 a : f32[4, 4]{8, 2}; y = view.slice dim=1 start=1 step=1 x : f32[4, 3]{8, 2}; z = pw.exp y : f32[4, 3]",
        "view.slice dim=1 start=3 step=2; pw.exp",
    ),
    (
        "view-of-view",
        "x = view.slice dim=1 start=1 step=2 a : f32[4, 4]{8, 2}; y = view.select dim=1 index=2 x : f32[4]{8}; z = pw.exp y : f32[4]",
        "view.select dim=1 index=5; pw.exp",
    ),
    (
        "permute-is-reshape",
        "x = view.permute [1, 0] o : f32[8, 1]{1, 8}; y = view.reshape x : f32[8]; z = pw.exp y : f32[8]",
        "view.reshape; pw.exp",
    ),
    (
        "expand-is-reshape",
        "x = view.expand a : f32[1, 4, 8]{0, 8, 1}; y = view.reshape x : f32[32]; z = pw.exp y : f32[32]",
        "view.reshape; pw.exp",
    ),
    (
        "select-of-permute",
        "x = view.permute [1, 0] a : f32[8, 4]{1, 8}; y = view.select dim=0 index=3 x : f32[4]{8}; z = pw.exp y : f32[4]",
        "view.select dim=1 index=3; pw.exp",
    ),
    ("pointwise-of-expand", "x = view.expand v : f32[4, 8]{0, 1}; y = pw.add a, x : f32[4, 8]", "pw.add"),
    ("reduce-of-one", "x = reduce.amax dims=[0] o : f32[8]; y = pw.exp x : f32[8]", "view.reshape; pw.exp"),
    ("addmm", "x = matmul a, w : f32[4, 8]; y = pw.add v, x : f32[4, 8]", "matmul bias"),
    ("addmm", "x = matmul a, w : f32[4, 8]; y = pw.add o, x : f32[4, 8]", "view.reshape; matmul bias"),
    (
        "addmm-16bit",
        "x = matmul h, g : bf16[4, 8]; y = convert x : f32[4, 8]; c = convert k : f32[8]; z = pw.add y, c : f32[4, 8]; q = convert z : bf16[4, 8]",
        "matmul bias",
    ),
];

/// Rule, why not, body.
const SILENT: &[(&str, &str, &str)] = &[
    ("add-negative-zero", "-0.0 + 0.0 is 0.0", "c = full 0.0 : f32[]; x = pw.add c, a : f32[4, 8]"),
    ("add-zero", "-0.0 + 0.0 is 0.0", "c = full 0.0 : f32[]; x = pw.add a, c : f32[4, 8]"),
    ("sub-zero", "-0.0 - -0.0 is 0.0", "c = full -0.0 : f32[]; x = pw.sub a, c : f32[4, 8]"),
    (
        "sub-from-negative-zero",
        "0.0 - 0.0 is 0.0, not -0.0",
        "c = full 0.0 : f32[]; x = pw.sub c, a : f32[4, 8]",
    ),
    ("sub-from-zero", "0.0 - 0.0 is 0.0, not -0.0", "c = full 0.0 : f32[]; x = pw.sub c, a : f32[4, 8]"),
    ("mul-one", "x*0 is NaN for infinities", "c = full 0.0 : f32[]; x = pw.mul c, a : f32[4, 8]"),
    ("mul-one", "not quite one", "c = full 1.0000001192092896 : f32[]; x = pw.mul c, a : f32[4, 8]"),
    (
        "mul-minus-one",
        "255 is not -1 to an unsigned product's eye",
        "c = full 254 : u8[]; x = pw.mul u, c : u8[4, 8]",
    ),
    ("div-one", "x/x is NaN for 0 and infinities", "x = pw.div a, a : f32[4, 8]"),
    ("div-minus-one", "not -1", "c = full -3.0 : f32[]; x = pw.div a, c : f32[4, 8]"),
    ("one-div", "not 1", "c = full 3.0 : f32[]; x = pw.div c, a : f32[4, 8]"),
    (
        "neg-neg",
        "another operation between",
        "x = pw.neg a : f32[4, 8]; y = pw.exp x : f32[4, 8]; z = pw.neg y : f32[4, 8]",
    ),
    ("not-not", "one complement", "x = pw.not p : bool[4, 8]"),
    ("abs-abs", "abs(exp)", "x = pw.exp a : f32[4, 8]; y = pw.abs x : f32[4, 8]"),
    ("abs-neg", "neg(abs)", "x = pw.abs a : f32[4, 8]; y = pw.neg x : f32[4, 8]"),
    (
        "add-neg",
        "-(a - b) is not b - a: the zero's sign",
        "x = pw.sub a, b : f32[4, 8]; y = pw.neg x : f32[4, 8]",
    ),
    ("sub-neg", "the negated one is on the left", "x = pw.neg a : f32[4, 8]; y = pw.sub x, b : f32[4, 8]"),
    ("mul-neg-neg", "one negation", "x = pw.neg a : f32[4, 8]; z = pw.mul x, b : f32[4, 8]"),
    ("div-neg-neg", "one negation", "x = pw.neg a : f32[4, 8]; z = pw.div b, x : f32[4, 8]"),
    ("mul-neg-constant", "no constant", "x = pw.neg a : f32[4, 8]; z = pw.mul x, n : f32[4, 8]"),
    (
        "div-neg-constant",
        "the constant is divided",
        "c = full 3.0 : f32[]; x = pw.neg a : f32[4, 8]; z = pw.div c, x : f32[4, 8]",
    ),
    ("maximum-same", "two operands", "x = pw.maximum a, b : f32[4, 8]"),
    ("minimum-same", "two operands", "x = pw.minimum a, b : f32[4, 8]"),
    ("maximum-twice", "another bound", "x = pw.maximum a, v : f32[4, 8]; z = pw.maximum x, n : f32[4, 8]"),
    ("minimum-twice", "a maximum inside", "x = pw.maximum a, b : f32[4, 8]; z = pw.minimum x, b : f32[4, 8]"),
    ("and-same", "two operands", "x = pw.and i, j : i64[4, 8]"),
    ("or-same", "exclusive or", "x = pw.xor i, i : i64[4, 8]"),
    ("floor-floor", "ceil(floor)", "x = pw.floor a : f32[4, 8]; z = pw.ceil x : f32[4, 8]"),
    ("where-same", "two branches", "x = pw.where p, a, b : f32[4, 8]"),
    ("where-true", "not constant", "x = pw.where p, a, b : f32[4, 8]"),
    ("where-false", "not constant", "x = pw.where p, b, a : f32[4, 8]"),
    ("where-not", "negated branch", "x = pw.not i : i64[4, 8]; z = pw.where p, x, j : i64[4, 8]"),
    (
        "where-where",
        "another condition",
        "q = pw.not p : bool[4, 8]; e = pw.and q, p : bool[4, 8]; x = pw.where e, a, b : f32[4, 8]; z = pw.where p, x, v : f32[4, 8]",
    ),
    ("div-power-of-two", "1/3 rounds", "c = full 3.0 : f32[]; x = pw.div a, c : f32[4, 8]"),
    (
        "div-power-of-two",
        "1/2^127 is subnormal",
        "c = full 1.7014118346046923e38 : f32[]; x = pw.div a, c : f32[4, 8]",
    ),
    ("div-power-of-two", "x/0 is not x*inf", "c = full 0.0 : f32[]; x = pw.div a, c : f32[4, 8]"),
    ("pow-one", "a tensor exponent", "c = full 1.0 : f32[4, 8]; x = pw.pow a, c : f32[4, 8]"),
    ("pow-two", "a tensor exponent", "c = full 2.0 : f32[8]; x = pw.pow a, c : f32[4, 8]"),
    ("pow-three", "three to the x", "c = full 3.0 : f32[]; x = pw.pow c, a : f32[4, 8]"),
    ("pow-minus-one", "another exponent", "c = full -1.5 : f32[]; x = pw.pow a, c : f32[4, 8]"),
    ("pow-minus-two", "another exponent", "c = full -2.5 : f32[]; x = pw.pow a, c : f32[4, 8]"),
    ("reciprocal-sqrt", "sqrt(1/x)", "x = pw.reciprocal a : f32[4, 8]; z = pw.sqrt x : f32[4, 8]"),
    ("div-sqrt", "the root is divided", "x = pw.sqrt a : f32[4, 8]; z = pw.div x, b : f32[4, 8]"),
    (
        "mul-constants",
        "a·1e30 may overflow",
        "c = full 1e30 : f32[]; x = pw.mul a, c : f32[4, 8]; e = full 1e-30 : f32[]; z = pw.mul e, x : f32[4, 8]",
    ),
    (
        "mul-constants",
        "no reassociation without constants",
        "x = pw.mul a, b : f32[4, 8]; z = pw.mul n, x : f32[4, 8]",
    ),
    (
        "scalar-constant",
        "it gives the result its shape",
        "c = full 3.0 : f32[4, 8]; x = pw.mul v, c : f32[4, 8]",
    ),
    (
        "convert-convert",
        "narrowing first rounds",
        "x = convert a : bf16[4, 8]; y = convert x : f32[4, 8]; z = pw.exp y : f32[4, 8]",
    ),
    (
        "convert-convert",
        "f32 does not hold every i64",
        "x = convert i : f32[4, 8]; y = convert x : i64[4, 8]",
    ),
    (
        "convert-convert",
        "-1 as f64 to u8 is undefined, as i32 it wraps",
        "x = convert s : f64[4, 8]; y = convert x : u8[4, 8]",
    ),
    (
        "convert-out-of-view",
        "it would convert every repetition",
        "x = convert v : f64[8]; y = view.expand x : f64[4, 8]{0, 1}; z = pw.exp y : f64[4, 8]",
    ),
    (
        "convert-out-of-view",
        "two halves would be converted one by one",
        "x = convert h : f32[4, 8]; y = view.slice dim=1 start=0 step=1 x : f32[4, 4]{8, 1}; z = view.slice dim=1 start=4 step=1 x : f32[4, 4]{8, 1}; q = pw.add y, z : f32[4, 4]",
    ),
    ("convert-into-expand", "no expand", "x = view.reshape a : f32[32]; y = convert x : f64[32]"),
    (
        "convert-where",
        "the constant does not fit",
        "x = convert h : f32[4, 8]; c = full 0.1 : f32[]; y = pw.where p, x, c : f32[4, 8]; z = convert y : bf16[4, 8]",
    ),
    (
        "convert-where",
        "a branch was f32",
        "x = convert h : f32[4, 8]; y = pw.where p, x, a : f32[4, 8]; z = convert y : bf16[4, 8]",
    ),
    (
        "compare-widened",
        "the constant does not fit",
        "x = convert u : i64[4, 8]; c = full 300 : i64[]; y = pw.lt x, c : bool[4, 8]",
    ),
    (
        "compare-widened",
        "comparisons of 16-bit floats do not exist",
        "x = convert h : f32[4, 8]; c = full 1.0 : f32[]; y = pw.lt x, c : bool[4, 8]",
    ),
    ("view-identity", "an output view stays", "y = view.permute [1, 0] a : f32[8, 4]{1, 8}"),
    (
        "view-of-view",
        "another dim",
        "x = view.slice dim=1 start=1 step=2 a : f32[4, 4]{8, 2}; y = view.slice dim=0 start=1 step=1 x : f32[3, 4]{8, 2}; z = pw.exp y : f32[3, 4]",
    ),
    (
        "permute-is-reshape",
        "it moves data",
        "x = view.permute [1, 0] a : f32[8, 4]{1, 8}; z = pw.exp x : f32[8, 4]",
    ),
    (
        "expand-is-reshape",
        "it repeats",
        "x = view.expand a : f32[2, 4, 8]{0, 8, 1}; z = reduce.sum dims=[2] x : f32[2, 4]",
    ),
    (
        "select-of-permute",
        "no permutation",
        "x = view.select dim=0 index=3 a : f32[8]; z = pw.exp x : f32[8]",
    ),
    (
        "pointwise-of-expand",
        "the result would shrink",
        "x = view.expand v : f32[4, 8]{0, 1}; y = pw.exp x : f32[4, 8]",
    ),
    ("reduce-of-one", "0.0 + -0.0 is 0.0", "x = reduce.sum dims=[0] o : f32[8]; y = pw.exp x : f32[8]"),
    ("reduce-of-one", "eight elements", "x = reduce.amax dims=[1] o : f32[1]; y = pw.exp x : f32[1]"),
    ("addmm", "a residual is no bias", "x = matmul a, w : f32[4, 8]; y = pw.add x, b : f32[4, 8]"),
    (
        "addmm",
        "the sum is larger than the product",
        "x = matmul a, w : f32[4, 8]; y = pw.add x, t : f32[2, 4, 8]",
    ),
    (
        "addmm",
        "the product is read twice",
        "x = matmul a, w : f32[4, 8]; y = pw.add x, v : f32[4, 8]; z = pw.mul y, x : f32[4, 8]",
    ),
    ("addmm", "it has a bias", "x = matmul bias a, w, v : f32[4, 8]; y = pw.add x, v : f32[4, 8]"),
    (
        "addmm-16bit",
        "the bias is f32: it would be rounded",
        "x = matmul h, g : bf16[4, 8]; y = convert x : f32[4, 8]; z = pw.add y, v : f32[4, 8]; q = convert z : bf16[4, 8]",
    ),
    (
        "addmm-16bit",
        "the sum is read in f32 too",
        "x = matmul h, g : bf16[4, 8]; y = convert x : f32[4, 8]; c = convert k : f32[8]; z = pw.add y, c : f32[4, 8]; q = convert z : bf16[4, 8]; e = convert q : f32[4, 8]; f = pw.sub z, e : f32[4, 8]",
    ),
];

#[test]
fn rules_fire_where_they_hold() {
    let mut wrong = vec![];
    for (rule, body, expected) in FIRES {
        let done = run(body, &Config::default());
        let got = left(&done);
        if !done.fired.contains_key(rule) || got != *expected {
            wrong.push(format!(
                "{rule}: {body}\n  left `{got}`, expected `{expected}`, fired {:?}",
                done.fired
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rules_are_silent_where_they_do_not_hold() {
    let mut wrong = vec![];
    for (rule, why, body) in SILENT {
        let done = run(body, &Config::default());
        if done.fired.contains_key(rule) {
            wrong.push(format!("{rule} fired though {why}: {body}\n{}", print(&done.graph)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_is_in_both_tables() {
    let names: BTreeSet<&str> = rule_names().into_iter().map(|(n, _)| n).collect();
    assert_eq!(names.len(), rule_names().len(), "a name stands twice");
    let fires: BTreeSet<&str> = FIRES.iter().map(|f| f.0).collect();
    let silent: BTreeSet<&str> = SILENT.iter().map(|f| f.0).collect();
    assert_eq!(fires, names);
    assert_eq!(silent, names);
}

#[test]
fn a_disabled_rule_and_rounding_rules_stay_away() {
    let body = "x = pw.sqrt a : f32[4, 8]; z = pw.reciprocal x : f32[4, 8]";
    let exact = Config { rounding: false, ..Config::default() };
    assert_eq!(left(&run(body, &exact)), "pw.sqrt; pw.reciprocal");
    let without = Config { disabled: BTreeSet::from(["reciprocal-sqrt".to_string()]), ..Config::default() };
    assert_eq!(left(&run(body, &without)), "pw.sqrt; pw.reciprocal");
}
