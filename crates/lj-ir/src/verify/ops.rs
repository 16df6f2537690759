//! What each operation demands of its operands and results.

use super::{Check, ensure, same_shape};
use crate::dtype::{DType, Device};
use crate::expr::Expr;
use crate::graph::{Graph, Node, TensorType, Type};
use crate::op::{Arg, Op, ReduceOp, ScanOp, ScatterOp, View};
use crate::pointwise::{PwOp, PwResult};
use crate::shape::broadcast;

/// Checks a node whose operands and results are known to exist.
pub(super) fn check(graph: &Graph, node: &Node) -> Check {
    match &node.op {
        Op::Input { .. } => return Ok(()),
        Op::Extern(call) => {
            return call
                .args
                .iter()
                .chain(call.kwargs.iter().map(|(_, a)| a))
                .try_for_each(|a| operands_exist(a, node.inputs.len()));
        }
        _ => {}
    }
    ensure!(node.outputs.len() == 1, "expected one result, found {}", node.outputs.len());
    // Graph outputs that are no tensors.
    if let (Op::Full(_), Type::None) | (Op::FullSym(_), Type::SymInt(_)) =
        (&node.op, graph.ty(node.outputs[0]))
    {
        ensure!(node.inputs.is_empty(), "expected no operands");
        if let (Op::FullSym(e), Type::SymInt(t)) = (&node.op, graph.ty(node.outputs[0])) {
            ensure!(graph.facts.eq(e, t), "the result is {t}, not {e}");
        }
        return Ok(());
    }
    let Some(out) = graph.ty(node.outputs[0]).tensor() else {
        return Err("the result must be a tensor".into());
    };
    let ins: Vec<&TensorType> = node.inputs.iter().filter_map(|&v| graph.ty(v).tensor()).collect();
    ensure!(ins.len() == node.inputs.len(), "every operand must be a tensor");
    for t in &ins {
        // ATen, too, takes a CPU scalar beside tensors of another device.
        let scalar = t.rank() == 0 && t.device == Device::Cpu;
        ensure!(
            t.device == out.device || scalar,
            "an operand is on {}, the result on {}",
            t.device,
            out.device
        );
    }
    if !matches!(node.op, Op::View(_) | Op::Copy) {
        for t in ins.iter().copied().chain([out]) {
            ensure!(t.dtype.in_kernels(), "kernels cannot compute on {}", t.dtype);
        }
    }
    Checker { graph, ins: &ins, out }.op(&node.op)
}

fn operands_exist(arg: &Arg, count: usize) -> Check {
    match arg {
        Arg::Input(i) => {
            ensure!(*i < count, "an argument is operand {i} of {count}");
            Ok(())
        }
        Arg::List(items) | Arg::Tuple(items) => items.iter().try_for_each(|a| operands_exist(a, count)),
        _ => Ok(()),
    }
}

/// Whether `list` is strictly ascending and below `bound`.
fn ascending(list: &[usize], bound: usize) -> bool {
    list.windows(2).all(|w| w[0] < w[1]) && list.last().is_none_or(|&l| l < bound)
}

/// Whether arithmetic on this type must go through `f32`.
fn is_half(d: DType) -> bool {
    matches!(d, DType::F16 | DType::BF16)
}

struct Checker<'a> {
    graph: &'a Graph,
    ins: &'a [&'a TensorType],
    out: &'a TensorType,
}

