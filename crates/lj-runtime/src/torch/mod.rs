//! torch's C ABI, found at run time in the libraries the process has already loaded.
//!
//! Nothing here is linked: one binary serves torch 2.8 and later. Functions that every supported
//! version has are required; later ones are `Option`s.

#![allow(unsafe_code)]

mod tensor;

pub(crate) use tensor::describe;
pub use tensor::{TensorHandle, handle_from_pyobject, handle_to_pyobject};

use crate::error::{Error, Result};
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::OnceLock;

/// `AtenTensorHandle`.
pub type RawTensor = *mut c_void;
/// `StableIValue`.
pub type IValue = u64;
/// `AOTITorchError`: 0 is success.
pub type Code = i32;
/// Body of a `torch_parallel_for`.
pub type ParallelBody = unsafe extern "C" fn(begin: i64, end: i64, ctx: *mut c_void);

macro_rules! function_table {
    (
        required { $($name:ident: $symbol:literal = fn($($arg:ty),*) $(-> $ret:ty)?;)* }
        optional { $($oname:ident: $osymbol:literal = fn($($oarg:ty),*) $(-> $oret:ty)?;)* }
    ) => {
        /// The functions, by what they do.
        #[allow(missing_docs)]
        pub struct Torch {
            library: Library,
            gomp: Option<Library>,
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub $oname: Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        impl Torch {
            fn resolve(library: Library, gomp: Option<Library>) -> Result<Torch> {
                $(
                    let p = library.symbol($symbol).ok_or_else(|| {
                        Error::Abi(format!("libtorch_cpu has no `{}`", $symbol))
                    })?;
                    // SAFETY: the symbol is the C function of this signature in every torch from
                    // 2.8 on; the ABI is declared stable by torch.
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(p)
                    };
                )*
                $(
                    let found = library.symbol($osymbol).or_else(|| gomp.as_ref()?.symbol($osymbol));
                    // SAFETY: as above, where the symbol exists.
                    let $oname = found.map(|p| unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($oarg),*) $(-> $oret)?>(p)
                        });
                )*
                Ok(Torch { library, gomp, $($name,)* $($oname,)* })
            }
        }
    };
}

