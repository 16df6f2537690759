//! Constant folding: the value of an operation on constants, for those operations that this module
//! computes bit for bit as a kernel would. Transcendental functions are left to the kernels.

use crate::lang::{EOp, Entry, Fact};
use lj_ir::{DType, Op, PwOp, Scalar};

/// The constant that every element of a node has, if its operands decide it.
pub(crate) fn constant(
    entry: &Entry,
    arity: usize,
    operand: &dyn Fn(usize) -> Option<Scalar>,
    dtype: &dyn Fn(usize) -> Option<DType>,
) -> Option<Scalar> {
    let Fact::Tensor(spec) = &entry.fact else { return None };
    if !spec.dtype.in_kernels() {
        return None;
    }
    match &entry.op {
        EOp::Op(Op::Full(s)) => Some(s.cast(spec.dtype)),
        EOp::Op(Op::FullSym(e)) => Some(Scalar::Int(e.as_int()?).cast(spec.dtype)),
        EOp::Op(Op::View(_)) => operand(0),
        EOp::Op(Op::Convert) => convert(operand(0)?, spec.dtype),
        EOp::Op(Op::Pointwise(op)) => {
            let args: Vec<Scalar> = (0..arity).map(operand).collect::<Option<_>>()?;
            pointwise(*op, dtype(arity.checked_sub(1)?)?, &args)
        }
        _ => None,
    }
}

/// A conversion whose result is the same everywhere: a float that does not fit an integer type is
/// undefined in C, so it is not folded.
pub(crate) fn convert(v: Scalar, to: DType) -> Option<Scalar> {
    if to.is_int() && matches!(v, Scalar::Float(_)) {
        let (f, r) = (v.as_f64(), v.cast(to));
        return (r.as_f64() == f.trunc()).then_some(r);
    }
    Some(v.cast(to))
}

