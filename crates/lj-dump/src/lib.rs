//! lj-dump
