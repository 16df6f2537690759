//! Loop nests to machine code, through LLVM.
//!
//! The only crate that knows LLVM. It reads [`lj_schedule::loopnest`] and nothing else of ours, and
//! yields relocatable ELF objects whose functions follow the calling convention in
//! `docs/kernel-abi.md`. The IR it writes is already vectorised and no IR pass runs on it: the
//! generator does its own invariant code motion, address computation and accumulator splitting.
//!
//! The way of a nest: [`check`](mod@check) refuses what is malformed or outside the supported
//! subset, [`nest`] emits statements and
//! [`loops`] loops, with [`index`] for subscripts and hoisting,
//! [`memory`] for loads and stores, [`acc`] for accumulators, [`scan`] for running values,
//! [`pointwise`], [`convert`] and [`math`] for arithmetic, and [`target`] turns the module into an object.
//!
//! Invariants: the result depends on the nests and the target only (not on the number of threads);
//! a bad nest is an [`Error`], never a panic or an abort.

mod acc;
mod check;
mod convert;
pub mod gemm;
mod index;
mod ir;
mod loops;
mod math;
mod memory;
mod nest;
mod pointwise;
mod scan;
mod target;

use inkwell::context::Context;
use lj_schedule::loopnest::LoopNest;
use std::panic::{AssertUnwindSafe, catch_unwind};
pub use target::Target;

/// Why a nest could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The nest breaks a rule of the loop-nest language.
    #[error("kernel `{nest}` is malformed: {what}")]
    Invalid {
        /// Name of the nest.
        nest: String,
        /// Which rule, and where.
        what: String,
    },
    /// The nest is well formed but needs something the code generator does not do.
    #[error("kernel `{nest}` cannot be compiled: {what}")]
    Unsupported {
        /// Name of the nest.
        nest: String,
        /// What it needs.
        what: String,
    },
    /// LLVM refused.
    #[error("LLVM: {0}")]
    Llvm(String),
    /// A fault of this crate.
    #[error("internal error in code generation: {0} (please report the kernel)")]
    Internal(String),
}

/// The code of some nests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// A relocatable ELF object.
    pub object: Vec<u8>,
    /// Name of the function of each nest, in the order of the nests.
    pub symbols: Vec<String>,
    /// Names the object refers to but does not define, sorted: functions of libm, and of SLEEF as
    /// exported by `libtorch_cpu.so`.
    pub externs: Vec<String>,
    /// LLVM IR, if asked for.
    pub llvm_ir: Option<String>,
    /// Assembly, if asked for.
    pub asm: Option<String>,
}

/// Compiles `nests` into one object. Function `i` is called `lj_<i>_<name>`.
pub fn compile(nests: &[LoopNest], target: &Target, want_text: bool) -> Result<Compiled, Error> {
    compile_from(0, nests, target, want_text)
}

/// Compiles `nests` in up to `threads` threads. The objects hold consecutive runs of nests, in
/// order; symbol numbers count over all of them. How nests are split depends on `threads`, what is
/// generated for each nest does not.
pub fn compile_parallel(
    nests: &[LoopNest],
    target: &Target,
    threads: usize,
    want_text: bool,
) -> Result<Vec<Compiled>, Error> {
    let per = nests.len().div_ceil(threads.max(1)).max(1);
    if nests.len() <= per {
        return Ok(vec![compile(nests, target, want_text)?]);
    }
    std::thread::scope(|s| {
        let handles: Vec<_> = nests
            .chunks(per)
            .enumerate()
            .map(|(i, part)| s.spawn(move || compile_from(i * per, part, target, want_text)))
            .collect();
        handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|p| Err(Error::Internal(panic_text(&*p)))))
            .collect()
    })
}

/// Identifies everything that decides what code comes out of a nest and a target, for cache keys.
pub fn fingerprint() -> String {
    let (major, minor, patch) = inkwell::support::get_llvm_version();
    format!("lj-codegen {} llvm {major}.{minor}.{patch}", env!("CARGO_PKG_VERSION"))
}

fn compile_from(
    first: usize,
    nests: &[LoopNest],
    target: &Target,
    want_text: bool,
) -> Result<Compiled, Error> {
    for n in nests {
        check::check(n)?;
    }
    in_module("lj", target, want_text, |ir| {
        let mut symbols = vec![];
        for (i, n) in nests.iter().enumerate() {
            let symbol = symbol(first + i, &n.name);
            nest::emit(ir, n, target, &symbol)?;
            symbols.push(symbol);
        }
        Ok(symbols)
    })
}

/// An object of what `emit` writes into a fresh module; it returns the symbols. A panic is an error.
fn in_module(
    name: &str,
    target: &Target,
    want_text: bool,
    emit: impl FnOnce(&ir::Ir<'_>) -> Result<Vec<String>, Error>,
) -> Result<Compiled, Error> {
    let work = || {
        let context = Context::create();
        let module = context.create_module(name);
        let machine = target.machine()?;
        module.set_triple(&machine.get_triple());
        module.set_data_layout(&machine.get_target_data().get_data_layout());
        let symbols = emit(&ir::Ir::new(&context, &module))?;
        module.verify().map_err(|e| Error::Internal(e.to_string()))?;
        target::finish(&module, &machine, symbols, want_text)
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|p| Err(Error::Internal(panic_text(&*p))))
}

fn symbol(index: usize, name: &str) -> String {
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(80).collect();
    format!("lj_{index}_{clean}")
}

fn panic_text(p: &(dyn std::any::Any + Send)) -> String {
    p.downcast_ref::<String>()
        .cloned()
        .or_else(|| p.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "panic".to_owned())
}
