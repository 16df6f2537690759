//! The `.lj` text form of graphs: what dumps show, filetests read and replay starts from.
//!
//! ```text
//! graph forward (s0: [2, inf] ~ 256) {
//!   %0 = input 0 : f32[s0, 512]  // fx=primals_1
//!   %1 = full 1.0 : f32[]
//!   %2 = pw.add %0, %1 : f32[s0, 512]  // fx=add line="model.py:12: x = x + 1"
//!   %3 = reduce.sum dims=[1] %2 : f32[s0]
//!   %4 = view.permute [1, 0] %2 : f32[512, s0]{1, 512}
//!   %5, %6 = extern "aten.topk.default"(%3, 5, largest=true) reason="no lowering" : (f32[5], i64[5])
//!   return %5, %4
//!   mutate %0 <- %2
//! }
//! ```
//!
//! * The header names the symbols: inclusive range and, after `~`, the traced value.
//! * A tensor type is `dtype[extents]{strides}@device`; row-major strides and the CPU are left out.
//!   The other types are `sym(expr)`, `scalar(dtype)` and `none`. A node without exactly one result
//!   has its types in parentheses.
//! * Expressions are what [`crate::Expr`] displays: `4*s0*s1 - 1`, `floordiv(s0, 2)`, `mod`, `min`,
//!   `max`. A symbol that is not a plain identifier stands in back quotes.
//! * Floats always have a point or an exponent, or are `inf`, `nan`, or `nan(0x7ff8…)` with other
//!   bits than the usual ones.
//! * In the arguments of an `extern`, `%3` is the next operand in order; if a node uses its operands
//!   in another way they are listed as `operands=[%3, %3]` after the call and referred to as `$0`.
//! * `// fx=… line="…"` after a node is its provenance; any other `//` comment is skipped.
//!
//! [`parse`] of [`print`] gives back an equal graph, except that the provenance table is numbered
//! in order of first use and holds no entry twice and none that no node uses.
//!
//! **Filetests.** A stage's tests are `.lj` files in `tests/files/<stage>/` at the root of the
//! workspace; what they give stands in `tests/snapshots/` of the stage's crate (`INSTA_UPDATE=always`
//! writes it anew). The pattern, in `crates/<stage>/tests/files.rs`:
//!
//! ```ignore
//! #[test]
//! fn files() {
//!     insta::glob!("../../../tests/files/rewrite", "*.lj", |path| {
//!         let source = std::fs::read_to_string(path).unwrap();
//!         let graph = lj_ir::text::parse(&source).unwrap();
//!         graph.verify().unwrap();
//!         insta::assert_snapshot!(rewrite(&graph).to_string());
//!     });
//! }
//! ```

mod cursor;
mod lex;
mod parse;
mod print;

pub use parse::{parse, parse_expr};
pub use print::{node, print, ty};

use std::fmt;

/// Why a text is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: expected {expected}, found {found}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What would have been right.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

/// Words that mean something where a symbol may stand.
const KEYWORDS: &[&str] = &[
    "floordiv",
    "mod",
    "min",
    "max",
    "none",
    "true",
    "false",
    "inf",
    "nan",
    "dtype",
    "device",
    "layout",
    "memory_format",
    "object",
];

/// Whether `name` lexes as one identifier.
fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A name, in double quotes when it is not an identifier.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_identifier(self.0) { f.write_str(self.0) } else { quoted(f, self.0, '"') }
    }
}

/// Whether a symbol of this name needs no quotes.
fn is_symbol(name: &str) -> bool {
    is_identifier(name) && !KEYWORDS.contains(&name)
}

/// A symbol, in back quotes when its name is not an identifier or means something else.
pub(crate) struct Symbol<'a>(pub &'a str);

impl fmt::Display for Symbol<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_symbol(self.0) { f.write_str(self.0) } else { quoted(f, self.0, '`') }
    }
}

/// Writes `text` in quotes with what the lexer would misread escaped.
fn quoted(f: &mut dyn fmt::Write, text: &str, quote: char) -> fmt::Result {
    f.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            '\\' => f.write_str("\\\\")?,
            c if c == quote => write!(f, "\\{c}")?,
            c if c.is_control() => write!(f, "\\u{{{:x}}}", c as u32)?,
            c => f.write_char(c)?,
        }
    }
    f.write_char(quote)
}