function_table! {
    required {
        delete: "aoti_torch_delete_tensor_object" = fn(RawTensor) -> Code;
        new_handle: "aoti_torch_new_tensor_handle" = fn(RawTensor, *mut RawTensor) -> Code;
        get_data_ptr: "aoti_torch_get_data_ptr" = fn(RawTensor, *mut *mut c_void) -> Code;
        get_dim: "aoti_torch_get_dim" = fn(RawTensor, *mut i64) -> Code;
        get_sizes: "aoti_torch_get_sizes" = fn(RawTensor, *mut *const i64) -> Code;
        get_strides: "aoti_torch_get_strides" = fn(RawTensor, *mut *const i64) -> Code;
        get_dtype: "aoti_torch_get_dtype" = fn(RawTensor, *mut i32) -> Code;
        get_device_type: "aoti_torch_get_device_type" = fn(RawTensor, *mut i32) -> Code;
        get_device_index: "aoti_torch_get_device_index" = fn(RawTensor, *mut i32) -> Code;
        get_storage_offset: "aoti_torch_get_storage_offset" = fn(RawTensor, *mut i64) -> Code;
        empty_strided: "aoti_torch_empty_strided" =
            fn(i64, *const i64, *const i64, i32, i32, i32, *mut RawTensor) -> Code;
        from_blob: "aoti_torch_create_tensor_from_blob" =
            fn(*mut c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut RawTensor) -> Code;
        reinterpret: "aoti_torch__reinterpret_tensor" =
            fn(RawTensor, i64, *const i64, *const i64, i64, *mut RawTensor) -> Code;
        clone: "aoti_torch_clone_preserve_strides" = fn(RawTensor, *mut RawTensor) -> Code;
        copy: "aoti_torch_copy_" = fn(RawTensor, RawTensor, i32) -> Code;
        grad_enabled: "aoti_torch_grad_mode_is_enabled" = fn() -> bool;
        set_grad_enabled: "aoti_torch_grad_mode_set_enabled" = fn(bool);
        device_type_cpu: "aoti_torch_device_type_cpu" = fn() -> i32;
        device_type_cuda: "aoti_torch_device_type_cuda" = fn() -> i32;
        device_type_meta: "aoti_torch_device_type_meta" = fn() -> i32;
        mm_out: "aoti_torch_cpu_mm_out" = fn(RawTensor, RawTensor, RawTensor) -> Code;
        bmm_out: "aoti_torch_cpu_bmm_out" = fn(RawTensor, RawTensor, RawTensor) -> Code;
        addmm_out: "aoti_torch_cpu_addmm_out" =
            fn(RawTensor, RawTensor, RawTensor, RawTensor, f64, f64) -> Code;
        baddbmm_out: "aoti_torch_cpu_baddbmm_out" =
            fn(RawTensor, RawTensor, RawTensor, RawTensor, f64, f64) -> Code;
        call_dispatcher: "aoti_torch_call_dispatcher" =
            fn(*const c_char, *const c_char, *mut IValue) -> Code;
    }
    optional {
        is_defined: "aoti_torch_is_defined" = fn(RawTensor, *mut bool) -> Code;
        exception_text: "torch_exception_get_what_without_backtrace" = fn() -> *const c_char;
        from_pyobject: "torch_tensor_from_pyobject" = fn(*mut c_void, *mut RawTensor) -> Code;
        to_pyobject: "torch_tensor_to_pyobject" = fn(RawTensor, *mut c_void, *mut *mut c_void) -> Code;
        parallel_for: "torch_parallel_for" = fn(i64, i64, i64, ParallelBody, *mut c_void) -> Code;
        thread_index: "torch_get_thread_idx" = fn(*mut u32) -> Code;
        // C++ functions of plain arguments; the names are those of the Itanium ABI.
        is_autocast_enabled: "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE" = fn(i8) -> bool;
        set_autocast_enabled: "_ZN2at8autocast20set_autocast_enabledEN3c1010DeviceTypeEb" = fn(i8, bool);
        num_threads: "_ZN2at15get_num_threadsEv" = fn() -> i32;
        set_num_threads: "_ZN2at15set_num_threadsEi" = fn(i32);
        in_parallel_region: "_ZN2at18in_parallel_regionEv" = fn() -> bool;
        gomp_parallel: "GOMP_parallel" =
            fn(unsafe extern "C" fn(*mut c_void), *mut c_void, u32, u32);
        omp_thread_num: "omp_get_thread_num" = fn() -> i32;
        omp_team_size: "omp_get_num_threads" = fn() -> i32;
        omp_max_threads: "omp_get_max_threads" = fn() -> i32;
        omp_in_parallel: "omp_in_parallel" = fn() -> i32;
    }
}

static TORCH: OnceLock<Torch> = OnceLock::new();

/// The table of the torch this process has loaded.
///
/// # Errors
/// If torch is not loaded or is older than 2.8. A later call looks again.
pub fn torch() -> Result<&'static Torch> {
    if let Some(t) = TORCH.get() {
        return Ok(t);
    }
    let library = Library::loaded(c"libtorch_cpu.so")
        .ok_or_else(|| Error::Abi("libtorch_cpu.so is not loaded in this process".into()))?;
    let table = Torch::resolve(library, Library::loaded(c"libgomp.so.1"))?;
    Ok(TORCH.get_or_init(|| table))
}

/// Loads torch from a file (`…/torch/lib/libtorch_cpu.so`); for programs without Python, that is
/// for tests.
///
/// # Errors
/// If the file cannot be loaded or is older than 2.8.
pub fn load_torch(path: &Path) -> Result<&'static Torch> {
    let text = path.to_string_lossy().into_owned();
    let name = CString::new(text).map_err(|e| Error::Abi(e.to_string()))?;
    // SAFETY: dlopen with a valid string; torch's own initialisers are trusted.
    if unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null() {
        return Err(Error::Abi(dl_error()));
    }
    torch()
}

