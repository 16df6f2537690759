//! Items: the units of work that fusion puts into kernels.

use crate::analysis::Analysis;
use crate::coords::{Bounds, broadcast_coords, view_coords};
use crate::error::Error;
use lj_ir::{Expr, NodeId, Op, ReduceOp, ScanOp, Sym, ValueId};
use std::collections::BTreeSet;

/// Where an item's result goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Dest {
    /// The memory of the value itself (or only a register, if nothing else reads it).
    Own,
    /// Part of a concatenation: elements from `offset` on along `dim` of the value.
    Window {
        /// The concatenation.
        cat: ValueId,
        /// The dim.
        dim: usize,
        /// First index.
        offset: Expr,
    },
    /// The graph input that is overwritten.
    Input(ValueId),
}

/// One value computed over its domain.
#[derive(Clone, Debug)]
pub struct Item {
    /// The value whose elements are computed.
    pub value: ValueId,
    /// The node it is listed under (the concatenation for its parts).
    pub node: NodeId,
    /// Extents of the iteration domain: the value's shape, the operand's shape for a reduction.
    pub domain: Vec<Expr>,
    /// For a reduction: how, and which dims of the domain are reduced.
    pub reduce: Option<(ReduceOp, Vec<bool>)>,
    /// For a scan: how, along which dim of the domain, and whether backwards.
    pub scan: Option<(ScanOp, usize, bool)>,
    /// Where the result goes.
    pub dest: Dest,
    /// Realised values it reads, with coordinates over [`domain_var`]s (and opaque symbols for
    /// indirect ones).
    pub reads: Vec<(ValueId, Vec<Expr>)>,
}

/// The variable of dim `d` of an item's domain.
pub fn domain_var(d: usize) -> Sym {
    Sym::new(&format!("d{d}"))
}

impl Item {
    /// The dims of the domain that must be walked in one loop: those reduced, or that of a scan.
    pub fn rows(&self) -> Option<Vec<bool>> {
        let scanned =
            |(_, dim, _): &(ScanOp, usize, bool)| (0..self.domain.len()).map(|d| d == *dim).collect();
        self.reduce.as_ref().map(|(_, m)| m.clone()).or_else(|| self.scan.as_ref().map(scanned))
    }

    /// Extents of what it produces.
    pub fn result_shape(&self) -> Vec<Expr> {
        match &self.reduce {
            None => self.domain.clone(),
            Some((_, m)) => self.domain.iter().zip(m).filter(|(_, r)| !**r).map(|(e, _)| e.clone()).collect(),
        }
    }
}

/// Makes the items of a graph, in topological order, without those of mutations.
pub fn items(a: &Analysis) -> Result<Vec<Item>, Error> {
    let mut out = vec![];
    for (i, node) in a.graph.nodes.iter().enumerate() {
        let Some(&v) = node.outputs.first() else { continue };
        if a.leaf[v.index()] || !a.realised[v.index()] || matches!(node.op, Op::Scatter { .. }) {
            continue;
        }
        let id = NodeId(i as u32);
        if let Op::Cat { dim } = node.op {
            let mut offset = Expr::ZERO;
            for &part in &node.inputs {
                let dest = Dest::Window { cat: v, dim, offset: offset.clone() };
                offset = offset + &a.graph.tensor(part).shape[dim];
                out.push(item(a, part, id, dest)?);
            }
        } else {
            out.push(item(a, v, id, Dest::Own)?);
        }
    }
    Ok(out)
}

/// The item that computes `value` for `dest`.
pub fn item(a: &Analysis, value: ValueId, node: NodeId, dest: Dest) -> Result<Item, Error> {
    let def = a.graph.def(value);
    let reduce = match (&def.op, &dest) {
        (Op::Reduce { op, dims }, Dest::Own) => {
            let rank = a.graph.tensor(def.inputs[0]).rank();
            Some((*op, (0..rank).map(|d| dims.contains(&d)).collect()))
        }
        _ => None,
    };
    let scan = match (&def.op, &dest) {
        (Op::Scan { op, dim, reverse }, Dest::Own) => Some((*op, *dim, *reverse)),
        _ => None,
    };
    let domain = if reduce.is_some() {
        a.graph.tensor(def.inputs[0]).shape.clone()
    } else {
        a.graph.tensor(value).shape.clone()
    };
    let mut bounds = Bounds { facts: a.graph.facts.clone(), ..Bounds::default() };
    for (d, e) in domain.iter().enumerate() {
        bounds.extents.insert(domain_var(d), e.clone());
    }
    let coords: Vec<Expr> = (0..domain.len()).map(|d| Expr::sym(domain_var(d).name())).collect();
    let mut walk = Walk { a, bounds, reads: vec![], seen: BTreeSet::new(), opaque: 0 };
    match &dest {
        _ if reduce.is_some() || scan.is_some() => walk.value(def.inputs[0], coords, false)?,
        Dest::Own => walk.value(value, coords, true)?,
        // A part or a mutation reads its value, which may itself be realised.
        _ => walk.value(value, coords, false)?,
    }
    Ok(Item { value, node, domain, reduce, scan, dest, reads: walk.reads })
}

