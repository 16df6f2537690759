//! lj-python
