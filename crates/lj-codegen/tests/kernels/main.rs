//! Kernels against scalar references.

#[path = "../common/mod.rs"]
mod common;
mod basic;
mod reduce;
