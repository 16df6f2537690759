//! The e-graph's language: lj-ir operations with interned attributes, and what is known of a class.
//!
//! A node is a key into a table of *(operation, result type without strides)* and its operands.
//! Strides are left out of the key on purpose: two spellings of one value may be laid out
//! differently, and only `emit` decides layouts. [`Op::Copy`] is the exception: its layout is all
//! it has to say.

use crate::captured::Part;
use crate::fold;
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use lj_ir::{DType, Device, Expr, Facts, Op, Scalar, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// A node of the e-graph.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ENode {
    /// Index into [`Know::table`].
    pub key: u32,
    /// Operand classes.
    pub args: Box<[Id]>,
}

impl Language for ENode {
    type Discriminant = u32;
    fn discriminant(&self) -> u32 {
        self.key
    }
    fn matches(&self, other: &Self) -> bool {
        self.key == other.key && self.args.len() == other.args.len()
    }
    fn children(&self) -> &[Id] {
        &self.args
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}

/// The operation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EOp {
    /// Graph input; a unique leaf.
    Input(usize),
    /// An ATen call; an index into `Loaded::externs`. Its class is a tuple of results.
    Extern(usize),
    /// One result of an [`EOp::Extern`].
    Proj(u32),
    /// A copy with these strides.
    Copy(Vec<Expr>),
    /// Any other operation with one result.
    Op(Op),
    /// A part of a pattern above autograd; only `captured` makes them.
    Part(Part),
}

/// A tensor's type without its strides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spec {
    pub dtype: DType,
    pub device: Device,
    pub shape: Vec<Expr>,
}

/// What all nodes of a class have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fact {
    /// A tensor.
    Tensor(Arc<Spec>),
    /// A value that is no tensor.
    Other(Type),
    /// The results of an extern call.
    Tuple,
}

impl Fact {
    pub fn of(ty: &Type) -> Fact {
        match ty {
            Type::Tensor(t) => {
                Fact::Tensor(Arc::new(Spec { dtype: t.dtype, device: t.device, shape: t.shape.clone() }))
            }
            other => Fact::Other(other.clone()),
        }
    }
}

/// One row of the intern table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub op: EOp,
    pub fact: Fact,
}

/// What is known of a class.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub fact: Fact,
    /// The value of every element, in the canonical form of [`Scalar::cast`].
    pub konst: Option<Scalar>,
}

/// The analysis: owns the intern table and notes the first conflict.
#[derive(Debug, Default)]
pub(crate) struct Know {
    pub table: Vec<Entry>,
    pub index: HashMap<Entry, u32>,
    pub facts: Facts,
    /// The first merge of unequal types, as text.
    pub conflict: Option<String>,
    /// Whether constants are folded.
    pub fold: bool,
}

impl Know {
    /// The key of an operation with this result.
    pub fn intern(&mut self, op: EOp, fact: Fact) -> u32 {
        let entry = Entry { op, fact };
        if let Some(&k) = self.index.get(&entry) {
            return k;
        }
        let k = self.table.len() as u32;
        self.table.push(entry.clone());
        self.index.insert(entry, k);
        k
    }

    /// Whether two shapes are equal for every value of the symbols.
    pub fn same_shape(&self, a: &[Expr], b: &[Expr]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(x, y)| self.facts.eq(x, y))
    }
}

pub(crate) type Graphs = EGraph<ENode, Know>;

/// Two scalars as the bits a kernel would see; all NaNs are one.
pub(crate) fn same_scalar(a: Scalar, b: Scalar) -> bool {
    a == b || (a.as_f64().is_nan() && b.as_f64().is_nan())
}

impl Analysis<ENode> for Know {
    type Data = Data;

    fn make(egraph: &mut Graphs, enode: &ENode, _: Id) -> Data {
        let entry = &egraph.analysis.table[enode.key as usize];
        let konst = if egraph.analysis.fold {
            let operand = |i: usize| egraph[enode.args[i]].data.konst;
            fold::constant(entry, enode.args.len(), &operand, &|i| match &egraph[enode.args[i]].data.fact {
                Fact::Tensor(s) => Some(s.dtype),
                _ => None,
            })
        } else {
            None
        };
        Data { fact: entry.fact.clone(), konst }
    }

    fn merge(&mut self, a: &mut Data, b: Data) -> DidMerge {
        let agree = match (&a.fact, &b.fact) {
            (Fact::Tensor(x), Fact::Tensor(y)) => {
                x.dtype == y.dtype && x.device == y.device && self.same_shape(&x.shape, &y.shape)
            }
            (x, y) => x == y,
        };
        if !agree && self.conflict.is_none() {
            self.conflict = Some(format!("{:?} and {:?}", a.fact, b.fact));
        }
        match (a.konst, b.konst) {
            (Some(x), Some(y)) if !same_scalar(x, y) => {
                self.conflict.get_or_insert_with(|| format!("constants {x} and {y}"));
                DidMerge(false, false)
            }
            (None, Some(_)) => {
                a.konst = b.konst;
                DidMerge(true, false)
            }
            (Some(_), None) => DidMerge(false, true),
            _ => DidMerge(false, false),
        }
    }

    fn modify(egraph: &mut Graphs, id: Id) {
        let data = &egraph[id].data;
        let (Some(k), Fact::Tensor(_)) = (data.konst, &data.fact) else { return };
        let fact = data.fact.clone();
        let key = egraph.analysis.intern(EOp::Op(Op::Full(k)), fact);
        let full = egraph.add(ENode { key, args: Box::new([]) });
        egraph.union(id, full);
    }
}
