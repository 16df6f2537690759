//! Graphs in `tests/files/schedule` against the schedules they get.

use lj_schedule::{Config, schedule};

#[test]
fn files() {
    insta::glob!("../../../tests/files/schedule", "*.lj", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let graph = lj_ir::text::parse(&source).unwrap();
        graph.verify().unwrap();
        let text = match schedule(&graph, &Config { threads: 2 }) {
            Ok(program) => program.schedule_text() + &program.buffers_text(),
            Err(e) => format!("error: {e}"),
        };
        insta::assert_snapshot!(text);
    });
}
