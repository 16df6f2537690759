//! The walk over the FX nodes.

use crate::cx::{Cx, Stop, Val};
use crate::fx::{FxArg, FxGraph, FxKind, FxMeta, FxNode};
use crate::{Error, Imported, external, lower};
use lj_ir::{Arg, DType, Expr, ExternCall, Graph, Mutation, Op, Prov, Sym, Type, ValueId};
use std::collections::BTreeSet;

/// Turns an FX graph into a tensor graph.
///
/// Graph inputs are the placeholders in order, then the constants (`get_attr`) in order of first
/// appearance. Outputs that are `None` or integers are values of type [`Type::None`] and
/// [`Type::SymInt`], made by `Op::Full` and `Op::FullSym`.
///
/// # Errors
/// If the graph is malformed, or holds something that not even a call of ATen can express.
pub fn import(fx: &FxGraph) -> Result<Imported, Error> {
    let blank = FxNode {
        name: fx.name.clone(),
        kind: FxKind::Output,
        args: vec![],
        kwargs: vec![],
        meta: FxMeta::None,
        line: None,
    };
    let mut cx = Cx {
        fx,
        graph: Graph::new(&fx.name),
        vals: vec![],
        node: fx.nodes.first().unwrap_or(&blank),
        prov: 0,
        known: BTreeSet::new(),
        first_new: 0,
    };
    cx.graph.facts.syms = fx.syms.iter().cloned().collect();
    let constants = inputs(&mut cx)?;
    let mut constants = constants.into_iter();
    let mut placeholders = cx.graph.inputs.clone().into_iter();
    let mut finished = false;
    for node in &fx.nodes {
        cx.node = node;
        if finished {
            return Err(cx.error("stands after the output"));
        }
        cx.prov = cx.graph.provs.len() as u32;
        cx.graph.provs.push(Prov { fx: node.name.clone(), line: node.line.clone() });
        cx.first_new = cx.graph.values.len();
        let val = match &node.kind {
            FxKind::Placeholder => input_val(&cx, placeholders.next())?,
            FxKind::Constant => input_val(&cx, constants.next())?,
            FxKind::Call { target, effect } => call(&mut cx, target, *effect)?,
            FxKind::Output => {
                output(&mut cx)?;
                finished = true;
                Val::None
            }
        };
        cx.vals.push(val);
    }
    if !finished {
        return Err(Error::at(&blank, "the graph has no output"));
    }
    let graph = cx.graph.without_dead_nodes();
    if let Err(e) = graph.verify() {
        return Err(Error::at(&blank, format!("the imported graph is not valid: {e}")));
    }
    Ok(Imported { graph })
}

/// Adds the graph inputs; returns those of the constants.
fn inputs(cx: &mut Cx<'_>) -> Result<Vec<ValueId>, Error> {
    let mut constants = vec![];
    for constant in [false, true] {
        for node in &cx.fx.nodes {
            let wanted = if constant { FxKind::Constant } else { FxKind::Placeholder };
            if node.kind != wanted {
                continue;
            }
            let ty = match &node.meta {
                FxMeta::Tensor(t) => Type::Tensor(t.clone()),
                FxMeta::SymInt(e) => Type::SymInt(e.clone()),
                FxMeta::SymFloat => Type::Scalar(DType::F64),
                FxMeta::SymBool | FxMeta::Truth(_) => Type::Scalar(DType::Bool),
                FxMeta::None => Type::None,
                FxMeta::List(_) => return Err(Error::at(node, "an input that is a list")),
                FxMeta::Other(what) => {
                    return Err(Error::at(node, format!("an input that is {what}")));
                }
            };
            note_symbols(&mut cx.known, &node.meta);
            let prov = cx.graph.provs.len() as u32;
            cx.graph.provs.push(Prov { fx: node.name.clone(), line: node.line.clone() });
            let v = cx.graph.push_input(ty, prov);
            if constant {
                constants.push(v);
            }
        }
    }
    Ok(constants)
}

fn input_val(cx: &Cx<'_>, v: Option<ValueId>) -> Result<Val, Error> {
    let Some(v) = v else { return Err(cx.error("is not among the inputs")) };
    Ok(match cx.graph.ty(v) {
        Type::Tensor(_) => Val::Tensor(v),
        Type::SymInt(e) => Val::Int(e.clone()),
        Type::Scalar(_) => Val::Scalar(v),
        Type::None => Val::None,
    })
}

/// Adds every symbol of a result to those that are known from here on.
pub(crate) fn note_symbols(known: &mut BTreeSet<Sym>, meta: &FxMeta) {
    match meta {
        FxMeta::Tensor(t) => {
            for e in t.shape.iter().chain(&t.strides) {
                known.extend(e.symbols());
            }
        }
        FxMeta::SymInt(e) => known.extend(e.symbols()),
        FxMeta::List(l) => l.iter().for_each(|m| note_symbols(known, m)),
        FxMeta::Truth(s) => {
            known.insert(s.clone());
        }
        FxMeta::SymFloat | FxMeta::SymBool | FxMeta::None | FxMeta::Other(_) => {}
    }
}

