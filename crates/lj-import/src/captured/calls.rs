//! The table of functions, and how each is imported.

use super::{CapturedCall, Importer, einsum};
use crate::fx::FxArg;
use lj_ir::captured::{CapturedOp, Loss, Part};
use lj_ir::{DType, Expr, Op, PwOp, Scalar, TensorType, View};

type Lower = fn(&mut Cx<'_, '_>) -> Option<usize>;

/// Name of a function (of `torch`, `torch.nn.functional`, `torch.Tensor` or `operator`), its import,
/// and whether patterns flow through it to what reads it.
const ROWS: &[(&str, Lower, bool)] = &[
    ("matmul", |cx| product(cx, 0, 1), false),
    ("bmm", |cx| product(cx, 0, 1), false),
    ("baddbmm", baddbmm, false),
    ("einsum", einsum_call, false),
    ("softmax", softmax, true),
    ("functional.softmax", softmax, true),
    ("dropout", dropout, true),
    ("linear", linear, true),
    ("cross_entropy", cross_entropy, false),
    ("add", |cx| binary(cx, PwOp::Add), false),
    ("sub", |cx| binary(cx, PwOp::Sub), false),
    ("mul", |cx| binary(cx, PwOp::Mul), false),
    ("div", |cx| binary(cx, PwOp::Div), false),
    ("add_", |cx| in_place(cx, PwOp::Add), false),
    ("sub_", |cx| in_place(cx, PwOp::Sub), false),
    ("mul_", |cx| in_place(cx, PwOp::Mul), false),
    ("div_", |cx| in_place(cx, PwOp::Div), false),
    ("and", |cx| binary(cx, PwOp::And), false),
    ("eq", |cx| compare(cx, PwOp::Eq), false),
    ("ne", |cx| compare(cx, PwOp::Ne), false),
    ("le", |cx| compare(cx, PwOp::Le), false),
    ("lt", |cx| compare(cx, PwOp::Lt), false),
    ("ge", |cx| compare(cx, PwOp::Ge), false),
    ("gt", |cx| compare(cx, PwOp::Gt), false),
    ("invert", invert, false),
    ("where", |cx| choose(cx, [0, 1, 2]), false),
    ("Tensor.where", |cx| choose(cx, [1, 0, 2]), false),
    ("masked_fill", masked_fill, false),
    ("masked_fill_", |cx| cx.changes().and_then(|()| masked_fill(cx)), false),
    ("cast", cast, true),
    ("contiguous", |cx| cx.tensor(0), true),
    ("transpose", transpose, true),
    ("permute", permute, true),
    ("t", |cx| cx.tensor(0).and_then(|x| cx.i.swapped(x)), true),
    ("reshape", reshape, true),
    ("expand", expand, true),
    ("getitem", |cx| getitem(cx).or_else(|| lookup(cx)), true),
    ("diff", differences, false),
    ("cumsum", running_sum, false),
    ("zeros", |cx| Some(constant(cx, Scalar::Int(0))), false),
    ("ones", |cx| Some(constant(cx, Scalar::Int(1))), false),
    ("full", |cx| cx.number(1, "fill_value").map(|v| constant(cx, v)), false),
    ("arange", arange, false),
    ("tril", |cx| triangle(cx, PwOp::Le), false),
    ("triu", |cx| triangle(cx, PwOp::Ge), false),
];

/// The functions known here, and whether patterns flow through them to what reads them.
pub fn names() -> impl Iterator<Item = (&'static str, bool)> {
    ROWS.iter().map(|(name, _, flows)| (*name, *flows))
}

pub(super) fn import(
    i: &mut Importer<'_>,
    name: &str,
    call: &CapturedCall,
    ty: &TensorType,
) -> Option<usize> {
    let (_, lower, _) = ROWS.iter().find(|(n, ..)| *n == name)?;
    lower(&mut Cx { i, call, ty })
}

struct Cx<'a, 'b> {
    i: &'a mut Importer<'b>,
    call: &'a CapturedCall,
    ty: &'a TensorType,
}

impl Cx<'_, '_> {
    fn arg(&self, at: usize, name: &str) -> Option<&FxArg> {
        let named = self.call.kwargs.iter().find(|(k, _)| k == name).map(|(_, v)| v);
        self.call.args.get(at).or(named)
    }

