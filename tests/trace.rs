//! `arenic trace`: figures of recordings, and what is refused.

use serde_json::Value;
use shell::{Shell, text};

mod shell;

const SNAPSHOT: &str = "trace @tests/fixtures/trace/snapshot.json";
const LOGGED: &str = "trace @tests/fixtures/trace/logged.csv";

fn number(row: &Value, pointer: &str) -> u64 {
    row.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer}: {row}"))
}

#[test]
fn a_snapshot_is_planned_beside_what_was_reserved() {
    let shell = Shell::new();
    let row = &shell.succeeds(&format!("{SNAPSHOT} -o o.csv --json"))[0];
    // The first step makes moments and frees no gradients.
    assert_eq!(number(row, "/iterations/count"), 5);
    assert_eq!(number(row, "/iterations/mallocs"), 23);
    assert_eq!(number(row, "/iterations/events"), 46);
    assert_eq!(row["iterations"]["equal_in"], "events");
    let weights = 4 * (700 * 1500 + 1500 * 900 + 900 * 2000 + 2000 * 10);
    let persistent = number(row, "/persistent_bytes");
    assert!(2 * weights <= persistent && persistent < 2 * weights + 8 * 512, "{persistent}");
    let (live, planned) = (number(row, "/live_peak_bytes"), number(row, "/planned_bytes"));
    assert_eq!(number(row, "/recorded/live_bytes"), live);
    assert_eq!(row["proved_optimal"], planned == live);
    let reserved = number(row, "/recorded/reserved_bytes");
    assert!(reserved > planned, "{row}");
    assert_eq!(number(row, "/saved_bytes"), reserved - planned);
    assert!(number(row, "/recorded_whole/reserved_bytes") >= reserved);
    assert_eq!(row["recorded"]["fragmentation"], reserved as f64 / live as f64 - 1.0);

    // `place` reads what was written, offsets and gaps, and finds no overlap.
    let again = &shell.succeeds("place o.csv -o again.csv --json")[0];
    assert_eq!(number(again, "/height"), planned);
    assert_eq!(number(again, "/lower_bound"), planned);
    let read = |name: &str| std::fs::read_to_string(shell.path(name)).unwrap();
    assert_eq!(read("o.csv"), read("again.csv"));
    assert!(read("o.csv").starts_with("id,lower,upper,size,alignment,gaps,offset\n"));
    assert_eq!(read("o.csv").lines().count(), 1 + 23 + 8);
}

#[test]
fn steps_that_log_are_recognised_by_their_large_blocks() {
    let shell = Shell::new();
    let row = &shell.succeeds(&format!("{LOGGED} --json --alignment 512"))[0];
    assert_eq!(row["iterations"]["equal_in"], "mallocs");
    assert!(number(row, "/iterations/least_bytes") > 40);
    assert_eq!(number(row, "/iterations/mallocs"), 22);
    assert!(number(row, "/iterations/count") >= 7);
    assert_eq!(number(row, "/unplanned_bytes"), 1024);
    assert!(number(row, "/recorded/reserved_bytes") > number(row, "/planned_bytes"));
    // Told in words as well.
    let said = text(&shell.arenic(LOGGED).stderr);
    for part in ["iterations of", "equal in mallocs of at least", "planned", "saved", "reserved"] {
        assert!(said.contains(part), "{said}");
    }
    let whole = &shell.succeeds(&format!("{LOGGED} --json --whole --effort 0 -o w.csv"))[0];
    assert!(whole["iterations"].is_null());
    assert_eq!(whole["recorded"], whole["recorded_whole"]);
    assert_eq!(number(whole, "/recorded/live_bytes"), number(whole, "/live_peak_bytes"));
    let placed = &shell.succeeds("place w.csv --json --effort 0")[0];
    assert_eq!(number(placed, "/height"), number(whole, "/planned_bytes"));
}

#[test]
fn what_is_not_known_of_the_recorded_allocator_is_not_made_up() {
    let shell = Shell::new();
    let step = "malloc,a,64,0x1000\nmalloc,b,32,0x2000\nfree,a,,\nfree,b,,\n".repeat(4);
    let text_of = |header: &str| format!("event,block,size,{header}\n{step}");
    std::fs::write(shell.path("t.csv"), text_of("note")).unwrap();
    let row = &shell.succeeds("trace t.csv --json")[0];
    assert!(row["recorded"]["reserved_bytes"].is_null() && row["saved_bytes"].is_null());
    assert_eq!(number(row, "/planned_bytes"), 96);
    assert!(text(&shell.arenic("trace t.csv").stderr).contains("`reserved`"));
    std::fs::write(shell.path("t.csv"), text_of("address")).unwrap();
    let row = &shell.succeeds("trace t.csv --json")[0];
    assert_eq!(number(row, "/recorded/address_span_bytes"), 0x1020);
    assert_eq!(number(row, "/saved_bytes"), 0x1020 - 96);
    // Coarse alignment may cost more than was recorded.
    let row = &shell.succeeds("trace t.csv --json --alignment 1048576")[0];
    assert!(row["saved_bytes"].as_i64().unwrap() < 0);
    let said = text(&shell.arenic("trace t.csv --alignment 1048576").stderr);
    assert!(said.contains("lost") && said.contains("more than recorded"), "{said}");
}