fn call(cx: &mut Cx<'_>, target: &str, effect: bool) -> Result<Val, Error> {
    let mut defined = BTreeSet::new();
    note_symbols(&mut defined, &cx.node.meta);
    let mut defines = !defined.is_subset(&cx.known);
    if let FxMeta::Truth(s) = &cx.node.meta
        && defines
        && target == READ
    {
        read_truth(cx, s)?;
        defines = false;
    }
    // Integer arithmetic needs no node: the metadata says what the result is.
    if let FxMeta::SymInt(e) = &cx.node.meta
        && !defines
    {
        return Ok(Val::Int(e.clone()));
    }
    let reason = match lower::lower(cx, target, defines) {
        Ok(v) => return Ok(v),
        Err(Stop::Fail(e)) => return Err(e),
        Err(Stop::Decline(reason)) => reason,
    };
    // What the declined lowering left behind is dead and goes at the end.
    let val = external::call(cx, target, &reason, effect || defines)?;
    cx.known.extend(defined);
    Ok(val)
}

/// Reads a tensor's one value.
pub(crate) const READ: &str = "aten._local_scalar_dense.default";

/// Reads a truth value as the integer that sizes computed from it are made of. The value itself is
/// read apart: it is no integer to Python.
fn read_truth(cx: &mut Cx<'_>, s: &Sym) -> Result<(), Error> {
    let x = cx.tensor(0, "self").map_err(|stop| stop.error(cx))?;
    let x = cx.convert(x, DType::I64);
    read(cx, x, Type::SymInt(Expr::sym(s.name())), true);
    Ok(())
}

/// Adds a read of the one value of `x`, as the type `ty`.
pub(crate) fn read(cx: &mut Cx<'_>, x: ValueId, ty: Type, effect: bool) -> ValueId {
    let call = ExternCall {
        target: READ.into(),
        args: vec![Arg::Input(0)],
        kwargs: vec![],
        reason: external::reason(READ).into(),
        effect,
    };
    cx.graph.push(Op::Extern(call), vec![x], vec![ty], cx.prov)[0]
}

/// Records `copy_` into a graph input as a mutation; the input reads as its new contents after it.
pub(crate) fn copy_into(cx: &mut Cx<'_>) -> Result<Val, Error> {
    let input = cx.tensor(0, "self").map_err(|s| s.error(cx))?;
    let value = cx.tensor(1, "src").map_err(|s| s.error(cx))?;
    let root = cx.graph.mutations.iter().find(|m| m.value == input).map_or(input, |m| m.input);
    if !cx.graph.inputs.contains(&root) {
        return Err(cx.error("writes into something that is not a graph input"));
    }
    let ty = cx.ty(root).clone();
    let value = cx.convert(value, ty.dtype);
    let value = cx.expand(value, &ty.shape);
    cx.graph.mutations.retain(|m| m.input != root);
    cx.graph.mutations.push(Mutation { input: root, value });
    if let Some(FxArg::Node(n)) = cx.node.args.first() {
        cx.vals[*n] = Val::Tensor(value);
    }
    Ok(Val::Tensor(value))
}

fn output(cx: &mut Cx<'_>) -> Result<(), Error> {
    let list = match cx.node.args.as_slice() {
        [FxArg::List(l)] => l,
        [_] => &cx.node.args,
        _ => return Err(cx.error("the output should have one argument, a list")),
    };
    for a in list {
        let val = match a {
            FxArg::Node(n) => match cx.vals.get(*n) {
                Some(v) => v.clone(),
                None => return Err(cx.error(format!("returns node {n}, which does not exist"))),
            },
            FxArg::None => Val::None,
            FxArg::Int(i) => Val::Int(Expr::int(*i)),
            _ => return Err(cx.error("returns something that is neither a tensor nor an integer")),
        };
        let v = match val {
            Val::Tensor(v) | Val::Scalar(v) => v,
            Val::None => {
                let none = Op::Full(lj_ir::Scalar::Bool(false));
                cx.graph.push(none, vec![], vec![Type::None], cx.prov)[0]
            }
            Val::Int(e) => {
                let given = |v: &&ValueId| *cx.graph.ty(**v) == Type::SymInt(e.clone());
                if let Some(v) = cx.graph.inputs.iter().find(given) {
                    *v
                } else {
                    let ty = Type::SymInt(e.clone());
                    cx.graph.push(Op::FullSym(e), vec![], vec![ty], cx.prov)[0]
                }
            }
            Val::Number(v) => read(cx, v, Type::Scalar(cx.dtype(v)), false),
            Val::List(_) => return Err(cx.error("returns a list inside its list of results")),
        };
        cx.graph.outputs.push(v);
    }
    Ok(())
}
