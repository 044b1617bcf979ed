//! What was trained is not lost: paths are tried first, and states go elsewhere where they must.

use super::*;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// So many steps take hours.
const FOR_EVER: &str = "--steps 1000000000";

/// A run with its stderr in a file of the shell's folder.
struct Running<'a> {
    shell: &'a Shell,
    child: Child,
}

/// Waits until something is true.
fn until(what: &str, is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Shell {
    fn start(&self, mut command: Command) -> Running<'_> {
        let said = std::fs::File::create(self.path("said")).unwrap();
        std::fs::create_dir_all(self.path("temporary")).unwrap();
        command.env("TMPDIR", self.path("temporary")).stderr(said).stdout(Stdio::null());
        Running { shell: self, child: command.spawn().unwrap() }
    }

    /// Starts `arenic run` of the MLP with these options.
    fn train(&self, options: &str) -> Running<'_> {
        self.start(self.command(&format!("run mlp.arenic {INIT} --set lr=0.01 {options}")))
    }

    /// The one file whose name has this in it, in a folder of the shell's, or in one below it.
    fn found(&self, folder: &str, part: &str) -> std::path::PathBuf {
        let pattern = self.path(folder).join(format!("**/*{part}*"));
        let mut all: Vec<_> = glob::glob(pattern.to_str().unwrap()).unwrap().flatten().collect();
        all.retain(|p| p.is_file());
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Files of the folder with a temporary's name.
    fn temporaries(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.ends_with(".tmp")).collect()
    }
}

impl Running<'_> {
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.shell.path("said")).unwrap()
    }

    /// Waits for its end with this code.
    fn ends(&mut self, code: i32) {
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{}", self.said());
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn paths_are_tried_before_the_work() {
    let shell = Shell::new();
    shell.compile_mlp();
    std::fs::write(shell.path("file"), "precious").unwrap();
    let run = format!("run mlp.arenic {DATA} {INIT} --set lr=0.01 {FOR_EVER}");
    for option in ["--save", "--outputs", "--trace"] {
        let missing = ["cannot write no/w", "no file can be made in no", "make the folder first"];
        shell.fails(&format!("{run} {option} no/w"), 1, &missing);
        shell.fails(&format!("{run} {option} file/w"), 1, &["no file can be made in file"]);
        shell.fails(&format!("{run} {option} ."), 1, &["not a regular file"]);
    }
    shell.fails(&format!("{run} --save w --outputs ./w"), 1, &["something else is written there"]);
    shell.fails(&format!("{run} --on-save-error wait"), 2, &["--save"]);
    shell.fails(&format!("{run} --save w --on-save-error x"), 2, &["stop and wait are"]);
    // The model is not even read.
    for command in [
        "compile missing.onnx -o no/w",
        "differentiate missing.onnx --loss mse --optimizer sgd -o no/w",
        "eval missing.arenic --outputs no/w",
        "export missing.arenic -o no/w",
        "report missing.arenic -o no/w",
        "profile missing.arenic -o no/w",
        "simulate missing.arenic --trace no/w",
        "order missing.json -o no/w",
        "place missing.csv -o no/w",
        "trace missing.csv -o no/w",
    ] {
        shell.fails(command, 1, &["no file can be made in no"]);
    }
    assert_eq!(std::fs::read(shell.path("file")).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(shell.folder.path()).unwrap().count(), 2, "nothing is left");
}

#[test]
fn signals_end_a_run_with_its_step_and_save_whole_states() {
    let shell = Shell::new();
    shell.compile_mlp();
    let options = format!("{DATA} {FOR_EVER} --save w.safetensors --save-every 500");
    let saved = shell.path("w.safetensors");
    for signals in [&["-INT"][..], &["-TERM"], &["-HUP"], &["-HUP", "-HUP", "-TERM"]] {
        let mut run = shell.train(&options);
        until("a save", || saved.exists());
        signals.iter().for_each(|s| run.signal(s));
        run.ends(130);
        assert!(run.said().contains("the states are saved"), "{}", run.said());
        let again = format!("run mlp.arenic {DATA} --set lr=0.01 --init w.safetensors --steps 1");
        shell.succeeds(&again);
        std::fs::remove_file(&saved).unwrap();
        assert!(shell.temporaries().is_empty());
    }
}

#[test]
fn under_nohup_a_run_outlives_its_terminal() {
    let shell = Shell::new();
    shell.compile_mlp();
    let arenic = shell.command(&format!(
        "run mlp.arenic {DATA} {INIT} --set lr=0.01 {FOR_EVER} --save w --save-every 500"
    ));
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(arenic.get_program());
    nohup.args(arenic.get_args()).current_dir(shell.folder.path());
    let mut run = shell.start(nohup);
    let saved = shell.path("w");
    for _ in 0..2 {
        until("a save", || saved.exists());
        run.signal("-HUP");
        std::fs::remove_file(&saved).unwrap();
    }
    until("a save", || saved.exists());
    assert!(!run.said().contains("stopping"), "{}", run.said());
    run.signal("-TERM");
    run.ends(130);
}

#[test]
fn states_go_beside_their_path_or_to_a_temporary_folder() {
    let shell = Shell::new();
    shell.compile_mlp();
    let options = format!("{DATA} {FOR_EVER} --save-every 500 --save");
    // Something took the name meanwhile.
    let mut run = shell.train(&format!("{options} w.safetensors"));
    let saved = shell.path("w.safetensors");
    until("a folder of its name", || {
        saved.exists() && {
            let _ = std::fs::remove_file(&saved);
            std::fs::create_dir(&saved).is_ok()
        }
    });
    run.ends(1);
    let beside = shell.found("", "w.rescued-");
    let name = beside.file_name().unwrap().to_str().unwrap();
    let said = run.said().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("not a regular file") && said.contains(name), "{said}");
    let steps: u64 = name.split(['-', '.']).find_map(|n| n.parse().ok()).unwrap();
    shell.succeeds(&format!(
        "run mlp.arenic {DATA} {INIT} --set lr=0.01 --steps {steps} --save good"
    ));
    assert!(std::fs::read(&beside).unwrap() == std::fs::read(shell.path("good")).unwrap());
    // The folder is gone.
    std::fs::create_dir(shell.path("folder")).unwrap();
    let mut run = shell.train(&format!("{options} folder/w.safetensors"));
    until("a save", || shell.path("folder/w.safetensors").exists());
    std::fs::rename(shell.path("folder"), shell.path("gone")).unwrap();
    run.ends(1);
    let far = shell.found("temporary", "w.rescued-");
    let again = format!("run mlp.arenic {DATA} --set lr=0.01 --steps 1 --init");
    shell.succeeds(&format!("{again} {}", far.display()));
    let folder = far.parent().unwrap().file_name().unwrap().to_str().unwrap();
    assert!(run.said().split_whitespace().collect::<String>().contains(folder), "{}", run.said());
}

