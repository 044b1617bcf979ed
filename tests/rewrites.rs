//! What passes that may change last bits make of every case of theirs computes what the case did.

use arenic::evaluator::Kernels;
use arenic_backends::{CPU, CUDA};
use arenic_ir::graph::{Output, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary};
use arenic_ir::text::Module;
use arenic_ir::types::bf16;
use arenic_ir::verify::verify;
use arenic_ir::{DType, Graph, TargetInfo, TensorType};
use arenic_passes::dead_code::DeadCode;
use arenic_passes::explain::Case;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::sink_transposes::SinkTransposes;
use arenic_passes::{Cx, GraphPass, Standard};
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
    let floats = |bytes: Vec<u8>| {
        bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<f32>>()
    };
    bytes(g).into_iter().map(|(name, bytes)| (name, floats(bytes))).collect()
}

/// The same as they are stored.
fn bytes(g: &Graph) -> Vec<(String, Vec<u8>)> {
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
            DType::Bf16 => values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
        reference.value_mut(v).unwrap().copy_from_slice(&bytes);
    }
    reference.step(Draw { seed: 0, step: 0, round: 0 }).unwrap();
    let outputs = g.outputs.iter().map(|o| (o.name.clone(), reference.value(o.value).to_vec()));
    let states = g.states.values().map(|s| (s.name.clone(), reference.value(s.enter).to_vec()));
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("passes/cases").join(pass);
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

/// A search among the operands of sums ends soon, however many there are.
#[test]
fn a_long_chain_of_sums_before_a_softmax_is_no_attention() {
    let mut text = String::from(
        "graph \"chain\" {\n  input v0: f32[2,3,4] \"q\"\n  input v1: f32[2,4,3] \"k\"\n  input v2: f32[3,3] \"m\"\n  \
         n0 mat_mul {} (v0, v1) -> (v3: f32[2,3,3])\n",
    );
    let sums = 60;
    for i in 1..=sums {
        let (x, y) = (i + 2, i + 3);
        text += &format!("  n{i} binary {{\"f\":\"add\"}} (v{x}, v2) -> (v{y}: f32[2,3,3])\n");
    }
    let (n, v) = (sums + 1, sums + 3);
    text += &format!("  n{n} softmax {{\"axis\":2}} (v{v}) -> (v{}: f32[2,3,3])\n", v + 1);
    text += &format!("  n{} mat_mul {{}} (v{}, v0) -> (v{}: f32[2,3,4])\n", n + 1, v + 1, v + 2);
    text += &format!("  output \"o\" v{}\n}}\n", v + 2);
    let module = Module::parse(&text, &arenic_backends::ALL).unwrap();
    let pipeline = Pipeline::parse("- attention", &Standard).unwrap();
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(CPU.target()) };
    let after = pipeline.run_on(module, &cx, RunOptions::default()).unwrap().module.graph;
    assert_eq!(after.nodes.len(), sums + 3);
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

/// What `fuse_norms` makes of its cases has every bit of theirs.
#[test]
fn fuse_norms() {
    let pipeline = Pipeline::parse("- fuse_norms", &Standard).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("passes/cases/fuse_norms");
    let mut fused = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let case = Case::read(&text);
        let backend = if case.target.is_some() { CUDA } else { CPU };
        let module = Module::parse(case.module, &arenic_backends::ALL).unwrap();
        let before = bytes(&module.graph);
        let cx = Cx::new(backend.target());
        let after = pipeline.run_on(module, &cx, RunOptions::default()).unwrap().module.graph;
        assert!(before == bytes(&after), "{}", path.display());
        fused += after.nodes.values().filter(|n| n.op.name().starts_with("fused_norm")).count();
    }
    assert!(fused >= 12, "{fused}");
}

#[test]
fn pool_taps() {
    assert!(hold("pool_taps", "- pool_taps") >= 2);
}

#[test]
fn patch_products() {
    assert!(hold("patch_products", "- patch_products: {least: 0}") >= 3);
}

