//! Elementwise operations, with ATen's semantics.

use crate::Error;
use crate::convert::kind;
use crate::ir::{FPred, IPred, K, V};
use crate::nest::Gen;
use lj_ir::{DType, PwOp, Scalar};

impl Gen<'_, '_> {
    /// `op` on operands of `dtype`, scalars if `lanes` is 0. `consts` holds the operands that are
    /// constants.
    pub(crate) fn pw(
        &mut self,
        op: PwOp,
        dtype: DType,
        args: &[V],
        lanes: u32,
        consts: &[Option<Scalar>],
    ) -> Result<V, Error> {
        if op == PwOp::Where {
            return Ok(self.ir.select(args[0], args[1], args[2]));
        }
        match dtype {
            DType::F32 | DType::F64 => self.pw_float(op, dtype, args, lanes, consts),
            DType::Bool => self.pw_bool(op, args),
            _ => self.pw_int(op, dtype, args, lanes),
        }
    }

    fn pw_bool(&mut self, op: PwOp, args: &[V]) -> Result<V, Error> {
        use PwOp::*;
        let ir = self.ir;
        let a = args[0];
        let b = args.get(1).copied().unwrap_or(a);
        Ok(match op {
            Not => ir.not(a),
            Add | Or | Maximum => ir.or(a, b),
            Mul | And | Minimum => ir.and(a, b),
            Xor | Ne => ir.xor(a, b),
            Eq => ir.not(ir.xor(a, b)),
            Lt => ir.and(ir.not(a), b),
            Le => ir.or(ir.not(a), b),
            Gt => ir.and(a, ir.not(b)),
            Ge => ir.or(a, ir.not(b)),
            _ => return self.unsupported(format!("{} of bool", op.name())),
        })
    }

    fn pw_int(&mut self, op: PwOp, dtype: DType, args: &[V], lanes: u32) -> Result<V, Error> {
        use PwOp::*;
        let ir = self.ir;
        let unsigned = dtype == DType::U8;
        let k = kind(dtype, false);
        let c = |v| ir.int(k, lanes, v);
        let a = args[0];
        let b = args.get(1).copied().unwrap_or(a);
        let less = if unsigned { IPred::LLVMIntULT } else { IPred::LLVMIntSLT };
        let bits = dtype.bytes() * 8;
        Ok(match op {
            Neg => ir.neg(a),
            Abs if unsigned => a,
            Abs => ir.select(ir.icmp(less, a, c(0)), ir.neg(a), a),
            Sign if unsigned => ir.select(ir.icmp(IPred::LLVMIntEQ, a, c(0)), c(0), c(1)),
            Sign => {
                let positive = ir.select(ir.icmp(IPred::LLVMIntSGT, a, c(0)), c(1), c(0));
                ir.select(ir.icmp(less, a, c(0)), c(-1), positive)
            }
            Not => ir.not(a),
            Add => ir.add(a, b),
            Sub => ir.sub(a, b),
            Mul => ir.mul(a, b),
            And => ir.and(a, b),
            Or => ir.or(a, b),
            Xor => ir.xor(a, b),
            Maximum | Fmax => ir.select(ir.icmp(less, a, b), b, a),
            Minimum | Fmin => ir.select(ir.icmp(less, b, a), b, a),
            Eq => ir.icmp(IPred::LLVMIntEQ, a, b),
            Ne => ir.icmp(IPred::LLVMIntNE, a, b),
            Lt => ir.icmp(less, a, b),
            Gt => ir.icmp(less, b, a),
            Le => ir.not(ir.icmp(less, b, a)),
            Ge => ir.not(ir.icmp(less, a, b)),
            Shl | Shr => {
                // A negative count is a huge unsigned one.
                let inside = ir.icmp(IPred::LLVMIntULT, b, c(bits));
                if op == Shl {
                    ir.select(inside, ir.shl(a, ir.select(inside, b, c(0))), c(0))
                } else if unsigned {
                    ir.select(inside, ir.lshr(a, ir.select(inside, b, c(0))), c(0))
                } else {
                    ir.ashr(a, ir.select(inside, b, c(bits - 1)))
                }
            }
            TruncDiv => self.truncated_div(a, b, dtype, lanes).0,
            Fmod => self.truncated_div(a, b, dtype, lanes).1,
            FloorDiv | Remainder => {
                let (q, r) = self.truncated_div(a, b, dtype, lanes);
                if unsigned {
                    if op == FloorDiv { q } else { r }
                } else {
                    let differ = ir.icmp(less, ir.xor(r, b), c(0));
                    let fix = ir.and(ir.icmp(IPred::LLVMIntNE, r, c(0)), differ);
                    if op == FloorDiv {
                        ir.sub(q, ir.zext(fix, ir.ty(k, lanes)))
                    } else {
                        ir.select(fix, ir.add(r, b), r)
                    }
                }
            }
            Pow => self.int_pow(a, b, k, lanes),
            Philox => self.philox(a, b, lanes),
            _ => return self.unsupported(format!("{} of {dtype}", op.name())),
        })
    }

