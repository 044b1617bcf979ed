//! Windows: a run of consecutive operators of an order as a problem of its own.
//!
//! What ran before and what runs after stays as it is, so tensors that cross the window are
//! alive throughout it, those from before that die in it are inputs, and those that leave it
//! are pinned. The window's peak under an order of its own is the whole order's there.

use super::problem::{Invalid, Kind, Problem, Tensor};
use std::collections::HashMap;
use std::ops::Range;

/// The window's problem. Operator i is `order[range.start + i]`, so that the identity is the
/// order as it stands.
///
/// # Errors
/// Sizes or dependences that no problem has.
pub fn window(p: &Problem, order: &[usize], range: &Range<usize>) -> Result<Problem, Invalid> {
    let mut position = vec![0; p.len()];
    order.iter().enumerate().for_each(|(i, &v)| position[v] = i);
    let local = |v: usize| range.contains(&position[v]).then(|| position[v] - range.start);
    let mut throughout = p.resident;
    let mut index: HashMap<usize, usize> = HashMap::new();
    let mut tensors = Vec::new();
    for (t, tensor) in p.tensors.iter().enumerate().filter(|(_, tensor)| tensor.bytes > 0) {
        let made = tensor.producer.map(|w| position[w]);
        let starts = match (tensor.kind, made) {
            (Kind::Resident, _) | (Kind::Transient | Kind::Pinned, None) => continue,
            (_, made) => made.unwrap_or(0),
        };
        let last = tensor.readers.iter().map(|&r| position[r]).max();
        let ends = match (tensor.kind, last) {
            (Kind::Pinned, _) => order.len(),
            (Kind::Input, None) => continue,
            (_, last) => last.unwrap_or(starts),
        };
        let inside = made.is_some_and(|m| range.contains(&m));
        if ends < range.start || starts >= range.end {
            continue;
        }
        let kind = match (inside, ends >= range.end) {
            (false, true) => {
                throughout += tensor.bytes;
                continue;
            }
            (false, false) => Kind::Input,
            (true, true) => Kind::Pinned,
            (true, false) => Kind::Transient,
        };
        let producer = if inside { tensor.producer.and_then(local) } else { None };
        let readers = tensor.readers.iter().filter_map(|&r| local(r)).collect();
        index.insert(t, tensors.len());
        tensors.push(Tensor { bytes: tensor.bytes, producer, readers, kind });
    }
    tensors.push(Tensor {
        bytes: throughout,
        producer: None,
        readers: Vec::new(),
        kind: Kind::Resident,
    });
    let mut dependences = Vec::new();
    let mut pairs = Vec::new();
    for (i, &v) in order[range.clone()].iter().enumerate() {
        dependences.extend(p.after[v].iter().filter_map(|&w| Some((i, local(w)?))));
        let both = |&(x, y): &(usize, usize)| Some((i, *index.get(&x)?, *index.get(&y)?));
        pairs.extend(p.pairs[v].iter().filter_map(both));
    }
    Problem::new(range.len(), tensors, &dependences, &pairs)
}
