//! Running values in every loop structure, against a scalar reference.

use crate::common::*;
use lj_codegen::Target;
use lj_ir::{DType, Expr, ScanOp};
use lj_schedule::loopnest::{AccId, Carry, Def, Loop, LoopNest, Reg, Stmt};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// The vector loop along the row owns the carry.
    Row,
    /// The same from the last column to the first, starting from the row's number.
    Backwards,
    /// A serial loop down the column inside a vector loop owns it: one for each lane.
    Column,
    /// A serial loop without lanes.
    Scalar,
}

fn nest(op: ScanOp, d: DType, form: Form) -> LoopNest {
    let (rows, cols) = (s("rows"), s("cols"));
    let parallel = if form == Form::Column { e(1) } else { rows.clone() };
    let mut b = Build::new(op.name(), &["rows", "cols"], parallel);
    let (x, y, ends) = (b.input(d), b.output(d), b.output(d));
    let id = AccId(0);
    let walk = |b: &mut Build, var: &str, end, vector, init: Option<Reg>, index: Expr| {
        b.each(var, (e(0), end), vector, &[], |b| {
            let v = b.load(x, at(index.clone()));
            let r = b.def(d, Def::Scan { carry: id, value: v });
            b.store(y, at(index), r);
        });
        b.last_loop().carries = vec![Carry { id, op, dtype: d, init }];
    };
    if form == Form::Column {
        b.each("c", (e(0), cols.clone()), true, &[], |b| {
            walk(b, "r", rows, false, None, &(&s("r") * &cols) + &s("c"));
            let last = b.def(d, Def::Acc(id));
            b.store(ends, at(s("c")), last);
        });
    } else {
        let init = (form == Form::Backwards).then(|| b.def(d, Def::Expr(s("p"))));
        let c = if form == Form::Backwards { &(&cols - &e(1)) - &s("c") } else { s("c") };
        let index = &(&s("p") * &cols) + &c;
        walk(&mut b, "c", cols, form != Form::Scalar, init, index);
        let last = b.def(d, Def::Acc(id));
        b.store(ends, at(s("p")), last);
    }
    b.finish()
}

trait Number: Plain + std::fmt::Debug {
    const DTYPE: DType;
    /// Small values, so that sums and products are exact; NaN and −0 among floats.
    fn make(r: &mut Random, op: ScanOp) -> Self;
    fn from(n: i64) -> Self;
    fn step(self, op: ScanOp, o: Self) -> Self;
    /// What a scan starts from.
    fn first(op: ScanOp) -> Self;
    fn same(self, o: Self) -> bool;
}

macro_rules! number {
    ($($t:ty, $d:ident, $nan:expr, $least:expr, $most:expr, $add:ident, $mul:ident;)*) => { $(impl Number for $t {
        const DTYPE: DType = DType::$d;
        fn make(r: &mut Random, op: ScanOp) -> Self {
            match (op, r.bits() % 16) {
                (ScanOp::Prod, n) => if n < 2 { 2 as $t } else { 1 as $t },
                (ScanOp::Max | ScanOp::Min, 0) if r.bits() % 64 == 0 => $nan,
                (_, n) => if n == 1 { <$t>::neg(0 as $t) } else { (r.bits() % 7) as $t },
            }
        }
        fn from(n: i64) -> Self { n as $t }
        fn step(self, op: ScanOp, o: Self) -> Self {
            #[allow(clippy::eq_op)]
            let nan = o != o;
            match op {
                ScanOp::Sum => <$t>::$add(self, o),
                ScanOp::Prod => <$t>::$mul(self, o),
                ScanOp::Max => if nan || o >= self { o } else { self },
                _ => if nan || o <= self { o } else { self },
            }
        }
        fn first(op: ScanOp) -> Self {
            match op { ScanOp::Sum => 0 as $t, ScanOp::Prod => 1 as $t, ScanOp::Max => $least, _ => $most }
        }
        #[allow(clippy::float_cmp)]
        fn same(self, o: Self) -> bool {
            format!("{self:?}") == format!("{o:?}")
        }
    })* };
}

/// Negation that leaves integers as they are.
trait Neg {
    fn neg(self) -> Self;
}
macro_rules! neg { ($($t:ty, $f:expr;)*) => { $(impl Neg for $t { fn neg(self) -> Self { $f(self) } })* } }
neg! { f32, |x: f32| -x; f64, |x: f64| -x; u8, |x| x; i16, |x| x; i64, |x| x; }
number! {
    f32, F32, f32::NAN, f32::NEG_INFINITY, f32::INFINITY, plus, times;
    f64, F64, f64::NAN, f64::NEG_INFINITY, f64::INFINITY, plus, times;
    u8, U8, 0, 0, 255, wrapping_add, wrapping_mul;
    i16, I16, 0, i16::MIN, i16::MAX, wrapping_add, wrapping_mul;
    i64, I64, 0, i64::MIN, i64::MAX, wrapping_add, wrapping_mul;
}
/// Names for the arithmetic of floats that the macro can use.
trait Arithmetic: std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> + Sized {
    fn plus(self, o: Self) -> Self {
        self + o
    }
    fn times(self, o: Self) -> Self {
        self * o
    }
}
impl Arithmetic for f32 {}
impl Arithmetic for f64 {}

