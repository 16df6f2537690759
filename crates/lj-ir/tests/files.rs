//! Graphs in `tests/files/ir` against how they print, or against the error they are.

use lj_ir::text::{parse, print};

#[test]
fn files() {
    insta::glob!("../../../tests/files/ir", "*.lj", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let text = match parse(&source) {
            Err(e) => format!("parse error: {e}\n"),
            Ok(graph) => {
                let text = print(&graph);
                assert_eq!(parse(&text).as_ref(), Ok(&graph));
                graph.verify().map_or_else(|e| format!("verify error: {e}\n"), |()| text)
            }
        };
        insta::assert_snapshot!(text);
    });
}
