//! What is trained of files by exporters as people use them, and what is said of the rest.

use super::*;
use arenic::onnx::proto::{ModelProto, StringStringEntryProto};
use prost::Message;
use std::collections::BTreeMap;

const EXPORTS: &str = "@tests/fixtures/exports";
const ZOO: &str = "@tests/zoo";
pub(crate) const SGD: &str = "--loss mse --optimizer sgd --lr 0.1";

pub(crate) fn losses(lines: &[Value]) -> Vec<f64> {
    lines.iter().filter_map(|l| l["loss"].as_f64()).collect()
}

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exports").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn exported(name: &str) -> ModelProto {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exports").join(name);
    ModelProto::decode(&std::fs::read(path).unwrap()[..]).unwrap()
}

/// Names of what is trained, and of other weights with the reason.
pub(crate) fn weights(compiled: &Value) -> (Vec<String>, BTreeMap<String, String>) {
    let name = |p: &Value| p["name"].as_str().unwrap().to_owned();
    let all = compiled["parameters"].as_array().unwrap();
    let trained = all.iter().filter(|p| p["trained"] == true).map(name).collect();
    let others = all.iter().filter(|p| p["trained"] == false);
    (trained, others.map(|p| (name(p), p["why"].as_str().unwrap().to_owned())).collect())
}

impl Shell {
    /// Compiles an export and trains it for three steps as PyTorch did.
    fn trains_as_pytorch(&self, name: &str, kind: &str, options: &str) -> Value {
        let model = format!("{EXPORTS}/{name}_{kind}.onnx");
        let compiled =
            self.succeeds(&format!("compile {model} {SGD} {options} --json -o m.arenic")).remove(0);
        let run = format!("run m.arenic --data {EXPORTS}/{name}.npz --steps 3 --json");
        let found = losses(&self.succeeds(&run));
        let wanted = &fixture("losses.json")[name];
        assert_eq!(found.len(), 3);
        for (i, loss) in found.iter().enumerate() {
            let wanted = wanted[i].as_f64().unwrap();
            let error = (loss / wanted - 1.0).abs();
            assert!(error < 1e-6, "{name}_{kind}: {found:?}, not {wanted}");
        }
        compiled
    }
}

#[test]
fn exports_without_the_optimizer_train_as_pytorch_does() {
    let shell = Shell::new();
    for name in [
        "bags",
        "batch_norm",
        "batch_norm_alone",
        "batch_norms",
        "buffer",
        "chunked",
        "conv3d",
        "deformed",
        "detached",
        "folded",
        "fourier",
        "group_norm",
        "sequence",
        "spatial_transformer",
        "temperature",
        "tied",
        "two_layer_norms",
        "zero_mask",
    ] {
        shell.trains_as_pytorch(name, "plain", "");
    }
}

#[test]
fn default_exports_that_keep_parameters_train_as_pytorch_does() {
    let shell = Shell::new();
    for name in [
        "bags",
        "buffer",
        "chunked",
        "conv3d",
        "deformed",
        "detached",
        "spatial_transformer",
        "zero_mask",
    ] {
        shell.trains_as_pytorch(name, "default", "--effort 0.1");
    }
}

#[test]
fn what_the_exporter_merged_split_or_replaced_is_restored() {
    let shell = Shell::new();
    for (name, first) in [
        ("batch_norms", "0.running_mean"),
        ("folded", "a.weight"),
        ("fourier", "b.weight"),
        ("group_norm", "1.weight"),
        ("sequence", "a.weight"),
        ("tied", "o.weight"),
        ("two_layer_norms", "b.weight"),
    ] {
        let compile = format!("compile {EXPORTS}/{name}_default.onnx {SGD} -o m.arenic");
        shell.fails(&compile, 1, &[first, "--repair", "optimize=False", "--accept-missing"]);
        assert!(!shell.path("m.arenic").exists());
        shell.trains_as_pytorch(name, "default", "--repair");
        std::fs::remove_file(shell.path("m.arenic")).unwrap();
        shell.succeeds(&format!("{compile} --accept-missing"));
        std::fs::remove_file(shell.path("m.arenic")).unwrap();
    }
}