fn dl_error() -> String {
    // SAFETY: dlerror gives null or a C string valid until the next call on this thread.
    unsafe {
        let p = libc::dlerror();
        if p.is_null() {
            "unknown loader error".into()
        } else {
            CStr::from_ptr(p).to_string_lossy().into_owned()
        }
    }
}

/// A shared library that stays loaded.
pub(crate) struct Library(*mut c_void);

// SAFETY: a dlopen handle may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above; dlsym is thread-safe.
unsafe impl Sync for Library {}

impl Library {
    /// The library if the process has already loaded it.
    pub(crate) fn loaded(name: &CStr) -> Option<Library> {
        // SAFETY: dlopen with a valid string; RTLD_NOLOAD runs no initialisers.
        let p = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!p.is_null()).then_some(Library(p))
    }

    /// Loads a system library (libm and the like).
    pub(crate) fn open(name: &CStr) -> Option<Library> {
        // SAFETY: dlopen of a system library by name.
        let p = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        (!p.is_null()).then_some(Library(p))
    }

    /// The address of an exported symbol.
    pub(crate) fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is never closed.
        let p = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!p.is_null()).then_some(p)
    }
}

impl Torch {
    /// The address of a symbol of torch's CPU library or of its OpenMP library.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        self.library.symbol(name).or_else(|| self.gomp.as_ref()?.symbol(name))
    }

    /// Turns a return code into a result; `op` names what was called.
    pub fn check(&self, code: Code, op: &str) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(op)) }
    }

    #[cold]
    fn error(&self, op: &str) -> Error {
        let text = self.exception_text.map(|f| {
            // SAFETY: the function gives null or a C string valid until the next exception.
            unsafe {
                let p = f();
                if p.is_null() { String::new() } else { CStr::from_ptr(p).to_string_lossy().into_owned() }
            }
        });
        let message = match text {
            Some(t) if !t.trim().is_empty() => t,
            _ => "failed; torch has printed the reason".into(),
        };
        Error::Torch { op: op.into(), message, line: None }
    }

    /// Whether errors carry torch's own text (torch 2.13 and later).
    pub fn has_error_text(&self) -> bool {
        self.exception_text.is_some()
    }
}

/// Switches off, for the calling thread, the modes that were applied when the graph was captured and
/// must not act a second time: gradients and autocast. Restored when dropped.
pub struct PlainMode {
    torch: &'static Torch,
    grad: bool,
    /// Per entry of [`AUTOCAST`].
    autocast: [bool; 2],
}

/// The devices whose autocast is switched off: `c10::DeviceType` of the CPU and of CUDA.
const AUTOCAST: [i8; 2] = [0, 1];

impl PlainMode {
    /// Switches them off.
    pub fn new(torch: &'static Torch) -> PlainMode {
        // SAFETY: thread-local accessors.
        unsafe {
            let grad = (torch.grad_enabled)();
            if grad {
                (torch.set_grad_enabled)(false);
            }
            let autocast = AUTOCAST.map(|d| torch.is_autocast_enabled.is_some_and(|f| f(d)));
            let mode = PlainMode { torch, grad, autocast };
            mode.set_autocast(false);
            mode
        }
    }

    /// Sets autocast for the devices for which it was on.
    fn set_autocast(&self, on: bool) {
        for (device, _) in AUTOCAST.iter().zip(self.autocast).filter(|(_, was_on)| *was_on) {
            if let Some(f) = self.torch.set_autocast_enabled {
                // SAFETY: a thread-local accessor.
                unsafe { f(*device, on) };
            }
        }
    }
}

impl Drop for PlainMode {
    fn drop(&mut self) {
        self.set_autocast(true);
        if self.grad {
            // SAFETY: a thread-local accessor.
            unsafe { (self.torch.set_grad_enabled)(true) };
        }
    }
}