#[test]
fn trace_refuses_what_it_cannot_use() {
    let shell = Shell::new();
    let head = "event,block,size,address,reserved\n";
    let steady = "malloc,a,4,,\nfree,a,,,\n".repeat(5);
    let cases: Vec<(String, &str)> = vec![
        (String::new(), "has no events"),
        (head.into(), "has no events"),
        ("event,size\nmalloc,4\n".into(), "no column `block`"),
        ("event,block,size,size\n".into(), "two columns `size`"),
        (format!("{head}malloc,a,4\n"), "cannot be read"),
        (format!("{head}malloc,a,-4,,\n"), "line 2, column `size`: `-4` is not an integer"),
        (format!("{head}malloc,a,,,\n"), "line 2, column `size`"),
        (format!("{head}malloc,a,1152921504606846977,,\n"), "from 0 to 2^60"),
        (format!("{head}malloc,a,99999999999999999999,,\n"), "line 2, column `size`"),
        (
            format!("{head}malloc,a,1152921504606846976,,\nmalloc,b,1,,\n"),
            "more than 2^60 bytes alive at once, at event 1",
        ),
        (format!("{head}malloc,a,4,0xg,\n"), "line 2, column `address`: `0xg`"),
        (format!("{head}malloc,a,4,,lots\n"), "line 2, column `reserved`: `lots`"),
        (format!("{head}grow,a,4,,\n"), "line 2, column `event`: `grow` is not malloc"),
        (format!("{head}malloc,,4,,\n"), "line 2, column `block`"),
        (format!("{head}malloc,a,4,,\nmalloc,a,4,,\n"), "line 3, column `block`: `a` is allocated"),
        (format!("{head}{steady}free,a,,,\n"), "line 12, column `block`: `a` was freed in line 11"),
        (format!("{head}{steady}read,a,,,\n"), "`a` was freed in line 11"),
        (format!("{head}free,a,,,\n"), "line 2, column `block`: `a` was never allocated"),
        (format!("{head}malloc,a,4,,\nfree,a,,,\n"), "nothing repeats"),
        (r#"{"segments": [], "device_traces": [[{"action": "al"#.into(), "no memory snapshot"),
        (r#"{"segments": [], "device_traces": []}"#.into(), "_record_memory_history"),
    ];
    for (text, says) in cases {
        std::fs::write(shell.path("t"), text).unwrap();
        shell.fails("trace t -o o.csv", 1, &["t:", says]);
    }
    std::fs::write(shell.path("t"), [0x80, 4, b'}', b'.']).unwrap();
    shell.fails("trace t", 1, &["is a pickle", "json.dump(torch.cuda.memory._snapshot()"]);
    std::fs::write(shell.path("t"), [0xff, 0xfe, b'\n', 0xff]).unwrap();
    shell.fails("trace t", 1, &["t:"]);
    shell.fails("trace missing.csv", 1, &["missing.csv", "cannot be read"]);
    shell.fails("trace .", 1, &["cannot be read"]);
    shell.fails(&format!("{LOGGED} --device 0"), 1, &["leave out --device"]);
    shell.fails(&format!("{SNAPSHOT} --device 1"), 1, &["no history of device 1, only of: 0"]);
    shell.fails(&format!("{SNAPSHOT} --from 1000000"), 1, &["nothing repeats"]);
    shell.fails(&format!("{SNAPSHOT} --from 60 --to 50"), 1, &["nothing repeats"]);
    shell.fails(&format!("{SNAPSHOT} --from 3 --whole"), 2, &[]);
    shell.fails(&format!("{SNAPSHOT} --alignment 0"), 2, &[]);
    shell.fails(&format!("{SNAPSHOT} --pipeline none.yaml"), 1, &["none.yaml"]);
    shell.fails(&format!("{SNAPSHOT} -o missing/o.csv"), 1, &["missing/o.csv"]);
    assert!(!shell.path("o.csv").exists());
}
