//! Ranks that are processes: `mpirun -n N arenic run`, with a rank too many, one that is killed, one that is
//! stopped, and a launcher that is told to end. What ranks compute has its tests in `ranks`.

use arenic::data::TensorFile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const ARENIC: &str = env!("CARGO_BIN_EXE_arenic");

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn arenic(args: &[&str]) -> Output {
    Command::new(ARENIC).args(args).output().unwrap()
}

/// An artifact of the small network for so many ranks.
fn compiled(folder: &Path, ranks: usize, shard: &str, batch: usize) -> PathBuf {
    compiled_with(folder, ranks, shard, batch, &[])
}

/// The same, with more options.
fn compiled_with(folder: &Path, ranks: usize, shard: &str, batch: usize, more: &[&str]) -> PathBuf {
    let artifact = folder.join(format!("{ranks}-{shard}.arenic"));
    let model = root("models/forward/mlp.onnx");
    let (ranks, batch) = (ranks.to_string(), format!("batch={batch}"));
    let own = [
        "compile",
        model.to_str().unwrap(),
        "--loss",
        "cross_entropy",
        "--optimizer",
        "adamw",
        "--clip-norm",
        "0.5",
        "--no-eval",
        "--dim",
        &batch,
        "--ranks",
        &ranks,
        "--shard",
        shard,
        "-o",
        artifact.to_str().unwrap(),
    ];
    let out = arenic(&[&own, more].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    artifact
}

/// Starts ranks that share the cores of this machine.
fn mpirun(ranks: usize, artifact: &Path, more: &[&str]) -> Child {
    mpirun_with(&[], ranks, artifact, &[&["--json"], more].concat())
}

/// The same, with options of the launcher.
fn mpirun_with(options: &[&str], ranks: usize, artifact: &Path, more: &[&str]) -> Child {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe"]).args(options);
    command.args(["-n", &ranks.to_string(), ARENIC]);
    let data = root("tests/runs/mlp_b4_sgdm.data.npz");
    command.arg("run").arg(artifact).arg("--data").arg(data).args(["--set", "lr=0.01"]);
    command.args(["--threads", "1"]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The lines of stdout that are of steps.
fn steps(out: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().filter(|line| line.starts_with("{\"step\"")).map(str::to_owned).collect()
}

fn trained(ranks: usize, artifact: &Path, save: &Path, more: &[&str]) -> Vec<String> {
    let save = save.to_str().unwrap();
    let out = mpirun(ranks, artifact, &[&["--save", save], more].concat());
    let out = out.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    steps(&out)
}

#[test]
fn processes_have_the_same_bits_at_every_level_and_in_every_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut first: Option<(Vec<String>, Vec<u8>)> = None;
    for shard in ["none", "optimizer", "gradients", "parameters", "parameters"] {
        let artifact = compiled(folder.path(), 2, shard, 2);
        let save = folder.path().join("w.safetensors");
        let lines = trained(2, &artifact, &save, &["--steps", "3"]);
        assert_eq!(lines.len(), 3, "one line a step, of the first rank alone");
        let bytes = fs::read(&save).unwrap();
        assert!(TensorFile::open(&save).unwrap().tensors().len() > 3);
        let (expected, saved) = first.get_or_insert((lines.clone(), bytes.clone()));
        assert_eq!(&lines, expected, "{shard}");
        assert!(bytes == *saved, "{shard}: other weights");
    }
}

/// MPI's memory is measured and told apart from the arena; a process alone has none.
#[test]
fn memory_of_mpi_is_told() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 3] {
        let artifact = compiled(folder.path(), ranks, "none", 2);
        let out = mpirun(ranks, &artifact, &["--steps", "2"]).wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let summary = String::from_utf8(out.stdout).unwrap();
        let summary: serde_json::Value =
            serde_json::from_str(summary.lines().last().unwrap()).unwrap();
        let bytes = |name: &str| summary[name].as_u64().unwrap();
        let (own, resident) = (bytes("mpi_bytes"), bytes("peak_rss_bytes"));
        match ranks {
            1 => assert_eq!(own, 0),
            _ => assert!(own > 1 << 20 && own + bytes("arena_bytes") < resident, "{summary}"),
        }
    }
}

