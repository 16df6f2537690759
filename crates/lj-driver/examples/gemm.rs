//! Matrix products by our kernels and by ATen, in turns: `gemm TORCH_LIB [dtype m n k a b]…` with `a` and
//! `b` as `along` or `across`; a list of shapes of its own without. `LJ_KEEP=DIR` keeps the assembly.
#![allow(clippy::print_stdout, missing_docs)]

use lj_codegen::{Target, gemm};
use lj_ir::DType;
use lj_runtime::gemm::{Kernels, timing::Bench};
use lj_schedule::gemm::{Order, Problem};
use std::collections::BTreeMap;
use std::time::Instant;

const SHAPES: &[(i64, i64, i64, i64)] = &[
    (1, 512, 512, 512),
    (1, 512, 256, 512),
    (1, 512, 1408, 512),
    (1, 512, 512, 1408),
    (1, 512, 8192, 512),
    (1, 8192, 512, 512),
    (1, 512, 512, 8192),
    (1, 2048, 2048, 2048),
    (1, 64, 64, 64),
    (16, 256, 256, 64),
    (1, 8, 16, 4),
];

fn order(s: &str) -> Order {
    if s == "along" { Order::Along } else { Order::Across }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    lj_runtime::torch::load_torch(args[0].as_ref()).expect("torch");
    let target = Target::host();
    let mut kernels: BTreeMap<&str, Kernels> = BTreeMap::new();
    for (name, dtype) in [("f32", DType::F32), ("bf16", DType::BF16)] {
        let Some(tile) = gemm::tile(dtype, &target) else { continue };
        let start = Instant::now();
        let c = gemm::compile(&tile, &target, false).expect("compile");
        println!("{name}: {} bytes in {:.1} ms", c.object.len(), start.elapsed().as_secs_f64() * 1e3);
        if let Ok(dir) = std::env::var("LJ_KEEP") {
            let c = gemm::compile(&tile, &target, true).expect("compile");
            std::fs::write(format!("{dir}/{name}.s"), c.asm.unwrap_or_default()).expect("write");
        }
        kernels.insert(name, Kernels::new(&c.object, tile).expect("link"));
    }
    let mut list: Vec<(String, Problem)> = vec![];
    let dtype = |n: &str| if n == "f32" { DType::F32 } else { DType::BF16 };
    let mut add = |name: &str, (batch, m, n, k): (i64, i64, i64, i64), a, b| {
        let p = Problem { dtype: dtype(name), batch, m, n, k, a, b, bias: false };
        list.push((name.to_owned(), p));
    };
    for c in args[1..].chunks(6) {
        let n = |i: usize| c[i].parse().expect("a number");
        add(&c[0], (1, n(1), n(2), n(3)), order(&c[4]), order(&c[5]));
    }
    if args.len() == 1 {
        for name in ["f32", "bf16"] {
            for shape in SHAPES {
                for (a, b) in [
                    (Order::Along, Order::Along),
                    (Order::Along, Order::Across),
                    (Order::Across, Order::Across),
                ] {
                    add(name, *shape, a, b);
                }
            }
        }
    }
    for (name, p) in &list {
        let Some(k) = kernels.get(name.as_str()) else { continue };
        let cold = p.m.min(p.n) <= 32 && p.m.max(p.n) * p.k > 1 << 18;
        let b = Bench::new(k, p, cold).expect("memory");
        let flops = 2.0 * (p.batch * p.m * p.n * p.k) as f64;
        let reps = (3e9 / flops).clamp(10.0, 300.0) as usize;
        let (mut own, mut aten) = (vec![], vec![]);
        b.own(1).expect("own");
        b.aten(1).expect("aten");
        for _ in 0..reps {
            own.push(b.own(1).expect("own"));
            aten.push(b.aten(1).expect("aten"));
        }
        own.sort_by(f64::total_cmp);
        aten.sort_by(f64::total_cmp);
        let (o, a) = (own[0], aten[0]);
        println!(
            "{:<40} own {:>9.1} us {:>6.1} GF  aten {:>9.1} us {:>6.1} GF  min {:.3} median {:.3}",
            p.to_string(),
            o / 1e3,
            flops / o,
            a / 1e3,
            flops / a,
            o / a,
            own[reps / 2] / aten[reps / 2]
        );
    }
}
