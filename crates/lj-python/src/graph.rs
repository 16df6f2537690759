//! `CompiledGraph`: what AOTAutograd calls.

use crate::callback::Objects;
use crate::convert::{inputs, is_tensor, lazy_bit, outputs, physical};
use crate::walk::{Walked, walk};
use crate::{CompileError, Interrupt};
use lj_driver::{Artifact, CompileOptions, Observer, Request};
use lj_runtime::{Error, Plan};
use lj_schedule::program::Output;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Mutex;

/// How far a compilation is; read by another thread.
#[pyclass(frozen, module = "ljcompile._native")]
#[derive(Default)]
pub struct Progress {
    stage: Mutex<&'static str>,
}

#[pymethods]
impl Progress {
    #[new]
    fn new() -> Progress {
        Progress::default()
    }

    /// The stage that runs now.
    #[getter]
    fn stage(&self) -> &'static str {
        self.stage.lock().map_or_else(|e| *e.into_inner(), |s| *s)
    }
}

/// Notes the stage and lets Ctrl-C through between stages.
struct Watch<'a> {
    progress: &'a Progress,
    interrupt: &'a Mutex<Option<PyErr>>,
}

impl Observer for Watch<'_> {
    fn stage(&self, stage: &'static str) -> bool {
        if let Ok(mut s) = self.progress.stage.lock() {
            *s = stage;
        }
        #[allow(clippy::redundant_closure_for_method_calls)] // the method's lifetime is too narrow
        let signals = Python::attach(|py| py.check_signals());
        match signals {
            Ok(()) => true,
            Err(e) => {
                if let Ok(mut slot) = self.interrupt.lock() {
                    *slot = Some(e);
                }
                false
            }
        }
    }
}

/// A compiled graph. Calls follow AOTAutograd's boxed convention: one list of arguments, which is
/// emptied, so that what nobody else needs is freed as soon as it has been read.
#[pyclass(frozen, dict, module = "ljcompile._native")]
pub struct CompiledGraph {
    plan: Plan,
    objects: Objects,
    /// Tensor attributes of the module; they follow the arguments.
    constants: Vec<Py<PyAny>>,
    /// Arguments that come back as results.
    returned: Vec<bool>,
    /// Arguments that may carry a bit which their memory does not show.
    lazy: Vec<usize>,
    /// What was done, as JSON.
    #[pyo3(get)]
    report: String,
    /// Things to warn about once: what about, and the text.
    #[pyo3(get)]
    warnings: Vec<(&'static str, String)>,
    artifacts: Mutex<Vec<Artifact>>,
}

#[pymethods]
impl CompiledGraph {
    /// Runs the graph; `args` is emptied.
    fn __call__<'py>(&self, py: Python<'py>, args: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        let mut passed: Vec<Bound<'py, PyAny>> = args.iter().collect();
        let given = passed.len();
        passed.extend(self.constants.iter().map(|c| c.bind(py).clone()));
        let mut resolved = vec![];
        for &i in &self.lazy {
            if let Some(x) = passed.get(i).filter(|x| is_tensor(x).unwrap_or(false))
                && lazy_bit(x)?
            {
                resolved.push((i, physical(x)?));
            }
        }
        let values = if resolved.is_empty() {
            inputs(&passed)?
        } else {
            let mut shown = passed.clone();
            for (i, x) in resolved {
                shown[i] = x;
            }
            inputs(&shown)?
        };
        let kept: Vec<Option<Bound<'py, PyAny>>> = passed
            .into_iter()
            .enumerate()
            .map(|(i, x)| self.returned.get(i).copied().unwrap_or(false).then_some(x))
            .collect();
        args.del_slice(0, given)?;
        let results = py.detach(|| self.plan.call(values, &self.objects));
        outputs(py, results.map_err(|e| exception(py, e))?, &kept)
    }

    /// The texts of the stages, by file name; empty the second time.
    fn take_artifacts(&self) -> Vec<(String, String)> {
        let taken = self.artifacts.lock().map_or_else(|_| vec![], |mut a| std::mem::take(&mut *a));
        taken.into_iter().map(|a| (a.file_name(), a.text)).collect()
    }

    /// Frees the memory kept for the next call.
    fn release_memory(&self) {
        self.plan.release_memory();
    }
}

/// Compiles the ATen graph `gm`.
///
/// `settings` is the JSON of the options; `text` the graph as FX prints it, if somebody wants
/// artifacts; `keep` whether `take_artifacts` is going to be called.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // positional, from one place
pub fn compile(
    py: Python<'_>,
    gm: &Bound<'_, PyAny>,
    name: &str,
    settings: &str,
    compile_id: &str,
    text: Option<&str>,
    keep: bool,
    progress: &Bound<'_, Progress>,
) -> PyResult<CompiledGraph> {
    let options: CompileOptions =
        serde_json::from_str(settings).map_err(|e| PyValueError::new_err(format!("options: {e}")))?;
    let start = std::time::Instant::now();
    let Walked { graph, objects, constants, targets, lazy } = walk(gm, name)?;
    let walked = start.elapsed().as_secs_f64();
    let progress = progress.get();
    let interrupt = Interrupt::default();
    let done = py.detach(|| {
        let request = Request { fx: &graph, fx_text: text, compile_id, want_artifacts: keep };
        lj_driver::compile(&request, &options, &Watch { progress, interrupt: &interrupt })
    });
    let mut done = done.map_err(|e| {
        let raised = interrupt.lock().ok().and_then(|mut i| i.take());
        raised.unwrap_or_else(|| CompileError::new_err(e.to_string()))
    })?;
    done.report.seconds.insert(0, ("walk".into(), walked));
    let program = done.plan.program();
    let mut returned = vec![false; program.inputs.len()];
    for out in &program.outputs {
        if let Output::Input(n) = out {
            returned[*n as usize] = true;
        }
    }
    Ok(CompiledGraph {
        report: serde_json::to_string(&done.report).map_err(|e| PyValueError::new_err(e.to_string()))?,
        plan: done.plan,
        objects: Objects { targets, objects },
        constants,
        returned,
        lazy,
        warnings: done.warnings,
        artifacts: Mutex::new(done.artifacts),
    })
}

/// The Python exception of a failed call.
fn exception(py: Python<'_>, e: Error) -> PyErr {
    match e {
        Error::Check { ref exception, .. } => {
            let text = e.to_string();
            let class = py.import("builtins").and_then(|b| b.getattr(exception.as_str()));
            match class.and_then(|c| c.call1((text.as_str(),))) {
                Ok(value) => PyErr::from_value(value),
                Err(_) => PyRuntimeError::new_err(text),
            }
        }
        Error::Callback { op, line, source } => match source.downcast::<PyErr>() {
            Ok(raised) => {
                note(py, &raised, &op, line.as_deref());
                *raised
            }
            Err(other) => PyRuntimeError::new_err(format!("{op}: {other}")),
        },
        Error::Input { .. } => PyTypeError::new_err(format!("ljcompile: {e}")),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

/// Adds where it happened to an exception of the operator itself, as a note (Python 3.11) so that
/// its type and text stay eager's.
fn note(py: Python<'_>, raised: &PyErr, op: &str, line: Option<&str>) {
    let at = line.map_or(String::new(), |l| format!("\n  at {l}"));
    // Without notes (Python 3.10) the exception is what eager raises, which is enough.
    let _ = raised.value(py).call_method1("add_note", (format!("raised by {op}{at}"),));
}
