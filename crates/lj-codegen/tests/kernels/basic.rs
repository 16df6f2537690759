//! Whole kernels: pointwise, rows, nested loops.

use crate::common::*;
use lj_codegen::Target;
use lj_ir::{DType, PwOp};

const LENGTHS: [i64; 9] = [0, 1, 15, 16, 17, 64, 100, 257, 1000];

#[test]
fn pointwise_with_every_tail() {
    let nests: Vec<_> = LENGTHS
        .iter()
        .flat_map(|&n| [s("n"), e(n)])
        .map(|n| {
            let mut b = Build::new("add", &["n"], e(1));
            let (x, y, z) = (b.input(DType::F32), b.input(DType::F32), b.output(DType::F32));
            b.each("i", (e(0), n), true, &[], |b| {
                let u = b.load(x, at(s("i")));
                let v = b.load(y, at(s("i")));
                let w = b.pw(DType::F32, PwOp::Add, &[u, v]);
                b.store(z, at(s("i")), w);
            });
            b.finish()
        })
        .collect();
    let k = Kernels::new(&nests, &Target::host());
    for (i, _) in nests.iter().enumerate() {
        let n = LENGTHS[i / 2] as usize;
        let mut r = Random(i as u64);
        let (mut x, mut y) = (r.floats(n, 3.0), r.floats(n, 3.0));
        let mut z = vec![7f32; n + 64];
        k.run(i, &mut [buf(&mut x), buf(&mut y), buf(&mut z)], &[n as i64], (0, 1));
        let expect: Vec<f32> = (0..n + 64).map(|j| if j < n { x[j] + y[j] } else { 7.0 }).collect();
        assert_eq!(z, expect, "length {n}");
    }
}

#[test]
fn softmax_rows() {
    let nests: Vec<_> = LENGTHS[1..]
        .iter()
        .flat_map(|&n| [softmax(s("cols"), DType::F32), softmax(e(n), DType::F32)])
        .collect();
    let k = Kernels::new(&nests, &Target::host());
    for i in 0..nests.len() {
        let n = LENGTHS[1 + i / 2] as usize;
        let rows = 3;
        let mut x = Random(5 + i as u64).floats(n * rows, 20.0);
        let mut y = vec![0f32; n * rows];
        k.run(i, &mut [buf(&mut x), buf(&mut y)], &[rows as i64, n as i64], (0, rows as i64));
        for row in 0..rows {
            let x = &x[row * n..(row + 1) * n];
            let m = x.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            let ex: Vec<f64> = x.iter().map(|&v| f64::from(v - m).exp()).collect();
            let sum: f64 = ex.iter().sum();
            for c in 0..n {
                let (got, want) = (f64::from(y[row * n + c]), ex[c] / sum);
                assert!((got - want).abs() <= 4e-7 * want + 1e-37, "{n} {row} {c}: {got} {want}");
            }
        }
    }
}

/// LLVM 22 widened a masked store with one constant lane of a narrow element.
#[test]
fn narrow_stores_of_a_known_length_stay_inside() {
    let narrow = [DType::BF16, DType::F16, DType::I16, DType::I8, DType::U8, DType::Bool];
    let cases: Vec<_> = narrow.iter().flat_map(|&d| [1, 2, 17, 33, 49].map(|n| (d, n))).collect();
    let nests: Vec<_> = cases
        .iter()
        .map(|&(dtype, n)| {
            let mut b = Build::new("narrow", &[], e(1));
            let (x, y) = (b.input(DType::F32), b.output(dtype));
            b.each("i", (e(0), e(n)), true, &[], |b| {
                let u = b.load(x, at(s("i")));
                let v = b.convert(dtype, u);
                b.store(y, at(s("i")), v);
            });
            b.finish()
        })
        .collect();
    let k = Kernels::new(&nests, &Target::host());
    for (i, &(dtype, n)) in cases.iter().enumerate() {
        let mut x = vec![1f32; n as usize];
        let size = n as usize * dtype.bytes() as usize;
        let mut y = vec![0xabu8; size + 64];
        k.run(i, &mut [buf(&mut x), buf(&mut y)], &[], (0, 1));
        assert!(y[size..].iter().all(|&v| v == 0xab), "{dtype} of length {n} writes beyond its end");
        assert!(y[..size].iter().all(|&v| v != 0xab), "{dtype} of length {n} is not written");
    }
}
