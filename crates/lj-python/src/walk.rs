//! Reads a `torch.fx.GraphModule` into plain data ([`FxGraph`]) and keeps the Python objects that
//! plain data cannot hold.

use crate::convert::{is_tensor, lazy_bit, physical};
use crate::sympy::Symbols;
use crate::torch::{self, Torch, is, is_exactly, torch};
use lj_import::fx::{FxArg, FxGraph, FxKind, FxMeta, FxNode};
use lj_ir::TensorType;
use pyo3::exceptions::PyNotImplementedError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What the walk found.
pub struct Walked {
    /// The graph as data.
    pub graph: FxGraph,
    /// What `FxArg::Object(i)` stands for.
    pub objects: Vec<Py<PyAny>>,
    /// Tensor attributes of the module, to be passed after the placeholders.
    pub constants: Vec<Py<PyAny>>,
    /// Callable of every call target, by name.
    pub targets: BTreeMap<String, Py<PyAny>>,
    /// Inputs that may carry a bit (conjugate, negative) which their memory does not show.
    pub lazy: Vec<usize>,
}

/// A target's name and whether its calls must keep their place.
#[derive(Clone)]
struct Target {
    name: String,
    effect: bool,
}

pub(crate) struct Walk<'py> {
    py: Python<'py>,
    torch: &'static Torch,
    symbols: Symbols<'py>,
    /// FX node (by address) → how an argument refers to it.
    refs: HashMap<usize, FxArg>,
    /// Whether tuples among the arguments at hand are to stay tuples.
    tuples: bool,
    known_targets: HashMap<usize, Target>,
    /// Addresses of the `with_effects` calls.
    with_effects: HashSet<usize>,
    /// Number of placeholders so far.
    placeholders: usize,
    out: Walked,
}

