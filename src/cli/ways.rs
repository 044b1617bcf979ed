//! Which way products, convolutions and attentions go on a GPU, told before the first step.

use super::print;
use arenic_runtime::ways::{Refused, Way};
use serde_json::{Value, json};

/// What is told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// How many there are that no library computes because it is missing or fails.
    Missing,
    /// All of them, on stderr.
    Table,
    /// All of them, as a JSON line on stdout.
    Json,
}

impl Telling {
    /// The function that tells it.
    pub(super) fn with(self) -> fn(&[Way]) {
        match self {
            Telling::Missing => tell_missing,
            Telling::Table => tell_table,
            Telling::Json => print_json,
        }
    }
}

fn tell_missing(ways: &[Way]) {
    if let Some(line) = missing(ways) {
        tell!("{line}");
    }
}

/// One line, where libraries are missing or fail; `None` where every call has its library.
fn missing(ways: &[Way]) -> Option<String> {
    let is_library = |r: &&Refused| ["cuBLASLt", "cuDNN"].contains(&&*r.way);
    let mut said: Vec<String> = Vec::new();
    let mut runs = 0;
    for way in ways.iter().filter(|way| !way.by_library) {
        let Some(refused) = way.refused.iter().find(is_library) else { continue };
        runs += way.runs;
        let why = format!("{}: {}", refused.way, refused.why);
        if !said.contains(&why) {
            said.push(why);
        }
    }
    (runs > 0).then(|| {
        let said = said.join("; ");
        format!("note: {runs} products and convolutions of a step go by no library ({said}); --verbose lists them")
    })
}

fn tell_table(ways: &[Way]) {
    table(ways).iter().for_each(|line| tell!("{line}"));
}

/// A line for each way, and one for each that is not taken.
fn table(ways: &[Way]) -> Vec<String> {
    let mut lines = Vec::new();
    for way in ways {
        let Way { op, operands, runs, taken, seconds, refused, .. } = way;
        let time = seconds.map_or(String::new(), |s| format!(", {:.3} ms each", s * 1e3));
        lines.push(format!("{runs:>4} × {op} ({}): {taken}{time}", operands.join(", ")));
        let not = |Refused { way, why }: &Refused| format!("       not {way}: {why}");
        lines.extend(refused.iter().map(not));
    }
    lines
}

fn print_json(ways: &[Way]) {
    if !ways.is_empty() {
        // A reader that has gone is told when a step is printed.
        let _ = print(as_json(ways));
    }
}

fn as_json(ways: &[Way]) -> Value {
    let refused = |r: &Refused| json!({"way": r.way, "why": r.why});
    let way = |w: &Way| {
        json!({
            "op": w.op,
            "operands": w.operands,
            "runs": w.runs,
            "taken": w.taken,
            "by_library": w.by_library,
            "seconds": w.seconds,
            "refused": w.refused.iter().map(refused).collect::<Vec<_>>(),
        })
    };
    json!({"ways": ways.iter().map(way).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(taken: &str, by_library: bool, refused: &[[&str; 2]]) -> Way {
        let of = |&[way, why]: &[&str; 2]| Refused { way: way.into(), why: why.into() };
        Way {
            op: "conv".into(),
            operands: vec!["f32[1,2]".into()],
            runs: 3,
            taken: taken.into(),
            by_library,
            seconds: by_library.then_some(1.5e-3),
            refused: refused.iter().map(of).collect(),
        }
    }

    #[test]
    fn a_missing_library_is_told_whoever_asks() {
        let absent = [["cuDNN", "there is no cuDNN here"]];
        let ways = [
            way("kernels", false, &absent),
            way("kernels", false, &absent),
            way("kernels", false, &[["a library", "too small"]]),
            way("cuBLASLt 7", true, &[["cuBLASLt 6", "not supported"]]),
        ];
        let told = missing(&ways).unwrap();
        assert!(told.contains("6 products") && told.contains("no cuDNN here"), "{told}");
        assert_eq!(missing(&ways[2..]), None);
        let lines = table(&ways[3..]);
        assert_eq!(lines[0], "   3 × conv (f32[1,2]): cuBLASLt 7, 1.500 ms each");
        assert_eq!(lines[1], "       not cuBLASLt 6: not supported");
        let json = as_json(&ways);
        assert_eq!(json["ways"][0]["refused"][0]["why"], "there is no cuDNN here");
        assert_eq!(json["ways"][3]["by_library"], true);
    }
}
