//! The rules, by family, and what they are written in. See `docs/writing-a-rule.md`.

mod algebra;
mod casts;
mod matmul;
mod pattern;
mod views;

pub(crate) use pattern::{Match, Pattern};

use crate::captured::Part;
use crate::error::Error;
use crate::lang::{ENode, EOp, Fact, Graphs, Spec};
use egg::Id;
use lj_ir::{DType, Expr, Facts, Op, PwOp, Scalar, View, shape};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

/// How close to the original a rule's result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// Bit for bit (the payload of a NaN aside).
    Exact,
    /// May change the last bits, as eager's own choice between kernels does.
    Rounding,
}

/// The kind of operation at the root of a rule's left side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    Pw(PwOp),
    AnyPw,
    Convert,
    View,
    Reduce,
    /// A part of a pattern above autograd.
    Part,
}

impl Root {
    fn admits(self, op: &Op) -> bool {
        match (self, op) {
            (Root::Pw(p), Op::Pointwise(q)) => p == *q,
            (Root::AnyPw, Op::Pointwise(_))
            | (Root::Convert, Op::Convert)
            | (Root::View, Op::View(_))
            | (Root::Reduce, Op::Reduce { .. }) => true,
            _ => false,
        }
    }
}

/// How a rule finds and builds.
pub(crate) enum Search {
    /// Rust: the replacements of one node.
    Code(fn(&Found<'_>) -> Vec<Term>),
    /// A pattern over pointwise operations.
    Pattern(Pattern),
}

/// One directed rule.
pub(crate) struct Rule {
    /// Unique, kebab-case.
    pub name: &'static str,
    pub exactness: Exactness,
    /// Where its left side may start.
    pub root: Root,
    pub search: Search,
}

impl Rule {
    /// A rule in Rust.
    pub fn code(
        name: &'static str,
        exactness: Exactness,
        root: Root,
        f: fn(&Found<'_>) -> Vec<Term>,
    ) -> Rule {
        Rule { name, exactness, root, search: Search::Code(f) }
    }

    /// The replacements of `found`'s node.
    pub fn find(&self, found: &Found<'_>) -> Vec<Term> {
        match &self.search {
            Search::Code(f) => f(found),
            Search::Pattern(p) => p.find(found),
        }
    }

    /// Whether the left side can start at this operation.
    pub fn admits(&self, found: &Found<'_>) -> bool {
        match found.part {
            Some(_) => self.root == Root::Part,
            None => self.root.admits(found.op),
        }
    }
}

/// Every rule, in the order in which they are tried.
pub(crate) fn all() -> Result<&'static [Rule], Error> {
    static RULES: LazyLock<Result<Vec<Rule>, Error>> = LazyLock::new(|| {
        let mut rules = algebra::rules()?;
        rules.extend(casts::rules());
        rules.extend(views::rules());
        rules.extend(matmul::rules());
        Ok(rules)
    });
    RULES.as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

/// The rules for graphs above autograd: the family's own, and those that bring views and conversions
/// into one form.
pub(crate) fn captured() -> Vec<Rule> {
    let mut rules = casts::rules();
    rules.extend(views::rules());
    rules.extend(crate::captured::rules());
    rules
}

/// The names of all rules with their exactness, in the order in which they are tried.
pub fn rule_names() -> Vec<(&'static str, Exactness)> {
    all().map(|rules| rules.iter().map(|r| (r.name, r.exactness)).collect()).unwrap_or_default()
}

/// A replacement: classes of the e-graph and new operations over them.
#[derive(Clone, Debug)]
pub(crate) enum Term {
    Class(Id, Arc<Spec>),
    Node(Op, Arc<Spec>, Vec<Term>),
    Part(Part, Arc<Spec>, Vec<Term>),
}

impl Term {
    pub fn spec(&self) -> &Arc<Spec> {
        match self {
            Term::Class(_, s) | Term::Node(_, s, _) | Term::Part(_, s, _) => s,
        }
    }

    /// `op` of `args` with this result.
    pub fn node(op: Op, spec: Spec, args: Vec<Term>) -> Term {
        Term::Node(op, Arc::new(spec), args)
    }

    /// A 0-d constant.
    pub fn scalar(v: Scalar, like: &Spec, dtype: DType) -> Term {
        let spec = Spec { dtype, device: like.device, shape: vec![] };
        Term::node(Op::Full(v.cast(dtype)), spec, vec![])
    }

    /// A view of `self` with this shape.
    pub fn view(self, view: View, shape: Vec<Expr>) -> Term {
        let spec = Spec { shape, ..(**self.spec()).clone() };
        Term::node(Op::View(view), spec, vec![self])
    }

    /// `self` converted to `dtype`; itself if it has it.
    pub fn convert(self, dtype: DType) -> Term {
        if self.spec().dtype == dtype {
            return self;
        }
        let spec = Spec { dtype, ..(**self.spec()).clone() };
        Term::node(Op::Convert, spec, vec![self])
    }

    /// A pointwise operation; its dtype and shape follow from the operands. `None` if they do not
    /// broadcast or the operation does not exist for them.
    pub fn pointwise(op: PwOp, args: Vec<Term>, facts: &Facts) -> Option<Term> {
        let last = args.last()?.spec().clone();
        if !op.accepts(last.dtype) {
            return None;
        }
        let mut shape = vec![];
        for a in &args {
            shape = shape::broadcast(&shape, &a.spec().shape, facts)?;
        }
        let dtype = match op.result() {
            lj_ir::pointwise::PwResult::Same => last.dtype,
            lj_ir::pointwise::PwResult::Bool => DType::Bool,
        };
        Some(Term::node(Op::Pointwise(op), Spec { dtype, device: last.device, shape }, args))
    }
}

/// One node of the e-graph as a rule sees it.
pub(crate) struct Found<'a> {
    pub eg: &'a Graphs,
    /// Classes whose value is needed whatever the rules do.
    pub roots: &'a BTreeSet<Id>,
    /// The class the node is in.
    pub class: Id,
    pub node: &'a ENode,
    pub op: &'a Op,
    /// The part of a pattern that the node is, if it is one; it has no `op` then.
    pub part: Option<&'a Part>,
    /// The class's type.
    pub spec: &'a Arc<Spec>,
}

impl Found<'_> {
    pub fn facts(&self) -> &Facts {
        &self.eg.analysis.facts
    }

    /// The `i`-th operand's class.
    pub fn arg(&self, i: usize) -> Id {
        self.eg.find(self.node.args[i])
    }

    /// The class as a term, if it is a tensor.
    pub fn term(&self, class: Id) -> Option<Term> {
        Some(Term::Class(self.eg.find(class), self.tensor(class)?.clone()))
    }

    /// The type of a class, if it is a tensor.
    pub fn tensor(&self, class: Id) -> Option<&Arc<Spec>> {
        match &self.eg[class].data.fact {
            Fact::Tensor(s) => Some(s),
            _ => None,
        }
    }

    /// The constant every element of a class has.
    pub fn konst(&self, class: Id) -> Option<Scalar> {
        self.eg[class].data.konst
    }

    /// The nodes of a class that are plain operations; of a constant, that it is one.
    pub fn ops(&self, class: Id) -> impl Iterator<Item = (&Op, &[Id])> {
        let constant = self.konst(class).is_some();
        let nodes = self.eg[class].nodes.iter().filter(move |n| !constant || n.args.is_empty());
        nodes.filter_map(|n| match &self.eg.analysis.table[n.key as usize].op {
            EOp::Op(op) => Some((op, &*n.args)),
            _ => None,
        })
    }

    /// The nodes of a class that are parts of a pattern.
    pub fn parts(&self, class: Id) -> impl Iterator<Item = (&Part, &[Id])> {
        self.eg[class].nodes.iter().filter_map(|n| match &self.eg.analysis.table[n.key as usize].op {
            EOp::Part(p) => Some((p, &*n.args)),
            _ => None,
        })
    }

    /// What a class is a conversion of.
    pub fn converts(&self, class: Id) -> impl Iterator<Item = Id> {
        self.ops(class).filter(|(op, _)| matches!(op, Op::Convert)).map(|(_, a)| self.eg.find(a[0]))
    }

    /// What a class is a view of.
    pub fn views(&self, class: Id) -> impl Iterator<Item = (&View, Id)> {
        self.ops(class).filter_map(|(op, a)| match op {
            Op::View(v) => Some((v, self.eg.find(a[0]))),
            _ => None,
        })
    }

    /// Whether shapes are provably equal.
    pub fn same_shape(&self, a: &[Expr], b: &[Expr]) -> bool {
        self.eg.analysis.same_shape(a, b)
    }

    /// Whether a conversion reads the found node's class.
    pub fn is_converted(&self) -> bool {
        self.eg[self.class].parents().any(|p| {
            let node = self.eg.id_to_node(p);
            matches!(self.eg.analysis.table[node.key as usize].op, EOp::Op(Op::Convert))
        })
    }

    /// Whether nothing but `self.class` reads `class`.
    pub fn only_user(&self, class: Id) -> bool {
        let class = self.eg.find(class);
        !self.roots.contains(&class) && self.eg[class].parents().all(|p| self.eg.find(p) == self.class)
    }
}
