//! Operators spelled out in a graph that Dynamo captured: reads the calls around some nodes, and hands
//! back what the search found.

use crate::CompileError;
use crate::convert::is_tensor;
use crate::walk::Walk;
use lj_driver::{Site, StepArg};
use lj_import::captured::{CapturedCall, names};
use lj_import::fx::{FxArg, FxMeta};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PyList, PySlice, PyTuple};
use std::collections::{BTreeSet, HashMap};

/// Names of the functions that are known to the import.
#[pyfunction]
pub fn captured_names() -> Vec<&'static str> {
    names().map(|(name, _)| name).collect()
}

struct Around<'a, 'py> {
    nodes: Vec<Bound<'py, PyAny>>,
    /// Position of a node by address.
    place: HashMap<usize, usize>,
    /// Target → name, for calls of functions and for methods.
    functions: &'a Bound<'py, PyDict>,
    known: HashMap<String, (&'static str, bool)>,
}

impl Around<'_, '_> {
    fn name(&self, at: usize) -> PyResult<Option<(&'static str, bool)>> {
        let node = &self.nodes[at];
        let py = node.py();
        let target = node.getattr(intern!(py, "target"))?;
        let Some(name) = self.functions.get_item(target)? else { return Ok(None) };
        Ok(self.known.get(&name.extract::<String>()?).copied())
    }

    fn neighbours(&self, at: usize, attr: &str) -> PyResult<Vec<usize>> {
        let mut out = vec![];
        for n in self.nodes[at].getattr(attr)?.try_iter()? {
            // What is not in the list (the output node) has a position that nothing else has.
            out.push(self.place.get(&(n?.as_ptr() as usize)).copied().unwrap_or(usize::MAX));
        }
        Ok(out)
    }

    /// Positions of the calls to read, and which of them are not leaves. Above a linear layer nothing
    /// is known; above a call that is not known, some more are read to tell what is nearly a pattern.
    fn collect(&self, seeds: &[usize]) -> PyResult<(BTreeSet<usize>, BTreeSet<usize>)> {
        const BLIND: usize = 3;
        let (mut all, mut known) = (BTreeSet::new(), BTreeSet::new());
        let mut stack: Vec<(usize, bool, usize)> = seeds.iter().map(|s| (*s, true, BLIND)).collect();
        while let Some((at, down, blind)) = stack.pop() {
            if at == usize::MAX {
                continue;
            }
            let fresh = all.insert(at);
            let above = || self.neighbours(at, "all_input_nodes");
            let Some((name, flows)) = self.name(at)? else {
                if fresh && blind > 0 {
                    stack.extend(above()?.into_iter().map(|n| (n, false, blind - 1)));
                }
                continue;
            };
            if !known.insert(at) {
                continue;
            }
            if name == "linear" {
                all.extend(above()?);
                continue;
            }
            let blind = if ENDS.contains(&name) { 0 } else { blind };
            stack.extend(above()?.into_iter().map(|n| (n, false, blind)));
            if down && flows {
                stack.extend(self.neighbours(at, "users")?.into_iter().map(|n| (n, true, 0)));
            }
        }
        Ok((all, known))
    }
}

/// Calls behind which nothing is nearly a pattern.
const ENDS: [&str; 4] = ["matmul", "bmm", "baddbmm", "einsum"];

/// An argument; slices and `...`, which only indexing has, as `FxArg::List` and a string.
fn argument<'py>(walk: &mut Walk<'py>, x: &Bound<'py, PyAny>) -> PyResult<FxArg> {
    if let Ok(s) = x.cast::<PySlice>() {
        let mut parts = vec![FxArg::Str("slice".into())];
        for name in ["start", "stop", "step"] {
            parts.push(argument(walk, &s.getattr(name)?)?);
        }
        return Ok(FxArg::List(parts));
    }
    if x.is_instance_of::<PyEllipsis>() {
        return Ok(FxArg::Str("...".into()));
    }
    if let Ok(t) = x.cast::<PyTuple>() {
        return Ok(FxArg::List(t.iter().map(|i| argument(walk, &i)).collect::<PyResult<_>>()?));
    }
    walk.arg(x)
}

