//! Dumps on a real file system.

use lj_dump::{Artifact, Counts, Dump, Fallback, Meta, Stage, StageTime};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names: BTreeSet<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.into_iter().collect()
}

#[test]
fn files_sort_in_pipeline_order() {
    let tmp = tempfile::tempdir().unwrap();
    let dump = Dump::create(&tmp.path().join("made/too"), "0/0", "forward").unwrap();
    assert_eq!(dump.folder(), tmp.path().join("made/too/0_0_forward"));
    for &stage in Stage::ALL {
        let path = dump.write(&Artifact::new(stage, stage.stem())).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), stage.stem());
    }
    let part = Artifact { stage: Stage::Llvm, name: "module 1".into(), text: String::new() };
    dump.write(&part).unwrap();
    dump.finish(&Meta::default()).unwrap();
    assert_eq!(
        names(dump.folder()),
        [
            "00_fx.json",
            "00_fx.txt",
            "01_import.lj",
            "02_stitch.lj",
            "03_rewrite.lj",
            "04_schedule.txt",
            "05_buffers.txt",
            "06_llvm.ll",
            "06_llvm_module_1.ll",
            "07_asm.s",
            "08_plan.txt",
            "meta.json",
        ]
    );
}

#[test]
fn an_artifact_written_again_is_replaced() {
    let tmp = tempfile::tempdir().unwrap();
    let dump = Dump::create(tmp.path(), "1", "g").unwrap();
    dump.write(&Artifact::new(Stage::Plan, "a longer text")).unwrap();
    let path = dump.write(&Artifact::new(Stage::Plan, "text")).unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "text");
    assert_eq!(names(dump.folder()), ["08_plan.txt"]);
}

#[test]
fn folders_are_unique_and_stay_inside_of_the_directory() {
    let tmp = tempfile::tempdir().unwrap();
    let long = "x".repeat(300);
    for (id, name) in
        [("0/0", "f"), ("0/0", "f"), ("[0/1]", "../../f"), ("", ""), ("..", "f"), ("é", "ü"), (&long, &long)]
    {
        let dump = Dump::create(tmp.path(), id, name).unwrap();
        assert_eq!(dump.folder().parent(), Some(tmp.path()));
    }
    let x = "x".repeat(80);
    assert_eq!(
        names(tmp.path()),
        ["0_0_f", "0_0_f_1", "0_1_f", "f", "graph", "graph_1", &format!("{x}_{x}")]
    );
}

#[test]
fn many_at_once_get_a_folder_each() {
    let tmp = tempfile::tempdir().unwrap();
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for _ in 0..16 {
                    let dump = Dump::create(tmp.path(), "0/0", "forward").unwrap();
                    dump.write(&Artifact::new(Stage::Import, "x")).unwrap();
                }
            });
        }
    });
    let folders = names(tmp.path());
    assert_eq!(folders.len(), 128);
    for f in folders {
        assert_eq!(names(&tmp.path().join(f)), ["01_import.lj"]);
    }
}

#[test]
fn meta_reads_back_and_is_open_to_other_versions() {
    let tmp = tempfile::tempdir().unwrap();
    let dump = Dump::create(tmp.path(), "0/0", "backward").unwrap();
    let meta = Meta {
        version: "0.1.0".into(),
        graph: "backward".into(),
        compile_id: "0/0".into(),
        cache_hit: true,
        times: vec![StageTime { stage: "import".into(), ms: 1.25 }],
        counts: Counts { ops: 10, kernels: 2, externs: 1, matmuls: 3, steps: 6 },
        fallbacks: vec![Fallback {
            target: "aten.topk.default".into(),
            reason: "no lowering".into(),
            count: 2,
            line: Some("m.py:3: x.topk(\"5\")".into()),
        }],
        products: vec![],
        rules: [("mul_one".to_string(), 7)].into(),
        arena_bytes: 4096,
    };
    let path = dump.finish(&meta).unwrap();
    let text = fs::read_to_string(path).unwrap();
    assert_eq!(serde_json::from_str::<Meta>(&text).unwrap(), meta);
    let other = r#"{"graph": "g", "counts": {"ops": 3, "new": 1}, "newer": [1]}"#;
    let read: Meta = serde_json::from_str(other).unwrap();
    assert_eq!((read.graph.as_str(), read.counts.ops, read.version.as_str()), ("g", 3, ""));
}

#[test]
fn what_cannot_be_written_is_an_error_with_the_path() {
    let tmp = tempfile::tempdir().unwrap();
    let file = tmp.path().join("file");
    fs::write(&file, "").unwrap();
    let e = Dump::create(&file, "0", "g").unwrap_err();
    assert!(e.to_string().contains("file: "), "{e}");

    let dump = Dump::create(tmp.path(), "0", "g").unwrap();
    fs::remove_dir(dump.folder()).unwrap();
    let e = dump.write(&Artifact::new(Stage::Asm, "")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert!(e.to_string().contains("07_asm.s"), "{e}");
}
