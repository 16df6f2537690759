//! Transcendental functions: polynomials of our own for the common ones on f32, SLEEF (exported by
//! `libtorch_cpu.so`, the functions eager torch uses) or libm for the rest.
#![allow(clippy::excessive_precision, clippy::unreadable_literal)] // published coefficients

use crate::Error;
use crate::convert::kind;
use crate::ir::{FPred, K, V};
use crate::nest::Gen;
use lj_ir::{DType, PwOp};

/// libm's name of `op` on f64, and what SLEEF appends to it for its accuracy.
fn external_name(op: PwOp) -> Option<(&'static str, &'static str)> {
    use PwOp::*;
    Some(match op {
        Exp => ("exp", "u10"),
        Exp2 => ("exp2", "u10"),
        Expm1 => ("expm1", "u10"),
        Log => ("log", "u10"),
        Log2 => ("log2", "u10"),
        Log10 => ("log10", "u10"),
        Log1p => ("log1p", "u10"),
        Tanh => ("tanh", "u10"),
        Sin => ("sin", "u10"),
        Cos => ("cos", "u10"),
        Tan => ("tan", "u10"),
        Asin => ("asin", "u10"),
        Acos => ("acos", "u10"),
        Atan => ("atan", "u10"),
        Sinh => ("sinh", "u10"),
        Cosh => ("cosh", "u10"),
        Asinh => ("asinh", "u10"),
        Acosh => ("acosh", "u10"),
        Atanh => ("atanh", "u10"),
        Erf => ("erf", "u10"),
        Erfc => ("erfc", "u15"),
        Pow => ("pow", "u10"),
        Fmod => ("fmod", ""),
        Atan2 => ("atan2", "u10"),
        Hypot => ("hypot", "u05"),
        _ => return None,
    })
}

impl Gen<'_, '_> {
    /// `op` by a function outside the object: SLEEF's vector function of the widest size the machine
    /// has, or libm's lane by lane.
    pub(crate) fn external_math(
        &mut self,
        op: PwOp,
        dtype: DType,
        args: &[V],
        lanes: u32,
    ) -> Result<V, Error> {
        let ir = self.ir;
        let Some((stem, accuracy)) = external_name(op) else {
            return self.unsupported(format!("{} of {dtype}", op.name()));
        };
        let k = kind(dtype, false);
        let single = dtype == DType::F32;
        if lanes == 0 {
            let name = format!("{stem}{}", if single { "f" } else { "" });
            return Ok(ir.external(&name, ir.ty(k, 0), args));
        }
        let (bits, isa) = if self.target.avx512() { (512, "avx512f") } else { (256, "avx2") };
        let width = bits / (dtype.bytes() as u32 * 8);
        let vector = self.target.avx512() || self.target.avx2();
        if !vector {
            let mut out = ir.poison(ir.ty(k, lanes));
            for i in 0..lanes {
                let scalars: Vec<V> = args.iter().map(|&a| ir.extract(a, i)).collect();
                let v = self.external_math(op, dtype, &scalars, 0)?;
                out = ir.insert(out, v, i);
            }
            return Ok(out);
        }
        let name = format!("Sleef_{stem}{}{width}_{accuracy}{isa}", if single { "f" } else { "d" });
        let ty = ir.ty(k, width);
        let mut parts: Vec<V> = (0..lanes / width)
            .map(|i| {
                let cut = |&a| if lanes == width { a } else { ir.part(a, i * width, width) };
                let args: Vec<V> = args.iter().map(cut).collect();
                ir.external(&name, ty, &args)
            })
            .collect();
        let mut n = width;
        while parts.len() > 1 {
            parts = parts.chunks(2).map(|p| ir.concat(p[0], p[1], n)).collect();
            n *= 2;
        }
        Ok(parts[0])
    }

