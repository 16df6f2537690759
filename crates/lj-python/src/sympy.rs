//! Symbolic sizes: `SymInt.node.expr`, a sympy tree, becomes an [`Expr`] structurally.

use crate::torch::{is, torch};
use lj_ir::{Expr, Sym, SymInfo};
use pyo3::exceptions::PyNotImplementedError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Converts sympy trees and collects what is known of their symbols.
pub struct Symbols<'py> {
    /// sympy tree → index into `exprs`.
    memo: Bound<'py, PyDict>,
    exprs: Vec<Expr>,
    /// Symbols met so far.
    pub syms: BTreeMap<Sym, SymInfo>,
}

impl<'py> Symbols<'py> {
    /// Nothing converted yet.
    pub fn new(py: Python<'py>) -> Symbols<'py> {
        Symbols { memo: PyDict::new(py), exprs: vec![], syms: BTreeMap::new() }
    }

    /// A Python int or `SymInt`.
    pub fn int(&mut self, x: &Bound<'py, PyAny>) -> PyResult<Expr> {
        if x.is_exact_instance_of::<PyInt>() {
            return Ok(Expr::int(x.extract()?));
        }
        let py = x.py();
        if !is(x, &torch(py)?.sym_int) {
            return Ok(Expr::int(x.extract()?));
        }
        let node = x.getattr(intern!(py, "node"))?;
        let tree = node.getattr(intern!(py, "expr"))?;
        let env = node.getattr(intern!(py, "shape_env"))?;
        self.tree(&tree, &env)
    }

    /// The symbol that a `SymBool` compares with 1.
    pub fn truth(&mut self, x: &Bound<'py, PyAny>) -> PyResult<Option<Sym>> {
        let py = x.py();
        let node = x.getattr(intern!(py, "node"))?;
        let tree = node.getattr(intern!(py, "expr"))?;
        if tree.get_type().name()? != "Equality" {
            return Ok(None);
        }
        let args = tree.getattr(intern!(py, "args"))?;
        let (a, b) = (args.get_item(0)?, args.get_item(1)?);
        let symbol = |t: &Bound<'py, PyAny>| t.getattr(intern!(py, "is_Symbol"))?.is_truthy();
        let a_is_one = a.eq(1)?;
        if !(a_is_one && symbol(&b)? || b.eq(1)? && symbol(&a)?) {
            return Ok(None);
        }
        let env = node.getattr(intern!(py, "shape_env"))?;
        Ok(self.tree(if a_is_one { &b } else { &a }, &env)?.as_sym().cloned())
    }

    fn tree(&mut self, tree: &Bound<'py, PyAny>, env: &Bound<'py, PyAny>) -> PyResult<Expr> {
        if let Some(i) = self.memo.get_item(tree)? {
            return Ok(self.exprs[i.extract::<usize>()?].clone());
        }
        let out = self.convert(tree, env)?;
        self.memo.set_item(tree, self.exprs.len())?;
        self.exprs.push(out.clone());
        Ok(out)
    }

    fn convert(&mut self, tree: &Bound<'py, PyAny>, env: &Bound<'py, PyAny>) -> PyResult<Expr> {
        let py = tree.py();
        let unsupported = || {
            let text = tree.str().map_or_else(|_| "?".into(), |s| s.to_string());
            PyNotImplementedError::new_err(format!("symbolic size {text} has a form the IR does not have"))
        };
        if tree.getattr(intern!(py, "is_Integer"))?.is_truthy()? {
            return Ok(Expr::int(tree.call_method0(intern!(py, "__int__"))?.extract()?));
        }
        if tree.getattr(intern!(py, "is_Symbol"))?.is_truthy()? {
            return self.symbol(tree, env);
        }
        let class = tree.get_type().name()?.to_string();
        match class.as_str() {
            "BooleanTrue" => return Ok(Expr::ONE),
            "BooleanFalse" => return Ok(Expr::ZERO),
            "Piecewise" => return self.piecewise(tree, env),
            "TruncToInt" | "FloorToInt" => {
                let scaled = self.scaled(&tree.getattr(intern!(py, "args"))?.get_item(0)?, env)?;
                return scaled.ok_or_else(unsupported);
            }
            _ => {}
        }
        let mut args = vec![];
        for a in tree.getattr(intern!(py, "args"))?.cast::<PyTuple>()?.iter() {
            args.push(self.tree(&a, env)?);
        }
        let fold = |f: fn(&Expr, &Expr) -> Expr| {
            let mut it = args.iter();
            it.next().map(|first| it.fold(first.clone(), |a, b| f(&a, b)))
        };
        match (class.as_str(), args.as_slice()) {
            ("Add", _) => fold(|a, b| a + b),
            ("Mul", _) => fold(|a, b| a * b),
            ("Max", _) => fold(Expr::maximum),
            ("Min", _) => fold(Expr::minimum),
            ("Pow" | "PowByNatural", [base, exponent]) => match exponent.as_int() {
                Some(n @ 0..=64) => Some((0..n).fold(Expr::ONE, |acc, _| &acc * base)),
                _ => None,
            },
            ("FloorDiv" | "CleanDiv" | "IntTrueDiv", [a, b]) => match class.as_str() {
                // A true division is an integer only where it is exact.
                "IntTrueDiv" => a.div_exact(b),
                _ => Some(a.floordiv(b)),
            },
            // sympy's `Mod` is only used where the dividend is non-negative: the two agree.
            ("Mod" | "PythonMod", [a, b]) => Some(a.modulo(b)),
            ("ModularIndexing", [a, d, m]) => Some(a.floordiv(d).modulo(m)),
            ("Identity", [a]) => Some(a.clone()),
            // Truth values as 0 and 1.
            ("Equality", [a, b]) => Some(&Expr::ONE - &differ(a, b)),
            ("Unequality", [a, b]) => Some(differ(a, b)),
            ("StrictLessThan", [a, b]) | ("StrictGreaterThan", [b, a]) => Some(positive(&(b - a))),
            ("LessThan", [a, b]) | ("GreaterThan", [b, a]) => Some(positive(&(&(b - a) + &Expr::ONE))),
            ("And", _) => fold(|a, b| a * b),
            ("Or", _) => fold(Expr::maximum),
            ("Not", [a]) => Some(&Expr::ONE - a),
            _ => None,
        }
        .ok_or_else(unsupported)
    }

    /// The first value whose condition holds.
    fn piecewise(&mut self, tree: &Bound<'py, PyAny>, env: &Bound<'py, PyAny>) -> PyResult<Expr> {
        let py = tree.py();
        let mut out = Expr::ZERO;
        let pairs: Vec<_> = tree.getattr(intern!(py, "args"))?.cast::<PyTuple>()?.iter().collect();
        for pair in pairs.iter().rev() {
            let value = self.tree(&pair.getattr(intern!(py, "expr"))?, env)?;
            let holds = self.tree(&pair.getattr(intern!(py, "cond"))?, env)?;
            let other = &(&Expr::ONE - &holds) * &out;
            out = &(&holds * &value) + &other;
        }
        Ok(out)
    }

    /// `⌊factor × size⌋` of the tree `factor × size`, a float product that is exact: the factor is a
    /// positive multiple of 2⁻¹⁰ (an image enlarged by 1.5) and sizes are not negative.
    fn scaled(&mut self, tree: &Bound<'py, PyAny>, env: &Bound<'py, PyAny>) -> PyResult<Option<Expr>> {
        const UNIT: f64 = 1024.0;
        let py = tree.py();
        let class = |t: &Bound<'py, PyAny>| t.get_type().name().map(|n| n.to_string());
        let name = class(tree)?;
        let factors: Vec<Bound<'py, PyAny>> = match name.as_str() {
            "Mul" | "FloatMul" => tree.getattr(intern!(py, "args"))?.try_iter()?.collect::<PyResult<_>>()?,
            _ => vec![tree.clone()],
        };
        let (mut units, mut size) = (UNIT, Expr::ONE);
        for f in factors {
            if f.getattr(intern!(py, "is_Float"))?.is_truthy()? {
                units *= f.call_method0(intern!(py, "__float__"))?.extract::<f64>()?;
            } else if class(&f)? == "ToFloat" {
                size = &size * &self.tree(&f.getattr(intern!(py, "args"))?.get_item(0)?, env)?;
            } else {
                size = &size * &self.tree(&f, env)?;
            }
        }
        let exact = units.fract() == 0.0 && (1.0..1e9).contains(&units);
        Ok(exact.then(|| (size * Expr::int(units as i64)).floordiv(&Expr::int(UNIT as i64))))
    }

