//! Patterns over pointwise operations, written as text.
//!
//! `(add ?x (neg ?y))` is an operation with operands, `?x` a variable (the same name must be the
//! same class), `#c` a variable that is a constant, a number a constant of exactly that value
//! (`-0.0` and `0` differ). Operands of an operation that commutes match in both orders.

use super::{Exactness, Found, Root, Rule, Search, Term};
use crate::error::Error;
use egg::Id;
use lj_ir::{DType, PwOp, Scalar};

#[derive(Clone, Debug, PartialEq)]
enum Pat {
    Var(usize),
    Const(usize),
    Lit(f64),
    Op(PwOp, Vec<Pat>),
}

/// A constant computed from the ones the left side matched, named `@` on the right side.
pub(crate) type Computed = fn(&Match<'_, '_>) -> Option<Scalar>;

/// Left side, condition and right side.
pub(crate) struct Pattern {
    left: Vec<Pat>,
    right: Pat,
    condition: fn(&Match<'_, '_>) -> bool,
    computed: Option<Computed>,
    names: Vec<String>,
}

/// What a left side matched.
pub(crate) struct Match<'a, 'b> {
    pub found: &'a Found<'b>,
    names: &'a [String],
    bound: &'a [Option<Id>],
}

impl Match<'_, '_> {
    fn class(&self, name: &str) -> Option<Id> {
        self.bound[self.names.iter().position(|n| n == name)?]
    }
    /// The dtype of the whole.
    pub fn dtype(&self) -> DType {
        self.found.spec.dtype
    }
    /// The value of a constant.
    pub fn value(&self, name: &str) -> Option<Scalar> {
        self.found.konst(self.class(name)?)
    }
}

impl Rule {
    /// A rule `left` → `right` that holds for every dtype the operations accept.
    pub fn pattern(name: &'static str, exactness: Exactness, left: &str, right: &str) -> Result<Rule, Error> {
        Rule::pattern_if(name, exactness, left, right, |_| true)
    }

    /// A rule with a condition.
    pub fn pattern_if(
        name: &'static str,
        exactness: Exactness,
        left: &str,
        right: &str,
        condition: fn(&Match<'_, '_>) -> bool,
    ) -> Result<Rule, Error> {
        Rule::build(name, exactness, left, right, condition, None)
    }

    /// A rule whose right side has a computed constant, written `@`; it fires where one is given.
    pub fn computed(
        name: &'static str,
        exactness: Exactness,
        left: &str,
        right: &str,
        computed: Computed,
    ) -> Result<Rule, Error> {
        Rule::build(name, exactness, left, right, |_| true, Some(computed))
    }

    fn build(
        name: &'static str,
        exactness: Exactness,
        left: &str,
        right: &str,
        condition: fn(&Match<'_, '_>) -> bool,
        computed: Option<Computed>,
    ) -> Result<Rule, Error> {
        let fail = |what: String| Error::BadRule { rule: name, what };
        let mut names = vec![];
        let base = parse(left, &mut names).map_err(fail)?;
        let bound = names.len();
        let right = parse(right, &mut names).map_err(fail)?;
        if names.iter().skip(bound).any(|n| n != "@") {
            return Err(fail("the right side has a variable that the left side does not bind".into()));
        }
        let Pat::Op(root, _) = base else { return Err(fail("the left side must be an operation".into())) };
        let left = orders(&base);
        let pattern = Pattern { left, right, condition, computed, names };
        Ok(Rule { name, exactness, root: Root::Pw(root), search: Search::Pattern(pattern) })
    }
}

/// `pattern` with the operands of commuting operations in both orders.
fn orders(pattern: &Pat) -> Vec<Pat> {
    let Pat::Op(op, args) = pattern else { return vec![pattern.clone()] };
    let mut lists: Vec<Vec<Pat>> = vec![vec![]];
    for a in args {
        let variants = orders(a);
        lists = lists
            .iter()
            .flat_map(|l| variants.iter().map(move |v| [l.as_slice(), std::slice::from_ref(v)].concat()))
            .collect();
    }
    if op.commutes() {
        let swapped: Vec<Vec<Pat>> = lists.iter().map(|l| l.iter().rev().cloned().collect()).collect();
        lists.extend(swapped);
    }
    let mut out: Vec<Pat> = vec![];
    for l in lists {
        let p = Pat::Op(*op, l);
        if !out.contains(&p) {
            out.push(p);
        }
    }
    out
}

impl Pattern {
    /// Every replacement of the found node.
    pub fn find(&self, found: &Found<'_>) -> Vec<Term> {
        let mut out = vec![];
        for left in &self.left {
            let Pat::Op(_, args) = left else { continue };
            let mut matches = vec![vec![None; self.names.len()]];
            for (pat, arg) in args.iter().zip(&found.node.args) {
                matches = matches.iter().flat_map(|b| matched(pat, *arg, found, b)).collect();
            }
            for bound in &matches {
                let m = Match { found, names: &self.names, bound };
                if (self.condition)(&m) {
                    let k = self.computed.map(|f| f(&m));
                    if !matches!(k, Some(None)) {
                        out.extend(build(&self.right, found.spec.dtype, k.flatten(), &m));
                    }
                }
            }
        }
        out
    }
}

