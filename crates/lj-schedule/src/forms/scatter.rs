//! Adding rows at given places: the backward of an embedding.

use crate::analysis::Analysis;
use crate::coords::Bounds;
use crate::emit::{Emitter, FinishedNest, Memory, dot};
use crate::error::Error;
use lj_ir::{DType, Expr, Op, PwOp, Scalar, Sym, ValueId};
use std::collections::BTreeSet;

/// The nest that adds rows (`Op::EmbeddingGrad`): parallel over blocks of columns, so that every
/// element is added to in ascending order by one thread.
pub fn embedding_grad(a: &Analysis, v: ValueId) -> Result<FinishedNest, Error> {
    let g = a.graph;
    let node = g.def(v);
    let Op::EmbeddingGrad { padding_idx } = node.op else {
        return Err(Error::Internal("not an embedding gradient".into()));
    };
    let (grad, index) = (node.inputs[0], node.inputs[1]);
    let ty = g.tensor(v).clone();
    let (rows, cols) = (ty.shape[0].clone(), ty.shape[1].clone());
    let bounds = Bounds { facts: g.facts.clone(), ..Bounds::default() };
    let mut em = Emitter::new(a, bounds, BTreeSet::new(), Sym::new("p"));
    let block = Expr::int(64);
    let extent = (&cols + &Expr::int(63)).floordiv(&block);
    let begin = Expr::sym("p") * &block;
    let end = cols.minimum(&(&begin + &block));
    em.declare(&Sym::new("p"), extent.clone());
    for (name, e) in [("i0", &cols), ("i1", &rows), ("i2", &cols)] {
        em.declare(&Sym::new(name), e.clone());
    }
    let out = em.param(Memory::Value(v), ty.dtype, true);
    em.param(Memory::Value(v), ty.dtype, false);
    em.open(Sym::new("i1"), Expr::ZERO, rows.clone(), false, vec![]);
    em.open(Sym::new("i2"), begin.clone(), end.clone(), true, vec![]);
    let zero = em.constant(Scalar::Int(0), ty.dtype);
    em.store(out, &dot(&[Expr::sym("i1"), Expr::sym("i2")], &ty.strides), zero, None);
    em.close();
    em.close();
    let shape = g.tensor(index).shape.clone();
    let mut at = vec![];
    for (k, e) in shape.iter().enumerate() {
        let var = Sym::new(&format!("i{}", 3 + k));
        em.declare(&var, e.clone());
        at.push(Expr::sym(var.name()));
        em.open(var, Expr::ZERO, e.clone(), false, vec![]);
    }
    let i = em.value(index, &at, None)?;
    let i = em.convert(i, DType::I64);
    let counts = (padding_idx >= 0).then(|| {
        let padding = em.constant(Scalar::Int(padding_idx), DType::I64);
        em.pw(PwOp::Ne, vec![i, padding], DType::Bool)
    });
    let (row, mask) = em.checked_index(i, &rows, false, counts, "index out of range in self");
    em.open(Sym::new("i0"), begin, end, true, vec![]);
    at.push(Expr::sym("i0"));
    let x = em.value(grad, &at, None)?;
    let compute = ty.dtype.compute();
    let x = em.convert(x, compute);
    let place = dot(&[row, Expr::sym("i0")], &ty.strides);
    let before = em.load_here(out, ty.dtype, &place);
    let before = em.convert(before, compute);
    let sum = em.pw(PwOp::Add, vec![before, x], compute);
    let sum = em.convert(sum, ty.dtype);
    em.store(out, &place, sum, mask);
    Ok(em.finish_nest(Sym::new("p"), extent))
}
