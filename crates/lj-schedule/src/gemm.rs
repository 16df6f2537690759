//! Matrix products by kernels of our own: the words that the schedule, the code generator and the
//! runtime share.
//!
//! A product is made of a few functions that know no sizes: they *pack* a panel of one operand,
//! multiply two packed panels into a *tile* of the result ([`Function::Micro`]), or take the inner
//! products of a few rows ([`Function::Dot`]). The loops around them, over panels and blocks of the
//! summed dim, are the runtime's. Which products are made so, and which by ATen, a [`Chooser`] says.
//!
//! Every function is `void f(const int64_t *args)`; what the arguments are, the modules [`micro`],
//! [`pack`] and [`dot`] say.

use lj_ir::DType;
use serde::{Deserialize, Serialize};

/// The functions for one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tile {
    /// Element type of the operands and of the result. Sums are `f32`.
    pub dtype: DType,
    /// Lanes of an `f32` vector.
    pub lanes: i64,
    /// Rows of the result that a tile has.
    pub rows: i64,
}

/// Vectors in a row of a tile.
pub const VECTORS: i64 = 2;
/// Steps of the summed dim that [`Function::Micro`] takes at once; packed panels are padded with
/// zeros to a multiple of it.
pub const UNROLL: i64 = 4;
/// 32-bit words that a packed panel must have beyond its last step: packing writes whole vectors.
pub const SLACK: i64 = 16;

impl Tile {
    /// The tile of an element type for vectors of so many `f32` lanes; `None` if there is none.
    /// 24 sums, two vectors of B and one of A fill the registers of AVX-512, 12 those of AVX2.
    pub fn new(dtype: DType, lanes: i64) -> Option<Tile> {
        let rows = if lanes == 16 { 12 } else { 6 };
        matches!((dtype, lanes), (DType::F32, 8 | 16) | (DType::BF16, 16)).then_some(Tile {
            dtype,
            lanes,
            rows,
        })
    }

    /// Columns of the result that a tile has.
    pub fn cols(&self) -> i64 {
        VECTORS * self.lanes
    }

    /// Elements of the summed dim in one step: what fits in a 32-bit word.
    pub fn pair(&self) -> i64 {
        4 / self.dtype.bytes()
    }

    /// Rows of the two operands that a call of [`Function::Dot`] multiplies.
    pub const fn dot(f: Function) -> (i64, i64) {
        match f {
            Function::Dot1 => (8, 1),
            _ => (4, 4),
        }
    }
}

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Function {
    /// Multiplies two packed panels into a tile of the result.
    Micro,
    /// Packs a vector of rows that are contiguous along the summed dim, by transposing.
    PackAlong,
    /// Packs one vector that is contiguous across the summed dim.
    PackAcross1,
    /// Packs as many vectors as a tile has in a row.
    PackAcross2,
    /// Inner products of 8 rows with one.
    Dot1,
    /// Inner products of 4 rows with 4.
    Dot4,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 6] = [
        Function::Micro,
        Function::PackAlong,
        Function::PackAcross1,
        Function::PackAcross2,
        Function::Dot1,
        Function::Dot4,
    ];

    /// Its name in an object.
    pub fn symbol(self, dtype: DType) -> String {
        let name = match self {
            Function::Micro => "micro",
            Function::PackAlong => "pack_along",
            Function::PackAcross1 => "pack_across1",
            Function::PackAcross2 => "pack_across2",
            Function::Dot1 => "dot1",
            Function::Dot4 => "dot4",
        };
        format!("lj_gemm_{dtype}_{name}")
    }
}

