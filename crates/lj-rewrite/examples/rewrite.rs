//! Runs the stage alone: `rewrite FILE` reads a graph (`.lj` text, or the JSON of `lj_ir::Graph` if
//! the name ends in `.json`), prints the rewritten one in the same form, and what fired to stderr.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use lj_rewrite::{Config, rewrite};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: rewrite FILE")?;
    let source = std::fs::read_to_string(&path)?;
    let json = std::path::Path::new(&path).extension().is_some_and(|e| e == "json");
    let graph = if json { serde_json::from_str(&source)? } else { lj_ir::text::parse(&source)? };
    graph.verify()?;
    let done = rewrite(&graph, &Config::default())?;
    done.graph.verify()?;
    eprintln!(
        "{} -> {} nodes; {:?}; {:?}",
        graph.nodes.len(),
        done.graph.nodes.len(),
        done.fired,
        done.stats
    );
    if json {
        println!("{}", serde_json::to_string(&done.graph)?);
    } else {
        print!("{}", lj_ir::text::print(&done.graph));
    }
    Ok(())
}
