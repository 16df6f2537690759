//! Filetests: `tests/files/rewrite/*.lj`, the rewritten graph beside each.

use lj_rewrite::{Config, rewrite};

#[test]
fn files() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/files/rewrite");
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        insta::glob!("../../../tests/files/rewrite", "*.lj", |path| {
            let source = std::fs::read_to_string(path).unwrap();
            let graph = lj_ir::text::parse(&source).unwrap();
            graph.verify().unwrap();
            let done = rewrite(&graph, &Config::default()).unwrap();
            done.graph.verify().unwrap();
            let again = rewrite(&graph, &Config::default()).unwrap();
            assert_eq!(done.graph, again.graph, "not deterministic");
            let fired: Vec<String> = done.fired.iter().map(|(k, n)| format!("{k} {n}")).collect();
            let text = lj_ir::text::print(&done.graph);
            insta::assert_snapshot!(format!("fired: {}\n{text}", fired.join(", ")));
        });
    });
}
