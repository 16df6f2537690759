//! Kernels against scalar references.

#[path = "../common/mod.rs"]
mod common;
mod api;
mod basic;
mod memory;
mod reduce;