/// `op` on constants of `dtype` (for `Where`: the dtype of the branches).
pub(crate) fn pointwise(op: PwOp, dtype: DType, args: &[Scalar]) -> Option<Scalar> {
    if args.len() != op.arity() {
        return None;
    }
    if op == PwOp::Where {
        return Some(if args[0] == Scalar::Bool(true) { args[1] } else { args[2] });
    }
    match dtype {
        DType::F32 => floats(op, args, &|v| f64::from(v as f32)).map(|v| finish(v, dtype)),
        DType::F64 => floats(op, args, &|v| v).map(|v| finish(v, dtype)),
        d if d.is_int() => integers(op, args, d),
        DType::Bool => bools(op, args),
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum Out {
    Bool(bool),
    Float(f64),
}

fn finish(v: Out, dtype: DType) -> Scalar {
    match v {
        Out::Bool(b) => Scalar::Bool(b),
        Out::Float(f) => Scalar::float(f).cast(dtype),
    }
}

/// Floats. Adding, subtracting, multiplying, dividing and taking the root of two `f32` in `f64` and
/// rounding once more gives the correctly rounded `f32` (53 ≥ 2·24 + 2).
fn floats(op: PwOp, args: &[Scalar], round: &dyn Fn(f64) -> f64) -> Option<Out> {
    use Out::{Bool, Float};
    let x = args[0].as_f64();
    let y = args.get(1).map_or(0.0, |v| v.as_f64());
    Some(match op {
        PwOp::Neg => Float(-x),
        PwOp::Abs => Float(x.abs()),
        PwOp::Reciprocal => Float(round(1.0 / x)),
        PwOp::Sqrt => Float(round(x.sqrt())),
        PwOp::Floor => Float(x.floor()),
        PwOp::Ceil => Float(x.ceil()),
        PwOp::Round => Float(x.round_ties_even()),
        PwOp::Trunc => Float(x.trunc()),
        PwOp::IsNan => Bool(x.is_nan()),
        PwOp::IsInf => Bool(x.is_infinite()),
        PwOp::Add => Float(round(x + y)),
        PwOp::Sub => Float(round(x - y)),
        PwOp::Mul => Float(round(x * y)),
        PwOp::Div => Float(round(x / y)),
        // Which zero of a pair of unlike zeros is larger is the kernel's business.
        PwOp::Maximum | PwOp::Minimum if x == y && x.to_bits() != y.to_bits() => return None,
        PwOp::Maximum | PwOp::Minimum if x.is_nan() || y.is_nan() => Float(f64::NAN),
        PwOp::Maximum => Float(x.max(y)),
        PwOp::Minimum => Float(x.min(y)),
        PwOp::Eq => Bool(x == y),
        PwOp::Ne => Bool(x != y),
        PwOp::Lt => Bool(x < y),
        PwOp::Le => Bool(x <= y),
        PwOp::Gt => Bool(x > y),
        PwOp::Ge => Bool(x >= y),
        _ => return None,
    })
}

fn integers(op: PwOp, args: &[Scalar], dtype: DType) -> Option<Scalar> {
    let x = args[0].as_i64();
    let y = args.get(1).map_or(0, |v| v.as_i64());
    if let Some(b) = compare(op, x, y) {
        return Some(b);
    }
    let v = match op {
        PwOp::Neg => x.wrapping_neg(),
        PwOp::Abs => x.wrapping_abs(),
        PwOp::Not => !x,
        PwOp::Add => x.wrapping_add(y),
        PwOp::Sub => x.wrapping_sub(y),
        PwOp::Mul => x.wrapping_mul(y),
        PwOp::Maximum => x.max(y),
        PwOp::Minimum => x.min(y),
        PwOp::And => x & y,
        PwOp::Or => x | y,
        PwOp::Xor => x ^ y,
        _ => return None,
    };
    // Unsigned 64-bit values do not fit the constant's representation.
    matches!(dtype, DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64)
        .then(|| Scalar::Int(v).cast(dtype))
}

fn bools(op: PwOp, args: &[Scalar]) -> Option<Scalar> {
    let x = args[0] == Scalar::Bool(true);
    let y = args.get(1) == Some(&Scalar::Bool(true));
    if let Some(b) = compare(op, i64::from(x), i64::from(y)) {
        return Some(b);
    }
    Some(Scalar::Bool(match op {
        PwOp::Not => !x,
        PwOp::Add | PwOp::Or | PwOp::Maximum => x | y,
        PwOp::Mul | PwOp::And | PwOp::Minimum => x & y,
        PwOp::Xor => x ^ y,
        _ => return None,
    }))
}

fn compare(op: PwOp, x: i64, y: i64) -> Option<Scalar> {
    Some(Scalar::Bool(match op {
        PwOp::Eq => x == y,
        PwOp::Ne => x != y,
        PwOp::Lt => x < y,
        PwOp::Le => x <= y,
        PwOp::Gt => x > y,
        PwOp::Ge => x >= y,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_as_kernels_compute() {
        let f = |op, d, a: &[Scalar]| pointwise(op, d, a);
        let (a, b) = (Scalar::float(f64::from(0.1f32)), Scalar::float(f64::from(0.2f32)));
        assert_eq!(f(PwOp::Add, DType::F32, &[a, b]), Some(Scalar::float(f64::from(0.1f32 + 0.2f32))));
        assert_eq!(f(PwOp::Mul, DType::I8, &[Scalar::Int(100), Scalar::Int(3)]), Some(Scalar::Int(44)));
        assert_eq!(f(PwOp::Neg, DType::U8, &[Scalar::Int(1)]), Some(Scalar::Int(255)));
        assert_eq!(f(PwOp::Lt, DType::F32, &[Scalar::float(f64::NAN), b]), Some(Scalar::Bool(false)));
        assert_eq!(f(PwOp::Exp, DType::F32, &[a]), None, "transcendental functions are the kernels'");
        assert_eq!(f(PwOp::Maximum, DType::F32, &[Scalar::float(0.0), Scalar::float(-0.0)]), None);
        assert!(
            f(PwOp::Mul, DType::F32, &[Scalar::float(0.0), Scalar::float(f64::INFINITY)])
                .unwrap()
                .as_f64()
                .is_nan()
        );
        assert_eq!(convert(Scalar::float(3e9), DType::I32), None, "out of range is undefined");
        assert_eq!(convert(Scalar::float(-3.7), DType::I32), Some(Scalar::Int(-3)));
    }
}
