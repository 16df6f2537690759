//! Operator schemas.

use super::schemas::SCHEMAS;
use lj_ir::{Arg, DType, Expr};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Type of a parameter, without the `?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Tensor,
    Tensors,
    OptTensors,
    Int,
    /// With its fixed length.
    Ints(Option<usize>),
    Float,
    Floats,
    Scalar,
    Bool,
    Bools(Option<usize>),
    Str,
    DType,
    Layout,
    Device,
    Generator,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Param {
    pub name: String,
    pub base: Base,
    pub optional: bool,
    pub keyword_only: bool,
    pub default: Option<Arg>,
}

/// An operator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Schema {
    /// `name` or `name.overload`.
    pub name: String,
    pub params: Vec<Param>,
    pub results: usize,
}

/// The schema of an operator of our list, by its target such as `aten.convolution.default`.
pub(super) fn find(target: &str) -> Option<&'static Schema> {
    static ALL: OnceLock<BTreeMap<String, Schema>> = OnceLock::new();
    let all =
        ALL.get_or_init(|| SCHEMAS.iter().filter_map(|s| parse(s)).map(|s| (s.name.clone(), s)).collect());
    let name = target.strip_prefix("aten.")?;
    all.get(name.strip_suffix(".default").unwrap_or(name))
}

impl Schema {
    /// The C function.
    pub(super) fn symbol(&self) -> String {
        format!("aoti_torch_cpu_{}", self.name.replace('.', "_"))
    }
}

/// Parses `name.overload(Type name=default, *, …) -> …`.
fn parse(text: &str) -> Option<Schema> {
    let (name, rest) = text.split_once('(')?;
    let (params, results) = rest.split_once(") -> ")?;
    let results = if results.starts_with('(') { split(results.trim_matches(['(', ')'])).len() } else { 1 };
    let (mut list, mut keyword_only) = (vec![], false);
    for p in split(params) {
        if p == "*" {
            keyword_only = true;
        } else {
            list.push(Param { keyword_only, ..param(p)? });
        }
    }
    Some(Schema { name: name.into(), params: list, results })
}

/// Splits at commas outside brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0, 0, vec![]);
    for (i, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                out.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(text[start..].trim());
    out.retain(|s| !s.is_empty());
    out
}

fn param(text: &str) -> Option<Param> {
    let (ty, rest) = text.split_once(' ')?;
    let (name, default) = rest.split_once('=').map_or((rest, None), |(n, d)| (n, Some(d)));
    let (ty, optional) = ty.strip_suffix('?').map_or((ty, false), |t| (t, true));
    let base = base(ty)?;
    let default = default.map(|d| value(base, d)).map_or(Some(None), |d| d.map(Some))?;
    Some(Param { name: name.into(), base, optional, keyword_only: false, default })
}

fn base(ty: &str) -> Option<Base> {
    if let Some((element, n)) = ty.strip_suffix(']').and_then(|t| t.split_once('[')) {
        let n = if n.is_empty() { None } else { Some(n.parse().ok()?) };
        return Some(match element {
            "Tensor" => Base::Tensors,
            "Tensor?" => Base::OptTensors,
            "int" | "SymInt" => Base::Ints(n),
            "bool" => Base::Bools(n),
            "float" => Base::Floats,
            _ => return None,
        });
    }
    Some(match ty {
        "Tensor" => Base::Tensor,
        "int" | "SymInt" => Base::Int,
        "float" => Base::Float,
        "Scalar" => Base::Scalar,
        "bool" => Base::Bool,
        "str" => Base::Str,
        "ScalarType" => Base::DType,
        "Layout" => Base::Layout,
        "Device" => Base::Device,
        "Generator" => Base::Generator,
        _ => return None,
    })
}

fn value(base: Base, text: &str) -> Option<Arg> {
    if let Some(list) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return split(list).into_iter().map(|t| value(Base::Int, t)).collect::<Option<_>>().map(Arg::List);
    }
    Some(match (text, base) {
        ("None", _) => Arg::None,
        ("True", _) => Arg::Bool(true),
        ("False", _) => Arg::Bool(false),
        (_, Base::Str) => Arg::Str(text.trim_matches('"').into()),
        (_, Base::DType) => Arg::DType(DType::from_torch_code(text.parse().ok()?)?),
        (_, Base::Float) => Arg::Float(text.parse::<f64>().ok()?.to_bits()),
        _ => match text.parse() {
            Ok(v) => Arg::Int(Expr::int(v)),
            Err(_) => Arg::Float(text.parse::<f64>().ok()?.to_bits()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_parses() {
        for s in SCHEMAS {
            let parsed = parse(s).unwrap_or_else(|| panic!("{s}"));
            assert!(!parsed.params.is_empty());
        }
    }

    #[test]
    fn a_schema_in_full() {
        let s = find("aten.max_pool2d_with_indices.default").unwrap();
        assert_eq!((s.symbol().as_str(), s.results), ("aoti_torch_cpu_max_pool2d_with_indices", 2));
        let bases: Vec<Base> = s.params.iter().map(|p| p.base).collect();
        let two = Base::Ints(Some(2));
        assert_eq!(bases, [Base::Tensor, two, two, two, two, Base::Bool]);
        assert_eq!(s.params[2].default, Some(Arg::List(vec![])));
        assert_eq!(s.params[4].default, Some(Arg::Int(Expr::ONE)));
        let sort = find("aten.sort.stable").unwrap();
        assert_eq!(sort.symbol(), "aoti_torch_cpu_sort_stable");
        assert!(sort.params[1].keyword_only && sort.params[1].optional && !sort.params[0].keyword_only);
        assert!(find("aten.sort.nothing").is_none() && find("prims.sort").is_none());
    }
}
