//! A small instruction builder over LLVM's C interface.
//!
//! inkwell gives scalars and vectors different Rust types; the code generator emits the same
//! arithmetic for both, so it works on untyped values here. Types are checked by LLVM's verifier
//! before anything is emitted (see [`crate::compile`]).
//!
//! Every method appends to the block the builder stands at. All values belong to the context the
//! [`Ir`] was made for, and live as long as it.
#![allow(unsafe_code)]
// The whole C interface is in reach here; every method is called on the builder, used or not.
#![allow(clippy::wildcard_imports, clippy::unused_self)]

use inkwell::context::{AsContextRef, Context};
use inkwell::llvm_sys::core::*;
use inkwell::llvm_sys::prelude::*;
use inkwell::llvm_sys::{LLVMIntPredicate, LLVMRealPredicate};
use inkwell::module::Module;
use std::collections::BTreeSet;
use std::ffi::{CString, c_uint};

pub(crate) use inkwell::llvm_sys::LLVMIntPredicate as IPred;
pub(crate) use inkwell::llvm_sys::LLVMRealPredicate as FPred;

/// A value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct V(LLVMValueRef);

/// A basic block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block(LLVMBasicBlockRef);

/// A type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ty(LLVMTypeRef);

/// Element types of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum K {
    I1,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
    Ptr,
}

/// A builder positioned in a function of a module.
pub(crate) struct Ir<'a> {
    context: LLVMContextRef,
    module: LLVMModuleRef,
    builder: LLVMBuilderRef,
    alive: std::marker::PhantomData<&'a ()>,
    function: std::cell::Cell<LLVMValueRef>,
}

impl Drop for Ir<'_> {
    fn drop(&mut self) {
        // SAFETY: the builder was made by `new` and is not used after this.
        unsafe { LLVMDisposeBuilder(self.builder) }
    }
}

macro_rules! binary {
    ($($name:ident = $f:ident;)*) => {
        $(pub(crate) fn $name(&self, a: V, b: V) -> V {
            // SAFETY: both values belong to this context; the verifier checks their types.
            V(unsafe { $f(self.builder, a.0, b.0, c"".as_ptr()) })
        })*
    };
}

macro_rules! cast {
    ($($name:ident = $f:ident;)*) => {
        $(pub(crate) fn $name(&self, a: V, to: Ty) -> V {
            // SAFETY: value and type belong to this context; the verifier checks their types.
            V(unsafe { $f(self.builder, a.0, to.0, c"".as_ptr()) })
        })*
    };
}