/// Namespaces whose operators talk to other processes or to the profiler.
const EFFECTFUL_NAMESPACES: [&str; 6] =
    ["c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "profiler", "dc"];

/// How AOTAutograd calls an operator with side effects: in line by way of tokens.
const WITH_EFFECTS: &str = "higher_order.with_effects";

/// Walks `gm`; `name` is `forward`, `backward` or `inference`.
pub fn walk(gm: &Bound<'_, PyAny>, name: &str) -> PyResult<Walked> {
    let py = gm.py();
    let mut w = Walk::new(py, name)?;
    for node in gm.getattr(intern!(py, "graph"))?.getattr(intern!(py, "nodes"))?.try_iter()? {
        w.node(gm, &node?)?;
    }
    w.out.graph.syms = w.symbols.syms.into_iter().collect();
    Ok(w.out)
}

impl<'py> Walk<'py> {
    /// Nothing walked yet.
    pub(crate) fn new(py: Python<'py>, name: &str) -> PyResult<Walk<'py>> {
        Ok(Walk {
            py,
            torch: torch(py)?,
            symbols: Symbols::new(py),
            refs: HashMap::new(),
            tuples: false,
            known_targets: HashMap::new(),
            with_effects: HashSet::new(),
            out: Walked {
                graph: FxGraph { name: name.into(), ..FxGraph::default() },
                objects: vec![],
                constants: vec![],
                targets: BTreeMap::new(),
                lazy: vec![],
            },
            placeholders: 0,
        })
    }

    /// Arguments that are this node refer to number `i`.
    pub(crate) fn refer(&mut self, node: &Bound<'py, PyAny>, i: usize) {
        self.refs.insert(node.as_ptr() as usize, FxArg::Node(i));
    }

    /// The symbols met so far.
    pub(crate) fn syms(&self) -> Vec<(lj_ir::Sym, lj_ir::SymInfo)> {
        self.symbols.syms.iter().map(|(s, i)| (s.clone(), i.clone())).collect()
    }

    fn node(&mut self, gm: &Bound<'py, PyAny>, node: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = self.py;
        let op = node.getattr(intern!(py, "op"))?;
        let target = node.getattr(intern!(py, "target"))?;
        let meta = node.getattr(intern!(py, "meta"))?;
        let val = meta.cast::<PyDict>()?.get_item(intern!(py, "val"))?;
        let mut kwargs = vec![];
        let (mut args, mut value) = (vec![], None);
        let kind = match op.cast::<PyString>()?.to_str()? {
            "placeholder" => FxKind::Placeholder,
            "get_attr" => {
                let attr = attribute(gm, &target)?;
                if !is(&attr, &self.torch.tensor) {
                    // A subgraph of a higher-order operator, or a script object.
                    let object = self.object(&attr);
                    self.refs.insert(node.as_ptr() as usize, object);
                    return Ok(());
                }
                let attr = physical(&attr)?;
                self.out.constants.push(attr.clone().unbind());
                value = Some(attr);
                FxKind::Constant
            }
            "output" => {
                let list = node.getattr(intern!(py, "args"))?.get_item(0)?;
                args = vec![self.arg(&list)?];
                FxKind::Output
            }
            "call_function" => {
                let passed = node.getattr(intern!(py, "args"))?;
                let mut passed: Vec<_> = passed.cast::<PyTuple>()?.iter().collect();
                if self.token(node, &target, &passed)? {
                    return Ok(());
                }
                let mut t = self.target(&target)?;
                if t.name == WITH_EFFECTS && passed.len() >= 2 {
                    // `with_effects(token, op, *args)` is a call of `op` that keeps its place.
                    let op = passed.remove(1);
                    passed.remove(0);
                    t = Target { effect: true, ..self.target(&op)? };
                    self.with_effects.insert(node.as_ptr() as usize);
                }
                self.tuples = t.name.starts_with("higher_order.");
                for a in &passed {
                    args.push(self.arg(a)?);
                }
                for (k, v) in node.getattr(intern!(py, "kwargs"))?.cast::<PyDict>()?.iter() {
                    kwargs.push((k.extract()?, self.arg(&v)?));
                }
                self.tuples = false;
                FxKind::Call { target: t.name, effect: t.effect }
            }
            other => {
                return Err(PyNotImplementedError::new_err(format!(
                    "an FX node of kind {other} ({target}) below AOTAutograd"
                )));
            }
        };
        if matches!(kind, FxKind::Placeholder) {
            if let Some(v) = val.as_ref().filter(|v| is_tensor(v).unwrap_or(false)) {
                if self.shows_bits(node, v)? {
                    self.out.lazy.push(self.placeholders);
                } else if lazy_bit(v)? {
                    return Err(PyNotImplementedError::new_err(
                        "an input that is changed and has the conjugate or negative bit set",
                    ));
                }
            }
            self.placeholders += 1;
        }
        let mut meta = match (&kind, val.or(value)) {
            (FxKind::Output, _) => FxMeta::None,
            (_, Some(v)) => self.meta(&v)?,
            (_, None) => FxMeta::None,
        };
        if self.with_effects.contains(&(node.as_ptr() as usize)) {
            meta = without_token(meta);
        }
        let line = match kind {
            FxKind::Call { .. } => self.line(node)?,
            _ => None,
        };
        let name = node.getattr(intern!(py, "name"))?.extract()?;
        self.refs.insert(node.as_ptr() as usize, FxArg::Node(self.out.graph.nodes.len()));
        self.out.graph.nodes.push(FxNode { name, kind, args, kwargs, meta, line });
        Ok(())
    }

    /// Whether the input may come with a bit that its memory does not show: a complex tensor, one
    /// that had it when the graph was made, a gradient. Not if the graph writes into it.
    fn shows_bits(&self, node: &Bound<'py, PyAny>, v: &Bound<'py, PyAny>) -> PyResult<bool> {
        let py = self.py;
        let complex = v.call_method0(intern!(py, "is_complex"))?.is_truthy()?;
        let name: String = node.getattr(intern!(py, "name"))?.extract()?;
        if !(complex || name.starts_with("tangents") || lazy_bit(v)?) {
            return Ok(false);
        }
        for user in node.getattr(intern!(py, "users"))?.try_iter()? {
            let user = user?;
            let target = user.getattr(intern!(py, "target"))?.str()?.to_string();
            let args = user.getattr(intern!(py, "args"))?;
            if target == "aten.copy_.default" && args.get_item(0)?.is(node) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether `node` only passes an effect token on, or takes the result out of a `with_effects`,
    /// whose result is `(token, *results)`. Such nodes vanish; their uses are redirected.
    fn token(
        &mut self,
        node: &Bound<'py, PyAny>,
        target: &Bound<'py, PyAny>,
        args: &[Bound<'py, PyAny>],
    ) -> PyResult<bool> {
        let here = node.as_ptr() as usize;
        if target.is(self.torch.getitem.bind(self.py)) {
            let [from, index] = args else { return Ok(false) };
            if !self.with_effects.contains(&(from.as_ptr() as usize)) {
                return Ok(false);
            }
            let Some(FxArg::Node(call)) = self.refs.get(&(from.as_ptr() as usize)).cloned() else {
                return Ok(false);
            };
            let index: usize = index.extract()?;
            let several = matches!(self.out.graph.nodes[call].meta, FxMeta::List(_));
            let what = match index {
                0 => FxArg::None,
                _ if !several => FxArg::Node(call),
                // An ordinary `getitem`, one to the left.
                i => {
                    let getitem = self.target(target)?;
                    let meta = match &self.out.graph.nodes[call].meta {
                        FxMeta::List(m) => m.get(i - 1).cloned().unwrap_or(FxMeta::None),
                        _ => FxMeta::None,
                    };
                    self.out.graph.nodes.push(FxNode {
                        name: node.getattr(intern!(self.py, "name"))?.extract()?,
                        kind: FxKind::Call { target: getitem.name, effect: false },
                        args: vec![FxArg::Node(call), FxArg::Int(i as i64 - 1)],
                        kwargs: vec![],
                        meta,
                        line: None,
                    });
                    FxArg::Node(self.out.graph.nodes.len() - 1)
                }
            };
            self.refs.insert(here, what);
            return Ok(true);
        }
        let name = self.target(target)?.name;
        let only_token = matches!(name.as_str(), "prims._make_token.default" | "prims._sink_tokens.default");
        if only_token {
            self.refs.insert(here, FxArg::None);
        }
        Ok(only_token)
    }

    fn object(&mut self, x: &Bound<'py, PyAny>) -> FxArg {
        self.out.objects.push(x.clone().unbind());
        FxArg::Object(self.out.objects.len() - 1)
    }

    pub(crate) fn arg(&mut self, x: &Bound<'py, PyAny>) -> PyResult<FxArg> {
        let t = self.torch;
        if let Some(arg) = self.refs.get(&(x.as_ptr() as usize)) {
            return Ok(arg.clone());
        }
        if x.is_none() {
            return Ok(FxArg::None);
        }
        if let Ok(b) = x.cast::<PyBool>() {
            return Ok(FxArg::Bool(b.is_true()));
        }
        if x.is_exact_instance_of::<PyInt>() {
            // An integer beyond 64 bits (a mask written as u64) is left to Python.
            return Ok(x.extract().map_or_else(|_| self.object(x), FxArg::Int));
        }
        if x.is_exact_instance_of::<PyFloat>() {
            return Ok(FxArg::Float(x.extract()?));
        }
        if let Ok(s) = x.cast::<PyString>() {
            return Ok(FxArg::Str(s.to_str()?.into()));
        }
        let tuple = x.is_instance_of::<PyTuple>();
        if tuple || x.is_instance_of::<PyList>() {
            let kind = if tuple && self.tuples { FxArg::Tuple } else { FxArg::List };
            return Ok(kind(x.try_iter()?.map(|i| self.arg(&i?)).collect::<PyResult<_>>()?));
        }
        if is(x, &t.dtype) {
            return Ok(torch::dtype(x)?.map_or_else(|| self.object(x), FxArg::DType));
        }
        if is(x, &t.device) {
            return Ok(torch::device(x)?.map_or_else(|| self.object(x), FxArg::Device));
        }
        if is(x, &t.layout) {
            return Ok(FxArg::Layout(torch::name_of(x)?));
        }
        if is(x, &t.memory_format) {
            return Ok(FxArg::MemoryFormat(torch::name_of(x)?));
        }
        if is(x, &t.sym_int) {
            let e = self.symbols.int(x)?;
            return e.as_int().map(FxArg::Int).ok_or_else(|| {
                PyNotImplementedError::new_err("a symbolic integer inside an FX argument list")
            });
        }
        Ok(self.object(x))
    }

    fn target(&mut self, target: &Bound<'py, PyAny>) -> PyResult<Target> {
        let key = target.as_ptr() as usize;
        if let Some(t) = self.known_targets.get(&key) {
            return Ok(t.clone());
        }
        let t = describe(self.py, self.torch, target)?;
        self.out.targets.insert(t.name.clone(), target.clone().unbind());
        self.known_targets.insert(key, t.clone());
        Ok(t)
    }

    pub(crate) fn meta(&mut self, v: &Bound<'py, PyAny>) -> PyResult<FxMeta> {
        let t = self.torch;
        if v.is_none() {
            return Ok(FxMeta::None);
        }
        if is(v, &t.tensor) {
            return self.tensor(v);
        }
        if is(v, &t.sym_int) || v.is_exact_instance_of::<PyInt>() {
            return Ok(FxMeta::SymInt(self.symbols.int(v)?));
        }
        if v.is_instance_of::<PyBool>() {
            return Ok(FxMeta::SymBool);
        }
        if is(v, &t.sym_bool) {
            return Ok(self.symbols.truth(v)?.map_or(FxMeta::SymBool, FxMeta::Truth));
        }
        if is(v, &t.sym_float) || v.is_instance_of::<PyFloat>() {
            return Ok(FxMeta::SymFloat);
        }
        if v.is_instance_of::<PyList>() || v.is_instance_of::<PyTuple>() {
            return Ok(FxMeta::List(v.try_iter()?.map(|i| self.meta(&i?)).collect::<PyResult<_>>()?));
        }
        Ok(FxMeta::Other(torch::type_name(v)))
    }

    fn tensor(&mut self, v: &Bound<'py, PyAny>) -> PyResult<FxMeta> {
        let (py, t) = (self.py, self.torch);
        let fake = is_exactly(v, &t.fake_tensor);
        if !fake && !is_exactly(v, &t.tensor) && !is_exactly(v, &t.parameter) {
            return Ok(FxMeta::Other(format!("tensor subclass {}", torch::type_name(v))));
        }
        if !v.getattr(intern!(py, "layout"))?.is(t.strided.bind(py)) {
            let layout = v.getattr(intern!(py, "layout"))?;
            return Ok(FxMeta::Other(format!("tensor of layout {layout}")));
        }
        let dtype = v.getattr(intern!(py, "dtype"))?;
        // `FakeTensor.device` goes through a dispatch; its field does not.
        let device =
            if fake { v.getattr(intern!(py, "fake_device"))? } else { v.getattr(intern!(py, "device"))? };
        let Some(dt) = torch::dtype(&dtype)? else {
            return Ok(FxMeta::Other(format!("tensor of dtype {dtype}")));
        };
        let Some(device) = torch::device(&device)? else {
            return Ok(FxMeta::Other(format!("tensor on device {device}")));
        };
        let shape = v.getattr(intern!(py, "shape"))?;
        let strides = v.call_method0(intern!(py, "stride"))?;
        let mut list = |x: &Bound<'py, PyAny>| -> PyResult<Vec<lj_ir::Expr>> {
            x.cast::<PyTuple>()?.iter().map(|e| self.symbols.int(&e)).collect()
        };
        Ok(FxMeta::Tensor(TensorType { dtype: dt, device, shape: list(&shape)?, strides: list(&strides)? }))
    }

    /// The innermost frame of the node's stack trace that is not torch's own.
    fn line(&self, node: &Bound<'py, PyAny>) -> PyResult<Option<String>> {
        let trace = node.getattr(intern!(self.py, "stack_trace"))?;
        let Ok(trace) = trace.cast::<PyString>() else { return Ok(None) };
        Ok(user_line(trace.to_str()?, torch::install_dir(self.py)?))
    }
}

/// The result of a `with_effects` without its token: one result as itself, several as a list.
fn without_token(meta: FxMeta) -> FxMeta {
    match meta {
        FxMeta::List(mut all) if !all.is_empty() => {
            all.remove(0);
            if all.len() == 1 { all.remove(0) } else { FxMeta::List(all) }
        }
        other => other,
    }
}

/// Resolves a dotted attribute path.
fn attribute<'py>(gm: &Bound<'py, PyAny>, path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let path: String = path.extract()?;
    path.split('.').try_fold(gm.clone(), |x, part| x.getattr(part))
}

fn describe(py: Python<'_>, t: &Torch, target: &Bound<'_, PyAny>) -> PyResult<Target> {
    if target.is(t.getitem.bind(py)) {
        return Ok(Target { name: "_operator.getitem".into(), effect: false });
    }
    if is(target, &t.op_overload) {
        let name = target.str()?.to_string();
        let namespace = name.split('.').next().unwrap_or_default();
        let seeded = t.seeded_tag.bind(py).getattr(intern!(py, "nondeterministic_seeded"))?;
        let effect = EFFECTFUL_NAMESPACES.contains(&namespace)
            || target.getattr(intern!(py, "tags"))?.contains(seeded)?
            || target.getattr(intern!(py, "_schema"))?.getattr(intern!(py, "is_mutable"))?.is_truthy()?
            || side_effectful(py, target)?;
        return Ok(Target { name, effect });
    }
    if is(target, &t.higher_order) {
        let name: String = target.call_method0(intern!(py, "name"))?.extract()?;
        return Ok(Target { name: format!("higher_order.{name}"), effect: true });
    }
    let module: String = target.getattr("__module__").and_then(|m| m.extract()).unwrap_or_default();
    let qualname = target.getattr("__name__").and_then(|m| m.extract::<String>());
    let qualname = qualname.unwrap_or_else(|_| torch::type_name(target));
    let effect = side_effectful(py, target)?;
    // Python operators and torch.sym_* on SymInts, SymFloats and SymBools.
    let name = match (module.as_str(), qualname.strip_prefix("sym_")) {
        ("_operator", _) => format!("sym.{}", qualname.trim_end_matches('_')),
        (_, Some(op)) => format!("sym.{op}"),
        ("math", _) => format!("sym.math.{qualname}"),
        _ => format!("{module}.{qualname}"),
    };
    Ok(Target { name, effect })
}

/// Whether FX itself keeps calls of `target` that nothing uses (assertions, profiler marks).
fn side_effectful(py: Python<'_>, target: &Bound<'_, PyAny>) -> PyResult<bool> {
    py.import(intern!(py, "torch.fx.node"))?
        .getattr(intern!(py, "_side_effectful_functions"))?
        .contains(target)
}

/// `file:line: text` of the innermost frame of `trace` outside `torch_dir`.
fn user_line(trace: &str, torch_dir: &str) -> Option<String> {
    let lines: Vec<&str> = trace.lines().collect();
    let frame = |i: usize| -> Option<(&str, &str, &str)> {
        let rest = lines[i].trim_start().strip_prefix("File \"")?;
        let (file, rest) = rest.split_once("\", line ")?;
        let number = rest.split(',').next()?;
        let text = lines.get(i + 1).map_or("", |t| t.trim());
        Some((file, number, text))
    };
    let frames: Vec<_> = (0..lines.len()).filter_map(frame).collect();
    let own = frames.iter().rev().find(|(file, ..)| torch_dir.is_empty() || !file.starts_with(torch_dir));
    let (file, number, text) = own.or(frames.last())?;
    Some(format!("{file}:{number}: {text}"))
}