impl Checker<'_> {
    fn op(&self, op: &Op) -> Check {
        match op {
            Op::Input { .. } | Op::Extern(_) => Ok(()),
            Op::Pointwise(op) => self.pointwise(*op),
            Op::Convert => {
                self.arity(1)?;
                self.shape(&self.ins[0].shape)
            }
            Op::Copy => {
                self.arity(1)?;
                self.result(self.ins[0].dtype)?;
                self.shape(&self.ins[0].shape)
            }
            Op::Reduce { op, dims } => self.reduce(*op, dims),
            Op::Scan { op, dim, .. } => self.scan(*op, *dim),
            Op::View(view) => {
                self.arity(1)?;
                self.result(self.ins[0].dtype)?;
                ensure!(self.ins[0].device == self.out.device, "a view cannot change the device");
                self.view(view, self.ins[0])
            }
            Op::Full(_) => self.arity(0),
            Op::FullSym(_) => {
                self.arity(0)?;
                self.shape(&[])
            }
            Op::Iota { .. } => {
                self.arity(0)?;
                ensure!(self.out.rank() == 1, "expected one dim, found {}", self.out.rank());
                ensure!(self.out.dtype.is_int(), "expected an integer dtype, found {}", self.out.dtype);
                Ok(())
            }
            Op::Index { dims, at } => self.index(dims, *at),
            Op::Gather { dim } => self.gather(*dim),
            Op::Scatter { op, dims, rest, .. } => self.scatter(*op, dims, rest),
            Op::Cat { dim } => self.cat(*dim),
            Op::Pad { low, high, .. } => self.pad(low, high),
            Op::Matmul { bias } => self.matmul(*bias),
        }
    }

    fn arity(&self, n: usize) -> Check {
        ensure!(self.ins.len() == n, "expected {n} operands, found {}", self.ins.len());
        Ok(())
    }

    fn result(&self, dtype: DType) -> Check {
        ensure!(self.out.dtype == dtype, "expected the result dtype {dtype}, found {}", self.out.dtype);
        Ok(())
    }

    fn operand(&self, i: usize, dtype: DType) -> Check {
        ensure!(
            self.ins[i].dtype == dtype,
            "expected the dtype {dtype} of operand {i}, found {}",
            self.ins[i].dtype
        );
        Ok(())
    }

    fn shape(&self, shape: &[Expr]) -> Check {
        same_shape(self.graph, self.out, shape)
    }

    /// Refuses extents that are provably different.
    fn extent(&self, what: &str, expected: &Expr, found: &Expr) -> Check {
        ensure!(!self.graph.facts.ne(expected, found), "expected the {what} {expected}, found {found}");
        Ok(())
    }

    fn broadcast<'t>(&self, shapes: impl IntoIterator<Item = &'t TensorType>) -> Check<Vec<Expr>> {
        let mut all: Vec<Expr> = vec![];
        for t in shapes {
            match broadcast(&all, &t.shape, &self.graph.facts) {
                Some(s) => all = s,
                None => return Err(format!("the shapes {all:?} and {:?} do not broadcast", t.shape)),
            }
        }
        Ok(all)
    }

    fn pointwise(&self, op: PwOp) -> Check {
        self.arity(op.arity())?;
        let (condition, values) = self.ins.split_at(usize::from(op == PwOp::Where));
        if !condition.is_empty() {
            self.operand(0, DType::Bool)?;
        }
        let dtype = values[0].dtype;
        for i in condition.len() + 1..self.ins.len() {
            self.operand(i, dtype)?;
        }
        ensure!(op.accepts(dtype), "`{}` does not exist for {dtype}", op.name());
        self.result(match op.result() {
            PwResult::Same => dtype,
            PwResult::Bool => DType::Bool,
        })?;
        let shape = self.broadcast(self.ins.iter().copied())?;
        self.shape(&shape)
    }

    fn reduce(&self, op: ReduceOp, dims: &[usize]) -> Check {
        self.arity(1)?;
        let x = self.ins[0];
        ensure!(
            ascending(dims, x.rank()),
            "the dims {dims:?} are not ascending dims of a {}-d tensor",
            x.rank()
        );
        ensure!(!dims.is_empty() || x.rank() == 0, "no dims to reduce");
        let accepted = match op {
            ReduceOp::Sum | ReduceOp::Prod => !is_half(x.dtype) && x.dtype != DType::Bool,
            ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax | ReduceOp::ArgMin => !is_half(x.dtype),
            ReduceOp::Any | ReduceOp::All => x.dtype == DType::Bool,
        };
        ensure!(accepted, "`{}` does not exist for {}", op.name(), x.dtype);
        self.result(if op.is_arg() { DType::I64 } else { x.dtype })?;
        let rest = x.shape.iter().enumerate().filter(|(i, _)| !dims.contains(i));
        self.shape(&rest.map(|(_, e)| e.clone()).collect::<Vec<_>>())
    }

    fn scan(&self, op: ScanOp, dim: usize) -> Check {
        self.arity(1)?;
        let x = self.ins[0];
        ensure!(dim < x.rank(), "there is no dim {dim} in a {}-d tensor", x.rank());
        let accepted = match op {
            ScanOp::LogSumExp => x.dtype.is_float() && !is_half(x.dtype),
            _ => !is_half(x.dtype) && x.dtype != DType::Bool,
        };
        ensure!(accepted, "a scan of `{}` does not exist for {}", op.name(), x.dtype);
        self.shape(&x.shape)
    }

    fn view(&self, view: &View, x: &TensorType) -> Check {
        let facts = &self.graph.facts;
        let dim_exists = |dim: usize| {
            ensure!(dim < x.rank(), "there is no dim {dim} in a {}-d tensor", x.rank());
            Ok(())
        };
        match view {
            View::Permute(perm) => {
                let mut sorted = perm.clone();
                sorted.sort_unstable();
                ensure!(
                    sorted.iter().copied().eq(0..x.rank()),
                    "{perm:?} is not a permutation of {} dims",
                    x.rank()
                );
                self.shape(&perm.iter().map(|&p| x.shape[p].clone()).collect::<Vec<_>>())
            }
            View::Reshape => self.extent("number of elements", &x.numel(), &self.out.numel()),
            View::Expand => {
                let (from, to) = (&x.shape, &self.out.shape);
                ensure!(from.len() <= to.len(), "cannot expand {from:?} to {to:?}");
                let pairs = from.iter().zip(&to[to.len() - from.len()..]);
                let fits = pairs.into_iter().all(|(a, b)| a.is(1) || facts.eq(a, b));
                ensure!(fits, "cannot expand {from:?} to {to:?}");
                Ok(())
            }
            View::Slice { dim, start, step } => {
                dim_exists(*dim)?;
                ensure!(*step > 0, "the step {step} is not positive");
                ensure!(facts.range(start).1 >= 0, "the start {start} is negative");
                let mut shape = x.shape.clone();
                shape[*dim] = self.out.shape.get(*dim).cloned().unwrap_or(Expr::ZERO);
                self.shape(&shape)?;
                let (len, extent) = (&shape[*dim], &x.shape[*dim]);
                let last = start + &((len - &Expr::ONE) * Expr::int(*step));
                let outside = facts.ge(len, &Expr::ONE) && facts.ge(&last, extent);
                ensure!(!outside, "the last index {last} is outside of the extent {extent}");
                Ok(())
            }
            View::Select { dim, index } => {
                dim_exists(*dim)?;
                let extent = &x.shape[*dim];
                let outside = facts.range(index).1 < 0 || facts.ge(index, extent);
                ensure!(!outside, "the index {index} is outside of the extent {extent}");
                let mut shape = x.shape.clone();
                shape.remove(*dim);
                self.shape(&shape)
            }
            View::Flip(dims) => {
                let mut sorted = dims.clone();
                sorted.sort_unstable();
                ensure!(
                    ascending(&sorted, x.rank()),
                    "{dims:?} are not distinct dims of a {}-d tensor",
                    x.rank()
                );
                self.shape(&x.shape)
            }
            View::Map(coords) => self.map(coords, x),
        }
    }

    /// A coordinate for every dim of the operand, over the result's positions; the first and the last
    /// position must not provably lie outside.
    fn map(&self, coords: &[Expr], x: &TensorType) -> Check {
        let (rank, facts) = (self.out.rank(), &self.graph.facts);
        ensure!(coords.len() == x.rank(), "{} coordinates in a {}-d tensor", coords.len(), x.rank());
        for s in coords.iter().flat_map(Expr::symbols) {
            ensure!(View::dim_of(&s).is_none_or(|d| d < rank), "{s} is no position of a {rank}-d result");
        }
        if !self.out.shape.iter().all(|e| facts.ge(e, &Expr::ONE)) {
            return Ok(());
        }
        let first = vec![Expr::ZERO; rank];
        let last: Vec<Expr> = self.out.shape.iter().map(|e| e - &Expr::ONE).collect();
        for at in [first, last] {
            for (c, extent) in View::placed(coords, &at).iter().zip(&x.shape) {
                let outside = facts.range(c).1 < 0 || facts.ge(c, extent);
                ensure!(!outside, "the coordinate {c} is outside of the extent {extent}");
            }
        }
        Ok(())
    }

    fn index(&self, dims: &[usize], at: usize) -> Check {
        ensure!(!dims.is_empty(), "no dims to index");
        self.arity(1 + dims.len())?;
        let x = self.ins[0];
        self.result(x.dtype)?;
        ensure!(
            ascending(dims, x.rank()),
            "the dims {dims:?} are not ascending dims of a {}-d tensor",
            x.rank()
        );
        for i in 1..self.ins.len() {
            self.operand(i, DType::I64)?;
        }
        let index = self.broadcast(self.ins[1..].iter().copied())?;
        let rest = x.shape.iter().enumerate().filter(|(i, _)| !dims.contains(i));
        let mut shape: Vec<Expr> = rest.map(|(_, e)| e.clone()).collect();
        ensure!(at <= shape.len(), "the index dims cannot stand at {at} of {} dims", shape.len());
        shape.splice(at..at, index);
        self.shape(&shape)
    }

    fn gather(&self, dim: usize) -> Check {
        self.arity(2)?;
        let (x, index) = (self.ins[0], self.ins[1]);
        self.result(x.dtype)?;
        self.operand(1, DType::I64)?;
        ensure!(index.rank() == x.rank(), "the index has {} dims, the tensor {}", index.rank(), x.rank());
        ensure!(dim < x.rank().max(1), "there is no dim {dim} in a {}-d tensor", x.rank());
        for (i, (a, b)) in index.shape.iter().zip(&x.shape).enumerate() {
            let fits = i == dim || !self.graph.facts.ge(a, &(b + &Expr::ONE));
            ensure!(fits, "the index's extent {a} of dim {i} is larger than {b}");
        }
        self.shape(&index.shape)
    }

    fn scatter(&self, op: ScatterOp, dims: &[usize], rest: &[usize]) -> Check {
        self.arity(2 + dims.len())?;
        let (base, src) = (self.ins[0], self.ins[1]);
        ensure!(!dims.is_empty(), "no dims to index");
        ensure!(
            ascending(dims, base.rank()),
            "the dims {dims:?} are not ascending dims of a {}-d tensor",
            base.rank()
        );
        self.result(base.dtype)?;
        self.operand(1, base.dtype)?;
        let ordered = !matches!(op, ScatterOp::Max | ScatterOp::Min) || base.dtype != DType::Bool;
        ensure!(ordered, "`{}` does not exist for bool", op.name());
        for (i, index) in self.ins.iter().enumerate().skip(2) {
            self.operand(i, DType::I64)?;
            let facts = &self.graph.facts;
            let skip = src.rank().checked_sub(index.rank());
            let fits = skip.is_some_and(|skip| {
                let pairs = index.shape.iter().zip(&src.shape[skip..]);
                pairs.into_iter().all(|(a, b)| a.is(1) || !facts.ne(a, b))
            });
            ensure!(fits, "the index {:?} does not broadcast to {:?}", index.shape, src.shape);
        }
        let mut sorted = rest.to_vec();
        sorted.sort_unstable();
        let kept: Vec<usize> = (0..base.rank()).filter(|d| !dims.contains(d)).collect();
        ensure!(
            ascending(&sorted, src.rank()) && rest.len() == kept.len(),
            "{rest:?} are not {} distinct dims of a {}-d tensor",
            kept.len(),
            src.rank()
        );
        for (&d, &r) in kept.iter().zip(rest) {
            let (a, b) = (&src.shape[r], &base.shape[d]);
            let fits = !self.graph.facts.ge(a, &(b + &Expr::ONE));
            ensure!(fits, "dim {r} of the source has the extent {a}, dim {d} of the result only {b}");
        }
        self.shape(&base.shape)
    }

    fn cat(&self, dim: usize) -> Check {
        ensure!(!self.ins.is_empty(), "nothing to concatenate");
        let x = self.ins[0];
        ensure!(dim < x.rank(), "there is no dim {dim} in a {}-d tensor", x.rank());
        self.result(x.dtype)?;
        let mut shape = x.shape.clone();
        let mut sum = Expr::ZERO;
        for (i, t) in self.ins.iter().enumerate() {
            self.operand(i, x.dtype)?;
            ensure!(t.rank() == x.rank(), "operand {i} has {} dims, the first {}", t.rank(), x.rank());
            shape[dim] = t.shape[dim].clone();
            same_shape(self.graph, t, &shape)?;
            sum = sum + &t.shape[dim];
        }
        ensure!(self.out.rank() == x.rank(), "expected {} dims, found {}", x.rank(), self.out.rank());
        self.extent("extent", &sum, &self.out.shape[dim])?;
        shape[dim] = self.out.shape[dim].clone();
        self.shape(&shape)
    }

    fn pad(&self, low: &[Expr], high: &[Expr]) -> Check {
        self.arity(1)?;
        let x = self.ins[0];
        self.result(x.dtype)?;
        let ranks = [low.len(), high.len(), self.out.rank()];
        ensure!(
            ranks.iter().all(|&r| r == x.rank()),
            "low, high and the result have {ranks:?} dims, the operand {}",
            x.rank()
        );
        for (i, e) in x.shape.iter().enumerate() {
            self.extent("extent", &(e + &low[i] + &high[i]), &self.out.shape[i])?;
        }
        Ok(())
    }

    fn matmul(&self, bias: bool) -> Check {
        self.arity(2 + usize::from(bias))?;
        let (a, b) = (self.ins[0], self.ins[1]);
        for i in 1..self.ins.len() {
            self.operand(i, a.dtype)?;
        }
        self.result(a.dtype)?;
        ensure!(a.dtype != DType::Bool, "no arithmetic on bool");
        ensure!(matches!(a.rank(), 2 | 3), "expected 2 or 3 dims, found {}", a.rank());
        ensure!(a.rank() == b.rank(), "operands of {} and {} dims", a.rank(), b.rank());
        let (batch, m) = a.shape.split_at(a.rank() - 2);
        let (m, k) = (&m[0], &m[1]);
        let mut right = batch.to_vec();
        right.extend([k.clone(), b.shape[b.rank() - 1].clone()]);
        same_shape(self.graph, b, &right)?;
        let mut shape = batch.to_vec();
        shape.extend([m.clone(), b.shape[b.rank() - 1].clone()]);
        self.shape(&shape)?;
        if bias {
            let all = self.broadcast([self.out, self.ins[2]])?;
            self.shape(&all)?;
        }
        Ok(())
    }
}
