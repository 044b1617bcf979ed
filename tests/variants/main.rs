//! Steps that share their states in one arena: any sequence of them is what separate artifacts give that
//! hand their states on by files, bit by bit.

use arenic::artifact::{Artifact, Target};
use arenic::data::OutputSpool;
use arenic_backends::CPU;
use arenic_ir::program::{Command, Program, Range};
use arenic_ir::{DType, TensorType};
use serde_json::Value;
use shell::{Shell, text};
use std::ops;

mod drops;
mod dynamic;
mod random;
#[path = "../shell/mod.rs"]
mod shell;

const MODEL: &str = "@models/forward/mlp.onnx --loss cross_entropy --optimizer momentum \
    --momentum 0.9 --ignore-index -100 --effort 0.1";

/// The rows of a data set, of which there are as many as one likes.
fn row(i: usize) -> (Vec<u8>, i64) {
    let mut r = fastrand::Rng::with_seed(i as u64);
    ((0..32).flat_map(|_| (r.f32() - 0.5).to_le_bytes()).collect(), r.i64(0..10))
}

impl Shell {
    /// Writes rows to a file, and as many more that are filled up.
    fn rows(&self, name: &str, rows: ops::Range<usize>, padded: usize) {
        let types = [
            ("x".to_owned(), TensorType::new(DType::F32, [32])),
            ("target".to_owned(), TensorType::new(DType::I64, [])),
        ];
        let mut spool = OutputSpool::new(self.path(name), &types).unwrap();
        let filled_up = (0..padded).map(|_| (vec![0; 128], -100));
        for (x, target) in rows.map(row).chain(filled_up) {
            spool.append(0, &x).unwrap();
            spool.append(1, &target.to_le_bytes()).unwrap();
        }
        spool.finish().unwrap();
    }

    /// Runs a step of an artifact on each file, each from where the last one has ended.
    fn chain(&self, files: &[(&str, &str)], name: &str) -> Vec<Value> {
        let mut losses = Vec::new();
        for (i, (artifact, data)) in files.iter().enumerate() {
            let init = if i == 0 { String::new() } else { format!("--init {name}") };
            let run = format!("run {artifact} --data {data} {init} --steps 1");
            losses.extend(self.losses(&format!("{run} --save {name}")));
        }
        losses
    }

    fn losses(&self, run: &str) -> Vec<Value> {
        let rows = self.succeeds(&format!("{run} --set lr=0.05 --json"));
        rows.iter().filter(|row| row.get("loss").is_some()).map(|r| r["loss"].clone()).collect()
    }

    /// Both files hold the same.
    fn same(&self, a: &str, b: &str) {
        let read = |name: &str| std::fs::read(self.path(name)).unwrap();
        assert!(read(a) == read(b), "{a} and {b} differ");
    }

    /// Compiles one step for each size, and one artifact of all; gives what is said of that.
    fn compile_sizes(&self, sizes: &[usize]) -> (Value, f64) {
        let mut largest = 0.0f64;
        for n in sizes {
            let one = format!("compile {MODEL} --dim batch={n} -o s{n}.arenic --json");
            largest = largest.max(self.succeeds(&one)[0]["arena_bytes"].as_f64().unwrap());
        }
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        let sizes = sizes.join(",");
        let all = format!("compile {MODEL} --dim batch={sizes} -o v.arenic --json");
        (self.succeeds(&all).remove(0), largest)
    }
}

#[test]
fn sizes_in_turn_give_what_artifacts_of_one_size_give() {
    let shell = Shell::new();
    let (said, largest) = shell.compile_sizes(&[6, 4, 3]);
    let names: Vec<&str> =
        said["variants"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["batch=6", "batch=4", "batch=3"]);
    let arena = said["arena_bytes"].as_f64().unwrap();
    assert!(arena <= 1.02 * largest, "{arena} bytes for all, {largest} for the largest");
    let checked = shell.succeeds("check v.arenic --json");
    assert!(checked.iter().all(|row| row["accepted"] == true) && checked.len() == 6, "{checked:?}");

    for n in [6, 4, 3] {
        shell.rows(&format!("d{n}.npz"), 0..n, 0);
    }
    let sequence = [4, 6, 6, 3, 4, 3, 6];
    let files: Vec<(String, String)> =
        sequence.map(|n| (format!("s{n}.arenic"), format!("d{n}.npz"))).to_vec();
    let single: Vec<(&str, &str)> = files.iter().map(|(a, d)| (&a[..], &d[..])).collect();
    let of_all: Vec<(&str, &str)> = files.iter().map(|(_, d)| ("v.arenic", &d[..])).collect();
    let expected = shell.chain(&single, "a.safetensors");
    assert_eq!(shell.chain(&of_all, "b.safetensors"), expected);
    shell.same("a.safetensors", "b.safetensors");

    // In one run, a file at a time in turn.
    let in_turn = [("s6.arenic", "d6.npz"), ("s3.arenic", "d3.npz")].repeat(3);
    let expected = shell.chain(&in_turn, "c.safetensors");
    let run = "run v.arenic --data d6.npz --data d3.npz --steps 6 --save d.safetensors --poison";
    assert_eq!(shell.losses(run), expected);
    shell.same("c.safetensors", "d.safetensors");
}

