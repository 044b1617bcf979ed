//! Exported steps: what the importer reads back computes the same bits, for graphs as they are
//! imported and for those that passes have rewritten; and artifacts with their plan as metadata.

mod operators;
mod recurrent;

use arenic::Model;
use arenic::artifact::Artifact;
use arenic::compile::{Constraints, compile};
use arenic::data::{Batches, Npz, TensorFile};
use arenic::evaluator::Kernels;
use arenic::onnx::export::{ExportError, ExportOptions, annotated, export, write};
use arenic::onnx::proto::{ModelProto, NodeProto, StringStringEntryProto};
use arenic::onnx::{ImportOptions, Imported, import_bytes, import_file};
use arenic_backends::CPU;
use arenic_ir::check::check;
use arenic_ir::op::{
    AttentionDropout, AttentionSpec, Binary, PoolIndices, ResizeSpec, Rng, Scatter, Window,
};
use arenic_ir::program::PerSpace;
use arenic_ir::text::Module;
use arenic_ir::verify::verify;
use arenic_ir::{DType, Data, Def, Graph, Op, TensorType};
use arenic_passes::explain::Case;
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, Search, Standard};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference::Reference;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn imported(model: &ModelProto) -> Graph {
    let bytes = model.encode_to_vec().into();
    let Imported { graph, .. } = import_bytes(bytes, None, &ImportOptions::default()).unwrap();
    verify(&graph).unwrap();
    graph
}

/// The graph after these passes.
fn rewritten(graph: Graph, yaml: &str) -> Graph {
    let cx = Cx { evaluate: Some(&Kernels), ..Cx::new(CPU.target()) };
    let pipeline = Pipeline::from_yaml(yaml, &Standard).unwrap();
    pipeline.run(graph, &cx, RunOptions::default()).unwrap().module.graph
}

/// A reference run: its graph and the files beside it.
struct Run {
    base: PathBuf,
    set: Vec<(String, String)>,
    graph: Graph,
}

fn runs() -> Vec<Run> {
    let folder = std::fs::read_dir(root("tests/runs")).unwrap().map(|e| e.unwrap().path());
    let runs: Vec<Run> = folder
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .map(|json| {
            let text = std::fs::read_to_string(&json).unwrap();
            let run: serde_json::Value = serde_json::from_str(&text).unwrap();
            let set = run["set"].as_object().unwrap();
            let model = root("models/step").join(run["onnx"].as_str().unwrap());
            Run {
                base: json.with_extension(""),
                set: set.iter().map(|(n, v)| (n.clone(), v.to_string())).collect(),
                graph: import_file(&model, &ImportOptions::default()).unwrap().graph,
            }
        })
        .collect();
    assert_eq!(runs.len(), 8);
    runs
}

impl Run {
    fn file(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}{suffix}", self.base.display()))
    }

    /// States and outputs by name after each of two steps.
    fn bits(&self, g: &Graph) -> Vec<BTreeMap<String, Vec<u8>>> {
        let npz = Npz::open(self.file(".data.npz")).unwrap();
        let init = TensorFile::open(self.file(".init.npz")).unwrap();
        let inputs: Vec<_> =
            g.inputs().map(|v| (g.values[v].name.clone(), g.ty(v).clone())).collect();
        let mut batches = Batches::new(&inputs, Some(&npz), &self.set, None).unwrap().0;
        let mut reference = Reference::new(g).unwrap();
        for (v, data) in g.consts() {
            reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
        }
        for state in g.states.values() {
            let all = init.tensor(&state.name).unwrap().bytes().to_vec();
            let bytes = g.ty(state.enter).bytes() as usize;
            let first = state.rows.map_or(0, |r| r.first * (all.len() / r.of));
            reference.value_mut(state.enter).unwrap().copy_from_slice(&all[first..first + bytes]);
        }
        let mut seen = Vec::new();
        for step in 0..2 {
            for (i, v) in g.inputs().collect::<Vec<_>>().into_iter().enumerate() {
                batches.fill(step, i, reference.value_mut(v).unwrap()).unwrap();
            }
            reference.step(Draw { seed: 5, step, round: 0 }).unwrap();
            let mut now: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            // A constant or a state as an output is its value when the step has ended.
            for o in &g.outputs {
                now.insert(o.name.clone(), reference.value(o.value).to_vec());
            }
            for state in g.states.values() {
                now.entry(state.name.clone()).or_default().extend(reference.value(state.enter));
            }
            seen.push(now);
        }
        seen
    }
}

