//! The state of an import and the helpers that every lowering is written with.

use crate::Error;
use crate::fx::{FxArg, FxGraph, FxMeta, FxNode};
use lj_ir::shape::{broadcast, contiguous_strides};
use lj_ir::{DType, Device, Expr, Graph, Op, PwOp, Scalar, Sym, TensorType, Type, ValueId, View};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// What an FX node's result is for the importer.
#[derive(Clone, Debug)]
pub(crate) enum Val {
    /// A tensor.
    Tensor(ValueId),
    /// A Python integer.
    Int(Expr),
    /// A Python float or truth value as a 0-d `f64` or `bool` tensor.
    Number(ValueId),
    /// A run-time Python scalar: a value of [`Type::Scalar`].
    Scalar(ValueId),
    /// Several results.
    List(Vec<Val>),
    /// `None`.
    None,
}

/// Why a lowering gives no value.
#[derive(Debug)]
pub(crate) enum Stop {
    /// ATen runs the call; the reason is shown to the user.
    Decline(Cow<'static, str>),
    /// The graph cannot be imported.
    Fail(Error),
}

impl Stop {
    /// The error, where the current node must not be left to ATen.
    pub fn error(self, cx: &Cx<'_>) -> Error {
        match self {
            Stop::Fail(e) => e,
            Stop::Decline(why) => cx.error(why),
        }
    }
}

/// Result of a lowering.
pub(crate) type Lowered<T = Val> = Result<T, Stop>;

/// Turns one call into nodes.
pub(crate) type Lower = fn(&mut Cx<'_>) -> Lowered;

/// Leaves the call to ATen, because of `reason`.
pub(crate) fn decline<T>(reason: impl Into<Cow<'static, str>>) -> Lowered<T> {
    Err(Stop::Decline(reason.into()))
}

/// An operand of an elementwise operation.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// A tensor.
    Tensor(ValueId),
    /// A Python number.
    Const(Scalar),
    /// A Python integer known by name.
    Sym(Expr),
    /// A Python float or truth value as a 0-d `f64` or `bool` tensor.
    Number(ValueId),
}

/// State of an import; `node` is the call being lowered.
pub(crate) struct Cx<'a> {
    pub fx: &'a FxGraph,
    pub graph: Graph,
    pub vals: Vec<Val>,
    pub node: &'a FxNode,
    pub prov: u32,
    /// Symbols that inputs or earlier results define.
    pub known: BTreeSet<Sym>,
    /// Number of values when the current lowering began: later ones are its own.
    pub first_new: usize,
}

impl<'a> Cx<'a> {
    // ---- errors ----

    /// An error about the current node.
    pub fn error(&self, what: impl Into<String>) -> Error {
        Error::at(self.node, what)
    }

    fn bad<T>(&self, what: impl Into<String>) -> Lowered<T> {
        Err(Stop::Fail(self.error(what)))
    }

    // ---- arguments ----

