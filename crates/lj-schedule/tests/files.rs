//! Graphs in `tests/files/schedule` against the schedules they get.

use lj_schedule::gemm::{Choice, Chooser, Problem, Reason};
use lj_schedule::{Config, schedule_with};

/// Our kernels for every product that they can make.
struct Own;

impl Chooser for Own {
    fn choose(&self, _: &Problem) -> Choice {
        Choice { own: true, reason: Reason::Option, own_ns: 0, aten_ns: 0 }
    }
}

#[test]
fn files() {
    insta::glob!("../../../tests/files/schedule", "*.lj", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let graph = lj_ir::text::parse(&source).unwrap();
        graph.verify().unwrap();
        let text = match schedule_with(&graph, &Config { threads: 2 }, &Own) {
            Ok(program) => program.schedule_text() + &program.buffers_text(),
            Err(e) => format!("error: {e}"),
        };
        insta::assert_snapshot!(text);
    });
}
