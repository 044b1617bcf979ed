//! Changes to inputs that keep them close to what a reader takes.

mod onnx;
mod text;

use arenic_programs::Random;

/// What the inputs of a target are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A binary file.
    Bytes,
    /// Words, numbers and lines.
    Text,
    /// An ONNX model.
    Onnx,
    /// Choices of a generator, one byte each.
    Choices,
}

/// Changes an input a few times; `other` is another input of the corpus, for parts of it.
pub fn mutate(random: &mut Random, form: Form, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut input = input.to_vec();
    for _ in 0..1 + random.below(3) {
        let plainly = random.chance(8);
        input = match form {
            Form::Text if !plainly => text::mutate(random, &input, other),
            Form::Onnx if !plainly => match onnx::mutate(random, &input, other) {
                Some(model) => model,
                None => bytes(random, &input, other),
            },
            _ => bytes(random, &input, other),
        };
    }
    input
}

/// Numbers at which readers go wrong.
const NUMBERS: [i64; 16] = [
    0,
    1,
    -1,
    2,
    7,
    64,
    127,
    128,
    255,
    65_536,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 60,
    i64::MAX,
    i64::MIN,
];

/// Changes bytes, wherever they are.
fn bytes(random: &mut Random, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut input = input.to_vec();
    if input.is_empty() {
        input.push(random.word() as u8);
    }
    let at = random.below(input.len());
    let len = 1 + random.below((input.len() - at).min(32));
    match random.below(8) {
        0 => input[at] ^= 1 << random.below(8),
        1 => input[at] = random.word() as u8,
        2 => input[at] = input[at].wrapping_add(random.below(9) as u8).wrapping_sub(4),
        3 => drop(input.drain(at..at + len)),
        4 => {
            let part = input[at..at + len].to_vec();
            let to = random.below(input.len() + 1);
            drop(input.splice(to..to, part));
        }
        5 => {
            // A number of 1, 2, 4 or 8 bytes.
            let number = random.pick(&NUMBERS).to_le_bytes();
            let width = (1 << random.below(4)).min(input.len() - at);
            input[at..at + width].copy_from_slice(&number[..width]);
        }
        6 if !other.is_empty() => {
            let from = random.below(other.len());
            let part = &other[from..from + 1 + random.below((other.len() - from).min(64))];
            drop(input.splice(at..at + len, part.iter().copied()));
        }
        _ => input.truncate(at),
    }
    input
}