    /// Argument `i`, or the keyword `name`; `None` when it is absent or Python's `None`.
    pub fn arg(&self, i: usize, name: &str) -> Option<&'a FxArg> {
        let node = self.node;
        let found = node.args.get(i);
        let found = found.or_else(|| node.kwargs.iter().find(|(k, _)| k == name).map(|(_, v)| v));
        found.filter(|a| !matches!(a, FxArg::None))
    }

    /// The value of node `i`.
    pub fn val(&self, i: usize) -> Lowered<&Val> {
        match self.vals.get(i) {
            Some(v) => Ok(v),
            None => self.bad(format!("uses node {i}, which comes later or does not exist")),
        }
    }

    /// A tensor argument.
    pub fn tensor(&self, i: usize, name: &str) -> Lowered<ValueId> {
        match self.opt_tensor(i, name)? {
            Some(v) => Ok(v),
            None => self.bad(format!("argument {i} (`{name}`) should be a tensor and is missing")),
        }
    }

    /// A tensor argument that may be absent.
    pub fn opt_tensor(&self, i: usize, name: &str) -> Lowered<Option<ValueId>> {
        self.arg(i, name).map(|a| self.as_tensor(a)).transpose()
    }

    /// `a` as a tensor.
    pub fn as_tensor(&self, a: &FxArg) -> Lowered<ValueId> {
        match a {
            FxArg::Node(n) => match self.val(*n)? {
                Val::Tensor(v) => Ok(*v),
                _ => decline("an operand is not a tensor"),
            },
            _ => decline("an operand is not a tensor"),
        }
    }

    /// A list of tensors.
    pub fn tensors(&self, i: usize, name: &str) -> Lowered<Vec<ValueId>> {
        match self.arg(i, name) {
            Some(FxArg::List(l)) => l.iter().map(|a| self.as_tensor(a)).collect(),
            Some(FxArg::Node(n)) => match self.val(*n)? {
                Val::List(l) => l
                    .iter()
                    .map(|v| match v {
                        Val::Tensor(t) => Ok(*t),
                        _ => decline("a list holds something that is not a tensor"),
                    })
                    .collect(),
                _ => decline("a list of tensors was expected"),
            },
            _ => decline("a list of tensors was expected"),
        }
    }

    /// `a` as an integer expression.
    pub fn as_expr(&self, a: &FxArg) -> Lowered<Expr> {
        match a {
            FxArg::Int(i) => Ok(Expr::int(*i)),
            FxArg::Bool(b) => Ok(Expr::int(i64::from(*b))),
            FxArg::Node(n) => match self.val(*n)? {
                Val::Int(e) => Ok(e.clone()),
                _ => decline("an integer argument is known only at run time"),
            },
            _ => decline("an integer argument was expected"),
        }
    }

    /// An integer argument, possibly symbolic.
    pub fn expr(&self, i: usize, name: &str) -> Lowered<Option<Expr>> {
        self.arg(i, name).map(|a| self.as_expr(a)).transpose()
    }

    /// A concrete integer argument.
    pub fn int(&self, i: usize, name: &str, default: i64) -> Lowered<i64> {
        match self.expr(i, name)? {
            None => Ok(default),
            Some(e) => match e.as_int() {
                Some(v) => Ok(v),
                None => decline(format!("`{name}` is symbolic")),
            },
        }
    }

    /// A bool argument.
    pub fn bool(&self, i: usize, name: &str, default: bool) -> Lowered<bool> {
        match self.arg(i, name) {
            None => Ok(default),
            Some(FxArg::Bool(b)) => Ok(*b),
            Some(FxArg::Int(v)) => Ok(*v != 0),
            Some(_) => decline(format!("`{name}` is known only at run time")),
        }
    }

    /// A list of integers, or one integer as a list.
    pub fn exprs(&self, i: usize, name: &str) -> Lowered<Option<Vec<Expr>>> {
        match self.arg(i, name) {
            None => Ok(None),
            Some(FxArg::List(l)) => l.iter().map(|a| self.as_expr(a)).collect::<Lowered<_>>().map(Some),
            Some(a) => Ok(Some(vec![self.as_expr(a)?])),
        }
    }

    /// Dims of a tensor of rank `rank`, normalised; absent or empty gives all.
    pub fn dims(&self, i: usize, name: &str, rank: usize) -> Lowered<Vec<usize>> {
        let list = self.exprs(i, name)?.unwrap_or_default();
        if list.is_empty() {
            return Ok((0..rank).collect());
        }
        let mut dims = list
            .iter()
            .map(|e| match e.as_int() {
                Some(d) => self.wrap_dim(d, rank),
                None => decline("a dim is symbolic"),
            })
            .collect::<Lowered<Vec<_>>>()?;
        dims.sort_unstable();
        dims.dedup();
        // A 0-d tensor has no dims to reduce.
        dims.retain(|d| *d < rank);
        Ok(dims)
    }

    /// A dim counted from either end; 0-d tensors take 0 and −1.
    pub fn wrap_dim(&self, d: i64, rank: usize) -> Lowered<usize> {
        let n = rank.max(1) as i64;
        let wrapped = if d < 0 { d + n } else { d };
        if (0..n).contains(&wrapped) {
            Ok(wrapped as usize)
        } else {
            self.bad(format!("dim {d} is out of range for rank {rank}"))
        }
    }

    /// The dim argument `i` for a tensor of rank `rank`.
    pub fn dim(&self, i: usize, name: &str, default: i64, rank: usize) -> Lowered<usize> {
        self.wrap_dim(self.int(i, name, default)?, rank)
    }

    /// A string argument.
    pub fn str_arg(&self, i: usize, name: &str) -> Option<&'a str> {
        match self.arg(i, name) {
            Some(FxArg::Str(s)) => Some(s),
            _ => None,
        }
    }

    /// A constant number argument.
    pub fn number(&self, i: usize, name: &str, default: Scalar) -> Lowered<Scalar> {
        match self.arg(i, name) {
            None => Ok(default),
            Some(a) => match self.as_operand(a)? {
                Operand::Const(s) => Ok(s),
                _ => decline(format!("`{name}` is not a constant")),
            },
        }
    }

    /// Argument `i` as an operand of an elementwise operation.
    pub fn operand(&mut self, i: usize, name: &str) -> Lowered<Operand> {
        match self.opt_operand(i, name)? {
            Some(o) => Ok(o),
            None => self.bad(format!("argument {i} (`{name}`) is missing")),
        }
    }

    /// The same, for an argument that may be absent.
    pub fn opt_operand(&mut self, i: usize, name: &str) -> Lowered<Option<Operand>> {
        let Some(a) = self.arg(i, name) else { return Ok(None) };
        // A run-time scalar enters arithmetic as a 0-d tensor that still promotes as a number.
        if let FxArg::Node(n) = a
            && let Val::Scalar(v) = self.val(*n)?
        {
            let v = *v;
            return Ok(Some(Operand::Number(self.scalar_to_tensor(v))));
        }
        self.as_operand(a).map(Some)
    }

    fn as_operand(&self, a: &FxArg) -> Lowered<Operand> {
        Ok(match a {
            FxArg::Int(i) => Operand::Const(Scalar::Int(*i)),
            FxArg::Bool(b) => Operand::Const(Scalar::Bool(*b)),
            FxArg::Float(f) => Operand::Const(Scalar::float(*f)),
            FxArg::Node(n) => match self.val(*n)? {
                Val::Tensor(v) => Operand::Tensor(*v),
                Val::Int(e) => match e.as_int() {
                    Some(i) => Operand::Const(Scalar::Int(i)),
                    None => Operand::Sym(e.clone()),
                },
                Val::Number(v) => Operand::Number(*v),
                _ => return decline("an operand is neither a tensor nor a number"),
            },
            _ => return decline("an operand is neither a tensor nor a number"),
        })
    }

    fn scalar_to_tensor(&mut self, v: ValueId) -> ValueId {
        // What was read from a tensor is still there.
        let read = self.graph.def(v);
        if let Op::Extern(call) = &read.op
            && call.target == crate::run::READ
            && let &[x] = &read.inputs[..]
            && self.ty(x).device == Device::Cpu
            && self.dtype(x).in_kernels()
            && let &Type::Scalar(dtype) = self.graph.ty(v)
        {
            let x = self.reshape(x, vec![]);
            return self.convert(x, dtype);
        }
        let dtype = match self.graph.ty(v) {
            Type::Scalar(dtype) => *dtype,
            _ => DType::F64,
        };
        let call = lj_ir::ExternCall {
            target: "aten.scalar_tensor.default".into(),
            args: vec![lj_ir::Arg::Input(0)],
            kwargs: vec![("dtype".into(), lj_ir::Arg::DType(dtype))],
            reason: "a number known only at run time becomes a tensor".into(),
            effect: false,
        };
        self.push(Op::Extern(call), vec![v], TensorType::contiguous(dtype, vec![]))
    }

    // ---- the result ----

    /// Type of the call's tensor result.
    pub fn result(&self) -> Lowered<&'a TensorType> {
        match &self.node.meta {
            FxMeta::Tensor(t) => Ok(t),
            _ => decline("the result is not a tensor"),
        }
    }

    /// Element `i` of the result's metadata.
    pub fn result_at(&self, i: usize) -> Lowered<&'a TensorType> {
        match &self.node.meta {
            FxMeta::List(l) => match l.get(i) {
                Some(FxMeta::Tensor(t)) => Ok(t),
                _ => self.bad(format!("result {i} should be a tensor")),
            },
            _ => self.bad("several results were expected"),
        }
    }

    /// Makes `v` the call's result: converts it to the dtype of the metadata and gives it the
    /// metadata's layout.
    pub fn done(&mut self, v: ValueId) -> Lowered {
        let ty = self.result()?.clone();
        self.done_as(v, ty).map(Val::Tensor)
    }

    /// The same for one of several results.
    pub fn done_as(&mut self, v: ValueId, ty: TensorType) -> Lowered<ValueId> {
        let v = self.convert(v, ty.dtype);
        let v = self.retyped(v, &ty.shape)?;
        let own = v.index() >= self.first_new;
        let movable = !matches!(self.graph.def(v).op, Op::View(ref view) if view.aliases());
        if own && movable {
            self.graph.values[v.index()].ty = Type::Tensor(ty);
            return Ok(v);
        }
        Ok(self.push(Op::Copy, vec![v], ty))
    }

    // ---- building ----

    /// Adds a node with one tensor result.
    pub fn push(&mut self, op: Op, inputs: Vec<ValueId>, ty: TensorType) -> ValueId {
        self.graph.push1(op, inputs, ty, self.prov)
    }

    /// Type of `v`.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        self.graph.tensor(v)
    }

    /// Element type of `v`.
    pub fn dtype(&self, v: ValueId) -> DType {
        self.graph.tensor(v).dtype
    }

    /// Shape of `v`.
    pub fn shape(&self, v: ValueId) -> Vec<Expr> {
        self.graph.tensor(v).shape.clone()
    }

    /// Rank of `v`.
    pub fn rank(&self, v: ValueId) -> usize {
        self.graph.tensor(v).rank()
    }

    /// A type for an intermediate result: laid out in the order of the final result's strides when
    /// the ranks agree, else row-major.
    pub fn fresh(&self, dtype: DType, shape: Vec<Expr>) -> TensorType {
        let device = self.result().map_or(Device::Cpu, |t| t.device);
        let strides = match self.result() {
            Ok(like) if like.rank() == shape.len() => dense_like(&shape, like, &self.graph.facts),
            _ => contiguous_strides(&shape),
        };
        TensorType { dtype, device, shape, strides }
    }

    /// `v` in `dtype`.
    pub fn convert(&mut self, v: ValueId, dtype: DType) -> ValueId {
        let ty = self.ty(v);
        if ty.dtype == dtype {
            return v;
        }
        // A constant converts now, in one rounding.
        if let Op::Full(s) = self.graph.def(v).op {
            let ty = TensorType { dtype, ..ty.clone() };
            let exact = s.cast(ty.dtype);
            return self.push(Op::Full(exact), vec![], ty);
        }
        let ty = TensorType { dtype, ..ty.clone() };
        self.push(Op::Convert, vec![v], ty)
    }

    /// A 0-d constant.
    pub fn constant(&mut self, s: Scalar, dtype: DType) -> ValueId {
        self.push(Op::Full(s.cast(dtype)), vec![], TensorType::contiguous(dtype, vec![]))
    }

    /// A 0-d floating-point constant in `dtype`.
    pub fn float(&mut self, v: f64, dtype: DType) -> ValueId {
        self.constant(Scalar::float(v), dtype)
    }

    /// A 0-d tensor holding `e` in `dtype`.
    pub fn sym(&mut self, e: &Expr, dtype: DType) -> ValueId {
        match e.as_int() {
            Some(i) => self.constant(Scalar::Int(i), dtype),
            None => self.push(Op::FullSym(e.clone()), vec![], TensorType::contiguous(dtype, vec![])),
        }
    }

    /// An elementwise operation; operands broadcast.
    pub fn pw(&mut self, op: PwOp, inputs: &[ValueId]) -> Lowered<ValueId> {
        let mut inputs = inputs.to_vec();
        if self.common_shape(&inputs).is_none() {
            self.agree(&mut inputs)?;
        }
        let Some(shape) = self.common_shape(&inputs) else {
            return decline("the operands' shapes do not broadcast");
        };
        let operand = self.dtype(*inputs.last().unwrap_or(&ValueId(0)));
        if !op.accepts(operand) {
            return decline(format!("no `{}` for {operand}", op.name()));
        }
        let dtype = match op.result() {
            lj_ir::pointwise::PwResult::Bool => DType::Bool,
            lj_ir::pointwise::PwResult::Same => operand,
        };
        let ty = self.fresh(dtype, shape);
        Ok(self.push(Op::Pointwise(op), inputs, ty))
    }

    fn common_shape(&self, inputs: &[ValueId]) -> Option<Vec<Expr>> {
        let step = |shape: Vec<Expr>, v: &ValueId| broadcast(&shape, &self.ty(*v).shape, &self.graph.facts);
        inputs.iter().try_fold(vec![], step)
    }

    /// Gives the operands of a broadcast equal extents where equality cannot be proved: tracing has
    /// established it by a guard (such as `2*(s0//2) = s0` for even `s0`). The result's extents
    /// count if they fit, else those of the first operand.
    fn agree(&mut self, inputs: &mut [ValueId]) -> Lowered<()> {
        let rank = inputs.iter().map(|v| self.rank(*v)).max().unwrap_or(0);
        let like = self.result()?.shape.clone();
        let mut shape = vec![Expr::ONE; rank];
        if like.len() == rank {
            shape = like;
        } else {
            for v in inputs.iter() {
                let own = self.ty(*v).shape.clone();
                for (to, e) in shape[rank - own.len()..].iter_mut().zip(own) {
                    if to.is(1) {
                        *to = e;
                    }
                }
            }
        }
        for v in inputs.iter_mut() {
            let own = self.shape(*v);
            let lead = rank - own.len();
            let want = own.iter().enumerate().map(|(i, e)| if e.is(1) { e } else { &shape[lead + i] });
            let want: Vec<Expr> = want.cloned().collect();
            *v = self.retyped(*v, &want)?;
        }
        Ok(())
    }

    /// `v` with extents that are equal to its own though that cannot be proved.
    pub fn retyped(&mut self, v: ValueId, shape: &[Expr]) -> Lowered<ValueId> {
        let own = self.ty(v);
        let facts = &self.graph.facts;
        let pairs = || own.shape.iter().zip(shape);
        if own.rank() != shape.len() || pairs().any(|(a, b)| facts.ne(a, b)) {
            return decline("the operands' shapes do not fit");
        }
        if pairs().all(|(a, b)| facts.eq(a, b)) {
            return Ok(v);
        }
        let ty = TensorType { shape: shape.to_vec(), ..own.clone() };
        Ok(self.view(View::Reshape, v, ty))
    }

    /// A view of `v` with the given result type.
    pub fn view(&mut self, view: View, v: ValueId, ty: TensorType) -> ValueId {
        self.push(Op::View(view), vec![v], ty)
    }

    /// `v` reshaped to `shape` (an intermediate, row-major).
    pub fn reshape(&mut self, v: ValueId, shape: Vec<Expr>) -> ValueId {
        let ty = self.ty(v);
        if ty.shape == shape {
            return v;
        }
        let strides = lj_ir::shape::reshape_strides(&ty.shape, &ty.strides, &shape, &self.graph.facts)
            .unwrap_or_else(|| contiguous_strides(&shape));
        let ty = TensorType { dtype: ty.dtype, device: ty.device, shape, strides };
        self.view(View::Reshape, v, ty)
    }

    /// `v` broadcast to `shape`, whose extents count where equality to those of `v` cannot be proved.
    pub fn expand(&mut self, v: ValueId, shape: &[Expr]) -> ValueId {
        let own = self.shape(v);
        let lead = shape.len().saturating_sub(own.len());
        let want = own.iter().zip(&shape[lead..]).map(|(a, b)| if a.is(1) { a } else { b });
        let want: Vec<Expr> = want.cloned().collect();
        let v = self.retyped(v, &want).unwrap_or(v);
        let ty = self.ty(v);
        if ty.shape == shape {
            return v;
        }
        let strides = (0..shape.len())
            .map(|i| {
                if i < lead || ty.shape[i - lead] != shape[i] {
                    Expr::ZERO
                } else {
                    ty.strides[i - lead].clone()
                }
            })
            .collect();
        let ty = TensorType { dtype: ty.dtype, device: ty.device, shape: shape.to_vec(), strides };
        self.view(View::Expand, v, ty)
    }

    /// `v[..., start : start+len, ...]` along `dim`.
    pub fn narrow(&mut self, v: ValueId, dim: usize, start: &Expr, len: &Expr) -> ValueId {
        let mut ty = self.ty(v).clone();
        if start.is(0) && &ty.shape[dim] == len {
            return v;
        }
        ty.shape[dim] = len.clone();
        self.view(View::Slice { dim, start: start.clone(), step: 1 }, v, ty)
    }
}

/// Strides of a dense tensor of `shape` whose dims are ordered in memory as those of `like`.
pub(crate) fn dense_like(shape: &[Expr], like: &TensorType, facts: &lj_ir::Facts) -> Vec<Expr> {
    if lj_ir::shape::is_contiguous(&like.shape, &like.strides, facts) {
        return contiguous_strides(shape);
    }
    let mut order: Vec<usize> = (0..shape.len()).collect();
    // Outermost first; a dim of extent 1 or stride 0 says nothing about order.
    order.sort_by_key(|&d| {
        let extent = like.shape[d].is(1);
        (std::cmp::Reverse(facts.hint(&like.strides[d])), extent)
    });
    let mut strides = vec![Expr::ONE; shape.len()];
    let mut next = Expr::ONE;
    for &d in order.iter().rev() {
        strides[d] = next.clone();
        if !shape[d].is(0) {
            next = &next * &shape[d];
        }
    }
    strides
}
