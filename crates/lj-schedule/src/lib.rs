//! Schedule: a tensor graph becomes a [`program::Program`] of loop nests, ATen calls and buffers.
//!
//! The way through: [`analysis`] decides what is computed once and what is inlined; `items` lists
//! the work; `fuse` groups it; `forms` chooses a loop structure for each group and fills it through
//! `emit`; `assemble` lays out steps, buffers and symbols. [`arena`] places buffers at run time.
//!
//! This crate knows nothing of machines or of torch: it sees a graph and writes loop nests.

mod affine;
pub mod analysis;
pub mod arena;
pub mod assemble;
mod axes;
pub mod coords;
pub mod display;
mod emit;
mod error;
mod forms;
pub mod fuse;
pub mod gemm;
mod in_place;
pub mod items;
mod late;
pub mod loopnest;
mod nest_info;
pub mod program;

pub use assemble::{Config, schedule, schedule_with};
pub use error::Error;