#[test]
fn sink_transposes() {
    assert!(hold("sink_transposes", "- sink_transposes:\n    attentions: true") >= 5);
}

#[test]
fn attention_sums() {
    assert!(hold("attention_sums", "- attention_sums") >= 1);
}

#[test]
fn group_updates() {
    assert!(hold("group_updates", "- group_updates") >= 1);
}

#[test]
fn pack_attention() {
    assert!(hold("pack_attention", "- pack_attention") >= 2);
}

/// A graph of twenty operators in two orders of axes.
fn in_two_orders(seed: u64) -> Graph {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut g = Graph::default();
    // Channels second, then last.
    let shapes = [[2, 6, 4, 5], [2, 4, 5, 6]];
    let floats = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut values = vec![vec![g.add_input("x", floats(&shapes[0]))]; 2];
    values[1] = vec![g.add_input("y", floats(&shapes[1]))];
    let add = |g: &mut Graph, op: Op, inputs: &[ValueId]| {
        let n = g.add_node("", op, inputs.to_vec()).unwrap();
        g.result(n).unwrap()
    };
    let mut outputs = Vec::new();
    for k in 0..20 {
        let side = random.usize(0..2);
        let of = |random: &mut fastrand::Rng| {
            let back = random.usize(0..values[side].len().min(3));
            values[side][values[side].len() - 1 - back]
        };
        let (a, b) = (of(&mut random), of(&mut random));
        let channels = if side == 0 { 1 } else { 3 };
        let (mut to, bias) = (side, [[6, 1, 1], [1, 1, 6]][side]);
        let y = match random.u32(0..9) {
            0..=2 => {
                to = 1 - side;
                let perm = [[0, 2, 3, 1], [0, 3, 1, 2]][side].to_vec();
                add(&mut g, Op::Transpose { perm }, &[a])
            }
            3 => add(&mut g, Op::Unary { f: Unary::Tanh }, &[a]),
            4 => add(&mut g, Op::Binary { f: Binary::Add }, &[a, b]),
            5 => {
                let s = g.add_state(format!("s{k}"), floats(&bias), None);
                let enter = g.states[s].enter;
                add(&mut g, Op::Binary { f: Binary::Mul }, &[a, enter])
            }
            6 => {
                let axes = (1..4).filter(|&axis| axis != channels).collect();
                let mean = add(&mut g, Op::Reduce { f: Reduction::Mean, axes, keep: true }, &[a]);
                add(&mut g, Op::Binary { f: Binary::Sub }, &[b, mean])
            }
            7 => {
                let whole = add(&mut g, Op::Concat { axis: channels }, &[a, b]);
                let (mut starts, steps) = (vec![0; 4], vec![1; 4]);
                starts[channels] = 3;
                let shape = shapes[side].to_vec();
                add(&mut g, Op::Slice { starts, steps, shape }, &[whole])
            }
            _ => add(&mut g, Op::Softmax { axis: channels }, &[a]),
        };
        values[to].push(y);
        if random.u32(0..8) == 0 {
            outputs.push(y);
        }
    }
    outputs.extend(values.iter().filter_map(|all| all.last()));
    for (i, value) in outputs.into_iter().enumerate() {
        g.outputs.push(Output { name: format!("{i}"), value });
    }
    g
}