#[test]
fn a_file_is_cut_into_batches_of_the_sizes_that_there_are() {
    let shell = Shell::new();
    shell.compile_sizes(&[6, 4]);
    shell.rows("all.npz", 0..16, 0);
    let parts = [(0..6, "s6.arenic", "d0.npz"), (6..12, "s6.arenic", "d1.npz")];
    let mut files = Vec::new();
    for (rows, artifact, name) in parts.into_iter().chain([(12..16, "s4.arenic", "d2.npz")]) {
        shell.rows(name, rows, 0);
        files.push((artifact, name));
    }
    let expected = shell.chain(&[&files[..], &files].concat(), "a.safetensors");
    assert_eq!(
        shell.losses("run v.arenic --data all.npz --epochs 2 --save b.safetensors"),
        expected
    );
    shell.same("a.safetensors", "b.safetensors");

    // What fits nothing is left out, which is said, or filled up.
    shell.rows("all.npz", 0..13, 0);
    let output = shell.arenic("run v.arenic --data all.npz --set lr=0.05");
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("the last 1 of 13 rows"), "{said}");
    shell.rows("d2.npz", 12..13, 3);
    let expected = shell.chain(&files, "c.safetensors");
    let run = "run v.arenic --data all.npz --pad target=-100 --save d.safetensors";
    assert_eq!(shell.losses(run), expected);
    shell.same("c.safetensors", "d.safetensors");
}

#[test]
fn a_run_goes_on_as_if_it_had_not_ended() {
    let shell = Shell::new();
    let two = MODEL.split_once(' ').map_or("", |(_, options)| options);
    let model = "@models/forward/mlp.onnx";
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/models/forward/mlp.onnx");
    assert!(MODEL.starts_with(model));
    let models = format!("--variant deep={root} --variant other={root}");
    shell.succeeds(&format!("compile {models} {two} --dim batch=5,3 -o v.arenic"));
    let names = &shell.succeeds("inspect v.arenic --json")[0]["variants"];
    let expected = ["deep,batch=5", "deep,batch=3", "other,batch=5", "other,batch=3"];
    assert_eq!(*names, Value::from(&expected[..]));
    shell.rows("a.npz", 0..18, 0);
    shell.rows("b.npz", 20..31, 0);
    let run = "run v.arenic --data a.npz --data b.npz --mix shuffled:5 --shuffle 3 \
               --structure random:2 --probability deep=0.7";
    let whole = shell.losses(&format!("{run} --steps 17 --save whole.safetensors"));
    let mut parts = shell.losses(&format!("{run} --steps 6 --save part.safetensors"));
    let rest = format!("{run} --init part.safetensors --steps 11 --save part.safetensors");
    parts.extend(shell.losses(&rest));
    assert_eq!(parts, whole);
    shell.same("whole.safetensors", "part.safetensors");
}

/// All ranges of a program.
fn ranges(program: &mut Program) -> Vec<&mut Range> {
    let homes = program.homes.iter_mut().map(|home| &mut home.range);
    let of_commands = program.commands.iter_mut().flat_map(|command| match command {
        Command::Run { reads, writes, scratch, .. } => {
            reads.iter_mut().chain(writes.iter_mut().flatten()).chain(scratch).collect::<Vec<_>>()
        }
        Command::Copy { from, to, .. } => vec![from, to],
        _ => Vec::new(),
    });
    homes.chain(&mut program.outputs).chain(of_commands).collect()
}

