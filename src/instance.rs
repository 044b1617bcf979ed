//! Bare memory graphs in JSON (`.json` or `.json.gz`): operators, and tensors with their
//! sizes, producer, consumers and kind. Whoever's graph is not ONNX can have it planned: it becomes a graph of
//! `opaque` operators, so that every pass over plans works on it.

use arenic_ir::types::MAX_TENSOR_BYTES;
use arenic_ir::{DType, Graph, Op, Output, TensorType, ValueId};
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
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
    /// The ids of the operators: node i of the graph has the i-th.
    pub ids: Vec<i64>,
    /// Opaque operators in definition order, as far as dependences allow it.
    pub graph: Graph,
}

#[derive(Deserialize)]
struct File {
    nodes: Vec<Node>,
    tensors: Vec<Row>,
}

#[derive(Deserialize)]
struct Node {
    id: i64,
    #[serde(default)]
    name: String,
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
    let mut file: File = serde_json::from_slice(bytes)?;
    file.nodes.sort_by_key(|n| n.id);
    if let Some(pair) = file.nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(Reason::TwiceNode(pair[0].id));
    }
    let mut names: Vec<i64> = file.tensors.iter().map(|t| t.id).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Reason::TwiceTensor(pair[0]));
    }
    let index: HashMap<i64, usize> =
        file.nodes.iter().enumerate().map(|(i, n)| (n.id, i)).collect();
    let tensors: Vec<Tensor> =
        file.tensors.iter().map(|row| tensor(row, &index)).collect::<Result<_, _>>()?;
    if tensors.iter().map(|t| u128::from(t.bytes)).sum::<u128>() > 1 << 60 {
        return Err(Reason::TooLarge);
    }
    let order = definition_order(file.nodes.len(), &tensors)
        .map_err(|v| Reason::Cycle(file.nodes[v].id))?;
    let ids = order.iter().map(|&v| file.nodes[v].id).collect();
    Ok(Instance { ids, graph: graph(&file.nodes, &tensors, &order)? })
}

/// A tensor with its operators by index.
struct Tensor {
    id: i64,
    bytes: u64,
    /// Alive throughout the step.
    resident: bool,
    /// Alive to the end of the step.
    output: bool,
    producer: Option<usize>,
    consumers: Vec<usize>,
}

fn tensor(row: &Row, index: &HashMap<i64, usize>) -> Result<Tensor, Reason> {
    let known = |id: i64| index.get(&id).copied().ok_or(Reason::Unknown(row.id, id));
    let bytes = u64::try_from(row.bytes).map_err(|_| Reason::Negative(row.id, row.bytes))?;
    let producer = row.producer.filter(|&w| w != -1).map(known).transpose()?;
    let mut consumers: Vec<usize> =
        row.consumers.iter().map(|&c| known(c)).collect::<Result<_, _>>()?;
    consumers.sort_unstable();
    consumers.dedup();
    match (row.kind, producer) {
        (Name::Input, Some(_)) => {
            return Err(Reason::Producer(row.id, "an input has no producer"));
        }
        (Name::Activation | Name::Gradient | Name::Control, None) => {
            return Err(Reason::Producer(
                row.id,
                "only weights, states and inputs, which are \
                 there from the start, have no producer",
            ));
        }
        _ => {}
    }
    let output = matches!(row.kind, Name::Output);
    // What is there from the start and never freed is resident, whatever its kind.
    let stays = producer.is_none() && (output || consumers.is_empty());
    let resident = matches!(row.kind, Name::Weight | Name::State) || stays;
    Ok(Tensor { id: row.id, bytes, resident, output, producer, consumers })
}

/// The operators by index, each after those that it depends on; an operator that waits for
/// itself where there is no such order.
fn definition_order(operators: usize, tensors: &[Tensor]) -> Result<Vec<usize>, usize> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); operators];
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); operators];
    for t in tensors {
        for (w, &r) in t.producer.iter().flat_map(|w| t.consumers.iter().map(move |r| (*w, r))) {
            after[w].push(r);
            before[r].push(w);
        }
    }
    let mut blocked: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..operators).filter(|&v| blocked[v] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(operators);
    while let Some(Reverse(v)) = ready.pop() {
        order.push(v);
        for &next in &after[v] {
            blocked[next] -= 1;
            if blocked[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    // Walking back among what never got ready ends in a cycle.
    let Some(mut v) = (0..operators).find(|&v| blocked[v] > 0) else { return Ok(order) };
    for _ in 0..operators {
        v = before[v].iter().copied().find(|&b| blocked[b] > 0).unwrap_or(v);
    }
    Err(v)
}

/// Resident tensors become states, operators opaque nodes. A resident tensor that an operator
/// writes has its bytes all along; what its readers wait for is a result without bytes.
fn graph(nodes: &[Node], tensors: &[Tensor], order: &[usize]) -> Result<Graph, Reason> {
    let mut g = Graph::default();
    let ty = |bytes: u64| TensorType::new(DType::U8, [bytes as usize]);
    let mut value: Vec<Option<ValueId>> = vec![None; tensors.len()];
    let mut reads: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut writes: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (i, t) in tensors.iter().enumerate() {
        if t.bytes > MAX_TENSOR_BYTES {
            return Err(Reason::TooLarge);
        }
        if t.resident {
            let state = g.add_state(format!("t{}", t.id), ty(t.bytes), None);
            value[i] = Some(g.states[state].enter);
        } else if t.producer.is_none() {
            value[i] = Some(g.add_input(format!("t{}", t.id), ty(t.bytes)));
        }
        t.consumers.iter().for_each(|&r| reads[r].push(i));
        t.producer.into_iter().for_each(|w| writes[w].push(i));
    }
    for &v in order {
        let inputs: Vec<ValueId> = reads[v].iter().filter_map(|&i| value[i]).collect();
        let bytes = |&i: &usize| if tensors[i].resident { 0 } else { tensors[i].bytes as usize };
        let op = Op::Opaque { results: writes[v].iter().map(bytes).collect() };
        let name = match nodes[v].name.as_str() {
            "" => nodes[v].id.to_string(),
            name => name.to_owned(),
        };
        // Opaque operands are never refused.
        let Ok(node) = g.add_node(name, op, inputs) else { return Err(Reason::TooLarge) };
        for (k, &i) in writes[v].iter().enumerate() {
            let Some(result) = g.nodes[node].outputs[k] else { continue };
            g.values[result].name = format!("t{}", tensors[i].id);
            value[i] = Some(result);
            if tensors[i].output && !tensors[i].resident {
                let name = g.values[result].name.clone();
                g.outputs.push(Output { name, value: result });
            }
        }
    }
    Ok(g)
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
