//! Runs a program's streams in a random interleaving, each command in small steps, for several
//! training steps over the same memory.
//!
//! Cells hold hashes. A kernel reads an operand that may be overwritten in place cell by
//! cell, just before it writes there; all others it reads twice, at its beginning and in
//! its midst, so that bytes that change under it show in the result.

use crate::{CELL, Random};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::program::{Command, EventId, Program, Range, Space, StreamId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

fn hash(x: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    x.hash(&mut hasher);
    hasher.finish()
}

/// Operands that a node's kernel reads cell by cell.
fn by_cell(g: &Graph, n: NodeId) -> Vec<bool> {
    let outputs = g.output_types(n).unwrap();
    let outputs: Vec<_> = outputs.iter().collect();
    let pairs = g.nodes[n].op.in_place_pairs(&g.input_types(n), &outputs);
    (0..g.nodes[n].inputs.len()).map(|k| pairs.iter().any(|&(i, _)| i == k)).collect()
}

/// What result cell `j` becomes: from the whole of most operands, and cell `j` of others.
fn kernel(n: NodeId, whole: u64, cells: &[u64], j: usize) -> u64 {
    hash((n.as_u32(), whole, cells, j))
}

/// What every value holds in a step, by definition.
pub type Values = HashMap<ValueId, Vec<u64>>;

/// What every value holds in each of some steps: a state enters a step as it left the last one.
/// Inputs are the same in all.
///
/// # Panics
/// The graph is malformed.
pub fn reference(g: &Graph, steps: usize) -> Vec<Values> {
    let mut all: Vec<Values> = Vec::new();
    for _ in 0..steps {
        let mut values: Values = HashMap::new();
        for (v, value) in &g.values {
            if matches!(value.def, Def::Input | Def::Const(_) | Def::State(_)) {
                let cells = value.ty.elements();
                values.insert(v, (0..cells).map(|j| hash(("root", v.as_u32(), j))).collect());
            }
        }
        if let Some(last) = all.last() {
            values.extend(g.states.values().map(|s| (s.enter, last[&s.exit].clone())));
        }
        compute(g, &mut values);
        all.push(values);
    }
    all
}

/// Adds to what roots hold as a step begins what all other values hold.
fn compute(g: &Graph, values: &mut Values) {
    let read = |values: &Values, v: ValueId| {
        let at = g.resolve(v);
        let first = (at.offset / CELL) as usize;
        values[&at.root][first..first + g.ty(v).elements()].to_vec()
    };
    for (n, node) in &g.nodes {
        let by_cell = by_cell(g, n);
        let operands: Vec<Vec<u64>> = node.inputs.iter().map(|&v| read(values, v)).collect();
        let whole: Vec<&Vec<u64>> =
            operands.iter().zip(&by_cell).filter(|(_, c)| !**c).map(|(o, _)| o).collect();
        let whole = hash(whole);
        for &v in node.outputs.iter().flatten() {
            let cells = (0..g.ty(v).elements()).map(|j| {
                let cells: Vec<u64> =
                    operands.iter().zip(&by_cell).filter(|(_, c)| **c).map(|(o, _)| o[j]).collect();
                kernel(n, whole, &cells, j)
            });
            values.insert(v, cells.collect());
        }
    }
    for v in g.values.keys() {
        if !values.contains_key(&v) {
            values.insert(v, read(values, v));
        }
    }
}

struct Memory<'a> {
    cells: HashMap<(Space, u64), u64>,
    random: &'a mut Random,
}

impl Memory<'_> {
    fn get(&mut self, range: &Range, j: usize) -> u64 {
        let key = (range.space, range.offset + j as u64 * CELL);
        // What was never written is garbage, different at every look.
        self.cells.get(&key).copied().unwrap_or_else(|| self.random.word())
    }

    fn all(&mut self, range: &Range) -> Vec<u64> {
        (0..(range.len / CELL) as usize).map(|j| self.get(range, j)).collect()
    }

    fn set(&mut self, range: &Range, j: usize, value: u64) {
        self.cells.insert((range.space, range.offset + j as u64 * CELL), value);
    }
}

/// A command under way: how far it is, and what it has read.
struct Running {
    at: usize,
    whole: u64,
    torn: bool,
}

/// Runs the program for as many steps as are expected, each in an order that its streams and
/// events allow, chosen at random. Inputs are fed before the first step, and again where the
/// program writes into their homes. True where homes and outputs end every step with what they
/// should hold.
///
/// # Panics
/// A home is of a value that the graph does not have.
pub fn run(random: &mut Random, g: &Graph, p: &Program, expected: &[Values]) -> bool {
    let streams = issued(p);
    let mut seeds = Random::new(random.word());
    let mut memory = Memory { cells: HashMap::new(), random };
    for (step, values) in expected.iter().enumerate() {
        for home in &p.homes {
            let is_input = matches!(g.values[home.value].def, Def::Input);
            if step == 0 || is_input && is_written(p, &home.range) {
                let value = &values[&home.value];
                (0..value.len()).for_each(|j| memory.set(&home.range, j, value[j]));
            }
        }
        if !run_step(g, &streams, &mut seeds, &mut memory) || !holds(g, p, values, &mut memory) {
            return false;
        }
    }
    true
}