fn check<T: Number>() {
    let ops = [ScanOp::Sum, ScanOp::Prod, ScanOp::Max, ScanOp::Min];
    let forms = [Form::Row, Form::Backwards, Form::Column, Form::Scalar];
    let cases: Vec<(ScanOp, Form)> = ops.iter().flat_map(|o| forms.map(|f| (*o, f))).collect();
    let nests: Vec<LoopNest> = cases.iter().map(|(o, f)| nest(*o, T::DTYPE, *f)).collect();
    let k = Kernels::new(&nests, &Target::host());
    for (n, (op, form)) in cases.into_iter().enumerate() {
        for (rows, cols) in [(1, 1), (3, 15), (2, 16), (5, 17), (4, 64), (20, 33), (2, 700)] {
            let (r, c) = (rows as usize, cols as usize);
            let mut random = Random(n as u64 + 1);
            let mut x: Vec<T> = (0..r * c).map(|_| T::make(&mut random, op)).collect();
            let mut y = vec![T::from(99); r * c];
            let mut ends = vec![T::from(99); r.max(c)];
            let range = (0, if form == Form::Column { 1 } else { rows });
            k.run(n, &mut [buf(&mut x), buf(&mut y), buf(&mut ends)], &[rows, cols], range);
            let (groups, len) = if form == Form::Column { (c, r) } else { (r, c) };
            for (g, end) in ends.iter().enumerate().take(groups) {
                let mut before = if form == Form::Backwards { T::from(g as i64) } else { T::first(op) };
                for i in 0..len {
                    let place = match form {
                        Form::Column => i * c + g,
                        Form::Backwards => g * c + c - 1 - i,
                        _ => g * c + i,
                    };
                    before = before.step(op, x[place]);
                    let what = format!("{op:?} {} {form:?} {rows}x{cols} at {g}, {i}", T::DTYPE);
                    assert!(y[place].same(before), "{what}: {:?}, not {before:?}", y[place]);
                }
                assert!(end.same(before), "{op:?} {form:?} {rows}x{cols}: end of {g}");
            }
        }
    }
}

#[test]
fn floats() {
    check::<f32>();
    check::<f64>();
}

#[test]
fn integers() {
    check::<u8>();
    check::<i16>();
    check::<i64>();
}

/// ln Σ eˣ, which must not overflow on the way. (In lanes it needs SLEEF, which only torch has.)
#[test]
fn logsumexp() {
    let k = Kernels::new(&[nest(ScanOp::LogSumExp, DType::F64, Form::Scalar)], &Target::host());
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let mut x = [-inf, -inf, 700.0, 705.0, -3.0, 1000.0, 1000.0, inf, 3.0, -inf, inf, nan, 1.0, inf];
    let want = [
        -inf,
        -inf,
        700.0,
        705.0 + (-5f64).exp().ln_1p(),
        705.0 + (-5f64).exp().ln_1p(),
        1000.0,
        1000.0 + 2f64.ln(),
        inf,
        inf,
        inf,
        inf,
        nan,
        nan,
        nan,
    ];
    let (mut y, mut ends) = ([0.0; 14], [0.0; 1]);
    k.run(0, &mut [buf(&mut x), buf(&mut y), buf(&mut ends)], &[1, 14], (0, 1));
    for (at, (&y, want)) in y.iter().zip(want).enumerate() {
        let close = y == want || (y - want).abs() < 1e-13 * want.abs();
        assert!(close || y.is_nan() && want.is_nan(), "at {at}: {y}, not {want}");
    }
}

/// What the verifier refuses.
#[test]
fn misuse_is_an_error() {
    let good = nest(ScanOp::Sum, DType::F32, Form::Row);
    let change = |f: &dyn Fn(&mut Loop)| {
        let mut n = good.clone();
        let Some(Stmt::For(l)) = n.body.iter_mut().find(|s| matches!(s, Stmt::For(_))) else {
            unreachable!()
        };
        f(l);
        lj_codegen::compile(&[n], &Target::host(), false).expect_err("refused").to_string()
    };
    let twice = change(&|l| {
        let value = Reg(0);
        let def = Def::Scan { carry: AccId(0), value };
        l.body.insert(2, Stmt::Let { reg: Reg(77), dtype: DType::F32, def });
    });
    assert!(twice.contains("used twice"), "{twice}");
    let dtype = change(&|l| l.carries[0].dtype = DType::F64);
    assert!(dtype.contains("of f64 gets f32"), "{dtype}");
    let half = change(&|l| l.carries[0].dtype = DType::BF16);
    assert!(half.contains("carry 0 of dtype bf16"), "{half}");
    let none = change(&|l| l.carries.clear());
    assert!(none.contains("not of the innermost loop"), "{none}");
}
