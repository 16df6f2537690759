//! Indices that need no tensor: `arange` and views of it are expressions of the coordinates.

use crate::coords::view_coords;
use crate::emit::Emitter;
use lj_ir::{Expr, Op, Scalar, ValueId};

/// Element `coords` of the integer tensor `v` as an expression, if it is provably in `0..extent`.
pub fn known(em: &Emitter<'_, '_>, v: ValueId, coords: &[Expr], extent: &Expr) -> Option<Expr> {
    let e = expression(em, v, coords)?;
    em.bounds.below(&e, extent).then_some(e)
}

fn expression(em: &Emitter<'_, '_>, v: ValueId, coords: &[Expr]) -> Option<Expr> {
    let g = em.a.graph;
    let node = g.def(v);
    match &node.op {
        Op::Iota { start, step } => Some(start + &(step * &coords[0])),
        Op::Full(Scalar::Int(i)) => Some(Expr::int(*i)),
        Op::FullSym(e) => Some(e.clone()),
        Op::View(view) => {
            let x = node.inputs[0];
            let c = view_coords(view, &g.tensor(x).shape, &g.tensor(v).shape, coords, &em.bounds);
            expression(em, x, &c)
        }
        Op::Copy => expression(em, node.inputs[0], coords),
        // Arithmetic in a narrower type might have wrapped.
        _ => None,
    }
}