macro_rules! arguments {
    ($(#[$doc:meta])* $module:ident: $($(#[$field:meta])* $name:ident),* $(,)?) => {
        $(#[$doc])*
        pub mod $module {
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum Position { $($name,)* }
            $($(#[$field])* pub const $name: usize = Position::$name as usize;)*
            /// Number of arguments.
            pub const LEN: usize = [$($name),*].len();
        }
    };
}

arguments! {
    /// Arguments of [`Function::Micro`]. With `t = Σ a·b` over the steps, `rows × cols` elements of the
    /// result become `t + partial + bias`, the last two where given.
    micro:
    /// Steps, a multiple of [`UNROLL`]; 0 is allowed.
    STEPS,
    /// A panel of `rows` words a step.
    A,
    /// A panel of `cols` words a step.
    B,
    /// Rows and columns of the tile that exist, at least 1.
    ROWS,
    /// See `ROWS`.
    COLS,
    /// Sums so far, `f32`; 0 if there are none.
    PARTIAL,
    /// Elements from one row of them to the next.
    PARTIAL_STRIDE,
    /// Addend of the operands' type; 0 if there is none.
    BIAS,
    /// Elements from one row to the next.
    BIAS_ROW,
    /// Elements from one column to the next: 0 or 1.
    BIAS_COL,
    /// Where the result goes; its columns are contiguous.
    OUT,
    /// Elements from one row to the next.
    OUT_STRIDE,
    /// Whether the result is rounded to the operands' type; it is `f32` otherwise.
    NARROW,
}

arguments! {
    /// Arguments of the packing functions. A panel holds one word per lane for every step: an `f32`,
    /// or two consecutive 16-bit elements along the summed dim, the second 0 beyond the end. Steps are
    /// filled up with zeros to a multiple of [`UNROLL`]. Lanes beyond `COUNT` hold anything finite
    /// or not; they reach only rows or columns of a tile that do not exist. Whole vectors are stored in
    /// ascending order, so a step may be shorter than a vector.
    pack:
    /// Element 0.
    SRC,
    /// First word of the panel.
    DST,
    /// Lanes that exist, at least 1.
    COUNT,
    /// Bytes from one lane to the next (along) or from one element of the summed dim to the next (across).
    STRIDE,
    /// Elements of the summed dim.
    STEPS,
    /// Bytes from one step of the panel to the next.
    DST_STRIDE,
}

arguments! {
    /// Arguments of the inner products: `out[j][i] = Σ w[i]·x[j]`, `f32`, for all rows `i` of a call
    /// and `j` of it; rows beyond `W_ROWS` and `X_ROWS` repeat the last.
    dot:
    /// Rows that are many.
    W,
    /// Bytes from one to the next.
    W_STRIDE,
    /// How many exist, at least 1.
    W_ROWS,
    /// Rows that are few.
    X,
    /// Bytes from one to the next.
    X_STRIDE,
    /// How many exist, at least 1.
    X_ROWS,
    /// Elements of a row.
    LEN_K,
    /// The inner products.
    OUT,
}

/// Which dim of an operand is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Order {
    /// The summed one.
    Along,
    /// The other one.
    Across,
}

/// A product at the traced sizes, as a result with contiguous rows (where its columns are contiguous,
/// the operands have changed places): what a choice depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Problem {
    /// Element type.
    pub dtype: DType,
    /// Number of products.
    pub batch: i64,
    /// Rows of the result.
    pub m: i64,
    /// Columns of the result.
    pub n: i64,
    /// Summed elements.
    pub k: i64,
    /// The left operand.
    pub a: Order,
    /// The right operand.
    pub b: Order,
    /// Whether something is added.
    pub bias: bool,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Problem { dtype, batch, m, n, k, a, b, bias } = self;
        let t = |o: &Order, along: bool| if (*o == Order::Along) == along { "" } else { "T" };
        if *batch != 1 {
            write!(f, "{batch} x ")?;
        }
        let bias = if *bias { " + bias" } else { "" };
        write!(f, "{dtype} [{m},{k}]{} @ [{k},{n}]{}{bias}", t(a, true), t(b, false))
    }
}

/// Why a product is made as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Both were timed.
    Timed,
    /// The cost model is certain, or there was no time to measure.
    Model,
    /// The user said so.
    Option,
    /// There are no kernels for it (element type, layout, machine).
    Unsupported,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::Timed => "timed",
            Reason::Model => "model",
            Reason::Option => "option",
            Reason::Unsupported => "no kernels",
        })
    }
}

/// Who makes a product, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Choice {
    /// Our kernels; ATen otherwise.
    pub own: bool,
    /// Why.
    pub reason: Reason,
    /// Nanoseconds by our kernels, measured or estimated; 0 if unknown. Measured on a smaller product
    /// of the same kind where the whole would take too long, and scaled.
    pub own_ns: u64,
    /// The same by ATen.
    pub aten_ns: u64,
}

impl Choice {
    /// ATen, for want of kernels.
    pub const UNSUPPORTED: Choice = Choice { own: false, reason: Reason::Unsupported, own_ns: 0, aten_ns: 0 };
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", if self.own { "own" } else { "aten" }, self.reason)?;
        if self.own_ns > 0 || self.aten_ns > 0 {
            let us = |ns: u64| ns as f64 / 1e3;
            write!(f, ": own {:.1} us, aten {:.1} us", us(self.own_ns), us(self.aten_ns))?;
        }
        f.write_str(")")
    }
}

/// Chooses for every product of a graph.
pub trait Chooser {
    /// Who makes `p`.
    fn choose(&self, p: &Problem) -> Choice;
}

/// Leaves all products to ATen.
pub struct Aten;

impl Chooser for Aten {
    fn choose(&self, _: &Problem) -> Choice {
        Choice::UNSUPPORTED
    }
}