    /// Whether no keyword is given but these.
    fn only(&self, names: &[&str]) -> bool {
        self.call.kwargs.iter().all(|(k, v)| names.contains(&k.as_str()) || *v == FxArg::None)
    }

    fn value(&self, arg: &FxArg) -> Option<usize> {
        match arg {
            FxArg::Node(at) => self.i.out.calls.get(at).map(|c| c.node),
            _ => None,
        }
    }

    fn tensor(&self, at: usize) -> Option<usize> {
        self.call.args.get(at).and_then(|a| self.value(a))
    }

    fn int(&self, at: usize, name: &str, default: Option<i64>) -> Option<i64> {
        match self.arg(at, name) {
            None | Some(FxArg::None) => default,
            Some(FxArg::Int(i)) => Some(*i),
            _ => None,
        }
    }

    fn number(&self, at: usize, name: &str) -> Option<Scalar> {
        match self.arg(at, name)? {
            FxArg::Int(i) => Some(Scalar::Int(*i)),
            FxArg::Float(f) => Some(Scalar::float(*f)),
            FxArg::Bool(b) => Some(Scalar::Bool(*b)),
            _ => None,
        }
    }

    /// A tensor, or a number in `dtype`.
    fn operand(&mut self, at: usize, name: &str, dtype: DType) -> Option<usize> {
        if let Some(v) = self.number(at, name) {
            return Some(self.i.full(v, dtype, vec![]));
        }
        let arg = self.arg(at, name)?.clone();
        self.value(&arg)
    }

    fn dim(&self, at: usize, name: &str, rank: usize) -> Option<usize> {
        wrap(self.int(at, name, None)?, rank)
    }

    fn rank(&self, n: usize) -> usize {
        self.i.node(n).shape.len()
    }

    fn changes(&mut self) -> Option<()> {
        self.i.may_change(self.call).then_some(())
    }
}

fn wrap(d: i64, rank: usize) -> Option<usize> {
    let d = if d < 0 { d + rank as i64 } else { d };
    usize::try_from(d).ok().filter(|d| *d < rank)
}

fn product(cx: &mut Cx<'_, '_>, a: usize, b: usize) -> Option<usize> {
    let (a, b) = (cx.tensor(a)?, cx.tensor(b)?);
    if cx.rank(a) < 2 || cx.rank(b) < 2 || !cx.ty.dtype.is_float() || !cx.only(&["input", "mat2", "other"]) {
        return None;
    }
    // Under autocast the operands are converted first.
    let (a, b) = (cx.i.convert(a, cx.ty.dtype), cx.i.convert(b, cx.ty.dtype));
    Some(cx.i.op(CapturedOp::Part(Part::Product), vec![a, b], cx.ty.dtype, cx.ty.shape.clone()))
}

/// `beta * input + alpha * (a @ b)`.
fn baddbmm(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let dtype = cx.ty.dtype;
    let scale = |cx: &Cx<'_, '_>, name: &str| match cx.arg(9, name) {
        None => Some(1.0),
        Some(_) => cx.number(9, name).map(Scalar::as_f64),
    };
    let (beta, alpha) = (scale(cx, "beta")?, scale(cx, "alpha")?);
    let mut input = cx.tensor(0)?;
    let mut out = product(
        &mut Cx { i: cx.i, call: &CapturedCall { kwargs: vec![], ..cx.call.clone() }, ty: cx.ty },
        1,
        2,
    )?;
    if alpha != 1.0 {
        let alpha = cx.i.full(Scalar::float(alpha), dtype.compute(), vec![]);
        out = cx.i.pointwise(PwOp::Mul, &[out, alpha], dtype)?;
    }
    // With a beta of 0 even a NaN in `input` is ignored.
    if beta == 0.0 {
        return Some(out);
    }
    if beta != 1.0 {
        let beta = cx.i.full(Scalar::float(beta), dtype.compute(), vec![]);
        input = cx.i.pointwise(PwOp::Mul, &[input, beta], dtype)?;
    }
    cx.i.pointwise(PwOp::Add, &[out, input], dtype)
}

