//! Elementwise choices: bounds, masks, and what is one of two values.

use super::Row;
use super::pointwise::{compute, promoted, value};
use crate::cx::{Cx, Lowered, Operand};
use lj_ir::{DType, PwOp, Scalar, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.relu.default", |cx| clamp_with(cx, Some(Operand::Const(Scalar::Int(0))), None)),
    ("aten.clamp.default", clamp),
    ("aten.clamp.Tensor", clamp),
    ("aten.clip.default", clamp),
    ("aten.clamp_min.default", clamp_min),
    ("aten.clamp_min.Tensor", clamp_min),
    ("aten.clamp_max.default", clamp_max),
    ("aten.clamp_max.Tensor", clamp_max),
    ("aten.hardtanh.default", |cx| {
        let lo = cx.number(1, "min_val", Scalar::Int(-1))?;
        let hi = cx.number(2, "max_val", Scalar::Int(1))?;
        clamp_with(cx, Some(Operand::Const(lo)), Some(Operand::Const(hi)))
    }),
    ("aten.where.self", select),
    ("aten.where.ScalarSelf", select),
    ("aten.where.ScalarOther", select),
    ("aten.where.Scalar", select),
    ("prims.where.default", select),
    ("aten.masked_fill.Scalar", masked_fill),
    ("aten.masked_fill.Tensor", masked_fill),
    ("aten.leaky_relu.default", leaky_relu),
    ("aten.threshold_backward.default", threshold_backward),
];

fn clamp(cx: &mut Cx<'_>) -> Lowered {
    let (lo, hi) = (cx.opt_operand(1, "min")?, cx.opt_operand(2, "max")?);
    clamp_with(cx, lo, hi)
}

fn clamp_min(cx: &mut Cx<'_>) -> Lowered {
    let lo = cx.operand(1, "min")?;
    clamp_with(cx, Some(lo), None)
}

fn clamp_max(cx: &mut Cx<'_>) -> Lowered {
    let hi = cx.operand(1, "max")?;
    clamp_with(cx, None, Some(hi))
}

/// `min(max(x, lo), hi)`; NaN stays NaN, and so does a NaN bound.
fn clamp_with(cx: &mut Cx<'_>, lo: Option<Operand>, hi: Option<Operand>) -> Lowered {
    let x = cx.operand(0, "self")?;
    let operands: Vec<&Operand> = [Some(&x), lo.as_ref(), hi.as_ref()].into_iter().flatten().collect();
    let d = promoted(cx, &operands)?;
    let mut r = value(cx, &x, d, false);
    for (bound, op) in [(lo, PwOp::Maximum), (hi, PwOp::Minimum)] {
        if let Some(bound) = bound {
            let bound = saturated(bound, d);
            let b = value(cx, &bound, d, false);
            r = cx.pw(op, &[r, b])?;
        }
    }
    cx.done(r)
}

/// A constant bound of an integer type outside of the type's range counts as the end of the range.
fn saturated(bound: Operand, d: DType) -> Operand {
    let bits = d.bytes() * 8;
    let range = match d {
        DType::U8 => (0, 255),
        DType::I8 | DType::I16 | DType::I32 => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
        _ => return bound,
    };
    match bound {
        Operand::Const(Scalar::Int(i)) => Operand::Const(Scalar::Int(i.clamp(range.0, range.1))),
        other => other,
    }
}

/// `where` moves bits, so that 16-bit floats need no conversion.
fn choose(cx: &mut Cx<'_>, c: ValueId, a: &Operand, b: &Operand, d: DType) -> Lowered {
    let c = cx.convert(c, DType::Bool);
    let mut moved = |o: &Operand| match o {
        Operand::Const(s) => cx.constant(*s, d),
        Operand::Sym(e) => cx.sym(e, d),
        Operand::Tensor(v) | Operand::Number(v) => cx.convert(*v, d),
    };
    let (x, y) = (moved(a), moved(b));
    let r = cx.pw(PwOp::Where, &[c, x, y])?;
    cx.done(r)
}

fn select(cx: &mut Cx<'_>) -> Lowered {
    let c = cx.tensor(0, "condition")?;
    let (a, b) = (cx.operand(1, "self")?, cx.operand(2, "other")?);
    let d = cx.result()?.dtype;
    choose(cx, c, &a, &b, d)
}

fn masked_fill(cx: &mut Cx<'_>) -> Lowered {
    let x = cx.operand(0, "self")?;
    let mask = cx.tensor(1, "mask")?;
    let fill = cx.operand(2, "value")?;
    let d = cx.result()?.dtype;
    choose(cx, mask, &fill, &x, d)
}

fn leaky_relu(cx: &mut Cx<'_>) -> Lowered {
    let slope = cx.number(1, "negative_slope", Scalar::float(0.01))?;
    let o = cx.operand(0, "self")?;
    let x = compute(cx, &o, |d| d)?;
    let (k, zero) = (cx.constant(slope, cx.dtype(x)), cx.float(0.0, cx.dtype(x)));
    let scaled = cx.pw(PwOp::Mul, &[x, k])?;
    let positive = cx.pw(PwOp::Gt, &[x, zero])?;
    let r = cx.pw(PwOp::Where, &[positive, x, scaled])?;
    cx.done(r)
}

/// `self <= threshold ? 0 : grad`.
fn threshold_backward(cx: &mut Cx<'_>) -> Lowered {
    let (g, x) = (cx.operand(0, "grad_output")?, cx.operand(1, "self")?);
    let t = cx.operand(2, "threshold")?;
    let d = promoted(cx, &[&g, &x])?;
    let (x, t) = (value(cx, &x, d, false), value(cx, &t, d, false));
    let below = cx.pw(PwOp::Le, &[x, t])?;
    let d = cx.result()?.dtype;
    choose(cx, below, &Operand::Const(Scalar::Int(0)), &g, d)
}
