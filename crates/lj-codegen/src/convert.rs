//! Constants and conversions between dtypes, as ATen converts.

use crate::ir::{FPred, IPred, K, V};
use crate::nest::Gen;
use lj_ir::{DType, Scalar};

/// The element type `dtype` has in registers, or in memory.
pub(crate) fn kind(dtype: DType, memory: bool) -> K {
    match dtype {
        DType::Bool if !memory => K::I1,
        DType::Bool | DType::U8 | DType::I8 => K::I8,
        DType::I16 | DType::F16 | DType::BF16 => K::I16,
        DType::I32 => K::I32,
        DType::F32 => K::F32,
        DType::F64 => K::F64,
        _ => K::I64,
    }
}

/// The bits of a value that is exactly a half.
fn half_bits(v: f64) -> i64 {
    let sign = i64::from(v.is_sign_negative()) << 15;
    if v.is_nan() {
        return sign | 0x7e00;
    }
    let a = v.abs();
    if a.is_infinite() {
        return sign | 0x7c00;
    }
    if a < 2f64.powi(-14) {
        return sign | (a * 2f64.powi(24)) as i64;
    }
    let e = ((a.to_bits() >> 52) as i64) - 1023;
    let fraction = (a.to_bits() >> 42) as i64 & 0x3ff;
    sign | (e + 15) << 10 | fraction
}

impl Gen<'_, '_> {
    /// `s` as a register value of `dtype`.
    pub(crate) fn constant(&self, dtype: DType, lanes: u32, s: Scalar) -> V {
        let s = s.cast(dtype);
        let k = kind(dtype, false);
        match dtype {
            DType::Bool => self.ir.int(k, lanes, i64::from(s == Scalar::Bool(true))),
            DType::F32 | DType::F64 => self.ir.float(k, lanes, s.as_f64()),
            DType::F16 => self.ir.int(k, lanes, half_bits(s.as_f64())),
            DType::BF16 => self.ir.int(k, lanes, i64::from((s.as_f64() as f32).to_bits() >> 16)),
            _ => self.ir.int(k, lanes, s.as_i64()),
        }
    }

    /// Converts a register value.
    pub(crate) fn convert(&self, v: V, from: DType, to: DType, lanes: u32) -> V {
        use DType::*;
        if from == to {
            return v;
        }
        let ir = self.ir;
        let ty = ir.ty(kind(to, false), lanes);
        let f32_ty = ir.ty(K::F32, lanes);
        match (from, to) {
            (F16, _) => {
                let x = ir.fpext(ir.bitcast(v, ir.ty(K::F16, lanes)), f32_ty);
                self.convert(x, F32, to, lanes)
            }
            (BF16, _) => {
                let i32_ty = ir.ty(K::I32, lanes);
                let bits = ir.shl(ir.zext(v, i32_ty), ir.int(K::I32, lanes, 16));
                self.convert(ir.bitcast(bits, f32_ty), F32, to, lanes)
            }
            (F32, F16) => ir.bitcast(ir.fptrunc(v, ir.ty(K::F16, lanes)), ty),
            (F32, BF16) => self.round_to_bf16(v, lanes),
            // ATen's 16-bit floats are constructed from f32.
            (_, F16 | BF16) => self.convert(self.convert(v, from, F32, lanes), F32, to, lanes),
            (F32, F64) => ir.fpext(v, ty),
            (F64, F32) => ir.fptrunc(v, ty),
            (F32 | F64, Bool) => {
                let zero = ir.float(kind(from, false), lanes, 0.0);
                ir.fcmp(FPred::LLVMRealUNE, v, zero)
            }
            (F32 | F64, _) => self.float_to_int(v, from, to, lanes),
            (Bool | U8, F32 | F64) => ir.uitofp(v, ty),
            (_, F32 | F64) => ir.sitofp(v, ty),
            (_, Bool) => ir.icmp(IPred::LLVMIntNE, v, ir.int(kind(from, false), lanes, 0)),
            _ if to.bytes() < from.bytes() => ir.trunc(v, ty),
            _ if to.bytes() == from.bytes() && from != Bool => v,
            (Bool | U8, _) => ir.zext(v, ty),
            _ => ir.sext(v, ty),
        }
    }

    /// What the conversion instructions of x86 give: out-of-range values and NaN become the most
    /// negative integer. Narrow results are the low bits of a wider conversion, u8 those of i64.
    fn float_to_int(&self, v: V, from: DType, to: DType, lanes: u32) -> V {
        let ir = self.ir;
        let (wide, bits) = match to {
            DType::I64 | DType::U8 => (DType::I64, 63),
            _ => (DType::I32, 31),
        };
        let (fk, ik) = (kind(from, false), kind(wide, false));
        let limit = 2f64.powi(bits);
        // For f64 → i32, values just below −2³¹ still truncate into range.
        let low_open = from == DType::F64 && bits == 31;
        let low = ir.float(fk, lanes, if low_open { -limit - 1.0 } else { -limit });
        let above = if low_open { FPred::LLVMRealOGT } else { FPred::LLVMRealOGE };
        let inside =
            ir.and(ir.fcmp(above, v, low), ir.fcmp(FPred::LLVMRealOLT, v, ir.float(fk, lanes, limit)));
        let safe = ir.select(inside, v, ir.float(fk, lanes, 0.0));
        let i = ir.fptosi(safe, ir.ty(ik, lanes));
        let i = ir.select(inside, i, ir.int(ik, lanes, i64::MIN >> (63 - bits)));
        if wide == to { i } else { ir.trunc(i, ir.ty(kind(to, false), lanes)) }
    }

    /// Rounds to nearest, ties to even; keeps denormals, which the hardware instruction does not.
    fn round_to_bf16(&self, v: V, lanes: u32) -> V {
        let ir = self.ir;
        let i32_ty = ir.ty(K::I32, lanes);
        let c = |x| ir.int(K::I32, lanes, x);
        let bits = ir.bitcast(v, i32_ty);
        let odd = ir.and(ir.lshr(bits, c(16)), c(1));
        let rounded = ir.add(bits, ir.add(odd, c(0x7fff)));
        let nan = ir.fcmp(FPred::LLVMRealUNO, v, v);
        let rounded = ir.select(nan, c(0x7fc0_0000), rounded);
        ir.trunc(ir.lshr(rounded, c(16)), ir.ty(K::I16, lanes))
    }
}
