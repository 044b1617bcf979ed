//! Random graphs, random legal plans of several streams with swaps and recomputation,
//! changes to their programs, and an interpreter that runs a program's streams in random
//! interleavings, for several steps. Tests and fuzzers share it.

pub mod interleave;
pub mod mutate;
pub mod placements;
pub mod steps;

use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Data, Graph, ValueId};
use arenic_ir::op::{Binary, Op, Unary};
use arenic_ir::plan::{Buffer, BufferKind, Plan, Task, TaskId, TaskKind};
use arenic_ir::program::{Program, Space, StreamId};
use arenic_ir::types::{DType, TensorType};
use arenic_passes::dead_code::DeadCode;
use arenic_passes::detach_states::DetachStates;
use arenic_passes::lower::Lower;
use arenic_passes::place::{Fit, Place, Placer, Problem, Sequence, Solution, Wish, one_pass};
use arenic_passes::share_in_place::ShareInPlace;
use arenic_passes::share_parallel::ShareParallel;
use arenic_passes::sync::Sync;
use arenic_passes::{Cx, GraphPass, PlanPass, ProgramPass};
use cranelift_entity::{EntityRef, SecondaryMap};
use std::num::NonZeroU64;

/// Bytes of a cell of memory, which holds one element.
pub const CELL: u64 = 4;

/// Plans for cells.
pub const CX: Cx = Cx::new(TargetInfo { align: CELL, ..CPU.target() });

/// Numbers that look random: those of a tape of bytes first, then those of SplitMix64.
pub struct Random {
    state: u64,
    tape: std::vec::IntoIter<u8>,
}

impl Random {
    /// The generator's numbers from a seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed, tape: Vec::new().into_iter() }
    }

    /// Numbers that the bytes say, as long as there are some. So a fuzzer changes one choice
    /// where it changes one byte. What follows the tape differs from tape to tape (FNV-1a).
    pub fn of(tape: &[u8]) -> Random {
        let mix = |state: u64, &byte: &u8| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Random {
            state: tape.iter().fold(0xcbf2_9ce4_8422_2325, mix),
            tape: Vec::from(tape).into_iter(),
        }
    }

    /// Any word; a small one from the tape.
    pub fn word(&mut self) -> u64 {
        if let Some(byte) = self.tape.next() {
            return byte.into();
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `n`; 0 where there is nothing below.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n.max(1) as u64) as usize
    }

    /// True in so many cases of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.word() % 100 < percent
    }

    /// One of some, which must not be none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// Sharing for streams, as strict as chance will have it.
fn share_parallel(random: &mut Random) -> ShareParallel {
    let match_range = NonZeroU64::new(1 + random.below(16) as u64).unwrap();
    ShareParallel { match_range, across_streams: random.chance(50), hold: random.chance(30) }
}

fn vector(n: usize) -> TensorType {
    TensorType::new(DType::F32, [n])
}

/// A random graph like a training step: what its layers make is read again in reverse order, and
/// each layer's state is updated by what comes of it.
///
/// # Panics
/// The graph is not well formed, which is a defect of this function.
pub fn training(random: &mut Random, layers: usize) -> Graph {
    let mut g = Graph::default();
    let ty = vector(1 + random.below(4));
    let add = |g: &mut Graph, f: Binary, a: ValueId, b: ValueId| {
        let node = g.add_node("", Op::Binary { f }, vec![a, b]).unwrap();
        g.result(node).unwrap()
    };
    let mut known = vec![g.add_input("x", ty.clone())];
    let mut states = Vec::new();
    for i in 0..layers {
        let last = known[i];
        known.push(match random.below(3) {
            0 => {
                let node = g.add_node("", Op::Unary { f: Unary::Exp }, vec![last]).unwrap();
                g.result(node).unwrap()
            }
            1 => {
                let other = random.pick(&known);
                add(&mut g, Binary::Add, last, other)
            }
            _ => {
                let state = g.add_state(format!("s{i}"), ty.clone(), None);
                let enter = g.states[state].enter;
                states.push((i, state));
                add(&mut g, Binary::Add, last, enter)
            }
        });
    }
    let mut gradient = known[layers];
    for i in (0..layers).rev() {
        gradient = add(&mut g, Binary::Add, gradient, known[i]);
        if let Some(&(_, state)) = states.iter().find(|s| s.0 == i) {
            let enter = g.states[state].enter;
            g.states[state].exit = add(&mut g, Binary::Sub, enter, gradient);
        }
    }
    g.outputs.push(arenic_ir::Output { name: "y".into(), value: gradient });
    DetachStates {}.run(&mut g, &CX).unwrap();
    arenic_ir::verify::verify(&g).unwrap();
    g
}