    /// Quotient rounded to zero, and remainder. A zero divisor counts as 1 and nothing traps: the
    /// scheduler reports zero divisors by a check of its own. The most negative integer by −1 wraps.
    fn truncated_div(&self, a: V, b: V, dtype: DType, lanes: u32) -> (V, V) {
        let ir = self.ir;
        let k = kind(dtype, false);
        let zero = ir.icmp(IPred::LLVMIntEQ, b, ir.int(k, lanes, 0));
        let b = ir.select(zero, ir.int(k, lanes, 1), b);
        if lanes > 0 && dtype.bytes() <= 4 {
            // Exact: both operands have at most 32 bits.
            let (f, wide) = (ir.ty(K::F64, lanes), ir.ty(K::I64, lanes));
            let float = |v| if dtype == DType::U8 { ir.uitofp(v, f) } else { ir.sitofp(v, f) };
            let q = ir.intrinsic("llvm.trunc", &[f], &[ir.fdiv(float(a), float(b))]);
            let q = ir.trunc(ir.fptosi(q, wide), ir.ty(k, lanes));
            return (q, ir.sub(a, ir.mul(q, b)));
        }
        if dtype == DType::U8 {
            let q = ir.udiv(a, b);
            return (q, ir.sub(a, ir.mul(q, b)));
        }
        let minus_one = ir.icmp(IPred::LLVMIntEQ, b, ir.int(k, lanes, -1));
        let safe = ir.select(minus_one, ir.int(k, lanes, 1), b);
        let q = ir.sdiv(a, safe);
        let q = ir.select(minus_one, ir.neg(a), q);
        (q, ir.sub(a, ir.mul(q, b)))
    }

    /// `aᵇ` by repeated squaring; negative exponents give what ATen's `powi` gives.
    fn int_pow(&mut self, a: V, b: V, k: K, lanes: u32) -> V {
        let ir = self.ir;
        let c = |v| ir.int(k, lanes, v);
        let ty = ir.ty(k, lanes);
        let before = ir.current();
        let (top, done) = (ir.block("pow"), ir.block("powed"));
        ir.br(top);
        ir.at_end(top);
        let (base, exp, out) = (ir.phi(ty), ir.phi(ty), ir.phi(ty));
        ir.incoming(base, a, before);
        ir.incoming(exp, b, before);
        ir.incoming(out, c(1), before);
        let odd = ir.icmp(IPred::LLVMIntNE, ir.and(exp, c(1)), c(0));
        let out2 = ir.select(odd, ir.mul(out, base), out);
        let (base2, exp2) = (ir.mul(base, base), ir.lshr(exp, c(1)));
        ir.incoming(base, base2, top);
        ir.incoming(exp, exp2, top);
        ir.incoming(out, out2, top);
        let more = ir.icmp(IPred::LLVMIntNE, exp2, c(0));
        let more = if lanes > 0 { self.any_lane(more) } else { more };
        ir.cond_br(more, top, done);
        ir.at_end(done);
        // 1 for 1, ±1 for −1, 0 otherwise. (0 to a negative power is refused by the importer.)
        let negative = ir.icmp(IPred::LLVMIntSLT, b, c(0));
        let sign = ir.select(ir.icmp(IPred::LLVMIntNE, ir.and(b, c(1)), c(0)), c(-1), c(1));
        let inverse = ir.select(ir.icmp(IPred::LLVMIntEQ, a, c(-1)), sign, c(0));
        let inverse = ir.select(ir.icmp(IPred::LLVMIntEQ, a, c(1)), c(1), inverse);
        if k == K::I8 { out2 } else { ir.select(negative, inverse, out2) }
    }

