//! lj-driver
