//! What passes that may change last bits make of every case of theirs computes what the case did.

use arenic::evaluator::Kernels;
use arenic_backends::{CPU, CUDA};
use arenic_ir::text::Module;
use arenic_ir::{DType, Graph, TargetInfo};
use arenic_passes::explain::Case;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, Standard};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use std::path::Path;

/// Numbers between −1 and 1, which go by the seed.
fn numbers(count: usize, seed: u64) -> impl Iterator<Item = f32> {
    (0..count as u64).map(move |i| {
        let bits = (i + 1 + (seed << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

/// Outputs and exit values of a step, by their names.
fn results(g: &Graph) -> Vec<(String, Vec<f32>)> {
    let mut reference = Reference::new(g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    let enters = g.states.values().map(|s| s.enter);
    for (seed, v) in enters.chain(g.inputs()).enumerate() {
        let ty = g.ty(v);
        let values = numbers(ty.elements(), seed as u64);
        let bytes: Vec<u8> = match ty.dtype {
            DType::Bool => values.map(|x| u8::from(x > 0.0)).collect(),
            DType::I32 => values.flat_map(|x| ((x + 1.0) as i32).to_le_bytes()).collect(),
            DType::I64 => values.flat_map(|x| ((x + 1.0) as i64).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
        reference.value_mut(v).unwrap().copy_from_slice(&bytes);
    }
    reference.step(Draw { seed: 0, step: 0, round: 0 }).unwrap();
    let floats = |bytes: &[u8]| {
        bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<f32>>()
    };
    let outputs = g.outputs.iter().map(|o| (o.name.clone(), floats(reference.value(o.value))));
    let states = g.states.values().map(|s| (s.name.clone(), floats(reference.value(s.enter))));
    outputs.chain(states).collect()
}

/// What a pass makes of every case in its folder, `not_*` excepted, is another graph with the same
/// results. Returns how many there are.
fn hold(pass: &str, yaml: &str) -> usize {
    hold_all(pass, yaml, true)
}

/// The same; a case called `not_*` may also show what is left of a match, where `strict` is false.
fn hold_all(pass: &str, yaml: &str, strict: bool) -> usize {
    let pipeline = Pipeline::parse(yaml, &Standard).unwrap();
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(CPU.target()) };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(pass);
    let mut changed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let module = Module::parse(Case::read(&text).module, &arenic_backends::ALL).unwrap();
        let before = module.graph.clone();
        let after = pipeline.run_on(module, &cx, RunOptions::default()).unwrap().module.graph;
        let operators = |g: &Graph| g.nodes.values().map(|n| n.op.clone()).collect::<Vec<_>>();
        let same = operators(&before) == operators(&after);
        let is_left = name.starts_with("not_");
        assert!(if strict { same == is_left } else { !same || is_left }, "{name}");
        changed += usize::from(!same);
        let (before, after) = (results(&before), results(&after));
        assert_eq!(before.len(), after.len(), "{name}");
        for ((which, a), (_, b)) in before.iter().zip(&after) {
            let largest = a.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert!(largest > 0.0 && a.len() == b.len(), "{name}: {which}");
            for (x, y) in a.iter().zip(b) {
                assert!((x - y).abs() <= 1e-5 * largest.max(1.0), "{name}: {which}: {x} {y}");
            }
        }
    }
    changed
}

#[test]
fn raise() {
    assert!(hold("raise", "- raise") >= 10);
}

#[test]
fn attention() {
    assert!(hold("attention", "- attention") >= 10);
}

#[test]
fn fuse_cross_entropy() {
    assert!(hold_all("fuse_cross_entropy", "- fuse_cross_entropy", false) >= 5);
}

#[test]
fn layout() {
    assert!(hold("layout", "- layout: {convolutions: all}") >= 7);
}

#[test]
fn fuse_gelu() {
    assert!(hold("fuse_gelu", "- fuse_gelu") >= 5);
}

/// A product that a library computes stays one where none computes it with a GELU.
#[test]
fn what_no_library_has_with_a_gelu_is_left_alone() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("passes/cases/fuse_gelu/saved_tanh.ir");
    let text = std::fs::read_to_string(path).unwrap();
    let case = Case::read(&text).module;
    let fused = |rows: usize, columns: usize, dtype: &str, target: TargetInfo| {
        let (m, n) = (rows.to_string(), columns.to_string());
        let text = case
            .replace("[6,8]", &format!("[{m},{n}]"))
            .replace("[4,8]", &format!("[4,{n}]"))
            .replace("[8,4]", &format!("[{n},4]"))
            .replace("f32[8]", &format!("f32[{n}]"))
            .replace("[6,4]", &format!("[{m},4]"))
            .replace("f32", dtype);
        let module = Module::parse(&text, &arenic_backends::ALL).unwrap();
        let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(target) };
        let pipeline = Pipeline::parse("- fuse_gelu", &Standard).unwrap();
        let g = pipeline.run_on(module, &cx, RunOptions::default()).unwrap().module.graph;
        g.nodes.values().filter(|n| n.op.name().starts_with("gemm_gelu")).count()
    };
    for (rows, columns, dtype, target, count) in [
        (600, 64, "f32", CUDA.target(), 2),
        // Rows of `z` begin where they are not aligned.
        (600, 60, "f32", CUDA.target(), 0),
        (600, 64, "f64", CUDA.target(), 0),
        // So few multiplications are left to our kernels.
        (6, 6, "f32", CUDA.target(), 2),
        (6, 8, "f64", CUDA.target(), 2),
        (600, 60, "f32", CPU.target(), 2),
        (600, 64, "f64", CPU.target(), 2),
    ] {
        assert_eq!(fused(rows, columns, dtype, target), count, "{rows} {columns} {dtype}");
    }
}
