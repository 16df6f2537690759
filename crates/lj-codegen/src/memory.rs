//! Loads and stores.
//!
//! In memory bools are bytes (0 is false, stores write 0 or 1) and 16-bit floats are their bits.
//! Inactive lanes touch no memory: they are masked off, or pointed at a slot of our own where a
//! masked instruction does not exist.

use crate::Error;
use crate::convert::kind;
use crate::index::Access;
use crate::ir::{IPred, K, V};
use crate::nest::{Gen, RegVal, Val};
use lj_ir::{DType, Scalar};
use lj_schedule::loopnest::{Index, Mem, Reg};

impl Gen<'_, '_> {
    /// Active lanes of copy `k`: those of the loop and of `mask`. `None`: all.
    fn active(&mut self, mask: Option<&RegVal>, k: usize) -> Result<Option<V>, Error> {
        let tail = self.vector.as_ref().and_then(|v| v.mask);
        let mask = mask.map(|m| self.lanes_of(m, k)).transpose()?;
        Ok(match (tail, mask) {
            (Some(a), Some(b)) => Some(self.ir.and(a, b)),
            (a, b) => a.or(b),
        })
    }

    /// What is in memory as a register value, and back.
    fn loaded(&self, v: V, dtype: DType, lanes: u32) -> V {
        if dtype == DType::Bool { self.ir.icmp(IPred::LLVMIntNE, v, self.ir.int(K::I8, lanes, 0)) } else { v }
    }

    fn stored(&self, v: V, dtype: DType, lanes: u32) -> V {
        if dtype == DType::Bool { self.ir.zext(v, self.ir.ty(K::I8, lanes)) } else { v }
    }

    /// `fallback` as it would stand in memory.
    fn memory_constant(&self, dtype: DType, lanes: u32, s: Scalar) -> V {
        match (dtype, s.cast(dtype)) {
            (DType::Bool, Scalar::Bool(b)) => self.ir.int(K::I8, lanes, i64::from(b)),
            _ => self.constant(dtype, lanes, s),
        }
    }

    pub(crate) fn load(
        &mut self,
        mem: Mem,
        index: &Index,
        mask: Option<Reg>,
        fallback: Scalar,
    ) -> Result<Val, Error> {
        let (access, dtype) = self.access(mem, index)?;
        let mask = mask.map(|m| self.reg(m).cloned()).transpose()?;
        let (scalar, align) = (self.ir.ty(kind(dtype, true), 0), dtype.bytes() as u32);
        if let Access::One(p) = access {
            let Some(mask) = mask else {
                return Ok(Val::One(self.loaded(self.ir.load(scalar, p, align), dtype, 0)));
            };
            let any = match &mask.val {
                Val::One(m) => *m,
                Val::Lanes(l) => {
                    let mut any = l[0];
                    for &m in &l[1..] {
                        any = self.ir.or(any, m);
                    }
                    if let Some(tail) = self.vector.as_ref().and_then(|v| v.mask) {
                        any = self.ir.and(any, tail);
                    }
                    self.any_lane(any)
                }
            };
            let p = self.ir.select(any, p, self.dummy);
            let v = self.loaded(self.ir.load(scalar, p, align), dtype, 0);
            let fall = self.constant(dtype, 0, fallback);
            if matches!(mask.val, Val::One(_)) {
                return Ok(Val::One(self.ir.select(any, v, fall)));
            }
            let lanes = self.lanes;
            let v = self.ir.splat(v, lanes);
            let fall = self.constant(dtype, lanes, fallback);
            let mut out = vec![];
            for k in 0..self.copies() {
                let m = self.lanes_of(&mask, k)?;
                out.push(self.ir.select(m, v, fall));
            }
            return Ok(Val::Lanes(out));
        }
        let lanes = self.lanes;
        let fall = self.memory_constant(dtype, lanes, fallback);
        let mut out = vec![];
        for k in 0..self.copies() {
            let active = self.active(mask.as_ref(), k)?;
            let v = match &access {
                Access::Contig(starts) => self.load_vector(starts[k], active, fall, dtype),
                Access::Strided(starts, stride) => self.load_strided(starts[k], *stride, active, fall, dtype),
                Access::Lanes(p) => self.gather(p[k], active, fall, dtype),
                Access::One(_) => return self.unsupported("a uniform access in lanes"),
            };
            out.push(self.loaded(v, dtype, lanes));
        }
        Ok(Val::Lanes(out))
    }

