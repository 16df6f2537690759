//! `ljcompile._native`: the Python extension. Thin: it turns Python objects into the plain data the
//! driver takes and back; what a compilation does is decided in `lj-driver`.

mod callback;
mod captured;
mod convert;
mod graph;
mod sympy;
mod torch;
mod walk;

use pyo3::prelude::*;

pyo3::create_exception!(
    ljcompile,
    CompileError,
    pyo3::exceptions::PyRuntimeError,
    "A graph could not be compiled."
);

/// The exception that ended a compilation from outside.
type Interrupt = std::sync::Mutex<Option<PyErr>>;

/// The extension module.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::CompileError;
    #[pymodule_export]
    use super::captured::{captured_names, find_operators};
    #[pymodule_export]
    use super::graph::{CompiledGraph, Progress, compile};

    /// The FX graph `gm` as JSON, without compiling it.
    #[pyfunction]
    fn fx_json(gm: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
        let walked = crate::walk::walk(gm, name)?;
        serde_json::to_string_pretty(&walked.graph)
            .map_err(|e| pyo3::exceptions::PyValueError::new_err(e.to_string()))
    }
}