/// As plain graphs, after the default pipeline's graph passes, with every pass that puts several
/// operators into one, in parts, with products in `bf16`, and with channels last.
const REWRITES: [&str; 6] = [
    "- dead_code",
    "- fold_constants\n- dead_code\n- fuse_transposes\n- views\n- fuse_cross_entropy\n- fuse_updates\n\
     - views\n- detach_states",
    "- fold_constants\n- dead_code\n- fuse_transposes\n- views\n- raise\n- fuse_cross_entropy\n\
     - fuse_updates\n- fuse_sums\n- fuse_gelu\n- fuse_elementwise\n- fuse_norms\n- views\n- detach_states",
    "- fold_constants\n- dead_code\n- fuse_transposes\n- views\n- fuse_cross_entropy\n- fuse_updates\n\
     - section: {parts: 4}\n- views\n- detach_states",
    "- fold_constants\n- dead_code\n- fuse_transposes\n- views\n- fuse_cross_entropy\n- fuse_updates\n\
     - fuse_sums\n- fuse_gelu\n- precision\n- fuse_elementwise\n- views\n- detach_states",
    "- fold_constants\n- dead_code\n- fuse_transposes\n- views\n- layout: {convolutions: all}\n\
     - fuse_cross_entropy\n- fuse_updates\n- fuse_elementwise\n- views\n- detach_states",
];

/// Rewrites that change last bits, which a file of standard operators undoes.
const BITS: [&str; 2] = ["- fuse_transposes", "- views\n- raise"];