#[test]
fn what_is_lost_is_named_with_what_happened_to_it() {
    let shell = Shell::new();
    let default = |name: &str| format!("compile {EXPORTS}/{name}_default.onnx {SGD} -o m.arenic");
    let cases: [(&str, &[&str]); 6] = [
        ("batch_norm", &["1.weight is folded", "1.bias is folded", "`0.weight`", "node_Conv"]),
        ("batch_norm_alone", &["1.running_mean is folded", "`0.weight`"]),
        (
            "two_layer_norms",
            &["b.weight is merged with `a.weight`", "b.bias is merged with `a.bias`"],
        ),
        ("tied", &["o.weight is split", "copy, `val_0`"]),
        ("group_norm", &["1.weight is replaced", "`val_21`", "1.bias is replaced", "`val_23`"]),
        ("temperature", &["t is replaced", "`exp`"]),
    ];
    // All that the modules do which compute weights became constants.
    let spectral = format!("{ZOO}/spectral_norm.default.onnx");
    let spectral = format!("compile {spectral} --loss cross_entropy --optimizer sgd -o m.arenic");
    let computed: &[&str] = &[
        "0.parametrizations.weight.original is replaced by a constant that was computed from it, `div`, which",
        "2.parametrizations.weight.original is replaced by a constant that was computed from it, `div_1`, which",
        "node_linear",
    ];
    let cases = cases.map(|(name, says)| (default(name), says));
    for (command, says) in cases.into_iter().chain([(spectral, computed)]) {
        let output = shell.arenic(&command);
        assert_eq!(output.status.code(), Some(1));
        let message = text(&output.stderr).replace("│", "");
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in says {
            assert!(message.contains(word), "{command}: no `{word}` in {message}");
        }
    }
    // A normalisation that is folded cannot be had back.
    for name in ["batch_norm", "batch_norm_alone", "temperature"] {
        shell.fails(&format!("{} --repair", default(name)), 1, &["optimize=False"]);
        let compiled = &shell.succeeds(&format!("{} --accept-missing --json", default(name)))[0];
        let rows = compiled["parameters"].as_array().unwrap();
        assert!(rows.iter().any(|p| p["missing"] == true), "{name}: {rows:?}");
    }
}

#[test]
fn a_signature_says_what_is_a_parameter() {
    let shell = Shell::new();
    let weights_of = |name: &str| weights(&shell.trains_as_pytorch(name, "plain", ""));
    let (trained, others) = weights_of("buffer");
    assert_eq!(trained, ["l.weight", "l.bias"]);
    assert!(others["freq"].contains("a buffer of the module"));
    let (trained, _) = weights_of("temperature");
    assert_eq!(trained, ["t", "l.weight", "l.bias"]);
    assert_eq!(weights_of("tied").0, ["o.weight"]);
    let masked = weights(&shell.trains_as_pytorch("zero_mask", "default", ""));
    assert!(masked.1["masked_fill"].contains("a constant"));

    // What is said can be overruled.
    let buffer = format!("compile {EXPORTS}/buffer_plain.onnx {SGD} --json -o m.arenic");
    let (trained, _) = weights(&shell.succeeds(&format!("{buffer} --train freq"))[0]);
    assert_eq!(trained, ["l.weight", "l.bias", "freq"]);
    let output = shell.arenic(&format!("compile {EXPORTS}/buffer_plain.onnx {SGD} -v -o m.arenic"));
    let said = text(&output.stderr);
    for word in ["  l.weight f32[4,4]", "1 kept: a buffer of the module", "`freq` f32[4]"] {
        assert!(said.contains(word), "{said}");
    }
}

