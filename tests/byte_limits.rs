//! Byte limits on the command line: one limit, a sweep of them, and the largest size that fits.

use serde_json::Value;
use shell::{Shell, text};

mod shell;

#[test]
fn byte_limits_are_kept_or_refused_with_the_least_one() {
    let shell = Shell::new();
    let compile = "compile @models/step/ref_mlp_b4_sgdm.onnx -o m.arenic --host-memory 1MiB";
    let kept = &shell.succeeds(&format!("{compile} --device-memory 10KiB --json"))[0];
    assert!(kept["arena_bytes"].as_u64().unwrap() <= 10 * 1024);
    assert!(kept["predicted_step_seconds"].as_f64() > kept["unlimited_step_seconds"].as_f64());
    let minimum = kept["minimum_device_bytes"].as_u64().unwrap();
    assert!(kept["swapped_bytes"].as_u64().unwrap() > 0);
    // What bounds orders does not bound a plan that swaps.
    assert!(kept["lower_bound_bytes"].as_u64() <= kept["live_peak_bytes"].as_u64());
    assert!(kept["lower_bound_bytes"].as_u64() >= kept["minimum_device_bytes_bound"].as_u64());
    let order = text(&shell.arenic("explain order m.arenic").stdout);
    assert!(order.contains("may stay below") && !order.contains("optimal"), "{order}");
    let step = &shell.succeeds("simulate m.arenic --device gtx1080ti --trace t.json --json")[0];
    assert!(step["link"]["to_host"]["bytes"].as_u64().unwrap() > 0);
    let trace = std::fs::read_to_string(shell.path("t.json")).unwrap();
    assert!(trace.contains("copy device to host"));

    let below = minimum - 1;
    let refused = shell.arenic(&format!("{compile} --device-memory {below} --json"));
    assert_eq!(refused.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(said["minimum_device_bytes"].as_u64(), Some(minimum));
    // Micro-batches may do with less, where they are not tried yet.
    assert!(text(&refused.stderr).contains("--accumulate auto may keep the limit"));
    let divided = shell.arenic(&format!("{compile} --accumulate auto --device-memory 64"));
    assert_eq!(divided.status.code(), Some(1));
    assert!(!text(&divided.stderr).contains("may keep the limit"), "{}", text(&divided.stderr));
    for (options, code, words) in [
        ("--device-memory 0", 1, "at least"),
        ("--device-memory many", 2, "is no size"),
        ("--device gtx1080ti --device-memory 20GiB", 1, "more than the device has"),
        ("--device nope", 1, "gtx1080ti"),
        ("--device cuda:99", 1, "there is no"),
    ] {
        shell.fails(&format!("{compile} {options}"), code, &[words]);
    }
}

/// A limit that a plan just keeps leaves no room for them: the plan makes some.
#[test]
fn inputs_of_the_next_step_have_room_under_a_limit_on_a_gpu() {
    let shell = Shell::new();
    let default = text(&shell.arenic("pipeline show default").stdout);
    let fed = default.replace("- feed_ahead:\n", "- feed_ahead:\n    least_bytes: 1\n");
    assert_ne!(fed, default);
    std::fs::write(shell.path("fed.yaml"), fed).unwrap();
    let compile = "compile @models/step/ref_gpt_tiny_b4_sgdm.onnx -o m.arenic --json --effort 0.02 \
                   --target cuda --device h200 --host-memory 16MiB";
    let arena = |row: &Value| row["arena_bytes"].as_u64().unwrap();
    let without = arena(&shell.succeeds(compile)[0]);
    let fed = format!("{compile} --pipeline fed.yaml");
    let inputs_ahead = || {
        let program = text(&shell.arenic("inspect m.arenic").stdout);
        program.lines().filter(|line| line.trim_start().starts_with("ahead ")).count()
    };
    assert!(arena(&shell.succeeds(&fed)[0]) > without);
    let inputs = inputs_ahead();
    assert!(inputs > 0);
    let kept = &shell.succeeds(&format!("{fed} --device-memory {without}"))[0];
    assert!(arena(kept) <= without && inputs_ahead() == inputs, "{kept}");
    let least = kept["minimum_device_bytes"].as_u64().unwrap();
    shell.succeeds(&format!("{fed} --device-memory {least}"));
    assert_eq!(inputs_ahead(), 0);
}

/// On the CPU nothing leaves the device unless host memory is given: it is the same memory.
#[test]
fn a_limit_on_the_cpu_counts_all_memory() {
    let shell = Shell::new();
    let compile = "compile @models/step/ref_gpt_tiny_b4_sgdm.onnx -o m.arenic --effort 0.1 --json";
    let whole = shell.succeeds(compile)[0]["arena_bytes"].as_u64().unwrap();
    let kept = &shell.succeeds(&format!("{compile} --memory 75%"))[0];
    assert!(kept["arena_bytes"].as_u64() <= Some(whole * 3 / 4), "{kept}");
    assert_eq!((&kept["host_arena_bytes"], &kept["swapped_bytes"]), (&0.into(), &0.into()));
    assert!(kept["recomputed_nodes"].as_u64() > Some(0));
    let seconds = |name: &str| kept[name].as_f64().unwrap();
    assert!(seconds("unlimited_step_seconds") < seconds("predicted_step_seconds"));
    assert!(seconds("step_seconds_bound") <= seconds("predicted_step_seconds"));
    let refused = shell.arenic(&format!("{compile} --memory 10KiB"));
    let said: Value = serde_json::from_slice(&refused.stdout).unwrap();
    let least = said["minimum_device_bytes"].as_u64().unwrap();
    shell.succeeds(&format!("{compile} --memory {least}"));
    // Half of this step's arena is too little, too.
    let half = shell.arenic(&format!("{compile} --memory half"));
    let said: Value = serde_json::from_slice(&half.stdout).unwrap();
    assert!(whole / 2 < least && said["minimum_device_bytes"].as_u64() == Some(least));
    shell.fails(&format!("{compile} --memory {}", least - 1), 1, &["needs", &least.to_string()]);

    let within = &shell.succeeds(&format!("{compile} --overhead 5%"))[0];
    let seconds = |name: &str| within[name].as_f64().unwrap();
    assert!(seconds("predicted_step_seconds") <= 1.05 * seconds("unlimited_step_seconds"));
    assert!(within["arena_bytes"].as_u64() < Some(whole));
    let fits = &shell.succeeds(&format!("{compile} --memory fit"))[0];
    assert_eq!(fits["recomputed_nodes"], 0);
    for (options, code, words) in [
        ("--memory third", 2, "half or fit"),
        ("--memory 0%", 2, "above 0"),
        ("--memory fit --target cuda", 1, "GPU"),
        ("--overhead 2% --memory half", 2, "cannot be used with"),
        ("--overhead -2%", 2, "-2"),
        ("--overhead 2% --dim batch=max", 1, "that is known"),
    ] {
        shell.fails(&format!("{compile} {options}"), code, &[words]);
    }
}

#[test]
fn a_sweep_prints_what_each_limit_costs() {
    let shell = Shell::new();
    let compile = "compile @models/step/ref_mlp_b4_sgdm.onnx --host-memory 1MiB";
    let whole = &shell.succeeds(&format!("{compile} -o m.arenic --json"))[0];
    let arena = whole["arena_bytes"].as_u64().unwrap();
    let rows = shell.succeeds(&format!("{compile} --sweep 100%..20%:20% --json"));
    let percents: Vec<f64> = rows.iter().filter_map(|r| r["limit_percent"].as_f64()).collect();
    assert_eq!(percents, [100.0, 80.0, 60.0, 40.0, 20.0]);
    assert_eq!(rows[0]["limit_bytes"].as_u64(), Some(arena));
    assert_eq!(rows[0]["overhead"].as_f64(), Some(0.0));
    for row in &rows[..4] {
        assert!(row["arena_bytes"].as_u64() <= row["limit_bytes"].as_u64(), "{row}");
    }
    assert!(
        rows[2]["swapped_bytes"].as_u64() > Some(0) && rows[2]["overhead"].as_f64() > Some(0.0)
    );
    assert_eq!(rows[4]["impossible"], true);
    assert!(rows[4]["minimum_device_bytes"].as_u64() > rows[4]["limit_bytes"].as_u64());
    // A row is what the limit alone gives.
    let limit = rows[1]["limit_bytes"].as_u64().unwrap();
    let alone =
        &shell.succeeds(&format!("{compile} -o m.arenic --device-memory {limit} --json"))[0];
    assert_eq!(rows[1]["predicted_step_seconds"], alone["predicted_step_seconds"]);

    let table = text(&shell.arenic(&format!("{compile} --sweep 40%..20% --device p100")).stdout);
    assert!(table.contains("Tesla P100") && table.contains("are needed at least"), "{table}");
    assert_eq!(table.lines().count(), 5, "{table}");
    for (options, code, words) in [
        ("--sweep 100%", 2, "100%..30%"),
        ("--sweep 100%..0%", 2, "above 0"),
        ("--sweep 100%..30% -o m.arenic", 2, "-o"),
        ("--sweep 100%..30% --device-memory 1MiB", 2, "--device-memory"),
        ("--sweep 100%..30% --dim batch=max", 1, "needs a size for batch"),
    ] {
        shell.fails(&format!("{compile} {options}"), code, &[words]);
    }
    std::fs::write(shell.path("p.yaml"), "- dead_code\n").unwrap();
    shell.fails(&format!("{compile} --sweep 100%..30% --pipeline p.yaml"), 1, &["no program"]);
}

#[test]
fn the_largest_batch_that_fits_is_found() {
    let shell = Shell::new();
    let compile = "compile @models/digits/digits_step.onnx -o d.arenic";
    let largest =
        &shell.succeeds(&format!("{compile} --dim batch=max --device-memory 1MiB --json"))[0];
    let batch = largest["largest"]["size"].as_u64().unwrap();
    assert_eq!(largest["largest"]["dimension"], "batch");
    assert!(batch > 4 && largest["arena_bytes"].as_u64() <= Some(1 << 20));
    assert_eq!(shell.succeeds("check d.arenic --json")[0]["accepted"], true);
    let sized = |n: u64| format!("{compile} --dim batch={n} --device-memory 1MiB");
    shell.succeeds(&sized(batch));
    shell.fails(&sized(batch + 1), 1, &["1048576 bytes"]);

    std::fs::remove_file(shell.path("d.arenic")).unwrap();
    for (options, code, words) in [
        ("--dim batch=max", 1, "needs a byte limit"),
        ("--dim batch=max --stop-after order --device-memory 1MiB", 1, "compile to the end"),
        ("--dim batch=max --device-memory 4KiB", 1, "batch=1 does not fit"),
        ("--dim bacth=max --device-memory 1MiB", 1, "they have batch"),
        ("--dim batch=max --dim batch=3 --device-memory 1MiB", 1, "given twice"),
        ("--dim batch=max --dim rows=max --device-memory 1MiB", 1, "are both max"),
        ("--dim batch=most", 2, "nor max"),
        ("--dim batch=0", 2, "no positive number"),
    ] {
        shell.fails(&format!("{compile} {options}"), code, &[words]);
    }
    std::fs::write(shell.path("p.yaml"), "- dead_code\n").unwrap();
    let programless = "--dim batch=max --device-memory 1MiB --pipeline p.yaml";
    shell.fails(&format!("{compile} {programless}"), 1, &["makes no program"]);
    assert!(!shell.path("d.arenic").exists());
    let refused = shell.arenic(&format!("{compile} --dim batch=max --device-memory 4KiB --json"));
    let said: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert!(said["minimum_device_bytes"].as_u64() > Some(4096));
}

#[test]
fn host_memory_has_a_limit_of_its_own() {
    let shell = Shell::new();
    let compile =
        "compile @models/step/ref_gpt_tiny_b4_adamw.onnx -o m.arenic --json --effort 0.05";
    let figure = |object: &Value, name: &str| object[name].as_u64().unwrap();
    let whole = figure(&shell.succeeds(compile)[0], "arena_bytes");
    let compile = format!("{compile} --device-memory {}", whole * 6 / 10);
    let free = format!("{compile} --host-memory 1GiB");
    let free = figure(&shell.succeeds(&free)[0], "host_arena_bytes");
    for percent in [100, 70] {
        let limit = free * percent / 100;
        let kept = &shell.succeeds(&format!("{compile} --host-memory {limit}"))[0];
        assert!(figure(kept, "host_arena_bytes") <= limit, "{percent} %: {kept}");
    }
}

#[test]
fn explain_says_what_became_of_a_tensor() {
    let shell = Shell::new();
    let model = "@models/step/ref_mlp_b4_sgdm.onnx";
    let limits = "--device-memory 10KiB --host-memory 1MiB";
    shell.succeeds(&format!("compile {model} -o m.arenic {limits} --json"));
    let explain = |name: &str| format!("explain tensor m.arenic {name} --device gtx1080ti");
    let said = shell.succeeds(&format!("{} --json", explain("m.fc2.weight")));
    assert_eq!(said[0]["fate"][0], "swapped");
    // It comes for its update and goes home again.
    assert_eq!(said[0]["copied_to_device_bytes"], said[0]["bytes"]);
    assert_eq!(said[0]["copied_to_host_bytes"], said[0]["bytes"]);
    assert!(said[0]["copy_seconds"].as_f64() > Some(0.0));
    let text = text(&shell.arenic(&explain("m.fc2.weight")).stdout);
    assert!(text.contains("kept, there were") && text.contains("no kernel makes it"), "{text}");
    shell.fails(&explain("nothing"), 1, &["no tensor `nothing`", "inspect"]);
    shell.succeeds(&format!("compile {model} -o m.arenic --json"));
    let kept = shell.succeeds(&format!("{} --json", explain("lr")));
    assert_eq!(kept[0]["fate"][0], "kept");
}
