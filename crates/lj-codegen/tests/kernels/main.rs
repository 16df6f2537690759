//! Kernels against scalar references.
#![allow(clippy::wildcard_imports)]

mod api;
mod basic;
#[path = "../common/mod.rs"]
mod common;
mod math;
mod memory;
mod reduce;
mod scan;
