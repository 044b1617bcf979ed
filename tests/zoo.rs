//! Networks by others, exported as people export them (`tests/zoo/README.md`): each file trains to
//! PyTorch's losses, or is refused with the names of the parameters that its exporter took away.

use arenic::Model;
use arenic::artifact::{Artifact, Target};
use arenic::compile::{CompileError, Constraints, compile};
use arenic::onnx::proto::{ModelProto, StringStringEntryProto};
use arenic::onnx::{ImportError, ImportOptions, Mode, Training};
use arenic::train::{Length, TrainOptions, train};
use arenic_backends::CPU;
use arenic_ir::Op;
use arenic_ir::graph::{Node, ValueId};
use arenic_ir::op::{AttentionSpec, Step, Unary};
use arenic_passes::differentiate::{Differentiate, Optimizer};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Search, Standard};
use prost::Message;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// `zoo.json`.
#[derive(Deserialize)]
struct Zoo {
    networks: BTreeMap<String, Network>,
}

/// A network, its files by kind, and PyTorch's losses.
#[derive(Deserialize)]
struct Network {
    loss: String,
    lr: f64,
    momentum: f64,
    rows: u64,
    data: String,
    files: BTreeMap<String, String>,
    losses: Vec<f64>,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zoo").join(name)
}

fn zoo() -> Zoo {
    serde_json::from_slice(&std::fs::read(path("zoo.json")).unwrap()).unwrap()
}

fn model(file: &str) -> ModelProto {
    ModelProto::decode(&std::fs::read(path(file)).unwrap()[..]).unwrap()
}

fn property<'m>(all: &'m [StringStringEntryProto], key: &str) -> &'m str {
    let entry = all.iter().find(|e| e.key.as_deref() == Some(key));
    entry.and_then(|e| e.value.as_deref()).unwrap_or_else(|| panic!("there is no {key}"))
}

impl Network {
    fn compiled(&self, kind: &str) -> Result<Target, CompileError> {
        self.compiled_without(kind, false)
    }

    /// As `compiled`, perhaps without the parameters that a file lacks.
    fn compiled_without(&self, kind: &str, accept_missing: bool) -> Result<Target, CompileError> {
        let training = Training { dropout: Some(0.0), ..Training::default() };
        let sized = || ("batch".to_owned(), self.rows);
        let options = ImportOptions {
            mode: Mode::Training(training),
            dims: (kind == "arenic").then(sized).into_iter().collect(),
            accept_missing,
            ..ImportOptions::default()
        };
        let pass = Differentiate {
            loss: self.loss.clone(),
            optimizer: Optimizer::Momentum,
            momentum: Some(self.momentum),
            ..Differentiate::default()
        };
        let pipeline =
            Pipeline::named("default", &Standard).unwrap().differentiating(pass).unwrap();
        let constraints = Constraints::default();
        // Any plan will do.
        let search = Search { effort: Some(0.1), ..Search::default() };
        let file = path(&self.files[kind]);
        let run = RunOptions::default();
        let compiled =
            compile(&Model::open(&file)?, &options, &pipeline, constraints, search, run)?;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step.arenic");
        compiled.artifact.unwrap().write(&path).unwrap();
        Ok(Artifact::read(&path).unwrap().target(CPU.name).unwrap().clone())
    }

    /// Losses of as many steps as PyTorch made.
    fn trained(&self, target: &Target) -> Vec<f64> {
        let options = TrainOptions {
            data: vec![path(&self.data)],
            set: vec![("lr".to_owned(), self.lr.to_string())],
            length: Length::Steps(self.losses.len() as u64),
            threads: 1,
            deterministic: true,
            poison: true,
            ..TrainOptions::default()
        };
        let mut losses = Vec::new();
        train(target, &options, |_| {}, |step| losses.push(step.scalars[0].1)).unwrap();
        losses
    }

    fn trains_as_pytorch(&self, kind: &str) {
        let file = &self.files[kind];
        let target = self.compiled(kind).unwrap_or_else(|e| panic!("{file}: {e}"));
        let ours = self.trained(&target);
        assert_eq!(ours.len(), self.losses.len(), "{file}");
        for (a, b) in ours.iter().zip(&self.losses) {
            assert!((a - b).abs() <= 1e-4, "{file}: {ours:?}, PyTorch's are {:?}", self.losses);
        }
    }

