//! Reductions in every loop structure, against a scalar reference.

#![allow(clippy::cast_lossless)] // in macros over every number type

use crate::common::*;
use lj_codegen::Target;
use lj_ir::{DType, ReduceOp};
use lj_schedule::loopnest::LoopNest;

/// Which loop owns the accumulator, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// A result per row: the vector loop over columns owns it.
    Row,
    /// A result per column: a serial loop over rows inside the vector loop owns it.
    Column,
    /// One result: a serial loop over rows owns it, a vector loop inside updates it.
    All,
    /// One result, without a vector loop.
    Scalar,
}

fn nest(op: ReduceOp, d: DType, form: Form, sizes: Option<(i64, i64)>) -> LoopNest {
    let (rows, cols) = sizes.map_or((s("rows"), s("cols")), |(r, c)| (e(r), e(c)));
    let mut b = Build::new(op.name(), &["rows", "cols"], if form == Form::Row { rows.clone() } else { e(1) });
    let (x, y) = (b.input(d), b.output(if op.is_arg() { DType::I64 } else { d }));
    let acc = b.acc(op, d);
    let row = if form == Form::Row { s("p") } else { s("r") };
    let index = &(&row * &cols) + &s("c");
    // Positions count within what is reduced.
    let position = match form {
        Form::Row => s("c"),
        Form::Column => s("r"),
        Form::All | Form::Scalar => index.clone(),
    };
    let step = |b: &mut Build| {
        let v = b.load(x, at(index.clone()));
        if op.is_arg() {
            let i = b.def(DType::I64, lj_schedule::loopnest::Def::Expr(position.clone()));
            b.update_at(&acc, v, i);
        } else {
            b.update(&acc, v);
        }
    };
    match form {
        Form::Row => {
            b.each("c", (e(0), cols), true, &[&acc], step);
            let v = b.result(&acc);
            b.store(y, at(s("p")), v);
        }
        Form::Column => b.each("c", (e(0), cols), true, &[], |b| {
            b.each("r", (e(0), rows), false, &[&acc], step);
            let v = b.result(&acc);
            b.store(y, at(s("c")), v);
        }),
        Form::All | Form::Scalar => {
            b.each("r", (e(0), rows), false, &[&acc], |b| {
                b.each("c", (e(0), cols), form == Form::All, &[], step);
            });
            let v = b.result(&acc);
            b.store(y, at(e(0)), v);
        }
    }
    b.finish()
}

