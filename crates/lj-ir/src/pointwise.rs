//! Elementwise operations.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};

/// Result type class of a pointwise operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PwResult {
    /// The dtype of the operands.
    Same,
    /// `bool`.
    Bool,
}

macro_rules! pointwise {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $arity:literal, $result:ident;)*) => {
        /// An elementwise operation on operands of one dtype. Floats are `f32` or `f64`; the
        /// semantics are those of ATen's operator of that name on the CPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum PwOp { $($(#[$doc])* $variant),* }

        impl PwOp {
            /// Every operation.
            pub const ALL: &'static [PwOp] = &[$(PwOp::$variant),*];
            /// Name in `.lj` text.
            pub fn name(self) -> &'static str { match self { $(PwOp::$variant => $name),* } }
            /// Number of operands.
            pub fn arity(self) -> usize { match self { $(PwOp::$variant => $arity),* } }
            /// Result type class.
            pub fn result(self) -> PwResult { match self { $(PwOp::$variant => PwResult::$result),* } }
            /// The inverse of [`PwOp::name`].
            pub fn from_name(name: &str) -> Option<PwOp> {
                match name { $($name => Some(PwOp::$variant),)* _ => None }
            }
        }
    };
}

pointwise! {
    /// −x; wraps for integers.
    Neg, "neg", 1, Same;
    /// |x|; wraps for integers.
    Abs, "abs", 1, Same;
    /// −1, 0, 1 (NaN → NaN as torch: 0 for NaN is not; floats keep NaN → 0 as ATen's `sign`).
    Sign, "sign", 1, Same;
    /// 1/x, floats.
    Reciprocal, "reciprocal", 1, Same;
    /// √x, floats.
    Sqrt, "sqrt", 1, Same;
    /// 1/√x, floats.
    Rsqrt, "rsqrt", 1, Same;
    /// eˣ, floats.
    Exp, "exp", 1, Same;
    /// 2ˣ, floats.
    Exp2, "exp2", 1, Same;
    /// eˣ−1, floats.
    Expm1, "expm1", 1, Same;
    /// ln x, floats.
    Log, "log", 1, Same;
    /// log₂ x, floats.
    Log2, "log2", 1, Same;
    /// log₁₀ x, floats.
    Log10, "log10", 1, Same;
    /// ln(1+x), floats.
    Log1p, "log1p", 1, Same;
    /// 1/(1+e⁻ˣ), floats.
    Sigmoid, "sigmoid", 1, Same;
    /// Floats.
    Tanh, "tanh", 1, Same;
    /// Floats.
    Sin, "sin", 1, Same;
    /// Floats.
    Cos, "cos", 1, Same;
    /// Floats.
    Tan, "tan", 1, Same;
    /// Floats.
    Asin, "asin", 1, Same;
    /// Floats.
    Acos, "acos", 1, Same;
    /// Floats.
    Atan, "atan", 1, Same;
    /// Floats.
    Sinh, "sinh", 1, Same;
    /// Floats.
    Cosh, "cosh", 1, Same;
    /// Floats.
    Asinh, "asinh", 1, Same;
    /// Floats.
    Acosh, "acosh", 1, Same;
    /// Floats.
    Atanh, "atanh", 1, Same;
    /// Error function, floats.
    Erf, "erf", 1, Same;
    /// 1 − erf(x), floats.
    Erfc, "erfc", 1, Same;
    /// Rounds to −∞, floats.
    Floor, "floor", 1, Same;
    /// Rounds to +∞, floats.
    Ceil, "ceil", 1, Same;
    /// Rounds to nearest, ties to even, floats.
    Round, "round", 1, Same;
    /// Rounds to zero, floats.
    Trunc, "trunc", 1, Same;
    /// Whether NaN, floats.
    IsNan, "isnan", 1, Bool;
    /// Whether ±∞, floats.
    IsInf, "isinf", 1, Bool;
    /// Whether the sign bit is set, floats.
    SignBit, "signbit", 1, Bool;
    /// Bitwise complement of integers, logical not of bools.
    Not, "not", 1, Same;
    /// x+y; wraps for integers; logical or for bools.
    Add, "add", 2, Same;
    /// x−y; wraps for integers.
    Sub, "sub", 2, Same;
    /// x·y; wraps for integers; logical and for bools.
    Mul, "mul", 2, Same;
    /// x/y, floats.
    Div, "div", 2, Same;
    /// `x // y` as Python; an integer zero divisor raises `RuntimeError: ZeroDivisionError`.
    FloorDiv, "floordiv", 2, Same;
    /// Quotient rounded to zero; an integer zero divisor raises.
    TruncDiv, "truncdiv", 2, Same;
    /// Remainder with the divisor's sign; an integer zero divisor raises.
    Remainder, "remainder", 2, Same;
    /// Remainder with the dividend's sign; an integer zero divisor raises.
    Fmod, "fmod", 2, Same;
    /// xʸ, floats and integers (integer exponents are non-negative).
    Pow, "pow", 2, Same;
    /// Larger; NaN if either is NaN.
    Maximum, "maximum", 2, Same;
    /// Smaller; NaN if either is NaN.
    Minimum, "minimum", 2, Same;
    /// Larger; the other if one is NaN.
    Fmax, "fmax", 2, Same;
    /// Smaller; the other if one is NaN.
    Fmin, "fmin", 2, Same;
    /// Angle of (y, x), floats.
    Atan2, "atan2", 2, Same;
    /// √(x²+y²), floats.
    Hypot, "hypot", 2, Same;
    /// |x| with the sign of y, floats.
    Copysign, "copysign", 2, Same;
    /// x = y.
    Eq, "eq", 2, Bool;
    /// x ≠ y.
    Ne, "ne", 2, Bool;
    /// x < y.
    Lt, "lt", 2, Bool;
    /// x ≤ y.
    Le, "le", 2, Bool;
    /// x > y.
    Gt, "gt", 2, Bool;
    /// x ≥ y.
    Ge, "ge", 2, Bool;
    /// Bitwise and logical and.
    And, "and", 2, Same;
    /// Bitwise and logical or.
    Or, "or", 2, Same;
    /// Bitwise and logical exclusive or.
    Xor, "xor", 2, Same;
    /// x·2ʸ in integers; a count outside 0..bits gives 0.
    Shl, "shl", 2, Same;
    /// Arithmetic right shift; a count outside 0..bits gives 0 or −1 by sign.
    Shr, "shr", 2, Same;
    /// Random bits, i64: Philox2x32-10 of a seed and a position. The key is the seed's lower half;
    /// the counter is the position with the seed's upper half exclusively or-ed to its own.
    Philox, "philox", 2, Same;
    /// x·y+z in one rounding, floats: what ATen's vectors compute where a product is added.
    Fma, "fma", 3, Same;
    /// `where(c, x, y)`: the first operand is bool, the others have the result's dtype (any).
    Where, "where", 3, Same;
}