#[test]
fn what_is_read_back_computes_the_same_bits() {
    let mut kinds = BTreeSet::new();
    for run in runs() {
        for (i, yaml) in REWRITES.into_iter().enumerate() {
            let g = rewritten(run.graph.clone(), yaml);
            kinds.extend(g.nodes.values().map(|n| n.op.name()));
            let model = export(&g, ExportOptions::default()).unwrap();
            valid(&model);
            let mut back = imported(&model);
            for rewrite in BITS.iter().filter(|r| yaml.contains(r.trim_start_matches("- views\n")))
            {
                back = rewritten(back, rewrite);
            }
            same_interface(&g, &back);
            let (ours, theirs) = (run.bits(&g), run.bits(&back));
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let names: Vec<&String> = ours.keys().collect();
                assert_eq!(names, theirs.keys().collect::<Vec<_>>());
                for (name, bytes) in ours {
                    assert!(*bytes == theirs[name], "{} {i}: {name}", run.base.display());
                }
            }
        }
    }
    for kind in ["pointwise", "product_update", "gemm_gelu", "gemm_gelu_grad", "layer_norm"] {
        assert!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
    for kind in [
        "conv_weight_grad",
        "fused_norm",
        "fused_norm_grad",
        "cross_entropy_grad",
        "log_softmax_stats",
        "conv_transpose",
        "channels_last",
        "max_pool",
    ] {
        assert!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
}

/// What standard tools ask of a file: names that are there, once, before they are read.
fn valid(model: &ModelProto) {
    let g = model.graph.as_ref().unwrap();
    let name = |n: &Option<String>| n.clone().unwrap();
    let mut defined: HashSet<String> = HashSet::new();
    for input in &g.input {
        assert!(defined.insert(name(&input.name)), "{:?} twice", input.name);
    }
    for t in &g.initializer {
        let fed = g.input.iter().any(|i| i.name == t.name);
        assert!(defined.insert(name(&t.name)) != fed, "{:?}", t.name);
    }
    let nodes: HashSet<_> = g.node.iter().map(|n| name(&n.name)).collect();
    assert_eq!(nodes.len(), g.node.len());
    for node in &g.node {
        for x in node.input.iter().filter(|x| !x.is_empty()) {
            assert!(defined.contains(x), "{x} is read too early");
        }
        for y in &node.output {
            assert!(!y.is_empty() && defined.insert(y.clone()), "{y} twice");
        }
    }
    for output in &g.output {
        assert!(defined.contains(&name(&output.name)), "{:?}", output.name);
    }
}

/// Inputs, states and outputs of the same names and types.
fn same_interface(a: &Graph, b: &Graph) {
    let interface = |g: &Graph| {
        let inputs = g.inputs().map(|v| ("input", g.values[v].name.clone(), g.ty(v).clone()));
        let states = g.states.keys().map(|s| ("state", g.states[s].name.clone(), g.saved_type(s)));
        let outputs = g.outputs.iter().map(|o| ("output", o.name.clone(), g.ty(o.value).clone()));
        let all = inputs.chain(states).chain(outputs);
        all.map(|(kind, name, ty)| (kind, name, ty.to_string())).collect::<BTreeSet<_>>()
    };
    assert_eq!(interface(a), interface(b));
}

#[test]
fn large_graphs_are_read_back_and_written_again_the_same() {
    for name in ["joint_alexnet_b32_adamop", "joint_vgg16_b32_adamop"] {
        let model = root(&format!("models/structure/{name}.onnx"));
        let options = ImportOptions { plan_only: true, ..ImportOptions::default() };
        let mut g = import_file(&model, &options).unwrap().graph;
        for value in g.values.values_mut() {
            let zeros = vec![0; value.ty.bytes() as usize];
            if let Def::Const(data @ Data::Absent) = &mut value.def {
                *data = Data::Bytes(zeros.into());
            }
        }
        let first = export(&g, ExportOptions::default()).unwrap();
        valid(&first);
        let back = imported(&first);
        same_interface(&g, &back);
        let count = |g: &Graph| {
            let mut count: BTreeMap<&str, usize> = BTreeMap::new();
            g.nodes.values().for_each(|n| *count.entry(n.op.name()).or_default() += 1);
            count
        };
        assert_eq!(count(&g), count(&back), "{name}");
        assert!(export(&back, ExportOptions::default()).unwrap() == first, "{name}");
    }
}

fn f32s(list: &[f32]) -> Vec<u8> {
    list.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Results of one step by name; inputs are small numbers that differ.
fn step(g: &Graph) -> BTreeMap<String, Vec<u8>> {
    let mut reference = Reference::new(g).unwrap();
    for (v, data) in g.consts() {
        reference.value_mut(v).unwrap().copy_from_slice(data.bytes().unwrap());
    }
    for (k, v) in g.inputs().enumerate() {
        let ty = g.ty(v).clone();
        let number = |i: usize| ((i * 37 + k * 11) % 23) as f64 / 7.0 - 1.3;
        let bytes: Vec<u8> = match ty.dtype {
            DType::F32 => {
                (0..ty.elements()).flat_map(|i| (number(i) as f32).to_le_bytes()).collect()
            }
            DType::F64 => (0..ty.elements()).flat_map(|i| number(i).to_le_bytes()).collect(),
            DType::I64 => (0..ty.elements()).flat_map(|i| (i as i64 % 2).to_le_bytes()).collect(),
            _ => (0..ty.bytes()).map(|i| (i % 2) as u8).collect(),
        };
        reference.value_mut(v).unwrap().copy_from_slice(&bytes);
    }
    reference.step(Draw { seed: 3, step: 0, round: 0 }).unwrap();
    g.outputs.iter().map(|o| (o.name.clone(), reference.value(o.value).to_vec())).collect()
}

/// A graph of one operator, all of whose results are outputs.
fn alone(op: Op, inputs: &[TensorType]) -> Graph {
    let mut g = Graph { name: "one".into(), ..Graph::default() };
    let x = inputs.iter().enumerate().map(|(i, ty)| g.add_input(format!("x{i}"), ty.clone()));
    let x = x.collect();
    let node = g.add_node("it", op, x).unwrap();
    for (i, v) in g.nodes[node].outputs.clone().into_iter().flatten().enumerate() {
        g.values[v].name = format!("made{i}");
        g.outputs.push(arenic_ir::Output { name: format!("y{i}"), value: v });
    }
    verify(&g).unwrap();
    g
}

fn close(g: &Graph, tolerance: f64) {
    let back = imported(&export(g, ExportOptions::default()).unwrap());
    same_interface(g, &back);
    let (ours, theirs) = (step(g), step(&back));
    for o in &g.outputs {
        let numbers = |bytes: &[u8]| -> Vec<f64> {
            match g.ty(o.value).dtype {
                DType::F32 => bytes
                    .chunks_exact(4)
                    .map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap())))
                    .collect(),
                _ => bytes
                    .chunks_exact(8)
                    .map(|c| f64::from_le_bytes(c.try_into().unwrap()))
                    .collect(),
            }
        };
        let (a, b) = (numbers(&ours[&o.name]), numbers(&theirs[&o.name]));
        assert!(a.iter().any(|x| *x != 0.0));
        for (x, y) in a.iter().zip(&b) {
            assert!((x - y).abs() <= tolerance * x.abs().max(1.0), "{}: {x} {y}", o.name);
        }
    }
}