/// Numbers whose arithmetic the reference needs.
trait Number: Plain + PartialOrd + std::fmt::Debug {
    const DTYPE: DType;
    const FLOAT: bool = false;
    fn make(r: &mut Random) -> Self;
    fn add(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn zero() -> Self;
    fn one() -> Self;
    fn nan(self) -> bool {
        false
    }
    fn to_f64(self) -> f64;
}

macro_rules! ints {
    ($($t:ty, $d:ident;)*) => { $(impl Number for $t {
        const DTYPE: DType = DType::$d;
        fn make(r: &mut Random) -> Self { if r.bits() % 3 == 0 { r.bits() as $t } else { (r.bits() % 5) as $t } }
        fn add(self, o: Self) -> Self { self.wrapping_add(o) }
        fn mul(self, o: Self) -> Self { self.wrapping_mul(o) }
        fn zero() -> Self { 0 }
        fn one() -> Self { 1 }
        fn to_f64(self) -> f64 { self as f64 }
    })* };
}
ints! { u8, U8; i8, I8; i16, I16; i32, I32; i64, I64; }

macro_rules! floats {
    ($($t:ty, $d:ident;)*) => { $(impl Number for $t {
        const DTYPE: DType = DType::$d;
        const FLOAT: bool = true;
        fn make(r: &mut Random) -> Self { (r.unit() * 8.0).round() as $t / 4.0 + 1.0 }
        fn add(self, o: Self) -> Self { self + o }
        fn mul(self, o: Self) -> Self { self * o }
        fn zero() -> Self { 0.0 }
        fn one() -> Self { 1.0 }
        fn nan(self) -> bool { self.is_nan() }
        fn to_f64(self) -> f64 { self as f64 }
    })* };
}
floats! { f32, F32; f64, F64; }

fn reference<T: Number>(op: ReduceOp, xs: &[T]) -> (T, i64) {
    let mut best = (xs[0], 0);
    let (mut sum, mut prod) = (T::zero(), T::one());
    let larger = matches!(op, ReduceOp::Max | ReduceOp::ArgMax);
    for (i, &x) in xs.iter().enumerate() {
        sum = sum.add(x);
        prod = prod.mul(x);
        let beats = if larger { x > best.0 } else { x < best.0 };
        if !best.0.nan() && (x.nan() || beats) {
            best = (x, i as i64);
        }
    }
    match op {
        ReduceOp::Sum => (sum, 0),
        ReduceOp::Prod => (prod, 0),
        _ => best,
    }
}

fn check<T: Number>(target: &Target, nan: Option<T>) {
    use ReduceOp::*;
    const SIZES: [(i64, i64); 8] =
        [(1, 1), (3, 15), (2, 16), (5, 17), (4, 64), (300, 33), (2, 700), (1, 5000)];
    let mut nests = vec![];
    let mut cases = vec![];
    for op in [Sum, Prod, Max, Min, ArgMax, ArgMin] {
        for form in [Form::Row, Form::Column, Form::All, Form::Scalar] {
            nests.push(nest(op, T::DTYPE, form, None));
            for size in SIZES {
                cases.push((nests.len() - 1, op, form, size));
            }
            if op == Sum || op == ArgMax {
                for size in [SIZES[3], SIZES[4], SIZES[7]] {
                    nests.push(nest(op, T::DTYPE, form, Some(size)));
                    cases.push((nests.len() - 1, op, form, size));
                }
            }
        }
    }
    let k = Kernels::new(&nests, target);
    for (n, op, form, (rows, cols)) in cases {
        for with_nan in [false, true] {
            let (r, c) = (rows as usize, cols as usize);
            let mut random = Random(n as u64);
            let mut x: Vec<T> = (0..r * c).map(|_| T::make(&mut random)).collect();
            if with_nan {
                let Some(nan) = nan else { continue };
                let at = random.bits() as usize % x.len();
                x[at] = nan;
                x[(at + 5) % (r * c)] = nan;
            }
            let groups: Vec<Vec<T>> = match form {
                Form::Row => x.chunks(c).map(<[T]>::to_vec).collect(),
                Form::Column => (0..c).map(|j| (0..r).map(|i| x[i * c + j]).collect()).collect(),
                Form::All | Form::Scalar => vec![x.clone()],
            };
            let mut y = vec![T::one(); groups.len()];
            let mut yi = vec![-1i64; groups.len()];
            let range = (0, if form == Form::Row { rows } else { 1 });
            let out = if op.is_arg() { buf(&mut yi) } else { buf(&mut y) };
            k.run(n, &mut [buf(&mut x), out], &[rows, cols], range);
            for (g, xs) in groups.iter().enumerate() {
                let (want, at) = reference(op, xs);
                let what = || format!("{op:?} {} {form:?} {rows}x{cols} nan={with_nan} group {g}", T::DTYPE);
                if op.is_arg() {
                    assert_eq!(yi[g], at, "{}", what());
                } else if want.nan() || y[g].nan() {
                    assert!(want.nan() && y[g].nan(), "{}", what());
                } else if T::FLOAT && matches!(op, Sum | Prod) {
                    let (a, b) = (y[g].to_f64(), want.to_f64());
                    assert!(a == b || (a - b).abs() <= 3e-5 * b.abs() + 1e-37, "{}: {a} {b}", what());
                } else {
                    assert!(y[g] == want, "{}: {:?} {want:?}", what(), y[g]);
                }
            }
        }
    }
}

#[test]
fn floats() {
    check::<f32>(&Target::host(), Some(f32::NAN));
    check::<f64>(&Target::host(), Some(f64::NAN));
}

#[test]
fn integers() {
    let t = Target::host();
    check::<u8>(&t, None);
    check::<i8>(&t, None);
    check::<i16>(&t, None);
    check::<i32>(&t, None);
    check::<i64>(&t, None);
}

#[test]
fn without_avx512() {
    let t = Target::new("haswell", "+avx2,+avx,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt");
    assert_eq!(t.lanes, 8);
    check::<f32>(&t, Some(f32::NAN));
    check::<i64>(&t, None);
}

#[test]
fn any_and_all() {
    let mut nests = vec![];
    for op in [ReduceOp::Any, ReduceOp::All] {
        for form in [Form::Row, Form::Column, Form::All, Form::Scalar] {
            nests.push((op, form, nest(op, DType::Bool, form, None)));
        }
    }
    let k = Kernels::new(&nests.iter().map(|n| n.2.clone()).collect::<Vec<_>>(), &Target::host());
    for (n, (op, form, _)) in nests.iter().enumerate() {
        for (rows, cols) in [(1, 1), (4, 17), (40, 100)] {
            for odd in [None, Some(0), Some(16)] {
                let common = u8::from(*op == ReduceOp::All);
                let mut x = vec![common; rows * cols];
                let odd = odd.filter(|o| *o < x.len());
                if let Some(o) = odd {
                    x[o] = 1 - common;
                }
                let groups = match form {
                    Form::Row => rows,
                    Form::Column => cols,
                    _ => 1,
                };
                let mut y = vec![7u8; groups];
                let range = (0, if *form == Form::Row { rows as i64 } else { 1 });
                k.run(n, &mut [buf(&mut x), buf(&mut y)], &[rows as i64, cols as i64], range);
                for (g, &got) in y.iter().enumerate() {
                    let hit = odd.is_some_and(|o| match form {
                        Form::Row => o / cols == g,
                        Form::Column => o % cols == g,
                        _ => true,
                    });
                    assert_eq!(
                        got,
                        if hit { 1 - common } else { common },
                        "{op:?} {form:?} {rows}x{cols} {odd:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn long_float_sums_stay_accurate() {
    let n = 10_000_000usize;
    let nests: Vec<_> = [Form::Row, Form::Column, Form::All, Form::Scalar]
        .into_iter()
        .map(|f| (f, nest(ReduceOp::Sum, DType::F32, f, None)))
        .collect();
    let k = Kernels::new(&nests.iter().map(|n| n.1.clone()).collect::<Vec<_>>(), &Target::host());
    let mut r = Random(3);
    let random: Vec<f32> = (0..n).map(|_| (r.unit() * 0.5 + 0.5) as f32).collect();
    for mut x in [random, vec![1f32; n], vec![0.1f32; n]] {
        let want: f64 = x.iter().map(|&v| f64::from(v)).sum();
        for (i, (form, _)) in nests.iter().enumerate() {
            let (rows, cols) = match form {
                Form::Row => (1, n),
                Form::Column => (n, 1),
                _ => (1000, n / 1000),
            };
            let mut y = [0f32; 1];
            k.run(i, &mut [buf(&mut x), buf(&mut y)], &[rows as i64, cols as i64], (0, 1));
            let error = (f64::from(y[0]) - want).abs() / want;
            assert!(error < 1.5e-6, "{form:?}: relative error {error:e}");
        }
    }
}
