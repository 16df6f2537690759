//! Scatters: elements that go to given places, in ascending order.
//!
//! Source dims that are dims of the result as well (`rest`) never meet: iterations and lanes run over
//! them. All other source dims run serially inside, in row-major order, so every place is changed by
//! one thread and in order, however many threads there are.

use super::decode;
use crate::affine;
use crate::analysis::Analysis;
use crate::axes::{Axis, Uses};
use crate::coords::{Bounds, broadcast_coords};
use crate::emit::{Emitter, FinishedNest, Memory, dot};
use crate::error::Error;
use crate::fuse::space_var;
use lj_ir::{DType, Expr, Op, PwOp, ScatterOp, Sym, ValueId};
use std::collections::BTreeSet;

/// The nest that changes the memory of the result `v` of an [`Op::Scatter`], and whether it has put the
/// base there itself, if it was to `copy` it; else the memory holds the base.
pub fn scatter(a: &Analysis, v: ValueId, copy: bool, threads: usize) -> Result<(FinishedNest, bool), Error> {
    let g = a.graph;
    let facts = &g.facts;
    let Op::Scatter { op, rest, .. } = &g.def(v).op else {
        return Err(Error::Internal(format!("{v} is no scatter")));
    };
    let space = g.tensor(g.def(v).inputs[1]).shape.clone();
    let emitter = || {
        let extents = space.iter().enumerate().map(|(d, e)| (space_var(d), e.clone())).collect();
        let bounds = Bounds { facts: facts.clone(), extents };
        Emitter::new(a, bounds, BTreeSet::new(), Sym::new("p"))
    };
    let mut em = emitter();
    if copy {
        base(&mut em, v)?;
    }
    element(&mut em, v)?;
    let mut uses = Uses::new(std::mem::take(&mut em.uses));

    let strides = &g.tensor(v).strides;
    let dims = |free: bool| (0..space.len()).filter(|d| rest.contains(d) == free).collect::<Vec<_>>();
    // The largest strides of the result first.
    let mut order = dims(true);
    let stride = |d: usize| {
        let kept = (0..strides.len()).filter(|o| !dims_of(a, v).contains(o));
        kept.zip(rest).find(|(_, r)| **r == d).map_or(0, |(o, _)| facts.hint(&strides[o]))
    };
    order.sort_by_key(|&d| std::cmp::Reverse(stride(d)));
    let mut free = uses.merge(&order, &space, facts);
    let mut serial = uses.merge(&dims(false), &space, facts);
    // Lanes over places in a row; else, if the last one simply stays, over the elements: lanes store
    // in ascending order.
    let contiguous = free.last().is_some_and(|x| stride(x.dim) == 1);
    let lanes_free = if contiguous { free.pop() } else { None };
    let lanes_serial = if lanes_free.is_none() && *op == ScatterOp::Set { serial.pop() } else { None };

    let mut em = emitter();
    for d in 0..space.len() {
        let mut axes = free.iter().chain(&serial).chain(&lanes_free).chain(&lanes_serial);
        if !axes.any(|x| x.dim == d) {
            em.place_var(space_var(d), Expr::ZERO);
        }
    }
    let outer = Expr::product(free.iter().map(|x| &x.extent));
    let p = Expr::sym("p");
    let (extent, lanes) = match (&lanes_free, &lanes_serial) {
        (Some(x), _) => {
            // Wide blocks, as every block reads all indices; but enough of them for the threads.
            let total = facts.hint(&x.extent).saturating_mul(facts.hint(&outer));
            let block = Expr::int((total / threads.max(1) as i64).clamp(64, 4096) / 64 * 64);
            let blocks = (&x.extent + &block - Expr::ONE).floordiv(&block);
            let (o, b) = if free.is_empty() {
                (Expr::ZERO, p.clone())
            } else {
                (p.floordiv(&blocks), p.modulo(&blocks))
            };
            let extent = &outer * &blocks;
            em.declare(&Sym::new("p"), extent.clone());
            decode(&mut em, &free, &o);
            let begin = &b * &block;
            let end = x.extent.minimum(&(&begin + &block));
            (extent, Some((x, begin, end)))
        }
        (None, lanes) => {
            em.declare(&Sym::new("p"), outer.clone());
            decode(&mut em, &free, &p);
            (outer, lanes.as_ref().map(|x| (x, Expr::ZERO, x.extent.clone())))
        }
    };
    em.note("scatter");
    let open = |em: &mut Emitter, x: &Axis, name: &str, begin: Expr, end: Expr, vector: bool| {
        em.declare(&Sym::new(name), x.extent.clone());
        em.place_var(space_var(x.dim), Expr::sym(name));
        em.open(Sym::new(name), begin, end, vector, vec![]);
    };
    // What an iteration copies is still in the cache when elements come to it, if places along the
    // indexed dims lie together and belong to one iteration.
    let whole = || {
        let mut kept = rest.iter().zip((0..strides.len()).filter(|d| !dims_of(a, v).contains(d)));
        kept.all(|(&r, d)| facts.eq(&space[r], &g.tensor(v).shape[d]))
    };
    let copied = copy && lanes_free.is_none() && !rest.is_empty() && whole();
    if copied {
        base(&mut em, v)?;
    }
    for (k, x) in serial.iter().enumerate() {
        open(&mut em, x, &format!("i{}", k + 1), Expr::ZERO, x.extent.clone(), false);
    }
    if let Some((x, begin, end)) = lanes {
        open(&mut em, x, "i0", begin, end, true);
    }
    element(&mut em, v)?;
    Ok((em.finish_nest(Sym::new("p"), extent), copied))
}