    fn load_vector(&mut self, p: V, active: Option<V>, fall: V, dtype: DType) -> V {
        let ty = self.ir.ty(kind(dtype, true), self.lanes);
        match active {
            None => self.ir.load(ty, p, dtype.bytes() as u32),
            Some(m) => {
                let ptr = self.ir.ty(K::Ptr, 0);
                self.ir.intrinsic("llvm.masked.load", &[ty, ptr], &[p, m, fall])
            }
        }
    }

    /// Whether gathers and scatters of `dtype` are instructions.
    fn gathers(&self, dtype: DType) -> bool {
        dtype.bytes() >= 4 && self.target.avx512()
    }

    /// The lanes in the opposite order.
    fn reversed(&self, v: V) -> V {
        self.ir.shuffle(v, v, &(0..self.lanes).rev().collect::<Vec<_>>())
    }

    /// Where a vector starts that goes down from `p`.
    fn below(&self, p: V, dtype: DType) -> V {
        let elem = self.ir.ty(kind(dtype, true), 0);
        self.ir.gep(elem, p, self.ir.int(K::I64, 0, 1 - i64::from(self.lanes)))
    }

    fn load_strided(&mut self, p: V, stride: i64, active: Option<V>, fall: V, dtype: DType) -> V {
        let lanes = self.lanes;
        if stride == -1 {
            let active = active.map(|m| self.reversed(m));
            let v = self.load_vector(self.below(p, dtype), active, fall, dtype);
            return self.reversed(v);
        }
        let elem = self.ir.ty(kind(dtype, true), 0);
        if self.shuffles(stride, active.is_some(), dtype) {
            return self.load_spread(p, stride as u32, active, fall, dtype);
        }
        if self.gathers(dtype) {
            let ptrs = self.lane_pointers(p, stride, dtype);
            return self.gather(ptrs, active, fall, dtype);
        }
        let mut out = if active.is_some() { fall } else { self.ir.poison(self.ir.type_of(fall)) };
        for i in 0..lanes {
            let q = self.ir.gep(elem, p, self.ir.int(K::I64, 0, stride * i64::from(i)));
            out = self.load_lane(out, q, i, active, elem, dtype);
        }
        out
    }

    /// Whether accesses at this distance are better made as whole vectors of which some lanes count.
    fn shuffles(&self, stride: i64, masked: bool, dtype: DType) -> bool {
        let most = if self.target.avx512() {
            8
        } else if !masked || self.target.avx2() && dtype.bytes() >= 4 {
            4
        } else {
            0
        };
        (2..=most).contains(&stride)
    }

    /// Which lanes of vector `j` over consecutive memory hold elements of an access at distance
    /// `stride`, spread from those lanes of the access where `active` is on.
    fn spread_mask(&self, j: u32, stride: u32, active: Option<V>) -> V {
        let lanes = self.lanes;
        let on: Vec<V> = (0..lanes)
            .map(|i| self.ir.int(K::I1, 0, i64::from((j * lanes + i).is_multiple_of(stride))))
            .collect();
        let on = self.ir.vector_const(&on);
        let Some(active) = active else { return on };
        let from: Vec<u32> = (0..lanes).map(|i| (j * lanes + i) / stride).collect();
        self.ir.and(self.ir.shuffle(active, active, &from), on)
    }

