//! Residual branches that steps leave out: programs of their own and the one that can be any structure do the
//! same, and a branch that is left out stays as it is.

use super::shell::Shell;
use arenic::artifact::Artifact;
use arenic::data::TensorFile;
use arenic::{Compiler, Input, Model, Optimizer, Tensor, Trainer};
use prost::Message;
use serde_json::Value;

const TINY: &str = "@models/forward/tiny_resnet.onnx --loss cross_entropy --optimizer momentum --momentum 0.9 \
                    --dim batch=3 --effort 0.1 --drop-layers l1.*=0.3 --drop-layers l[23].[cb]*=0.6";

/// Images with classes.
fn images(shell: &Shell) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_runs = root.join("tests/runs/tiny_resnet_b4_sgdm.data.npz");
    std::fs::copy(of_runs, shell.path("d.npz")).unwrap();
}

fn states(shell: &Shell, name: &str) -> Vec<(String, Vec<u8>)> {
    let file = TensorFile::open(shell.path(name)).unwrap();
    let tensors = file.tensors().iter();
    tensors.map(|array| (array.name().to_owned(), array.bytes().to_vec())).collect()
}

/// The most by which numbers of two files differ.
fn difference(shell: &Shell, a: &str, b: &str) -> f32 {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let (a, b) = (states(shell, a), states(shell, b));
    assert_eq!(a.len(), b.len());
    let each = a.iter().zip(&b).map(|((name, a), (other, b))| {
        assert_eq!(name, other);
        let (a, b) = (numbers(a), numbers(b));
        a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    });
    each.fold(0.0, f32::max)
}

