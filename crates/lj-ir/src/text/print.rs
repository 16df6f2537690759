//! Printing.

use super::{Name, Symbol, quoted};
use crate::dtype::{Device, Scalar};
use crate::graph::{Graph, Node, NodeId, TensorType, Type, ValueId};
use crate::op::{Arg, ExternCall, Op, View};
use crate::shape::contiguous_strides;
use std::fmt::{self, Display, Formatter, Write};

/// The graph as `.lj` text. Never fails, not even for a graph that does not verify.
pub fn print(graph: &Graph) -> String {
    graph.to_string()
}

/// A type as `.lj` text.
pub fn ty(ty: &Type) -> String {
    Show(|f: &mut Formatter<'_>| write_type(f, ty)).to_string()
}

/// One node as a line of `.lj` text with its provenance, without indentation and line end.
pub fn node(graph: &Graph, n: NodeId) -> String {
    match graph.nodes.get(n.index()) {
        Some(node) => Show(|f: &mut Formatter<'_>| write_node(f, graph, node)).to_string(),
        None => format!("{n}"),
    }
}

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "graph {} (", Name(&self.name))?;
        list(f, &self.facts.syms, |f, (sym, info)| {
            write!(f, "{}: [", Symbol(sym.name()))?;
            write_bound(f, info.min)?;
            f.write_str(", ")?;
            write_bound(f, info.max)?;
            f.write_str("]")?;
            info.hint.map_or(Ok(()), |h| write!(f, " ~ {h}"))
        })?;
        f.write_str(") {\n")?;
        for node in &self.nodes {
            f.write_str("  ")?;
            write_node(f, self, node)?;
            f.write_str("\n")?;
        }
        f.write_str("  return")?;
        if !self.outputs.is_empty() {
            f.write_str(" ")?;
        }
        list(f, &self.outputs, |f, v| write!(f, "{v}"))?;
        f.write_str("\n")?;
        for m in &self.mutations {
            writeln!(f, "  mutate {} <- {}", m.input, m.value)?;
        }
        f.write_str("}\n")
    }
}

/// Displays what a closure writes.
struct Show<F>(F);

impl<F: Fn(&mut Formatter<'_>) -> fmt::Result> Display for Show<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

/// Items separated by commas.
fn list<T>(
    f: &mut Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        each(f, item)?;
    }
    Ok(())
}

fn write_list<T: Display>(f: &mut Formatter<'_>, items: &[T]) -> fmt::Result {
    f.write_str("[")?;
    list(f, items, |f, i| write!(f, "{i}"))?;
    f.write_str("]")
}

fn write_bound(f: &mut Formatter<'_>, v: i64) -> fmt::Result {
    match v {
        i64::MAX => f.write_str("inf"),
        i64::MIN => f.write_str("-inf"),
        v => write!(f, "{v}"),
    }
}

pub(super) fn write_float(f: &mut Formatter<'_>, bits: u64) -> fmt::Result {
    let v = f64::from_bits(bits);
    if bits == f64::NAN.to_bits() {
        f.write_str("nan")
    } else if v.is_nan() {
        write!(f, "nan({bits:#x})")
    } else {
        // `{:?}` prints the shortest digits that read back as the same f64.
        write!(f, "{v:?}")
    }
}

fn write_scalar(f: &mut Formatter<'_>, s: Scalar) -> fmt::Result {
    match s {
        Scalar::Bool(b) => write!(f, "{b}"),
        Scalar::Int(i) => write!(f, "{i}"),
        Scalar::Float(bits) => write_float(f, bits),
    }
}

fn write_type(f: &mut Formatter<'_>, ty: &Type) -> fmt::Result {
    match ty {
        Type::Tensor(TensorType { dtype, device, shape, strides }) => {
            write!(f, "{dtype}")?;
            write_list(f, shape)?;
            if *strides != contiguous_strides(shape) {
                f.write_str("{")?;
                list(f, strides, |f, s| write!(f, "{s}"))?;
                f.write_str("}")?;
            }
            if *device != Device::Cpu {
                write!(f, "@{device}")?;
            }
            Ok(())
        }
        Type::SymInt(e) => write!(f, "sym({e})"),
        Type::Scalar(d) => write!(f, "scalar({d})"),
        Type::None => f.write_str("none"),
    }
}

fn write_node(f: &mut Formatter<'_>, graph: &Graph, node: &Node) -> fmt::Result {
    list(f, &node.outputs, |f, v| write!(f, "{v}"))?;
    if !node.outputs.is_empty() {
        f.write_str(" = ")?;
    }
    write_op(f, &node.op)?;
    if let Op::Extern(call) = &node.op {
        write_call(f, call, &node.inputs)?;
    } else if !node.inputs.is_empty() {
        f.write_str(" ")?;
        list(f, &node.inputs, |f, v| write!(f, "{v}"))?;
    }
    f.write_str(" : ")?;
    let types = |f: &mut Formatter<'_>| {
        list(f, &node.outputs, |f, v: &ValueId| match graph.values.get(v.index()) {
            Some(v) => write_type(f, &v.ty),
            None => f.write_str("?"),
        })
    };
    if node.outputs.len() == 1 {
        types(f)?;
    } else {
        f.write_str("(")?;
        types(f)?;
        f.write_str(")")?;
    }
    let Some(prov) = graph.provs.get(node.prov as usize) else { return Ok(()) };
    if prov.fx.is_empty() && prov.line.is_none() {
        return Ok(());
    }
    write!(f, "  // fx={}", Name(&prov.fx))?;
    if let Some(line) = &prov.line {
        f.write_str(" line=")?;
        quoted(f, line, '"')?;
    }
    Ok(())
}