/// True where a command writes into the range.
fn is_written(p: &Program, range: &Range) -> bool {
    p.commands.iter().any(|command| match command {
        Command::Run { writes, scratch, .. } => {
            writes.iter().flatten().chain(scratch).any(|w| w.overlaps(range))
        }
        Command::Copy { to, .. } => to.overlaps(range),
        Command::Record { .. } | Command::Wait { .. } => false,
    })
}

/// The commands of each stream in issue order.
fn issued(p: &Program) -> Vec<Vec<&Command>> {
    let mut issued: BTreeMap<StreamId, Vec<&Command>> = BTreeMap::new();
    let mut recorded: HashSet<EventId> = HashSet::new();
    for command in &p.commands {
        match command {
            // Waiting for an event that was never recorded returns at once (CUDA).
            Command::Wait { event, .. } if !recorded.contains(event) => continue,
            Command::Record { event, .. } => {
                recorded.insert(*event);
            }
            _ => {}
        }
        issued.entry(command.stream()).or_default().push(command);
    }
    issued.into_values().collect()
}

/// Runs one step; true where every stream comes to its end.
fn run_step(g: &Graph, streams: &[Vec<&Command>], seeds: &mut Random, memory: &mut Memory) -> bool {
    let mut next = vec![0usize; streams.len()];
    let mut running: Vec<Option<Running>> = streams.iter().map(|_| None).collect();
    let mut fired: HashSet<EventId> = HashSet::new();
    let bias: Vec<u64> = streams.iter().map(|_| 1 + seeds.word() % 50).collect();
    loop {
        let able: Vec<usize> = (0..streams.len())
            .filter(|&s| match streams[s].get(next[s]) {
                None => false,
                Some(Command::Wait { event, .. }) => fired.contains(event),
                Some(_) => true,
            })
            .collect();
        if able.is_empty() {
            break;
        }
        let total: u64 = able.iter().map(|&s| bias[s]).sum();
        let mut ticket = seeds.word() % total;
        let mut s = able[0];
        for &candidate in &able {
            s = candidate;
            if ticket < bias[candidate] {
                break;
            }
            ticket -= bias[candidate];
        }
        if advance(g, streams[s][next[s]], &mut running[s], memory, &mut fired) {
            next[s] += 1;
            running[s] = None;
        }
    }
    (0..streams.len()).all(|s| next[s] == streams[s].len())
}

/// True where homes and outputs hold what they should as a step ends.
fn holds(g: &Graph, p: &Program, values: &Values, memory: &mut Memory) -> bool {
    let mut holds = |range: &Range, v: ValueId| memory.all(range) == values[&v];
    g.states.values().all(|state| {
        let home = p.homes.iter().find(|h| h.value == state.enter);
        home.is_some_and(|h| holds(&h.range, state.exit))
    }) && p
        .homes
        .iter()
        .filter(|h| matches!(g.values[h.value].def, Def::Const(_)))
        .all(|h| holds(&h.range, h.value))
        && g.outputs.iter().zip(&p.outputs).all(|(o, range)| holds(range, o.value))
}

/// One small step of a command; true when it is done.
fn advance(
    g: &Graph,
    command: &Command,
    running: &mut Option<Running>,
    memory: &mut Memory,
    fired: &mut HashSet<EventId>,
) -> bool {
    match command {
        Command::Record { event, .. } => {
            fired.insert(*event);
            true
        }
        Command::Wait { .. } => true,
        Command::Copy { from, to, .. } => {
            let state = running.get_or_insert(Running { at: 0, whole: 0, torn: false });
            let cells = (from.len / CELL) as usize;
            if state.at < cells {
                let value = memory.get(from, state.at);
                memory.set(to, state.at, value);
                state.at += 1;
            }
            state.at >= cells
        }
        Command::Run { node, reads, writes, .. } => {
            let by_cell = by_cell(g, *node);
            let look = |memory: &mut Memory| {
                let whole: Vec<Vec<u64>> = reads
                    .iter()
                    .zip(&by_cell)
                    .filter(|(_, c)| !**c)
                    .map(|(r, _)| memory.all(r))
                    .collect();
                hash(whole)
            };
            let cells = writes.iter().flatten().map(|w| (w.len / CELL) as usize).max().unwrap_or(0);
            let Some(state) = running else {
                *running = Some(Running { at: 0, whole: look(memory), torn: false });
                return cells == 0;
            };
            if state.at == cells.div_ceil(2) {
                state.torn |= look(memory) != state.whole;
            }
            let j = state.at;
            let operands: Vec<u64> = reads
                .iter()
                .zip(&by_cell)
                .filter(|(_, c)| **c)
                .map(|(r, _)| memory.get(r, j))
                .collect();
            let value = kernel(*node, state.whole, &operands, j);
            let value = if state.torn { hash(("torn", value)) } else { value };
            for w in writes.iter().flatten().filter(|w| j < (w.len / CELL) as usize) {
                memory.set(w, j, value);
            }
            state.at += 1;
            state.at >= cells
        }
    }
}
