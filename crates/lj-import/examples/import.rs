//! Imports `FxGraph` JSON files. For each path prints one line of JSON: the graph (`ok`), its text
//! form and its fallbacks, or the error. `--lj` prints the text form alone; `--targets` lists every
//! operator that has a lowering.
#![allow(clippy::print_stdout)]

use lj_import::{fx::FxGraph, import};
use serde_json::{Value, json};

fn one(path: &str) -> Result<lj_import::Imported, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let fx: FxGraph = serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))?;
    import(&fx).map_err(|e| e.to_string())
}

fn main() {
    let mut text = false;
    for path in std::env::args().skip(1) {
        if path == "--targets" {
            for target in lj_import::targets() {
                println!("{target}");
            }
            continue;
        }
        if path == "--lj" {
            text = true;
            continue;
        }
        let result = one(&path);
        if text {
            match result {
                Ok(i) => println!("{}", lj_ir::text::print(&i.graph)),
                Err(e) => println!("error: {e}"),
            }
            continue;
        }
        let line: Value = match result {
            Ok(i) => json!({
                "ok": i.graph,
                "fallbacks": i.fallbacks(),
            }),
            Err(e) => json!({ "error": e }),
        };
        println!("{line}");
    }
}
