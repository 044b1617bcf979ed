//! Names out of files do nothing to a terminal.

use super::bare::{BUFFERS, MEMORY_GRAPH};
use super::*;
use arenic::onnx::proto::ModelProto;
use prost::Message;

/// Colours, sets the title, clears by a single character, and turns the direction of the text.
const EVIL: &str = "\u{1b}[31m\u{1b}]0;t\u{7}\u{9b}2J\u{7f}\r\u{202e}";

/// A model all of whose names end in [`EVIL`].
fn renamed(model: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
    let mut model = ModelProto::decode(&std::fs::read(path).unwrap()[..]).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let mut rename = |name: &mut String| {
        if !name.is_empty() {
            name.push_str(EVIL);
        }
    };
    let values = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    values.flat_map(|v| &mut v.name).for_each(&mut rename);
    graph.initializer.iter_mut().flat_map(|t| &mut t.name).for_each(&mut rename);
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).chain(&mut node.name).for_each(&mut rename);
    }
    model.encode_to_vec()
}

/// Runs the command; gives what it says, without anything that a terminal would obey.
fn harmless(shell: &Shell, arguments: &[&str]) -> String {
    let output = shell.command("").args(arguments).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    for said in [&out, &err] {
        let bad = said.chars().find(|&c| (c.is_control() && c != '\n') || c == '\u{202e}');
        assert_eq!(bad, None, "{arguments:?}: {said:?}");
    }
    assert!(!err.contains("panicked"), "{arguments:?}: {err}");
    out + &err
}

#[test]
fn names_do_nothing_to_a_terminal() {
    let shell = Shell::new();
    let words = |arguments: &'static str| arguments.split_whitespace().collect::<Vec<_>>();
    let run = |arguments| harmless(&shell, &words(arguments));
    std::fs::write(shell.path("m.onnx"), renamed("models/forward/mlp.onnx")).unwrap();
    let mut names = 0;
    let mut shows =
        |said: String| names += usize::from(said.contains("\\u001b") || said.contains("u{1b}"));
    let loss =
        "compile m.onnx --dim batch=4 --loss cross_entropy --optimizer momentum --time-limit 0";
    let compile: Vec<&str> = words(loss).into_iter().chain(["-o", "m.arenic"]).collect();
    let frozen = ["--freeze", "*weight*", "-v", "--print-stats", "--dump-ir-after", "all"];
    shows(harmless(&shell, &[&compile[..], &frozen].concat()));
    shows(harmless(&shell, &[&words(loss)[..], &["--stop-after", "definition_order"]].concat()));
    harmless(&shell, &[&compile[..], &["--json"]].concat());
    assert!(shell.path("m.arenic").exists());
    run("compile m.onnx -o other.arenic");
    run(
        "compile m.onnx --dim batch=4 --loss cross_entropy --optimizer sgd --output x -o other.arenic",
    );
    run("differentiate m.onnx --dim batch=4 --loss mse --optimizer sgd -o step.onnx");
    for command in [
        "check m.arenic",
        "check m.arenic --json",
        "simulate m.arenic",
        "simulate m.arenic --json --trace t.json",
        "report m.arenic -o r.html",
        "export m.arenic -o e.onnx",
        "profile m.arenic --json",
        "profile m.arenic",
        "ops",
        "ops --json",
        "pipeline list",
        "pipeline show default",
        "pipeline explain place",
    ] {
        run(command);
    }
    for command in ["inspect m.arenic", "inspect m.arenic --json", "explain order m.arenic"] {
        shows(run(command));
    }
    let weight = shell.succeeds("inspect m.arenic --json")[0]["states"][0]["name"].clone();
    let weight = weight.as_str().unwrap();
    assert!(weight.ends_with(EVIL));
    shows(harmless(&shell, &["explain", "tensor", "m.arenic", weight]));
    harmless(&shell, &["explain", "tensor", "m.arenic", weight, "--json"]);
    shows(harmless(&shell, &["explain", "tensor", "m.arenic", EVIL]));
    // The inputs have no values, other names, and then too many.
    shows(run("run m.arenic"));
    shows(run("eval m.arenic"));
    shows(harmless(&shell, &["run", "m.arenic", "--set", &format!("{EVIL}=1")]));
    let batch = [
        (format!("x{EVIL}"), TensorType::new(DType::F32, [32])),
        ("target".into(), TensorType::new(DType::I64, [])),
    ];
    let mut spool = OutputSpool::new(shell.path("d.npz"), &batch).unwrap();
    for (i, (_, ty)) in batch.iter().enumerate() {
        (0..9).for_each(|_| spool.append(i, &vec![0; ty.bytes() as usize]).unwrap());
    }
    spool.finish().unwrap();
    let trained = "run m.arenic --data d.npz --set lr=0.1 --save w.safetensors";
    shows(run(trained));
    harmless(
        &shell,
        &[&words(trained)[..], &["--json", "--outputs", "o.npz", "--trace", "t.json"]].concat(),
    );
    assert!(shell.path("w.safetensors").exists());
    run("eval m.arenic --data d.npz --init w.safetensors");
    harmless(&shell, &["run", "m.arenic", "--data", &format!("{EVIL}.npz")]);
    assert!(names >= 8, "{names} commands showed names");
}

#[test]
fn names_in_other_files_do_nothing_to_a_terminal() {
    let shell = Shell::new();
    let run = |arguments: &str| harmless(&shell, &arguments.split_whitespace().collect::<Vec<_>>());
    let graph = MEMORY_GRAPH.replace("activation", "\\u001b[31m");
    std::fs::write(shell.path("g.json"), &graph).unwrap();
    run("order g.json -v");
    run("explain order g.json");
    std::fs::write(shell.path("g.json"), MEMORY_GRAPH.replace("activation", EVIL)).unwrap();
    run("order g.json");
    std::fs::write(shell.path("b.csv"), BUFFERS.replace("b1", &format!("\"b1{EVIL}\""))).unwrap();
    run("place b.csv -v");
    run("report b.csv -o b.html");
    std::fs::write(shell.path("b.csv"), BUFFERS.replacen("3", EVIL, 1)).unwrap();
    run("place b.csv");
    let step = format!("malloc,a{EVIL},64\nfree,a{EVIL},\n").repeat(4);
    std::fs::write(shell.path("t.csv"), format!("event,block,size\n{step}")).unwrap();
    run("trace t.csv");
    std::fs::write(shell.path("t.csv"), format!("event,block,size\n{EVIL},a,1\n")).unwrap();
    run("trace t.csv");
    std::fs::write(shell.path("p.yaml"), "- \"oder\\e[31m\"\n- x\n").unwrap();
    run("place b.csv --pipeline p.yaml");
    std::fs::write(shell.path("p.yaml"), format!("- spans # {EVIL}\n- oder\n")).unwrap();
    run("place b.csv --pipeline p.yaml");
    std::fs::write(shell.path("d.yaml"), format!("name: \"\\e[31m\"\nx: {EVIL}\n")).unwrap();
    run("simulate b.csv --device d.yaml");
}