/// Random graphs compute what they did, and their transposes never move more.
#[test]
fn sunk_transposes_move_less_and_change_nothing_else() {
    let cx = Cx::new(CPU.target());
    let moved = |g: &Graph| -> u64 {
        let turns = g.nodes.values().filter(|n| matches!(n.op, Op::Transpose { .. }));
        let moves =
            turns.filter(|n| g.ty(n.inputs[0]).shape.iter().filter(|&&d| d > 1).count() > 1);
        moves.map(|n| g.ty(n.inputs[0]).bytes()).sum()
    };
    let mut gained = 0;
    for seed in 0..400 {
        let mut before = in_two_orders(seed);
        DeadCode {}.run(&mut before, &cx).unwrap();
        let mut after = before.clone();
        SinkTransposes::default().run(&mut after, &cx).unwrap();
        verify(&after).unwrap();
        assert!(moved(&after) <= moved(&before), "seed {seed}");
        gained += usize::from(moved(&after) < moved(&before));
        for ((which, a), (_, b)) in results(&before).iter().zip(&results(&after)) {
            let largest = a.iter().fold(1f32, |m, x| m.max(x.abs()));
            for (x, y) in a.iter().zip(b) {
                assert!((x - y).abs() <= 1e-5 * largest, "seed {seed}: {which}: {x} {y}");
            }
        }
    }
    assert!((100..400).contains(&gained), "{gained} graphs gain");
}

#[test]
fn align_classes() {
    let yaml = "- align_classes: {least: 0, least_rows: 1}";
    assert!(hold_all("align_classes", yaml, false) >= 5);
}

/// What a step of the pass's example gives with these targets, before and after; the operand's rows
/// are finite, but for the first one if it is told.
fn with_targets(targets: [i64; 6], first: Option<f32>) -> [Result<Vec<Vec<u8>>, String>; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("passes/cases/align_classes/example.ir");
    let text = std::fs::read_to_string(path).unwrap();
    let case = Case::read(&text);
    let before = Module::parse(case.module, &arenic_backends::ALL).unwrap().graph;
    let after = Module::parse(case.gives.unwrap(), &arenic_backends::ALL).unwrap().graph;
    [before, after].map(|g| {
        let mut reference = Reference::new(&g).unwrap();
        for (v, data) in g.consts() {
            reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
        }
        let enters = g.states.values().map(|s| s.enter);
        for (seed, v) in enters.chain(g.inputs()).enumerate() {
            let mut values: Vec<f32> = numbers(g.ty(v).elements(), seed as u64).collect();
            if let Some(x) = first.filter(|_| g.values[v].name == "x") {
                values[0] = x;
            }
            let bytes: Vec<u8> = match g.ty(v).dtype {
                DType::I64 => targets.iter().flat_map(|t| t.to_le_bytes()).collect(),
                _ => values.into_iter().flat_map(f32::to_le_bytes).collect(),
            };
            reference.value_mut(v).unwrap().copy_from_slice(&bytes);
        }
        let draw = Draw { seed: 0, step: 0, round: 0 };
        reference.step(draw).map_err(|e| e.to_string())?;
        let ends = g.outputs.iter().map(|o| o.value).chain(g.states.values().map(|s| s.enter));
        Ok(ends.map(|v| reference.value(v).to_vec()).collect())
    })
}

/// Among more classes a target below 0 counts from the end of the old ones, and one out of their
/// range is refused. On the CPU not a bit changes.
#[test]
fn targets_mean_the_same_among_more_classes() {
    let [before, after] = with_targets([0, 9, -1, -10, 4, -7], None);
    assert_eq!(before.unwrap(), after.unwrap());
    for out_of_range in [10, 15, 16, 17, -11, -16, -17, i64::MAX, i64::MIN] {
        for result in with_targets([0, 1, out_of_range, 3, 4, 5], None) {
            assert!(result.unwrap_err().contains("out of range"), "{out_of_range}");
        }
    }
}

/// A row that is not finite has the same NaN with more classes, and no other row has any.
#[test]
fn rows_that_are_not_finite_stay_what_they_were_among_more_classes() {
    for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let [before, after] = with_targets([0, 1, 2, 3, 4, 5], Some(x)).map(Result::unwrap);
        let kinds = |all: &[Vec<u8>]| {
            let floats = all.iter().flat_map(|bytes| bytes.as_chunks().0);
            floats
                .map(|&b| f32::from_le_bytes(b))
                .map(|x| (x.is_nan(), x.is_infinite()))
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(&before), kinds(&after), "{x}");
        assert!(kinds(&before).iter().any(|&(is_nan, _)| !is_nan), "{x}");
    }
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
