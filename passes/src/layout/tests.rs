use super::costs::Costs;
use super::{Convolutions, Layout};
use crate::dead_code::DeadCode;
use crate::turn::{Axes, choose, form, rewrite};
use crate::views::Views;
use crate::{Cx, GraphPass, devices};
use arenic_backends::CUDA;
use arenic_ir::Math;
use arenic_ir::cost::Device;
use arenic_ir::graph::{Graph, NodeId, Output, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Unary, Window};
use arenic_ir::types::{DType, TensorType};
use arenic_ir::verify::verify;
use cranelift_entity::SecondaryMap;

fn h100(math: Math) -> Device {
    let (_, text) = devices::NAMED.iter().find(|(name, _)| *name == "h100").unwrap();
    devices::parse(text).unwrap().with_math(math)
}

fn gaining(device: &Device) -> Costs<'_> {
    Costs { device, target: CUDA.target(), convolutions: Convolutions::Gaining }
}

fn conv(extent: usize) -> Op {
    let each = |n: usize| vec![n, n];
    let window = Window {
        kernel: each(extent),
        strides: each(1),
        dilations: each(1),
        pads_begin: each(extent / 2),
        pads_end: each(extent / 2),
    };
    Op::Conv { window, group: 1 }
}

fn add(g: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
    let n = g.add_node("", op, inputs.to_vec()).unwrap();
    g.result(n).unwrap()
}

fn state(g: &mut Graph, shape: &[usize]) -> ValueId {
    let s = g.add_state(format!("s{}", g.states.len()), TensorType::new(DType::F32, shape), None);
    g.states[s].enter
}

/// A step of a dozen operators, some of which want channels second.
fn any_graph(seed: u64) -> Graph {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut g = Graph::default();
    let (rows, channels) = (random.choice([14, 28, 56]).unwrap(), 16 * random.usize(1..5));
    let first = TensorType::new(DType::F32, [64, channels, rows, rows]);
    let mut values = vec![g.add_input("x", first)];
    for _ in 0..random.usize(3..9) {
        // Mostly what came last, so that there are chains.
        let back = random.usize(0..values.len().min(3));
        let x = values[values.len() - 1 - back];
        let of = g.ty(x).shape[1];
        let y = match random.u32(0..9) {
            0..=3 => {
                let (outputs, extent) = (16 * random.usize(1..5), random.choice([1, 3]).unwrap());
                let w = state(&mut g, &[outputs, of, extent, extent]);
                add(&mut g, conv(extent), &[x, w])
            }
            4 => add(&mut g, Op::Unary { f: Unary::Relu }, &[x]),
            5 => add(&mut g, Op::LogSoftmax { axis: 1 }, &[x]),
            6 => {
                let other = values[random.usize(0..values.len())];
                let same = g.ty(other).shape == g.ty(x).shape;
                let other = if same { other } else { state(&mut g, &[of, 1, 1]) };
                add(&mut g, Op::Binary { f: Binary::Add }, &[x, other])
            }
            7 => add(&mut g, Op::Concat { axis: 1 }, &[x, x]),
            _ => {
                let plane = state(&mut g, &[rows, rows]);
                add(&mut g, Op::Binary { f: Binary::Mul }, &[x, plane])
            }
        };
        values.push(y);
    }
    let last = *values.last().unwrap();
    g.outputs.push(Output { name: "y".into(), value: last });
    let v = values[random.usize(0..values.len())];
    let mean = Op::Reduce { f: Reduction::Mean, axes: vec![2, 3], keep: false };
    let mean = add(&mut g, mean, &[v]);
    g.outputs.push(Output { name: "m".into(), value: mean });
    DeadCode {}.run(&mut g, &Cx::new(CUDA.target())).unwrap();
    g
}

/// Seconds of the graph in which these nodes have their channels last.
fn seconds(g: &Graph, turned: &SecondaryMap<NodeId, bool>, device: &Device) -> f64 {
    let (mut g, cx) = (g.clone(), Cx::new(CUDA.target()));
    rewrite(&mut g, &Axes::ChannelsLast, turned).unwrap();
    DeadCode {}.run(&mut g, &cx).unwrap();
    Views {}.run(&mut g, &cx).unwrap();
    verify(&g).unwrap();
    g.nodes.keys().map(|n| device.node_seconds(&g, n).unwrap()).sum()
}

#[test]
fn no_other_choice_takes_less_time() {
    let device = h100(Math::Tf32);
    let (mut gained, mut left) = (0, 0);
    for seed in 0..80 {
        let g = any_graph(seed);
        let chosen = choose(&g, &Axes::ChannelsLast, &gaining(&device));
        let found = seconds(&g, &chosen, &device);
        let free: Vec<NodeId> =
            g.nodes.keys().filter(|&n| form(&g, n, &Axes::ChannelsLast).is_some()).collect();
        let any = free.iter().any(|&n| chosen[n]);
        *if any { &mut gained } else { &mut left } += 1;
        for choice in 0..1u32 << free.len() {
            let mut turned = SecondaryMap::new();
            free.iter().enumerate().for_each(|(i, &n)| turned[n] = choice >> i & 1 == 1);
            let other = seconds(&g, &turned, &device);
            // Picoseconds are rounded once for each operator and each tensor.
            assert!(found <= other + 1e-10, "seed {seed}: {found} s, choice {choice:b} {other} s");
        }
    }
    assert!(gained > 15 && left > 15, "{gained} graphs gain, {left} are left");
}

#[test]
fn products_of_f32_are_not_turned_and_one_convolution_gains_nothing() {
    for seed in 0..50 {
        let g = any_graph(seed);
        let chosen = choose(&g, &Axes::ChannelsLast, &gaining(&h100(Math::F32)));
        assert!(chosen.values().all(|turned| !turned), "seed {seed}");
    }
    let mut g = Graph::default();
    let x = g.add_input("x", TensorType::new(DType::F32, [64, 64, 56, 56]));
    let w = state(&mut g, &[64, 64, 3, 3]);
    let y = add(&mut g, conv(3), &[x, w]);
    g.outputs.push(Output { name: "y".into(), value: y });
    let chosen = choose(&g, &Axes::ChannelsLast, &gaining(&h100(Math::Tf32)));
    assert!(chosen.values().all(|turned| !turned));
}

#[test]
fn weights_of_one_tap_are_views_and_others_are_turned_for_each_reader() {
    let device = h100(Math::Tf32);
    for (extent, transposes) in [(1, 2), (3, 4)] {
        let mut g = Graph::default();
        let x = g.add_input("x", TensorType::new(DType::F32, [64, 64, 56, 56]));
        let w = state(&mut g, &[64, 64, extent, extent]);
        let h = add(&mut g, conv(extent), &[x, w]);
        let y = add(&mut g, conv(extent), &[h, w]);
        g.outputs.push(Output { name: "y".into(), value: y });
        let cx = Cx { device: Some(&device), ..Cx::new(CUDA.target()) };
        Layout::default().run(&mut g, &cx).unwrap();
        let of = |name| g.nodes.values().filter(|node| node.op.name() == name).count();
        assert_eq!((of("channels_last"), of("transpose")), (2, transposes));
    }
}
