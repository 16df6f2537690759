//! lj-rewrite
