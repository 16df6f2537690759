//! lj-stitch