/// The operation with its attributes, up to its operands.
fn write_op(f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
    match op {
        Op::Input { index } => write!(f, "input {index}"),
        Op::Pointwise(op) => write!(f, "pw.{}", op.name()),
        Op::Convert => f.write_str("convert"),
        Op::Copy => f.write_str("copy"),
        Op::Reduce { op, dims } => {
            write!(f, "reduce.{} dims=", op.name())?;
            write_list(f, dims)
        }
        Op::Scan { op, dim, reverse } => {
            write!(f, "scan.{}{} dim={dim}", op.name(), if *reverse { " reverse" } else { "" })
        }
        Op::View(View::Permute(perm)) => {
            f.write_str("view.permute ")?;
            write_list(f, perm)
        }
        Op::View(View::Reshape) => f.write_str("view.reshape"),
        Op::View(View::Expand) => f.write_str("view.expand"),
        Op::View(View::Slice { dim, start, step }) => {
            write!(f, "view.slice dim={dim} start={start} step={step}")
        }
        Op::View(View::Select { dim, index }) => write!(f, "view.select dim={dim} index={index}"),
        Op::View(View::Flip(dims)) => {
            f.write_str("view.flip ")?;
            write_list(f, dims)
        }
        Op::View(View::Map(coords)) => {
            f.write_str("view.map ")?;
            write_list(f, coords)
        }
        Op::Full(value) => {
            f.write_str("full ")?;
            write_scalar(f, *value)
        }
        Op::FullSym(e) => write!(f, "fullsym {e}"),
        Op::Iota { start, step } => write!(f, "iota start={start} step={step}"),
        Op::Index { dims, at } => {
            f.write_str("index dims=")?;
            write_list(f, dims)?;
            write!(f, " at={at}")
        }
        Op::Gather { dim } => write!(f, "gather dim={dim}"),
        Op::Scatter { op, dims, rest, wrap, error } => {
            write!(f, "scatter.{} dims=", op.name())?;
            write_list(f, dims)?;
            f.write_str(" rest=")?;
            write_list(f, rest)?;
            f.write_str(if *wrap { " wrap error=" } else { " error=" })?;
            quoted(f, error, '"')
        }
        Op::Cat { dim } => write!(f, "cat dim={dim}"),
        Op::Pad { low, high, value } => {
            f.write_str("pad low=")?;
            write_list(f, low)?;
            f.write_str(" high=")?;
            write_list(f, high)?;
            f.write_str(" value=")?;
            write_scalar(f, *value)
        }
        Op::Matmul { bias: false } => f.write_str("matmul"),
        Op::Matmul { bias: true } => f.write_str("matmul bias"),
        Op::Extern(call) => {
            f.write_str("extern ")?;
            quoted(f, &call.target, '"')
        }
    }
}

/// Whether the arguments use operands 0, 1, 2, … each once and in this order.
fn uses_operands_in_order(call: &ExternCall, count: usize) -> bool {
    fn visit(arg: &Arg, next: &mut usize) -> bool {
        match arg {
            Arg::Input(i) => {
                *next += 1;
                *i + 1 == *next
            }
            Arg::List(items) | Arg::Tuple(items) => items.iter().all(|a| visit(a, next)),
            _ => true,
        }
    }
    let mut next = 0;
    let args = call.args.iter().chain(call.kwargs.iter().map(|(_, a)| a));
    args.into_iter().all(|a| visit(a, &mut next)) && next == count
}

fn write_call(f: &mut Formatter<'_>, call: &ExternCall, inputs: &[ValueId]) -> fmt::Result {
    let in_order = uses_operands_in_order(call, inputs.len());
    let operands = in_order.then_some(inputs);
    f.write_str("(")?;
    list(f, &call.args, |f, a| write_arg(f, a, operands))?;
    if !call.args.is_empty() && !call.kwargs.is_empty() {
        f.write_str(", ")?;
    }
    list(f, &call.kwargs, |f, (name, a)| {
        write!(f, "{}=", Name(name))?;
        write_arg(f, a, operands)
    })?;
    f.write_str(")")?;
    if !in_order {
        f.write_str(" operands=")?;
        write_list(f, inputs)?;
    }
    f.write_str(" reason=")?;
    quoted(f, &call.reason, '"')?;
    f.write_str(if call.effect { " effect" } else { "" })
}

fn write_arg(f: &mut Formatter<'_>, arg: &Arg, operands: Option<&[ValueId]>) -> fmt::Result {
    match arg {
        Arg::Input(i) => match operands {
            Some(vs) => write!(f, "{}", vs[*i]),
            None => write!(f, "${i}"),
        },
        Arg::None => f.write_str("none"),
        Arg::Bool(b) => write!(f, "{b}"),
        Arg::Int(e) => write!(f, "{e}"),
        Arg::Float(bits) => write_float(f, *bits),
        Arg::Str(s) => quoted(f, s, '"'),
        Arg::DType(d) => write!(f, "dtype({d})"),
        Arg::Device(d) => write!(f, "device({d})"),
        Arg::Layout(s) => named(f, "layout", s),
        Arg::MemoryFormat(s) => named(f, "memory_format", s),
        Arg::List(items) => {
            f.write_char('[')?;
            list(f, items, |f, a| write_arg(f, a, operands))?;
            f.write_char(']')
        }
        Arg::Tuple(items) => {
            f.write_str("tuple(")?;
            list(f, items, |f, a| write_arg(f, a, operands))?;
            f.write_char(')')
        }
        Arg::Object(i) => write!(f, "object({i})"),
    }
}

fn named(f: &mut Formatter<'_>, what: &str, name: &str) -> fmt::Result {
    write!(f, "{what}(")?;
    quoted(f, name, '"')?;
    f.write_str(")")
}