impl PwOp {
    /// Whether the operation only moves or compares bits, so that it may also be applied to 16-bit
    /// floats (everything else needs a conversion to `f32` first).
    pub fn moves_only(self) -> bool {
        matches!(self, PwOp::Where)
    }

    /// Whether the operation exists for operands of `dtype`.
    pub fn accepts(self, dtype: DType) -> bool {
        use PwOp::*;
        match self {
            Where => dtype.in_kernels(),
            _ if !dtype.in_kernels() || matches!(dtype, DType::F16 | DType::BF16) => false,
            Reciprocal | Sqrt | Rsqrt | Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Sigmoid | Tanh
            | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh | Erf | Erfc
            | Floor | Ceil | Round | Trunc | IsNan | IsInf | SignBit | Div | Atan2 | Hypot | Copysign
            | Fma => dtype.is_float(),
            Neg | Abs | Sign | Sub | FloorDiv | TruncDiv | Remainder | Fmod | Pow | Fmax | Fmin => {
                dtype != DType::Bool
            }
            Shl | Shr => dtype.is_int(),
            Philox => dtype == DType::I64,
            Not | And | Or | Xor => !dtype.is_float(),
            Add | Mul | Maximum | Minimum | Eq | Ne | Lt | Le | Gt | Ge => true,
        }
    }

    /// Whether `op(x, y) = op(y, x)` bit for bit.
    pub fn commutes(self) -> bool {
        use PwOp::*;
        matches!(self, Add | Mul | Maximum | Minimum | Fmax | Fmin | Eq | Ne | And | Or | Xor | Hypot)
    }

    /// Rough cost relative to an addition, for deciding whether to compute twice or to store.
    pub fn cost(self) -> u32 {
        use PwOp::*;
        match self {
            Exp | Exp2 | Sigmoid | Log | Log2 => 8,
            Tanh | Erf | Expm1 | Log1p | Log10 => 12,
            Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh | Atanh | Erfc | Pow
            | Atan2 | Hypot => 30,
            Div | Sqrt | Rsqrt | Reciprocal => 4,
            FloorDiv | TruncDiv | Remainder | Fmod => 16,
            Philox => 60,
            _ => 1,
        }
    }
}