/// Finds operators around the nodes at `seeds` of `nodes`, all nodes of a graph.
///
/// `functions` maps targets to names of `captured_names`; `barriers` are positions of calls that may
/// change memory or modes. Returns `(family, at, found, declined, steps, dead)` for each: a step is a
/// name and arguments, an argument a kind and a value.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // pyo3 makes lists of integers only by value
pub fn find_operators<'py>(
    py: Python<'py>,
    nodes: &Bound<'py, PyList>,
    functions: &Bound<'py, PyDict>,
    seeds: Vec<usize>,
    barriers: Vec<usize>,
    always: bool,
) -> PyResult<Bound<'py, PyList>> {
    let nodes: Vec<Bound<'py, PyAny>> = nodes.iter().collect();
    let place = nodes.iter().enumerate().map(|(i, n)| (n.as_ptr() as usize, i)).collect();
    let known = names().map(|(n, f)| (n.to_string(), (n, f))).collect();
    let around = Around { nodes, place, functions, known };
    let (all, known) = around.collect(&seeds)?;
    let mut walk = Walk::new(py, "captured")?;
    let mut calls = vec![];
    for &at in &all {
        let node = &around.nodes[at];
        walk.refer(node, at);
        let meta = node.getattr(intern!(py, "meta"))?;
        let value = meta.cast::<PyDict>()?.get_item(intern!(py, "example_value"))?;
        let Some(value) = value.filter(|v| is_tensor(v).unwrap_or(false)) else { continue };
        // A size in a form that the IR does not have: not one for patterns.
        let Ok(meta @ FxMeta::Tensor(_)) = walk.meta(&value) else { continue };
        let mut call = CapturedCall {
            at,
            name: None,
            args: vec![],
            kwargs: vec![],
            meta,
            grad: value.getattr(intern!(py, "requires_grad"))?.is_truthy()?,
            reads: around.neighbours(at, "all_input_nodes")?,
            users: around.neighbours(at, "users")?,
        };
        if known.contains(&at) {
            call.name = around.name(at)?.map(|(n, _)| n);
            for a in node.getattr(intern!(py, "args"))?.cast::<PyTuple>()?.iter() {
                call.args.push(argument(&mut walk, &a)?);
            }
            for (k, v) in node.getattr(intern!(py, "kwargs"))?.cast::<PyDict>()?.iter() {
                call.kwargs.push((k.extract()?, argument(&mut walk, &v)?));
            }
        }
        calls.push(call);
    }
    let syms = walk.syms();
    let sites = py
        .detach(|| lj_driver::find_operators(&calls, &barriers, &syms, always))
        .map_err(|e| CompileError::new_err(e.to_string()))?;
    let out = PyList::empty(py);
    for site in sites {
        out.append(to_python(py, site)?)?;
    }
    Ok(out)
}

fn to_python(py: Python<'_>, site: Site) -> PyResult<Bound<'_, PyAny>> {
    let steps = PyList::empty(py);
    for step in site.steps {
        let args = PyList::empty(py);
        for a in step.args {
            args.append(match a {
                StepArg::Call(i) => ("call", i).into_pyobject(py)?,
                StepArg::Step(i) => ("step", i).into_pyobject(py)?,
                StepArg::None => ("value", py.None()).into_pyobject(py)?,
                StepArg::Bool(b) => ("value", b).into_pyobject(py)?,
                StepArg::Int(i) => ("value", i).into_pyobject(py)?,
                StepArg::Ints(i) => ("value", i).into_pyobject(py)?,
                StepArg::Float(f) => ("value", f).into_pyobject(py)?,
                StepArg::DType(d) => ("dtype", d).into_pyobject(py)?,
            })?;
        }
        steps.append((step.name, args))?;
    }
    let found = (site.family, site.at, site.found, site.declined, steps, site.dead);
    Ok(found.into_pyobject(py)?.into_any())
}
