//! Bare memory graphs in JSON (`.json` or `.json.gz`): operators, and tensors with their
//! sizes, producer, consumers and kind. Whoever's graph is not ONNX can have it ordered.

use arenic_passes::order::{Invalid, Kind, Problem, Tensor};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Why a file holds no memory graph.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct InstanceError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: Reason,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The file cannot be read or unpacked.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Not JSON, or not of the expected shape.
    #[error("is no memory graph: {0}")]
    Json(#[from] serde_json::Error),
    /// Two nodes have the same id.
    #[error("node {0} is there twice")]
    TwiceNode(i64),
    /// Two tensors have the same id.
    #[error("tensor {0} is there twice")]
    TwiceTensor(i64),
    /// A tensor names a node that is not there.
    #[error("tensor {0} names node {1}, which is not there")]
    Unknown(i64, i64),
    /// A size below zero.
    #[error("tensor {0} has {1} bytes; sizes are not negative")]
    Negative(i64, i64),
    /// A tensor that nobody makes, or an input that somebody makes.
    #[error("tensor {0}: {1}")]
    Producer(i64, &'static str),
    /// The nodes wait for each other.
    #[error("node {0} waits for itself: the graph has a cycle")]
    Cycle(i64),
    /// The sizes add up to more than any memory.
    #[error("the tensors together are beyond 2^60 bytes")]
    TooLarge,
}

/// A memory graph.
pub struct Instance {
    /// The ids of the operators, in definition order.
    pub ids: Vec<i64>,
    /// Operators and tensors by index.
    pub problem: Problem,
}

#[derive(Deserialize)]
struct File {
    nodes: Vec<Node>,
    tensors: Vec<Row>,
}

#[derive(Deserialize)]
struct Node {
    id: i64,
}

#[derive(Deserialize)]
struct Row {
    id: i64,
    bytes: i64,
    producer: Option<i64>,
    consumers: Vec<i64>,
    kind: Name,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    Weight,
    State,
    Input,
    Activation,
    Gradient,
    Output,
    Control,
}

/// Reads a memory graph; gzip is recognised by its first bytes.
///
/// # Errors
/// See [`InstanceError`].
pub fn read(path: &Path) -> Result<Instance, InstanceError> {
    let instance = unpack(path).and_then(|bytes| parse(&bytes));
    instance.map_err(|reason| InstanceError { path: path.to_owned(), reason })
}

/// No memory graph is larger; a packed file might pretend to be.
const MAX_BYTES: u64 = 1 << 32;

fn unpack(path: &Path) -> Result<Vec<u8>, Reason> {
    let packed = std::fs::read(path)?;
    if !packed.starts_with(&[0x1f, 0x8b]) {
        return Ok(packed);
    }
    let mut bytes = Vec::new();
    flate2::read::MultiGzDecoder::new(&packed[..]).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Instance, Reason> {
    let file: File = serde_json::from_slice(bytes)?;
    // Definition order is the order of ids, as they stand in the file or not.
    let mut ids: Vec<i64> = file.nodes.iter().map(|n| n.id).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Reason::TwiceNode(pair[0]));
    }
    let index: HashMap<i64, usize> = ids.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let mut names: Vec<i64> = file.tensors.iter().map(|t| t.id).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Reason::TwiceTensor(pair[0]));
    }
    let tensors = file.tensors.iter().map(|row| tensor(row, &index)).collect::<Result<_, _>>()?;
    let problem = Problem::new(ids.len(), tensors, &[], &[]).map_err(|e| match e {
        Invalid::Cycle(v) => Reason::Cycle(ids[v]),
        Invalid::TooLarge => Reason::TooLarge,
    })?;
    Ok(Instance { ids, problem })
}

fn tensor(row: &Row, index: &HashMap<i64, usize>) -> Result<Tensor, Reason> {
    let known = |id: i64| index.get(&id).copied().ok_or(Reason::Unknown(row.id, id));
    let bytes = u64::try_from(row.bytes).map_err(|_| Reason::Negative(row.id, row.bytes))?;
    let producer = match row.producer {
        None | Some(-1) => None,
        Some(id) => Some(known(id)?),
    };
    let kind = match (row.kind, producer) {
        (Name::Weight | Name::State, _) => Kind::Resident,
        (Name::Input, None) => Kind::Input,
        (Name::Input, Some(_)) => {
            return Err(Reason::Producer(row.id, "an input has no producer"));
        }
        (Name::Output, _) => Kind::Pinned,
        (Name::Activation | Name::Gradient | Name::Control, Some(_)) => Kind::Transient,
        (Name::Activation | Name::Gradient | Name::Control, None) => {
            return Err(Reason::Producer(
                row.id,
                "only weights, states and inputs, which are \
                                                 there from the start, have no producer",
            ));
        }
    };
    let readers = row.consumers.iter().map(|&c| known(c)).collect::<Result<_, _>>()?;
    Ok(Tensor { bytes, producer, readers, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(nodes: &str, tensors: &str) -> String {
        let text = format!(r#"{{"nodes": [{nodes}], "tensors": [{tensors}]}}"#);
        parse(text.as_bytes()).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn bad_instances_are_refused_in_clear_words() {
        let (a, b) = (r#"{"id": 0}"#, r#"{"id": 7}"#);
        let row = |bytes: &str, producer: i64, consumers: &str, kind: &str| {
            format!(
                r#"{{"id": 3, "bytes": {bytes}, "producer": {producer},
                    "consumers": [{consumers}], "kind": "{kind}"}}"#
            )
        };
        let two = format!("{a}, {b}");
        let t = row("4", 0, "7", "activation");
        let back = t.replace(r#""producer": 0"#, r#""producer": 7"#).replace("[7]", "[0]");
        let cycle = format!("{t}, {}", back.replace(r#""id": 3"#, r#""id": 4"#));
        let cases = [
            (format!("{a}, {a}"), String::new(), "node 0 is there twice"),
            (two.clone(), format!("{t}, {t}"), "tensor 3 is there twice"),
            (two.clone(), row("4", 0, "8", "gradient"), "tensor 3 names node 8"),
            (two.clone(), row("-4", 0, "7", "gradient"), "tensor 3 has -4 bytes"),
            (two.clone(), row("4.5", 0, "7", "gradient"), "floating point"),
            (two.clone(), row("4", 0, "7", "thing"), "unknown variant `thing`"),
            (two.clone(), row("4", -1, "7", "gradient"), "have no producer"),
            (two.clone(), row("4", 0, "7", "input"), "an input has no producer"),
            (two.clone(), row("4", 7, "7", "gradient"), "node 7 waits for itself"),
            (two.clone(), cycle, "waits for itself"),
            (two, row("9223372036854775807", 0, "7", "weight"), "beyond 2^60 bytes"),
        ];
        for (nodes, tensors, says) in cases {
            let said = refused(&nodes, &tensors);
            assert!(said.contains(says), "{said}");
        }
    }
}
