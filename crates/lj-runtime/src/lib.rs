//! Runs compiled programs: links the object code, holds the memory, and calls ATen.
//!
//! This crate alone knows torch's C ABI; it knows nothing of Python, FX, LLVM or of how a program
//! was made. A [`Plan`] is built once from a [`lj_schedule::program::Program`] and its kernels and
//! then called from any number of threads.
//!
//! * [`torch`] – torch's functions, found in the libraries the process has loaded, and tensors;
//! * [`link`] – the ELF loader;
//! * [`parallel`] – loops on torch's thread pool;
//! * [`gemm`] – matrix products by our own kernels;
//! * [`memory`] – arenas kept between calls;
//! * [`fence`] – guard pages around the buffers of kernels, for tests;
//! * [`cache`] – the store of compiled programs on disk.

mod build;
pub mod cache;
pub mod error;
mod exec;
pub mod fence;
pub mod gemm;
pub mod link;
pub mod memory;
mod native;
pub mod parallel;
mod plan;
mod sizes;
pub mod torch;
mod value;

pub use error::{CallbackError, Error, Result};
pub use plan::{KernelFn, KernelObject, Plan};
pub use torch::TensorHandle;
pub use value::{
    Callbacks, ExternRequest, ExternValue, InputValue, NoCallbacks, OperandValue, OutputValue, ScalarValue,
};