fn einsum_call(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let FxArg::Str(equation) = cx.call.args.first()?.clone() else { return None };
    let (a, b) = match cx.call.args.get(1..)? {
        [FxArg::List(l)] if l.len() == 2 => (cx.value(&l[0])?, cx.value(&l[1])?),
        [a, b] => (cx.value(a)?, cx.value(b)?),
        _ => return None,
    };
    einsum::import(cx.i, &equation, a, b, cx.ty.dtype)
}

/// Softmax along the last dim, between permutations if it is along another.
fn softmax(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    let rank = cx.rank(x);
    let dim = cx.dim(1, "dim", rank)?;
    if !cx.ty.dtype.is_float() {
        return None;
    }
    let x = cx.i.convert(x, cx.ty.dtype);
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(dim, rank - 1);
    let moved = |cx: &mut Cx<'_, '_>, n: usize| {
        let shape = perm.iter().map(|d| cx.i.node(n).shape[*d].clone()).collect();
        if dim == rank - 1 { n } else { cx.i.view(n, View::Permute(perm.clone()), shape) }
    };
    let x = moved(cx, x);
    let shape = cx.i.node(x).shape.clone();
    let y = cx.i.op(CapturedOp::Part(Part::Softmax), vec![x], cx.ty.dtype, shape);
    Some(moved(cx, y))
}

fn dropout(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    let p = match cx.arg(1, "p") {
        None => Scalar::float(0.5),
        Some(_) => cx.number(1, "p")?,
    };
    let flag = |at, name, default| match cx.arg(at, name) {
        None => Some(default),
        Some(FxArg::Bool(b)) => Some(*b),
        _ => None,
    };
    let (training, in_place) = (flag(2, "training", flag(2, "train", true)?)?, flag(3, "inplace", false)?);
    if in_place {
        return None;
    }
    if !training || p.as_f64() == 0.0 {
        return Some(x);
    }
    let op = CapturedOp::Part(Part::Dropout(p.as_f64().to_bits()));
    Some(cx.i.op(op, vec![x], cx.ty.dtype, cx.ty.shape.clone()))
}

fn linear(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let dtype = cx.ty.dtype;
    let (x, w) = (cx.tensor(0)?, cx.tensor(1)?);
    if cx.rank(w) != 2 || cx.rank(x) < 1 {
        return None;
    }
    let mut args = vec![cx.i.convert(x, dtype), cx.i.convert(w, dtype)];
    match cx.arg(2, "bias").cloned() {
        None | Some(FxArg::None) => {}
        Some(b) => {
            let b = cx.value(&b)?;
            args.push(cx.i.convert(b, dtype));
        }
    }
    Some(cx.i.op(CapturedOp::Part(Part::Linear), args, dtype, cx.ty.shape.clone()))
}

fn cross_entropy(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let (x, target) = (cx.tensor(0)?, cx.value(&cx.arg(1, "target")?.clone())?);
    let absent = |at: usize, name| matches!(cx.arg(at, name), None | Some(FxArg::None));
    let smoothing =
        cx.arg(7, "label_smoothing").map_or(Some(0.0), |_| Some(cx.number(7, "label_smoothing")?.as_f64()));
    if !absent(2, "weight") || !absent(3, "size_average") || !absent(5, "reduce") || smoothing != Some(0.0) {
        return None;
    }
    let sum = match cx.arg(6, "reduction") {
        None => false,
        Some(FxArg::Str(s)) if s == "mean" => false,
        Some(FxArg::Str(s)) if s == "sum" => true,
        _ => return None,
    };
    let rows = cx.rank(x) == 2 && cx.rank(target) == 1 && cx.i.node(target).dtype == DType::I64;
    let loss = Loss { ignore_index: cx.int(4, "ignore_index", Some(-100))?, sum };
    // Under autocast the scores are converted first.
    let x = cx.i.convert(x, cx.ty.dtype);
    let op = CapturedOp::Part(Part::CrossEntropy(loss));
    rows.then(|| cx.i.op(op, vec![x, target], cx.ty.dtype, vec![]))
}

fn binary(cx: &mut Cx<'_, '_>, op: PwOp) -> Option<usize> {
    if !cx.only(&["other"]) {
        return None;
    }
    let dtype = cx.ty.dtype;
    let (x, y) = (cx.operand(0, "input", dtype.compute())?, cx.operand(1, "other", dtype.compute())?);
    cx.i.pointwise(op, &[x, y], dtype)
}