    fn symbol(&mut self, tree: &Bound<'py, PyAny>, env: &Bound<'py, PyAny>) -> PyResult<Expr> {
        let py = tree.py();
        let name: String = tree.getattr(intern!(py, "name"))?.extract()?;
        let sym = Sym::new(&name);
        if let Entry::Vacant(slot) = self.syms.entry(sym) {
            slot.insert(info(tree, env)?);
        }
        Ok(Expr::sym(&name))
    }
}

/// 1 if `x > 0`, else 0.
fn positive(x: &Expr) -> Expr {
    x.maximum(&Expr::ZERO).minimum(&Expr::ONE)
}

/// 1 if `a != b`, else 0.
fn differ(a: &Expr, b: &Expr) -> Expr {
    (a - b).maximum(&(b - a)).minimum(&Expr::ONE)
}

/// Range and hint of a symbol.
fn info(symbol: &Bound<'_, PyAny>, env: &Bound<'_, PyAny>) -> PyResult<SymInfo> {
    let py = symbol.py();
    let as_int = |x: &Bound<'_, PyAny>| -> Option<i64> {
        // Infinities (`sympy.oo`, `int_oo`) do not convert.
        if !x.getattr(intern!(py, "is_Integer")).ok()?.is_truthy().ok()? {
            return None;
        }
        x.call_method0(intern!(py, "__int__")).ok()?.extract().ok()
    };
    let (mut min, mut max) = (i64::MIN, i64::MAX);
    let ranges = env.getattr(intern!(py, "var_to_range"))?;
    if let Ok(range) = ranges.get_item(symbol) {
        min = as_int(&range.getattr(intern!(py, "lower"))?).unwrap_or(min);
        max = as_int(&range.getattr(intern!(py, "upper"))?).unwrap_or(max);
    }
    // Renamed after torch 2.8; the old name warns where the new one exists.
    let hints = match env.getattr_opt(intern!(py, "backed_var_to_val"))? {
        Some(h) => h,
        None => env.getattr(intern!(py, "var_to_val"))?,
    };
    let hint = hints.get_item(symbol).ok().and_then(|v| as_int(&v));
    Ok(SymInfo { min, max, hint })
}