    /// Names that a parameter has in the module, of those that have several. The file that
    /// arenic's exporter wrote knows.
    fn ties(&self) -> Vec<BTreeSet<String>> {
        let Some(file) = self.files.get("arenic") else { return Vec::new() };
        let model = model(file);
        let said = property(&model.metadata_props, "arenic.parameters");
        let said: serde_json::Value = serde_json::from_str(said).unwrap();
        let rows = said["parameters"].as_array().unwrap();
        let names = |row: &serde_json::Value| {
            let ties = row["ties"].as_array().into_iter().flatten();
            ties.chain([&row["name"]]).map(|n| n.as_str().unwrap().to_owned()).collect()
        };
        rows.iter().map(names).collect()
    }

    /// Parameters of the default export's signature that are no initializer under any of their names, and
    /// all that are.
    fn taken(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        const SIGNATURE: &str = "pkg.torch.export.ExportedProgram.graph_signature";
        let graph = model(&self.files["default"]).graph.unwrap();
        let lines = property(&graph.metadata_props, SIGNATURE).lines();
        let all: BTreeSet<String> = lines
            .filter_map(|line| line.split_once(": PARAMETER target='"))
            .map(|(_, rest)| rest.split('\'').next().unwrap().to_owned())
            .collect();
        let stored: BTreeSet<String> =
            graph.initializer.iter().filter_map(|t| t.name.clone()).collect();
        let ties = self.ties();
        let is_there = |name: &String| {
            let mut tied = ties.iter().filter(|names| names.contains(name));
            stored.contains(name) || tied.any(|names| !names.is_disjoint(&stored))
        };
        (all.iter().filter(|name| !is_there(name)).cloned().collect(), all)
    }
}

#[test]
fn files_that_keep_parameters_train_as_pytorch_does() {
    let zoo = zoo();
    let mut trained = 0;
    for network in zoo.networks.values() {
        for kind in network.files.keys().filter(|kind| *kind != "default") {
            assert!(["arenic", "plain"].contains(&kind.as_str()), "{kind} is no kind");
            network.trains_as_pytorch(kind);
            trained += 1;
        }
    }
    assert_eq!(trained, 45);
}

/// None trains in silence without one of its parameters.
#[test]
fn default_exports_train_as_pytorch_does_or_are_refused_by_name() {
    let zoo = zoo();
    let mut refused = 0;
    for network in zoo.networks.values() {
        let Some(file) = network.files.get("default") else { continue };
        let (taken, all) = network.taken();
        assert!(!all.is_empty(), "{file}: no parameter in its signature");
        if taken.is_empty() {
            network.trains_as_pytorch("default");
            continue;
        }
        let lost: BTreeSet<String> = match network.compiled("default") {
            Err(CompileError::Import(ImportError::Parameters(lost))) => {
                lost.into_iter().map(|l| l.name).collect()
            }
            Err(e) => panic!("{file}: refused for another reason: {e}"),
            Ok(_) => panic!("{file}: it compiles without {taken:?}"),
        };
        // Others than those may be named: of a tied one a copy is read.
        assert!(lost.is_superset(&taken), "{file}: {lost:?} are named of {taken:?}");
        assert!(lost.is_subset(&all), "{file}: {lost:?} are named");
        refused += 1;
    }
    assert_eq!(refused, 18);
}

/// Transformers by family: attentions, matrices of queries that share keys, and whether scores are bounded. T5 and
/// Swin train what they add to scores, and Swin's second version their temperature, too.
const TRANSFORMERS: [(&str, usize, usize, bool); 11] = [
    ("einsum_attention", 1, 1, false),
    ("hf_bert", 1, 1, false),
    ("hf_bloom", 1, 1, false),
    ("hf_gemma2", 2, 2, true),
    ("hf_gpt2", 1, 1, false),
    ("hf_llama", 1, 2, false),
    ("hf_qwen3", 1, 2, false),
    ("hf_t5", 6, 1, false),
    ("hf_vit", 1, 1, false),
    ("tv_swin", 2, 1, false),
    ("tv_swin_v2", 2, 1, false),
];

