//! Element types, devices and constants.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! dtypes {
    ($($variant:ident, $name:literal, $torch:literal, $code:literal, $bytes:literal;)*) => {
        /// An element type. Only those for which [`DType::in_kernels`] holds can be computed on by
        /// our own kernels; the others pass through to ATen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub enum DType { $($variant),* }

        impl DType {
            /// Every element type.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// The short name used in `.lj` text, such as `f32`.
            pub fn name(self) -> &'static str { match self { $(DType::$variant => $name),* } }

            /// The name of the dtype in torch without the module, such as `float32`.
            pub fn torch_name(self) -> &'static str { match self { $(DType::$variant => $torch),* } }

            /// The value of `c10::ScalarType`.
            pub fn torch_code(self) -> i32 { match self { $(DType::$variant => $code),* } }

            /// Size of one element in bytes.
            pub fn bytes(self) -> i64 { match self { $(DType::$variant => $bytes),* } }

            /// The inverse of [`DType::name`].
            pub fn from_name(name: &str) -> Option<DType> {
                match name { $($name => Some(DType::$variant),)* _ => None }
            }

            /// The inverse of [`DType::torch_name`].
            pub fn from_torch_name(name: &str) -> Option<DType> {
                match name { $($torch => Some(DType::$variant),)* _ => None }
            }

            /// The inverse of [`DType::torch_code`].
            pub fn from_torch_code(code: i32) -> Option<DType> {
                match code { $($code => Some(DType::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    U8, "u8", "uint8", 0, 1;
    I8, "i8", "int8", 1, 1;
    I16, "i16", "int16", 2, 2;
    I32, "i32", "int32", 3, 4;
    I64, "i64", "int64", 4, 8;
    F16, "f16", "float16", 5, 2;
    F32, "f32", "float32", 6, 4;
    F64, "f64", "float64", 7, 8;
    C32, "c32", "complex32", 8, 4;
    C64, "c64", "complex64", 9, 8;
    C128, "c128", "complex128", 10, 16;
    Bool, "bool", "bool", 11, 1;
    BF16, "bf16", "bfloat16", 15, 2;
    F8E5M2, "f8e5m2", "float8_e5m2", 23, 1;
    F8E4M3FN, "f8e4m3fn", "float8_e4m3fn", 24, 1;
    U16, "u16", "uint16", 27, 2;
    U32, "u32", "uint32", 28, 4;
    U64, "u64", "uint64", 29, 8;
}

impl DType {
    /// Whether our own kernels can load, store and compute on this type.
    pub fn in_kernels(self) -> bool {
        use DType::*;
        matches!(self, U8 | I8 | I16 | I32 | I64 | F16 | BF16 | F32 | F64 | Bool)
    }

    /// The type as which kernels move elements of this one: itself where they compute on it, else
    /// the integer of its width. No kernel moves 16 bytes at once: `c128` stays what it is.
    #[must_use]
    pub fn moved(self) -> DType {
        match self {
            d if d.in_kernels() => d,
            DType::C128 => self,
            d => match d.bytes() {
                1 => DType::I8,
                2 => DType::I16,
                4 => DType::I32,
                _ => DType::I64,
            },
        }
    }

    /// Whether this is a real floating-point type.
    pub fn is_float(self) -> bool {
        use DType::*;
        matches!(self, F16 | BF16 | F32 | F64 | F8E5M2 | F8E4M3FN)
    }

    /// Whether this is an integer type; `bool` is not.
    pub fn is_int(self) -> bool {
        use DType::*;
        matches!(self, U8 | I8 | I16 | I32 | I64 | U16 | U32 | U64)
    }

    /// Whether this is a signed integer type.
    pub fn is_signed_int(self) -> bool {
        use DType::*;
        matches!(self, I8 | I16 | I32 | I64)
    }

    /// Whether this is a complex type.
    pub fn is_complex(self) -> bool {
        use DType::*;
        matches!(self, C32 | C64 | C128)
    }

    /// The type arithmetic on this type is done in: `f32` for the 16-bit floats, itself otherwise
    /// (ATen's `opmath_type` on the CPU).
    #[must_use]
    pub fn compute(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }

    /// Whether converting from `self` to `to` and back gives back every value.
    pub fn widens_exactly_to(self, to: DType) -> bool {
        use DType::*;
        self == to
            || matches!(
                (self, to),
                (F16 | BF16, F32 | F64)
                    | (F32, F64)
                    | (Bool, U8 | I8 | I16 | I32 | I64 | F16 | BF16 | F32 | F64)
                    | (U8, I16 | I32 | I64 | F16 | F32 | F64)
                    | (I8, I16 | I32 | I64 | F16 | F32 | F64 | BF16)
                    | (I16, I32 | I64 | F32 | F64)
                    | (I32, I64 | F64)
            )
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a tensor lives. The index is meaningful for accelerators only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Device {
    /// Host memory.
    Cpu,
    /// An NVIDIA GPU.
    Cuda(u32),
    /// Shapes without data.
    Meta,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(i) => write!(f, "cuda:{i}"),
            Device::Meta => f.write_str("meta"),
        }
    }
}

/// A constant. Floats are kept as bits, so that equality, hashing and ordering are total and NaN
/// payloads survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// The bits of an `f64`.
    Float(u64),
}

impl Scalar {
    /// A floating-point constant.
    pub fn float(v: f64) -> Scalar {
        Scalar::Float(v.to_bits())
    }

    /// The value as `f64`.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::Float(bits) => f64::from_bits(bits),
        }
    }

    /// The value as `i64`; floats are truncated.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => i64::from(b),
            Scalar::Int(i) => i,
            Scalar::Float(bits) => f64::from_bits(bits) as i64,
        }
    }

    /// The constant converted to `dtype` as ATen's `fill_` would, in canonical form (`Bool` for
    /// bool, wrapped `Int` for integers, `Float` rounded to the precision of a float type).
    #[must_use]
    pub fn cast(self, dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(self.as_f64() != 0.0),
            DType::I8 => Scalar::Int(i64::from(self.as_i64() as i8)),
            DType::U8 => Scalar::Int(i64::from(self.as_i64() as u8)),
            DType::I16 => Scalar::Int(i64::from(self.as_i64() as i16)),
            DType::I32 => Scalar::Int(i64::from(self.as_i64() as i32)),
            DType::I64 => Scalar::Int(self.as_i64()),
            DType::F32 => Scalar::float(f64::from(self.as_f64() as f32)),
            DType::BF16 => Scalar::float(f64::from(round_bf16(self.as_f64() as f32))),
            DType::F16 => Scalar::float(round_f16(f64::from(self.as_f64() as f32))),
            _ => Scalar::float(self.as_f64()),
        }
    }
}