#[test]
fn states_that_swap_or_stay_and_outputs_that_are_inputs_are_read_back() {
    let f = TensorType::new(DType::F32, [2]);
    let mut g = Graph { name: "odd".into(), ..Graph::default() };
    let init = |x: f32| Some(Data::Bytes(f32s(&[x, x + 1.0]).into()));
    let (a, b) = (g.add_state("a", f.clone(), init(1.0)), g.add_state("b", f.clone(), init(3.0)));
    let still = g.add_state("still", f.clone(), None);
    (g.states[a].exit, g.states[b].exit) = (g.states[b].enter, g.states[a].enter);
    let x = g.add_input("x", f.clone());
    let c = g.add_const("", f, Data::Bytes(f32s(&[8.0, 9.0]).into()));
    for (name, value) in [("x", x), ("again", x), ("c", c), ("kept", g.states[still].enter)] {
        g.outputs.push(arenic_ir::Output { name: name.into(), value });
    }
    verify(&g).unwrap();
    let model = export(&g, ExportOptions::default()).unwrap();
    valid(&model);
    let back = imported(&model);
    same_interface(&g, &back);
    let inits = |g: &Graph| -> Vec<(String, Option<Data>)> {
        g.states.values().map(|s| (s.name.clone(), s.init.clone())).collect()
    };
    assert_eq!(inits(&g), inits(&back));
    // Identities are what the exits come through.
    let exits = |g: &Graph| -> Vec<String> {
        let through = |mut v| {
            while let Def::Node { node, .. } = g.values[v].def {
                v = g.nodes[node].inputs[0];
            }
            g.values[v].name.clone()
        };
        g.states.values().map(|s| through(s.exit)).collect()
    };
    assert_eq!(exits(&back), ["b", "a", "still"]);
}

#[test]
fn what_cannot_be_written_is_refused_by_name() {
    let refused = |g: &Graph| export(g, ExportOptions::default()).unwrap_err().to_string();
    let opaque = alone(Op::Opaque { results: vec![4] }, &[]);
    assert!(refused(&opaque).contains("node `it` is `opaque`"));
    assert!(matches!(export(&opaque, ExportOptions::default()), Err(ExportError::Opaque(_))));

    let mut twice = alone(Op::Copy, &[TensorType::new(DType::F32, [2])]);
    twice.outputs.push(twice.outputs[0].clone());
    assert!(refused(&twice).contains("two tensors would be called `y0`"));

    let seed = Op::RandomUniform {
        dtype: DType::F32,
        shape: vec![2],
        low: 0.0,
        high: 1.0,
        rng: Rng { stream: 1, seed: Some((1 << 40) + 1) },
    };
    assert!(refused(&alone(seed, &[])).contains("cannot hold"));

    let mut absent = alone(Op::Copy, &[TensorType::new(DType::F32, [2])]);
    let ty = TensorType::new(DType::F32, [1 << 20]);
    let c = absent.add_const("weights", ty, Data::Absent);
    absent.outputs.push(arenic_ir::Output { name: "w".into(), value: c });
    assert!(refused(&absent).contains("the data of `weights` is not at hand"));
    let model = export(&absent, ExportOptions { data: false }).unwrap();
    valid(&model);
    assert_eq!(model.graph.unwrap().input.len(), 2);
}

fn property<'a>(all: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    all.iter().find(|e| e.key.as_deref() == Some(key)).and_then(|e| e.value.as_deref())
}

