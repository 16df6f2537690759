//! Graphs of real models, captured by `tests/tools/fixtures.py`.

use lj_import::{Imported, fx::FxGraph, import};
use std::path::Path;

fn load(name: &str) -> Imported {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).expect("fixture");
    let fx: FxGraph = serde_json::from_str(&text).expect("an FxGraph");
    let again = serde_json::to_string(&fx).expect("json");
    assert_eq!(serde_json::from_str::<FxGraph>(&again).expect("an FxGraph"), fx, "JSON round trip");
    let imported = import(&fx).expect("imports");
    imported.graph.verify().expect("valid");
    imported
}

/// The targets that ATen runs.
fn externs(i: &Imported) -> Vec<String> {
    let mut all: Vec<String> = i.fallbacks().into_iter().map(|(target, ..)| target).collect();
    all.dedup();
    all
}

macro_rules! models {
    ($($name:ident: [$($extern:literal),*];)*) => {$(
        #[test]
        fn $name() {
            let imported = load(stringify!($name));
            assert_eq!(externs(&imported), [$($extern),*] as [&str; _]);
            insta::assert_snapshot!(stringify!($name), lj_ir::text::print(&imported.graph));
        }
    )*};
}

models! {
    llama_forward_bf16: ["aten._scaled_dot_product_flash_attention_for_cpu.default"];
    llama_backward_bf16: ["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"];
    cell_forward_f32_dynamic: [];
    cell_backward_f32_dynamic: [];
}