/// Six artifacts of up to eight steps, three of them planned within a limit: it takes some twenty seconds.
#[test]
fn structures_of_their_own_and_masks_do_the_same() {
    for options in ["", "--device-memory 80% --host-memory 4MiB"] {
        let shell = Shell::new();
        images(&shell);
        let mut names = Vec::new();
        for (most, name) in
            [("8 --no-eval", "own.arenic"), ("4", "some.arenic"), ("1 --no-eval", "masked.arenic")]
        {
            let compile =
                format!("compile {TINY} {options} --variants-at-most {most} -o {name} --json");
            let said = shell.succeeds(&compile).remove(0);
            let of = said["variants"].as_array().unwrap().iter();
            names.push(of.map(|v| v["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>());
            assert!(
                shell
                    .succeeds(&format!("check {name} --json"))
                    .iter()
                    .all(|r| r["accepted"] == true)
            );
        }
        // The most probable first: of 0.3, 0.6 and 0.6 that is without the two latter.
        assert_eq!(names[0].len(), 8);
        assert_eq!(names[1], ["without-l2+l3", "without-l3", "without-l2", "masked"]);
        assert_eq!(names[2], ["masked"]);
        let run = |artifact: &str, steps: usize, init: &str, save: &str| {
            let run =
                format!("run {artifact} --data d.npz {init} --structure random:7 --steps {steps}");
            shell.losses(&format!("{run} --save {save}"))
        };
        let own = run("own.arenic", 9, "", "own.safetensors");
        for name in ["some", "masked"] {
            let save = format!("{name}.safetensors");
            let losses = run(&format!("{name}.arenic"), 9, "", &save);
            let near = |(a, b): (&Value, &Value)| {
                (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() <= 1e-6
            };
            assert!(losses.iter().zip(&own).all(near), "{losses:?} {own:?}");
            let most = difference(&shell, "own.safetensors", &save);
            assert!(most <= 1e-6, "{name} {options}: states differ by {most}");
        }
        // It goes on as if it had not ended.
        let mut parts = run("some.arenic", 4, "", "part.safetensors");
        parts.extend(run("some.arenic", 5, "--init part.safetensors", "part.safetensors"));
        assert_eq!(parts, run("some.arenic", 9, "", "whole.safetensors"));
        shell.same("part.safetensors", "whole.safetensors");
        // Without the option branches are left out, too.
        let usual = "run some.arenic --data d.npz --steps 6";
        assert_eq!(shell.losses(usual), shell.losses(&format!("{usual} --structure random:0")));
        // A model is evaluated as a whole.
        let plain = TINY.split(" --drop-layers").next().unwrap();
        shell.succeeds(&format!("compile {plain} {options} -o plain.arenic"));
        let eval = |artifact: &str| {
            shell.succeeds(&format!("eval {artifact} --data d.npz --init own.safetensors --json"))
        };
        assert_eq!(eval("plain.arenic")[0]["loss"], eval("some.arenic")[0]["loss"]);
    }
}

#[test]
fn a_branch_that_is_left_out_stays_as_it_is() {
    let shell = Shell::new();
    images(&shell);
    shell.succeeds(&format!("compile {TINY} --no-eval -o v.arenic"));
    let artifact = Artifact::read(&shell.path("v.arenic")).unwrap();
    let mut trainer = Trainer::new(artifact.clone()).unwrap();
    let pixels = trainer.input("x").unwrap().elements();
    let x: Vec<f32> = (0..pixels).map(|i| ((i * 13 % 29) as f32 - 14.0) / 14.0).collect();
    let target = [1i64, 0, 3];
    let batch: Vec<(&str, Input)> =
        vec![("x", x[..].into()), ("target", target[..].into()), ("lr", 0.1.into())];
    // Momenta are no longer zero.
    trainer.step_variant("all", &batch).unwrap();
    let names: Vec<String> = trainer.states().map(|(name, _)| name.to_owned()).collect();
    let all = |trainer: &mut Trainer| -> Vec<Tensor> {
        names.iter().map(|name| trainer.state(name).unwrap()).collect()
    };
    let before = all(&mut trainer);
    trainer.step_variant("without-l1", &batch).unwrap();
    let after = all(&mut trainer);
    for ((name, before), after) in names.iter().zip(&before).zip(&after) {
        assert_eq!(before == after, name.starts_with("l1."), "{name}");
    }
    assert!(names.iter().any(|name| name == "l1.c1.weight.momentum"), "{names:?}");
    assert!(names.iter().any(|name| name == "l1.b1.running_mean"), "{names:?}");
}

#[test]
fn a_branch_that_is_kept_is_scaled() {
    // y = x + tanh(x W) + b, where b is zero, and the loss is the mean of (y - target)^2.
    let model = residual();
    let compile = |most: usize| {
        let compiler = Compiler::new().loss("mse", Optimizer::Sgd).evaluation(false);
        let compiler = compiler.drop_layers("r.*".parse().unwrap(), 0.25, most);
        compiler.compile(&Model::from_bytes(model.clone()).unwrap().dim("batch", 2)).unwrap()
    };
    let (x, target) = ([0.5f32, -1.0, 0.25, 2.0], [1.0f32, 0.0, -1.0, 0.5]);
    let w = [0.5f32, -0.25, 1.0, 0.75];
    let loss = |factor: f64| {
        let elements = (0..4).map(|i| {
            let (row, column) = (i / 2, i % 2);
            let sum: f64 =
                (0..2).map(|k| f64::from(x[2 * row + k]) * f64::from(w[2 * k + column])).sum();
            (f64::from(x[i]) + factor * sum.tanh() - f64::from(target[i])).powi(2)
        });
        elements.sum::<f64>() / 4.0
    };
    let batch: Vec<(&str, Input)> =
        vec![("x", x[..].into()), ("target", target[..].into()), ("lr", 0.0.into())];
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
    let mut own = Trainer::new(compile(2)).unwrap();
    assert_eq!(own.variants().collect::<Vec<_>>(), ["all", "without-r"]);
    near(own.step_variant("all", &batch).unwrap()["loss"], loss(1.0 / 0.75));
    near(own.step_variant("without-r", &batch).unwrap()["loss"], loss(0.0));
    let mut masked = Trainer::new(compile(1)).unwrap();
    for (keep, factor) in [(1.0, 1.0 / 0.75), (0.0, 0.0)] {
        let batch = [&batch[..], &[("r.keep", keep.into())]].concat();
        near(masked.step(&batch).unwrap()["loss"], loss(factor));
    }
}

/// `x + tanh(x W) + b`, with the parameters `r.w` and `b`.
fn residual() -> Vec<u8> {
    use arenic::onnx::proto::tensor_shape_proto::dimension::Value as Extent;
    use arenic::onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto, tensor_proto::DataType};
    let shape = [Extent::DimParam("batch".into()), Extent::DimValue(2)];
    let node = super::dynamic::node;
    let values = [0.5f32, -0.25, 1.0, 0.75];
    let graph = GraphProto {
        name: Some("residual".to_owned()),
        node: vec![
            node("MatMul", &["x", "r.w"], "product"),
            node("Tanh", &["product"], "branch"),
            node("Add", &["x", "branch"], "sum"),
            node("Add", &["sum", "b"], "y"),
        ],
        initializer: vec![
            super::dynamic::tensor("r.w", &[2, 2], |i| values[i]),
            super::dynamic::tensor("b", &[2], |_| 0.0),
        ],
        input: vec![super::dynamic::value("x", DataType::Float, &shape)],
        output: vec![super::dynamic::value("y", DataType::Float, &shape)],
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(17) }];
    let graph = Some(graph);
    ModelProto { ir_version: Some(8), opset_import, graph, ..ModelProto::default() }.encode_to_vec()
}

#[test]
fn what_is_no_branch_is_refused() {
    let shell = Shell::new();
    let plain = TINY.split(" --drop-layers").next().unwrap();
    let fails = |patterns: &str, says: &[&str]| {
        shell.fails(&format!("compile {plain} {patterns} -o x.arenic"), 1, says);
    };
    fails("--drop-layers nothing*=0.1", &["--drop-layers nothing*: no trained parameter matches"]);
    fails("--drop-layers c.weight=0.1", &["`c.weight` lies in no residual branch"]);
    // Half of a branch, and both operands of a sum.
    fails("--drop-layers l1.c1.*=0.1", &["`l1.c1.weight` lies in no residual branch"]);
    fails("--drop-layers l2.*=0.1", &["`l2.down.0.weight`", "lies in no residual branch"]);
    for wrong in ["l1.*=0", "l1.*=1", "l1.*"] {
        shell.fails(&format!("compile {plain} --drop-layers {wrong} -o x.arenic"), 2, &[]);
    }
    images(&shell);
    shell.succeeds(&format!("compile {TINY} -o v.arenic"));
    let probable =
        "run v.arenic --data d.npz --set lr=0.1 --structure random:1 --probability all=1";
    shell.fails(probable, 1, &["--probability is of models"]);
    let dynamic = "run v.arenic --data d.npz --set lr=0.1 --dynamic";
    shell.fails(dynamic, 1, &["does not say how to compile it at other sizes"]);
}
