//! The rewrite stage: an e-graph finds equal spellings of a graph, a cost model chooses one.
//!
//! Before: a graph that verifies, as importer and stitcher leave it. After: a graph that verifies
//! and computes the same: same inputs, same outputs with the same dtypes, shapes, strides and
//! aliasing, same mutations, same effects in the same order. *Exact* rules keep every bit, rounding
//! rules (allowed by [`Config::rounding`]) may change the last ones.
//!
//! This crate knows lj-ir only. The way through it: `clean` deletes identity wrappers → `load`
//! builds the e-graph and pins what the outside sees → `saturate` applies the `rules` under a hard
//! limit → `extract` chooses by `cost` → `emit` rebuilds. How to write a rule is told in
//! `docs/writing-a-rule.md`.

mod alias;
pub mod captured;
mod clean;
mod cost;
mod emit;
mod error;
mod extract;
mod fold;
mod lang;
mod load;
mod rules;
mod saturate;

pub use error::Error;
pub use rules::{Exactness, rule_names};

use lj_ir::Graph;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What the stage may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest number of e-nodes for graphs of ordinary size; a graph that starts with more than
    /// two thirds of it may grow by half.
    pub node_limit: usize,
    /// Largest number of rounds in which all rules are tried.
    pub iter_limit: usize,
    /// Whether rules that may change the last bits are used.
    pub rounding: bool,
    /// Names of rules not to use (see [`rule_names`]); unknown names have no effect.
    pub disabled: BTreeSet<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config { node_limit: 20_000, iter_limit: 12, rounding: true, disabled: BTreeSet::new() }
    }
}

/// What the stage did, for the dump.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Identity wrappers deleted before the e-graph.
    pub cleaned: usize,
    /// Rounds of rule application.
    pub iterations: usize,
    /// Nodes of the e-graph at the end.
    pub enodes: usize,
    /// Classes of the e-graph at the end.
    pub classes: usize,
    /// Whether the rules found nothing new.
    pub saturated: bool,
    /// Whether the node limit ended the search.
    pub hit_limit: bool,
    /// Wall time in milliseconds.
    pub ms: f64,
}

/// The result of [`rewrite`].
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The chosen graph.
    pub graph: Graph,
    /// How often each rule found something new, by name.
    pub fired: BTreeMap<&'static str, usize>,
    /// Sizes and times.
    pub stats: Stats,
}

/// Rewrites a graph.
///
/// # Errors
/// See [`Error`]: a broken rule or input graph. `graph` itself is then still good to use.
pub fn rewrite(graph: &Graph, config: &Config) -> Result<Rewritten, Error> {
    let start = Instant::now();
    graph.verify().map_err(|e| Error::BadGraph { node: e.node, what: e.what })?;
    let (clean, cleaned) = clean::clean(graph);
    let mut loaded = load::load(&clean)?;
    let rules: Vec<&rules::Rule> = rules::all()?
        .iter()
        .filter(|r| config.rounding || r.exactness == Exactness::Exact)
        .filter(|r| !config.disabled.contains(r.name))
        .collect();
    let limit = config.node_limit.max(loaded.eg.total_size() * 3 / 2);
    let roots = loaded.roots.clone();
    let done = saturate::saturate(&mut loaded.eg, &roots, &rules, limit, config.iter_limit)?;
    let originals = emit::originals(&loaded).0;
    let own = loaded.own.iter().map(|c| loaded.eg.find(*c)).collect();
    let cost = cost::Cost { originals: &originals, own: &own };
    let choice = extract::extract(&loaded.eg, &roots, &cost)
        .ok_or_else(|| Error::BadResult("no choice without a cycle".into()))?;
    let graph = emit::emit(&clean, &loaded, &choice)?;
    if cfg!(debug_assertions) {
        graph.verify().map_err(|e| Error::BadResult(e.to_string()))?;
    }
    let stats = Stats {
        cleaned,
        iterations: done.iterations,
        enodes: loaded.eg.total_size(),
        classes: loaded.eg.number_of_classes(),
        saturated: done.saturated,
        hit_limit: done.hit_limit,
        ms: start.elapsed().as_secs_f64() * 1e3,
    };
    Ok(Rewritten { graph, fired: done.fired, stats })
}
