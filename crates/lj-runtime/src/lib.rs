//! lj-runtime
