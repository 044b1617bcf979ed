//! The contract of the command line: exit codes, JSON, and that nothing is lost.

use arenic::data::{Npz, OutputSpool, TensorFile};
use arenic_ir::{DType, TensorType};
use serde_json::{Value, json};
use shell::{Shell, text};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

mod bare;
mod forward;
mod frameworks;
mod names;
mod onnx_files;
mod parameters;
mod saving;
mod scaling;
#[path = "../shell/mod.rs"]
mod shell;

impl Shell {
    fn compile_mlp(&self) {
        self.succeeds("compile @models/step/ref_mlp_b4_sgdm.onnx -o mlp.arenic");
    }
}

const DATA: &str = "--data @tests/runs/mlp_b4_sgdm.data.npz";
const INIT: &str = "--init @tests/runs/mlp_b4_sgdm.init.npz";

#[test]
fn compile_reports_its_figures_as_json() {
    let shell = Shell::new();
    let rows = shell.succeeds("compile @models/step/ref_mlp_b4_sgdm.onnx -o mlp.arenic --json");
    let figure = |name: &str| rows[0][name].as_f64().unwrap_or_else(|| panic!("no {name}"));
    assert!(figure("lower_bound_bytes") <= figure("live_peak_bytes"));
    assert!(figure("live_peak_bytes") <= figure("definition_order_bytes"));
    let fragmentation = figure("arena_bytes") - figure("live_peak_bytes");
    assert_eq!(figure("fragmentation_bytes"), fragmentation);
    assert_eq!(figure("host_arena_bytes"), 0.0);
    assert!(figure("nodes") > 20.0 && figure("seconds") > 0.0);

    let inspected = &shell.succeeds("inspect mlp.arenic --json")[0];
    let buffers = inspected["buffers"].as_array().unwrap();
    let end = buffers.iter().map(|b| b["offset"].as_u64().unwrap() + b["bytes"].as_u64().unwrap());
    assert!(end.max().unwrap() as f64 <= figure("arena_bytes"));
    assert!(buffers.iter().all(|b| b["first"].as_u64() <= b["last"].as_u64()));
    assert_eq!(shell.succeeds("check mlp.arenic --json")[0]["accepted"], true);
}

#[test]
fn a_graph_is_drawn_for_graphviz() {
    let shell = Shell::new();
    shell.compile_mlp();
    let output = shell.arenic("inspect mlp.arenic --dot");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let dot = text(&output.stdout);
    assert!(dot.starts_with("digraph {") && dot.trim_end().ends_with('}'), "{dot}");
    for word in ["state p.fc1.weight", "input target", "output loss", "next p.fc1.weight", " -> "] {
        assert!(dot.contains(word), "no {word} in {dot}");
    }
}

#[test]
fn shells_and_man_know_every_command() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish"] {
        let output = shell.arenic(&format!("completions {name}"));
        assert!(
            output.status.success() && text(&output.stdout).contains("--device-memory"),
            "{name}"
        );
    }
    assert!(text(&shell.arenic("man").stdout).contains("arenic\\-compile(1)"));
    std::fs::create_dir(shell.path("man")).unwrap();
    assert!(shell.arenic("man -o man").status.success());
    let page = std::fs::read_to_string(shell.path("man/arenic-compile.1")).unwrap();
    assert!(page.contains("device\\-memory"), "{page}");
    assert!(shell.path("man/arenic-pipeline-show.1").exists());
}

#[test]
fn the_same_input_gives_the_same_artifact() {
    let shell = Shell::new();
    shell.compile_mlp();
    let first = std::fs::read(shell.path("mlp.arenic")).unwrap();
    shell.compile_mlp();
    assert!(first == std::fs::read(shell.path("mlp.arenic")).unwrap());
}

/// Searches on a busy machine, and on any number of threads, end where they always do: nothing
/// looks at a clock.
#[test]
fn neither_load_nor_threads_change_the_artifact() {
    let shell = Shell::new();
    let compile = |threads: &str, out: &str| {
        let options = "--device-memory 600k --host-memory 1GiB --effort 0.2 --json";
        let model = "@models/step/ref_tiny_resnet_b4_sgdm.onnx";
        let mut command = shell.command(&format!("compile {model} {options} -o {out}"));
        command.env("RAYON_NUM_THREADS", threads).output().unwrap()
    };
    let alone = compile("1", "alone.arenic");
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let done = AtomicBool::new(false);
    let loaded = std::thread::scope(|scope| {
        for _ in 0..2 * cores {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let loaded = compile("8", "loaded.arenic");
        done.store(true, Ordering::Relaxed);
        loaded
    });
    for output in [alone, loaded] {
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("\"search_cut\":false"));
    }
    let read = |name: &str| std::fs::read(shell.path(name)).unwrap();
    assert!(read("alone.arenic") == read("loaded.arenic"));
}

