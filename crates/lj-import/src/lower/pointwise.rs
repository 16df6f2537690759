//! Elementwise operators.
//!
//! An operator computes in the *opmath* type of its promoted dtype (`f32` for 16-bit floats) and
//! rounds its result once.

use super::Row;
use crate::cx::{Cx, Lowered, Operand, Val, decline};
use crate::promote::{Rank, result_type};
use lj_ir::{DType, PwOp, Scalar, ValueId};

/// Rows for `aten.NAME.default` and `prims.NAME.default`.
macro_rules! unary {
    ($($name:literal $f:ident $op:ident;)*) => {
        &[$(
            (concat!("aten.", $name, ".default"), |cx| $f(cx, PwOp::$op)),
            (concat!("prims.", $name, ".default"), |cx| $f(cx, PwOp::$op)),
        )*]
    };
}

pub(super) const UNARY: &[Row] = unary! {
    "neg" same Neg;
    "abs" same Abs;
    "sign" same Sign;
    "sgn" same Sign;
    "reciprocal" float Reciprocal;
    "sqrt" float Sqrt;
    "rsqrt" float Rsqrt;
    "exp" float Exp;
    "exp2" float Exp2;
    "expm1" float Expm1;
    "log" float Log;
    "log2" float Log2;
    "log10" float Log10;
    "log1p" float Log1p;
    "sigmoid" float Sigmoid;
    "tanh" float Tanh;
    "sin" float Sin;
    "cos" float Cos;
    "tan" float Tan;
    "asin" float Asin;
    "acos" float Acos;
    "atan" float Atan;
    "sinh" float Sinh;
    "cosh" float Cosh;
    "asinh" float Asinh;
    "acosh" float Acosh;
    "atanh" float Atanh;
    "erf" float Erf;
    "special_erf" float Erf;
    "erfc" float Erfc;
    "floor" rounding Floor;
    "ceil" rounding Ceil;
    "round" rounding Round;
    "trunc" rounding Trunc;
    "isnan" float_test IsNan;
    "isinf" float_test IsInf;
    "bitwise_not" same Not;
};

/// How a 16-bit operation takes a number or 0-d tensor on the right (measured on torch 2.8 and 2.15).
#[derive(Clone, Copy, PartialEq)]
enum Right {
    /// Unrounded, as ATen's kernels of products and quotients read it.
    Exact,
    /// Rounded to the promoted dtype first.
    Rounded,
}

/// Rows for the tensor, scalar and prims overloads of a binary operator.
macro_rules! binary {
    ($($name:literal $f:expr;)*) => {
        &[$(
            (concat!("aten.", $name, ".Tensor"), $f),
            (concat!("aten.", $name, ".Scalar"), $f),
            (concat!("aten.", $name, ".default"), $f),
            (concat!("aten.", $name, ".Tensor_Tensor"), $f),
            (concat!("aten.", $name, ".Tensor_Scalar"), $f),
            (concat!("aten.", $name, ".Scalar_Tensor"), $f),
            (concat!("prims.", $name, ".default"), $f),
        )*]
    };
}

pub(super) const BINARY: &[Row] = binary! {
    "add" |cx| add(cx, PwOp::Add);
    "sub" |cx| add(cx, PwOp::Sub);
    "subtract" |cx| add(cx, PwOp::Sub);
    "rsub" rsub;
    "mul" |cx| arith(cx, PwOp::Mul, Right::Exact);
    "div" div;
    "true_divide" true_divide;
    "floor_divide" |cx| arith(cx, PwOp::FloorDiv, Right::Rounded);
    "remainder" |cx| arith(cx, PwOp::Remainder, Right::Rounded);
    "fmod" |cx| arith(cx, PwOp::Fmod, Right::Rounded);
    "maximum" |cx| arith(cx, PwOp::Maximum, Right::Rounded);
    "minimum" |cx| arith(cx, PwOp::Minimum, Right::Rounded);
    "fmax" |cx| arith(cx, PwOp::Fmax, Right::Rounded);
    "fmin" |cx| arith(cx, PwOp::Fmin, Right::Rounded);
    "atan2" |cx| arith_float(cx, PwOp::Atan2);
    "hypot" |cx| arith_float(cx, PwOp::Hypot);
    "copysign" |cx| arith_float(cx, PwOp::Copysign);
    "pow" pow;
    "eq" |cx| arith(cx, PwOp::Eq, Right::Rounded);
    "ne" |cx| arith(cx, PwOp::Ne, Right::Rounded);
    "lt" |cx| arith(cx, PwOp::Lt, Right::Rounded);
    "le" |cx| arith(cx, PwOp::Le, Right::Rounded);
    "gt" |cx| arith(cx, PwOp::Gt, Right::Rounded);
    "ge" |cx| arith(cx, PwOp::Ge, Right::Rounded);
    "bitwise_and" |cx| arith(cx, PwOp::And, Right::Rounded);
    "bitwise_or" |cx| arith(cx, PwOp::Or, Right::Rounded);
    "bitwise_xor" |cx| arith(cx, PwOp::Xor, Right::Rounded);
    "bitwise_left_shift" |cx| arith(cx, PwOp::Shl, Right::Rounded);
    "bitwise_right_shift" |cx| arith(cx, PwOp::Shr, Right::Rounded);
    "__lshift__" |cx| arith(cx, PwOp::Shl, Right::Rounded);
    "__rshift__" |cx| arith(cx, PwOp::Shr, Right::Rounded);
    "shift_left" |cx| arith(cx, PwOp::Shl, Right::Rounded);
    "shift_right_arithmetic" |cx| arith(cx, PwOp::Shr, Right::Rounded);
    "logical_and" |cx| logical(cx, PwOp::And);
    "logical_or" |cx| logical(cx, PwOp::Or);
    "logical_xor" |cx| logical(cx, PwOp::Xor);
};

