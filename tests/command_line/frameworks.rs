//! Models by other frameworks than PyTorch: what is trained of them, what is said of the rest, and their gradients.

use super::*;
use crate::parameters::{SGD, losses, weights};
use std::collections::BTreeMap;

const FRAMEWORKS: &str = "@tests/fixtures/frameworks";

/// Model, how many are trained, and what is kept with a word of the reason.
type Case = (&'static str, usize, &'static [(&'static str, &'static str)]);

/// By what reads them, whatever their names are.
#[test]
fn roles_tell_parameters_of_other_frameworks() {
    let shell = Shell::new();
    let cases: [Case; 19] = [
        ("constants", 2, &[]),
        (
            "flax_transformer",
            20,
            &[
                ("const_30", "a scalar"),
                ("const_31", "a scalar"),
                ("const_35", "a scalar"),
                ("const_36", "a scalar"),
                ("const_37", "a scalar"),
            ],
        ),
        ("flax_unet", 10, &[("const_10", "a scalar"), ("const_11", "a scalar")]),
        ("jax_scan", 7, &[]),
        ("keras_folded_batch_norm", 7, &[("const_fold_opt__43", "nothing tells")]),
        ("keras_gru", 9, &[]),
        ("keras_lstm", 9, &[("sequential_3_1/lstm_1/zeros_1/Const:0", "a scalar")]),
        ("keras_masked_lstm", 6, &[]),
        ("keras_unet", 16, &[]),
        ("onnxscript_function", 1, &[]),
        ("sklearn_regressor", 4, &[]),
        (
            "keras_transformer",
            36,
            &[
                ("functional_7_1/multi_head_attention_2_1/Cast/x:0", "a scalar"),
                ("functional_7_1/layer_normalization_5_1/add/y:0", "a scalar"),
                ("const_fold_opt__1267", "a scalar"),
            ],
        ),
        ("constants_mixed", 3, &[]),
        ("spox", 4, &[]),
        ("keras_softmax", 4, &[]),
        ("keras_batch_norm_in_training", 10, &[("const_fold_opt__188", "an epsilon")]),
        (
            "keras_jax_batch_norm",
            6,
            &[
                ("const_2", "a statistic"),
                ("const_3", "a statistic"),
                ("const_9", "a scalar"),
                ("const_10", "a scalar"),
            ],
        ),
        (
            "keras_normalization",
            6,
            &[
                ("functional_1/group_normalization_1/add/y:0", "a scalar"),
                ("ConstantFolding/functional_1/normalization_1/truediv_recip:0", "an input"),
            ],
        ),
        (
            "paddle_lstm",
            6,
            &[("p2o.pd_op.full.2.0", "starts from it"), ("p2o.pd_op.full.5.0", "starts from it")],
        ),
    ];
    for (name, count, kept) in cases {
        let compile =
            format!("compile {FRAMEWORKS}/{name}.onnx {} {SGD} --json -o m.arenic", rows(name));
        let (trained, others) = weights(&shell.succeeds(&compile)[0]);
        assert_eq!(trained.len(), count, "{name}: {trained:?}");
        let found: Vec<&str> = others.keys().map(String::as_str).collect();
        let mut wanted: Vec<&str> = kept.iter().map(|(name, _)| *name).collect();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{name}");
        for (weight, why) in kept {
            assert!(others[*weight].contains(why), "{name}: {}", others[*weight]);
        }
    }
}

#[test]
fn of_a_paddle_transformer_every_weight_is_trained_and_no_scale() {
    let shell = Shell::new();
    let compile =
        format!("compile {FRAMEWORKS}/paddle_transformer.onnx --dim 4 {SGD} --json -o m.arenic");
    let (trained, others) = weights(&shell.succeeds(&compile)[0]);
    assert_eq!((trained.len(), others.len()), (35, 10));
    for name in ["auto.cast.4", "auto.cast.11"] {
        assert!(others[name].contains("one number that scales"), "{others:?}");
    }
    assert!(
        others.iter().all(|(name, why)| name.starts_with("auto.cast") || why.contains("a scalar"))
    );
}

/// A model of the fixtures, its losses and how steep they are along each weight (`make_slopes.py`).
#[derive(serde::Deserialize)]
struct Slopes {
    input: String,
    dtype: String,
    shape: Vec<usize>,
    output: Vec<usize>,
    loss: f64,
    slopes: BTreeMap<String, f64>,
}

/// As in `make_slopes.py`.
fn scattered(i: usize) -> usize {
    (i * 7919 + 13) % 1009
}