/// Values that `roots` read in memory or from other kernels.
pub fn reads_of(a: &Analysis, roots: &[ValueId]) -> Result<Vec<ValueId>, Error> {
    let bounds = Bounds { facts: a.graph.facts.clone(), ..Bounds::default() };
    let mut walk = Walk { a, bounds, reads: vec![], seen: BTreeSet::new(), opaque: 0 };
    for &v in roots {
        let coords = (0..a.graph.tensor(v).rank()).map(|d| Expr::sym(domain_var(d).name())).collect();
        walk.value(v, coords, false)?;
    }
    Ok(walk.reads.into_iter().map(|(v, _)| v).collect())
}

struct Walk<'a, 'g> {
    a: &'a Analysis<'g>,
    bounds: Bounds,
    reads: Vec<(ValueId, Vec<Expr>)>,
    seen: BTreeSet<(ValueId, Vec<Expr>)>,
    opaque: u32,
}

impl Walk<'_, '_> {
    fn value(&mut self, v: ValueId, coords: Vec<Expr>, root: bool) -> Result<(), Error> {
        if !self.seen.insert((v, coords.clone())) {
            return Ok(());
        }
        if self.a.realised[v.index()] && !root {
            self.reads.push((v, coords));
            return Ok(());
        }
        let g = self.a.graph;
        let node = g.def(v);
        let shape = |x: ValueId| &g.tensor(x).shape;
        match &node.op {
            Op::Pointwise(_) | Op::Convert | Op::Copy => {
                for &x in &node.inputs {
                    self.value(x, broadcast_coords(shape(x), &coords), false)?;
                }
            }
            Op::View(view) => {
                let x = node.inputs[0];
                let c = view_coords(view, shape(x), shape(v), &coords, &self.bounds);
                self.value(x, c, false)?;
            }
            Op::Full(_) | Op::FullSym(_) | Op::Iota { .. } => {}
            Op::Index { dims, at } => {
                let index = &node.inputs[1..];
                let rank = index.iter().map(|&x| shape(x).len()).max().unwrap_or(0);
                let index_coords = &coords[*at..*at + rank];
                for &x in index {
                    self.value(x, broadcast_coords(shape(x), index_coords), false)?;
                }
                let picked: Vec<Expr> = dims.iter().map(|_| self.opaque()).collect();
                let c = index_operand_coords(shape(node.inputs[0]).len(), dims, *at, rank, &coords, &picked);
                self.value(node.inputs[0], c, false)?;
            }
            Op::Gather { dim } => {
                self.value(node.inputs[1], coords.clone(), false)?;
                let mut c = coords;
                c[*dim] = self.opaque();
                self.value(node.inputs[0], c, false)?;
            }
            Op::Cat { dim } => {
                let mut offset = Expr::ZERO;
                for &x in &node.inputs {
                    let mut c = coords.clone();
                    c[*dim] = &c[*dim] - &offset;
                    offset = offset + &shape(x)[*dim];
                    self.value(x, c, false)?;
                }
            }
            Op::Pad { low, .. } => {
                let c = coords.iter().zip(low).map(|(c, l)| c - l).collect();
                self.value(node.inputs[0], c, false)?;
            }
            other => return Err(Error::Internal(format!("{other:?} is inlined"))),
        }
        Ok(())
    }

    fn opaque(&mut self) -> Expr {
        self.opaque += 1;
        Expr::sym(&format!("$g{}", self.opaque))
    }
}

/// Coordinates in the operand of an [`Op::Index`] of `rank` dims: `picked[k]` along `dims[k]`, the
/// output's own coordinates along the others.
pub fn index_operand_coords(
    rank: usize,
    dims: &[usize],
    at: usize,
    index_rank: usize,
    coords: &[Expr],
    picked: &[Expr],
) -> Vec<Expr> {
    let mut rest = coords[..at].iter().chain(&coords[at + index_rank..]);
    (0..rank)
        .map(|d| match dims.iter().position(|&x| x == d) {
            Some(k) => picked[k].clone(),
            None => rest.next().cloned().unwrap_or(Expr::ZERO),
        })
        .collect()
}