/// Here the search for addresses has something to do.
#[test]
fn an_artifact_says_that_the_clock_ended_a_search() {
    let shell = Shell::new();
    let model = "@models/structure/joint_vgg16_b32_adamop.onnx";
    for (options, is_cut) in [("--effort 0.1", false), ("--time-limit 0", true)] {
        let compile = format!("compile {model} --plan-only {options} -o m.arenic --json");
        assert_eq!(shell.succeeds(&compile)[0]["search_cut"], is_cut);
        assert_eq!(shell.succeeds("inspect m.arenic --json")[0]["search_cut"], is_cut);
        let inspected = text(&shell.arenic("inspect m.arenic --statistics").stdout);
        assert_eq!(inspected.contains("may differ on another machine"), is_cut, "{inspected}");
    }
}

#[test]
fn a_failed_command_leaves_files_as_they_were() {
    let shell = Shell::new();
    shell.compile_mlp();
    let before = std::fs::read(shell.path("mlp.arenic")).unwrap();
    std::fs::write(shell.path("bad.onnx"), b"\x3b".repeat(200_000)).unwrap();
    shell.fails("compile bad.onnx -o mlp.arenic", 1, &["no ONNX model"]);
    std::fs::write(shell.path("empty.onnx"), b"").unwrap();
    shell.fails("compile empty.onnx -o mlp.arenic", 1, &[]);
    shell.fails("compile missing.onnx -o mlp.arenic", 1, &["missing.onnx"]);
    assert!(before == std::fs::read(shell.path("mlp.arenic")).unwrap());
    assert_eq!(std::fs::read_dir(shell.folder.path()).unwrap().count(), 3, "no temporary files");
}

#[test]
fn altered_artifacts_are_refused() {
    let shell = Shell::new();
    shell.compile_mlp();
    let good = std::fs::read(shell.path("mlp.arenic")).unwrap();
    for (at, says) in [(0, "not an arenic artifact"), (30, "altered"), (good.len() - 1, "altered")]
    {
        let mut bad = good.clone();
        bad[at] ^= 4;
        std::fs::write(shell.path("bad.arenic"), bad).unwrap();
        for command in ["check bad.arenic", "inspect bad.arenic", "run bad.arenic"] {
            shell.fails(command, 1, &[says]);
        }
    }
    std::fs::write(shell.path("bad.arenic"), &good[..good.len() / 2]).unwrap();
    shell.fails("check bad.arenic", 1, &["was cut or altered"]);
    let mut newer = good.clone();
    newer[8] = 200;
    std::fs::write(shell.path("bad.arenic"), newer).unwrap();
    shell.fails("check bad.arenic", 1, &["format version 200", "newer arenic"]);
    // A whole artifact whose steps do not end as this version ends them.
    let mut carried = good;
    let header = u64::from_le_bytes(carried[12..20].try_into().unwrap()) as usize;
    assert_eq!(carried[62 + header..64 + header], [4 << 3, 1], "the boundary comes last");
    carried[63 + header] = 2;
    carried[20..52].fill(0);
    let digest = blake3::hash(&carried);
    carried[20..52].copy_from_slice(digest.as_bytes());
    std::fs::write(shell.path("bad.arenic"), carried).unwrap();
    for command in ["check bad.arenic", "run bad.arenic"] {
        shell.fails(command, 1, &["all copies joined", "compile it again"]);
    }
}

