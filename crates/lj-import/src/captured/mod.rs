//! Import of calls above autograd, as Dynamo captured them: torch functions, methods and Python
//! operators, for [`lj_ir::captured`].
//!
//! Only what patterns are made of is imported; everything else, and every call whose form is not
//! known here, is a leaf. A call that works in place is imported as the function it is where nothing
//! can tell the difference.

mod calls;
mod einsum;

use crate::fx::{FxArg, FxMeta};
use lj_ir::captured::{Call, Captured, CapturedNode, CapturedOp};
use lj_ir::{DType, Op, PwOp, Scalar, Sym, SymInfo, TensorType, View, shape};
use std::collections::{BTreeMap, HashMap};

pub use calls::names;

/// A call of a captured graph.
#[derive(Clone, Debug)]
pub struct CapturedCall {
    /// Its position in the graph.
    pub at: usize,
    /// The function's name, one of [`names`]; `None` for a leaf.
    pub name: Option<&'static str>,
    /// Positional arguments; [`FxArg::Node`] is a position.
    pub args: Vec<FxArg>,
    /// Keyword arguments.
    pub kwargs: Vec<(String, FxArg)>,
    /// Result.
    pub meta: FxMeta,
    /// Whether the result needs a gradient.
    pub grad: bool,
    /// Positions of calls it reads.
    pub reads: Vec<usize>,
    /// Positions of calls that read it.
    pub users: Vec<usize>,
}

/// Imports `calls`, which stand in order. `barriers` are the positions of calls that may change memory
/// or how later calls run.
pub fn import(calls: &[CapturedCall], barriers: &[usize], syms: &[(Sym, SymInfo)]) -> Captured {
    let mut cx = Importer {
        out: Captured::default(),
        place: HashMap::new(),
        calls,
        scalars: BTreeMap::new(),
        device: lj_ir::Device::Cpu,
        at: 0,
        grad: false,
    };
    cx.out.facts.syms = syms.iter().cloned().collect();
    cx.out.barriers = barriers.to_vec();
    for (i, c) in calls.iter().enumerate() {
        cx.place.insert(c.at, i);
        let FxMeta::Tensor(ty) = &c.meta else { continue };
        (cx.device, cx.at, cx.grad) = (ty.device, c.at, c.grad);
        let before = cx.out.nodes.len();
        let barriers = cx.out.barriers.clone();
        let node = match c.name.and_then(|n| calls::import(&mut cx, n, c, ty)) {
            Some(node) if cx.is(node, ty) => node,
            _ => {
                cx.out.nodes.truncate(before);
                cx.scalars.retain(|_, n| *n < before);
                cx.out.barriers = barriers;
                cx.push(CapturedOp::Leaf, vec![], ty.dtype, ty.shape.clone(), c.grad)
            }
        };
        let call = Call { node, reads: c.reads.clone(), users: c.users.clone() };
        cx.out.calls.insert(c.at, call);
    }
    cx.out
}

struct Importer<'a> {
    out: Captured,
    /// Index of the call at a position.
    place: HashMap<usize, usize>,
    calls: &'a [CapturedCall],
    /// Constants by dtype and bits.
    scalars: BTreeMap<(DType, u64), usize>,
    /// Where the result of the call at hand is.
    device: lj_ir::Device,
    /// Its position.
    at: usize,
    /// Whether its result needs a gradient.
    grad: bool,
}

