//! Damaged texts: an error or a module, never a panic, a hang or a huge allocation.

use arenic_ir::check::check;
use arenic_ir::text::Module;
use arenic_ir::verify::verify;

const TEXT: &str = include_str!("hostile.ir");

/// SplitMix64.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

fn judge(text: &str) -> &'static str {
    let Ok(module) = Module::parse(text, &arenic_backends::ALL) else { return "no module" };
    let printed = module.to_string();
    assert_eq!(Module::parse(&printed, &arenic_backends::ALL).map(|m| m.to_string()), Ok(printed));
    if verify(&module.graph).is_err() {
        return "no graph";
    }
    match &module.program {
        Some(program) if check(&module.graph, program).is_ok() => "accepted",
        _ => "refused",
    }
}

#[test]
fn damaged_texts() {
    assert_eq!(judge(TEXT), "accepted");
    let tokens = [
        "v0",
        "v3",
        "n1",
        "b2",
        "t1",
        "slot0",
        "s0",
        "stream1",
        "0",
        "1",
        "64",
        "-1",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "18446744073709551615",
        "281474976710656",
        "268435455",
        "_",
        "...",
        ",",
        "+",
        "view",
        "plan",
        "program",
        "\"",
        "device",
        "host",
        "f32[0]",
        "i64[9,9]",
    ];
    let mut state = 1;
    let mut kinds = std::collections::BTreeMap::new();
    let (start, end) = (TEXT.find("plan {").unwrap(), TEXT.find("program {").unwrap());
    let unplanned = format!("{}{}", &TEXT[..start], &TEXT[end..]);
    for i in 0..20_000 {
        let mut text = if i % 4 == 0 { TEXT.to_owned() } else { unplanned.clone() };
        for _ in 0..1 + next(&mut state) % 3 {
            let words: Vec<(usize, &str)> = text
                .split_inclusive(|c: char| !c.is_ascii_alphanumeric())
                .scan(0, |at, w| {
                    *at += w.len();
                    Some((*at - w.len(), w))
                })
                .collect();
            let (at, word) = words[next(&mut state) % words.len()];
            let end = at + word.len();
            match next(&mut state) % 4 {
                0 => text.replace_range(at..end, tokens[next(&mut state) % tokens.len()]),
                1 => text.replace_range(at..end, ""),
                2 => text.truncate(at),
                _ => {
                    let (_, other) = words[next(&mut state) % words.len()];
                    let other = other.to_owned();
                    text.replace_range(at..end, &other);
                }
            }
            if text.is_empty() {
                break;
            }
        }
        *kinds.entry(judge(&text)).or_insert(0) += 1;
    }
    // All four ends are reached.
    assert_eq!(kinds.len(), 4, "{kinds:?}");
}

#[test]
fn an_absurd_id_allocates_nothing() {
    let text = "graph \"\" { input v268435454: f32[] \"x\" }";
    assert!(
        Module::parse(text, &arenic_backends::ALL).unwrap_err().message.contains("expected an id")
    );
}
