//! Import: an FX graph as data ([`fx::FxGraph`]) becomes a [`lj_ir::Graph`].

pub mod fx;
