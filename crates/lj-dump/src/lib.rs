//! What the compiler leaves for people and tools to look at: one folder per compiled graph with one
//! numbered text file per stage and a `meta.json`.
//!
//! ```text
//! DIR/0_0_forward/00_fx.json  00_fx.txt  01_import.lj … 08_plan.txt  meta.json
//! ```
//!
//! This crate knows file names and the layout of `meta.json` ([`Meta`]); what the texts say is the
//! business of the stages, and whether a dump that cannot be written matters is the caller's
//! (usually: a warning, once). It depends on no other crate of the project.
//!
//! **Invariants.** Several threads and processes may dump into one directory: a folder belongs to
//! the compilation that created it. A file is complete from the moment it is visible. `meta.json` is
//! written last: a folder without it belongs to a compilation that is still running or failed.

mod meta;

pub use meta::{Counts, Fallback, Meta, Product, StageTime};

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stages {
    ($($(#[$doc:meta])* $variant:ident, $stem:literal, $extension:literal;)*) => {
        /// A point of the pipeline that leaves an artifact, in pipeline order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Stage { $($(#[$doc])* $variant),* }

        impl Stage {
            /// Every stage.
            pub const ALL: &'static [Stage] = &[$(Stage::$variant),*];
            /// Start of the file's name, such as `01_import`.
            pub fn stem(self) -> &'static str { match self { $(Stage::$variant => $stem),* } }
            /// End of the file's name, such as `lj`.
            pub fn extension(self) -> &'static str { match self { $(Stage::$variant => $extension),* } }
        }
    };
}

stages! {
    /// The captured FX graph, to be replayed.
    FxJson, "00_fx", "json";
    /// The captured FX graph, to be read.
    FxText, "00_fx", "txt";
    /// The tensor graph as imported.
    Import, "01_import", "lj";
    /// After stitching.
    Stitch, "02_stitch", "lj";
    /// After rewriting.
    Rewrite, "03_rewrite", "lj";
    /// Loop nests and steps.
    Schedule, "04_schedule", "txt";
    /// Buffers with their lifetimes and places.
    Buffers, "05_buffers", "txt";
    /// LLVM IR of the kernels.
    Llvm, "06_llvm", "ll";
    /// Assembly of the kernels.
    Asm, "07_asm", "s";
    /// The plan that runs.
    Plan, "08_plan", "txt";
}

/// What one stage leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Which stage.
    pub stage: Stage,
    /// Distinguishes several artifacts of one stage (such as code modules); empty if there is one.
    pub name: String,
    /// The contents.
    pub text: String,
}

impl Artifact {
    /// The only artifact of its stage.
    pub fn new(stage: Stage, text: impl Into<String>) -> Artifact {
        Artifact { stage, name: String::new(), text: text.into() }
    }

    /// Name of its file: `06_llvm.ll`, or `06_llvm_NAME.ll`.
    pub fn file_name(&self) -> String {
        let (stem, extension) = (self.stage.stem(), self.stage.extension());
        match file_part(&self.name).as_str() {
            "" => format!("{stem}.{extension}"),
            name => format!("{stem}_{name}.{extension}"),
        }
    }
}

/// The folder of one compiled graph.
#[derive(Debug)]
pub struct Dump {
    folder: PathBuf,
}

impl Dump {
    /// Makes a new folder `dir/COMPILE-ID_GRAPH` (or, if that exists, `…_1`, `…_2` and so on), and
    /// `dir` itself if it is missing. Characters that do not belong in a file name become `_`.
    ///
    /// # Errors
    /// Whatever the file system says, with the path.
    pub fn create(dir: &Path, compile_id: &str, graph_name: &str) -> io::Result<Dump> {
        fs::create_dir_all(dir).map_err(|e| with_path(dir, &e))?;
        let parts = [file_part(compile_id), file_part(graph_name)];
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|p| !p.is_empty()).collect();
        let stem = if parts.is_empty() { "graph".to_string() } else { parts.join("_") };
        let mut n = 0u64;
        loop {
            let folder = dir.join(if n == 0 { stem.clone() } else { format!("{stem}_{n}") });
            // Making a directory is atomic: of several processes one succeeds.
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(Dump { folder }),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => n += 1,
                Err(e) => return Err(with_path(&folder, &e)),
            }
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes an artifact, replacing an earlier one of the same name, and returns its path.
    ///
    /// # Errors
    /// Whatever the file system says, with the path.
    pub fn write(&self, artifact: &Artifact) -> io::Result<PathBuf> {
        self.write_file(&artifact.file_name(), &artifact.text)
    }

    /// Writes `meta.json` and returns its path. Call it last.
    ///
    /// # Errors
    /// Whatever the file system says, with the path.
    pub fn finish(&self, meta: &Meta) -> io::Result<PathBuf> {
        let mut text = serde_json::to_string_pretty(meta)?;
        text.push('\n');
        self.write_file("meta.json", &text)
    }

    fn write_file(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let path = self.folder.join(name);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!(".{name}.{}.{unique}", std::process::id()));
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|e| {
            // The error that counts is the one of writing.
            let _ = fs::remove_file(&temporary);
            with_path(&path, &e)
        })?;
        Ok(path)
    }
}

/// `name` with everything but letters, digits, `.`, `-` and `_` replaced by `_`, without such at the
/// ends, and short enough for a file name.
fn file_part(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let all: String = name.chars().map(plain).take(80).collect();
    all.trim_matches(['_', '.']).to_string()
}

fn with_path(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}
