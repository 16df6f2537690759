//! The parser's tools: tokens, lists, numbers, expressions, types.

use super::lex::{Spanned, Token, lex};
use super::{ParseError, is_symbol};
use crate::dtype::{DType, Device, Scalar};
use crate::expr::Expr;
use crate::graph::{TensorType, Type};
use crate::shape::contiguous_strides;

/// Lists and expressions nest at most this deep, so that no text overflows the stack.
const MAX_DEPTH: u32 = 100;

pub(super) type Result<T, E = ParseError> = std::result::Result<T, E>;

/// Reads tokens.
pub(super) struct Parser {
    pub(super) tokens: Vec<Spanned>,
    /// Number of the next token.
    pub(super) at: usize,
    depth: u32,
}

/// What `read` finds in all of `source`.
pub(super) fn whole<T>(source: &str, read: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
    let mut parser = Parser { tokens: lex(source)?, at: 0, depth: 0 };
    let out = read(&mut parser)?;
    match parser.peek() {
        Token::End => Ok(out),
        _ => parser.error("the end of the text"),
    }
}

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.at].token
    }

    pub(super) fn peek2(&self) -> &Token {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].token
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    /// An error at token number `at`.
    pub(super) fn error_at<T>(&self, at: usize, expected: &str) -> Result<T> {
        let Spanned { token, line, column } = &self.tokens[at];
        let (expected, found) = (expected.to_string(), token.to_string());
        Err(ParseError { line: *line, column: *column, expected, found })
    }

    pub(super) fn error<T>(&self, expected: &str) -> Result<T> {
        self.error_at(self.at, expected)
    }

    /// An error at the token that has just been read.
    pub(super) fn error_before<T>(&self, expected: &str) -> Result<T> {
        self.error_at(self.at.saturating_sub(1), expected)
    }

    pub(super) fn eat(&mut self, c: char) -> bool {
        let hit = *self.peek() == Token::Punct(c);
        if hit {
            self.next();
        }
        hit
    }

    pub(super) fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { self.error(&format!("`{c}`")) }
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let hit = matches!(self.peek(), Token::Word(w) if w == word);
        if hit {
            self.next();
        }
        hit
    }

    pub(super) fn word(&mut self, expected: &str) -> Result<String> {
        match self.peek() {
            Token::Word(w) => {
                let w = w.clone();
                self.next();
                Ok(w)
            }
            _ => self.error(expected),
        }
    }

    pub(super) fn name(&mut self, expected: &str) -> Result<String> {
        match self.peek() {
            Token::Word(w) | Token::Str(w) => {
                let w = w.clone();
                self.next();
                Ok(w)
            }
            _ => self.error(expected),
        }
    }

    pub(super) fn string(&mut self, expected: &str) -> Result<String> {
        match self.peek() {
            Token::Str(s) => {
                let s = s.clone();
                self.next();
                Ok(s)
            }
            _ => self.error(expected),
        }
    }

    pub(super) fn index(&mut self, expected: &str) -> Result<usize> {
        match *self.peek() {
            Token::Int(i) if u32::try_from(i).is_ok() => {
                self.next();
                Ok(i as usize)
            }
            _ => self.error(expected),
        }
    }

    /// A signed integer.
    pub(super) fn int(&mut self, expected: &str) -> Result<i64> {
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
    pub(super) fn key(&mut self, key: &str) -> Result<()> {
        if !self.eat_word(key) {
            return self.error(&format!("`{key}=`"));
        }
        self.expect('=')
    }

    pub(super) fn dtype(&mut self) -> Result<DType> {
        let w = self.word("a dtype")?;
        DType::from_name(&w).map_or_else(|| self.error_before("a dtype"), Ok)
    }

    pub(super) fn device(&mut self) -> Result<Device> {
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
    pub(super) fn items<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut out = vec![];
        while !self.eat(close) {
            if !out.is_empty() && !self.eat(',') {
                return self.error(&format!("`,` or `{close}`"));
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    pub(super) fn indices(&mut self) -> Result<Vec<usize>> {
        self.expect('[')?;
        self.items(']', |p| p.index("a number"))
    }

    pub(super) fn exprs(&mut self) -> Result<Vec<Expr>> {
        self.expect('[')?;
        self.items(']', Self::expr)
    }

    pub(super) fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return self.error("less nesting");
        }
        self.depth += 1;
        let out = f(self);
        self.depth -= 1;
        out
    }

    /// A sum of products.
    pub(super) fn expr(&mut self) -> Result<Expr> {
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
                    w if is_symbol(w) => {
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
    pub(super) fn float(&mut self, negative: bool) -> Option<Result<u64>> {
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

    pub(super) fn scalar(&mut self) -> Result<Scalar> {
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

    pub(super) fn ty(&mut self) -> Result<Type> {
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
}