/// Rounds to the nearest bfloat16, ties to even.
fn round_bf16(v: f32) -> f32 {
    if v.is_nan() {
        return v;
    }
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    f32::from_bits(rounded)
}

/// Rounds to the nearest IEEE half, ties to even.
fn round_f16(v: f64) -> f64 {
    if !v.is_finite() || v == 0.0 {
        return v;
    }
    let exponent = (v.abs().log2().floor() as i32).clamp(-14, 15);
    let unit = 2f64.powi(exponent - 10);
    let rounded = (v / unit).round_ties_even() * unit;
    if rounded.abs() > 65504.0 { f64::INFINITY.copysign(v) } else { rounded }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(bits) => {
                let v = f64::from_bits(*bits);
                if v.is_nan() {
                    f.write_str("nan")
                } else {
                    // `{:?}` prints the shortest digits that read back as the same f64.
                    write!(f, "{v:?}")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_round_trip() {
        for &d in DType::ALL {
            assert_eq!(DType::from_name(d.name()), Some(d));
            assert_eq!(DType::from_torch_name(d.torch_name()), Some(d));
            assert_eq!(DType::from_torch_code(d.torch_code()), Some(d));
        }
    }

    #[test]
    fn constants_convert_as_fill_does() {
        assert_eq!(Scalar::Int(300).cast(DType::U8), Scalar::Int(44));
        assert_eq!(Scalar::float(0.1).cast(DType::BF16), Scalar::float(0.100_097_656_25));
        assert_eq!(Scalar::float(0.1).cast(DType::F16), Scalar::float(0.099_975_585_937_5));
        assert_eq!(Scalar::float(1e9).cast(DType::F16), Scalar::float(f64::INFINITY));
        assert_eq!(Scalar::float(1e-8).cast(DType::F16), Scalar::float(0.0));
        assert_eq!(Scalar::float(6e-8).cast(DType::F16), Scalar::float(5.960_464_477_539_063e-8));
        assert_eq!(Scalar::float(f64::NAN).cast(DType::Bool), Scalar::Bool(true));
    }
}