/// Vectors of 1 to 4 elements under elementwise operators, broadcasts, products (no pair
/// in place), views, states with updates, and constants.
///
/// # Panics
/// A builder or a pass refuses what this makes, which is a defect of one of them.
pub fn graph(random: &mut Random, nodes: usize) -> Graph {
    let mut g = Graph::default();
    let mut known: Vec<ValueId> = Vec::new();
    for i in 0..1 + random.below(2) {
        known.push(g.add_input(format!("x{i}"), vector(1 + random.below(4))));
    }
    if random.chance(50) {
        known.push(g.add_const("c", vector(1 + random.below(4)), Data::Absent));
    }
    let states: Vec<_> = (0..1 + random.below(2))
        .map(|i| g.add_state(format!("s{i}"), vector(1 + random.below(4)), None))
        .collect();
    known.extend(states.iter().map(|&s| g.states[s].enter));
    for _ in 0..nodes {
        if random.chance(15) {
            let of = random.pick(&known);
            let n = g.ty(of).elements();
            let first = random.below(n);
            let len = 1 + random.below(n - first);
            known.push(g.add_view("", vector(len), of, first as u64 * CELL));
            continue;
        }
        let a = random.pick(&known);
        let same: Vec<ValueId> = known
            .iter()
            .copied()
            .filter(|&v| g.ty(v) == g.ty(a) || g.ty(v).elements() == 1)
            .collect();
        let (op, inputs) = match random.below(5) {
            0 | 1 => (Op::Unary { f: Unary::Exp }, vec![a]),
            2 => (Op::Binary { f: Binary::Add }, vec![a, random.pick(&same)]),
            3 => (Op::Concat { axis: 0 }, vec![a, random.pick(&known)]),
            _ => {
                let starts = vec![0];
                let shape = vec![1 + random.below(g.ty(a).elements())];
                (Op::Slice { starts, steps: vec![1], shape }, vec![a])
            }
        };
        let node = g.add_node("", op, inputs).unwrap();
        let result = g.result(node).unwrap();
        if g.ty(result).elements() <= 8 {
            known.push(result);
        }
    }
    for &s in &states {
        let enter = g.states[s].enter;
        let fitting: Vec<ValueId> =
            known.iter().copied().filter(|&v| g.ty(v) == g.ty(enter)).collect();
        let exit = if random.chance(70) {
            let node =
                g.add_node("", Op::Binary { f: Binary::Sub }, vec![enter, random.pick(&fitting)]);
            g.result(node.unwrap()).unwrap()
        } else {
            random.pick(&fitting)
        };
        g.states[s].exit = exit;
        known.push(exit);
    }
    for i in 0..1 + random.below(2) {
        let value = random.pick(&known);
        g.outputs.push(arenic_ir::Output { name: format!("y{i}"), value });
    }
    DeadCode {}.run(&mut g, &CX).unwrap();
    DetachStates {}.run(&mut g, &CX).unwrap();
    arenic_ir::verify::verify(&g).unwrap();
    g
}

/// A random topological order, then random swaps and recomputations, streams and methods.
///
/// # Panics
/// A pass refuses the plan, which is a defect of it.
pub fn program(random: &mut Random, g: &Graph, streams: usize) -> Program {
    let mut plan = Plan::new(g, CX.target).unwrap();
    let mut order = random_order(random, g, &plan);
    if streams > 1 {
        add_swaps_and_repeats(random, &mut plan, &mut order);
        for task in plan.tasks.values_mut() {
            let copies = !matches!(task.kind, TaskKind::Run(_));
            let stream = if copies { streams - 1 } else { random.below(streams) };
            task.stream = StreamId::new(stream);
        }
    }
    plan.set_order(g, order).unwrap();
    let share: Box<dyn PlanPass> = match random.chance(50) {
        true => Box::new(ShareInPlace { enabled: random.chance(80) }),
        false => Box::new(share_parallel(random)),
    };
    share.run(g, &mut plan, &CX).unwrap();
    let place: Box<dyn PlanPass> = match random.below(3) {
        0 => Box::new(Place::default()),
        1 => Box::new(BySize(Fit::First)),
        _ => Box::new(BySize(Fit::Best)),
    };
    place.run(g, &mut plan, &CX).unwrap();
    let mut program = Program::new(TargetInfo { align: CELL, ..CPU.target() });
    Lower {}.run(g, &plan, &mut program, &CX).unwrap();
    Sync {}.run(g, &plan, &mut program, &CX).unwrap();
    program
}