pub(super) const OTHER: &[Row] = &[
    ("aten.div.Tensor_mode", div_mode),
    ("aten.div.Scalar_mode", div_mode),
    ("aten.logical_not.default", logical_not),
    ("aten.signbit.default", signbit),
    ("prims.signbit.default", signbit),
    ("aten.square.default", |cx| {
        let x = cx.operand(0, "self")?;
        let x = compute(cx, &x, |d| d)?;
        let r = cx.pw(PwOp::Mul, &[x, x])?;
        cx.done(r)
    }),
    ("prims.fma.default", fma),
    ("aten.addcmul.default", |cx| addc(cx, PwOp::Mul)),
    ("aten.addcdiv.default", |cx| addc(cx, PwOp::Div)),
    ("aten.lerp.Tensor", lerp),
    ("aten.lerp.Scalar", lerp),
    ("aten.sigmoid_backward.default", |cx| {
        derivative(cx, |cx, y| {
            let one = cx.float(1.0, cx.dtype(y));
            let rest = cx.pw(PwOp::Sub, &[one, y])?;
            cx.pw(PwOp::Mul, &[rest, y])
        })
    }),
    ("aten.tanh_backward.default", |cx| {
        derivative(cx, |cx, y| {
            let one = cx.float(1.0, cx.dtype(y));
            let square = cx.pw(PwOp::Mul, &[y, y])?;
            cx.pw(PwOp::Sub, &[one, square])
        })
    }),
    ("aten.native_dropout_backward.default", dropout_backward),
];

// ---- operands ----

/// Rank and dtype of an operand in promotion.
fn rank(cx: &Cx<'_>, o: &Operand) -> (Rank, DType) {
    match o {
        Operand::Tensor(v) => (if cx.rank(*v) == 0 { Rank::Scalar } else { Rank::Dims }, cx.dtype(*v)),
        Operand::Const(Scalar::Bool(_)) => (Rank::Number, DType::Bool),
        Operand::Const(Scalar::Int(_)) | Operand::Sym(_) => (Rank::Number, DType::I64),
        Operand::Number(v) if cx.dtype(*v) == DType::Bool => (Rank::Number, DType::Bool),
        // The default dtype; that of a double default shows in the metadata instead.
        Operand::Const(Scalar::Float(_)) | Operand::Number(_) => (Rank::Number, DType::F32),
    }
}

/// The promoted dtype of `operands`.
pub(super) fn promoted(cx: &Cx<'_>, operands: &[&Operand]) -> Lowered<DType> {
    let ranks: Vec<_> = operands.iter().map(|o| rank(cx, o)).collect();
    match result_type(&ranks) {
        Some(d) => Ok(d),
        None => decline("no operands"),
    }
}

/// The promoted dtype, or the floating-point dtype of the result if that is not floating.
fn promoted_float(cx: &Cx<'_>, operands: &[&Operand]) -> Lowered<DType> {
    let d = promoted(cx, operands)?;
    let result = cx.result()?.dtype;
    Ok(if d.is_float() || !result.is_float() { d } else { result })
}