    /// Functions whose SLEEF version overflows before the result does: large arguments go another way.
    pub(crate) fn hyperbolic(&mut self, op: PwOp, dtype: DType, x: V, lanes: u32) -> Result<V, Error> {
        let y = self.external_math(op, dtype, &[x], lanes)?;
        if lanes == 0 {
            return Ok(y);
        }
        let ir = self.ir;
        let (k, ty) = (kind(dtype, false), ir.type_of(x));
        let c = |v| ir.float(k, lanes, v);
        let single = dtype == DType::F32;
        let a = ir.intrinsic("llvm.fabs", &[ty], &[x]);
        let (limit, large) = if matches!(op, PwOp::Sinh | PwOp::Cosh) {
            // eᵃ / 2 in two factors.
            let half = ir.fmul(a, c(0.5));
            let e = self.pw(PwOp::Exp, dtype, &[half], lanes, &[None])?;
            (if single { 88.0 } else { 708.0 }, ir.fmul(ir.fmul(e, c(0.5)), e))
        } else {
            let l = self.pw(PwOp::Log, dtype, &[a], lanes, &[None])?;
            (if single { 1e18 } else { 1e150 }, ir.fadd(l, c(std::f64::consts::LN_2)))
        };
        let large = match op {
            PwOp::Sinh | PwOp::Asinh => ir.intrinsic("llvm.copysign", &[ty], &[large, x]),
            _ => large,
        };
        // acosh is defined on one side only.
        let beyond = if op == PwOp::Acosh { x } else { a };
        Ok(ir.select(ir.fcmp(FPred::LLVMRealOGT, beyond, c(limit)), large, y))
    }

    fn f32_const(&self, lanes: u32, v: f32) -> V {
        self.ir.float(K::F32, lanes, f64::from(v))
    }

    fn fma(&self, a: V, b: V, c: V) -> V {
        self.ir.intrinsic("llvm.fma", &[self.ir.type_of(a)], &[a, b, c])
    }

    /// Horner's scheme, highest coefficient first.
    fn poly(&self, x: V, lanes: u32, coefs: &[f32]) -> V {
        let mut p = self.f32_const(lanes, coefs[0]);
        for &c in &coefs[1..] {
            p = self.fma(p, x, self.f32_const(lanes, c));
        }
        p
    }

    /// `y × 2ⁿ` for an integral f32 `n` in −150..=128; NaN stays NaN.
    fn scale(&self, y: V, n: V, lanes: u32) -> V {
        let ir = self.ir;
        if lanes == 16 && self.target.avx512() {
            let ones = ir.int(K::I16, 0, -1);
            let round_nearest = ir.int(K::I32, 0, 4);
            return ir.intrinsic("llvm.x86.avx512.mask.scalef.ps.512", &[], &[y, n, y, ones, round_nearest]);
        }
        // In two steps, so that denormal results are rounded once.
        let i32_ty = ir.ty(K::I32, lanes);
        let c = |v| ir.int(K::I32, lanes, v);
        let ordered = ir.fcmp(FPred::LLVMRealORD, n, n);
        let n = ir.fptosi(ir.select(ordered, n, self.f32_const(lanes, 0.0)), i32_ty);
        let half = ir.ashr(n, c(1));
        let power = |e| ir.bitcast(ir.shl(ir.add(e, c(127)), c(23)), ir.ty(K::F32, lanes));
        ir.fmul(ir.fmul(y, power(half)), power(ir.sub(n, half)))
    }

    /// eˣ: 1 ulp, denormal results included (Cephes' polynomial on ±ln 2 / 2).
    pub(crate) fn exp_f32(&mut self, x: V, lanes: u32) -> V {
        let ir = self.ir;
        let c = |v| self.f32_const(lanes, v);
        // Comparisons with NaN are false: it passes.
        let x = ir.select(ir.fcmp(FPred::LLVMRealOGT, x, c(89.0)), c(89.0), x);
        let x = ir.select(ir.fcmp(FPred::LLVMRealOLT, x, c(-104.0)), c(-104.0), x);
        let ty = ir.type_of(x);
        let n = ir.intrinsic("llvm.roundeven", &[ty], &[ir.fmul(x, c(std::f32::consts::LOG2_E))]);
        let r = self.fma(n, c(-0.693359375), x);
        let r = self.fma(n, c(2.12194440e-4), r);
        let p = self.poly(
            r,
            lanes,
            &[
                1.9875691500e-4,
                1.3981999507e-3,
                8.3334519073e-3,
                4.1665795894e-2,
                1.6666665459e-1,
                5.0000001201e-1,
            ],
        );
        let y = self.fma(ir.fmul(r, r), p, r);
        let y = ir.fadd(y, c(1.0));
        self.scale(y, n, lanes)
    }