/// A limit on the size of files stands for a full disk, for all folders at once.
#[test]
fn a_full_disk_is_told_and_spares_what_is_there() {
    let shell = Shell::new();
    shell.compile_mlp();
    std::fs::write(shell.path("w"), "precious").unwrap();
    let arenic =
        shell.command(&format!("run mlp.arenic {DATA} {INIT} --set lr=0.01 --steps 3 --save w"));
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""]).arg(arenic.get_program());
    limited.args(arenic.get_args()).current_dir(shell.folder.path());
    let mut run = shell.start(limited);
    let status = run.child.wait().unwrap();
    let said = run.said().split_whitespace().filter(|w| *w != "│").collect::<Vec<_>>().join(" ");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the state after 3 steps could be saved nowhere"), "{said}");
    assert!(said.contains("too large"), "{said}");
    assert_eq!(std::fs::read(shell.path("w")).unwrap(), b"precious");
    assert!(shell.temporaries().is_empty());
    assert_eq!(std::fs::read_dir(shell.path("temporary")).unwrap().count(), 0);
}

#[test]
fn a_run_waits_until_states_can_be_saved() {
    let shell = Shell::new();
    shell.compile_mlp();
    std::fs::create_dir(shell.path("folder")).unwrap();
    let save = "--save folder/w --save-every 500 --on-save-error wait";
    let mut run = shell.train(&format!("{DATA} {FOR_EVER} {save}"));
    let saved = shell.path("folder/w");
    until("a save", || saved.exists());
    let away = || std::fs::rename(shell.path("folder"), shell.path("away")).unwrap();
    away();
    until("waiting", || run.said().contains("the run waits"));
    // It tries more than once, and says so once.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(run.said().matches("the run waits").count(), 1, "{}", run.said());
    std::fs::rename(shell.path("away"), shell.path("folder")).unwrap();
    until("a save", || run.said().contains("the run goes on"));
    std::fs::remove_file(&saved).unwrap();
    until("another save", || saved.exists());
    away();
    until("waiting", || run.said().matches("the run waits").count() == 2);
    run.signal("-INT");
    run.ends(1);
    let far = shell.found("temporary", "w.rescued-");
    let again = format!("run mlp.arenic {DATA} --set lr=0.01 --steps 1 --init {}", far.display());
    shell.succeeds(&again);
}

