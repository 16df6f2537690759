//! The stages in order, each guarded, timed, verified and dumped.

use crate::artifacts::{self, Artifacts};
use crate::gemm::Chooser;
use crate::guard::guard;
use crate::{CompileOptions, Compiled, Error, Fault, Observer, Report, Request, entry};
use lj_dump::Stage;
use lj_ir::Graph;
use lj_runtime::fence::Fence;
use lj_runtime::{KernelObject, Plan};
use lj_schedule::program::Program;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Instant;

/// A program and its code.
type Code = (Program, Vec<KernelObject>);

/// One compilation.
pub struct Pipeline<'a> {
    request: &'a Request<'a>,
    options: &'a CompileOptions,
    observer: &'a dyn Observer,
    artifacts: Artifacts,
    report: Report,
    rules: BTreeMap<String, u64>,
    /// Threads kernels are cut for.
    threads: usize,
}

impl<'a> Pipeline<'a> {
    /// Prepares a compilation.
    pub fn new(
        request: &'a Request<'a>,
        options: &'a CompileOptions,
        observer: &'a dyn Observer,
    ) -> Pipeline<'a> {
        Pipeline {
            request,
            options,
            observer,
            artifacts: Artifacts::new(request, options),
            report: Report::new(request.fx),
            rules: BTreeMap::new(),
            threads: lj_runtime::parallel::threads(),
        }
    }

    /// Compiles, or takes the result from the cache.
    pub fn run(mut self) -> Result<Compiled, Error> {
        let fx = self.request.fx;
        if let Some(text) = self.request.fx_text {
            self.artifacts.add(Stage::FxText, "", || text.to_string());
        }
        self.artifacts.add(Stage::FxJson, "", || {
            serde_json::to_string_pretty(fx).unwrap_or_else(|e| format!("{{\"error\": \"{e}\"}}"))
        });
        let target = lj_codegen::Target::host();
        let store = self.options.cache.then(|| entry::cache(self.options, &target));
        let key = match store {
            Some(_) => self.timed("key", |p| entry::key(fx, p.options, p.threads))?,
            None => String::new(),
        };
        // A cached entry has no texts of the stages: whoever wants them compiles.
        let cached = match &store {
            Some(store) if !self.artifacts.wanted() => {
                self.timed("load", |_| store.load(&key).and_then(|bytes| entry::unpack(&bytes, fx)))?
            }
            _ => None,
        };
        let mut warnings = vec![];
        let linked = cached.and_then(|code| self.link(code).ok());
        let plan = if let Some(plan) = linked {
            self.report.cache = "hit".into();
            plan
        } else {
            let code = self.compile(&target)?;
            if let Some(store) = &store {
                self.report.cache = "miss".into();
                let stored = self.timed("store", |_| {
                    entry::pack(&code.0, &code.1).map(|bytes| store.store(&key, &bytes))
                })?;
                if let Some(Err(e)) = stored {
                    warnings.push(("cache", e.to_string()));
                }
            }
            self.link(code)?
        };
        self.report.count(plan.program(), &lj_ir::Facts { syms: fx.syms.iter().cloned().collect() });
        self.artifacts.add(Stage::Schedule, "", || plan.program().schedule_text());
        self.artifacts.add(Stage::Buffers, "", || plan.program().buffers_text());
        self.artifacts.add(Stage::Plan, "", || plan.program().plan_text());
        let meta = artifacts::meta(
            self.request,
            &self.report,
            plan.program(),
            self.rules,
            arena_bytes(&plan, self.request),
        );
        let (artifacts, more) = self.artifacts.finish(&meta);
        warnings.extend(more);
        Ok(Compiled { plan, report: self.report, artifacts, warnings })
    }

    /// Import to objects. If a stage after rewriting fails, rewriting may be at fault: the graph is
    /// compiled without it before giving up.
    fn compile(&mut self, target: &lj_codegen::Target) -> Result<Code, Error> {
        let fx = self.request.fx;
        let graph = self.stage("import", |_| lj_import::import(fx))?.graph;
        self.verify("import", &graph)?;
        self.artifacts.add(Stage::Import, "", || lj_ir::text::print(&graph));
        let graph = self.timed("stitch", |_| lj_stitch::stitch(graph))?;
        let Ok([graph]) = <[Graph; 1]>::try_from(graph.segments) else {
            return Err(stage_error("stitch", "a graph in several segments cannot be run yet"));
        };
        self.artifacts.add(Stage::Stitch, "", || lj_ir::text::print(&graph));
        if let Some(rewritten) = self.rewrite(&graph)? {
            match self.generate(&rewritten, target) {
                Err(Error::Stage { stage, message }) if !self.options.strict => {
                    self.report.faults.push(Fault { stage, message });
                }
                done => return done,
            }
        }
        self.generate(&graph, target)
    }

    /// The rewritten graph; `None` if the stage is off or failed.
    fn rewrite(&mut self, graph: &Graph) -> Result<Option<Graph>, Error> {
        if !self.options.rewrite {
            return Ok(None);
        }
        let config = lj_rewrite::Config {
            node_limit: self.options.node_limit,
            rounding: self.options.rounding,
            ..lj_rewrite::Config::default()
        };
        let done = self.stage("rewrite", |_| lj_rewrite::rewrite(graph, &config)).and_then(|r| {
            self.verify("rewrite", &r.graph)?;
            Ok(r)
        });
        match done {
            Ok(r) => {
                self.rules = r.fired.iter().map(|(k, n)| ((*k).into(), *n as u64)).collect();
                self.artifacts.add(Stage::Rewrite, "", || lj_ir::text::print(&r.graph));
                Ok(Some(r.graph))
            }
            Err(Error::Stage { stage, message }) if !self.options.strict => {
                self.report.faults.push(Fault { stage, message });
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Schedule and code generation.
    fn generate(&mut self, graph: &Graph, target: &lj_codegen::Target) -> Result<Code, Error> {
        let config = lj_schedule::Config { threads: self.threads };
        let chooser = Chooser::new(self.options, target, self.threads);
        let program = self.stage("schedule", |_| lj_schedule::schedule_with(graph, &config, &chooser))?;
        self.report.split("schedule", "gemm", chooser.seconds());
        let text = self.artifacts.wanted();
        let compiled = self.stage("codegen", |p| {
            lj_codegen::compile_parallel(&program.nests, target, p.options.compile_threads, text)
        })?;
        let many = compiled.len() > 1;
        let mut objects = vec![];
        let mut first = 0u32;
        for (i, c) in compiled.into_iter().enumerate() {
            let name = if many { i.to_string() } else { String::new() };
            if let Some(ir) = c.llvm_ir {
                self.artifacts.add(Stage::Llvm, &name, || ir);
            }
            if let Some(asm) = c.asm {
                self.artifacts.add(Stage::Asm, &name, || asm);
            }
            let kernels: Vec<(u32, String)> = (first..).zip(c.symbols).collect();
            first += kernels.len() as u32;
            objects.push(KernelObject { bytes: c.object, kernels, tile: None });
        }
        objects.extend(chooser.objects(&program));
        Ok((program, objects))
    }

    fn link(&mut self, (program, objects): Code) -> Result<Plan, Error> {
        let mut plan = self.stage("link", |_| Plan::new(program, &objects))?;
        plan.set_fenced(match self.options.fence.as_deref() {
            Some("before") => Some(Fence::Before),
            Some(_) => Some(Fence::After),
            None => None,
        });
        Ok(plan)
    }

    /// Runs a stage: tells the observer, takes the time, turns faults into errors.
    fn stage<T, E: Display>(
        &mut self,
        name: &'static str,
        f: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, Error> {
        self.timed(name, |p| guard(|| f(p)))?.map_err(|message| stage_error(name, message))
    }

    fn timed<T>(&mut self, name: &'static str, f: impl FnOnce(&Self) -> T) -> Result<T, Error> {
        if !self.observer.stage(name) {
            return Err(Error::Interrupted);
        }
        let start = Instant::now();
        let out = f(self);
        self.report.time(name, start.elapsed().as_secs_f64());
        Ok(out)
    }

    fn verify(&mut self, stage: &'static str, graph: &Graph) -> Result<(), Error> {
        if !self.options.verifies() {
            return Ok(());
        }
        let checked = self.timed("verify", |_| guard(|| graph.verify()))?;
        checked.map_err(|message| stage_error(stage, format!("the verifier says: {message}")))
    }
}

fn stage_error(stage: &str, message: impl Into<String>) -> Error {
    Error::Stage { stage: stage.into(), message: message.into() }
}

/// Size of the arena for the traced sizes; 0 if there are none.
fn arena_bytes(plan: &Plan, request: &Request<'_>) -> u64 {
    let hints: BTreeMap<_, _> = request.fx.syms.iter().map(|(s, i)| (s, i.hint)).collect();
    let syms: Option<Vec<i64>> =
        plan.program().syms.iter().map(|(s, _)| hints.get(s).copied().flatten()).collect();
    syms.and_then(|s| plan.arena_layout(&s).ok()).map_or(0, |l| l.total)
}
