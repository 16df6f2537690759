//! The machine: which CPU, how wide its vectors are, and LLVM's target machine for it.
#![allow(unsafe_code)]

use crate::{Compiled, Error, ir};
use inkwell::OptimizationLevel;
use inkwell::module::Module;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine, TargetTriple,
};
use std::sync::Once;

/// What code is generated for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// LLVM's name of the CPU, such as `sapphirerapids`.
    pub cpu: String,
    /// LLVM's feature string, such as `+avx512f,-prefer-256-bit`.
    pub features: String,
    /// Lanes of a vector loop: 16 with AVX-512, 8 otherwise. The same for every element type.
    pub lanes: u32,
}

impl Target {
    /// The machine this runs on.
    pub fn host() -> Target {
        let cpu = TargetMachine::get_host_cpu_name().to_string();
        let features = TargetMachine::get_host_cpu_features().to_string();
        Target::new(&cpu, &features)
    }

    /// A machine by CPU name and features. 512-bit vectors are used wherever they exist. A CPU that
    /// LLVM does not know counts as a plain x86-64 with these features.
    pub fn new(cpu: &str, features: &str) -> Target {
        let comma = if features.is_empty() { "" } else { "," };
        // LLVM aborts on an unknown CPU unless it is told that 64-bit code is fine.
        let features = format!("{features}{comma}+64bit,+sse2,-prefer-256-bit");
        let mut t = Target { cpu: cpu.to_owned(), features, lanes: 8 };
        if t.avx512() {
            t.lanes = 16;
        }
        t
    }

    /// Whether the target has LLVM's feature `feature`.
    pub fn has(&self, feature: &str) -> bool {
        self.features.split(',').any(|f| f.strip_prefix('+') == Some(feature))
    }

    /// Whether 512-bit vectors of every element type and masked operations on them exist.
    pub(crate) fn avx512(&self) -> bool {
        ["avx512f", "avx512bw", "avx512dq", "avx512vl"].iter().all(|f| self.has(f))
    }

    /// Whether 256-bit integer vectors exist.
    pub(crate) fn avx2(&self) -> bool {
        self.has("avx2")
    }

    /// Attributes of every function.
    pub(crate) fn attributes(&self) -> [(&str, &str); 5] {
        let width = if self.avx512() { "512" } else { "256" };
        [
            ("nounwind", ""),
            ("target-cpu", self.cpu.as_str()),
            ("target-features", self.features.as_str()),
            ("min-legal-vector-width", width),
            ("prefer-vector-width", width),
        ]
    }

    /// LLVM's target machine.
    pub(crate) fn machine(&self) -> Result<TargetMachine, Error> {
        initialise();
        let triple = TargetTriple::create("x86_64-unknown-linux-gnu");
        let t = LlvmTarget::from_triple(&triple).map_err(|e| Error::Llvm(e.to_string()))?;
        // Position independent, small model: one object fits in 2 GiB, and external functions are
        // reached through stubs that the loader makes beside it.
        t.create_target_machine(
            &triple,
            &self.cpu,
            &self.features,
            OptimizationLevel::Default,
            RelocMode::PIC,
            CodeModel::Small,
        )
        .ok_or_else(|| Error::Llvm(format!("no code generator for {} {}", self.cpu, self.features)))
    }
}

fn initialise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        LlvmTarget::initialize_x86(&InitializationConfig::default());
        // Loop strength reduction takes a quarter of the compile time and gains nothing on the
        // addresses we write. The switch exists only as a process-wide option.
        let args = [c"lj".as_ptr(), c"-disable-lsr".as_ptr()];
        // SAFETY: two live C strings; called once, before any code generation of ours.
        unsafe {
            inkwell::llvm_sys::support::LLVMParseCommandLineOptions(2, args.as_ptr(), c"".as_ptr());
        }
    });
}

/// Emits the object and, if asked for, the texts.
pub(crate) fn finish(
    module: &Module<'_>,
    machine: &TargetMachine,
    symbols: Vec<String>,
    want_text: bool,
) -> Result<Compiled, Error> {
    let llvm_ir = want_text.then(|| module.print_to_string().to_string());
    // Code generation changes the module, so the assembly is made from a copy.
    let asm = if want_text {
        let copy = module.clone();
        let b = machine
            .write_to_memory_buffer(&copy, FileType::Assembly)
            .map_err(|e| Error::Llvm(e.to_string()))?;
        Some(String::from_utf8_lossy(b.as_slice()).trim_end_matches('\0').to_owned())
    } else {
        None
    };
    let object = machine
        .write_to_memory_buffer(module, FileType::Object)
        .map_err(|e| Error::Llvm(e.to_string()))?
        .as_slice()
        .to_vec();
    let externs = ir::undefined_symbols(&object);
    Ok(Compiled { object, symbols, externs, llvm_ir, asm })
}