/// However an exporter writes an attention, no tensor holds its scores: it is one operator, and so is
/// its gradient. Nor is there a copy of the logits for the loss and its gradient.
#[test]
fn attentions_and_losses_are_found_in_every_file() {
    let zoo = zoo();
    for (name, all, group, is_bounded) in TRANSFORMERS {
        for (kind, file) in &zoo.networks[name].files {
            let target = zoo.networks[name].compiled_without(kind, true);
            let g = target.unwrap_or_else(|e| panic!("{file}: {e}")).graph;
            let count = |is: &dyn Fn(&Op) -> bool| g.nodes.values().filter(|n| is(&n.op)).count();
            let is_spec =
                |spec: &AttentionSpec| spec.group == group && spec.softcap.is_some() == is_bounded;
            let attentions = count(&|op| matches!(op, Op::Attention { spec } if is_spec(spec)));
            let gradients =
                count(&|op| matches!(op, Op::AttentionGrad { spec, .. } if is_spec(spec)));
            assert_eq!([attentions, gradients], [all; 2], "{file}");
            let stored = |op: &Op| {
                matches!(
                    op,
                    Op::Softmax { .. }
                        | Op::SoftmaxGrad { .. }
                        | Op::LogSoftmax { .. }
                        | Op::LogSoftmaxGrad { .. }
                        | Op::SoftmaxOfStats
                )
            };
            assert_eq!(count(&stored), 0, "{file}");
            assert_eq!(count(&|op| matches!(op, Op::CrossEntropyGrad)), 1, "{file}");
        }
    }
}

/// Of a normalisation by the mean of squares the operand is stored, and one number a row: what is normalised is made
/// with what multiplies it, forward and backward. Of rows of fewer than eight elements, as heads of Qwen3 have here,
/// `differentiate` keeps what is normalised: the number a row would be no small part of it.
#[test]
fn normalisations_by_squares_store_one_number_a_row() {
    let zoo = zoo();
    for (name, all) in [("hf_gemma2", 9), ("hf_llama", 3), ("hf_qwen3", 5), ("hf_t5", 12)] {
        for (kind, file) in &zoo.networks[name].files {
            let target = zoo.networks[name].compiled_without(kind, true);
            let g = target.unwrap_or_else(|e| panic!("{file}: {e}")).graph;
            let of_rows = g.nodes.values().filter_map(|n| match &n.op {
                Op::Pointwise { steps, .. } if steps.contains(&Step::Unary(Unary::Sqrt, 2)) => {
                    n.outputs[0].filter(|&v| g.ty(v).shape.last() == Some(&1))
                }
                _ => None,
            });
            let of_rows: Vec<ValueId> = of_rows.collect();
            assert_eq!(of_rows.len(), all, "{file}");
            let reads = |n: &Node, v: ValueId| n.inputs.iter().any(|&x| g.resolve(x).root == v);
            let (backward, forward): (Vec<&Node>, Vec<&Node>) =
                g.nodes.values().partition(|n| n.name.ends_with(".grad"));
            let normalised = forward.iter().filter(|n| {
                matches!(n.op, Op::Binary { .. }) && of_rows.iter().any(|v| n.inputs.contains(v))
            });
            let is_long = |v: ValueId| g.ty(v).shape.last().is_some_and(|&n| n >= 8);
            let stored = normalised.filter(|n| {
                n.outputs[0].is_some_and(|v| is_long(v) && backward.iter().any(|n| reads(n, v)))
            });
            let stored: Vec<&str> = stored.map(|n| n.name.as_str()).collect();
            assert!(stored.is_empty(), "{file}: {stored:?}");
        }
    }
}

#[test]
fn every_file_is_listed() {
    let listed: BTreeSet<String> =
        zoo().networks.into_values().flat_map(|n| n.files.into_values()).collect();
    let there = std::fs::read_dir(path("")).unwrap();
    let there = there.map(|e| e.unwrap().file_name().into_string().unwrap());
    let there: BTreeSet<String> = there.filter(|name| name.ends_with(".onnx")).collect();
    assert_eq!(listed, there);
}