    /// Every `stride`-th element, from `stride` vectors of consecutive ones. Nothing beyond the last
    /// element is read: the last vector ends with it, or is masked.
    fn load_spread(&mut self, p: V, stride: u32, active: Option<V>, fall: V, dtype: DType) -> V {
        let lanes = self.lanes;
        let (elem, ty) = (self.ir.ty(kind(dtype, true), 0), self.ir.ty(kind(dtype, true), lanes));
        let ptr = self.ir.ty(K::Ptr, 0);
        let mut out = fall;
        for j in 0..stride {
            let last = (lanes - 1) * stride + 1 - lanes;
            let from = if active.is_none() { (j * lanes).min(last) } else { j * lanes };
            let q = self.ir.gep(elem, p, self.ir.int(K::I64, 0, i64::from(from)));
            let v = if active.is_none() {
                self.ir.load(ty, q, dtype.bytes() as u32)
            } else {
                let m = self.spread_mask(j, stride, active);
                self.ir.intrinsic("llvm.masked.load", &[ty, ptr], &[q, m, fall])
            };
            let pick = |i: u32| {
                let at = i * stride;
                if at >= j * lanes && at < (j + 1) * lanes { lanes + at - from } else { i }
            };
            out = self.ir.shuffle(out, v, &(0..lanes).map(pick).collect::<Vec<_>>());
        }
        out
    }

    /// Stores to every `stride`-th element, as masked stores of whole vectors.
    fn store_spread(&mut self, v: V, p: V, stride: u32, active: Option<V>, align: u32) {
        let lanes = self.lanes;
        let elem = self.ir.type_of(self.ir.extract(v, 0));
        for j in 0..stride {
            let from: Vec<u32> = (0..lanes).map(|i| (j * lanes + i) / stride).collect();
            let spread = self.ir.shuffle(v, v, &from);
            let mask = self.spread_mask(j, stride, active);
            let q = self.ir.gep(elem, p, self.ir.int(K::I64, 0, i64::from(j * lanes)));
            self.masked_store(spread, q, mask, align);
        }
    }

    /// The addresses `p + i × stride`. The index is 32 bits wide where it fits: one gather handles
    /// twice the lanes then.
    fn lane_pointers(&self, p: V, stride: i64, dtype: DType) -> V {
        let reach = stride.checked_mul(i64::from(self.lanes));
        let small = reach.is_some_and(|r| i32::try_from(r).is_ok());
        let index = self.ir.iota(if small { K::I32 } else { K::I64 }, self.lanes, 0, stride);
        self.ir.gep(self.ir.ty(kind(dtype, true), 0), p, index)
    }

    fn gather(&mut self, ptrs: V, active: Option<V>, fall: V, dtype: DType) -> V {
        let lanes = self.lanes;
        let elem = self.ir.ty(kind(dtype, true), 0);
        if self.gathers(dtype) {
            let ty = self.ir.ty(kind(dtype, true), lanes);
            let pty = self.ir.ty(K::Ptr, lanes);
            let mask = active.unwrap_or_else(|| self.ir.int(K::I1, lanes, 1));
            return self.ir.intrinsic("llvm.masked.gather", &[ty, pty], &[ptrs, mask, fall]);
        }
        let mut out = if active.is_some() { fall } else { self.ir.poison(self.ir.type_of(fall)) };
        for i in 0..lanes {
            let q = self.ir.extract(ptrs, i);
            out = self.load_lane(out, q, i, active, elem, dtype);
        }
        out
    }

    fn load_lane(&mut self, out: V, p: V, i: u32, active: Option<V>, elem: crate::ir::Ty, dtype: DType) -> V {
        let align = dtype.bytes() as u32;
        match active {
            None => self.ir.insert(out, self.ir.load(elem, p, align), i),
            Some(m) => {
                let m = self.ir.extract(m, i);
                let v = self.ir.load(elem, self.ir.select(m, p, self.dummy), align);
                self.ir.insert(out, self.ir.select(m, v, self.ir.extract(out, i)), i)
            }
        }
    }