/// `o` in the opmath type of `common`, rounded to `common` on the way unless `exact`.
pub(super) fn value(cx: &mut Cx<'_>, o: &Operand, common: DType, exact: bool) -> ValueId {
    let compute = common.compute();
    let v = match o {
        Operand::Const(s) => {
            let s = if exact { *s } else { s.cast(common) };
            return cx.constant(s, compute);
        }
        Operand::Sym(e) => cx.sym(e, if exact { compute } else { common }),
        Operand::Tensor(v) | Operand::Number(v) => *v,
    };
    let v = if exact { v } else { cx.convert(v, common) };
    cx.convert(v, compute)
}

/// A lone operand in the opmath type of `pick(its dtype)`.
pub(super) fn compute(cx: &mut Cx<'_>, o: &Operand, pick: impl Fn(DType) -> DType) -> Lowered<ValueId> {
    let d = promoted(cx, &[o])?;
    Ok(value(cx, o, pick(d), false))
}

// ---- unary ----

/// On the operand's own dtype.
fn same(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let x = cx.operand(0, "self")?;
    let d = promoted(cx, &[&x])?;
    // |b| and sign(b) of a bool are b itself.
    if d == DType::Bool && matches!(op, PwOp::Abs | PwOp::Sign) {
        let v = value(cx, &x, d, false);
        return cx.done(v);
    }
    let v = value(cx, &x, d, false);
    let r = cx.pw(op, &[v])?;
    cx.done(r)
}

/// Integers become floats first.
fn float(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let x = cx.operand(0, "self")?;
    let d = promoted_float(cx, &[&x])?;
    let v = value(cx, &x, d, false);
    let r = cx.pw(op, &[v])?;
    cx.done(r)
}

/// Integers are unchanged.
fn rounding(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let x = cx.tensor(0, "self")?;
    if cx.dtype(x).is_float() { same(cx, op) } else { cx.done(x) }
}

/// False for integers.
fn float_test(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let x = cx.tensor(0, "self")?;
    if cx.dtype(x).is_float() {
        return same(cx, op);
    }
    let ty = cx.result()?.clone();
    Ok(Val::Tensor(cx.push(lj_ir::Op::Full(Scalar::Bool(false)), vec![], ty)))
}

fn signbit(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let d = cx.dtype(x);
    if d.is_float() {
        return same(cx, PwOp::SignBit);
    }
    let zero = cx.constant(Scalar::Int(0), d);
    let r = cx.pw(PwOp::Lt, &[x, zero])?;
    cx.done(r)
}

fn logical_not(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let b = cx.convert(x, DType::Bool);
    let r = cx.pw(PwOp::Not, &[b])?;
    cx.done(r)
}

// ---- binary ----

fn apply(cx: &mut Cx<'_>, op: PwOp, a: &Operand, b: &Operand, common: DType, right: Right) -> Lowered {
    let scalar = !matches!(b, Operand::Tensor(v) if cx.rank(*v) > 0);
    let exact = right == Right::Exact && scalar && common.compute() != common;
    let x = value(cx, a, common, false);
    let y = value(cx, b, common, exact);
    let r = cx.pw(op, &[x, y])?;
    cx.done(r)
}

fn pair(cx: &mut Cx<'_>) -> Lowered<(Operand, Operand)> {
    Ok((cx.operand(0, "self")?, cx.operand(1, "other")?))
}

fn arith(cx: &mut Cx<'_>, op: PwOp, right: Right) -> Lowered {
    let (a, b) = pair(cx)?;
    let d = promoted(cx, &[&a, &b])?;
    // Where the default dtype is double, the result says so.
    let result = cx.result()?.dtype;
    let d = if d.is_float() && result == DType::F64 { result } else { d };
    apply(cx, op, &a, &b, d, right)
}

fn arith_float(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let (a, b) = pair(cx)?;
    let d = promoted_float(cx, &[&a, &b])?;
    apply(cx, op, &a, &b, d, Right::Rounded)
}

/// `self ± alpha × other`.
fn add(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let alpha = cx.opt_operand(2, "alpha")?.unwrap_or(Operand::Const(Scalar::Int(1)));
    if let Operand::Const(k) = alpha
        && k.as_f64() == 1.0
    {
        return arith(cx, op, Right::Rounded);
    }
    let (a, b) = pair(cx)?;
    scaled(cx, op, &a, &b, &alpha)
}

/// `other − alpha × self`.
fn rsub(cx: &mut Cx<'_>) -> Lowered {
    let alpha = cx.opt_operand(2, "alpha")?.unwrap_or(Operand::Const(Scalar::Int(1)));
    let (a, b) = pair(cx)?;
    scaled(cx, PwOp::Sub, &b, &a, &alpha)
}

