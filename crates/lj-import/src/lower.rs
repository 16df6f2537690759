//! The table of lowerings. Each family has a module with its own part of the table.

mod casts;
mod choose;
mod create;
mod indexing;
mod join;
mod matmul;
mod pointwise;
mod reduce;
mod scan;
mod scatter;
mod sym;
mod views;
mod window;

use crate::cx::{Cx, Lower, Lowered, Val, decline};
use crate::fx::{FxArg, FxMeta};
use lj_ir::{DType, Device, TensorType};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// One row: the overload as torch prints it and the function that lowers a call of it.
type Row = (&'static str, Lower);

/// A family's rows, and whether its operators only rearrange metadata, so that they need neither a
/// dtype nor a device that our kernels know.
struct Family {
    rows: &'static [Row],
    data_free: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    lower: Lower,
    data_free: bool,
}

/// All lowerings by overload.
pub(crate) fn table() -> &'static BTreeMap<&'static str, Entry> {
    static TABLE: OnceLock<BTreeMap<&'static str, Entry>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let plain = [
            pointwise::UNARY,
            pointwise::BINARY,
            pointwise::OTHER,
            choose::ROWS,
            reduce::ROWS,
            scan::ROWS,
            scatter::ROWS,
            create::ROWS,
            indexing::ROWS,
            join::ROWS,
            matmul::ROWS,
        ];
        let free = [views::ROWS, casts::ROWS, sym::ROWS];
        let computing = plain.into_iter().chain(window::ROWS);
        computing
            .map(|rows| Family { rows, data_free: false })
            .chain(free.map(|rows| Family { rows, data_free: true }))
            .flat_map(|f| f.rows.iter().map(move |&(t, lower)| (t, Entry { lower, data_free: f.data_free })))
            .fold(BTreeMap::new(), |mut table, (target, entry)| {
                let before = table.insert(target, entry);
                debug_assert!(before.is_none(), "two rows for {target}");
                table
            })
    })
}

/// Whether `target` only rearranges metadata.
pub(crate) fn is_data_free(target: &str) -> bool {
    table().get(target).is_some_and(|e| e.data_free)
}

/// Lowers the current call, or says why not. `defines` is whether its result has symbols that
/// nothing before it defines (a size that depends on data).
pub(crate) fn lower(cx: &mut Cx<'_>, target: &str, defines: bool) -> Lowered {
    if defines {
        return decline("the result's size depends on data");
    }
    if let Some(kind) = target.strip_prefix("sym.") {
        return sym::python(cx, kind);
    }
    let Some(entry) = table().get(target).copied() else {
        return decline(crate::external::reason(target));
    };
    if !entry.data_free {
        computable(cx)?;
    }
    (entry.lower)(cx)
}

/// Declines unless every tensor of the call is of a dtype and on a device that our kernels know.
fn computable(cx: &Cx<'_>) -> Lowered<()> {
    fn meta(m: &FxMeta) -> Lowered<()> {
        match m {
            FxMeta::Tensor(t) => known(t),
            FxMeta::List(l) => l.iter().try_for_each(meta),
            FxMeta::Other(what) => decline(format!("{what} result")),
            _ => Ok(()),
        }
    }
    fn arg(cx: &Cx<'_>, a: &FxArg) -> Lowered<()> {
        match a {
            FxArg::Node(n) => val(cx, cx.val(*n)?),
            FxArg::List(l) | FxArg::Tuple(l) => l.iter().try_for_each(|a| arg(cx, a)),
            _ => Ok(()),
        }
    }
    fn val(cx: &Cx<'_>, v: &Val) -> Lowered<()> {
        match v {
            Val::Tensor(v) => known(cx.ty(*v)),
            Val::List(l) => l.iter().try_for_each(|v| val(cx, v)),
            _ => Ok(()),
        }
    }
    meta(&cx.node.meta)?;
    cx.node.args.iter().chain(cx.node.kwargs.iter().map(|(_, a)| a)).try_for_each(|a| arg(cx, a))
}

fn known(t: &TensorType) -> Lowered<()> {
    if t.device != Device::Cpu {
        return decline(format!("device {}", t.device));
    }
    if t.dtype.in_kernels() { Ok(()) } else { decline(dtype_reason(t.dtype)) }
}

fn dtype_reason(d: DType) -> String {
    if d.is_complex() { "complex dtype".into() } else { format!("dtype {}", d.torch_name()) }
}
