//! Parsing of graphs.

use super::ParseError;
use super::cursor::{Parser, Result, whole};
use super::lex::Token;
use crate::expr::{Expr, Sym};
use crate::facts::SymInfo;
use crate::graph::{Graph, Mutation, Node, NodeId, Prov, Value, ValueId};
use crate::op::{Arg, ExternCall, Op, ReduceOp, ScanOp, ScatterOp, View};
use crate::pointwise::PwOp;
use std::collections::{BTreeMap, HashMap};

/// Reads a graph from `.lj` text. The graph is well-formed (every value is defined once, before its
/// uses) but not otherwise verified.
pub fn parse(source: &str) -> Result<Graph, ParseError> {
    whole(source, Parser::graph)
}

/// Reads an expression as [`Expr`] displays it.
pub fn parse_expr(source: &str) -> Result<Expr, ParseError> {
    whole(source, Parser::expr)
}

/// What is known while the body of a graph is read.
#[derive(Default)]
struct Body {
    graph: Graph,
    /// Values by number; `None` in the gaps.
    values: Vec<Option<Value>>,
    /// Number of each provenance.
    provs: HashMap<Prov, u32>,
    /// Inputs by position.
    inputs: BTreeMap<usize, ValueId>,
}

impl Parser {
    fn graph(&mut self) -> Result<Graph> {
        if !self.eat_word("graph") {
            return self.error("`graph`");
        }
        let name = self.name("the name of the graph")?;
        let mut body = Body { graph: Graph::new(&name), ..Body::default() };
        body.provs.insert(Prov::default(), 0);
        self.expect('(')?;
        let syms = self.items(')', Self::symbol)?;
        let count = syms.len();
        body.graph.facts.syms = syms.into_iter().collect();
        if body.graph.facts.syms.len() != count {
            return self.error_before("every symbol once");
        }
        self.expect('{')?;
        while !self.eat_word("return") {
            self.node(&mut body)?;
        }
        if *self.peek() == Token::Punct('%') {
            body.graph.outputs = self.values(&body)?;
        }
        while self.eat_word("mutate") {
            let input = self.value(&body)?;
            if self.next() != Token::Arrow {
                return self.error_before("`<-`");
            }
            let value = self.value(&body)?;
            body.graph.mutations.push(Mutation { input, value });
        }
        let Body { mut graph, values, inputs, .. } = body;
        for (i, (index, v)) in inputs.into_iter().enumerate() {
            if index != i {
                return self.error(&format!("an `input {i}`: inputs are numbered without gaps"));
            }
            graph.inputs.push(v);
        }
        for (i, v) in values.into_iter().enumerate() {
            match v {
                Some(v) => graph.values.push(v),
                None => {
                    return self
                        .error(&format!("a node that defines %{i}: values are numbered without gaps"));
                }
            }
        }
        self.expect('}')?;
        Ok(graph)
    }

    /// `s0: [2, inf] ~ 256`
    fn symbol(&mut self) -> Result<(Sym, SymInfo)> {
        let sym = match self.next() {
            Token::Symbol(s) => Sym::new(&s),
            Token::Word(w) if super::is_symbol(&w) => Sym::new(&w),
            _ => return self.error_before("a symbol"),
        };
        self.expect(':')?;
        self.expect('[')?;
        let min = self.bound()?;
        self.expect(',')?;
        let max = self.bound()?;
        self.expect(']')?;
        let hint = if self.eat('~') { Some(self.int("an integer")?) } else { None };
        Ok((sym, SymInfo { min, max, hint }))
    }

    fn bound(&mut self) -> Result<i64> {
        if matches!(self.peek2(), Token::Word(w) if w == "inf") && self.eat('-') {
            self.next();
            return Ok(i64::MIN);
        }
        if self.eat_word("inf") { Ok(i64::MAX) } else { self.int("a bound") }
    }

    /// `%3`, anywhere.
    fn value_id(&mut self) -> Result<ValueId> {
        self.expect('%')?;
        Ok(ValueId(self.index("the number of a value")? as u32))
    }

    /// `%3`, already defined.
    fn value(&mut self, body: &Body) -> Result<ValueId> {
        let at = self.at;
        let v = self.value_id()?;
        match body.values.get(v.index()) {
            Some(Some(_)) => Ok(v),
            _ => self.error_at(at, &format!("a value defined before ({v} is not)")),
        }
    }

    fn values(&mut self, body: &Body) -> Result<Vec<ValueId>> {
        let mut out = vec![self.value(body)?];
        while self.eat(',') {
            out.push(self.value(body)?);
        }
        Ok(out)
    }

