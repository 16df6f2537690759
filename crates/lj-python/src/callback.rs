//! Operators that have no C entry run through the Python callables of the FX graph.

use crate::convert::{handles, is_tensor, number, runtime, scalar, tensor};
use lj_ir::{Arg, Device, Expr};
use lj_runtime::{CallbackError, Callbacks, ExternRequest, ExternValue, OperandValue, ScalarValue};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList, PyString, PyTuple};
use std::collections::BTreeMap;

/// The Python objects behind a graph.
pub struct Objects {
    /// Callable of each call target in the FX graph.
    pub targets: BTreeMap<String, Py<PyAny>>,
    /// What `Arg::Object` numbers.
    pub objects: Vec<Py<PyAny>>,
}

impl Callbacks for Objects {
    fn call_extern(&self, request: &ExternRequest<'_>) -> Result<Vec<ExternValue>, CallbackError> {
        Python::attach(|py| self.run(py, request)).map_err(CallbackError::from)
    }
}

impl Objects {
    fn run(&self, py: Python<'_>, request: &ExternRequest<'_>) -> PyResult<Vec<ExternValue>> {
        let call = request.call;
        let args = call.args.iter().map(|a| self.arg(py, request, a)).collect::<PyResult<Vec<_>>>()?;
        let kwargs = PyDict::new(py);
        for (k, v) in &call.kwargs {
            kwargs.set_item(k, self.arg(py, request, v)?)?;
        }
        let function = match self.targets.get(&call.target) {
            Some(f) => f.bind(py).clone(),
            None => resolve(py, &call.target)?,
        };
        let result = function.call(PyTuple::new(py, args)?, Some(&kwargs))?;
        let mut flat = vec![];
        flatten(&result, &mut flat)?;
        let mut tensors = vec![];
        for x in &flat {
            if is_tensor(x)? {
                tensors.push(x.clone());
            }
        }
        let mut made = handles(&tensors)?.into_iter();
        let mut out = Vec::with_capacity(flat.len());
        for x in &flat {
            out.push(if is_tensor(x)? {
                made.next().map_or(ExternValue::None, ExternValue::Tensor)
            } else {
                match scalar(x)? {
                    Some(ScalarValue::Int(i)) => ExternValue::Int(i),
                    Some(s) => ExternValue::Scalar(s),
                    None => ExternValue::None,
                }
            });
        }
        Ok(out)
    }

    fn arg<'py>(
        &self,
        py: Python<'py>,
        request: &ExternRequest<'_>,
        arg: &Arg,
    ) -> PyResult<Bound<'py, PyAny>> {
        let torch = |name: &str| py.import("torch")?.getattr(name);
        Ok(match arg {
            Arg::Input(i) => match request.operands.get(*i) {
                Some(OperandValue::Tensor(t)) => tensor(py, t.new_ref().map_err(runtime)?)?,
                Some(OperandValue::Int(v)) => number(py, ScalarValue::Int(*v))?,
                Some(OperandValue::Scalar(s)) => number(py, *s)?,
                Some(OperandValue::None) => py.None().into_bound(py),
                None => return Err(runtime(format!("{}: no operand {i}", request.call.target))),
            },
            Arg::None => py.None().into_bound(py),
            Arg::Bool(b) => number(py, ScalarValue::Bool(*b))?,
            Arg::Int(e) => number(py, ScalarValue::Int(eval(request, e)?))?,
            Arg::Float(bits) => PyFloat::new(py, f64::from_bits(*bits)).into_any(),
            Arg::Str(s) => PyString::new(py, s).into_any(),
            Arg::DType(d) => torch(d.torch_name())?,
            Arg::Device(d) => {
                let text = match d {
                    Device::Cpu => "cpu".to_string(),
                    other => other.to_string(),
                };
                torch("device")?.call1((text,))?
            }
            Arg::Layout(name) | Arg::MemoryFormat(name) => torch(name)?,
            Arg::List(items) => {
                let items = items.iter().map(|a| self.arg(py, request, a)).collect::<PyResult<Vec<_>>>()?;
                PyList::new(py, items)?.into_any()
            }
            Arg::Tuple(items) => {
                let items = items.iter().map(|a| self.arg(py, request, a)).collect::<PyResult<Vec<_>>>()?;
                PyTuple::new(py, items)?.into_any()
            }
            Arg::Object(i) => match self.objects.get(*i) {
                Some(o) => o.bind(py).clone(),
                None => return Err(runtime(format!("no Python object {i}"))),
            },
        })
    }
}

fn eval(request: &ExternRequest<'_>, e: &Expr) -> PyResult<i64> {
    (request.eval)(e)
        .ok_or_else(|| PyRuntimeError::new_err(format!("{}: the size {e} has no value", request.call.target)))
}

/// `aten.add.Tensor` → `torch.ops.aten.add.Tensor`, for calls that FX did not have.
fn resolve<'py>(py: Python<'py>, target: &str) -> PyResult<Bound<'py, PyAny>> {
    let ops = py.import("torch")?.getattr("ops")?;
    target.split('.').try_fold(ops, |x, part| x.getattr(part))
}

fn flatten<'py>(x: &Bound<'py, PyAny>, out: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
    if x.is_instance_of::<PyTuple>() || x.is_instance_of::<PyList>() {
        for item in x.try_iter()? {
            flatten(&item?, out)?;
        }
    } else {
        out.push(x.clone());
    }
    Ok(())
}
