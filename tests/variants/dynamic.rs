//! Sizes that are met while training: the steps that are compiled for them give what artifacts of one size
//! each give, bit by bit, and what does not fit is left out.

use super::shell::{Shell, text};
use arenic::artifact::Artifact;
use arenic::data::OutputSpool;
use arenic::onnx::proto::attribute_proto::AttributeType;
use arenic::onnx::proto::tensor_shape_proto::Dimension;
use arenic::onnx::proto::tensor_shape_proto::dimension::Value as Extent;
use arenic::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, tensor_proto, type_proto,
};
use arenic::{
    Compiler, Differentiate, Dynamic, Model, Optimizer, TrainError, Trainer, TrainerOptions,
};
use arenic_backends::CPU;
use arenic_ir::{DType, TensorType};
use prost::Message;
use std::fs;
use std::time::SystemTime;

const CLASSES: usize = 11;
const WIDTH: usize = 16;
const LONGEST: usize = 64;

pub(super) fn tensor(name: &str, dims: &[usize], values: impl Fn(usize) -> f32) -> TensorProto {
    let bytes = (0..dims.iter().product()).flat_map(|i| values(i).to_le_bytes());
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.iter().map(|&d| d as i64).collect(),
        data_type: Some(tensor_proto::DataType::Float as i32),
        raw_data: Some(bytes.collect::<Vec<u8>>().into()),
        ..TensorProto::default()
    }
}

fn integer(name: &str, value: i64) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(tensor_proto::DataType::Int64 as i32),
        raw_data: Some(value.to_le_bytes().to_vec().into()),
        ..TensorProto::default()
    }
}

pub(super) fn value(name: &str, dtype: tensor_proto::DataType, dims: &[Extent]) -> ValueInfoProto {
    let dim = |value: &Extent| Dimension { value: Some(value.clone()), ..Dimension::default() };
    let tensor = type_proto::Tensor {
        elem_type: Some(dtype as i32),
        shape: Some(TensorShapeProto { dim: dims.iter().map(dim).collect() }),
    };
    let r#type = Some(TypeProto {
        value: Some(type_proto::Value::TensorType(tensor)),
        ..TypeProto::default()
    });
    ValueInfoProto { name: Some(name.to_owned()), r#type, ..ValueInfoProto::default() }
}

pub(super) fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        name: Some(output.to_owned()),
        ..NodeProto::default()
    }
}

/// A model over characters: tokens and places, whose number is a constant of the length, and a layer.
fn characters() -> Vec<u8> {
    let random = |seed: usize| move |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 100.0 - 0.5;
    let mut softmax = node("Softmax", &["scores"], "weights");
    softmax.attribute.push(AttributeProto {
        name: Some("axis".to_owned()),
        i: Some(2),
        r#type: Some(AttributeType::Int as i32),
        ..AttributeProto::default()
    });
    let mut transposed = node("Transpose", &["sum"], "columns");
    transposed.attribute.push(AttributeProto {
        name: Some("perm".to_owned()),
        ints: vec![0, 2, 1],
        r#type: Some(AttributeType::Ints as i32),
        ..AttributeProto::default()
    });
    let (batch, seq) = (Extent::DimParam("batch".into()), Extent::DimParam("seq".into()));
    let graph = GraphProto {
        name: Some("characters".to_owned()),
        node: vec![
            node("Shape", &["x"], "shape"),
            node("Gather", &["shape", "one"], "length"),
            node("Range", &["zero", "length", "one"], "range"),
            node("Gather", &["places", "range"], "placed"),
            node("Gather", &["tokens", "x"], "read"),
            node("Add", &["read", "placed"], "sum"),
            transposed,
            node("MatMul", &["sum", "columns"], "scores"),
            softmax,
            node("MatMul", &["weights", "sum"], "mixed"),
            node("Tanh", &["mixed"], "active"),
            node("MatMul", &["active", "head"], "logits"),
        ],
        initializer: vec![
            integer("zero", 0),
            integer("one", 1),
            tensor("places", &[LONGEST, WIDTH], random(1)),
            tensor("tokens", &[CLASSES, WIDTH], random(2)),
            tensor("head", &[WIDTH, CLASSES], random(3)),
        ],
        input: vec![value("x", tensor_proto::DataType::Int64, &[batch.clone(), seq.clone()])],
        output: vec![value(
            "logits",
            tensor_proto::DataType::Float,
            &[batch, seq, Extent::DimValue(CLASSES as i64)],
        )],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: None, version: Some(17) };
    let opset_import = vec![opset];
    ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..ModelProto::default() }
        .encode_to_vec()
}