impl Importer<'_> {
    fn node(&self, n: usize) -> &CapturedNode {
        &self.out.nodes[n]
    }

    /// Whether a node has the dtype and shape that the call's result has.
    fn is(&self, n: usize, ty: &TensorType) -> bool {
        let node = self.node(n);
        let same = |(a, b)| self.out.facts.eq(a, b);
        node.dtype == ty.dtype
            && node.device == ty.device
            && node.shape.len() == ty.shape.len()
            && node.shape.iter().zip(&ty.shape).all(same)
    }

    fn push(
        &mut self,
        op: CapturedOp,
        args: Vec<usize>,
        dtype: DType,
        shape: Vec<lj_ir::Expr>,
        grad: bool,
    ) -> usize {
        self.out.nodes.push(CapturedNode {
            op,
            args,
            dtype,
            device: self.device,
            shape,
            grad,
            call: self.at,
        });
        self.out.nodes.len() - 1
    }

    /// A node whose gradient flows on to its operands.
    fn op(&mut self, op: CapturedOp, args: Vec<usize>, dtype: DType, shape: Vec<lj_ir::Expr>) -> usize {
        let grad = self.grad && dtype.is_float() && args.iter().any(|a| self.node(*a).grad);
        self.push(op, args, dtype, shape, grad)
    }

    fn convert(&mut self, n: usize, dtype: DType) -> usize {
        let node = self.node(n);
        if node.dtype == dtype {
            return n;
        }
        let shape = node.shape.clone();
        self.op(CapturedOp::Op(Op::Convert), vec![n], dtype, shape)
    }

    fn view(&mut self, n: usize, view: View, shape: Vec<lj_ir::Expr>) -> usize {
        let dtype = self.node(n).dtype;
        self.op(CapturedOp::Op(Op::View(view)), vec![n], dtype, shape)
    }

    /// The last two dims swapped.
    fn swapped(&mut self, n: usize) -> Option<usize> {
        let mut shape = self.node(n).shape.clone();
        let r = shape.len();
        let mut perm: Vec<usize> = (0..r).collect();
        (r >= 2).then(|| perm.swap(r - 2, r - 1))?;
        shape.swap(r - 2, r - 1);
        Some(self.view(n, View::Permute(perm), shape))
    }

    fn full(&mut self, value: Scalar, dtype: DType, shape: Vec<lj_ir::Expr>) -> usize {
        let key = (dtype, value.as_f64().to_bits());
        let known = self.scalars.get(&key).copied();
        let scalar = known.unwrap_or_else(|| {
            let op = CapturedOp::Op(Op::Full(value.cast(dtype)));
            let n = self.push(op, vec![], dtype, vec![], false);
            self.scalars.insert(key, n);
            n
        });
        if shape.is_empty() { scalar } else { self.view(scalar, View::Expand, shape) }
    }

    /// A pointwise operation as eager computes it: in `f32` where the result is 16-bit.
    fn pointwise(&mut self, op: PwOp, args: &[usize], dtype: DType) -> Option<usize> {
        let compute = if op.moves_only() { dtype } else { dtype.compute() };
        let skip = usize::from(op == PwOp::Where);
        let mut operands = args.to_vec();
        for a in &mut operands[skip..] {
            *a = self.convert(*a, compute);
        }
        if !op.accepts(compute) {
            return None;
        }
        let mut shape = vec![];
        for a in &operands {
            shape = shape::broadcast(&shape, &self.node(*a).shape, &self.out.facts)?;
        }
        let out = match op.result() {
            lj_ir::pointwise::PwResult::Same => compute,
            lj_ir::pointwise::PwResult::Bool => DType::Bool,
        };
        let n = self.op(CapturedOp::Op(Op::Pointwise(op)), operands, out, shape);
        Some(if out == DType::Bool { n } else { self.convert(n, dtype) })
    }

    /// Whether the call may change its first operand in place without anything noticing: nothing else
    /// reads that operand, and its memory was made by calls known here. The call is then no barrier.
    fn may_change(&mut self, c: &CapturedCall) -> bool {
        let FxArg::Node(mut at) = c.args.first().cloned().unwrap_or(FxArg::None) else { return false };
        let mut reader = c.at;
        loop {
            let Some(call) = self.place.get(&at).map(|i| &self.calls[*i]) else { return false };
            let Some(value) = self.out.calls.get(&at).map(|c| c.node) else { return false };
            if call.users != [reader] {
                return false;
            }
            let of = call.args.iter().find_map(|a| match a {
                FxArg::Node(n) => self.out.calls.get(n).map(|c| (*n, c.node)),
                _ => None,
            });
            match (&self.node(value).op, of) {
                (CapturedOp::Leaf, _) => return false,
                (CapturedOp::Op(Op::View(_)), Some((n, _))) => (reader, at) = (at, n),
                // The same value under another name.
                (_, Some((n, operand))) if operand == value => (reader, at) = (at, n),
                (CapturedOp::Op(Op::View(_) | Op::Full(_)), None) => return false,
                _ => break,
            }
        }
        self.out.barriers.retain(|b| *b != c.at);
        true
    }
}