/// Places the largest first, without a search.
struct BySize(Fit);

impl Placer for BySize {
    fn place(&self, p: &Problem, wish: &Wish) -> Solution {
        // Unlimited work always ends in a placement.
        let offsets = one_pass(p, (Sequence::Size, self.0), &[], &mut u64::MAX.clone());
        Solution::of(p, offsets.unwrap_or_default(), "by_size", wish.capacity)
    }
}

fn random_order(random: &mut Random, g: &Graph, plan: &Plan) -> Vec<TaskId> {
    let dependences = plan.dependences(g);
    let mut blocked: SecondaryMap<TaskId, usize> = SecondaryMap::new();
    dependences.iter().for_each(|&(_, after)| blocked[after] += 1);
    let mut ready: Vec<TaskId> = plan.tasks.keys().filter(|&t| blocked[t] == 0).collect();
    let mut order = Vec::new();
    while !ready.is_empty() {
        let t = ready.swap_remove(random.below(ready.len()));
        order.push(t);
        for &(_, after) in dependences.iter().filter(|&&(before, _)| before == t) {
            blocked[after] -= 1;
            if blocked[after] == 0 {
                ready.push(after);
            }
        }
    }
    order
}

/// Sends values to host memory and back, or computes them again, before a later reader.
fn add_swaps_and_repeats(random: &mut Random, plan: &mut Plan, order: &mut Vec<TaskId>) {
    let writer = plan.writers();
    let buffers: Vec<_> = plan.buffers.keys().collect();
    for b in buffers {
        if plan.buffers[b].kind != BufferKind::Value || !random.chance(40) {
            continue;
        }
        let Some(w) = writer[b] else { continue };
        let at = |t: TaskId, order: &[TaskId]| order.iter().position(|&o| o == t).unwrap();
        let readers: Vec<TaskId> =
            order.iter().copied().filter(|&t| plan.tasks[t].reads.contains(&b) && t != w).collect();
        let Some(&last) = readers.last() else { continue };
        let copy_of = |plan: &mut Plan, space| {
            let buffer = Buffer { kind: BufferKind::Value, space, ..plan.buffers[b].clone() };
            plan.buffers.push(buffer)
        };
        let copied = |from, to| Task {
            kind: TaskKind::Copy { offset: 0 },
            stream: StreamId::new(0),
            reads: vec![from],
            writes: vec![Some(to)],
            scratch: None,
        };
        let back = if random.chance(60) {
            let host = copy_of(plan, Space::Host);
            let back = copy_of(plan, Space::Device);
            let out = plan.tasks.push(copied(b, host));
            let home = plan.tasks.push(copied(host, back));
            let first = at(w, order) + 1;
            order.insert(first + random.below(at(last, order) - first + 1), out);
            let first = at(out, order) + 1;
            order.insert(first + random.below(at(last, order) - first + 1), home);
            back
        } else {
            // Repeats need operands that no commit has overwritten: inputs, constants.
            let lasting =
                |&r: &_| matches!(plan.buffers[r].kind, BufferKind::Input | BufferKind::Const);
            if !plan.tasks[w].reads.iter().all(lasting) {
                continue;
            }
            let repeated = copy_of(plan, Space::Device);
            let mut task = plan.tasks[w].clone();
            task.writes = vec![Some(repeated)];
            let repeat = plan.tasks.push(task);
            let first = at(w, order) + 1;
            order.insert(first + random.below(at(last, order) - first + 1), repeat);
            repeated
        };
        for r in &mut plan.tasks[last].reads {
            if *r == b {
                *r = back;
            }
        }
    }
}
