//! Changes words, numbers and lines.

use super::{NUMBERS, bytes};
use arenic_programs::Random;

/// Pieces of the text: words, numbers with their sign and exponent, single other characters.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match is_word(first) {
            true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        pieces.push(&rest[..len]);
        rest = &rest[len..];
    }
    pieces
}

fn number(random: &mut Random, old: &str) -> String {
    let old = old.parse::<i64>().unwrap_or(1);
    let new = match random.below(6) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old.wrapping_mul(2),
        3 => old / 2,
        4 => old ^ 1 << random.below(63),
        _ => random.pick(&NUMBERS),
    };
    new.to_string()
}

/// Changes the text once.
pub(super) fn mutate(random: &mut Random, input: &[u8], other: &[u8]) -> Vec<u8> {
    let (Ok(text), Ok(other)) = (std::str::from_utf8(input), std::str::from_utf8(other)) else {
        return bytes(random, input, other);
    };
    if text.is_empty() {
        return other.into();
    }
    if random.chance(30) {
        return lines(random, text, other).into_bytes();
    }
    let all = pieces(text);
    let mut new: Vec<String> = all.iter().map(|&p| p.to_owned()).collect();
    let of = |random: &mut Random, f: &dyn Fn(&str) -> bool| {
        let fitting: Vec<usize> = (0..all.len()).filter(|&i| f(all[i])).collect();
        (!fitting.is_empty()).then(|| random.pick(&fitting))
    };
    let is_number = |p: &str| p.starts_with(|c: char| c.is_ascii_digit());
    let is_word = |p: &str| p.starts_with(char::is_alphanumeric);
    match random.below(8) {
        0..=3 => {
            if let Some(i) = of(random, &is_number) {
                new[i] = number(random, all[i]);
            }
        }
        4 => {
            // One word becomes another, of this text or the other.
            let words: Vec<&str> = match random.chance(50) {
                true => all.iter().copied().filter(|p| is_word(p)).collect(),
                false => pieces(other).into_iter().filter(|p| is_word(p)).collect(),
            };
            if let (Some(i), false) = (of(random, &is_word), words.is_empty()) {
                new[i] = random.pick(&words).to_owned();
            }
        }
        5 => {
            let i = random.below(all.len());
            new[i] = String::new();
        }
        6 => {
            let i = random.below(all.len());
            new[i] =
                random.pick(&["(", ")", "[", "]", "{", "}", ",", ":", "-", "\"", "\n", "é"]).into();
        }
        _ => {
            let i = random.below(all.len());
            let twice = new[i].clone();
            new[i] += &twice;
        }
    }
    new.concat().into_bytes()
}

/// Drops, repeats, moves or brings in lines.
fn lines(random: &mut Random, text: &str, other: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let at = random.below(lines.len());
    let others: Vec<&str> = other.lines().collect();
    match random.below(4) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[random.below(lines.len())]),
        2 => {
            let with = random.below(lines.len());
            lines.swap(at, with);
        }
        _ if !others.is_empty() => lines.insert(at, random.pick(&others)),
        _ => {}
    }
    lines.join("\n") + "\n"
}