fn in_place(cx: &mut Cx<'_, '_>, op: PwOp) -> Option<usize> {
    cx.changes()?;
    binary(cx, op)
}

fn compare(cx: &mut Cx<'_, '_>, op: PwOp) -> Option<usize> {
    let of = |cx: &Cx<'_, '_>, at| cx.tensor(at).map(|n| cx.i.node(n).dtype);
    let dtype = match (of(cx, 0), of(cx, 1)) {
        (Some(a), Some(b)) if a == b => a,
        (Some(a), None) | (None, Some(a)) => a,
        _ => return None,
    };
    let (x, y) = (cx.operand(0, "input", dtype)?, cx.operand(1, "other", dtype)?);
    cx.i.pointwise(op, &[x, y], dtype)
}

fn invert(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0).filter(|x| cx.i.node(*x).dtype == DType::Bool)?;
    cx.i.pointwise(PwOp::Not, &[x], DType::Bool)
}

fn choose(cx: &mut Cx<'_, '_>, [c, x, y]: [usize; 3]) -> Option<usize> {
    let c = cx.operand(c, "condition", DType::Bool)?;
    let dtype = cx.ty.dtype;
    let (x, y) = (cx.operand(x, "input", dtype)?, cx.operand(y, "other", dtype)?);
    let bool_first = cx.i.node(c).dtype == DType::Bool;
    bool_first.then(|| cx.i.pointwise(PwOp::Where, &[c, x, y], dtype))?
}

fn masked_fill(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let (x, mask) = (cx.tensor(0)?, cx.value(&cx.arg(1, "mask")?.clone())?);
    let fill = cx.operand(2, "value", cx.ty.dtype)?;
    let known = cx.i.node(mask).dtype == DType::Bool;
    known.then(|| cx.i.pointwise(PwOp::Where, &[mask, fill, x], cx.ty.dtype))?
}

/// A change of dtype, or none.
fn cast(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    Some(cx.i.convert(x, cx.ty.dtype))
}

fn transpose(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    let rank = cx.rank(x);
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(cx.dim(1, "dim0", rank)?, cx.dim(2, "dim1", rank)?);
    Some(cx.i.view(x, View::Permute(perm), cx.ty.shape.clone()))
}

fn permute(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    let rank = cx.rank(x);
    let dims = match cx.call.args.get(1).or(cx.arg(1, "dims"))? {
        FxArg::List(l) => l.clone(),
        _ => cx.call.args[1..].to_vec(),
    };
    let dim = |a: &FxArg| if let FxArg::Int(d) = a { wrap(*d, rank) } else { None };
    let perm: Vec<usize> = dims.iter().map(dim).collect::<Option<_>>()?;
    (perm.len() == rank).then(|| cx.i.view(x, View::Permute(perm), cx.ty.shape.clone()))
}

fn reshape(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0).filter(|x| cx.i.node(*x).dtype == cx.ty.dtype)?;
    Some(cx.i.view(x, View::Reshape, cx.ty.shape.clone()))
}

fn expand(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    Some(cx.i.view(x, View::Expand, cx.ty.shape.clone()))
}

/// Indexing with `None`, `...` and slices: a slice along one dim at most, from a known start.
fn getitem(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    let index = match cx.call.args.get(1)? {
        FxArg::List(l) if l.first() != Some(&FxArg::Str("slice".into())) => l.clone(),
        one => vec![one.clone()],
    };
    let whole = |a: &FxArg| matches!(a, FxArg::List(l) if l[1..].iter().all(|e| *e == FxArg::None));
    let taken = index.iter().filter(|a| matches!(a, FxArg::List(_))).count();
    let mut shape = cx.i.node(x).shape.clone();
    let (mut dim, mut cut) = (0, None);
    for a in &index {
        match a {
            FxArg::None => {}
            FxArg::Str(s) if s == "..." => dim = shape.len().checked_sub(taken)?.max(dim),
            FxArg::List(l) if l.first() == Some(&FxArg::Str("slice".into())) => {
                if !whole(a) {
                    let start = match l.get(1)? {
                        FxArg::None => 0,
                        FxArg::Int(i) if *i >= 0 => *i,
                        _ => return None,
                    };
                    let plain_step = matches!(l.get(3)?, FxArg::None | FxArg::Int(1));
                    if cut.is_some() || !plain_step {
                        return None;
                    }
                    cut = Some((dim, start));
                }
                dim += 1;
            }
            _ => return None,
        }
    }
    let mut out = x;
    if let Some((dim, start)) = cut {
        let rank = cx.ty.shape.len() - index.iter().filter(|a| **a == FxArg::None).count();
        if rank != shape.len() || rank != cx.ty.shape.len() {
            return None;
        }
        shape[dim] = cx.ty.shape[dim].clone();
        out = cx.i.view(out, View::Slice { dim, start: Expr::int(start), step: 1 }, shape);
    }
    Some(cx.i.view(out, View::Reshape, cx.ty.shape.clone()))
}