    fn node(&mut self, body: &mut Body) -> Result<()> {
        let start = self.at;
        let mut outputs = vec![];
        if *self.peek() == Token::Punct('%') {
            outputs.push(self.value_id()?);
            while self.eat(',') {
                outputs.push(self.value_id()?);
            }
            self.expect('=')?;
        }
        let (op, inputs) = self.operation(body)?;
        self.expect(':')?;
        let types = if outputs.len() == 1 {
            vec![self.ty()?]
        } else {
            self.expect('(')?;
            self.items(')', Self::ty)?
        };
        if types.len() != outputs.len() {
            return self.error_at(start, &format!("as many results as types, {}", types.len()));
        }
        let prov = self.prov(body)?;
        let def = NodeId(body.graph.nodes.len() as u32);
        for (index, (v, ty)) in outputs.iter().zip(types).enumerate() {
            // Every value takes at least one token, so a number beyond that leaves a gap.
            if v.index() >= self.tokens.len() {
                return self.error_at(start, "values numbered without gaps");
            }
            if body.values.len() <= v.index() {
                body.values.resize(v.index() + 1, None);
            }
            let old = body.values[v.index()].replace(Value { ty, def, index: index as u32 });
            if old.is_some() {
                return self.error_at(start, &format!("a new value ({v} is defined above)"));
            }
        }
        if let Op::Input { index } = op {
            let Some(&v) = outputs.first() else { return self.error_at(start, "an input with a result") };
            if body.inputs.insert(index, v).is_some() {
                return self.error_at(start, &format!("only one `input {index}`"));
            }
        }
        body.graph.nodes.push(Node { op, inputs, outputs, prov });
        Ok(())
    }

    /// The provenance after a node, as an index into the graph's table.
    fn prov(&mut self, body: &mut Body) -> Result<u32> {
        if *self.peek() != Token::Prov {
            return Ok(0);
        }
        self.next();
        self.key("fx")?;
        let fx = self.name("a name")?;
        let line = if self.eat_word("line") {
            self.expect('=')?;
            Some(self.string("a source line in quotes")?)
        } else {
            None
        };
        let prov = Prov { fx, line };
        let next = body.graph.provs.len() as u32;
        Ok(*body.provs.entry(prov).or_insert_with_key(|prov| {
            body.graph.provs.push(prov.clone());
            next
        }))
    }

    /// An operation with its operands.
    fn operation(&mut self, body: &Body) -> Result<(Op, Vec<ValueId>)> {
        let word = self.word("an operation, `return` or `%`")?;
        let op = match word.split_once('.').unwrap_or((&word, "")) {
            ("input", "") => Op::Input { index: self.index("the position of the input")? },
            ("pw", name) => match PwOp::from_name(name) {
                Some(op) => Op::Pointwise(op),
                None => return self.error_before("a pointwise operation"),
            },
            ("convert", "") => Op::Convert,
            ("copy", "") => Op::Copy,
            ("reduce", name) => {
                let Some(op) = ReduceOp::ALL.into_iter().find(|op| op.name() == name) else {
                    return self.error_before("a reduction");
                };
                self.key("dims")?;
                Op::Reduce { op, dims: self.indices()? }
            }
            ("scan", name) => {
                let Some(op) = ScanOp::ALL.into_iter().find(|op| op.name() == name) else {
                    return self.error_before("a scan");
                };
                let reverse = self.eat_word("reverse");
                Op::Scan { op, dim: self.dim()?, reverse }
            }
            ("view", kind) => Op::View(self.view(kind)?),
            ("full", "") => Op::Full(self.scalar()?),
            ("fullsym", "") => Op::FullSym(self.expr()?),
            ("iota", "") => {
                self.key("start")?;
                let start = self.expr()?;
                self.key("step")?;
                Op::Iota { start, step: self.expr()? }
            }
            ("index", "") => {
                self.key("dims")?;
                let dims = self.indices()?;
                self.key("at")?;
                Op::Index { dims, at: self.index("a position")? }
            }
            ("gather", "") => Op::Gather { dim: self.dim()? },
            ("scatter", name) => {
                let Some(op) = ScatterOp::ALL.into_iter().find(|op| op.name() == name) else {
                    return self.error_before("a scatter");
                };
                self.key("dims")?;
                let dims = self.indices()?;
                self.key("rest")?;
                let rest = self.indices()?;
                let wrap = self.eat_word("wrap");
                self.key("error")?;
                Op::Scatter {
                    op,
                    dims,
                    rest,
                    wrap,
                    error: self.string("an exception and a message in quotes")?,
                }
            }
            ("cat", "") => Op::Cat { dim: self.dim()? },
            ("pad", "") => {
                self.key("low")?;
                let low = self.exprs()?;
                self.key("high")?;
                let high = self.exprs()?;
                self.key("value")?;
                Op::Pad { low, high, value: self.scalar()? }
            }
            ("matmul", "") => Op::Matmul { bias: self.eat_word("bias") },
            ("extern", "") => return self.call(body),
            _ => return self.error_before("an operation"),
        };
        let inputs = if *self.peek() == Token::Punct('%') { self.values(body)? } else { vec![] };
        Ok((op, inputs))
    }