    /// ln x: below 1 ulp (Cephes' polynomial on √½..√2).
    pub(crate) fn log_f32(&mut self, x: V, lanes: u32) -> V {
        let ir = self.ir;
        let (f, i) = (ir.ty(K::F32, lanes), ir.ty(K::I32, lanes));
        let c = |v| self.f32_const(lanes, v);
        let ci = |v| ir.int(K::I32, lanes, v);
        // Denormals are scaled up.
        let tiny = ir.fcmp(FPred::LLVMRealOLT, x, c(f32::MIN_POSITIVE));
        let y = ir.select(tiny, ir.fmul(x, c(8_388_608.0)), x);
        // Split so that the fraction is in √½..√2: 0x3f3504f3 are the bits of √½.
        let root = ci(0x3f35_04f3);
        let bits = ir.sub(ir.bitcast(y, i), root);
        let e = ir.add(ir.ashr(bits, ci(23)), ir.select(tiny, ci(-23), ci(0)));
        let m = ir.bitcast(ir.add(ir.and(bits, ci(0x007f_ffff)), root), f);
        let e = ir.sitofp(e, f);
        let z = ir.fsub(m, c(1.0));
        let z2 = ir.fmul(z, z);
        let p = self.poly(
            z,
            lanes,
            &[
                7.0376836292e-2,
                -1.1514610310e-1,
                1.1676998740e-1,
                -1.2420140846e-1,
                1.4249322787e-1,
                -1.6668057665e-1,
                2.0000714765e-1,
                -2.4999993993e-1,
                3.3333331174e-1,
            ],
        );
        let p = ir.fmul(ir.fmul(p, z), z2);
        let p = self.fma(e, c(-2.12194440e-4), p);
        let p = self.fma(z2, c(-0.5), p);
        let r = self.fma(e, c(0.693359375), ir.fadd(z, p));
        // Specials: negative and NaN give NaN, 0 gives −∞, +∞ itself.
        let r = ir.select(ir.fcmp(FPred::LLVMRealOEQ, x, c(0.0)), c(f32::NEG_INFINITY), r);
        let r = ir.select(ir.fcmp(FPred::LLVMRealOEQ, x, c(f32::INFINITY)), x, r);
        ir.select(ir.fcmp(FPred::LLVMRealULT, x, c(0.0)), c(f32::NAN), r)
    }

    /// tanh x: 1.5 ulp.
    pub(crate) fn tanh_f32(&mut self, x: V, lanes: u32) -> V {
        let ir = self.ir;
        let ty = ir.type_of(x);
        let a = ir.intrinsic("llvm.fabs", &[ty], &[x]);
        let e = self.exp_f32(ir.fadd(a, a), lanes);
        let c = |v| self.f32_const(lanes, v);
        let large = ir.fsub(c(1.0), ir.fdiv(c(2.0), ir.fadd(e, c(1.0))));
        let z = ir.fmul(a, a);
        let p = self.poly(
            z,
            lanes,
            &[-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1],
        );
        let small = self.fma(ir.fmul(p, z), a, a);
        let r = ir.select(ir.fcmp(FPred::LLVMRealOGE, a, c(0.625)), large, small);
        ir.intrinsic("llvm.copysign", &[ty], &[r, x])
    }

    /// erf x: 1 ulp (N. Juffa's polynomials).
    pub(crate) fn erf_f32(&mut self, x: V, lanes: u32) -> V {
        let ir = self.ir;
        let ty = ir.type_of(x);
        let t = ir.intrinsic("llvm.fabs", &[ty], &[x]);
        let s = ir.fmul(x, x);
        let c = |g: &Self, v| g.f32_const(lanes, v);
        // 1 − exp(−t·q(t)) beyond 475/512.
        let r = self.poly(t, lanes, &[-1.72853470e-5, 3.83197126e-4]);
        let u = self.poly(t, lanes, &[-3.88396438e-3, 2.42546219e-2]);
        let r = self.fma(r, s, u);
        let r = self.fma(r, t, c(self, -1.06777877e-1));
        let r = self.fma(r, t, c(self, -6.34846687e-1));
        let r = self.fma(r, t, c(self, -1.28717512e-1));
        let r = self.fma(r, t, ir.fneg(t));
        let e = self.exp_f32(r, lanes);
        let large = ir.fsub(c(self, 1.0), e);
        let large = ir.intrinsic("llvm.copysign", &[ty], &[large, x]);
        let p = self.poly(
            s,
            lanes,
            &[-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1],
        );
        let small = self.fma(p, x, x);
        ir.select(ir.fcmp(FPred::LLVMRealOGT, t, c(self, 0.927734375)), large, small)
    }
}