#[test]
fn run_names_what_is_missing_or_does_not_fit() {
    let shell = Shell::new();
    shell.compile_mlp();
    let run = |rest: &str| format!("run mlp.arenic {rest}");
    shell.fails(
        &run(&format!("{DATA} --set lr=0.1")),
        1,
        &["`p.fc1.weight`", "`m.fc3.bias`", "--zeros"],
    );
    shell.fails(&run(&format!("{DATA} {INIT}")), 1, &["lr", "--set"]);
    shell.fails(&run(&format!("{DATA} {INIT} --set lr=fast")), 1, &["lr=fast"]);
    shell.fails(&run(&format!("{DATA} {INIT} --set lr=1 --set depth=2")), 1, &["depth"]);
    shell.fails(
        &run(&format!("{DATA} --init @tests/runs/mlp_b4_sgdm.data.npz --set lr=1")),
        1,
        &["`target`", "--skip"],
    );
    shell.fails(
        &run(&format!("--data @tests/runs/mlp_b4_sgdm.init.npz {INIT} --set lr=1")),
        1,
        &["no input"],
    );
    shell.fails(
        &run(&format!("{DATA} {INIT} --set lr=1 --device cuda:0")),
        1,
        &["for cpu", "--target cuda"],
    );
    shell.fails(&run("--device tpu"), 2, &["cuda:N"]);
    shell.fails(&run("--steps 3 --epochs 2"), 2, &[]);
    // Zeros fill what nothing else gives.
    shell.succeeds(&run(&format!("{DATA} --zeros p.* --zeros m.* --set lr=0.1 --json")));
    shell.succeeds("compile @models/step/ref_mlp_b4_sgdm.onnx -o plan.arenic --plan-only");
    shell.fails(&format!("run plan.arenic {DATA} {INIT} --set lr=1"), 1, &["--plan-only"]);
}

#[test]
fn instructions_are_chosen_by_their_names() {
    let shell = Shell::new();
    shell.compile_mlp();
    let run = format!("run mlp.arenic {DATA} {INIT} --set lr=0.1 --steps 1 --verbose");
    let with = |chosen| shell.command(&run).env("ARENIC_CPU", chosen).output().unwrap();
    let refused = with("sse9");
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains("ARENIC_CPU is `sse9`") && said.contains("avx2"), "{said}");
    for chosen in ["", "baseline", "avx2", "avx512"] {
        assert!(with(chosen).status.success(), "{chosen}");
    }
    assert!(text(&with("baseline").stderr).contains("baseline"));
}

#[test]
fn a_plan_alone_has_no_weights() {
    let shell = Shell::new();
    let compile = "compile @models/forward/small_cnn.onnx --dim batch=4 --loss mse --optimizer sgd";
    let bytes = |file: &str| std::fs::metadata(shell.path(file)).unwrap().len();
    shell.succeeds(&format!("{compile} -o whole.arenic"));
    shell.succeeds(&format!("{compile} --plan-only -o plan.arenic"));
    let weights = std::fs::metadata("models/forward/small_cnn.onnx").unwrap().len();
    assert!(bytes("plan.arenic") + weights / 2 < bytes("whole.arenic"));
    assert_eq!(shell.succeeds("check plan.arenic --json")[0]["accepted"], true);
    shell.succeeds("inspect plan.arenic");
}

#[test]
fn a_program_for_a_gpu_needs_one() {
    let shell = Shell::new();
    let compile = "compile @models/step/ref_mlp_b4_sgdm.onnx -o g.arenic";
    shell.fails(&format!("{compile} --target tpu"), 2, &["cpu and cuda"]);
    shell.succeeds(&format!("{compile} --target cuda"));
    assert_eq!(shell.succeeds("check g.arenic --json")[0]["accepted"], true);
    let run = format!("run g.arenic {DATA} {INIT} --set lr=0.1");
    shell.fails(&run, 1, &["for cuda, none for cpu", "--target cpu"]);
    shell.succeeds(&format!("{compile} --target cpu --target cuda"));
    assert_eq!(shell.succeeds("inspect g.arenic --json")[0]["targets"], json!(["cpu", "cuda"]));
    shell.succeeds(&format!("{run} --json"));
    shell.fails(&format!("{run} --device cuda:99"), 1, &["there is no"]);
}

#[test]
fn how_a_gpu_multiplies_is_said_and_kept() {
    let shell = Shell::new();
    let compile = "compile @models/step/ref_mlp_b4_sgdm.onnx -o mlp.arenic --json";
    assert_eq!(shell.succeeds(&format!("{compile} --target cuda"))[0]["math"], "f32");
    let rows = shell.succeeds(&format!("{compile} --target cuda --math tf32"));
    assert_eq!(rows[0]["math"], "tf32");
    assert_eq!(shell.succeeds("inspect mlp.arenic --json")[0]["math"], "tf32");
    shell.succeeds("check mlp.arenic");
    shell.fails(&format!("{compile} --math tf32"), 1, &["for GPUs", "--target cuda"]);
    shell.fails(&format!("{compile} --target cuda --math f16"), 2, &["f32 and tf32 are"]);
}