const LOSS: &str =
    "--loss cross_entropy --optimizer momentum --momentum 0.9 --class-axis 2 --effort 0.1";

/// Writes rows `rows` of sentences of a length.
fn sentences(shell: &Shell, name: &str, rows: std::ops::Range<usize>, length: usize) {
    let ty = TensorType::new(DType::I64, [length]);
    let types = [("x".to_owned(), ty.clone()), ("target".to_owned(), ty)];
    let mut spool = OutputSpool::new(shell.path(name), &types).unwrap();
    for row in rows {
        let mut random = fastrand::Rng::with_seed((row * 100 + length) as u64);
        for i in 0..2 {
            let bytes: Vec<u8> =
                (0..length).flat_map(|_| random.i64(0..CLASSES as i64).to_le_bytes()).collect();
            spool.append(i, &bytes).unwrap();
        }
    }
    spool.finish().unwrap();
}

/// Steps that are kept beside the artifact: names, and when they were written.
fn kept(shell: &Shell) -> Vec<(String, SystemTime)> {
    let files = fs::read_dir(shell.path("v.arenic.d")).unwrap().map(Result::unwrap);
    let mut kept: Vec<_> = files
        .map(|f| (f.path().display().to_string(), f.metadata().unwrap().modified().unwrap()))
        .collect();
    kept.sort();
    kept
}