/// Writes batches of the MLP: `x`, and `target` with these classes.
fn write_batches(shell: &Shell, targets: &[i64]) {
    let rows = |name: &str, ty: TensorType, bytes: Vec<u8>| {
        let row = ty.bytes() as usize;
        (name.to_owned(), ty, bytes.chunks(row).map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let x: Vec<u8> = (0..targets.len() * 32).flat_map(|i| (i as f32).sin().to_le_bytes()).collect();
    let target: Vec<u8> = targets.iter().flat_map(|t| t.to_le_bytes()).collect();
    let arrays = [
        rows("x", TensorType::new(DType::F32, [32]), x),
        rows("target", TensorType::new(DType::I64, []), target),
    ];
    let types: Vec<_> = arrays.iter().map(|(name, ty, _)| (name.clone(), ty.clone())).collect();
    let mut spool = OutputSpool::new(shell.path("data.npz"), &types).unwrap();
    for (i, (_, _, rows)) in arrays.iter().enumerate() {
        rows.iter().for_each(|row| spool.append(i, row).unwrap());
    }
    spool.finish().unwrap();
}

#[test]
fn a_kernel_that_refuses_its_data_leaves_the_states_before_it() {
    let shell = Shell::new();
    shell.succeeds(
        "compile @models/forward/mlp.onnx --dim batch=4 --loss cross_entropy --optimizer momentum \
         --lr 0.1 -o m.arenic",
    );
    write_batches(&shell, &[0, 1, 2, 3, 4, 0, 1, 2, 3, 77, 1, 2]);
    let run = "run m.arenic --data data.npz";
    shell.fails(&format!("{run} --steps 3"), 1, &["step 2", "77"]);
    let says = ["step 2", "77", "the state after 2 steps is in `w.rescued-2.safetensors`"];
    shell.fails(&format!("{run} --steps 3 --save w.safetensors"), 1, &says);
    assert!(!shell.path("w.safetensors").exists());
    shell.succeeds(&format!("{run} --steps 2 --save good"));
    let read = |name: &str| std::fs::read(shell.path(name)).unwrap();
    assert!(read("w.rescued-2.safetensors") == read("good"));
    // What was rescued before stays.
    std::fs::write(shell.path("w.rescued-2.safetensors"), "precious").unwrap();
    let says = ["`w.rescued-2-2.safetensors`"];
    shell.fails(&format!("{run} --steps 3 --save w.safetensors"), 1, &says);
    assert_eq!(read("w.rescued-2.safetensors"), b"precious");
    // Nothing was trained before the first step.
    write_batches(&shell, &[0, 77, 2, 3]);
    std::fs::remove_file(shell.path("w.rescued-2-2.safetensors")).unwrap();
    shell.fails(&format!("{run} --steps 3 --save w.safetensors"), 1, &["step 0"]);
    assert!(!shell.path("w.rescued-0.safetensors").exists());
}

#[test]
fn data_that_is_cut_meanwhile_leaves_the_states_before_it() {
    let shell = Shell::new();
    shell.compile_mlp();
    write_batches(&shell, &[0; 400]);
    let save = "--save w.safetensors --save-every 500 --outputs o.npz";
    let mut run = shell.train(&format!("--data data.npz --epochs 1000000 {save}"));
    until("a save", || shell.path("w.safetensors").exists());
    let data = std::fs::OpenOptions::new().write(true).open(shell.path("data.npz")).unwrap();
    data.set_len(8000).unwrap();
    run.ends(1);
    assert!(run.said().contains("data.npz"), "{}", run.said());
    let rescued = shell.found("", "w.rescued-");
    let again = format!("run mlp.arenic {DATA} --set lr=0.01 --steps 1 --init");
    shell.succeeds(&format!("{again} {}", rescued.display()));
    assert!(shell.temporaries().is_empty());
}

#[test]
fn what_a_killed_run_leaves_is_removed_and_what_a_living_one_writes_is_not() {
    let shell = Shell::new();
    shell.compile_mlp();
    let options = format!("{DATA} {FOR_EVER} --outputs o.npz");
    let mut killed = shell.train(&options);
    // Before its steps a run tries the path with another temporary file.
    until("a step", || killed.said().contains("loss"));
    let left = shell.temporaries();
    assert_eq!(left.len(), 1);
    let run = format!("run mlp.arenic {DATA} {INIT} --set lr=0.01 --steps 1 --outputs o.npz");
    shell.succeeds(&run);
    assert_eq!(shell.temporaries(), left, "its process lives");
    killed.signal("-KILL");
    killed.child.wait().unwrap();
    assert_eq!(shell.temporaries(), left);
    shell.succeeds(&run);
    assert!(shell.temporaries().is_empty());
}