/// Under a limit, so that something is swapped or made again.
#[test]
fn nodes_say_where_the_plan_puts_their_results() {
    let model = root("models/step/ref_gpt_tiny_b4_adamw.onnx");
    let pipeline = Pipeline::named("default", &Standard).unwrap();
    let compiled = |device| {
        let limits = PerSpace { device, host: Some(1 << 40) };
        let search = Search { effort: Some(0.5), ..Search::default() };
        let constraints = Constraints { limits, ..Constraints::default() };
        let options = ImportOptions::default();
        compile(
            &Model::open(&model).unwrap(),
            &options,
            &pipeline,
            constraints,
            search,
            RunOptions::default(),
        )
        .unwrap()
        .artifact
        .unwrap()
    };
    let arena = compiled(None).targets[0].figures.arena_bytes;
    let artifact: Artifact = compiled(Some(arena * 7 / 10));
    let target = &artifact.targets[0];
    let footprint = check(&target.graph, &target.program).unwrap();
    let options = ExportOptions::default();
    let model = annotated(target, &artifact.provenance, &footprint, options).unwrap();
    valid(&model);
    let said = |key| property(&model.metadata_props, key).unwrap();
    assert_eq!(said("arenic.target"), "cpu");
    assert_eq!(said("arenic.arena_bytes"), target.figures.arena_bytes.to_string());

    // Every node of the graph is there, in the order of its first run, with what the checker says.
    let nodes: &[NodeProto] = &model.graph.as_ref().unwrap().node;
    let order: Vec<usize> = nodes
        .iter()
        .filter_map(|n| property(&n.metadata_props, "arenic.order"))
        .map(|i| i.parse().unwrap())
        .collect();
    assert!(order.is_sorted());
    let distinct: BTreeSet<usize> = order.into_iter().collect();
    assert_eq!(distinct.len(), target.graph.nodes.len());
    let all = |key: &str| -> usize {
        nodes.iter().filter_map(|n| property(&n.metadata_props, key)).count()
    };
    assert!(all("arenic.swap") + all("arenic.recomputed") > 0);
    assert_eq!(all("arenic.stream"), all("arenic.order"));
    let named = target.graph.values.iter().find(|(v, value)| {
        matches!(value.def, Def::Node { output: 0, .. })
            && footprint.occupancies.iter().filter(|o| o.value == Some(*v)).count() == 1
            && nodes.iter().any(|n| n.output.first() == Some(&value.name))
    });
    let (v, value) = named.unwrap();
    let node = nodes.iter().find(|n| n.output.first() == Some(&value.name)).unwrap();
    let o = footprint.occupancies.iter().find(|o| o.value == Some(v)).unwrap();
    let said = |key| property(&node.metadata_props, key).unwrap().to_owned();
    assert_eq!(said("arenic.offset"), o.range.offset.to_string());
    assert_eq!(said("arenic.bytes"), o.range.len.to_string());
    assert_eq!(said("arenic.lifetime"), format!("{}..{}", o.first, o.end - 1));

    // It is a step like any other.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("annotated.onnx");
    write(&model, &path).unwrap();
    let back = import_file(&path, &ImportOptions::default()).unwrap().graph;
    same_interface(&target.graph, &back);
}

/// Graphs of the passes' own cases: rows of states, slices of views, streams.
#[test]
fn the_cases_of_passes_are_read_back() {
    let mut count = 0;
    for folder in [
        "views",
        "section",
        "precision",
        "fuse_elementwise",
        "fuse_norms",
        "fuse_cross_entropy",
        "detach_states",
    ] {
        for entry in std::fs::read_dir(root("passes/cases").join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let case = Case::read(&text).module;
            let Ok(module) = Module::parse(case, &arenic_backends::ALL) else { continue };
            let g = module.graph;
            if g.nodes.values().any(|n| matches!(n.op, Op::Opaque { .. })) {
                continue;
            }
            let model = match export(&g, ExportOptions { data: false }) {
                Ok(model) => model,
                Err(e) => panic!("{}: {e}", path.display()),
            };
            valid(&model);
            imported(&model);
            count += 1;
        }
    }
    assert!(count > 15, "{count}");
}
