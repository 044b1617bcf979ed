//! What `simulate --ranks` predicts of a step on other numbers of ranks.

use super::*;

const STEP: &str = "compile @models/forward/gpt_tiny.onnx --loss cross_entropy --optimizer adamw \
                    --no-eval --effort 0 --dim batch=2 --ranks 2";

const LEVELS: [&str; 3] = ["none", "optimizer", "parameters"];

/// Compiles the step at three levels; gives the bytes of each one's arena.
fn compiled(shell: &Shell) -> [f64; 3] {
    LEVELS.map(|level| {
        let made = shell.succeeds(&format!("{STEP} --shard {level} -o {level}.arenic --json"));
        made[0]["arena_bytes"].as_f64().unwrap()
    })
}

#[test]
fn every_level_is_predicted_on_every_number_of_ranks() {
    let shell = Shell::new();
    let arenas = compiled(&shell);
    let artifacts = LEVELS.map(|level| format!("{level}.arenic")).join(" ");
    let simulate = format!("simulate {artifacts} --device h100 --cluster dgx_h100 --json --ranks");
    let rows = shell.succeeds(&format!("{simulate} 1,2,64,1024"));
    let of = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(rows.len(), 12);
    let shards: Vec<&str> = rows.iter().map(|row| row["shard"].as_str().unwrap()).collect();
    assert_eq!(shards, [["none"; 4], ["optimizer"; 4], ["parameters"; 4]].concat());
    for level in rows.chunks(4) {
        // One rank exchanges nothing, and more of them never take less time for it.
        assert_eq!(
            (of(&level[0], "exchange_seconds"), of(&level[0], "exposed_seconds")),
            (0.0, 0.0)
        );
        assert!(level.windows(2).all(|w| of(&w[0], "step_seconds") < of(&w[1], "step_seconds")));
        for row in level {
            let [step, exchange, exposed] =
                ["step_seconds", "exchange_seconds", "exposed_seconds"].map(|name| of(row, name));
            assert!(exposed <= exchange && exchange <= step, "{row}");
            assert!((of(row, "efficiency") - (step - exposed) / step).abs() < 1e-12, "{row}");
        }
    }
    // On as many ranks as it was compiled for, a rank has what the artifact has.
    for (level, arena) in rows.chunks(4).zip(arenas) {
        assert_eq!(of(&level[1], "bytes_per_rank"), arena, "{}", level[1]);
    }
    let bytes: Vec<f64> = rows.iter().map(|row| of(row, "bytes_per_rank")).collect();
    assert!(bytes[..4].iter().all(|b| *b == bytes[0]), "nothing is a part: {bytes:?}");
    for (less, more) in [(4, 0), (8, 4)] {
        assert!((1..4).all(|i| bytes[less + i] < bytes[more + i]), "{bytes:?}");
    }
    assert!(bytes[8] > bytes[9] && bytes[9] > bytes[10] && bytes[10] > bytes[11], "{bytes:?}");
    // Slower links take longer, and nothing else changes.
    let slow = shell.succeeds(&format!("{} 64", simulate.replace("dgx_h100", "pcie_ethernet")));
    for (slow, fast) in slow.iter().zip([&rows[2], &rows[6], &rows[10]]) {
        assert!(of(slow, "exchange_seconds") > of(fast, "exchange_seconds"), "{slow}");
        assert_eq!(slow["bytes_per_rank"], fast["bytes_per_rank"]);
    }
    let said = shell.arenic(&format!("{} 8", simulate.replace(" --json", "")));
    let said = text(&said.stdout);
    let columns: Vec<Vec<&str>> =
        said.lines().skip(2).map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(columns, [["none", "8"], ["optimizer", "8"], ["parameters", "8"]], "{said}");
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let shell = Shell::new();
    shell.succeeds(&format!("{STEP} --shard none -o two.arenic"));
    shell.compile_mlp();
    let fails = |arguments: &str, code: i32, says: &[&str]| {
        shell.fails(&format!("simulate {arguments}"), code, says);
    };
    fails(
        "two.arenic mlp.arenic --ranks 8 --cluster dgx_h100",
        1,
        &["`mlp.arenic` is for one process"],
    );
    fails("two.arenic --ranks 0 --cluster dgx_h100", 1, &["--ranks 0 is not between 1 and 65536"]);
    fails("two.arenic --ranks 8 --cluster dgx", 1, &["the cluster `dgx`", "dgx_a100, dgx_h100"]);
    fails("two.arenic mlp.arenic", 1, &["one artifact is simulated at a time", "--ranks"]);
    fails("two.arenic --ranks 8", 2, &["--cluster"]);
    let cluster = "name: x\nranks_per_node: 0\nwithin: {latency_seconds: 0, bytes_per_second: 1}\n\
                   between: {latency_seconds: 0, bytes_per_second: 1}\n";
    std::fs::write(shell.path("c.yaml"), cluster).unwrap();
    fails("two.arenic --ranks 8 --cluster c.yaml", 1, &["ranks_per_node must be at least 1"]);
}