impl Slopes {
    fn all() -> BTreeMap<String, Slopes> {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/frameworks/slopes.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// Writes the batch.
    fn write(&self, path: &Path) {
        let floats = |first: usize, shape: &[usize]| -> Vec<u8> {
            let number = |i| (scattered(i) as f64 / 504.5 - 1.0) as f32;
            (first..first + shape.iter().product::<usize>())
                .flat_map(|i| number(i).to_le_bytes())
                .collect()
        };
        let count = self.shape.iter().product::<usize>();
        let class = |i| (scattered(i) % 10) as i64;
        let (dtype, x) = match self.dtype.as_str() {
            "i32" => {
                (DType::I32, (0..count).flat_map(|i| (class(i) as i32).to_le_bytes()).collect())
            }
            "i64" => (DType::I64, (0..count).flat_map(|i| class(i).to_le_bytes()).collect()),
            _ => (DType::F32, floats(0, &self.shape)),
        };
        let arrays = [
            (self.input.clone(), TensorType::new(dtype, self.shape[1..].to_vec())),
            ("target".to_owned(), TensorType::new(DType::F32, self.output[1..].to_vec())),
        ];
        let mut spool = OutputSpool::new(path, &arrays).unwrap();
        for (i, bytes) in [x, floats(500, &self.output)].iter().enumerate() {
            bytes.chunks(bytes.len() / self.shape[0]).for_each(|row| spool.append(i, row).unwrap());
        }
        spool.finish().unwrap();
    }
}

/// One step with a rate of 1 moves each weight by its gradient, which has the slope that differences
/// with onnxruntime have. They are of f32 and beside kinks of `Relu`, so that they agree to 0.5 % of the largest.
#[test]
fn gradients_are_the_slopes_of_onnxruntime() {
    let shell = Shell::new();
    for (name, one) in Slopes::all() {
        one.write(&shell.path("d.npz"));
        let options = "--loss mse --optimizer sgd --dropout 0 --effort 0.1";
        let compile = format!(
            "compile {FRAMEWORKS}/{name}.onnx {} {options} --json -o m.arenic",
            rows(&name)
        );
        let (trained, _) = weights(&shell.succeeds(&compile)[0]);
        let step = |lr: u32| {
            let run = format!(
                "run m.arenic --data d.npz --steps 1 --set lr={lr} --save w{lr}.safetensors --json"
            );
            let loss = losses(&shell.succeeds(&run))[0];
            assert!((loss / one.loss - 1.0).abs() < 1e-6, "{name}: {loss}, not {}", one.loss);
            TensorFile::open(shell.path(&format!("w{lr}.safetensors"))).unwrap()
        };
        let (before, after) = (step(0), step(1));
        let steepest = one.slopes.values().fold(0.0, |m, s| f64::max(m, s.abs()));
        let mut compared = 0;
        for weight in &trained {
            let numbers = |file: &TensorFile| -> Vec<f64> {
                let array = file.tensor(weight).unwrap();
                array
                    .bytes()
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|b| f32::from_le_bytes(*b).into())
                    .collect()
            };
            let (from, to) = (numbers(&before), numbers(&after));
            let sign = |i| if scattered(i) < 505 { 1.0 } else { -1.0 };
            let moved: f64 =
                from.iter().zip(&to).enumerate().map(|(i, (a, b))| sign(i) * (a - b)).sum();
            let slope = moved / (from.len() as f64).sqrt();
            let wanted = one.slopes[weight];
            assert!(
                (slope - wanted).abs() < 5e-3 * steepest,
                "{name}: `{weight}` {slope}, not {wanted}"
            );
            compared += 1;
        }
        assert_eq!(compared, trained.len());
        assert!(compared > 3, "{name}");
    }
}

/// The option that says how many rows there are, where the file does not say that.
fn rows(name: &str) -> &'static str {
    if name == "jax_scan" { "" } else { "--dim 4" }
}

#[test]
fn what_an_exporter_leaves_out_is_told() {
    let shell = Shell::new();
    let said = |model: &str, options: &str| {
        let compile = format!("compile {FRAMEWORKS}/{model}.onnx --dim 4 {options} -o m.arenic");
        let output = shell.arenic(&compile);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let keras = said("keras_without_biases", SGD);
    for word in ["2 weights have a batch normalisation", "3 products and convolutions have no bias"]
    {
        assert!(keras.contains(word), "{keras}");
    }
    let folded = said("keras_folded_batch_norm", SGD);
    for word in ["3 weights have a batch normalisation", "`--train const_fold_opt__43` trains it"] {
        assert!(folded.contains(word), "{folded}");
    }
    assert!(!folded.contains("have no bias"), "{folded}");
    let recurrent = said("keras_lstm", SGD);
    let words = "`B0__238` of a recurrence and 1 more has zeros for the product with the state";
    assert!(recurrent.contains(words), "{recurrent}");
    let normalised = said("keras_jax_batch_norm", SGD);
    assert!(normalised.contains("a batch normalisation in pieces is that of inference"));
    // The branch that needs another domain's operators is not the loss's.
    let sklearn = said("sklearn_classifier", "--loss cross_entropy --optimizer sgd");
    for word in ["output `label` is left out", "the softmax's operand", "trains 4 parameters"] {
        assert!(sklearn.contains(word), "{sklearn}");
    }
    let nll = "--loss nll --optimizer sgd -o m.arenic";
    let compile = format!("compile {FRAMEWORKS}/keras_softmax.onnx --dim 4 {nll}");
    shell.fails(&compile, 1, &["probabilities", "cross_entropy"]);
    // `Erfc` is no operator of ONNX.
    let compile = format!("compile {FRAMEWORKS}/keras_erfc.onnx --dim 4 {SGD} -o m.arenic");
    shell.fails(&compile, 1, &["Erfc", "ONNX has no such operator", "left it untranslated"]);
}
