//! The classes and objects of torch that the FX walk compares against, looked up once.

use lj_ir::{DType, Device};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use std::sync::OnceLock;

macro_rules! names {
    ($($field:ident: $module:literal, $attr:literal;)*) => {
        /// Objects of torch by identity.
        pub struct Torch { $(#[allow(missing_docs)] pub $field: Py<PyAny>),* }

        impl Torch {
            fn load(py: Python<'_>) -> PyResult<Torch> {
                Ok(Torch { $($field: py.import($module)?.getattr($attr)?.unbind()),* })
            }
        }
    };
}

names! {
    tensor: "torch", "Tensor";
    parameter: "torch.nn", "Parameter";
    fake_tensor: "torch._subclasses.fake_tensor", "FakeTensor";
    sym_int: "torch", "SymInt";
    sym_float: "torch", "SymFloat";
    sym_bool: "torch", "SymBool";
    dtype: "torch", "dtype";
    device: "torch", "device";
    layout: "torch", "layout";
    memory_format: "torch", "memory_format";
    strided: "torch", "strided";
    op_overload: "torch._ops", "OpOverload";
    higher_order: "torch._ops", "HigherOrderOperator";
    seeded_tag: "torch", "Tag";
    getitem: "operator", "getitem";
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// The table, filled at the first use.
pub fn torch(py: Python<'_>) -> PyResult<&'static Torch> {
    TORCH.get_or_try_init(py, || Torch::load(py))
}

/// Whether `x` is an instance of the class `class`.
pub fn is(x: &Bound<'_, PyAny>, class: &Py<PyAny>) -> bool {
    x.is_instance(class.bind(x.py())).unwrap_or(false)
}

/// Whether the type of `x` is exactly `class`.
pub fn is_exactly(x: &Bound<'_, PyAny>, class: &Py<PyAny>) -> bool {
    x.get_type().as_any().is(class.bind(x.py()))
}

/// A `torch.dtype` as ours; `None` for the ones the IR does not name.
pub fn dtype(x: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let text = x.str()?;
    Ok(DType::from_torch_name(suffix(&text)?))
}

/// A `torch.device` as ours; `None` for device types the IR does not name.
pub fn device(x: &Bound<'_, PyAny>) -> PyResult<Option<Device>> {
    let kind = x.getattr(pyo3::intern!(x.py(), "type"))?;
    Ok(match kind.cast::<PyString>()?.to_str()? {
        "cpu" => Some(Device::Cpu),
        "meta" => Some(Device::Meta),
        "cuda" => {
            let index: Option<u32> = x.getattr(pyo3::intern!(x.py(), "index"))?.extract()?;
            Some(Device::Cuda(index.unwrap_or(0)))
        }
        _ => None,
    })
}

/// `torch.strided` → `strided`.
pub fn name_of(x: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(suffix(&x.str()?)?.to_string())
}

fn suffix<'a>(text: &'a Bound<'_, PyString>) -> PyResult<&'a str> {
    let s = text.to_str()?;
    Ok(s.strip_prefix("torch.").unwrap_or(s))
}

/// The directory torch is installed in, with a slash at the end: frames there are not the user's.
pub fn install_dir(py: Python<'_>) -> PyResult<&'static str> {
    static DIR: OnceLock<String> = OnceLock::new();
    if let Some(dir) = DIR.get() {
        return Ok(dir);
    }
    let file: String = py.import("torch")?.getattr("__file__")?.extract()?;
    let dir = file.rsplit_once('/').map_or(String::new(), |(d, _)| format!("{d}/"));
    Ok(DIR.get_or_init(|| dir))
}

/// The class of a class object, for messages.
pub fn type_name(x: &Bound<'_, PyAny>) -> String {
    let t: Bound<'_, PyType> = x.get_type();
    t.fully_qualified_name().map_or_else(|_| "?".into(), |n| n.to_string())
}