#[test]
fn new_sizes_give_what_artifacts_of_these_sizes_give() {
    for options in ["", "--device-memory 70% --host-memory 1MiB", "--accumulate auto"] {
        let shell = Shell::new();
        fs::write(shell.path("c.onnx"), characters()).unwrap();
        let compile = |batch: usize, length: usize, options: &str, name: &str| {
            let sizes = format!("--dim batch={batch} --dim seq={length}");
            shell.succeeds(&format!("compile c.onnx {LOSS} {sizes} {options} -o {name} --json"))
        };
        // A second size keeps states whole where a limit would cut them.
        compile(4, 12, "", "s4-12.arenic");
        let sizes = "--dim batch=4,1 --dim seq=12";
        shell.succeeds(&format!("compile c.onnx {LOSS} {sizes} {options} -o v.arenic --json"));
        sentences(&shell, "long.npz", 0..11, 12);
        sentences(&shell, "short.npz", 0..6, 5);
        let mut files = Vec::new();
        for (rows, length) in [(0..4, 12), (4..8, 12), (8..11, 12), (0..4, 5), (4..6, 5)] {
            let (artifact, data) = (
                format!("s{}-{length}.arenic", rows.len()),
                format!("d{}-{length}.npz", rows.start),
            );
            compile(rows.len(), length, "", &artifact);
            sentences(&shell, &data, rows, length);
            files.push((artifact, data));
        }
        // One row is a size of the artifact, three are left of eleven: the largest that there is comes first.
        files.splice(
            2..3,
            (8..11).map(|row| {
                let data = format!("d{row}-12.npz");
                sentences(&shell, &data, row..row + 1, 12);
                ("s1-12.arenic".to_owned(), data)
            }),
        );
        compile(1, 12, "", "s1-12.arenic");
        let files: Vec<(&str, &str)> = files.iter().map(|(a, d)| (&a[..], &d[..])).collect();
        let expected = shell.chain(&files, "a.safetensors");
        let run = "run v.arenic --dynamic --data long.npz --data short.npz --mix one-after-another \
                   --save b.safetensors";
        let holds = || {
            assert_eq!(shell.losses(run), expected, "{options}");
            shell.same("a.safetensors", "b.safetensors");
            kept(&shell)
        };
        let first = holds();
        assert_eq!(first.len(), 2, "{first:?}");
        assert_eq!(holds(), first);
        let steps: Vec<Artifact> =
            first.iter().map(|(path, _)| Artifact::read(path.as_ref()).unwrap()).collect();
        for step in &steps {
            assert!(step.targets[0].variant.ends_with("seq=5"), "{}", step.targets[0].variant);
            assert!(!step.targets[0].fed.is_empty());
        }
        // What was cut, altered, or is another's is made anew.
        let bytes = fs::read(&first[0].0).unwrap();
        fs::write(&first[0].0, &bytes[..bytes.len() / 2]).unwrap();
        let second = holds();
        assert_ne!(second, first);
        assert!(Artifact::read(first[0].0.as_ref()).is_ok());
        fs::copy(&first[1].0, &first[0].0).unwrap();
        holds();
        let step = Artifact::read(first[0].0.as_ref()).unwrap();
        assert_eq!(step.targets[0].variant, steps[0].targets[0].variant);
        // One that is whole and says that it is the variant, but writes where others have a state.
        let mut spoilt = step.clone();
        let target = &mut spoilt.targets[0];
        target.graph.states.values_mut().next().unwrap().name = "unheard of".into();
        spoilt.write(first[0].0.as_ref()).unwrap();
        holds();
        assert!(
            Artifact::read(first[0].0.as_ref()).unwrap().targets[0].graph == step.targets[0].graph
        );
    }
}