/// The indexed dims of a scatter's result.
fn dims_of<'g>(a: &Analysis<'g>, v: ValueId) -> &'g [usize] {
    match &a.graph.def(v).op {
        Op::Scatter { dims, .. } => dims,
        _ => &[],
    }
}

/// Copies the places of the base that the space variables of `rest` stand for.
fn base(em: &mut Emitter, v: ValueId) -> Result<(), Error> {
    let g = em.a.graph;
    let node = g.def(v);
    let Op::Scatter { dims, rest, .. } = &node.op else { return Ok(()) };
    let ty = g.tensor(v);
    let mut rest = rest.iter();
    let mut coords = vec![];
    for d in 0..ty.rank() {
        let Some(k) = dims.iter().position(|x| *x == d) else {
            coords.extend(rest.next().map(|&r| Expr::sym(space_var(r).name())));
            continue;
        };
        let var = Sym::new(&format!("j{k}"));
        em.declare(&var, ty.shape[d].clone());
        coords.push(Expr::sym(var.name()));
        em.open(var, Expr::ZERO, ty.shape[d].clone(), k + 1 == dims.len(), vec![]);
    }
    let x = em.value(node.inputs[0], &coords, None)?;
    let x = em.convert(x, ty.dtype);
    let out = em.param(Memory::Value(v), ty.dtype, true);
    em.store(out, &dot(&coords, &ty.strides), x, None);
    for _ in dims {
        em.close();
    }
    Ok(())
}

/// What happens to one element of the source, at the space variables.
fn element(em: &mut Emitter, v: ValueId) -> Result<(), Error> {
    let g = em.a.graph;
    let node = g.def(v);
    let Op::Scatter { op, dims, rest, wrap, error } = &node.op else { return Ok(()) };
    let (src, indices) = (node.inputs[1], &node.inputs[2..]);
    let ty = g.tensor(v);
    let at: Vec<Expr> = (0..g.tensor(src).rank()).map(|d| Expr::sym(space_var(d).name())).collect();
    let mut mask = None;
    let mut picked = vec![];
    for (&i, &d) in indices.iter().zip(dims) {
        let at_index = broadcast_coords(&g.tensor(i).shape, &at);
        if let Some(c) = affine::known(em, i, &at_index, &ty.shape[d]) {
            picked.push(c);
            continue;
        }
        let r = em.value(i, &at_index, mask)?;
        let r = em.convert(r, DType::I64);
        let (c, m) = em.checked_index(r, &ty.shape[d], *wrap, mask, error);
        picked.push(c);
        mask = m;
    }
    let (mut picked, mut rest) = (picked.into_iter(), rest.iter());
    let coords: Vec<Expr> = (0..ty.rank())
        .filter_map(|d| if dims.contains(&d) { picked.next() } else { rest.next().map(|&r| at[r].clone()) })
        .collect();
    let place = dot(&coords, &ty.strides);
    let x = em.value(src, &at, None)?;
    let out = em.param(Memory::Value(v), ty.dtype, true);
    let combine = match op {
        ScatterOp::Set => None,
        ScatterOp::Add => Some(PwOp::Add),
        ScatterOp::Mul => Some(PwOp::Mul),
        ScatterOp::Max => Some(PwOp::Maximum),
        ScatterOp::Min => Some(PwOp::Minimum),
    };
    let Some(combine) = combine else {
        let x = em.convert(x, ty.dtype);
        em.store(out, &place, x, mask);
        return Ok(());
    };
    em.param(Memory::Value(v), ty.dtype, false);
    let compute = ty.dtype.compute();
    let x = em.convert(x, compute);
    let before = em.load_here(out, ty.dtype, &place, mask);
    let before = em.convert(before, compute);
    let after = em.pw(combine, vec![before, x], compute);
    let after = em.convert(after, ty.dtype);
    em.store(out, &place, after, mask);
    Ok(())
}
