//! Segments: what runs in one go between two calls of the host.
//!
//! A captured graph that calls back into Python (a print, a metric sink, a function the user marked)
//! runs in parts, each when its turn comes; nothing runs early. This crate decides the parts. The IR
//! has no host call yet, and consecutive captured graphs are not joined yet, so a graph is one
//! segment; the stages after this one already take segments, in order.
//!
//! It knows `lj-ir` only.
//!
//! **Invariants.** Segments run in order and together compute what the graph did.

use lj_ir::Graph;

/// A graph cut into segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stitched {
    /// What runs, in order; at least one.
    pub segments: Vec<Graph>,
}

/// Cuts `graph` where it calls the host.
pub fn stitch(graph: Graph) -> Stitched {
    Stitched { segments: vec![graph] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_without_host_calls_is_one_segment() {
        let text = "graph g () {\n  %0 = input 0 : f32[2]\n  return %0\n  mutate %0 <- %0\n}\n";
        let graph = lj_ir::text::parse(text).unwrap();
        assert_eq!(stitch(graph.clone()).segments, [graph]);
    }
}