impl<'a> Ir<'a> {
    pub(crate) fn new<'c>(context: &'c Context, module: &'a Module<'c>) -> Ir<'a> {
        let context = context.as_ctx_ref();
        // SAFETY: the module keeps the context alive for 'a.
        let builder = unsafe { LLVMCreateBuilderInContext(context) };
        let (module, alive) = (module.as_mut_ptr(), std::marker::PhantomData);
        Ir { context, module, builder, alive, function: std::cell::Cell::new(std::ptr::null_mut()) }
    }

    binary! {
        add = LLVMBuildAdd; sub = LLVMBuildSub; mul = LLVMBuildMul;
        sdiv = LLVMBuildSDiv; udiv = LLVMBuildUDiv;
        and = LLVMBuildAnd; or = LLVMBuildOr; xor = LLVMBuildXor;
        shl = LLVMBuildShl; ashr = LLVMBuildAShr; lshr = LLVMBuildLShr;
        fadd = LLVMBuildFAdd; fsub = LLVMBuildFSub; fmul = LLVMBuildFMul; fdiv = LLVMBuildFDiv;
    }

    cast! {
        trunc = LLVMBuildTrunc; sext = LLVMBuildSExt; zext = LLVMBuildZExt;
        fptrunc = LLVMBuildFPTrunc; fpext = LLVMBuildFPExt;
        fptosi = LLVMBuildFPToSI; sitofp = LLVMBuildSIToFP; uitofp = LLVMBuildUIToFP;
        bitcast = LLVMBuildBitCast;
    }

    pub(crate) fn fneg(&self, a: V) -> V {
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildFNeg(self.builder, a.0, c"".as_ptr()) })
    }

    pub(crate) fn neg(&self, a: V) -> V {
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildNeg(self.builder, a.0, c"".as_ptr()) })
    }

    pub(crate) fn not(&self, a: V) -> V {
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildNot(self.builder, a.0, c"".as_ptr()) })
    }

    pub(crate) fn icmp(&self, p: IPred, a: V, b: V) -> V {
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildICmp(self.builder, p as LLVMIntPredicate, a.0, b.0, c"".as_ptr()) })
    }

    pub(crate) fn fcmp(&self, p: FPred, a: V, b: V) -> V {
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildFCmp(self.builder, p as LLVMRealPredicate, a.0, b.0, c"".as_ptr()) })
    }

    pub(crate) fn select(&self, c: V, a: V, b: V) -> V {
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildSelect(self.builder, c.0, a.0, b.0, c"".as_ptr()) })
    }

    // ---- types -----------------------------------------------------------------------------

    /// `kind`, or `<lanes x kind>` unless `lanes` is 0.
    pub(crate) fn ty(&self, kind: K, lanes: u32) -> Ty {
        // SAFETY: the context is alive; element types are valid in vectors.
        unsafe {
            let c = self.context;
            let e = match kind {
                K::I1 => LLVMInt1TypeInContext(c),
                K::I8 => LLVMInt8TypeInContext(c),
                K::I16 => LLVMInt16TypeInContext(c),
                K::I32 => LLVMInt32TypeInContext(c),
                K::I64 => LLVMInt64TypeInContext(c),
                K::F16 => LLVMHalfTypeInContext(c),
                K::BF16 => LLVMBFloatTypeInContext(c),
                K::F32 => LLVMFloatTypeInContext(c),
                K::F64 => LLVMDoubleTypeInContext(c),
                K::Ptr => LLVMPointerTypeInContext(c, 0),
            };
            Ty(if lanes == 0 { e } else { LLVMVectorType(e, lanes) })
        }
    }

    /// An integer of `bits` bits.
    pub(crate) fn int_ty(&self, bits: u32) -> Ty {
        // SAFETY: the context is alive.
        Ty(unsafe { LLVMIntTypeInContext(self.context, bits) })
    }

    pub(crate) fn type_of(&self, v: V) -> Ty {
        // SAFETY: the value is alive.
        Ty(unsafe { LLVMTypeOf(v.0) })
    }

    // ---- constants -------------------------------------------------------------------------

    /// An integer constant, in every lane.
    pub(crate) fn int(&self, kind: K, lanes: u32, v: i64) -> V {
        // SAFETY: an integer type of this context.
        let e = V(unsafe { LLVMConstInt(self.ty(kind, 0).0, v as u64, 1) });
        self.splat_const(e, lanes)
    }

    /// A float constant, in every lane.
    pub(crate) fn float(&self, kind: K, lanes: u32, v: f64) -> V {
        // SAFETY: a float type of this context.
        let e = V(unsafe { LLVMConstReal(self.ty(kind, 0).0, v) });
        self.splat_const(e, lanes)
    }

    fn splat_const(&self, e: V, lanes: u32) -> V {
        if lanes == 0 { e } else { self.vector_const(&vec![e; lanes as usize]) }
    }

    /// A vector of scalar constants.
    pub(crate) fn vector_const(&self, elems: &[V]) -> V {
        let mut raw: Vec<LLVMValueRef> = elems.iter().map(|e| e.0).collect();
        // SAFETY: the elements are constants of one type.
        V(unsafe { LLVMConstVector(raw.as_mut_ptr(), raw.len() as c_uint) })
    }

    pub(crate) fn poison(&self, ty: Ty) -> V {
        // SAFETY: a type of this context.
        V(unsafe { LLVMGetPoison(ty.0) })
    }

    pub(crate) fn zero(&self, ty: Ty) -> V {
        // SAFETY: a type of this context.
        V(unsafe { LLVMConstNull(ty.0) })
    }

    pub(crate) fn is_const(&self, v: V) -> bool {
        // SAFETY: the value is alive.
        unsafe { LLVMIsConstant(v.0) != 0 }
    }

    /// `start, start+step, ...` as constants.
    pub(crate) fn iota(&self, kind: K, lanes: u32, start: i64, step: i64) -> V {
        let elems: Vec<V> = (0..i64::from(lanes))
            .map(|i| self.int(kind, 0, start.wrapping_add(i.wrapping_mul(step))))
            .collect();
        self.vector_const(&elems)
    }

    // ---- vectors ---------------------------------------------------------------------------

    /// `v` in every lane.
    pub(crate) fn splat(&self, v: V, lanes: u32) -> V {
        if self.is_const(v) {
            return self.vector_const(&vec![v; lanes as usize]);
        }
        // SAFETY: the vector type has the element type of `v`.
        let ty = Ty(unsafe { LLVMVectorType(LLVMTypeOf(v.0), lanes) });
        let one = self.insert(self.poison(ty), v, 0);
        self.shuffle(one, one, &vec![0; lanes as usize])
    }

    pub(crate) fn insert(&self, vec: V, v: V, lane: u32) -> V {
        let i = self.int(K::I32, 0, i64::from(lane));
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildInsertElement(self.builder, vec.0, v.0, i.0, c"".as_ptr()) })
    }

    /// The only lane in which a constant mask is true.
    pub(crate) fn only_lane(&self, mask: V, lanes: u32) -> Option<u32> {
        if !self.is_const(mask) {
            return None;
        }
        let on = |lane: u32| {
            // SAFETY: `mask` is a constant vector of `lanes` integers.
            let bit = unsafe { LLVMGetAggregateElement(mask.0, lane) };
            // SAFETY: the element is checked to exist and to be a constant integer.
            !bit.is_null()
                && unsafe { !LLVMIsAConstantInt(bit).is_null() && LLVMConstIntGetZExtValue(bit) != 0 }
        };
        let mut active = (0..lanes).filter(|&i| on(i));
        match (active.next(), active.next()) {
            (Some(lane), None) => Some(lane),
            _ => None,
        }
    }

    pub(crate) fn extract(&self, vec: V, lane: u32) -> V {
        let i = self.int(K::I32, 0, i64::from(lane));
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildExtractElement(self.builder, vec.0, i.0, c"".as_ptr()) })
    }

    pub(crate) fn shuffle(&self, a: V, b: V, lanes: &[u32]) -> V {
        let mask: Vec<V> = lanes.iter().map(|&i| self.int(K::I32, 0, i64::from(i))).collect();
        let mask = self.vector_const(&mask);
        // SAFETY: as for `binary!`; the mask is a constant vector.
        V(unsafe { LLVMBuildShuffleVector(self.builder, a.0, b.0, mask.0, c"".as_ptr()) })
    }

    /// Lanes `from .. from + n`.
    pub(crate) fn part(&self, v: V, from: u32, n: u32) -> V {
        self.shuffle(v, v, &(from..from + n).collect::<Vec<_>>())
    }

    /// The lanes of `a` followed by those of `b`, each with `n` lanes.
    pub(crate) fn concat(&self, a: V, b: V, n: u32) -> V {
        self.shuffle(a, b, &(0..2 * n).collect::<Vec<_>>())
    }

    // ---- memory ----------------------------------------------------------------------------

    pub(crate) fn load(&self, ty: Ty, p: V, align: u32) -> V {
        // SAFETY: as for `binary!`.
        unsafe {
            let v = LLVMBuildLoad2(self.builder, ty.0, p.0, c"".as_ptr());
            LLVMSetAlignment(v, align);
            V(v)
        }
    }

    pub(crate) fn store(&self, v: V, p: V, align: u32) {
        // SAFETY: as for `binary!`.
        unsafe { LLVMSetAlignment(LLVMBuildStore(self.builder, v.0, p.0), align) }
    }

    /// `p + index` elements of type `elem`; a vector of pointers if `index` is a vector.
    pub(crate) fn gep(&self, elem: Ty, p: V, index: V) -> V {
        let mut i = [index.0];
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildGEP2(self.builder, elem.0, p.0, i.as_mut_ptr(), 1, c"".as_ptr()) })
    }

    /// A stack slot in the current block (which must be the entry block).
    pub(crate) fn alloca(&self, ty: Ty) -> V {
        // SAFETY: as for `binary!`.
        V(unsafe { LLVMBuildAlloca(self.builder, ty.0, c"".as_ptr()) })
    }

    // ---- calls -----------------------------------------------------------------------------

    /// Calls the intrinsic `name`, overloaded on `types`.
    pub(crate) fn intrinsic(&self, name: &str, types: &[Ty], args: &[V]) -> V {
        let mut tys: Vec<LLVMTypeRef> = types.iter().map(|t| t.0).collect();
        // SAFETY: the name is that of an intrinsic (`LLVMLookupIntrinsicID` gives 0 otherwise, which
        // is asserted), the types are those it is overloaded on.
        unsafe {
            let id = LLVMLookupIntrinsicID(name.as_ptr().cast(), name.len());
            assert!(id != 0, "unknown intrinsic {name}");
            let f = LLVMGetIntrinsicDeclaration(self.module, id, tys.as_mut_ptr(), tys.len());
            self.call_value(f, args)
        }
    }

    /// Calls the external function `name`, whose types are those of `args` and `result`.
    pub(crate) fn external(&self, name: &str, result: Ty, args: &[V]) -> V {
        let c = CString::new(name).unwrap_or_default();
        // SAFETY: values and types belong to this context; a function of that name, once declared,
        // always has the same type because names determine it.
        unsafe {
            let mut f = LLVMGetNamedFunction(self.module, c.as_ptr());
            if f.is_null() {
                let mut params: Vec<LLVMTypeRef> = args.iter().map(|a| LLVMTypeOf(a.0)).collect();
                let ty = LLVMFunctionType(result.0, params.as_mut_ptr(), params.len() as c_uint, 0);
                f = LLVMAddFunction(self.module, c.as_ptr(), ty);
                self.attributes(f, &[("nounwind", "")]);
            }
            self.call_value(f, args)
        }
    }

    unsafe fn call_value(&self, f: LLVMValueRef, args: &[V]) -> V {
        let mut raw: Vec<LLVMValueRef> = args.iter().map(|a| a.0).collect();
        // SAFETY: `f` is a function; the verifier checks the argument types.
        unsafe {
            let ty = LLVMGlobalGetValueType(f);
            V(LLVMBuildCall2(self.builder, ty, f, raw.as_mut_ptr(), raw.len() as c_uint, c"".as_ptr()))
        }
    }

    // ---- functions and control flow --------------------------------------------------------

    /// Starts the function `name(params) -> void` and returns its parameters.
    pub(crate) fn function(&self, name: &str, params: &[Ty], attributes: &[(&str, &str)]) -> Vec<V> {
        let c = CString::new(name).unwrap_or_default();
        let mut raw: Vec<LLVMTypeRef> = params.iter().map(|t| t.0).collect();
        // SAFETY: types belong to this context.
        unsafe {
            let void = LLVMVoidTypeInContext(self.context);
            let ty = LLVMFunctionType(void, raw.as_mut_ptr(), raw.len() as c_uint, 0);
            let f = LLVMAddFunction(self.module, c.as_ptr(), ty);
            self.attributes(f, attributes);
            self.function.set(f);
            (0..params.len()).map(|i| V(LLVMGetParam(f, i as c_uint))).collect()
        }
    }

    /// Sets enum attributes (empty value) and string attributes of function `f`.
    unsafe fn attributes(&self, f: LLVMValueRef, attributes: &[(&str, &str)]) {
        for (k, v) in attributes {
            // SAFETY: the pointers and lengths describe live strings; index -1 is the function.
            unsafe {
                let a = if v.is_empty() {
                    let id = LLVMGetEnumAttributeKindForName(k.as_ptr().cast(), k.len());
                    LLVMCreateEnumAttribute(self.context, id, 0)
                } else {
                    let (kn, vn) = (k.len() as c_uint, v.len() as c_uint);
                    LLVMCreateStringAttribute(self.context, k.as_ptr().cast(), kn, v.as_ptr().cast(), vn)
                };
                LLVMAddAttributeAtIndex(f, u32::MAX, a);
            }
        }
    }

    pub(crate) fn block(&self, name: &str) -> Block {
        let c = CString::new(name).unwrap_or_default();
        // SAFETY: the function was set by `function`.
        Block(unsafe { LLVMAppendBasicBlockInContext(self.context, self.function.get(), c.as_ptr()) })
    }

    pub(crate) fn current(&self) -> Block {
        // SAFETY: the builder is positioned.
        Block(unsafe { LLVMGetInsertBlock(self.builder) })
    }

    pub(crate) fn at_end(&self, b: Block) {
        // SAFETY: the block is alive.
        unsafe { LLVMPositionBuilderAtEnd(self.builder, b.0) }
    }

    /// Positions before the terminator of `b`.
    pub(crate) fn before_terminator(&self, b: Block) {
        // SAFETY: the block is alive and has a terminator.
        unsafe { LLVMPositionBuilderBefore(self.builder, LLVMGetBasicBlockTerminator(b.0)) }
    }

    pub(crate) fn br(&self, to: Block) {
        // SAFETY: the block is alive.
        unsafe { LLVMBuildBr(self.builder, to.0) };
    }

    pub(crate) fn cond_br(&self, c: V, yes: Block, no: Block) {
        // SAFETY: the blocks are alive.
        unsafe { LLVMBuildCondBr(self.builder, c.0, yes.0, no.0) };
    }

    pub(crate) fn ret(&self) {
        // SAFETY: the function returns void.
        unsafe { LLVMBuildRetVoid(self.builder) };
    }

    pub(crate) fn phi(&self, ty: Ty) -> V {
        // SAFETY: the builder stands at the start of a block.
        V(unsafe { LLVMBuildPhi(self.builder, ty.0, c"".as_ptr()) })
    }

    pub(crate) fn incoming(&self, phi: V, v: V, from: Block) {
        let (mut v, mut b) = ([v.0], [from.0]);
        // SAFETY: `phi` is a phi node; one value, one block.
        unsafe { LLVMAddIncoming(phi.0, v.as_mut_ptr(), b.as_mut_ptr(), 1) }
    }
}

