//! Parsing.

use super::ParseError;
use super::lex::{Spanned, Token, lex};
use crate::dtype::{DType, Device, Scalar};
use crate::expr::{Expr, Sym};
use crate::facts::SymInfo;
use crate::graph::{Graph, Mutation, Node, NodeId, Prov, TensorType, Type, Value, ValueId};
use crate::op::{Arg, ExternCall, Op, ReduceOp, View};
use crate::pointwise::PwOp;
use crate::shape::contiguous_strides;
use std::collections::BTreeMap;

/// Reads a graph from `.lj` text. The graph is well-formed (every value is defined once, before its
/// uses) but not otherwise verified.
pub fn parse(source: &str) -> Result<Graph, ParseError> {
    whole(source, Parser::graph)
}

/// Reads an expression as [`Expr`] displays it.
pub fn parse_expr(source: &str) -> Result<Expr, ParseError> {
    whole(source, Parser::expr)
}

/// What `read` finds in all of `source`.
fn whole<T>(source: &str, read: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
    let mut parser = Parser { tokens: lex(source)?, at: 0, depth: 0 };
    let out = read(&mut parser)?;
    match parser.peek() {
        Token::End => Ok(out),
        _ => parser.error("the end of the text"),
    }
}

/// Lists and expressions nest at most this deep, so that no text overflows the stack.
const MAX_DEPTH: u32 = 100;

type Result<T, E = ParseError> = std::result::Result<T, E>;

struct Parser {
    tokens: Vec<Spanned>,
    at: usize,
    depth: u32,
}