#[test]
fn what_does_not_fit_is_told_and_left_out() {
    let shell = Shell::new();
    fs::write(shell.path("c.onnx"), characters()).unwrap();
    let sizes = "--dim batch=4 --dim seq=12";
    shell.succeeds(&format!("compile c.onnx {LOSS} {sizes} -o v.arenic"));
    let arena = Artifact::read(&shell.path("v.arenic")).unwrap().arena_bytes();
    sentences(&shell, "long.npz", 0..8, 12);
    sentences(&shell, "longer.npz", 0..8, 64);
    let expected = shell.losses("run v.arenic --data long.npz");
    let run = "run v.arenic --dynamic --data longer.npz --data long.npz";
    assert_eq!(shell.losses(run), expected);
    let said = text(&shell.arenic(&format!("{run} --set lr=0.1")).stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let least = said.split("`batch=4,seq=64` needs an arena of ").nth(1).unwrap();
    let least: u64 = least.split(' ').next().unwrap().parse().unwrap();
    assert!(least > arena && said.contains(&format!("and there are {arena}")), "{said}");
    assert_eq!(said.matches("needs an arena of").count(), 1, "{said}");
    // So much is enough for one that is compiled with it.
    let limit = format!("--device-memory {least} --dim batch=4 --dim seq=64");
    shell.succeeds(&format!("compile c.onnx {LOSS} {limit} -o l.arenic"));
    let alone = "run v.arenic --dynamic --data longer.npz --set lr=0.1";
    shell.fails(alone, 1, &["`batch=4,seq=64` needs an arena of"]);
    // Without the option, and where axes are of no size of the dimensions, it is as before.
    shell.fails("run v.arenic --data longer.npz --set lr=0.1", 1, &["all axes but the first"]);

    // An artifact that does not say how it was compiled.
    let mut artifact = Artifact::read(&shell.path("v.arenic")).unwrap();
    artifact.recipe = None;
    artifact.write(&shell.path("old.arenic")).unwrap();
    let old = "run old.arenic --dynamic --data long.npz --set lr=0.1";
    shell.fails(
        old,
        1,
        &["does not say how to compile it at other sizes", "compile the model again"],
    );
}

#[test]
fn a_trainer_goes_on_after_a_batch_that_does_not_fit() {
    let model = Model::from_bytes(characters()).unwrap().dim("batch", 4).dim("seq", 12);
    let pass = Differentiate {
        loss: "cross_entropy".into(),
        optimizer: Optimizer::Momentum,
        class_axis: Some(2),
        ..Differentiate::default()
    };
    let compiler = Compiler::new().differentiate(pass).effort(0.1);
    let artifact = compiler.compile(&model).unwrap();
    let arena = artifact.arena_bytes();
    let trainer = |dynamic: bool| {
        let dynamic = dynamic.then(|| Dynamic::new(compiler.clone(), model.clone()));
        let options = TrainerOptions { dynamic, threads: 2, ..TrainerOptions::default() };
        Trainer::with_options(artifact.clone(), options).unwrap()
    };
    let batch = |batch: usize, seq: usize| -> Vec<i64> {
        (0..batch * seq).map(|i| (i * 7 % CLASSES) as i64).collect()
    };
    let mut trainer_of_all = trainer(true);
    let mut losses = Vec::new();
    // What fits, does not, fits again, and is there already.
    let sizes = [(4, 12), (3, 7), (4, 64), (4, 12), (3, 7), (4, 64), (1, 1)];
    for (rows, length) in sizes {
        let numbers = batch(rows, length);
        let fed = [("x", numbers[..].into()), ("target", numbers[..].into()), ("lr", 0.1.into())];
        let at = [("batch", rows as u64), ("seq", length as u64)];
        match trainer_of_all.step_at(&at, &fed) {
            Ok(out) => losses.push(out["loss"]),
            Err(e @ TrainError::Dynamic(_)) => {
                let said = e.to_string();
                assert!(length == 64, "{said}");
                assert!(said.contains("`batch=4,seq=64` needs an arena of"), "{said}");
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(
        trainer_of_all.variants().collect::<Vec<_>>(),
        ["", "batch=3,seq=7", "batch=1,seq=1"]
    );
    assert_eq!(trainer_of_all.artifact().arena_bytes(), arena);
    // Artifacts of one size each that hand on their states.
    let mut expected = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    let states = folder.path().join("states.safetensors");
    for (i, (rows, length)) in sizes.into_iter().filter(|size| size.1 != 64).enumerate() {
        let model = model.clone().dim("batch", rows as u64).dim("seq", length as u64);
        let mut alone = Trainer::new(compiler.compile(&model).unwrap()).unwrap();
        if i > 0 {
            alone.restore(&states).unwrap();
        }
        let numbers = batch(rows, length);
        let fed = [("x", numbers[..].into()), ("target", numbers[..].into()), ("lr", 0.1.into())];
        expected.push(alone.step(&fed).unwrap()["loss"]);
        alone.save(&states).unwrap();
    }
    assert_eq!(losses, expected);
    let own = folder.path().join("own.safetensors");
    trainer_of_all.save(&own).unwrap();
    assert!(fs::read(&states).unwrap() == fs::read(&own).unwrap());

    // Numbers of elements do not say which of two dimensions varies, and without the option none does.
    let numbers = batch(3, 8);
    let fed = [("x", numbers[..].into()), ("target", numbers[..].into()), ("lr", 0.1.into())];
    let said = trainer_of_all.step(&fed).unwrap_err().to_string();
    assert!(said.contains("the input `x` takes"), "{said}");
    let said = trainer(false).step_at(&[("seq", 6)], &fed).unwrap_err().to_string();
    assert!(said.contains("`seq=6` is no variant"), "{said}");
    assert_eq!(artifact.target_names(), [CPU.name]);
}