/// The right side over what the left side matched; `k` is the computed constant.
fn build(pat: &Pat, dtype: DType, k: Option<Scalar>, m: &Match<'_, '_>) -> Option<Term> {
    let full = |v: Scalar| Term::scalar(v, m.found.spec, dtype);
    match pat {
        Pat::Var(i) | Pat::Const(i) => match m.bound[*i] {
            Some(class) => m.found.term(class),
            None => k.map(full),
        },
        Pat::Lit(v) => Some(full(Scalar::float(*v))),
        Pat::Op(op, args) => {
            // Literals take the dtype of the operand beside them.
            let own = args.iter().rev().find_map(|a| match a {
                Pat::Var(i) => Some(m.found.tensor(m.bound[*i]?)?.dtype),
                _ => None,
            });
            let args: Option<Vec<Term>> = args.iter().map(|a| build(a, own.unwrap_or(dtype), k, m)).collect();
            Term::pointwise(*op, args?, m.found.facts())
        }
    }
}

/// Every way `pat` matches `class` that agrees with `bound`.
fn matched(pat: &Pat, class: Id, found: &Found<'_>, bound: &[Option<Id>]) -> Vec<Vec<Option<Id>>> {
    let class = found.eg.find(class);
    match pat {
        Pat::Var(i) | Pat::Const(i) => {
            if bound[*i].is_some_and(|b| b != class)
                || (matches!(pat, Pat::Const(_)) && found.konst(class).is_none())
            {
                return vec![];
            }
            let mut b = bound.to_vec();
            b[*i] = Some(class);
            vec![b]
        }
        Pat::Lit(v) => {
            let hit = found.konst(class).is_some_and(|k| match k {
                Scalar::Float(bits) => bits == v.to_bits(),
                Scalar::Int(i) => i as f64 == *v && v.to_bits() != (-0.0f64).to_bits(),
                Scalar::Bool(b) => f64::from(u8::from(b)) == *v,
            });
            if hit { vec![bound.to_vec()] } else { vec![] }
        }
        Pat::Op(op, args) => {
            let mut out = vec![];
            for (o, children) in found.ops(class) {
                if *o != lj_ir::Op::Pointwise(*op) || children.len() != args.len() {
                    continue;
                }
                let mut ways = vec![bound.to_vec()];
                for (p, c) in args.iter().zip(children) {
                    ways = ways.iter().flat_map(|b| matched(p, *c, found, b)).collect();
                }
                out.extend(ways);
            }
            out
        }
    }
}

fn parse(text: &str, names: &mut Vec<String>) -> Result<Pat, String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let (pat, used) = parse_at(&tokens, names)?;
    if used == tokens.len() { Ok(pat) } else { Err(format!("text after the end of `{text}`")) }
}

fn parse_at(tokens: &[&str], names: &mut Vec<String>) -> Result<(Pat, usize), String> {
    let mut var = |name: &str| {
        names.iter().position(|n| n == name).unwrap_or_else(|| {
            names.push(name.to_string());
            names.len() - 1
        })
    };
    match tokens.first() {
        None => Err("unexpected end".into()),
        Some(&"(") => {
            let name = tokens.get(1).ok_or("unexpected end")?;
            let op = PwOp::from_name(name).ok_or_else(|| format!("no operation `{name}`"))?;
            let (mut at, mut args) = (2, vec![]);
            while tokens.get(at).is_some_and(|t| *t != ")") {
                let (a, used) = parse_at(&tokens[at..], names)?;
                args.push(a);
                at += used;
            }
            if at >= tokens.len() || args.len() != op.arity() {
                return Err(format!("`{name}` takes {} operands", op.arity()));
            }
            Ok((Pat::Op(op, args), at + 1))
        }
        Some(t) if t.starts_with('?') || *t == "@" => Ok((Pat::Var(var(t)), 1)),
        Some(t) if t.starts_with('#') => Ok((Pat::Const(var(t)), 1)),
        Some(t) => t.parse().map(|v| (Pat::Lit(v), 1)).map_err(|_| format!("`{t}` is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_are_patterns() {
        let mut names = vec![];
        let p = parse("(add ?x (mul ?y 2))", &mut names).unwrap();
        assert_eq!(orders(&p).len(), 4);
        let p = parse("(sub ?x (neg ?y))", &mut names).unwrap();
        assert_eq!(orders(&p).len(), 1);
        let p = parse("(add ?x ?x)", &mut names).unwrap();
        assert_eq!(orders(&p).len(), 1);
    }

    #[test]
    fn malformed_rules_are_errors() {
        let bad = |l: &str, r: &str| Rule::pattern("t", Exactness::Exact, l, r).is_err();
        assert!(bad("(frob ?x)", "?x"));
        assert!(bad("(add ?x)", "?x"));
        assert!(bad("(neg ?x", "?x"));
        assert!(bad("(neg ?x)", "?y"));
        assert!(bad("?x", "?x"));
        assert!(!bad("(neg (neg ?x))", "?x"));
    }
}
