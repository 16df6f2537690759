//! Accuracy of our own polynomials, over all magnitudes.

use crate::common::*;
use lj_codegen::Target;
use lj_ir::{DType, PwOp};

/// Distance in units of the last place of the result, against a value computed in f64.
fn ulps(got: f32, want: f64) -> f64 {
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let rounded = want as f32;
    if got == rounded {
        return 0.0;
    }
    if got.is_infinite() || rounded.is_infinite() {
        // Overflow is rounding too, if it is by a hair.
        let edge = f64::from(f32::MAX);
        return if want.abs() > edge * 0.999_999 && got.abs() >= f32::MAX { 1.0 } else { f64::INFINITY };
    }
    let exponent = (rounded.abs().max(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(got) - want).abs() / 2f64.powf(f64::from(exponent) - 23.0)
}

#[test]
fn polynomials_are_accurate_everywhere() {
    type Reference = fn(f64) -> f64;
    let functions: [(PwOp, Reference, f64); 5] = [
        (PwOp::Exp, f64::exp, 1.1),
        (PwOp::Log, f64::ln, 1.0),
        (PwOp::Tanh, f64::tanh, 2.0),
        (PwOp::Erf, erf, 1.1),
        (PwOp::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 2.5),
    ];
    let mut nests = vec![];
    for vector in [true, false] {
        for (op, ..) in functions {
            let mut b = Build::new(op.name(), &["n"], e(1));
            let (x, y) = (b.input(DType::F32), b.output(DType::F32));
            b.each("i", (e(0), s("n")), vector, &[], |b| {
                let v = b.load(x, at(s("i")));
                let v = b.pw(DType::F32, op, &[v]);
                b.store(y, at(s("i")), v);
            });
            nests.push(b.finish());
        }
    }
    // Every 2,003rd float, NaNs and infinities included, and the dense middle.
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(2003).map(f32::from_bits).collect();
    x.extend(Random(2).floats(200_000, 12.0));
    x.extend(Random(3).floats(200_000, 104.0));
    x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    for t in [Target::host(), Target::new("haswell", "+avx2,+avx,+fma,+f16c")] {
        let k = Kernels::new(&nests, &t);
        for n in 0..nests.len() {
            let (op, reference, limit) = functions[n % functions.len()];
            let mut y = vec![0f32; x.len()];
            let len = x.len() as i64;
            k.run(n, &mut [buf(&mut x), buf(&mut y)], &[len], (0, 1));
            let mut worst = (0.0, 0.0, 0.0);
            for (&x, &y) in x.iter().zip(&y) {
                // Eager's sigmoid underflows to 0 where e⁻ˣ overflows, and so does ours.
                if op == PwOp::Sigmoid && x < -88.0 {
                    assert!((0.0..=7e-39).contains(&y), "sigmoid {x}: {y}");
                    continue;
                }
                let u = ulps(y, reference(f64::from(x)));
                if u > worst.0 {
                    worst = (u, x, y);
                }
                let zero_sign = x == 0.0 && matches!(op, PwOp::Tanh | PwOp::Erf);
                assert!(!zero_sign || y.is_sign_negative() == x.is_sign_negative(), "{} of {x:?}", op.name());
            }
            assert!(
                worst.0 <= limit,
                "{} {}: {} ulp at {:e} ({:e})",
                op.name(),
                t.cpu,
                worst.0,
                worst.1,
                worst.2
            );
        }
    }
}
