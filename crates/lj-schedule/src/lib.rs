//! Schedule: a tensor graph becomes a [`program::Program`] of loop nests, ATen calls and buffers.

pub mod loopnest;
pub mod program;