#[test]
fn a_step_in_bf16_says_so_trains_and_is_evaluated() {
    let shell = Shell::new();
    let compile = "compile @models/forward/mlp.onnx --dim batch=4 --loss cross_entropy \
                   --optimizer momentum --json -o m.arenic";
    let wide = shell.succeeds(&format!("{compile} --lr 0.01"));
    assert_eq!(wide[0]["precision"], "f32");
    let inspected = |shell: &Shell| shell.succeeds("inspect m.arenic --json")[0].clone();
    let before = inspected(&shell);
    assert_eq!(before["precision"], "f32");
    shell.succeeds(&format!("{compile} --lr 0.01 --precision f32"));
    assert_eq!(inspected(&shell)["buffers"], before["buffers"]);
    let narrow =
        shell.succeeds(&format!("{compile} --lr 0.01 --precision bf16 --target cpu --target cuda"));
    assert_eq!(narrow[0]["precision"], "bf16");
    assert!(narrow[0]["bf16_bytes"].as_u64().unwrap() > 0);
    let told = inspected(&shell);
    assert_eq!(told["precision"], "bf16");
    assert!(told["passes"].as_array().unwrap().contains(&json!("precision")));
    assert!(
        told["states"]
            .as_array()
            .unwrap()
            .iter()
            .all(|s| { s["type"].as_str().unwrap().starts_with("f32") || s["type"] == "i64[]" })
    );
    shell.succeeds("check m.arenic");
    shell.succeeds(&format!("run m.arenic {DATA} --steps 5 --json --save w.safetensors"));
    let data = "--data @tests/runs/mlp_b4_sgdm.data.npz";
    let found = shell.succeeds(&format!("eval m.arenic {data} --init w.safetensors --json"));
    assert!(found.last().unwrap()["loss"].as_f64().unwrap().is_finite());
    shell.fails(&format!("{compile} --precision f16"), 2, &["f32 and bf16 are"]);
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_spares_the_saved_state() {
    let shell = Shell::new();
    shell.compile_mlp();
    std::fs::write(shell.path("w.safetensors"), "precious").unwrap();
    let run =
        format!("run mlp.arenic {DATA} {INIT} --set lr=1e30 --steps 5 --json --save w.safetensors");
    shell.fails(&run, 3, &["`loss` is not finite", "w.nonfinite.safetensors"]);
    let output = shell.arenic(&run);
    let lines = text(&output.stdout);
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(last["loss"].is_null(), "{last}");
    assert_eq!(std::fs::read(shell.path("w.safetensors")).unwrap(), b"precious");
    assert!(shell.path("w.nonfinite.safetensors").exists());
}

#[test]
fn pipelines_can_be_stopped_dumped_and_mistaken() {
    let shell = Shell::new();
    let stopped = shell.arenic("compile @models/step/ref_mlp_b4_sgdm.onnx --stop-after views");
    let module = text(&stopped.stdout);
    assert!(
        arenic_ir::text::Module::parse(&module, &arenic_backends::ALL).unwrap().plan.is_none(),
        "{module}"
    );
    let dumped = shell.arenic(
        "compile @models/step/ref_mlp_b4_sgdm.onnx -o m.arenic --dump-ir-after order --print-stats",
    );
    let dumped = text(&dumped.stderr);
    assert!(dumped.contains("# after order") && dumped.contains("live_peak_bytes="), "{dumped}");
    std::fs::write(shell.path("p.yaml"), "- dead_code\n- oder\n").unwrap();
    let compile = "compile @models/step/ref_mlp_b4_sgdm.onnx -o m.arenic --pipeline";
    shell.fails(&format!("{compile} p.yaml"), 1, &["no pass is called `oder`", "p.yaml:2"]);
    std::fs::write(shell.path("p.yaml"), "- dead_code\n").unwrap();
    shell.fails(&format!("{compile} p.yaml"), 1, &["makes no program", "`lower`"]);
    shell.fails(&format!("{compile} missing.yaml"), 1, &["missing.yaml", "default"]);
    let schema: Value = serde_json::from_slice(&shell.arenic("pipeline schema").stdout).unwrap();
    assert_eq!(schema["type"], "array");
    assert!(text(&shell.arenic("pipeline list").stdout).contains("share_in_place"));
    let explained = text(&shell.arenic("pipeline explain section").stdout).to_owned();
    for words in ["Sound because", "tvDNN", "parts:", "of\n\ngraph", "this:\n\ngraph"] {
        assert!(explained.contains(words), "{words}: {explained}");
    }
    shell.fails("pipeline explain colour", 1, &["no pass is called `colour`", "raise"]);
    let of_place = schema["items"]["anyOf"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["properties"].as_object().is_some_and(|p| p.contains_key("place")));
    assert!(of_place.unwrap()["description"].as_str().unwrap().contains("dynamic storage"));
    assert!(text(&shell.arenic("pipeline show definition").stdout).contains("fit: first"));
    assert!(text(&shell.arenic("ops").stdout).contains("ConvTranspose"));
}

#[test]
fn trained_weights_evaluate_on_the_forward_file() {
    let shell = Shell::new();
    shell.succeeds("compile @models/digits/digits_step.onnx --dim batch=32 -o step.arenic");
    shell.succeeds(
        "run step.arenic --data @models/digits/train.npz --set lr=0.05 --epochs 3 --shuffle 1 \
         --save w.safetensors --json",
    );
    shell.succeeds("compile @models/digits/digits_forward.onnx --dim batch=357 -o forward.arenic");
    let evaluate = "run forward.arenic --data @models/digits/test.npz --init w.safetensors --json";
    // The momentum of the saved state has no place in a forward graph.
    shell.fails(evaluate, 1, &["`m.", "--skip"]);
    let rows = shell.succeeds(&format!("{evaluate} --skip m.*"));
    let accuracy = rows[0]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
    shell.fails("compile @models/digits/digits_step.onnx -o x.arenic", 1, &["--dim", "batch"]);
}

/// A model `y = exp(x)` over `f32[2,3]`, encoded.
fn exponential() -> Vec<u8> {
    use arenic::onnx::proto::*;
    use prost::Message;
    let extent = |n| tensor_shape_proto::Dimension {
        value: Some(tensor_shape_proto::dimension::Value::DimValue(n)),
        ..Default::default()
    };
    let value = |name: &str| ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(type_proto::Tensor {
                elem_type: Some(1),
                shape: Some(TensorShapeProto { dim: vec![extent(2), extent(3)] }),
            })),
            ..Default::default()
        }),
        ..Default::default()
    };
    let node = NodeProto {
        op_type: Some("Exp".into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    let graph = GraphProto {
        node: vec![node],
        input: vec![value("x")],
        output: vec![value("y")],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(18) };
    let model = ModelProto {
        ir_version: Some(8),
        graph: Some(graph),
        opset_import: vec![opset],
        ..Default::default()
    };
    model.encode_to_vec()
}

#[test]
fn outputs_of_every_step_go_to_one_archive() {
    let shell = Shell::new();
    std::fs::write(shell.path("exp.onnx"), exponential()).unwrap();
    shell.succeeds("compile exp.onnx -o exp.arenic");
    // Seven rows make three batches of two; one row is left over, which is said.
    let ty = TensorType::new(DType::F32, [7, 3]);
    let rows: Vec<u8> = (0..21).flat_map(|i| (i as f32 / 10.0).to_le_bytes()).collect();
    let mut spool = OutputSpool::new(shell.path("batches.npz"), &[("x".into(), ty)]).unwrap();
    spool.append(0, &rows).unwrap();
    spool.finish().unwrap();
    // The spool stacks its one step on a leading axis; the archive then has one array of
    // shape [1, 7, 3], which is no batch of [2, 3] and refused.
    shell.fails("run exp.arenic --data batches.npz", 1, &["\"x\"", "f32[1,7,3]"]);

    let row = TensorType::new(DType::F32, [3]);
    let mut spool = OutputSpool::new(shell.path("batches.npz"), &[("x".into(), row)]).unwrap();
    rows.chunks(12).for_each(|r| spool.append(0, r).unwrap());
    spool.finish().unwrap();
    let run = shell.arenic("run exp.arenic --data batches.npz --outputs o.npz");
    assert!(text(&run.stderr).contains("the last 1 of 7 rows"), "{}", text(&run.stderr));
    let outputs = Npz::open(shell.path("o.npz")).unwrap();
    let y = outputs.array("y").unwrap();
    assert_eq!(y.ty(), &TensorType::new(DType::F32, [3, 2, 3]));
    for (i, bytes) in y.bytes().chunks(4).enumerate() {
        let found = f32::from_le_bytes(bytes.try_into().unwrap());
        assert!((found - (i as f32 / 10.0).exp()).abs() < 1e-6, "{i}: {found}");
    }
}

#[test]
fn a_run_writes_when_its_commands_ran() {
    let shell = Shell::new();
    shell.compile_mlp();
    shell.succeeds(&format!("run mlp.arenic {DATA} {INIT} --set lr=0.1 --trace t.json"));
    let trace = std::fs::read(shell.path("t.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    assert!(trace["otherData"]["times"].as_str().unwrap().contains("wall times"));
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert!(spans.len() > 10);
    let mut now = 0.0;
    for span in spans {
        assert!(span["ts"].as_f64().unwrap() >= now, "one stream runs its commands in turn");
        now = span["ts"].as_f64().unwrap() + span["dur"].as_f64().unwrap() - 1e-3;
    }
}

#[test]
fn profiles_go_before_the_roofline() {
    let shell = Shell::new();
    let compile = "compile @models/step/ref_mlp_b4_sgdm.onnx -o mlp.arenic";
    let nodes = shell.succeeds(&format!("{compile} --json"))[0]["nodes"].as_f64().unwrap();
    let shown = shell.arenic("profile mlp.arenic --threads 1 -o t.jsonl");
    assert!(text(&shown.stdout).contains("every operator once"), "{}", text(&shown.stdout));
    let table = std::fs::read_to_string(shell.path("t.jsonl")).unwrap();
    let mut rows: Vec<Value> = table.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&rows[0]["device"], &rows[0]["threads"]), (&"CPU, one core".into(), &1.into()));
    assert!(rows.len() > 10 && rows[1..].iter().all(|r| r["seconds"].as_f64() > Some(0.0)));
    assert_eq!(shell.succeeds("profile mlp.arenic --json").len(), rows.len());

    // Where every kernel takes a second, a step takes one for each.
    let write = |name: &str, rows: &[Value]| {
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(shell.path(name), lines).unwrap();
    };
    rows[1..].iter_mut().for_each(|row| row["seconds"] = 1.into());
    write("slow.jsonl", &rows);
    let step = &shell.succeeds("simulate mlp.arenic --profile slow.jsonl --json")[0];
    assert_eq!(step["unlimited_step_seconds"].as_f64(), Some(nodes));
    let limited = format!("{compile} --device-memory 10KiB --host-memory 1MiB --json");
    let step = &shell.succeeds(&format!("{limited} --device cpu --profile slow.jsonl"))[0];
    assert!(step["predicted_step_seconds"].as_f64() >= Some(nodes));
    assert_eq!(step["recomputed_nodes"], 0, "a second is worse than any copy");
    write("part.jsonl", &rows[..rows.len() - 1]);
    let noted = shell.arenic("simulate mlp.arenic --profile part.jsonl");
    assert!(text(&noted.stderr).contains("are not in the profile"), "{}", text(&noted.stderr));

    let with = |field: &str, value: Value| {
        let mut rows = rows.clone();
        rows[1][field] = value;
        write("bad.jsonl", &rows);
    };
    let refused = |says: &[&str]| {
        for command in ["simulate mlp.arenic", compile] {
            shell.fails(&format!("{command} --profile bad.jsonl"), 1, says);
        }
    };
    with("seconds", (-1).into());
    refused(&["bad.jsonl", "line 2", "-1", "positive"]);
    with("seconds", Value::Null);
    refused(&["line 2", "null"]);
    with("operator", "spin".into());
    refused(&["line 2", "spin"]);
    std::fs::write(shell.path("bad.jsonl"), &table[..table.len() / 2]).unwrap();
    refused(&["bad.jsonl", "line"]);
    std::fs::remove_file(shell.path("bad.jsonl")).unwrap();
    refused(&["cannot read", "bad.jsonl"]);
    for command in ["simulate mlp.arenic", compile] {
        let other = format!("{command} --device h100 --profile t.jsonl");
        shell.fails(&other, 1, &["a profile of another device", "CPU, one core"]);
    }
    shell.fails("profile mlp.arenic --device cuda:0", 1, &["cuda:0", "no CUDA driver"]);
    shell.fails("profile mlp.arenic --device cuda:x", 1, &["names no GPU"]);
    shell.fails("profile mlp.arenic --device h100", 1, &["describes a GPU", "cuda:0"]);
    shell.fails("profile mlp.arenic --device nope.yaml", 1, &["nope.yaml"]);
}
