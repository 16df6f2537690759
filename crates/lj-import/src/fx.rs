//! A captured FX graph as plain data: what the Python side hands over and `dump` writes as JSON.

use lj_ir::{DType, Device, Expr, Sym, SymInfo, TensorType};
use serde::{Deserialize, Serialize};

/// A functionalised ATen-level FX graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FxGraph {
    /// `forward`, `backward` or `inference`.
    pub name: String,
    /// Nodes in order; the last is the output.
    pub nodes: Vec<FxNode>,
    /// Symbols that occur in metadata.
    pub syms: Vec<(Sym, SymInfo)>,
}

/// Kind of an FX node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FxKind {
    /// A graph input; inputs are numbered in order of appearance.
    Placeholder,
    /// A tensor attribute of the module (`get_attr`). The caller passes it as an additional input
    /// after all placeholders, in order of first appearance.
    Constant,
    /// A call of an operator: `aten.add.Tensor`, `prims.convert_element_type.default`,
    /// `_operator.getitem`, `sym.mul` for Python operators on `SymInt`s…
    Call {
        /// The overload as torch prints it.
        target: String,
        /// Whether it draws random numbers or has other effects, so that its place matters.
        effect: bool,
    },
    /// The graph's result: one argument, a list.
    Output,
}

/// An argument of an FX node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FxArg {
    /// Result of node number `i` of the graph.
    Node(usize),
    /// `None`.
    None,
    /// A bool.
    Bool(bool),
    /// A concrete integer.
    Int(i64),
    /// A float; JSON writes what is not finite as a string.
    Float(#[serde(with = "float")] f64),
    /// A string.
    Str(String),
    /// A dtype.
    DType(DType),
    /// A device.
    Device(Device),
    /// `torch.layout` by name.
    Layout(String),
    /// `torch.memory_format` by name.
    MemoryFormat(String),
    /// A list, or a tuple where either will do.
    List(Vec<FxArg>),
    /// A tuple: an argument of a higher-order operator, which may tell the two apart.
    Tuple(Vec<FxArg>),
    /// Anything else: an index into the table of Python objects that the caller keeps.
    Object(usize),
}

/// What fake tensor propagation found (`node.meta["val"]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FxMeta {
    /// A strided tensor.
    Tensor(TensorType),
    /// A `SymInt` or int.
    SymInt(Expr),
    /// A `SymFloat` or float.
    SymFloat,
    /// A `SymBool` or bool.
    SymBool,
    /// A `SymBool` that is whether a symbol, of 0 or 1, is 1: a truth value read from a tensor.
    Truth(Sym),
    /// A tuple or list.
    List(Vec<FxMeta>),
    /// `None`.
    None,
    /// Something the IR has no type for (sparse tensors, opaque objects…), in words.
    Other(String),
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FxNode {
    /// Its name in the FX graph.
    pub name: String,
    /// What it is.
    pub kind: FxKind,
    /// Positional arguments.
    #[serde(default)]
    pub args: Vec<FxArg>,
    /// Keyword arguments.
    #[serde(default)]
    pub kwargs: Vec<(String, FxArg)>,
    /// Result.
    pub meta: FxMeta,
    /// The user's source line, `file:line: text`.
    #[serde(default)]
    pub line: Option<String>,
}

/// Floats in JSON, which has no infinities and no NaN.
mod float {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Repr {
        Number(f64),
        Name(String),
    }

    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub fn serialize<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
        if v.is_finite() { Repr::Number(*v) } else { Repr::Name(v.to_string()) }.serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        match Repr::deserialize(d)? {
            Repr::Number(v) => Ok(v),
            Repr::Name(n) => n.parse().map_err(D::Error::custom),
        }
    }
}
