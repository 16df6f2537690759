//! Prints compile times and speeds of a few kernels.
//!
//! `cargo run -p lj-codegen --release --example kernels`; with `LJ_KEEP=DIR` the IR and assembly of each
//! kernel are written there.
#![allow(clippy::print_stdout, clippy::wildcard_imports)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use lj_codegen::Target;
use lj_ir::{DType, PwOp, ReduceOp};
use std::time::Instant;

fn best(n: usize, mut f: impl FnMut()) -> f64 {
    (0..n)
        .map(|_| {
            let t = Instant::now();
            f();
            t.elapsed().as_secs_f64() * 1e6
        })
        .fold(f64::INFINITY, f64::min)
}

fn rmsnorm(cols: lj_ir::Expr) -> lj_schedule::loopnest::LoopNest {
    use DType::F32;
    let mut b = Build::new("rmsnorm", &["rows", "cols"], s("rows"));
    let (x, w, y) = (b.input(F32), b.input(F32), b.output(F32));
    let idx = at(&(&s("p") * &cols) + &s("c"));
    let sum = b.acc(ReduceOp::Sum, F32);
    b.each("c", (e(0), cols.clone()), true, &[&sum], |b| {
        let v = b.load(x, idx.clone());
        let v = b.pw(F32, PwOp::Mul, &[v, v]);
        b.update(&sum, v);
    });
    let t = b.result(&sum);
    let n = b.f(512.0);
    let t = b.pw(F32, PwOp::Div, &[t, n]);
    let eps = b.f(1e-6);
    let t = b.pw(F32, PwOp::Add, &[t, eps]);
    let r = b.pw(F32, PwOp::Rsqrt, &[t]);
    b.each("c", (e(0), cols), true, &[], |b| {
        let v = b.load(x, idx.clone());
        let u = b.load(w, at(s("c")));
        let v = b.pw(F32, PwOp::Mul, &[v, r]);
        let v = b.pw(F32, PwOp::Mul, &[v, u]);
        b.store(y, idx.clone(), v);
    });
    b.finish()
}

fn unary(op: PwOp) -> lj_schedule::loopnest::LoopNest {
    let mut b = Build::new(op.name(), &["n"], e(1));
    let (x, y) = (b.input(DType::F32), b.output(DType::F32));
    b.each("i", (e(0), s("n")), true, &[], |b| {
        let v = b.load(x, at(s("i")));
        let v = b.pw(DType::F32, op, &[v]);
        b.store(y, at(s("i")), v);
    });
    b.finish()
}

fn main() {
    let t = Target::host();
    println!("{} {}", t.cpu, lj_codegen::fingerprint());
    let (rows, cols) = (4096usize, 512usize);
    let mut x = Random(1).floats(rows * cols, 5.0);
    let mut y = vec![0f32; rows * cols];
    let mut w = vec![1f32; cols];
    for (name, nest, three) in [
        ("softmax dynamic", softmax(s("cols"), DType::F32), false),
        ("softmax static", softmax(e(512), DType::F32), false),
        ("rmsnorm dynamic", rmsnorm(s("cols")), true),
        ("rmsnorm static", rmsnorm(e(512)), true),
    ] {
        let mut compile = f64::INFINITY;
        for _ in 0..5 {
            compile = compile.min(Kernels::new(std::slice::from_ref(&nest), &t).compile_ms);
        }
        let k = Kernels::new(std::slice::from_ref(&nest), &t);
        let us = best(30, || {
            let mut bufs = vec![buf(&mut x)];
            if three {
                bufs.push(buf(&mut w));
            }
            bufs.push(buf(&mut y));
            k.run(0, &mut bufs, &[rows as i64, cols as i64], (0, rows as i64));
        });
        let us512 = best(100, || {
            let mut bufs = vec![buf(&mut x)];
            if three {
                bufs.push(buf(&mut w));
            }
            bufs.push(buf(&mut y));
            k.run(0, &mut bufs, &[512, cols as i64], (0, 512));
        });
        println!("{name:18} compile {compile:5.2} ms  [4096,512] {us:7.1} us  [512,512] {us512:6.1} us");
    }
    let batch: Vec<_> = (0..20)
        .map(|i| if i % 2 == 0 { softmax(s("cols"), DType::BF16) } else { rmsnorm(s("cols")) })
        .collect();
    let k = Kernels::new(&batch, &t);
    println!("20 dynamic kernels in one module: {:.2} ms each", k.compile_ms / 20.0);
    let mut half = vec![0x3f80u16; rows * cols];
    let mut half_out = half.clone();
    let us = best(100, || {
        k.run(0, &mut [buf(&mut half), buf(&mut half_out)], &[512, cols as i64], (0, 512));
    });
    println!("softmax bf16 [512,512] {us:.1} us");
    for op in [PwOp::Exp, PwOp::Log, PwOp::Tanh, PwOp::Erf, PwOp::Sigmoid, PwOp::Sqrt] {
        let k = Kernels::new(&[unary(op)], &t);
        let n = 2048;
        let us = best(1000, || {
            k.run(0, &mut [buf(&mut x[..n]), buf(&mut y[..n])], &[n as i64], (0, 1));
        });
        println!("{:18} compile {:5.2} ms  {:.3} ns/element", op.name(), k.compile_ms, us * 1e3 / n as f64);
    }
}
