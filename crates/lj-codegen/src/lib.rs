//! lj-codegen
