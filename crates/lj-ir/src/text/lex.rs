//! From characters to tokens.

use super::ParseError;
use std::fmt;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// An identifier; dots join, as in `pw.add`.
    Word(String),
    /// An unsigned integer, at most 2⁶³ (so that the most negative i64 can be written).
    Int(u64),
    /// A float without sign.
    Float(f64),
    /// A hexadecimal integer.
    Hex(u64),
    /// Text in double quotes.
    Str(String),
    /// Text in back quotes.
    Symbol(String),
    /// A punctuation character.
    Punct(char),
    /// `<-`
    Arrow,
    /// The start of a comment that holds provenance.
    Prov,
    /// The end.
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(w) => write!(f, "`{w}`"),
            Token::Int(i) => write!(f, "`{i}`"),
            Token::Float(v) => write!(f, "`{v:?}`"),
            Token::Hex(v) => write!(f, "`{v:#x}`"),
            Token::Str(s) => write!(f, "{s:?}"),
            Token::Symbol(s) => write!(f, "symbol {s:?}"),
            Token::Punct(c) => write!(f, "`{c}`"),
            Token::Arrow => f.write_str("`<-`"),
            Token::Prov => f.write_str("a provenance comment"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

/// A token and where it starts.
pub(super) struct Spanned {
    pub token: Token,
    pub line: u32,
    pub column: u32,
}

struct Lexer<'a> {
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    line: u32,
    column: u32,
}

/// The tokens of `source`; the last is [`Token::End`].
pub(super) fn lex(source: &str) -> Result<Vec<Spanned>, ParseError> {
    let mut lexer = Lexer { chars: source.chars().peekable(), line: 1, column: 1 };
    let mut out = vec![];
    loop {
        lexer.skip_while(char::is_whitespace);
        let (line, column) = (lexer.line, lexer.column);
        let Some(token) = lexer.token()? else { continue };
        let end = token == Token::End;
        out.push(Spanned { token, line, column });
        if end {
            return Ok(out);
        }
    }
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.chars.next()?;
        if c == '\n' {
            (self.line, self.column) = (self.line + 1, 1);
        } else {
            self.column += 1;
        }
        Some(c)
    }

    fn next_if(&mut self, c: char) -> bool {
        let hit = self.chars.peek() == Some(&c);
        if hit {
            self.next();
        }
        hit
    }

    fn skip_while(&mut self, f: impl Fn(char) -> bool) {
        while self.chars.peek().is_some_and(|&c| f(c)) {
            self.next();
        }
    }

    fn take_while(&mut self, into: &mut String, f: impl Fn(char) -> bool) {
        while let Some(&c) = self.chars.peek() {
            if !f(c) {
                break;
            }
            into.push(c);
            self.next();
        }
    }

    fn error<T>(&self, expected: &str, found: impl Into<String>) -> Result<T, ParseError> {
        let (line, column) = (self.line, self.column);
        Err(ParseError { line, column, expected: expected.into(), found: found.into() })
    }

    /// One token, or `None` after a comment.
    fn token(&mut self) -> Result<Option<Token>, ParseError> {
        let Some(c) = self.next() else { return Ok(Some(Token::End)) };
        Ok(Some(match c {
            '/' if self.next_if('/') => return Ok(self.comment()),
            '<' if self.next_if('-') => Token::Arrow,
            '"' => Token::Str(self.quoted('"')?),
            '`' => Token::Symbol(self.quoted('`')?),
            c if c.is_ascii_digit() => self.number(c)?,
            c if c.is_ascii_alphabetic() || c == '_' => {
                let mut word = String::from(c);
                self.take_while(&mut word, |c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
                Token::Word(word)
            }
            c => Token::Punct(c),
        }))
    }

    /// After `//`: provenance, if `fx=` follows; otherwise skips to the end of the line.
    fn comment(&mut self) -> Option<Token> {
        self.skip_while(|c| c == ' ');
        let mut ahead = self.chars.clone();
        if ['f', 'x', '='].iter().all(|&c| ahead.next() == Some(c)) {
            return Some(Token::Prov);
        }
        self.skip_while(|c| c != '\n');
        None
    }

    fn number(&mut self, first: char) -> Result<Token, ParseError> {
        let mut digits = String::from(first);
        if first == '0' && self.next_if('x') {
            digits.clear();
            self.take_while(&mut digits, |c| c.is_ascii_hexdigit());
            return match u64::from_str_radix(&digits, 16) {
                Ok(v) => Ok(Token::Hex(v)),
                Err(_) => self.error("a hexadecimal number of at most 64 bits", format!("`0x{digits}`")),
            };
        }
        self.take_while(&mut digits, |c| c.is_ascii_digit());
        let mut float = false;
        if self.next_if('.') {
            float = true;
            digits.push('.');
            self.take_while(&mut digits, |c| c.is_ascii_digit());
        }
        if self.next_if('e') {
            float = true;
            digits.push('e');
            if self.next_if('-') {
                digits.push('-');
            }
            self.take_while(&mut digits, |c| c.is_ascii_digit());
        }
        let token = if float {
            digits.parse().ok().map(Token::Float)
        } else {
            digits.parse().ok().filter(|&v: &u64| v <= 1 << 63).map(Token::Int)
        };
        token.map_or_else(|| self.error("a number", format!("`{digits}`")), Ok)
    }

    /// The rest of a text in quotes.
    fn quoted(&mut self, quote: char) -> Result<String, ParseError> {
        let mut out = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return self.error("a closing quote", "the end of the line"),
                Some('\\') => match self.escape() {
                    Some(c) => out.push(c),
                    None => return self.error("an escape: \\n \\t \\r \\\\ \\\" \\u{…}", "another one"),
                },
                Some(c) if c == quote => return Ok(out),
                Some(c) => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        match self.next()? {
            'n' => Some('\n'),
            't' => Some('\t'),
            'r' => Some('\r'),
            'u' if self.next_if('{') => {
                let mut digits = String::new();
                self.take_while(&mut digits, |c| c.is_ascii_hexdigit());
                let c = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)?;
                self.next_if('}').then_some(c)
            }
            c @ ('\\' | '"' | '`') => Some(c),
            _ => None,
        }
    }
}