/// Moves all uses of some bytes elsewhere, behind all others.
fn moved(target: &mut Target, from: Range) -> Range {
    let to = target.program.sizes.device;
    target.program.sizes.device += from.len.next_multiple_of(target.program.target.align);
    for range in ranges(&mut target.program) {
        if range.space == from.space && range.offset >= from.offset && range.end() <= from.end() {
            range.offset = to + (range.offset - from.offset);
        }
    }
    Range { offset: to, ..from }
}

#[test]
fn variants_that_are_changed_hold_no_more() {
    let shell = Shell::new();
    shell.succeeds(&format!("compile {MODEL} --dim batch=6,4,3 --no-eval -o v.arenic"));
    let artifact = Artifact::read(&shell.path("v.arenic")).unwrap();
    artifact.check(CPU.name).unwrap();
    let state = |target: &Target, i: usize| {
        let enter = target.graph.states.values().nth(i).unwrap().enter;
        target.program.homes.iter().find(|h| h.value == enter).unwrap().range
    };
    let between = |change: &dyn Fn(&mut Artifact)| {
        let mut changed = artifact.clone();
        change(&mut changed);
        // Every step holds by itself.
        changed.targets.iter().for_each(|target| drop(target.check().unwrap()));
        changed.write(&shell.path("m.arenic")).unwrap();
        shell.fails("check m.arenic", 1, &["the variants cannot take turns", "part 0 is batch=6"]);
        shell.rows("d.npz", 0..4, 0);
        shell.fails("run m.arenic --data d.npz --set lr=0.1", 1, &["part "]);
        let violations = changed.check(CPU.name).unwrap_err();
        violations.into_iter().map(|v| v.message).collect::<Vec<_>>().join("\n")
    };
    let states = artifact.targets[0].graph.states.len();
    assert_eq!(states, 12);
    // A home moved in one variant: to another place, and there onto nobody's, or others' bytes.
    for i in 0..states {
        for v in 0..3 {
            let said = between(&|changed: &mut Artifact| {
                let target = &mut changed.targets[v];
                let home = state(target, i);
                moved(target, home);
            });
            assert!(said.contains("has another home"), "{said}");
        }
    }
    // A state that one variant lacks by name is somebody else's bytes to it.
    let said = between(&|changed: &mut Artifact| {
        let state = changed.targets[2].graph.states.values_mut().next().unwrap();
        state.name = "unheard of".into();
    });
    assert!(said.contains("where part 0 has a state"), "{said}");
    // Alignment, kernels: another target.
    let said =
        between(&|changed: &mut Artifact| changed.targets[1].program.target.workspace += 256);
    assert!(said.contains("another target"), "{said}");
}

#[test]
fn options_that_fit_no_variants_are_refused() {
    let shell = Shell::new();
    let fails = |options: &str, says: &[&str]| {
        shell.fails(&format!("compile {MODEL} {options} -o x.arenic"), 1, says);
    };
    fails("--dim batch=4,3 --only batch=5", &["--only batch=5 fits none of them"]);
    fails("--dim batch=4,3 --only rows=3", &["--only names rows, which --dim does not"]);
    fails("--dim batch=4,3 --overhead 2%", &["--overhead is about one step, not 2 variants"]);
    fails("--dim batch=4,3 --stop-after order", &["--stop-after is about one step"]);
    shell.fails(&format!("compile {MODEL} --dim batch=4,4 -o x.arenic"), 2, &["comes twice"]);
    shell.succeeds(&format!("compile {MODEL} --dim batch=4,3 -o v.arenic"));
    shell.rows("d.npz", 0..2, 0);
    let run = "run v.arenic --data d.npz --set lr=0.1";
    shell.fails(run, 1, &["d.npz fits no variant", "the smallest batch has 3 rows"]);
    shell.fails(&format!("{run} --set rl=1"), 1, &["--set names tensors that are no inputs: rl"]);
    shell.fails(&format!("{run} --pad y=1"), 1, &["--pad names tensors that are no inputs: y"]);
    shell.rows("d.npz", 0..4, 0);
    let probable = format!("{run} --structure cycle --probability a=1");
    shell.fails(&probable, 1, &["no variant has a model of that name"]);
    shell.fails("inspect v.arenic --variant x", 1, &["does not hold the variant `x`", "batch=4"]);
    let said = text(&shell.arenic("inspect v.arenic --statistics").stderr);
    assert!(said.contains("of the variants batch=4 and batch=3 this is the first"), "{said}");
    let rows = shell.succeeds("eval v.arenic --data d.npz --json");
    assert_eq!(rows[0]["batches"], 1);
}
