//! Python numbers computed from sizes. Integers need no nodes (their value is in the metadata);
//! floats become 0-d `f64` tensors, truth values 0-d `bool` tensors.

use super::Row;
use crate::cx::{Cx, Lowered, Operand, Val, decline};
use crate::fx::FxMeta;
use lj_ir::{Arg, DType, ExternCall, Op, PwOp, Scalar, Type, ValueId};

pub(super) const ROWS: &[Row] = &[
    // Checked while tracing; they say nothing about values.
    ("aten._assert_tensor_metadata.default", |_| Ok(Val::None)),
    ("aten.sym_constrain_range.default", |_| Ok(Val::None)),
    ("aten.sym_constrain_range_for_size.default", |_| Ok(Val::None)),
    ("aten._assert_scalar.default", assert_scalar),
];

/// A condition on sizes, such as a guard on a size that depends on data: ATen raises if it fails.
fn assert_scalar(cx: &mut Cx<'_>) -> Lowered {
    let condition = match cx.operand(0, "self")? {
        Operand::Const(s) if s.as_f64() != 0.0 => return Ok(Val::None),
        o => truth(cx, &o),
    };
    let message = cx.str_arg(1, "assert_msg").unwrap_or("a condition on sizes does not hold");
    let call = ExternCall {
        target: "aten._assert_async.msg".into(),
        args: vec![Arg::Input(0), Arg::Str(message.into())],
        kwargs: vec![],
        reason: "checks a condition".into(),
        effect: true,
    };
    cx.graph.push(Op::Extern(call), vec![condition], vec![Type::None], cx.prov);
    Ok(Val::None)
}

/// `sym.KIND`: a Python operator on numbers.
pub(super) fn python(cx: &mut Cx<'_>, kind: &str) -> Lowered {
    match cx.node.meta {
        FxMeta::SymFloat => {}
        FxMeta::SymBool => return condition(cx, kind),
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
    Ok(Val::Number(v))
}

/// Comparisons and logic.
fn condition(cx: &mut Cx<'_>, kind: &str) -> Lowered {
    let op = match kind {
        "eq" => PwOp::Eq,
        "ne" => PwOp::Ne,
        "lt" => PwOp::Lt,
        "le" => PwOp::Le,
        "gt" => PwOp::Gt,
        "ge" => PwOp::Ge,
        "and" => PwOp::And,
        "or" => PwOp::Or,
        "not" | "invert" => PwOp::Not,
        _ => return decline("a Python operator on truth values"),
    };
    let mut operands = vec![];
    for i in 0..op.arity() {
        operands.push(cx.operand(i, "")?);
    }
    let logic = matches!(op, PwOp::And | PwOp::Or | PwOp::Not);
    let integers = operands.iter().all(|o| matches!(o, Operand::Sym(_) | Operand::Const(Scalar::Int(_))));
    let mut values = vec![];
    for o in &operands {
        values.push(match o {
            _ if logic => truth(cx, o),
            Operand::Sym(e) if integers => cx.sym(e, DType::I64),
            Operand::Const(s) if integers => cx.constant(*s, DType::I64),
            o => double(cx, o),
        });
    }
    Ok(Val::Number(cx.pw(op, &values)?))
}

fn truth(cx: &mut Cx<'_>, o: &Operand) -> ValueId {
    match o {
        Operand::Const(s) => cx.constant(*s, DType::Bool),
        Operand::Sym(e) => cx.sym(e, DType::Bool),
        Operand::Tensor(v) | Operand::Number(v) => cx.convert(*v, DType::Bool),
    }
}

fn double(cx: &mut Cx<'_>, o: &Operand) -> ValueId {
    match o {
        Operand::Const(s) => cx.constant(*s, DType::F64),
        Operand::Sym(e) => cx.sym(e, DType::F64),
        Operand::Tensor(v) | Operand::Number(v) => cx.convert(*v, DType::F64),
    }
}