    pub(crate) fn store(
        &mut self,
        mem: Mem,
        index: &Index,
        value: Reg,
        mask: Option<Reg>,
    ) -> Result<(), Error> {
        let (access, dtype) = self.access(mem, index)?;
        let value = self.reg(value)?.clone();
        let mask = mask.map(|m| self.reg(m).cloned()).transpose()?;
        let (lanes, align) = (self.lanes, dtype.bytes() as u32);
        if let Access::One(mut p) = access {
            let uniform_mask = mask.as_ref().is_none_or(|m| matches!(m.val, Val::One(_)));
            if let (Val::One(v), true) = (&value.val, uniform_mask) {
                if let Some(Val::One(m)) = mask.map(|m| m.val) {
                    p = self.ir.select(m, p, self.dummy);
                }
                let v = self.stored(*v, dtype, 0);
                self.ir.store(v, p, align);
                return Ok(());
            }
            // Every lane writes the same element; the last active one wins.
            for k in 0..self.copies() {
                let active = self.active(mask.as_ref(), k)?;
                let v = self.lanes_of(&value, k)?;
                let v = self.stored(v, dtype, lanes);
                let ptrs = self.ir.splat(p, lanes);
                self.scatter(v, ptrs, active, dtype);
            }
            return Ok(());
        }
        for k in 0..self.copies() {
            let active = self.active(mask.as_ref(), k)?;
            let v = self.lanes_of(&value, k)?;
            let v = self.stored(v, dtype, lanes);
            match &access {
                Access::Contig(starts) => match active {
                    None => self.ir.store(v, starts[k], align),
                    // LLVM makes a scalar store of a masked one with one constant lane, and gets its
                    // width wrong for 1- and 2-byte elements: it writes beyond the element.
                    Some(m) => self.masked_store(v, starts[k], m, align),
                },
                Access::Strided(starts, -1) => {
                    let (v, start) = (self.reversed(v), self.below(starts[k], dtype));
                    match active.map(|m| self.reversed(m)) {
                        None => self.ir.store(v, start, align),
                        Some(m) => self.masked_store(v, start, m, align),
                    }
                }
                Access::Strided(starts, stride) if self.shuffles(*stride, true, dtype) => {
                    self.store_spread(v, starts[k], *stride as u32, active, align);
                }
                Access::Strided(starts, stride) => {
                    let ptrs = self.lane_pointers(starts[k], *stride, dtype);
                    self.scatter(v, ptrs, active, dtype);
                }
                Access::Lanes(p) => self.scatter(v, p[k], active, dtype),
                Access::One(_) => {}
            }
        }
        Ok(())
    }

    fn masked_store(&mut self, v: V, start: V, mask: V, align: u32) {
        // LLVM makes a scalar store of a masked one with a single constant lane, and gets its width
        // wrong for 1- and 2-byte elements: it would write beyond the element.
        if let Some(lane) = self.ir.only_lane(mask, self.lanes) {
            let one = self.ir.extract(v, lane);
            let at = self.ir.gep(self.ir.type_of(one), start, self.ir.int(K::I64, 0, i64::from(lane)));
            self.ir.store(one, at, align);
            return;
        }
        let (ty, ptr) = (self.ir.type_of(v), self.ir.ty(K::Ptr, 0));
        self.ir.intrinsic("llvm.masked.store", &[ty, ptr], &[v, start, mask]);
    }

    fn scatter(&mut self, v: V, ptrs: V, active: Option<V>, dtype: DType) {
        let lanes = self.lanes;
        if self.gathers(dtype) {
            let (ty, pty) = (self.ir.type_of(v), self.ir.ty(K::Ptr, lanes));
            let mask = active.unwrap_or_else(|| self.ir.int(K::I1, lanes, 1));
            self.ir.intrinsic("llvm.masked.scatter", &[ty, pty], &[v, ptrs, mask]);
            return;
        }
        for i in 0..lanes {
            let mut p = self.ir.extract(ptrs, i);
            if let Some(m) = active {
                p = self.ir.select(self.ir.extract(m, i), p, self.dummy);
            }
            self.ir.store(self.ir.extract(v, i), p, dtype.bytes() as u32);
        }
    }
}