/// The undefined symbols of a relocatable x86-64 ELF object, sorted.
pub(crate) fn undefined_symbols(object: &[u8]) -> Vec<String> {
    let u16_at = |o: usize| object.get(o..o + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let u32_at = |o: usize| object.get(o..o + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let u64_at = |o: usize| Some(u64::from(u32_at(o)?) | u64::from(u32_at(o + 4)?) << 32);
    let read = || -> Option<BTreeSet<String>> {
        let mut out = BTreeSet::new();
        let (shoff, shentsize, shnum) = (u64_at(40)? as usize, u16_at(58)? as usize, u16_at(60)? as usize);
        for s in (0..shnum).map(|i| shoff + i * shentsize) {
            if u32_at(s + 4)? != 2 {
                continue; // not SHT_SYMTAB
            }
            let (off, size, link) =
                (u64_at(s + 24)? as usize, u64_at(s + 32)? as usize, u32_at(s + 40)? as usize);
            let strings = u64_at(shoff + link * shentsize + 24)? as usize;
            for sym in (off..off + size).step_by(24).skip(1) {
                if u16_at(sym + 6)? == 0 {
                    let name = object.get(strings + u32_at(sym)? as usize..)?;
                    let len = name.iter().position(|&b| b == 0)?;
                    out.insert(String::from_utf8_lossy(&name[..len]).into_owned());
                }
            }
        }
        Some(out)
    };
    read().unwrap_or_default().into_iter().collect()
}
