//! Tensors and numbers between Python and a plan.

#![allow(unsafe_code)]

use crate::torch::{is, torch, type_name};
use lj_runtime::torch::{handle_from_pyobject, handle_to_pyobject};
use lj_runtime::{InputValue, OutputValue, ScalarValue, TensorHandle};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList};
use std::ptr::NonNull;

/// An error of the runtime that has no better exception type.
pub fn runtime(e: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(e.to_string())
}

/// A number, if `x` is one.
pub fn scalar(x: &Bound<'_, PyAny>) -> PyResult<Option<ScalarValue>> {
    if let Ok(b) = x.cast::<PyBool>() {
        return Ok(Some(ScalarValue::Bool(b.is_true())));
    }
    if x.is_instance_of::<PyInt>() {
        return Ok(Some(ScalarValue::Int(x.extract()?)));
    }
    if x.is_instance_of::<PyFloat>() {
        return Ok(Some(ScalarValue::Float(x.extract()?)));
    }
    Ok(None)
}

/// The Python object of a number.
pub fn number(py: Python<'_>, s: ScalarValue) -> PyResult<Bound<'_, PyAny>> {
    Ok(match s {
        ScalarValue::Bool(b) => PyBool::new(py, b).to_owned().into_any(),
        ScalarValue::Int(i) => i.into_pyobject(py)?.into_any(),
        ScalarValue::Float(f) => PyFloat::new(py, f).into_any(),
    })
}

/// Owned handles of `tensors`, all of which are `torch.Tensor`s.
pub fn handles(tensors: &[Bound<'_, PyAny>]) -> PyResult<Vec<TensorHandle>> {
    let Some(first) = tensors.first() else { return Ok(vec![]) };
    let py = first.py();
    let mut out = Vec::with_capacity(tensors.len());
    for t in tensors {
        // SAFETY: a live Python object, and the GIL is held.
        match unsafe { handle_from_pyobject(t.as_ptr().cast()) } {
            Some(handle) => out.push(handle.map_err(runtime)?),
            // Before torch 2.14: capsules, all in one call.
            None => return capsules(py, tensors),
        }
    }
    Ok(out)
}

fn capsules(py: Python<'_>, tensors: &[Bound<'_, PyAny>]) -> PyResult<Vec<TensorHandle>> {
    let list = PyList::new(py, tensors)?;
    let made = aoti(py)?.call_method1(intern!(py, "unsafe_alloc_void_ptrs_from_tensors"), (list,))?;
    made.try_iter()?
        .map(|capsule| {
            let capsule = capsule?;
            // SAFETY: torch made the capsule, without a name; a wrong object gives null and an error.
            let p = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
            let p = NonNull::new(p).ok_or_else(|| PyErr::fetch(py))?;
            // SAFETY: `unsafe_alloc_…` hands over an owned handle.
            unsafe { TensorHandle::from_raw(p.as_ptr()) }.map_err(runtime)
        })
        .collect()
}

/// The Python object of a tensor.
pub fn tensor(py: Python<'_>, handle: TensorHandle) -> PyResult<Bound<'_, PyAny>> {
    let mut made = tensors(py, vec![handle])?;
    made.pop().ok_or_else(|| runtime("torch made no tensor"))
}

/// The Python objects of tensors.
pub fn tensors(py: Python<'_>, handles: Vec<TensorHandle>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    let mut out = Vec::with_capacity(handles.len());
    let mut rest = handles.into_iter();
    while let Some(handle) = rest.next() {
        // SAFETY: the GIL is held.
        let Some(object) = (unsafe { handle_to_pyobject(&handle) }) else {
            return steal(py, std::iter::once(handle).chain(rest));
        };
        let object = object.map_err(runtime)?;
        // SAFETY: torch returned a new reference.
        out.push(unsafe { Bound::from_owned_ptr_or_err(py, object.cast())? });
    }
    Ok(out)
}

/// Before torch 2.14: by way of capsules, all in one call. (The function for a single one does not
/// take its handle over: it leaks the tensor.)
fn steal(py: Python<'_>, handles: impl Iterator<Item = TensorHandle>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    let capsules = PyList::empty(py);
    for handle in handles {
        let raw = handle.into_raw().map_err(runtime)?;
        // SAFETY: a valid pointer and no name, which is what torch expects.
        let capsule = unsafe { ffi::PyCapsule_New(raw, std::ptr::null(), None) };
        // SAFETY: a new reference or null with an exception set.
        capsules.append(unsafe { Bound::from_owned_ptr_or_err(py, capsule)? })?;
    }
    let name = intern!(py, "alloc_tensors_by_stealing_from_void_ptrs");
    aoti(py)?.call_method1(name, (capsules,))?.try_iter()?.collect()
}

fn aoti(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static AOTI: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
    let module =
        AOTI.get_or_try_init(py, || PyResult::Ok(py.import("torch._C")?.getattr("_aoti")?.unbind()))?;
    Ok(module.bind(py).clone())
}

/// Whether `x` is a `torch.Tensor`.
pub fn is_tensor(x: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(is(x, &torch(x.py())?.tensor))
}

/// Whether the tensor has a bit set (conjugate, negative) that its memory does not show.
pub fn lazy_bit(x: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = x.py();
    Ok(x.call_method0(intern!(py, "is_conj"))?.is_truthy()?
        || x.call_method0(intern!(py, "is_neg"))?.is_truthy()?)
}

/// The tensor with such bits carried out; itself if it has none.
pub fn physical<'py>(x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = x.py();
    x.call_method0(intern!(py, "resolve_conj"))?.call_method0(intern!(py, "resolve_neg"))
}

/// Arguments of a plan.
pub fn inputs(args: &[Bound<'_, PyAny>]) -> PyResult<Vec<InputValue>> {
    let mut tensors = vec![];
    let mut out = Vec::with_capacity(args.len());
    for (i, x) in args.iter().enumerate() {
        if is_tensor(x)? {
            // Filled below.
            tensors.push(x.clone());
            out.push(None);
        } else if x.is_none() {
            out.push(Some(InputValue::None));
        } else {
            out.push(Some(match scalar(x)? {
                Some(ScalarValue::Int(v)) => InputValue::Int(v),
                Some(s) => InputValue::Scalar(s),
                None => {
                    let found = type_name(x);
                    let text = format!("ljcompile: argument {i} of a graph is of type {found}");
                    return Err(PyTypeError::new_err(text));
                }
            }));
        }
    }
    let mut made = handles(&tensors)?.into_iter();
    out.into_iter()
        .map(|v| match v {
            Some(v) => Ok(v),
            None => made.next().map(InputValue::Tensor).ok_or_else(|| runtime("too few handles")),
        })
        .collect()
}

/// Results of a plan, as a list. `args` are those that were passed (only the ones that
/// [`OutputValue::Input`] names need be there).
pub fn outputs<'py>(
    py: Python<'py>,
    values: Vec<OutputValue>,
    args: &[Option<Bound<'py, PyAny>>],
) -> PyResult<Bound<'py, PyList>> {
    let mut handles = vec![];
    // What is left of each value once its tensor, if it is one, is taken out.
    let rest: Vec<Option<OutputValue>> = values
        .into_iter()
        .map(|v| match v {
            OutputValue::Tensor(t) => {
                handles.push(t);
                None
            }
            other => Some(other),
        })
        .collect();
    let mut made = tensors(py, handles)?.into_iter();
    let out = PyList::empty(py);
    for v in rest {
        let object = match v {
            None | Some(OutputValue::Tensor(_)) => {
                made.next().ok_or_else(|| runtime("torch made too few tensors"))?
            }
            Some(OutputValue::Input(n)) => args
                .get(n as usize)
                .and_then(Clone::clone)
                .ok_or_else(|| runtime(format!("output is argument {n}, which was not kept")))?,
            Some(OutputValue::Same(n)) => out.get_item(n as usize)?,
            Some(OutputValue::Int(i)) => number(py, ScalarValue::Int(i))?,
            Some(OutputValue::Scalar(s)) => number(py, s)?,
            Some(OutputValue::None) => py.None().into_bound(py),
        };
        out.append(object)?;
    }
    Ok(out)
}
