//! What the disk cache holds: a program and its objects.

use crate::CompileOptions;
use lj_import::fx::FxGraph;
use lj_runtime::KernelObject;
use lj_runtime::cache::{Cache, digest};
use lj_schedule::gemm::Tile;
use lj_schedule::program::Program;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Entries beyond this total are dropped, least recently used first.
const MAX_BYTES: u64 = 2 << 30;

/// What [`KernelObject`] says of its bytes.
type Contents = (Vec<(u32, String)>, Option<Tile>);

/// The part of an entry that is JSON; the objects follow it byte for byte.
#[derive(Serialize, Deserialize)]
struct Head {
    program: Program,
    /// Length of each object and what is in it.
    objects: Vec<(usize, Contents)>,
}

/// The cache as the options place it. Entries of another build, LLVM or machine are misses.
pub fn cache(options: &CompileOptions, target: &lj_codegen::Target) -> Cache {
    let writer = format!(
        "ljcompile {} {} {} {}",
        env!("CARGO_PKG_VERSION"),
        lj_codegen::fingerprint(),
        target.cpu,
        target.features
    );
    Cache::new(&options.cache_dir, &writer, MAX_BYTES)
}

/// The key of a graph: everything its program depends on, which source lines are not part of.
pub fn key(fx: &FxGraph, options: &CompileOptions, threads: usize) -> String {
    let mut plain = fx.clone();
    for node in &mut plain.nodes {
        node.line = None;
    }
    // The debug form tells apart all floats, which JSON does not.
    let graph = format!("{plain:?}");
    let settings = format!("{} threads={threads}", options.key());
    digest(&[graph.as_bytes(), settings.as_bytes(), BUILD.as_bytes()])
}

/// Changes whenever the compiler does, also between versions.
pub const BUILD: &str = env!("LJ_BUILD_ID");

/// Packs an entry. `None` if the program has no text form.
pub fn pack(program: &Program, objects: &[KernelObject]) -> Option<Vec<u8>> {
    let head = Head {
        program: program.clone(),
        objects: objects.iter().map(|o| (o.bytes.len(), (o.kernels.clone(), o.tile))).collect(),
    };
    let head = serde_json::to_vec(&head).ok()?;
    let mut out = (head.len() as u64).to_le_bytes().to_vec();
    out.extend(head);
    for o in objects {
        out.extend(&o.bytes);
    }
    Some(out)
}

/// Unpacks an entry; `None` if it is not one. Source lines are taken from `fx`.
pub fn unpack(bytes: &[u8], fx: &FxGraph) -> Option<(Program, Vec<KernelObject>)> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let (head, mut rest) = rest.split_at_checked(u64::from_le_bytes(*len) as usize)?;
    let mut head: Head = serde_json::from_slice(head).ok()?;
    let mut objects = vec![];
    for (len, (kernels, tile)) in head.objects {
        let (bytes, tail) = rest.split_at_checked(len)?;
        objects.push(KernelObject { bytes: bytes.to_vec(), kernels, tile });
        rest = tail;
    }
    let lines: BTreeMap<&str, &Option<String>> =
        fx.nodes.iter().map(|n| (n.name.as_str(), &n.line)).collect();
    for (name, line) in &mut head.program.lines {
        *line = lines.get(name.as_str()).copied().cloned().flatten();
    }
    Some((head.program, objects))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lj_ir::DType;

    #[test]
    fn entries_round_trip_and_take_lines_from_the_graph() {
        let program = Program {
            name: "forward".into(),
            lines: vec![("add".into(), Some("old.py:1: x".into()))],
            ..Program::default()
        };
        let objects = vec![
            KernelObject { bytes: vec![1, 2, 3], kernels: vec![(0, "lj_0_add".into())], tile: None },
            KernelObject { bytes: vec![4], kernels: vec![], tile: Tile::new(DType::F32, 8) },
        ];
        let bytes = pack(&program, &objects).unwrap();
        let mut fx = FxGraph::default();
        fx.nodes.push(lj_import::fx::FxNode {
            name: "add".into(),
            kind: lj_import::fx::FxKind::Placeholder,
            args: vec![],
            kwargs: vec![],
            meta: lj_import::fx::FxMeta::None,
            line: Some("new.py:2: x + 1".into()),
        });
        let (back, code) = unpack(&bytes, &fx).unwrap();
        assert_eq!(back.lines, [("add".to_string(), Some("new.py:2: x + 1".to_string()))]);
        assert_eq!(code, objects);
        assert!(unpack(&bytes[..bytes.len() - 1], &fx).is_none());
        assert!(unpack(&[], &fx).is_none());
    }
}