/// A scalar behind a unary operator, which an evaluation must take as it was trained.
#[test]
fn a_trained_scalar_is_evaluated_as_it_was_trained() {
    let shell = Shell::new();
    shell.trains_as_pytorch("temperature", "plain", "");
    let data = format!("--data {EXPORTS}/temperature.npz");
    shell.succeeds(&format!("run m.arenic {data} --steps 2 --save w.safetensors"));
    let evaluated =
        &shell.succeeds(&format!("eval m.arenic {data} --init w.safetensors --json"))[0];
    let wanted = fixture("losses.json")["temperature"][2].as_f64().unwrap();
    assert!((evaluated["loss"].as_f64().unwrap() / wanted - 1.0).abs() < 1e-6, "{evaluated}");
}

#[test]
fn gradients_stop_at_detach() {
    let shell = Shell::new();
    for kind in ["plain", "default"] {
        shell.trains_as_pytorch("detached", kind, "");
        let compile = format!("compile {EXPORTS}/detached_{kind}.onnx {SGD} -o m.arenic");
        let said = text(&shell.arenic(&compile).stderr);
        assert!(said.contains("gradients stop at `detach"), "{said}");
    }
    // The exporter before `torch.export` leaves no trace of it, and its tensors have other names.
    shell.trains_as_pytorch("detached", "legacy", "--stop-gradient /Sub_output_0");
}

/// In files without a signature a scalar is kept, behind a unary operator, too, unless it is said to be trained.
#[test]
fn a_scalar_is_trained_where_that_is_asked_for() {
    let shell = Shell::new();
    let mut model = exported("temperature_plain.onnx");
    let graph = model.graph.as_mut().unwrap();
    graph.metadata_props.clear();
    graph.node.iter_mut().for_each(|node| node.metadata_props.clear());
    std::fs::write(shell.path("m.onnx"), model.encode_to_vec()).unwrap();
    let compile = format!("compile m.onnx {SGD} --json -o m.arenic");
    let (trained, others) = weights(&shell.succeeds(&compile)[0]);
    assert_eq!(trained, ["l.weight", "l.bias"]);
    assert!(others["t"].contains("a scalar"), "{others:?}");
    let (trained, _) = weights(&shell.succeeds(&format!("{compile} --train t"))[0]);
    assert_eq!(trained, ["t", "l.weight", "l.bias"]);
    let run = format!("run m.arenic --data {EXPORTS}/temperature.npz --steps 3 --json");
    let wanted = fixture("losses.json")["temperature"][2].as_f64().unwrap();
    assert!((losses(&shell.succeeds(&run))[2] / wanted - 1.0).abs() < 1e-6);
}

/// Parts without gradients, and buffers that the module changes, look like any others, but not their stack traces
/// and their places in the signature.
#[test]
fn what_trains_otherwise_than_it_reads_is_told() {
    let shell = Shell::new();
    let told = |model: &str, options: &str| {
        let compile = format!("compile {EXPORTS}/{model}.onnx {options} -o m.arenic");
        let said = text(&shell.arenic(&compile).stderr);
        let compiled = &shell.succeeds(&format!("{compile} --json"))[0];
        let all = compiled["parameters"].as_array().unwrap();
        let doubtful = all.iter().filter(|p| p["doubtful"] == true);
        let names: Vec<String> = doubtful.map(|p| p["name"].as_str().unwrap().to_owned()).collect();
        (said, names)
    };
    for kind in ["plain", "default"] {
        let (said, doubtful) = told(&format!("student_{kind}"), SGD);
        for word in ["torch.no_grad()", "`a.bias` and 1 more", "--stop-gradient"] {
            assert!(said.contains(word), "{said}");
        }
        assert_eq!(doubtful, ["a.weight", "a.bias"]);
    }
    // What it says helps, where the exporter's optimizer has not made one of the part and its like.
    shell.trains_as_pytorch("student", "plain", "--stop-gradient tanh");
    let (said, doubtful) = told("spectral_plain", SGD);
    let vectors = "the module changes 2 buffers, such as `0.parametrizations.weight.0._u`";
    for word in [vectors, "training_step", "torch.no_grad()"] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(doubtful, ["0.parametrizations.weight.original"]);
    let default = format!("compile {EXPORTS}/spectral_default.onnx {SGD} -o d.arenic");
    shell.fails(&default, 1, &["0.parametrizations.weight.original is replaced"]);
    // Neither is said of what trains as it reads: batch normalisation changes its statistics itself.
    for model in ["batch_norms_plain", "buffer_plain", "detached_plain"] {
        let (said, doubtful) = told(model, SGD);
        assert!(!said.contains("no_grad") && !said.contains("changes"), "{said}");
        assert_eq!(doubtful, [""; 0]);
    }
}