/// `x[i, j]`, which masks are made with.
fn lookup(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0).filter(|x| cx.rank(*x) == 2)?;
    let Some(FxArg::List(index)) = cx.call.args.get(1).cloned() else { return None };
    let index: Vec<usize> = index.iter().map(|a| cx.value(a)).collect::<Option<_>>()?;
    let known = index.len() == 2 && index.iter().all(|i| cx.i.node(*i).dtype == DType::I64);
    let op = CapturedOp::Part(Part::Lookup);
    known.then(|| cx.i.op(op, vec![x, index[0], index[1]], cx.ty.dtype, cx.ty.shape.clone()))
}

fn differences(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    let before = cx.value(&cx.arg(3, "prepend")?.clone())?;
    let plain = cx.int(1, "n", Some(1))? == 1 && cx.arg(4, "append").is_none_or(|a| *a == FxArg::None);
    let last = wrap(cx.int(2, "dim", Some(-1))?, cx.rank(x))? + 1 == cx.rank(x);
    let op = CapturedOp::Part(Part::Differences);
    (plain && last).then(|| cx.i.op(op, vec![x, before], cx.ty.dtype, cx.ty.shape.clone()))
}

fn running_sum(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let x = cx.tensor(0)?;
    let last = cx.dim(1, "dim", cx.rank(x))? + 1 == cx.rank(x);
    let x = cx.i.convert(x, cx.ty.dtype);
    let op = CapturedOp::Part(Part::RunningSum);
    last.then(|| cx.i.op(op, vec![x], cx.ty.dtype, cx.ty.shape.clone()))
}

fn constant(cx: &mut Cx<'_, '_>, value: Scalar) -> usize {
    cx.i.full(value, cx.ty.dtype, cx.ty.shape.clone())
}

fn arange(cx: &mut Cx<'_, '_>) -> Option<usize> {
    let [end] = cx.call.args.as_slice() else { return None };
    if !matches!(end, FxArg::Int(_) | FxArg::Node(_) | FxArg::Object(_)) || !cx.only(&["device", "dtype"]) {
        return None;
    }
    let op = CapturedOp::Op(Op::Iota { start: Expr::ZERO, step: Expr::ONE });
    cx.ty.dtype.is_int().then(|| cx.i.push(op, vec![], cx.ty.dtype, cx.ty.shape.clone(), false))
}

/// The part of a matrix whose column compares so with the row, shifted by `diagonal`; 0 elsewhere.
fn triangle(cx: &mut Cx<'_, '_>, op: PwOp) -> Option<usize> {
    let x = cx.tensor(0)?;
    let diagonal = cx.int(1, "diagonal", Some(0))?;
    let [.., rows, columns] = cx.ty.shape.as_slice() else { return None };
    let (rows, columns) = (rows.clone(), columns.clone());
    let mut index = |n: &Expr, shape: Vec<Expr>, start: i64| {
        let op = CapturedOp::Op(Op::Iota { start: Expr::int(start), step: Expr::ONE });
        let line = cx.i.push(op, vec![], DType::I64, vec![n.clone()], false);
        cx.i.view(line, View::Reshape, shape)
    };
    let row = index(&rows, vec![rows.clone(), Expr::ONE], diagonal);
    let column = index(&columns, vec![Expr::ONE, columns.clone()], 0);
    let kept = cx.i.pointwise(op, &[column, row], DType::I64)?;
    let zero = cx.i.full(Scalar::Int(0), cx.ty.dtype, vec![]);
    cx.i.pointwise(PwOp::Where, &[kept, x, zero], cx.ty.dtype)
}