    /// Philox2x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) in 64-bit
    /// lanes, whose lower halves hold the words: the product of two words is one multiplication.
    fn philox(&self, seed: V, position: V, lanes: u32) -> V {
        const MULTIPLIER: i64 = 0xD256_D193;
        const WEYL: i64 = 0x9E37_79B9;
        const ROUNDS: usize = 10;
        let ir = self.ir;
        let c = |v| ir.int(K::I64, lanes, v);
        let low = |v| ir.and(v, c(0xFFFF_FFFF));
        let high = |v| ir.lshr(v, c(32));
        let mut key = low(seed);
        let (mut x0, mut x1) = (low(position), ir.xor(high(position), high(seed)));
        for round in 0..ROUNDS {
            if round > 0 {
                key = low(ir.add(key, c(WEYL)));
            }
            let product = ir.mul(x0, c(MULTIPLIER));
            x0 = ir.xor(ir.xor(high(product), key), x1);
            x1 = low(product);
        }
        ir.or(ir.shl(x1, c(32)), x0)
    }

    fn pw_float(
        &mut self,
        op: PwOp,
        dtype: DType,
        args: &[V],
        lanes: u32,
        consts: &[Option<Scalar>],
    ) -> Result<V, Error> {
        use PwOp::*;
        let ir = self.ir;
        let k = kind(dtype, false);
        let ty = ir.ty(k, lanes);
        let c = |v| ir.float(k, lanes, v);
        let a = args[0];
        let b = args.get(1).copied().unwrap_or(a);
        let unary = |name: &str| ir.intrinsic(name, &[ty], &[a]);
        let nan = |v| ir.fcmp(FPred::LLVMRealUNO, v, v);
        let cmp = |p| ir.fcmp(p, a, b);
        Ok(match op {
            Neg => ir.fneg(a),
            Abs => unary("llvm.fabs"),
            Sign => {
                let up = ir.select(ir.fcmp(FPred::LLVMRealOGT, a, c(0.0)), c(1.0), c(0.0));
                ir.select(ir.fcmp(FPred::LLVMRealOLT, a, c(0.0)), c(-1.0), up)
            }
            Reciprocal => ir.fdiv(c(1.0), a),
            Sqrt => unary("llvm.sqrt"),
            Rsqrt => ir.fdiv(c(1.0), unary("llvm.sqrt")),
            Floor => unary("llvm.floor"),
            Ceil => unary("llvm.ceil"),
            Round => unary("llvm.roundeven"),
            Trunc => unary("llvm.trunc"),
            IsNan => nan(a),
            IsInf => ir.fcmp(FPred::LLVMRealOEQ, unary("llvm.fabs"), c(f64::INFINITY)),
            SignBit => {
                let ik = if k == K::F32 { K::I32 } else { K::I64 };
                let bits = ir.bitcast(a, ir.ty(ik, lanes));
                ir.icmp(IPred::LLVMIntSLT, bits, ir.int(ik, lanes, 0))
            }
            Add => ir.fadd(a, b),
            Sub => ir.fsub(a, b),
            Mul => ir.fmul(a, b),
            Div => ir.fdiv(a, b),
            Fma => ir.intrinsic("llvm.fma", &[ty], args),
            TruncDiv => ir.intrinsic("llvm.trunc", &[ty], &[ir.fdiv(a, b)]),
            Maximum | Minimum => {
                // Keeps `a` if it is NaN, then puts in `b` if that is.
                let p = if op == Maximum { FPred::LLVMRealOGT } else { FPred::LLVMRealOLT };
                ir.select(nan(b), b, ir.select(ir.fcmp(p, b, a), b, a))
            }
            Fmax | Fmin => {
                let p = if op == Fmax { FPred::LLVMRealOGT } else { FPred::LLVMRealOLT };
                ir.select(nan(b), a, ir.select(cmp(p), a, b))
            }
            Copysign => ir.intrinsic("llvm.copysign", &[ty], &[a, b]),
            Eq => cmp(FPred::LLVMRealOEQ),
            Ne => cmp(FPred::LLVMRealUNE),
            Lt => cmp(FPred::LLVMRealOLT),
            Le => cmp(FPred::LLVMRealOLE),
            Gt => cmp(FPred::LLVMRealOGT),
            Ge => cmp(FPred::LLVMRealOGE),
            Remainder => {
                let m = self.external_math(Fmod, dtype, &[a, b], lanes)?;
                let fix = self.sign_fix(m, b, k, lanes);
                ir.select(fix, ir.fadd(m, b), m)
            }
            FloorDiv => {
                // ATen's div_floor_floating_vec, with its remedy for what SLEEF's fmod gives when
                // the quotient overflows.
                let m = self.external_math(Fmod, dtype, &[a, b], lanes)?;
                let ratio = ir.fdiv(a, b);
                let infinite =
                    |v| ir.fcmp(FPred::LLVMRealOEQ, ir.intrinsic("llvm.fabs", &[ty], &[v]), c(f64::INFINITY));
                let overflows = ir.and(infinite(ratio), ir.not(infinite(a)));
                let q = ir.fdiv(ir.select(overflows, a, ir.fsub(a, m)), b);
                let fix = self.sign_fix(m, b, k, lanes);
                let q = ir.select(fix, ir.fsub(q, c(1.0)), q);
                let f = ir.intrinsic("llvm.floor", &[ty], &[q]);
                let up = ir.fcmp(FPred::LLVMRealOGT, ir.fsub(q, f), c(0.5));
                let f = ir.select(up, ir.fadd(f, c(1.0)), f);
                let zero = ir.intrinsic("llvm.copysign", &[ty], &[c(0.0), ratio]);
                let q = ir.select(ir.fcmp(FPred::LLVMRealOEQ, q, c(0.0)), zero, f);
                ir.select(ir.fcmp(FPred::LLVMRealOEQ, b, c(0.0)), ratio, q)
            }
            Pow => {
                // Products that are the power to the last bit but one. A root is not: it differs at
                // -0 and -inf, and the importer has made one where ATen does.
                match consts.get(1).copied().flatten().map(Scalar::as_f64) {
                    Some(2.0) => ir.fmul(a, a),
                    Some(3.0) => ir.fmul(ir.fmul(a, a), a),
                    Some(-2.0) => ir.fdiv(c(1.0), ir.fmul(a, a)),
                    Some(-1.0) => ir.fdiv(c(1.0), a),
                    _ => self.external_math(op, dtype, &[a, b], lanes)?,
                }
            }
            Exp if dtype == DType::F32 => self.exp_f32(a, lanes),
            Log if dtype == DType::F32 => self.log_f32(a, lanes),
            Tanh if dtype == DType::F32 => self.tanh_f32(a, lanes),
            Erf if dtype == DType::F32 => self.erf_f32(a, lanes),
            Sigmoid => {
                let e = self.pw_float(Exp, dtype, &[ir.fneg(a)], lanes, &[None])?;
                ir.fdiv(c(1.0), ir.fadd(c(1.0), e))
            }
            Sinh | Cosh | Asinh | Acosh => self.hyperbolic(op, dtype, a, lanes)?,
            Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Tanh | Sin | Cos | Tan | Asin | Acos | Atan
            | Atanh | Erf | Erfc => self.external_math(op, dtype, &[a], lanes)?,
            Fmod | Atan2 | Hypot => self.external_math(op, dtype, &[a, b], lanes)?,
            Not | And | Or | Xor | Shl | Shr | Philox | Where => {
                return self.unsupported(format!("{} of {dtype}", op.name()));
            }
        })
    }

    /// Where a truncated remainder `m` has the other sign than the divisor.
    fn sign_fix(&self, m: V, b: V, k: K, lanes: u32) -> V {
        let ir = self.ir;
        let zero = ir.float(k, lanes, 0.0);
        let nonzero = ir.fcmp(FPred::LLVMRealUNE, m, zero);
        let differ = ir.xor(ir.fcmp(FPred::LLVMRealOLT, b, zero), ir.fcmp(FPred::LLVMRealOLT, m, zero));
        ir.and(nonzero, differ)
    }
}
