//! Memory graphs and buffers without a model: `order`, `place`, `explain` and `report`.

use super::*;

pub(super) const MEMORY_GRAPH: &str = r#"{"nodes": [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}], "tensors": [
    {"id": 0, "bytes": 100, "producer": 0, "consumers": [2], "kind": "activation"},
    {"id": 1, "bytes": 100, "producer": 1, "consumers": [3], "kind": "gradient"},
    {"id": 2, "bytes": 1, "producer": 2, "consumers": [], "kind": "output"},
    {"id": 3, "bytes": 1, "producer": 3, "consumers": [], "kind": "output"},
    {"id": 4, "bytes": 7, "producer": -1, "consumers": [0], "kind": "weight"}]}"#;

#[test]
fn order_plans_a_bare_memory_graph() {
    let shell = Shell::new();
    std::fs::write(shell.path("g.json"), MEMORY_GRAPH).unwrap();
    let packed = std::fs::File::create(shell.path("g.json.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, MEMORY_GRAPH.as_bytes()).unwrap();
    packed.finish().unwrap();
    // Without a search the cut's bound stays a byte below the peak; the search closes it.
    for (arguments, bound) in [("g.json", 109), ("g.json.gz --time-limit 0 --seed 3", 108)] {
        let row = &shell.succeeds(&format!("order {arguments} -o order.txt --json"))[0];
        assert_eq!(row["peak_bytes"], 109);
        assert_eq!(row["lower_bound_bytes"], bound);
        assert_eq!(row["definition_order_bytes"], 208);
        assert_eq!(row["proved_optimal"], bound == 109);
        assert_eq!(row["gap"].as_f64().unwrap() == 0.0, bound == 109);
        assert_eq!(row["certificate"]["bound_bytes"], 108);
        assert_eq!(row["method"], "freed_minus_allocated");
        let order = std::fs::read_to_string(shell.path("order.txt")).unwrap();
        assert_eq!(order, "0\n2\n1\n3\n");
    }
}

/// OLLA's control edges cost memory where a gradient is larger than what produces it.
#[test]
fn early_updates_narrow_the_order_and_the_bound_stays_that_of_the_graph() {
    let shell = Shell::new();
    let graph = "@tests/fixtures/alexnet_bs32_sgd.json.gz";
    let free = &shell.succeeds(&format!("order {graph} --json"))[0];
    assert_eq!(free["peak_bytes"], 397_102_244);
    assert_eq!(free["proved_optimal"], true);
    let pipeline = "- spans\n- early_update\n- order_ilp\n";
    std::fs::write(shell.path("early.yaml"), pipeline).unwrap();
    let early = &shell.succeeds(&format!("order {graph} --pipeline early.yaml --json"))[0];
    let mib = early["peak_bytes"].as_u64().unwrap() >> 20;
    assert_eq!(mib, 489);
    assert_eq!(early["lower_bound_bytes"], 397_102_244);
    assert_eq!(early["proved_optimal"], false);
    std::fs::write(shell.path("none.yaml"), "- spans\n").unwrap();
    shell.fails(&format!("order {graph} --pipeline none.yaml"), 1, &["no pass", "gives an order"]);
}

/// Here the search for addresses takes its whole ten seconds.
#[test]
#[cfg(unix)]
fn ctrl_c_keeps_the_best_plan() {
    let shell = Shell::new();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("models/structure/joint_vgg16_b32_adamop.onnx");
    let mut child = Command::new(env!("CARGO_BIN_EXE_arenic"))
        .args(["compile", "--plan-only", "--time-limit", "600", "-o", "m.arenic"])
        .arg(model)
        .current_dir(shell.folder.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    shell.succeeds("check m.arenic");
}

#[test]
fn explain_order_says_where_the_peak_is_and_why() {
    let shell = Shell::new();
    let said = |arguments: &str| {
        let output = shell.arenic(arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let graph = said("explain order @tests/fixtures/alexnet_bs32_sgd.json.gz");
    for part in
        ["The peak is 378.71 MiB", "Alive there", "No order of this graph", "proved optimal"]
    {
        assert!(graph.contains(part), "{graph}");
    }
    shell.succeeds("compile @models/digits/digits_step.onnx --dim batch=32 -o m.arenic");
    let artifact = said("explain order m.arenic");
    for part in ["reached at `", "resident", "No order of this graph stays below"] {
        assert!(artifact.contains(part), "{artifact}");
    }
    shell.fails("explain order missing.json", 1, &["missing.json"]);
    std::fs::write(shell.path("junk"), "junk").unwrap();
    shell.fails("explain order junk", 1, &["not an arenic artifact"]);
}

#[test]
fn order_refuses_what_is_no_memory_graph() {
    let shell = Shell::new();
    let cases = [
        (MEMORY_GRAPH.replace("[2], ", "[2, 0], "), "node 0 waits for itself"),
        (MEMORY_GRAPH.replace("[2], ", "[9], "), "names node 9"),
        (MEMORY_GRAPH.replace("100", "-1"), "has -1 bytes"),
        (MEMORY_GRAPH.replace("100", "9000000000000000000"), "beyond 2^60 bytes"),
        (MEMORY_GRAPH.replace(r#"{"id": 3}"#, r#"{"id": 2}"#), "node 2 is there twice"),
        ("\u{1f}".into(), "no memory graph"),
    ];
    for (text, says) in cases {
        std::fs::write(shell.path("g.json"), text).unwrap();
        shell.fails("order g.json -o order.txt", 1, &["g.json", says]);
    }
    std::fs::write(shell.path("g.json.gz"), [0x1f, 0x8b, 8, 0, 1]).unwrap();
    shell.fails("order g.json.gz", 1, &["cannot be read"]);
    shell.fails("order missing.json", 1, &["missing.json"]);
    std::fs::write(shell.path("g.json"), MEMORY_GRAPH).unwrap();
    shell.fails("order g.json --time-limit -1", 2, &[]);
    assert!(!shell.path("order.txt").exists());
}

pub(super) const BUFFERS: &str = "size,upper,id,lower,note\n4,3,b1,0,x\n4,9,b2,3,\"y, z\"\n4,9,b3,0,\n\
                       4,21,b4,9,\n4,21,b5,0,\n";

/// The height of a placement that `arenic place` wrote, where no two buffers clash.
fn swept_height(path: &Path, columns: [&str; 4]) -> u64 {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader.headers().unwrap().clone();
    let at = columns.map(|name| header.iter().position(|h| h == name).unwrap());
    let row = |r: csv::StringRecord| at.map(|i| r[i].parse::<u64>().unwrap());
    let rows: Vec<[u64; 4]> = reader.records().map(|r| row(r.unwrap())).collect();
    let mut top = 0;
    for &[time, ..] in &rows {
        let live = rows.iter().filter(|[lower, upper, ..]| *lower <= time && time < *upper);
        let mut live: Vec<(u64, u64)> = live.map(|&[_, _, size, o]| (o, o + size)).collect();
        live.sort_unstable();
        assert!(live.windows(2).all(|w| w[0].1 <= w[1].0), "clash at {time}");
        top = top.max(live.last().map_or(0, |l| l.1));
    }
    top
}

#[test]
fn place_puts_bare_buffers_into_one_arena() {
    let shell = Shell::new();
    std::fs::write(shell.path("b.csv"), BUFFERS).unwrap();
    let columns = ["lower", "upper", "size", "offset"];
    let pipeline = "- place_pyramid\n- place_smartpool: {fit: first}\n";
    std::fs::write(shell.path("p.yaml"), pipeline).unwrap();
    for options in ["", "--capacity 12", "--time-limit 0", "--pipeline p.yaml"] {
        let row = &shell.succeeds(&format!("place b.csv -o o.csv --json {options}"))[0];
        assert_eq!(row["height"], 12);
        assert_eq!(row["lower_bound"], 12);
        assert_eq!(row["fragmentation"], 0.0);
        assert_eq!(row["proved_optimal"], true);
        assert!(row["seconds"].as_f64().unwrap() < 5.0);
        assert_eq!(swept_height(&shell.path("o.csv"), columns), 12);
        let written = std::fs::read_to_string(shell.path("o.csv")).unwrap();
        assert!(written.starts_with("size,upper,id,lower,note,offset\n4,3,b1,0,x,"), "{written}");
        assert!(written.contains("\n4,9,b2,3,\"y, z\","), "{written}");
    }
    let rounded = &shell.succeeds("place b.csv -o o.csv --json --alignment 64")[0];
    assert_eq!(rounded["height"], 192);
    // What was written is read again: its offsets are fixed now.
    assert_eq!(shell.succeeds("place o.csv -o again.csv --json")[0]["height"], 132);
    let read = |name: &str| std::fs::read(shell.path(name)).unwrap();
    assert_eq!(read("o.csv"), read("again.csv"));
}

#[test]
fn place_says_whether_a_capacity_can_be_met() {
    let shell = Shell::new();
    std::fs::write(shell.path("b.csv"), BUFFERS).unwrap();
    shell.fails("place b.csv --capacity 11 -o o.csv", 2, &["proved that nothing fits", "11"]);
    assert!(shell.path("o.csv").exists());
    // An instance of google/minimalloc (Apache-2.0), too hard for heuristics.
    let hard = "place @tests/fixtures/placement/A.1048576.csv --capacity 1048576 -o o.csv";
    shell.fails(&format!("{hard} --time-limit 0"), 3, &["undecided"]);
    shell.succeeds(hard);
    let height = swept_height(&shell.path("o.csv"), ["lower", "upper", "size", "offset"]);
    assert!(height <= 1_048_576);
}

#[test]
fn place_refuses_what_cannot_be_placed() {
    let shell = Shell::new();
    let head = "id,lower,upper,size,alignment,offset,gaps\n";
    let cases = [
        ("id,lower,upper\na,0,1\n".into(), "no column `size`"),
        ("id,lower,upper,size,id\n".into(), "two columns `id`"),
        (format!("{head}a,0,1,4,,,\na,0,1,4,,,\n"), "line 3: the id `a` is there twice"),
        (format!("{head}a,0,1,4,,,\nb,0,x,4,,,\n"), "line 3: `x` is no upper"),
        (format!("{head}a,0,1,-4,,,\n"), "line 2: `-4` is no size"),
        (format!("{head}a,0,1,99999999999999999999,,,\n"), "line 2"),
        (format!("{head}a,0,1,9223372036854775807,,,\n"), "beyond 2^60"),
        (format!("{head}a,0,1,4,0,,\n"), "line 2: `0` is no alignment"),
        (format!("{head}a,0,1,4,,,\nb,7,7,4,,,\n"), "line 3: buffer `b` has an empty lifetime"),
        (format!("{head}a,0,5,4,,0,\nb,4,6,4,,3,\n"), "`a` (line 2) and `b` are alive at once"),
        (format!("{head}a,0,5,4,4,2,\n"), "buffer `a` has a fixed offset"),
        (format!("{head}a,0,5,4,,,1-2-3\n"), "is no gaps"),
        (format!("{head}a,0,5,4,,,1-9\n"), "buffer `a` has a gap"),
        (format!("{head}a,0,5\n"), "cannot be read"),
    ];
    for (text, says) in cases {
        std::fs::write(shell.path("b.csv"), text).unwrap();
        shell.fails("place b.csv -o o.csv", 1, &["b.csv", says]);
    }
    assert!(!shell.path("o.csv").exists());
    shell.fails("place missing.csv", 1, &["missing.csv"]);
    std::fs::write(shell.path("b.csv"), BUFFERS).unwrap();
    std::fs::write(shell.path("order.yaml"), "- spans\n- order\n").unwrap();
    shell.fails("place b.csv --pipeline order.yaml", 1, &["no pass of the pipeline places"]);
    shell.fails("place b.csv --pipeline none.yaml", 1, &["none.yaml"]);
    shell.fails("place b.csv --alignment 0", 2, &[]);
    shell.fails("place b.csv --time-limit -1", 2, &[]);
    // Nothing to place is fine.
    std::fs::write(shell.path("b.csv"), format!("{head}a,0,1,0,,,\n")).unwrap();
    assert_eq!(shell.succeeds("place b.csv --json")[0]["height"], 0);
    std::fs::write(shell.path("b.csv"), head).unwrap();
    assert_eq!(shell.succeeds("place b.csv --capacity 0 --json")[0]["height"], 0);
}

#[test]
fn report_draws_artifacts_and_placements() {
    let shell = Shell::new();
    shell.compile_mlp();
    shell.succeeds("report mlp.arenic -o mlp.html");
    let page = std::fs::read_to_string(shell.path("mlp.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("ref_mlp_b4_sgdm.onnx"));
    std::fs::write(shell.path("b.csv"), BUFFERS).unwrap();
    shell.succeeds("place b.csv -o placed.csv");
    let said = shell.arenic("report placed.csv -o placed.html");
    assert!(text(&said.stderr).contains("5 tensors: placed.html"), "{}", text(&said.stderr));
    let page = std::fs::read_to_string(shell.path("placed.html")).unwrap();
    assert!(page.contains(r#""names":["b1","b2","b3","b4","b5"]"#), "{page}");
}

#[test]
fn report_refuses_what_it_cannot_draw_and_loses_nothing() {
    let shell = Shell::new();
    shell.compile_mlp();
    std::fs::write(shell.path("b.csv"), BUFFERS).unwrap();
    shell.fails("report b.csv -o b.html", 1, &["b.csv", "no column `offset`", "`arenic place`"]);
    let head = "id,lower,upper,size,offset\n";
    std::fs::write(shell.path("c.csv"), format!("{head}a,0,5,4,0\nb,4,6,4,3\n")).unwrap();
    shell.fails(
        "report c.csv -o b.html",
        1,
        &["line 3: buffers `a` (line 2) and `b` are alive at once"],
    );
    std::fs::write(shell.path("d.csv"), format!("{head}a,0,5,4,0\nb,4,6,4,\n")).unwrap();
    shell.fails("report d.csv -o b.html", 1, &["d.csv", "line 3: buffer `b` has no offset"]);
    std::fs::write(shell.path("junk"), "junk").unwrap();
    shell.fails("report junk -o b.html", 1, &["not an arenic artifact"]);
    shell.fails("report missing.csv -o b.html", 1, &["missing.csv"]);
    shell.fails("report mlp.arenic -o b.html --target gpu", 1, &["does not hold that target"]);
    shell.fails("report mlp.arenic", 2, &["--output"]);
    shell.fails("report mlp.arenic -o none/b.html", 1, &["none/b.html"]);
    assert!(!shell.path("b.html").exists());
    let before = std::fs::read(shell.path("mlp.arenic")).unwrap();
    shell.fails("report mlp.arenic -o ./mlp.arenic", 1, &["`./mlp.arenic` is what the report"]);
    assert!(before == std::fs::read(shell.path("mlp.arenic")).unwrap());
}
