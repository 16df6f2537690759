//! The functions that matrix products are made of (see [`lj_schedule::gemm`]).
//!
//! They know no sizes, so a handful serves every product of an element type; the target decides how
//! wide they are. [`micro`] multiplies packed panels, [`pack`] makes them, [`dot`] does without.
//!
//! 16-bit floats go through the same code as `f32`: two of them that follow each other along the
//! summed dim are one 32-bit lane, and one instruction multiplies and adds both pairs in `f32`.

mod dot;
mod micro;
mod pack;

use crate::ir::{IPred, Ir, K, Ty, V};
use crate::{Compiled, Error, Target, in_module};
use lj_ir::DType;
use lj_schedule::gemm::{Function, Tile};

/// The tile of an element type on a target; `None` if it has no kernels there.
pub fn tile(dtype: DType, target: &Target) -> Option<Tile> {
    let lanes = if target.avx512() {
        16
    } else if target.has("avx2") && target.has("fma") {
        8
    } else {
        return None;
    };
    if dtype == DType::BF16 && !target.has("avx512bf16") {
        return None;
    }
    Tile::new(dtype, lanes)
}

/// Compiles all functions of a tile into one object; symbols are in the order of [`Function::ALL`].
///
/// # Errors
/// If LLVM refuses.
pub fn compile(tile: &Tile, target: &Target, want_text: bool) -> Result<Compiled, Error> {
    in_module("lj_gemm", target, want_text, |ir| {
        let mut symbols = vec![];
        for f in Function::ALL {
            let symbol = f.symbol(tile.dtype);
            emit(ir, f, tile, target, &symbol);
            symbols.push(symbol);
        }
        Ok(symbols)
    })
}

fn emit(ir: &Ir<'_>, f: Function, tile: &Tile, target: &Target, symbol: &str) {
    let args = ir.function(symbol, &[ir.ty(K::Ptr, 0)], &target.attributes());
    ir.at_end(ir.block("entry"));
    let g = Gen { ir, tile: *tile, lanes: tile.lanes as u32, args: args[0] };
    match f {
        Function::Micro => g.micro(),
        Function::PackAlong => g.pack_along(),
        Function::PackAcross1 => g.pack_across(1),
        Function::PackAcross2 => g.pack_across(2),
        Function::Dot1 | Function::Dot4 => g.dot(Tile::dot(f)),
    }
    ir.ret();
}

/// A function being emitted.
struct Gen<'a, 'c> {
    ir: &'a Ir<'c>,
    tile: Tile,
    lanes: u32,
    args: V,
}

impl Gen<'_, '_> {
    fn narrow(&self) -> bool {
        self.tile.dtype == DType::BF16
    }

    fn i64(&self, v: i64) -> V {
        self.ir.int(K::I64, 0, v)
    }

    fn floats(&self) -> Ty {
        self.ir.ty(K::F32, self.lanes)
    }

    fn argument(&self, n: usize, ty: Ty) -> V {
        let ir = self.ir;
        ir.load(ty, ir.gep(ir.ty(K::I64, 0), self.args, self.i64(n as i64)), 8)
    }

    /// Argument `n` as a number.
    fn number(&self, n: usize) -> V {
        self.argument(n, self.ir.ty(K::I64, 0))
    }

    /// Argument `n` as a pointer.
    fn pointer(&self, n: usize) -> V {
        self.argument(n, self.ir.ty(K::Ptr, 0))
    }

    /// `p` moved by bytes.
    fn at(&self, p: V, bytes: V) -> V {
        self.ir.gep(self.ir.ty(K::I8, 0), p, bytes)
    }

    /// `p` moved by a constant number of bytes.
    fn off(&self, p: V, bytes: i64) -> V {
        if bytes == 0 { p } else { self.at(p, self.i64(bytes)) }
    }

    fn less(&self, a: V, b: V) -> V {
        self.ir.icmp(IPred::LLVMIntSLT, a, b)
    }

    fn least(&self, a: V, b: V) -> V {
        self.ir.select(self.less(a, b), a, b)
    }

    /// Lanes `i` of `lanes` with `i < count`, for any `count`.
    fn mask(&self, count: V, lanes: u32) -> V {
        let ir = self.ir;
        // Within 32 bits whatever the count.
        let count = self.least(count, self.i64(i64::from(lanes)));
        let low = ir.select(self.less(count, self.i64(0)), self.i64(0), count);
        let low = ir.splat(ir.trunc(low, ir.ty(K::I32, 0)), lanes);
        ir.icmp(IPred::LLVMIntSLT, ir.iota(K::I32, lanes, 0, 1), low)
    }

    /// A load of which only some lanes touch memory; the others are 0.
    fn masked_load(&self, ty: Ty, p: V, mask: V) -> V {
        let ir = self.ir;
        ir.intrinsic("llvm.masked.load", &[ty, ir.ty(K::Ptr, 0)], &[p, mask, ir.zero(ty)])
    }

    fn masked_store(&self, v: V, p: V, mask: V) {
        let ir = self.ir;
        ir.intrinsic("llvm.masked.store", &[ir.type_of(v), ir.ty(K::Ptr, 0)], &[v, p, mask]);
    }

    /// `acc + a·b`, lane by lane; of 16-bit floats both pairs of a lane.
    fn fma(&self, a: V, b: V, acc: V) -> V {
        let ir = self.ir;
        if self.narrow() {
            let pairs = ir.ty(K::BF16, 2 * self.lanes);
            let (a, b) = (ir.bitcast(a, pairs), ir.bitcast(b, pairs));
            return ir.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", &[], &[acc, a, b]);
        }
        ir.intrinsic("llvm.fma", &[self.floats()], &[a, b, acc])
    }

    /// Runs `body(i, carried)` for `i = from, from + step, …` below `to`; it returns what is carried
    /// on. The result is what is carried out.
    fn repeat(
        &self,
        (from, to, step): (V, V, i64),
        init: &[V],
        body: impl FnOnce(V, &[V]) -> Vec<V>,
    ) -> Vec<V> {
        let ir = self.ir;
        let before = ir.current();
        let (top, end) = (ir.block("loop"), ir.block("done"));
        ir.cond_br(self.less(from, to), top, end);
        ir.at_end(top);
        let i = ir.phi(ir.ty(K::I64, 0));
        let phis: Vec<V> = init.iter().map(|v| ir.phi(ir.type_of(*v))).collect();
        let next = body(i, &phis);
        let i2 = ir.add(i, self.i64(step));
        let last = ir.current();
        ir.cond_br(self.less(i2, to), top, end);
        ir.incoming(i, from, before);
        ir.incoming(i, i2, last);
        ir.at_end(end);
        let mut out = vec![];
        for ((phi, start), next) in phis.iter().zip(init).zip(&next) {
            ir.incoming(*phi, *start, before);
            ir.incoming(*phi, *next, last);
            let o = ir.phi(ir.type_of(*start));
            ir.incoming(o, *start, before);
            ir.incoming(o, *next, last);
            out.push(o);
        }
        out
    }

    /// Runs `body` if `condition` holds, else `other`.
    fn branch(&self, condition: V, body: impl FnOnce(), other: impl FnOnce()) {
        let ir = self.ir;
        let (yes, no, end) = (ir.block("yes"), ir.block("no"), ir.block("end"));
        ir.cond_br(condition, yes, no);
        ir.at_end(yes);
        body();
        ir.br(end);
        ir.at_end(no);
        other();
        ir.br(end);
        ir.at_end(end);
    }
}
