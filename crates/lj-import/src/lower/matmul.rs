//! Matrix products.

use super::Row;
use crate::cx::{Cx, Lowered, Val, decline};
use lj_ir::{Op, PwOp, Scalar, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.mm.default", |cx| product(cx, 0)),
    ("aten.bmm.default", |cx| product(cx, 0)),
    ("aten.addmm.default", add_product),
    ("aten.baddbmm.default", add_product),
];

fn operands(cx: &Cx<'_>, first: usize) -> Lowered<(ValueId, ValueId)> {
    let (a, b) = (cx.tensor(first, "self")?, cx.tensor(first + 1, "mat2")?);
    if cx.dtype(a) != cx.dtype(b) || !cx.dtype(a).is_float() {
        return decline("matrix product of integers or of two dtypes");
    }
    Ok((a, b))
}

fn product(cx: &mut Cx<'_>, first: usize) -> Lowered {
    let (a, b) = operands(cx, first)?;
    let ty = cx.result()?.clone();
    if ty.dtype != cx.dtype(a) {
        return decline("matrix product with a dtype of its own");
    }
    Ok(Val::Tensor(cx.push(Op::Matmul { bias: false }, vec![a, b], ty)))
}

/// `beta × self + alpha × (a @ b)`.
fn add_product(cx: &mut Cx<'_>) -> Lowered {
    let beta = cx.number(3, "beta", Scalar::Int(1))?.as_f64();
    let alpha = cx.number(4, "alpha", Scalar::Int(1))?.as_f64();
    let bias = cx.tensor(0, "self")?;
    let (a, b) = operands(cx, 1)?;
    let ty = cx.result()?.clone();
    if cx.dtype(bias) != cx.dtype(a) || ty.dtype != cx.dtype(a) {
        return decline("matrix product of two dtypes");
    }
    if beta == 1.0 && alpha == 1.0 {
        return Ok(Val::Tensor(cx.push(Op::Matmul { bias: true }, vec![a, b, bias], ty)));
    }
    if ty.dtype.compute() != ty.dtype && beta != 0.0 {
        // ATen adds before it rounds; spelt out, the product would be rounded first.
        return decline("scaled matrix product of 16-bit floats");
    }
    let compute = ty.dtype.compute();
    let product = cx.push(Op::Matmul { bias: false }, vec![a, b], ty);
    let mut r = cx.convert(product, compute);
    if alpha != 1.0 {
        let k = cx.float(alpha, compute);
        r = cx.pw(PwOp::Mul, &[r, k])?;
    }
    // With beta = 0 the bias is not even read: its NaNs do not count.
    if beta != 0.0 {
        let mut bias = cx.convert(bias, compute);
        if beta != 1.0 {
            let k = cx.float(beta, compute);
            bias = cx.pw(PwOp::Mul, &[bias, k])?;
        }
        r = cx.pw(PwOp::Add, &[r, bias])?;
    }
    cx.done(r)
}
