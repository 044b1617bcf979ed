use super::choose::Turned;
use super::{Axes, Costs, Form, choose, form, rewrite};
use crate::dead_code::DeadCode;
use crate::{Cx, GraphPass};
use arenic_backends::CPU;
use arenic_ir::graph::{Graph, NodeId, Output, ValueId};
use arenic_ir::op::{Binary, Op, Unary};
use arenic_ir::types::{DType, TensorType};
use arenic_ir::verify::verify;
use cranelift_entity::SecondaryMap;

/// Bytes that transposes move.
struct Bytes;

impl Costs for Bytes {
    fn gain(&self, _: &[&TensorType], _: &Form) -> Option<i64> {
        Some(0)
    }

    fn moving(&self, ty: &TensorType, _: Vec<usize>) -> u64 {
        ty.bytes()
    }
}

/// A dozen operators in two orders of axes.
fn any_graph(seed: u64) -> Graph {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut g = Graph::default();
    let shapes = [[2, 6, 4, 5], [2, 4, 5, 6]];
    let floats = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut values =
        [vec![g.add_input("x", floats(&shapes[0]))], vec![g.add_input("y", floats(&shapes[1]))]];
    let add = |g: &mut Graph, op: Op, inputs: &[ValueId]| {
        let n = g.add_node("", op, inputs.to_vec()).unwrap();
        g.result(n).unwrap()
    };
    for _ in 0..12 {
        let side = random.usize(0..2);
        let all = &values[side];
        let of =
            |random: &mut fastrand::Rng| all[all.len() - 1 - random.usize(0..all.len().min(3))];
        let (a, b) = (of(&mut random), of(&mut random));
        let channels = if side == 0 { 1 } else { 3 };
        let (to, y) = match random.u32(0..7) {
            0..=2 => {
                let perm = [[0, 2, 3, 1], [0, 3, 1, 2]][side].to_vec();
                (1 - side, add(&mut g, Op::Transpose { perm }, &[a]))
            }
            3 => (side, add(&mut g, Op::Unary { f: Unary::Tanh }, &[a])),
            4 => (side, add(&mut g, Op::Binary { f: Binary::Add }, &[a, b])),
            5 => {
                // A plane costs a transpose of its own where it is turned.
                let shape = if side == 0 { [1, 4, 5] } else { [4, 5, 6] };
                let s = g.add_state(format!("s{}", g.states.len()), floats(&shape), None);
                let plane = g.states[s].enter;
                (side, add(&mut g, Op::Binary { f: Binary::Mul }, &[a, plane]))
            }
            _ => (side, add(&mut g, Op::Softmax { axis: channels }, &[a])),
        };
        values[to].push(y);
    }
    let last = values.iter().filter_map(|all| all.last()).enumerate();
    g.outputs.extend(last.map(|(i, &value)| Output { name: i.to_string(), value }));
    DeadCode {}.run(&mut g, &Cx::new(CPU.target())).unwrap();
    g
}

/// Bytes that transposes move in the graph with this region.
fn moved(g: &Graph, axes: &Axes, turned: &Turned) -> u64 {
    let mut g = g.clone();
    rewrite(&mut g, axes, turned).unwrap();
    DeadCode {}.run(&mut g, &Cx::new(CPU.target())).unwrap();
    verify(&g).unwrap();
    let turns = g.nodes.values().filter_map(|n| match &n.op {
        Op::Transpose { perm } => Some((perm, g.ty(n.inputs[0]))),
        _ => None,
    });
    let moves = turns.filter(|(p, ty)| !p.iter().filter(|&&p| ty.shape[p] != 1).is_sorted());
    moves.map(|(_, ty)| ty.bytes()).sum()
}

#[test]
fn no_other_region_moves_fewer_bytes() {
    let mut gained = 0;
    for (seed, perm) in (0..300).flat_map(|s| [(s, [0, 2, 3, 1]), (s, [0, 3, 1, 2])]) {
        let (g, axes) = (any_graph(seed), Axes::By { perm: perm.to_vec(), attentions: false });
        let chosen = choose(&g, &axes, &Bytes);
        let found = moved(&g, &axes, &chosen);
        let free: Vec<NodeId> = g.nodes.keys().filter(|&n| form(&g, n, &axes).is_some()).collect();
        gained += usize::from(free.iter().any(|&n| chosen[n]));
        for choice in 0..1u32 << free.len() {
            let mut turned = SecondaryMap::new();
            free.iter().enumerate().for_each(|(i, &n)| turned[n] = choice >> i & 1 == 1);
            let other = moved(&g, &axes, &turned);
            assert!(found <= other, "seed {seed}: {found} bytes, choice {choice:b} {other}");
            let as_many = found == other && free.iter().any(|&n| chosen[n]);
            let fewer = choice.count_ones() < chosen.values().filter(|t| **t).count() as u32;
            assert!(!(as_many && fewer), "seed {seed}: {choice:b} turns fewer operators");
        }
    }
    assert!(gained > 60, "{gained} graphs gain");
}