/// What is known while the body of a graph is read.
#[derive(Default)]
struct Body {
    graph: Graph,
    /// Values by number; `None` in the gaps.
    values: Vec<Option<Value>>,
    /// Inputs by position.
    inputs: BTreeMap<usize, ValueId>,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].token
    }

    fn peek2(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].token
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    /// An error at token number `at`.
    fn error_at<T>(&self, at: usize, expected: &str) -> Result<T> {
        let Spanned { token, line, column } = &self.tokens[at];
        let (expected, found) = (expected.to_string(), token.to_string());
        Err(ParseError { line: *line, column: *column, expected, found })
    }

    fn error<T>(&self, expected: &str) -> Result<T> {
        self.error_at(self.at, expected)
    }

    /// An error at the token that has just been read.
    fn error_before<T>(&self, expected: &str) -> Result<T> {
        self.error_at(self.at.saturating_sub(1), expected)
    }

    fn eat(&mut self, c: char) -> bool {
        let hit = *self.peek() == Token::Punct(c);
        if hit {
            self.next();
        }
        hit
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { self.error(&format!("`{c}`")) }
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let hit = matches!(self.peek(), Token::Word(w) if w == word);
        if hit {
            self.next();
        }
        hit
    }

    fn word(&mut self, expected: &str) -> Result<String> {
        match self.peek() {
            Token::Word(w) => {
                let w = w.clone();
                self.next();
                Ok(w)
            }
            _ => self.error(expected),
        }
    }

    fn name(&mut self, expected: &str) -> Result<String> {
        match self.peek() {
            Token::Word(w) | Token::Str(w) => {
                let w = w.clone();
                self.next();
                Ok(w)
            }
            _ => self.error(expected),
        }
    }

    fn string(&mut self, expected: &str) -> Result<String> {
        match self.peek() {
            Token::Str(s) => {
                let s = s.clone();
                self.next();
                Ok(s)
            }
            _ => self.error(expected),
        }
    }

    fn index(&mut self, expected: &str) -> Result<usize> {
        match *self.peek() {
            Token::Int(i) if u32::try_from(i).is_ok() => {
                self.next();
                Ok(i as usize)
            }
            _ => self.error(expected),
        }
    }

    /// A signed integer.
    fn int(&mut self, expected: &str) -> Result<i64> {
        let negative = self.eat('-');
        match *self.peek() {
            Token::Int(i) if negative || i < 1 << 63 => {
                self.next();
                let i = i as i64;
                Ok(if negative { i.wrapping_neg() } else { i })
            }
            _ => self.error(expected),
        }
    }

    /// `key=`
    fn key(&mut self, key: &str) -> Result<()> {
        if !self.eat_word(key) {
            return self.error(&format!("`{key}=`"));
        }
        self.expect('=')
    }

    fn dtype(&mut self) -> Result<DType> {
        let w = self.word("a dtype")?;
        DType::from_name(&w).map_or_else(|| self.error_before("a dtype"), Ok)
    }

    fn device(&mut self) -> Result<Device> {
        match self.word("a device")?.as_str() {
            "cpu" => Ok(Device::Cpu),
            "meta" => Ok(Device::Meta),
            "cuda" => {
                self.expect(':')?;
                Ok(Device::Cuda(self.index("a device number")? as u32))
            }
            _ => self.error_before("`cpu`, `cuda:0` or `meta`"),
        }
    }

    /// Items up to `close`, separated by commas.
    fn items<T>(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = vec![];
        while !self.eat(close) {
            if !out.is_empty() && !self.eat(',') {
                return self.error(&format!("`,` or `{close}`"));
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    fn indices(&mut self) -> Result<Vec<usize>> {
        self.expect('[')?;
        self.items(']', |p| p.index("a number"))
    }

    fn exprs(&mut self) -> Result<Vec<Expr>> {
        self.expect('[')?;
        self.items(']', Self::expr)
    }

    fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return self.error("less nesting");
        }
        self.depth += 1;
        let out = f(self);
        self.depth -= 1;
        out
    }

    /// A sum of products.
    fn expr(&mut self) -> Result<Expr> {
        self.nested(|p| {
            let mut sum = Expr::ZERO;
            let mut negative = p.eat('-');
            loop {
                sum = sum + p.product(negative)?;
                negative = match p.peek() {
                    Token::Punct('+') => false,
                    Token::Punct('-') => true,
                    _ => return Ok(sum),
                };
                p.next();
            }
        })
    }

    fn product(&mut self, negative: bool) -> Result<Expr> {
        let mut out = self.factor(negative)?;
        while self.eat('*') {
            out = out * self.factor(false)?;
        }
        Ok(out)
    }

    fn factor(&mut self, negative: bool) -> Result<Expr> {
        let e = match self.next() {
            Token::Int(v) if negative => return Ok(Expr::int((v as i64).wrapping_neg())),
            Token::Int(v) if v < 1 << 63 => Expr::int(v as i64),
            Token::Symbol(name) => Expr::sym(&name),
            Token::Punct('(') => {
                let e = self.expr()?;
                self.expect(')')?;
                e
            }
            Token::Word(w) => {
                let f: fn(&Expr, &Expr) -> Expr = match w.as_str() {
                    "floordiv" => Expr::floordiv,
                    "mod" => Expr::modulo,
                    "min" => Expr::minimum,
                    "max" => Expr::maximum,
                    w if super::is_symbol(w) => {
                        let e = Expr::sym(w);
                        return Ok(if negative { -&e } else { e });
                    }
                    _ => return self.error_before("an expression"),
                };
                self.expect('(')?;
                let a = self.expr()?;
                self.expect(',')?;
                let b = self.expr()?;
                self.expect(')')?;
                f(&a, &b)
            }
            _ => return self.error_before("an expression"),
        };
        Ok(if negative { -&e } else { e })
    }

    /// A float after its sign.
    fn float(&mut self, negative: bool) -> Option<Result<u64>> {
        let sign = if negative { -1.0 } else { 1.0 };
        let bits = |v: f64| Some(Ok((sign * v).to_bits()));
        match self.peek() {
            &Token::Float(v) => {
                self.next();
                bits(v)
            }
            Token::Word(w) if w == "inf" => {
                self.next();
                bits(f64::INFINITY)
            }
            Token::Word(w) if w == "nan" && !negative => {
                self.next();
                if !self.eat('(') {
                    return Some(Ok(f64::NAN.to_bits()));
                }
                Some(match self.next() {
                    Token::Hex(bits) if f64::from_bits(bits).is_nan() => self.expect(')').map(|()| bits),
                    _ => self.error_before("the bits of a NaN in hexadecimal"),
                })
            }
            _ => None,
        }
    }

    fn scalar(&mut self) -> Result<Scalar> {
        for (word, value) in [("true", true), ("false", false)] {
            if self.eat_word(word) {
                return Ok(Scalar::Bool(value));
            }
        }
        let negative = *self.peek() == Token::Punct('-');
        if !matches!(if negative { self.peek2() } else { self.peek() }, Token::Int(_)) {
            if negative {
                self.next();
            }
            let Some(bits) = self.float(negative) else { return self.error("a constant") };
            return Ok(Scalar::Float(bits?));
        }
        self.int("a constant").map(Scalar::Int)
    }

    fn ty(&mut self) -> Result<Type> {
        let word = self.word("a type")?;
        let other = match word.as_str() {
            "none" => return Ok(Type::None),
            "sym" => {
                self.expect('(')?;
                Type::SymInt(self.expr()?)
            }
            "scalar" => {
                self.expect('(')?;
                Type::Scalar(self.dtype()?)
            }
            _ => {
                let Some(dtype) = DType::from_name(&word) else { return self.error_before("a type") };
                let shape = self.exprs()?;
                let strides =
                    if self.eat('{') { self.items('}', Self::expr)? } else { contiguous_strides(&shape) };
                let device = if self.eat('@') { self.device()? } else { Device::Cpu };
                return Ok(Type::Tensor(TensorType { dtype, device, shape, strides }));
            }
        };
        self.expect(')')?;
        Ok(other)
    }

    fn graph(&mut self) -> Result<Graph> {
        if !self.eat_word("graph") {
            return self.error("`graph`");
        }
        let name = self.name("the name of the graph")?;
        let mut body = Body { graph: Graph::new(&name), ..Body::default() };
        self.expect('(')?;
        body.graph.facts.syms = self.items(')', Self::symbol)?.into_iter().collect();
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
        let Body { mut graph, values, inputs } = body;
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
        let prov = self.prov(&mut body.graph)?;
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
    fn prov(&mut self, graph: &mut Graph) -> Result<u32> {
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
        let found = graph.provs.iter().rposition(|p| *p == prov);
        Ok(found.unwrap_or_else(|| {
            graph.provs.push(prov);
            graph.provs.len() - 1
        }) as u32)
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
            ("embedding_grad", "") => {
                self.key("padding_idx")?;
                Op::EmbeddingGrad { padding_idx: self.int("an index")? }
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