fn scaled(cx: &mut Cx<'_>, op: PwOp, a: &Operand, b: &Operand, alpha: &Operand) -> Lowered {
    let d = promoted(cx, &[a, b])?;
    let x = value(cx, a, d, false);
    let mut y = value(cx, b, d, false);
    if !matches!(alpha, Operand::Const(k) if k.as_f64() == 1.0) {
        let mut k = match alpha {
            // A constant is rounded, and negated, now.
            Operand::Const(k) if d.is_float() => {
                let k = k.cast(d).as_f64();
                cx.float(if op == PwOp::Sub { -k } else { k }, d.compute())
            }
            Operand::Const(k) => cx.constant(k.cast(d), d),
            known_later => value(cx, known_later, d, false),
        };
        if d.is_float() {
            if op == PwOp::Sub && !matches!(alpha, Operand::Const(_)) {
                k = cx.pw(PwOp::Neg, &[k])?;
            }
            let r = cx.pw(PwOp::Fma, &[y, k, x])?;
            return cx.done(r);
        }
        y = cx.pw(PwOp::Mul, &[y, k])?;
    }
    let r = cx.pw(op, &[x, y])?;
    cx.done(r)
}

/// True division; `prims.div` truncates integers.
fn div(cx: &mut Cx<'_>) -> Lowered {
    if cx.result()?.dtype.is_float() { true_divide(cx) } else { arith(cx, PwOp::TruncDiv, Right::Rounded) }
}

fn true_divide(cx: &mut Cx<'_>) -> Lowered {
    let (a, b) = pair(cx)?;
    let d = promoted_float(cx, &[&a, &b])?;
    apply(cx, PwOp::Div, &a, &b, d, Right::Exact)
}

fn div_mode(cx: &mut Cx<'_>) -> Lowered {
    match cx.str_arg(2, "rounding_mode") {
        None => true_divide(cx),
        Some("floor") => arith(cx, PwOp::FloorDiv, Right::Exact),
        Some("trunc") => arith(cx, PwOp::TruncDiv, Right::Exact),
        Some(other) => decline(format!("rounding mode `{other}`")),
    }
}

fn logical(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let (a, b) = pair(cx)?;
    let x = value(cx, &a, DType::Bool, false);
    let y = value(cx, &b, DType::Bool, false);
    let r = cx.pw(op, &[x, y])?;
    cx.done(r)
}

fn pow(cx: &mut Cx<'_>) -> Lowered {
    let (a, b) = pair(cx)?;
    let d = promoted(cx, &[&a, &b])?;
    let Operand::Const(e) = b else {
        if d.is_int() && matches!(a, Operand::Const(_)) {
            return decline("integer power of a number");
        }
        return arith(cx, PwOp::Pow, Right::Rounded);
    };
    let e = e.as_f64();
    if d == DType::Bool || (!d.is_float() && (e < 0.0 || e.fract() != 0.0)) {
        return decline("integer to a negative or fractional power");
    }
    let x = value(cx, &a, d, false);
    // The exponents that ATen, too, treats apart.
    let r = if e == 0.0 {
        let one = cx.constant(Scalar::Int(1), d.compute());
        let shape = cx.shape(x);
        cx.expand(one, &shape)
    } else if e == 1.0 {
        x
    } else if e == 2.0 {
        cx.pw(PwOp::Mul, &[x, x])?
    } else if e == 3.0 {
        let square = squared(cx, x, d)?;
        cx.pw(PwOp::Mul, &[square, x])?
    } else if e.abs() == 0.5 && d == DType::F16 {
        // ATen has no short cut here: pow(−∞, 0.5) is ∞ where the root is NaN.
        let k = cx.constant(Scalar::float(e), d.compute());
        cx.pw(PwOp::Pow, &[x, k])?
    } else if e == 0.5 {
        cx.pw(PwOp::Sqrt, &[x])?
    } else if e == -0.5 {
        cx.pw(PwOp::Rsqrt, &[x])?
    } else if e == -1.0 {
        cx.pw(PwOp::Reciprocal, &[x])?
    } else if e == -2.0 {
        let square = squared(cx, x, d)?;
        cx.pw(PwOp::Reciprocal, &[square])?
    } else {
        let k = cx.constant(Scalar::float(e).cast(d), d.compute());
        cx.pw(PwOp::Pow, &[x, k])?
    };
    cx.done(r)
}