#[test]
fn another_number_of_ranks_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let two = compiled(folder.path(), 2, "optimizer", 2);
    let one = compiled(folder.path(), 1, "none", 4);
    for (ranks, artifact, numbers) in [
        (3, &two, ["2 ranks", "3 ranks"]),
        (1, &two, ["2 ranks", "1 rank"]),
        (2, &one, ["1 rank", "2 ranks"]),
    ] {
        let out = mpirun(ranks, artifact, &["--steps", "1"]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(numbers.iter().all(|n| said.contains(n)), "{said}");
        assert_eq!(said.matches("the artifact is for").count(), 1, "{said}");
    }
}

/// One GPU is not for several ranks of a machine.
#[test]
fn ranks_want_a_gpu_each() {
    let folder = tempfile::tempdir().unwrap();
    let for_gpus = ["--target", "cuda", "--no-gpu-code"];
    let artifact = compiled_with(folder.path(), 2, "gradients", 2, &for_gpus);
    let out = mpirun(2, &artifact, &["--steps", "1", "--device", "cuda:0"]);
    let out = out.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("cuda:0 is one GPU, and several ranks of a machine are run"), "{said}");
    assert!(said.contains("`--device cuda` gives each of them its own"), "{said}");
}

/// The process of a rank among those that a launcher started.
fn process_of(launcher: &Child, rank: usize) -> u32 {
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    let begun = Instant::now();
    loop {
        let children = format!("/proc/{0}/task/{0}/children", launcher.id());
        for pid in fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if environment.split(|&b| b == 0).any(|entry| entry == wanted.as_bytes()) {
                return pid.parse().unwrap();
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "rank {rank} has not begun");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// What becomes of all ranks where one of them is sent a signal in the middle of a run.
fn signalled(name: &str, more: &[&str]) -> (Duration, String) {
    let folder = tempfile::tempdir().unwrap();
    let artifact = compiled(folder.path(), 2, "gradients", 2);
    let ranks = mpirun(2, &artifact, &[&["--steps", "100000000"], more].concat());
    let pid = process_of(&ranks, 1);
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    signal(pid, name);
    let out = ranks.wait_with_output().unwrap();
    assert!(!out.status.success());
    (begun.elapsed(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// Ranks that nothing ends run for days; a busy machine takes some twenty seconds to end processes that share a core.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_rank_that_is_killed_ends_the_others_and_is_named() {
    let (time, said) = signalled("KILL", &[]);
    assert!(time < SOON, "{time:?}");
    assert!(said.contains("rank 1"), "{said}");
}

#[test]
fn a_rank_that_is_silent_ends_the_others_and_is_named() {
    let (time, said) = signalled("STOP", &["--rank-timeout", "2"]);
    assert!(time < SOON, "{time:?}");
    assert!(said.contains("rank 1 has been silent for 2 s"), "{said}");
}

/// What is sent to the launcher ends all ranks with the step that they are at, and a save, with which a run goes on.
#[test]
fn ranks_that_are_told_to_end_save_once() {
    let folder = tempfile::tempdir().unwrap();
    let artifact = compiled(folder.path(), 2, "parameters", 2);
    let [cut, whole] = ["cut", "whole"].map(|name| folder.path().join(name));
    for name in ["USR1", "TERM", "INT"] {
        // A busy machine may take more than the second that Open MPI leaves; so long it waits, whatever ranks do, and
        // reads nothing of what they print: with a line for each of so many short steps they would wait for it.
        let patient = ["--mca", "odls_base_sigkill_timeout", "5"];
        let save = cut.to_str().unwrap();
        let more = ["--steps", "100000000", "--save", save, "--save-every", "1"];
        let ranks = mpirun_with(&patient, 2, &artifact, &more);
        // Once a step is saved, all ranks have begun.
        let begun = Instant::now();
        while !cut.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{name}: no step");
            std::thread::sleep(Duration::from_millis(20));
        }
        let begun = Instant::now();
        signal(ranks.id(), name);
        let ended = ranks.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "{name}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: {:?}", begun.elapsed());
        assert!(!said.contains("error"), "{name}: {said}");
        let of_step = |line: &str| Some(line.split_once(" steps, ")?.0.to_owned());
        let done: Vec<String> = said.lines().filter_map(of_step).collect();
        assert_eq!(done.len(), 1, "{name}: {said}");
        // The file has all of that many steps, and the next run goes on with the step after them.
        let next = trained(2, &artifact, &whole, &["--init", save, "--steps", "1"]);
        let wanted = format!("{{\"step\":{},", done[0]);
        assert!(next.len() == 1 && next[0].starts_with(&wanted), "{name}: {next:?}, not {wanted}");
        fs::remove_file(&cut).unwrap();
    }
}
