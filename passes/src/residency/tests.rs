//! Random choices, carried out: whatever leaves, the checker accepts the plan.

use super::{Gap, ResidencyChoice, Room, Timeline, Walker, rewrite};
use crate::tail::{Depth, Tail};
use crate::{Cx, share};
use arenic_backends::CPU;
use arenic_ir::TargetInfo;
use arenic_ir::check::check;
use arenic_ir::graph::{Graph, Output, StateId, ValueId};
use arenic_ir::op::{Binary, Op};
use arenic_ir::plan::Plan;
use arenic_ir::program::Space;
use arenic_ir::types::{DType, TensorType};
use arenic_programs::steps;

/// A training step: a layer has a weight, which forward, backward and update read, and a
/// moment, which the update alone reads.
fn training_step(layers: usize) -> Graph {
    let mut g = Graph::default();
    let ty = || TensorType::new(DType::F32, [256]);
    let binary = |g: &mut Graph, f, a: ValueId, b: ValueId| {
        let node = g.add_node("", Op::Binary { f }, vec![a, b]).unwrap();
        g.result(node).unwrap()
    };
    let mut forward = vec![g.add_input("x", ty())];
    let states: Vec<[StateId; 2]> = (0..layers)
        .map(|i| ["w", "m"].map(|name| g.add_state(format!("{name}{i}"), ty(), None)))
        .collect();
    for &[w, _] in &states {
        let (last, w) = (forward[forward.len() - 1], g.states[w].enter);
        forward.push(binary(&mut g, Binary::Mul, last, w));
    }
    let mut back = forward[layers];
    for (i, &[w, m]) in states.iter().enumerate().rev() {
        let (old_w, old_m) = (g.states[w].enter, g.states[m].enter);
        let gradient = binary(&mut g, Binary::Mul, back, forward[i]);
        back = binary(&mut g, Binary::Mul, back, old_w);
        g.states[m].exit = binary(&mut g, Binary::Add, old_m, gradient);
        let new_m = g.states[m].exit;
        g.states[w].exit = binary(&mut g, Binary::Sub, old_w, new_m);
    }
    g.outputs.push(Output { name: "y".into(), value: forward[layers] });
    g
}

/// Each tensor leaves where it may, half of the time.
fn any_choice(t: &Timeline, random: &mut fastrand::Rng) -> ResidencyChoice {
    let mut choice = ResidencyChoice::keep_all(t);
    for (x, tensor) in t.tensors.iter().enumerate() {
        choice.host_home[x] = tensor.homed && random.u8(0..3) == 0;
        let on_device = tensor.homed && !choice.host_home[x];
        choice.leaves[x] = on_device && t.may_begin_away(x) && random.bool();
        for k in 0..tensor.gaps() {
            let may = if on_device { t.may_leave_home(x, k) } else { t.may_leave(x, k) };
            if may && random.bool() {
                choice.gaps[t.gap(x, k)] = Gap::Swap { hold: random.bool() };
            }
        }
    }
    choice
}

#[test]
fn whatever_leaves_the_plan_is_accepted_and_as_small_as_promised() {
    let (device, cx) = (steps::device(1e3), Cx::new(TargetInfo { align: 64, ..CPU.target() }));
    let (mut random, mut homes_left) = (fastrand::Rng::with_seed(5), 0);
    for _ in 0..300 {
        let g = training_step(random.usize(1..6));
        let mut plan = Plan::new(&g, cx.target).unwrap();
        plan.set_order(&g, plan.tasks.keys().collect()).unwrap();
        plan.set_slots(share::assign(&g, &plan).unwrap());
        let t = Timeline::new(&g, &plan, &device).unwrap();
        let choice = any_choice(&t, &mut random);
        let (mut walker, mut room) = (Walker::new(&t), Room::new(&t, &device));
        let script = walker.walk(&choice).unwrap();
        let limit = random.u64(0..64 * 1024);
        room.schedule(script, limit);
        let promised = room.live_with_copies(script).into_iter().max().unwrap();
        let left = rewrite(&t, &choice, script).unwrap();
        let planned = Tail::default().finish(&g, left, &device, &cx, Depth::Outline).unwrap();
        let footprint = check(&g, &planned.program).unwrap();
        assert_eq!(footprint.arena_bytes, planned.arena);
        let slots = planned.plan.slots().unwrap();
        assert!(
            slots.live_peak()[Space::Device] <= promised,
            "{} {promised}\n{}",
            slots.live_peak()[Space::Device],
            planned.plan
        );
        homes_left += slots.slots.values().filter(|slot| !slot.away.is_empty()).count();
    }
    assert!(homes_left > 300, "{homes_left}");
}
