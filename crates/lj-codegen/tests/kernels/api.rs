//! The crate's interface: errors, names, determinism.

use crate::common::*;
use lj_codegen::{Error, Target, compile, compile_parallel, fingerprint};
use lj_ir::{DType, PwOp, ReduceOp, Scalar};
use lj_schedule::loopnest::{AccId, Def, LoopNest, Mem, Reg, Stmt};

fn scale(factor: f64) -> LoopNest {
    let mut b = Build::new("scale by/é", &["n"], e(1));
    let (x, y) = (b.input(DType::F32), b.output(DType::F32));
    b.each("i", (e(0), s("n")), true, &[], |b| {
        let v = b.load(x, at(s("i")));
        let c = b.f(factor);
        let v = b.pw(DType::F32, PwOp::Mul, &[v, c]);
        b.store(y, at(s("i")), v);
    });
    b.finish()
}

#[test]
fn objects_do_not_depend_on_chance() {
    let nests: Vec<_> = (0..7).map(|i| scale(f64::from(i))).collect();
    let t = Target::host();
    let all = compile(&nests, &t, true).expect("compiles");
    assert_eq!(all.symbols[6], "lj_6_scale_by__");
    assert!(all.externs.is_empty());
    assert!(all.llvm_ir.as_ref().is_some_and(|s| s.contains("define void @lj_6_scale_by__")));
    assert!(all.asm.as_ref().is_some_and(|s| s.contains("lj_6_scale_by__:")));
    assert_eq!(all.object, compile(&nests, &t, true).expect("compiles").object);
    let parts = compile_parallel(&nests, &t, 3, false).expect("compiles");
    assert_eq!(parts.len(), 3);
    assert_eq!(parts.iter().flat_map(|p| p.symbols.clone()).collect::<Vec<_>>(), all.symbols);
    assert_eq!(parts, compile_parallel(&nests, &t, 3, false).expect("compiles"));
    assert!(fingerprint().contains("llvm 22."));
}

#[test]
fn external_functions_are_listed() {
    let mut b = Build::new("sin", &[], e(1));
    let y = b.output(DType::F32);
    let v = b.f(1.0);
    let v = b.pw(DType::F32, PwOp::Sin, &[v]);
    b.store(y, at(e(0)), v);
    let c = compile(&[b.finish()], &Target::host(), false).expect("compiles");
    assert_eq!(c.externs, ["sinf"]);
}

#[test]
fn bad_nests_are_refused() {
    type Case = (&'static str, Box<dyn Fn(&mut Build)>);
    let bad: Vec<Case> = vec![
        ("not defined", Box::new(|b| b.store(Mem::Param(1), at(e(0)), Reg(99)))),
        (
            "does not exist",
            Box::new(|b| {
                let (mem, index) = (Mem::Scratch(3), at(e(0)));
                b.def(DType::F32, Def::Load { mem, index, mask: None, fallback: Scalar::Int(0) });
            }),
        ),
        ("is not in scope", Box::new(|b| _ = b.load(Mem::Param(0), at(s("zzz"))))),
        (
            "is stored to but not declared so",
            Box::new(|b| {
                let v = b.f(0.0);
                b.store(Mem::Param(0), at(e(0)), v);
            }),
        ),
        (
            "is stored to memory of",
            Box::new(|b| {
                let v = b.constant(DType::I64, Scalar::Int(1));
                b.store(Mem::Param(1), at(e(0)), v);
            }),
        ),
        (
            "mixed dtypes",
            Box::new(|b| {
                let (v, w) = (b.f(0.0), b.constant(DType::F64, Scalar::Int(1)));
                b.pw(DType::F32, PwOp::Add, &[v, w]);
            }),
        ),
        (
            "exp of i32",
            Box::new(|b| {
                let v = b.constant(DType::I32, Scalar::Int(1));
                b.pw(DType::I32, PwOp::Exp, &[v]);
            }),
        ),
        (
            "add of bf16",
            Box::new(|b| {
                let v = b.constant(DType::BF16, Scalar::Int(1));
                b.pw(DType::BF16, PwOp::Add, &[v, v]);
            }),
        ),
        (
            "operands",
            Box::new(|b| {
                let v = b.f(1.0);
                b.pw(DType::F32, PwOp::Add, &[v]);
            }),
        ),
        (
            "not live",
            Box::new(|b| {
                let value = b.f(1.0);
                b.push(Stmt::Update { acc: AccId(5), value, index: None });
            }),
        ),
        ("no result yet", Box::new(|b| _ = b.def(DType::F32, Def::Acc(AccId(5))))),
        (
            "position missing",
            Box::new(|b| {
                let a = b.acc(ReduceOp::ArgMax, DType::F32);
                b.each("i", (e(0), e(4)), true, &[&a], |b| {
                    let v = b.f(1.0);
                    b.update(&a, v);
                });
            }),
        ),
        (
            "no result yet",
            Box::new(|b| {
                let a = b.acc(ReduceOp::Sum, DType::F32);
                b.each("i", (e(0), e(4)), false, &[], |b| b.each("j", (e(0), e(4)), false, &[&a], |_| ()));
                b.result(&a);
            }),
        ),
        (
            "inside a vector loop",
            Box::new(|b| {
                b.each("i", (e(0), e(4)), true, &[], |b| b.each("j", (e(0), e(4)), true, &[], |_| ()));
            }),
        ),
        (
            "differ from lane to lane",
            Box::new(|b| {
                b.each("i", (e(0), e(4)), true, &[], |b| b.each("j", (e(0), s("i")), false, &[], |_| ()));
            }),
        ),
        ("shadows", Box::new(|b| b.each("n", (e(0), e(4)), false, &[], |_| ()))),
        (
            "mask",
            Box::new(|b| {
                let v = b.f(1.0);
                b.load_masked(Mem::Param(0), at(e(0)), Some(v), Scalar::Int(0));
            }),
        ),
        (
            "register %0 is used where",
            Box::new(|b| {
                b.each("i", (e(0), e(4)), true, &[], |b| _ = b.f(1.0));
                b.convert(DType::F64, Reg(0));
            }),
        ),
    ];
    for (message, make) in bad {
        let mut b = Build::new("bad", &["n"], e(1));
        b.input(DType::F32);
        b.output(DType::F32);
        make(&mut b);
        let error = compile(&[b.finish()], &Target::host(), false).expect_err(message);
        assert!(!matches!(error, Error::Internal(_) | Error::Llvm(_)), "{message}: {error}");
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert!(error.to_string().contains("`bad`"), "{error}");
    }
}

#[test]
fn an_unknown_machine_is_an_error_or_generic() {
    let t = Target::new("no-such-cpu", "");
    // LLVM falls back to a generic machine; what matters is that it does not abort.
    assert!(compile(&[scale(2.0)], &t, false).is_ok());
}
