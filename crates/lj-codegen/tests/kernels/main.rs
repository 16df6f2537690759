//! Kernels against scalar references.

mod api;
mod basic;
#[path = "../common/mod.rs"]
mod common;
mod math;
mod memory;
mod reduce;
