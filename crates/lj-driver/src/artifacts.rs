//! Texts for people: kept for the caller, written to the dump folder, or not made at all.

use crate::{CompileOptions, Report, Request};
use lj_dump::{Artifact, Counts, Dump, Meta, Stage, StageTime};
use lj_schedule::program::Program;
use std::collections::BTreeMap;

/// Where artifacts go.
pub struct Artifacts {
    kept: Option<Vec<Artifact>>,
    dump: Option<Dump>,
    warnings: Vec<(&'static str, String)>,
}

impl Artifacts {
    /// Opens the dump folder if there is to be one. If it cannot be made that is a warning.
    pub fn new(request: &Request<'_>, options: &CompileOptions) -> Artifacts {
        let mut out = Artifacts { kept: request.want_artifacts.then(Vec::new), dump: None, warnings: vec![] };
        if let Some(dir) = &options.dump {
            match Dump::create(dir, request.compile_id, &request.fx.name) {
                Ok(d) => out.dump = Some(d),
                Err(e) => out.warnings.push(("dump", format!("no dump is written: {e}"))),
            }
        }
        out
    }

    /// Whether anybody wants the texts.
    pub fn wanted(&self) -> bool {
        self.kept.is_some() || self.dump.is_some()
    }

    /// Adds an artifact; `text` is called only if somebody wants it.
    pub fn add(&mut self, stage: Stage, name: &str, text: impl FnOnce() -> String) {
        if !self.wanted() {
            return;
        }
        let artifact = Artifact { stage, name: name.into(), text: text() };
        let written = self.dump.as_ref().map(|d| d.write(&artifact));
        self.note(written);
        if let Some(kept) = &mut self.kept {
            kept.push(artifact);
        }
    }

    /// After a failure the dump ends: one warning is enough.
    fn note(&mut self, written: Option<std::io::Result<std::path::PathBuf>>) {
        if let Some(Err(e)) = written {
            self.warnings.push(("dump", format!("the dump is incomplete: {e}")));
            self.dump = None;
        }
    }

    /// Writes `meta.json` and gives out what was kept, and the warnings.
    pub fn finish(mut self, meta: &Meta) -> (Vec<Artifact>, Vec<(&'static str, String)>) {
        let written = self.dump.as_ref().map(|d| d.finish(meta));
        self.note(written);
        (self.kept.unwrap_or_default(), self.warnings)
    }
}

/// The contents of `meta.json`.
pub fn meta(
    request: &Request<'_>,
    report: &Report,
    program: &Program,
    rules: BTreeMap<String, u64>,
    arena_bytes: u64,
) -> Meta {
    let fallback = |f: &crate::Fallback| lj_dump::Fallback {
        target: f.target.clone(),
        reason: f.reason.clone(),
        count: f.count,
        line: f.line.clone(),
    };
    Meta {
        version: env!("CARGO_PKG_VERSION").into(),
        graph: report.name.clone(),
        compile_id: request.compile_id.into(),
        cache_hit: report.cache == "hit",
        times: report
            .seconds
            .iter()
            .map(|(stage, s)| StageTime { stage: stage.clone(), ms: s * 1e3 })
            .collect(),
        counts: Counts {
            ops: report.ops as u64,
            kernels: report.distinct_kernels as u64,
            externs: report.fallbacks.iter().map(|f| f.count).sum(),
            matmuls: report.matmuls as u64,
            steps: program.steps.len() as u64,
        },
        fallbacks: report.fallbacks.iter().map(fallback).collect(),
        products: report.products.clone(),
        rules,
        arena_bytes,
    }
}
