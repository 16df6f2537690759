//! Printing and parsing of graphs.

use lj_ir::text::{parse, print};

/// Something of everything; `parse` then `print` must not change a character.
const SAMPLE: &str = r#"graph "a graph" (`odd name`: [-inf, -3], s0: [2, inf] ~ 256, s1: [0, 10]) {
  %0 = input 0 : f32[s0, 512]
  %1 = input 1 : sym(s0)
  %2 = input 2 : scalar(f64)
  %3 = input 3 : bf16[2, 3]{1, 2}@cuda:1
  %4 = input 4 : none
  %5 = pw.add %0, %0 : f32[s0, 512]  // fx=add_3 line="model.py:12: x = x + \"y\" \\ \u{7} é"
  %6 = reduce.argmax dims=[0, 1] %5 : i64[]  // fx=add_3 line="model.py:12: x = x + \"y\" \\ \u{7} é"
  %7 = view.permute [1, 0] %0 : f32[512, s0]{1, 512}  // fx=permute
  %8 = view.reshape %0 : f32[512*s0]  // fx="odd name"
  %9 = view.expand %8 : f32[3, 512*s0]{0, 1}  // fx="" line="a"
  %10 = view.slice dim=0 start=floordiv(s0, 2) step=2 %8 : f32[floordiv(s0, 2) + mod(s0, 2)]{2}
  %11 = view.select dim=1 index=s0 - 1 %0 : f32[s0]{512}
  %12 = view.flip [0] %8 : f32[512*s0]
  %13 = full -0.0 : f32[]
  %14 = full nan : f32[]
  %15 = full nan(0xfff8000000000001) : f64[]
  %16 = full -inf : f64[]
  %17 = full -9223372036854775808 : i64[2]
  %18 = full true : bool[]
  %19 = full 1e300 : f64[]
  %20 = fullsym min(-9223372036854775808*s0, max(s0, s1)) : i64[]
  %21 = iota start=-s0 step=-2 : i64[s0]
  %22 = index dims=[0] at=0 %0, %21 : f32[s0, 512]
  %23 = gather dim=1 %0, %22 : f32[s0, 512]
  %24 = scatter.add dims=[0] rest=[1] error="IndexError: \"out\" of range" %0, %0, %21 : f32[s0, 512]
  %25 = cat dim=0 %0, %5 : f32[2*s0, 512]
  %26 = pad low=[-1, 0] high=[s0, 2] value=0.0 %0 : f32[2*s0 - 1, 514]
  %27 = matmul bias %0, %7, %13 : f32[s0, s0]
  %28, %29 = extern "aten.topk.default"(%0, 5, -1, [%5, none, [1.5, -inf]], largest=true, dtype=dtype(f8e5m2), device=device(cuda:0), "a b"=device(meta)) reason="no \"lowering\"" effect : (f32[5], i64[5])
  extern "lib.op"("s", layout("strided"), memory_format("contiguous_format"), object(3), nan, [], tuple(tuple(), [2], s0)) reason="" : ()
  %30 = extern "aten.f"($1, [$0, $0], false, s0 + 1) operands=[%0, %5] reason="" : none
  %31 = convert %5 : f16[s0, 512]  // fx=x
  %32 = copy %5 : f32[s0, 512]
  %33 = matmul %0, %7 : f32[s0, s0]{1, s0}@meta
  %34 = fullsym `odd name`*s1 : i64[]
  return %9, %9, %30
  mutate %0 <- %5
  mutate %3 <- %32
}
"#;

#[test]
fn the_sample_prints_as_it_was_parsed() {
    let graph = parse(SAMPLE).unwrap();
    let printed = print(&graph);
    for (a, b) in SAMPLE.lines().zip(printed.lines()) {
        assert_eq!(b, a);
    }
    assert_eq!(parse(&printed).unwrap(), graph);
}

#[test]
fn errors_say_where_and_what() {
    for (text, error) in [
        ("", "1:1: expected `graph`, found the end of the text"),
        ("graph g () {", "1:13: expected an operation, `return` or `%`, found the end of the text"),
        ("graph g () {\n return\n}\n x", "4:2: expected the end of the text, found `x`"),
        ("graph g (s: [0, 1], s: [0, 2]) { return }", "1:30: expected every symbol once, found `)`"),
        ("graph g (min: [0, 1]) { return }", "1:10: expected a symbol, found `min`"),
        ("graph g () {\n %0 = pw.sum : f32[] }", "2:7: expected a pointwise operation, found `pw.sum`"),
        ("graph g () {\n %0 = full 1 : f33[] }", "2:16: expected a type, found `f33`"),
        ("graph g () {\n %0 = full x : f32[] }", "2:12: expected a constant, found `x`"),
        (
            "graph g () {\n %0 = full nan(0x1) : f32[] }",
            "2:16: expected the bits of a NaN in hexadecimal, found `0x1`",
        ),
        (
            "graph g () {\n %0 = full 1 : f32[]\n %0 = full 1 : f32[] return }",
            "3:2: expected a new value (%0 is defined above), found `%`",
        ),
        (
            "graph g () { %1 = full 1 : f32[] return }",
            "1:41: expected a node that defines %0: values are numbered without gaps, found `}`",
        ),
        (
            "graph g () { %4000000000 = full 1 : f32[] return }",
            "1:14: expected values numbered without gaps, found `%`",
        ),
        (
            "graph g () { %0 = input 1 : f32[] return }",
            "1:42: expected an `input 0`: inputs are numbered without gaps, found `}`",
        ),
        (
            "graph g () { %0, %1 = full 1 : (f32[]) return }",
            "1:14: expected as many results as types, 1, found `%`",
        ),
        (
            "graph g () { extern \"f\"(k=1, 2) reason=\"\" : () return }",
            "1:30: expected a named argument, found `2`",
        ),
        (
            "graph g () { extern \"f\n\"() return }",
            "2:1: expected a closing quote, found the end of the line",
        ),
        (
            "graph g () { %0 = full 99999999999999999999 : i64[] }",
            "1:44: expected a number, found `99999999999999999999`",
        ),
    ] {
        assert_eq!(parse(text).expect_err(text).to_string(), error, "{text}");
    }
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = |open: &str, close: &str| {
        let nest = open.repeat(100_000) + &close.repeat(100_000);
        parse(&format!("graph g () {{ extern \"f\"({nest}) reason=\"\" : () return }}")).unwrap_err().expected
    };
    assert_eq!(deep("[", "]"), "less nesting");
    assert_eq!(deep("(", ")"), "less nesting");
    assert_eq!(deep("min(1, ", ")"), "less nesting");
}
