//! Python numbers computed from sizes. Integers need no nodes (their value is in the metadata);
//! floats become 0-d `f64` tensors.

use super::Row;
use crate::cx::{Cx, Lowered, Operand, Val, decline};
use crate::fx::FxMeta;
use lj_ir::{DType, PwOp, Scalar, ValueId};

pub(super) const ROWS: &[Row] = &[
    // Checked while tracing; they say nothing about values.
    ("aten._assert_tensor_metadata.default", |_| Ok(Val::None)),
    ("aten.sym_constrain_range.default", |_| Ok(Val::None)),
    ("aten.sym_constrain_range_for_size.default", |_| Ok(Val::None)),
];

/// `sym.KIND`: a Python operator on numbers.
pub(super) fn python(cx: &mut Cx<'_>, kind: &str) -> Lowered {
    match cx.node.meta {
        FxMeta::SymFloat => {}
        FxMeta::SymBool => return Ok(Val::Unusable("uses a truth value computed from sizes")),
        _ => return decline("a Python operator"),
    }
    let op = match kind.trim_start_matches("math.") {
        "float" | "pos" => None,
        "neg" => Some(PwOp::Neg),
        "abs" => Some(PwOp::Abs),
        "sqrt" => Some(PwOp::Sqrt),
        "exp" => Some(PwOp::Exp),
        "log2" => Some(PwOp::Log2),
        "add" => Some(PwOp::Add),
        "sub" => Some(PwOp::Sub),
        "mul" => Some(PwOp::Mul),
        "truediv" => Some(PwOp::Div),
        "floordiv" => Some(PwOp::FloorDiv),
        "mod" => Some(PwOp::Remainder),
        "pow" => Some(PwOp::Pow),
        "max" => Some(PwOp::Maximum),
        "min" => Some(PwOp::Minimum),
        _ => return decline("a Python operator on floats"),
    };
    let arity = op.map_or(1, PwOp::arity);
    let mut operands = vec![];
    for i in 0..arity {
        let o = cx.operand(i, "")?;
        operands.push(double(cx, &o));
    }
    let v = match op {
        Some(op) => cx.pw(op, &operands)?,
        None => operands[0],
    };
    Ok(Val::Float(v))
}

fn double(cx: &mut Cx<'_>, o: &Operand) -> ValueId {
    match o {
        Operand::Const(s) => {
            let s: Scalar = *s;
            cx.constant(s, DType::F64)
        }
        Operand::Sym(e) => cx.sym(e, DType::F64),
        Operand::Tensor(v) | Operand::Float(v) => cx.convert(*v, DType::F64),
    }
}