/// x² as a step of a power: ATen's `bfloat16` vectors round after every product.
fn squared(cx: &mut Cx<'_>, x: ValueId, d: DType) -> Lowered<ValueId> {
    let square = cx.pw(PwOp::Mul, &[x, x])?;
    if d != DType::BF16 {
        return Ok(square);
    }
    let rounded = cx.convert(square, d);
    Ok(cx.convert(rounded, d.compute()))
}

// ---- compositions ----

/// `self + value × (a op b)`.
fn addc(cx: &mut Cx<'_>, op: PwOp) -> Lowered {
    let k = cx.number(3, "value", Scalar::Int(1))?;
    let operands = [cx.operand(0, "self")?, cx.operand(1, "tensor1")?, cx.operand(2, "tensor2")?];
    let d = promoted(cx, &operands.each_ref())?;
    let [x, a, b] = operands.each_ref().map(|o| value(cx, o, d, false));
    let k = cx.constant(k, d.compute());
    let scaled = cx.pw(PwOp::Mul, &[k, a])?;
    if op == PwOp::Mul && d.is_float() {
        let r = cx.pw(PwOp::Fma, &[scaled, b, x])?;
        return cx.done(r);
    }
    let term = cx.pw(op, &[scaled, b])?;
    let r = cx.pw(PwOp::Add, &[x, term])?;
    cx.done(r)
}

/// A product and a sum, rounded once: what Dynamo makes of steps of an optimizer whose factor is a
/// tensor.
fn fma(cx: &mut Cx<'_>) -> Lowered {
    let operands = [cx.operand(0, "a")?, cx.operand(1, "b")?, cx.operand(2, "c")?];
    let d = promoted(cx, &operands.each_ref())?;
    if !d.is_float() {
        return decline("not a floating-point dtype");
    }
    let parts = operands.each_ref().map(|o| value(cx, o, d, false));
    let r = cx.pw(PwOp::Fma, &parts)?;
    cx.done(r)
}

/// From the nearer end, so that both are reached exactly.
fn lerp(cx: &mut Cx<'_>) -> Lowered {
    let operands = [cx.operand(0, "self")?, cx.operand(1, "end")?];
    let d = promoted(cx, &operands.each_ref())?;
    if !d.is_float() {
        return decline("not a floating-point dtype");
    }
    let [start, end] = operands.each_ref().map(|o| value(cx, o, d, false));
    let weight = cx.operand(2, "weight")?;
    let w = value(cx, &weight, d, matches!(weight, Operand::Const(_)));
    let (half, one) = (cx.float(0.5, d.compute()), cx.float(1.0, d.compute()));
    let size = cx.pw(PwOp::Abs, &[w])?;
    let near = cx.pw(PwOp::Lt, &[size, half])?;
    let back = cx.pw(PwOp::Sub, &[w, one])?;
    let by = cx.pw(PwOp::Where, &[near, w, back])?;
    let from = cx.pw(PwOp::Where, &[near, start, end])?;
    let way = cx.pw(PwOp::Sub, &[end, start])?;
    let r = cx.pw(PwOp::Fma, &[by, way, from])?;
    cx.done(r)
}

/// `grad × f(output)`.
fn derivative(cx: &mut Cx<'_>, f: fn(&mut Cx<'_>, ValueId) -> Lowered<ValueId>) -> Lowered {
    let (g, y) = (cx.operand(0, "grad_output")?, cx.operand(1, "output")?);
    let d = promoted(cx, &[&g, &y])?;
    if !d.is_float() {
        return decline("not a floating-point dtype");
    }
    let (g, y) = (value(cx, &g, d, false), value(cx, &y, d, false));
    let slope = f(cx, y)?;
    let r = cx.pw(PwOp::Mul, &[g, slope])?;
    cx.done(r)
}

/// `grad × mask × scale`; the first product is exact, so that one rounding is left.
fn dropout_backward(cx: &mut Cx<'_>) -> Lowered {
    let (g, mask) = (cx.tensor(0, "grad_output")?, cx.tensor(1, "mask")?);
    let scale = cx.operand(2, "scale")?;
    let d = cx.dtype(g);
    let (g, kept) = (cx.convert(g, d.compute()), cx.convert(mask, d.compute()));
    let scale = value(cx, &scale, d, true);
    let kept = cx.pw(PwOp::Mul, &[g, kept])?;
    let r = cx.pw(PwOp::Mul, &[kept, scale])?;
    cx.done(r)
}
