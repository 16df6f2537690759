//! `ljcompile._native`: the Python extension. Thin: it turns Python objects into the plain data the
//! driver takes and back; what a compilation does is decided in `lj-driver`.

mod sympy;
mod torch;
mod walk;

use pyo3::prelude::*;

pyo3::create_exception!(
    _native,
    CompileError,
    pyo3::exceptions::PyRuntimeError,
    "A graph could not be compiled."
);

/// The extension module.
#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use std::sync::Mutex;

    #[pymodule_export]
    use super::CompileError;

    /// The FX graph `gm` as JSON (for dumps and tests).
    #[pyfunction]
    fn fx_json(gm: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
        let walked = crate::walk::walk(gm, name)?;
        serde_json::to_string_pretty(&walked.graph)
            .map_err(|e| pyo3::exceptions::PyValueError::new_err(e.to_string()))
    }

    #[pyclass(frozen)]
    #[derive(Default)]
    struct Progress(Mutex<String>);

    #[pymethods]
    impl Progress {
        #[new]
        fn new() -> Progress {
            Progress::default()
        }
        #[getter]
        fn stage(&self) -> String {
            self.0.lock().map_or_else(|e| e.into_inner().clone(), |s| s.clone())
        }
    }

    #[pyfunction]
    fn compile(gm: &Bound<'_, PyAny>, name: &str, settings: &str, text: Option<&str>, want: bool, progress: &Bound<'_, Progress>) -> PyResult<()> {
        let w = crate::walk::walk(gm, name)?;
        if std::env::var("LJ_SHOW").is_ok() { println!("{}", fx_json(gm, name)?); }
        let _ = (w.graph, settings, text, want, progress);
        Err(CompileError::new_err("not yet"))
    }
}
