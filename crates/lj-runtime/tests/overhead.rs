//! What a call and a step cost beside the work itself. Run with
//! `LJ_TORCH_LIB=… cargo test --release -p lj-runtime --test overhead -- --ignored --nocapture`.
#![allow(missing_docs, clippy::print_stdout)]

mod common;

use common::*;
use lj_ir::Expr;
use lj_runtime::{NoCallbacks, Plan};
use lj_schedule::program::{BufId, BufferKind, Output, Program, Step};
use std::time::Instant;

/// `steps` steps between two buffers of the arena; every `every`-th is a matmul.
fn chain(steps: u32, every: u32) -> Plan {
    let x = f32_type(&[e(4), e(4)]);
    let mut p = Program {
        inputs: inputs(std::slice::from_ref(&x)),
        nests: vec![nest("copy", &[false, true], &["m"], s("m"), &[])],
        buffers: vec![
            buffer(BufferKind::Input(0), x.clone(), 0, 0),
            buffer(BufferKind::Arena, x.clone(), 0, steps),
            buffer(BufferKind::Arena, x.clone(), 0, steps),
            buffer(BufferKind::Fresh, x, steps, steps + 1),
        ],
        ..Program::default()
    };
    let kernel = |a: u32, b: u32| Step::Kernel {
        nest: 0,
        args: vec![(BufId(a), Expr::ZERO), (BufId(b), Expr::ZERO)],
        syms: vec![e(16)],
        cost: e(1),
        checks: vec![],
        provs: vec![],
    };
    p.steps.push(kernel(0, 1));
    for i in 1..steps {
        let (a, b) = if i % 2 == 1 { (1, 2) } else { (2, 1) };
        p.steps.push(if i % every == 0 {
            Step::Matmul {
                out: whole(&p, b),
                a: whole(&p, a),
                b: whole(&p, 0),
                bias: None,
                gemm: Box::default(),
                prov: 0,
            }
        } else {
            kernel(a, b)
        });
    }
    p.steps.push(kernel(1, 3));
    p.outputs = vec![Output::Tensor(whole(&p, 3))];
    let code = "KERNEL(copy) { for (int64_t i = begin; i < end; i++) F(1)[i] = F(0)[i]; }";
    Plan::new(p, &kernels(code, &["copy"])).unwrap()
}

/// Nanoseconds of the fastest of many calls.
fn time(plan: &Plan) -> f64 {
    let x = tensor(&[4, 4], &[0.5; 16]);
    (0..200)
        .map(|_| {
            let given = vec![arg(x.new_ref().unwrap())];
            let start = Instant::now();
            let r = plan.call(given, &NoCallbacks).unwrap();
            let t = start.elapsed().as_nanos() as f64;
            drop(r);
            t
        })
        .fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement"]
fn overhead() {
    if !torch() {
        return;
    }
    let (one, many) = (time(&chain(1, 1000)), time(&chain(1001, 1_000_000)));
    let kernel = (many - one) / 1000.0;
    let matmul = (time(&chain(1001, 2)) - many) / 500.0;
    println!(
        "call with two kernels {one:.0} ns, a kernel step {kernel:.0} ns, a matmul step {matmul:.0} ns more"
    );
    assert!(kernel < 1000.0 && one < 10_000.0);
}