/// An export whose property `arenic.parameters` lists these parameters and says more.
fn declared(name: &str, parameters: &[&str], more: &str) -> ModelProto {
    let mut model = exported(name);
    let rows: Vec<String> = parameters.iter().map(|n| format!(r#"{{"name": "{n}"}}"#)).collect();
    let value = format!(r#"{{"parameters": [{}]{more}}}"#, rows.join(", "));
    let (key, value) = (Some("arenic.parameters".to_owned()), Some(value));
    model.metadata_props.push(StringStringEntryProto { key, value });
    model
}

#[test]
fn gradients_stop_where_the_file_says() {
    let shell = Shell::new();
    let parameters = ["a.weight", "a.bias", "b.weight", "b.bias"];
    let trained = |more: &str| {
        let mut model = declared("detached_plain.onnx", &parameters, more);
        // Under a name that says nothing, and without the text of its operator.
        for node in &mut model.graph.as_mut().unwrap().node {
            let names = node.input.iter_mut().chain(&mut node.output);
            names.filter(|n| *n == "detach").for_each(|n| *n = "aside".to_owned());
            node.metadata_props.clear();
        }
        std::fs::write(shell.path("m.onnx"), model.encode_to_vec()).unwrap();
        shell.succeeds(&format!("compile m.onnx {SGD} -o m.arenic"));
        let run = format!("run m.arenic --data {EXPORTS}/detached.npz --steps 3 --json");
        let wanted = fixture("losses.json")["detached"][2].as_f64().unwrap();
        (losses(&shell.succeeds(&run))[2] / wanted - 1.0).abs()
    };
    assert!(trained(r#", "stop_gradients": ["aside"]"#) < 1e-6);
    assert!(trained("") > 1e-3);
}

#[test]
fn a_file_says_what_running_variances_are_made_of() {
    let shell = Shell::new();
    let parameters = ["0.weight", "0.bias", "1.weight", "1.bias"];
    let variance = |more: &str, option: &str| {
        let model = declared("batch_norm_plain.onnx", &parameters, more);
        std::fs::write(shell.path("m.onnx"), model.encode_to_vec()).unwrap();
        shell.succeeds(&format!("compile m.onnx {SGD} {option} -o m.arenic"));
        let data = format!("--data {EXPORTS}/batch_norm.npz");
        shell.succeeds(&format!("run m.arenic {data} --steps 1 --save s.safetensors"));
        let saved = TensorFile::open(shell.path("s.safetensors")).unwrap();
        saved.tensor("1.running_var").unwrap().bytes().to_vec()
    };
    let said = r#", "bn_variance": "unbiased""#;
    let unbiased = variance("", "--bn-variance unbiased");
    let population = variance("", "");
    assert_ne!(unbiased, population);
    assert!(variance(said, "") == unbiased);
    // What is asked for wins.
    assert!(variance(said, "--bn-variance population") == population);
}

#[test]
fn losses_are_those_of_pytorch() {
    let shell = Shell::new();
    for row in fixture("losses_of_each.json").as_array().unwrap() {
        let word = |key: &str| row[key].as_str().unwrap();
        let (model, options) = (word("model"), word("options"));
        let compile = format!("compile {EXPORTS}/{model}.onnx {options} --optimizer sgd --lr 0.1");
        shell.succeeds(&format!("{compile} -o m.arenic"));
        let data = word("data");
        let found = losses(
            &shell.succeeds(&format!("run m.arenic --data {EXPORTS}/{data}.npz --steps 3 --json")),
        );
        assert_eq!(found.len(), 3);
        for (loss, wanted) in found.iter().zip(row["losses"].as_array().unwrap()) {
            let error = (loss / wanted.as_f64().unwrap() - 1.0).abs();
            assert!(error < 1e-6, "{options}: {found:?}, {row}");
        }
    }
}

/// So that losses of trainings with other weights of classes can be compared, and each with its own.
#[test]
fn an_evaluation_says_the_loss_with_class_weights_and_without() {
    let shell = Shell::new();
    let data = format!("--data {EXPORTS}/of_classes.npz");
    let losses_of = |options: &str| {
        let compile = format!("compile {EXPORTS}/of_logits.onnx --loss cross_entropy {options}");
        shell.succeeds(&format!("{compile} --optimizer sgd --lr 0.1 -o m.arenic"));
        let trained = losses(&shell.succeeds(&format!("run m.arenic {data} --steps 1 --json")))[0];
        let evaluated = &shell.succeeds(&format!("eval m.arenic {data} --json"))[0];
        (trained, evaluated["loss"].as_f64().unwrap(), evaluated["weighted_loss"].as_f64())
    };
    let plain = losses_of("");
    assert_eq!(plain.2, None);
    let weighted = losses_of(&format!("--class-weights {EXPORTS}/class_weights.txt"));
    assert_ne!(weighted.0, plain.0);
    assert_eq!(weighted.1, plain.1);
    // Before any update it is the loss of the first step, which is PyTorch's.
    assert!((weighted.0 - weighted.2.unwrap()).abs() < 1e-6, "{weighted:?}");
    let options = format!("--label-smoothing 0.2 --class-weights {EXPORTS}/class_weights.txt");
    let other = losses_of(&options);
    assert_ne!(other.0, plain.0);
    assert_eq!((other.1, other.2), (plain.1, weighted.2));
    let help = text(&shell.arenic("eval --help").stdout);
    assert!(help.contains("class weights"), "{help}");
}

#[test]
fn words_of_losses_and_options() {
    let shell = Shell::new();
    let logits = format!("compile {EXPORTS}/of_logits.onnx -o m.arenic");
    let fails = |options: &str, code, says: &[&str]| {
        shell.fails(&format!("{logits} {options}"), code, says);
    };
    fails("--loss crossentropy --optimizer sgd", 1, &["no loss", "cross_entropy, nll", "`linear`"]);
    fails("--loss mse --optimizer adam --momentum 0.9", 1, &["--momentum", "--beta1"]);
    fails("--loss mse --optimizer sgd --nesterov", 1, &["--nesterov", "--momentum 0.9"]);
    fails("--loss mse --optimizer sgd --label-smoothing 0.1", 1, &["cross_entropy"]);
    fails("--loss mse --optimizer sgd --delta 1", 1, &["smooth_l1"]);
    fails("--loss cross_entropy --optimizer sgd --label-smoothing 2", 1, &["from 0 to 1"]);
    std::fs::write(shell.path("w.txt"), "1 2").unwrap();
    let weights = "--optimizer sgd --class-weights w.txt";
    fails(&format!("--loss cross_entropy {weights}"), 1, &["2 class weights for 5 classes"]);
    std::fs::write(shell.path("w.txt"), "1 two").unwrap();
    fails(&format!("--loss cross_entropy {weights}"), 1, &["w.txt", "`two`"]);
    // Momentum is momentum, whatever the optimizer is called; and the last axis has two names.
    let states = |options: &str| {
        shell.succeeds(&format!("{logits} {options} --json"))[0]["state_bytes"].as_u64().unwrap()
    };
    let momentum = states("--loss mse --optimizer momentum");
    assert_eq!(states("--loss mse --optimizer sgd --momentum 0.9"), momentum);
    assert!(states("--loss mse --optimizer sgd --momentum 0") < momentum);
    let classes = "--loss cross_entropy --optimizer sgd --lr 0.1";
    for axis in ["", "--class-axis 1", "--class-axis=-1", "--class-axis -1"] {
        shell.succeeds(&format!("{logits} {classes} {axis}"));
        shell.succeeds(&format!("run m.arenic --data {EXPORTS}/of_classes.npz --steps 1"));
    }
    fails("--loss cross_entropy --optimizer sgd --class-axis -3", 1, &["classes along axis -3"]);
    // Three axes: which are the classes is said when compiled.
    let sequence = format!("compile {EXPORTS}/sequence_plain.onnx {classes} -o s.arenic");
    let said = text(&shell.arenic(&sequence).stderr);
    assert!(
        said.contains("classes are the 3 along axis 1") && said.contains("--class-axis -1"),
        "{said}"
    );
    let quiet = text(&shell.arenic(&format!("{sequence} --class-axis -1")).stderr);
    assert!(!quiet.contains("classes are"), "{quiet}");
    // A dropout that is not there.
    let said = text(&shell.arenic(&format!("{logits} {classes} --dropout 0.5")).stderr);
    assert!(said.contains("--dropout 0.5 changes nothing"), "{said}");
    let said = text(&shell.arenic(&format!("{logits} {classes} --dropout 0")).stderr);
    assert!(!said.contains("--dropout"), "{said}");
}

#[test]
fn targets_may_be_narrow_and_are_checked() {
    let shell = Shell::new();
    let options = "--loss cross_entropy --optimizer sgd --lr 0.1 -o m.arenic";
    shell.succeeds(&format!("compile {EXPORTS}/of_logits.onnx {options}"));
    let x: Vec<u8> = (0..24).flat_map(|i| (i as f32 / 24.0).to_le_bytes()).collect();
    // Six rows of each.
    let run = |dtype, row: &[usize], target: &[u8]| {
        let arrays = [
            ("x".to_owned(), TensorType::new(DType::F32, [4])),
            ("target".to_owned(), TensorType::new(dtype, row)),
        ];
        let mut spool = OutputSpool::new(shell.path("d.npz"), &arrays).unwrap();
        for (i, bytes) in [&x[..], target].into_iter().enumerate() {
            bytes.chunks(bytes.len() / 6).for_each(|row| spool.append(i, row).unwrap());
        }
        spool.finish().unwrap();
        "run m.arenic --data d.npz --steps 1 --json"
    };
    let wide = |list: &[i64]| list.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>();
    let narrow = |list: &[i32]| list.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>();
    let usual = losses(&shell.succeeds(run(DType::I64, &[], &wide(&[0, 1, 2, 3, 4, 0]))));
    assert_eq!(usual.len(), 1);
    let list = [0, 1, 2, 3, 4, 0];
    assert_eq!(losses(&shell.succeeds(run(DType::I32, &[], &narrow(&list)))), usual);
    assert_eq!(losses(&shell.succeeds(run(DType::I32, &[1], &narrow(&list)))), usual);
    let rows = vec![0; 6 * 5 * 4];
    shell.fails(run(DType::F32, &[5], &rows), 1, &["target", "argmax"]);
    let outside = run(DType::I64, &[], &wide(&[0, 1, 2, 122, 4, 0]));
    shell.fails(outside, 1, &["target 122 in row 3", "the model has 5 (0 to 4)"]);
}
