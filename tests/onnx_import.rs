//! Real training steps import: `models/step` can run, `models/structure` can only be
//! planned, since its weights are left out.

use arenic::onnx::{ImportOptions, Imported, import_file};
use arenic_ir::{Data, Op};
use std::path::{Path, PathBuf};

fn models(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(folder);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "onnx"));
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

fn planned(path: &Path) -> Imported {
    let options = ImportOptions { plan_only: true, ..ImportOptions::default() };
    import_file(path, &options).unwrap()
}

#[test]
fn training_steps_import_whole() {
    for path in models("step") {
        let name = path.display();
        let i = import_file(&path, &ImportOptions::default()).unwrap();
        let g = &i.graph;
        assert!(g.outputs.iter().any(|o| o.name == "loss"), "{name}");
        assert!(g.states.len() >= 12, "{name}: {} states", g.states.len());
        for state in g.states.values() {
            assert_eq!(g.ty(state.enter), g.ty(state.exit), "{name}");
            assert_eq!(g.values[state.exit].name, format!("out_{}", state.name), "{name}");
        }
        assert!(g.consts().all(|(_, data)| *data != Data::Absent), "{name}");
        assert!(g.nodes.values().all(|n| n.outputs.iter().any(Option::is_some)), "{name}");
    }
}

#[test]
fn structures_import_for_planning_alone() {
    for path in models("structure") {
        let text = import_file(&path, &ImportOptions::default()).unwrap_err().to_string();
        assert!(text.contains("is missing (--plan-only does without it)"), "{text}");
        let g = planned(&path).graph;
        assert!(g.states.len() > 40);
        assert!(g.nodes.values().any(|n| matches!(n.op, Op::Adam { .. })));
    }
}

/// The exporter writes a 1×1 pool over each layer's activations, for indices alone.
#[test]
fn no_positions_are_stored_whole() {
    for path in models("structure") {
        let g = planned(&path).graph;
        for node in g.nodes.values() {
            if let Op::MaxPool { window, .. } = &node.op {
                assert!(!window.is_pointwise(), "{}: {}", path.display(), node.name);
            }
        }
        let consts: u64 = g.consts().map(|(v, _)| g.ty(v).bytes()).sum();
        assert!(consts < 1 << 20, "{}: {consts} bytes", path.display());
    }
}