    fn dim(&mut self) -> Result<usize> {
        self.key("dim")?;
        self.index("a dim")
    }

    fn view(&mut self, kind: &str) -> Result<View> {
        Ok(match kind {
            "permute" => View::Permute(self.indices()?),
            "reshape" => View::Reshape,
            "expand" => View::Expand,
            "slice" => {
                let dim = self.dim()?;
                self.key("start")?;
                let start = self.expr()?;
                self.key("step")?;
                View::Slice { dim, start, step: self.int("an integer")? }
            }
            "select" => {
                let dim = self.dim()?;
                self.key("index")?;
                View::Select { dim, index: self.expr()? }
            }
            "flip" => View::Flip(self.indices()?),
            "map" => View::Map(self.exprs()?),
            _ => return self.error_before("a view"),
        })
    }

    fn call(&mut self, body: &Body) -> Result<(Op, Vec<ValueId>)> {
        let target = self.string("the name of an operator in quotes")?;
        let (mut args, mut kwargs, mut inputs) = (vec![], vec![], vec![]);
        self.expect('(')?;
        self.items(')', |p| {
            let named = matches!(p.peek(), Token::Word(_) | Token::Str(_)) && *p.peek2() == Token::Punct('=');
            if named {
                let name = p.name("a name")?;
                p.expect('=')?;
                kwargs.push((name, p.arg(body, &mut inputs)?));
            } else if kwargs.is_empty() {
                args.push(p.arg(body, &mut inputs)?);
            } else {
                return p.error("a named argument");
            }
            Ok(())
        })?;
        if self.eat_word("operands") {
            if !inputs.is_empty() {
                return self.error_before("no `operands=` where arguments name values");
            }
            self.expect('=')?;
            self.expect('[')?;
            inputs = self.items(']', |p| p.value(body))?;
        }
        self.key("reason")?;
        let reason = self.string("a reason in quotes")?;
        let effect = self.eat_word("effect");
        Ok((Op::Extern(ExternCall { target, args, kwargs, reason, effect }), inputs))
    }

    fn arg(&mut self, body: &Body, inputs: &mut Vec<ValueId>) -> Result<Arg> {
        let named = *self.peek2() == Token::Punct('(');
        let word = if let Token::Word(w) = self.peek() { w.clone() } else { String::new() };
        match (word.as_str(), named) {
            ("none", false) => Ok(self.skip(Arg::None)),
            ("true", false) => Ok(self.skip(Arg::Bool(true))),
            ("false", false) => Ok(self.skip(Arg::Bool(false))),
            ("dtype", true) => self.wrapped(Self::dtype).map(Arg::DType),
            ("device", true) => self.wrapped(Self::device).map(Arg::Device),
            ("layout", true) => self.wrapped(|p| p.string("a layout in quotes")).map(Arg::Layout),
            ("memory_format", true) => {
                self.wrapped(|p| p.string("a memory format in quotes")).map(Arg::MemoryFormat)
            }
            ("tuple", true) => {
                self.next();
                self.expect('(')?;
                self.nested(|p| p.items(')', |p| p.arg(body, inputs))).map(Arg::Tuple)
            }
            ("object", true) => self.wrapped(|p| p.index("the number of an object")).map(Arg::Object),
            _ => self.other_arg(body, inputs),
        }
    }

    fn skip<T>(&mut self, value: T) -> T {
        self.next();
        value
    }

    /// `word(…)`
    fn wrapped<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.next();
        self.expect('(')?;
        let out = inner(self)?;
        self.expect(')')?;
        Ok(out)
    }

    fn other_arg(&mut self, body: &Body, inputs: &mut Vec<ValueId>) -> Result<Arg> {
        match self.peek() {
            Token::Punct('%') => {
                inputs.push(self.value(body)?);
                return Ok(Arg::Input(inputs.len() - 1));
            }
            Token::Punct('$') => {
                self.next();
                return self.index("the number of an operand").map(Arg::Input);
            }
            Token::Punct('[') => {
                self.next();
                return self.nested(|p| p.items(']', |p| p.arg(body, inputs))).map(Arg::List);
            }
            Token::Str(s) => {
                let s = s.clone();
                return Ok(self.skip(Arg::Str(s)));
            }
            _ => {}
        }
        let start = self.at;
        let negative = self.eat('-');
        if let Some(bits) = self.float(negative) {
            return bits.map(Arg::Float);
        }
        self.at = start;
        self.expr().map(Arg::Int)
    }
}
