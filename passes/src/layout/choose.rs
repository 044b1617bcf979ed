//! Which operators have their channels last: a least cut.

use super::Convolutions;
use super::form::{Form, Reading, form};
use crate::flow::{Network, SINK, SOURCE, UNLIMITED};
use arenic_ir::TargetInfo;
use arenic_ir::cost::Device;
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::op::Op;
use arenic_ir::op::channels_last::{is_turned, last, to_last};
use arenic_ir::types::TensorType;
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;

/// Arcs that are looked at before a cut is given up, some seconds.
const WORK: u64 = 1 << 32;

/// Picoseconds, in which times are whole.
const PER_SECOND: f64 = 1e12;

/// What reads a value.
#[derive(Default)]
struct Readers {
    /// Operators that want it with its channels last where they are so themselves.
    either: Vec<NodeId>,
    /// Something wants it as it is, whatever the choice.
    plain: bool,
}

/// What is compared: times on a device.
#[derive(Clone, Copy)]
pub(super) struct Costs<'a> {
    pub(super) device: &'a Device,
    pub(super) target: TargetInfo,
    pub(super) convolutions: Convolutions,
}

/// The operators that have their channels last, none where no time is gained.
pub(super) fn choose(g: &Graph, costs: Costs) -> SecondaryMap<NodeId, bool> {
    let mut turned = SecondaryMap::new();
    let mut network = Network::default();
    network.clear();
    let mut place: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
    let mut gains = false;
    for (n, node) in &g.nodes {
        let Some(form) = form(g, node) else { continue };
        let at = network.node();
        place[n] = Some(at);
        let gain = costs.gain(&g.types_of(&node.inputs), &form);
        gains |= gain > 0;
        match u64::try_from(gain) {
            Ok(gain) => network.arc(at, SINK, gain),
            Err(_) => network.arc(SOURCE, at, gain.unsigned_abs()),
        };
    }
    if !gains {
        return turned;
    }
    let mut work = WORK;
    for (v, readers) in readers(g, &place) {
        let cost = (costs.turning(g.ty(v)) * PER_SECOND).round() as u64;
        if cost > 0 {
            transposed(g, &mut network, &place, v, &readers, cost);
        }
    }
    network.flow(&mut work);
    if work > 0 {
        let apart = network.reaching_sink();
        g.nodes.keys().for_each(|n| turned[n] = place[n].is_some_and(|at| apart[at]));
    }
    turned
}

impl Costs<'_> {
    /// Picoseconds that an operator on these operands takes less with its channels last.
    fn gain(self, x: &[&TensorType], form: &Form) -> i64 {
        let broadcast = form.operands.iter().zip(x).filter(|(r, _)| **r == Reading::Broadcast);
        let cost: f64 = broadcast.map(|(_, t)| self.turning(&padded(t, form.rank))).sum();
        let gain = match &form.op {
            Op::ChannelsLast { of } => match self.of_convolution(of, x, &form.op) {
                Some(gain) => gain,
                None => return UNLIMITED as i64,
            },
            _ => 0.0,
        };
        ((gain - cost) * PER_SECOND).round() as i64
    }

    /// Seconds that a convolution or a pool gains; `None` where more than all transposes cost.
    fn of_convolution(self, of: &Op, x: &[&TensorType], turned: &Op) -> Option<f64> {
        let is_convolution =
            matches!(of, Op::Conv { .. } | Op::ConvTranspose { .. } | Op::ConvWeightGrad { .. });
        match self.convolutions {
            Convolutions::All if is_convolution => return None,
            Convolutions::All => return Some(0.0),
            Convolutions::Gaining => {}
        }
        let Ok(y) = of.infer(x) else { return Some(0.0) };
        if !of.may_use_library(self.target, x, &y.iter().collect::<Vec<_>>()) {
            return Some(0.0);
        }
        let last: Vec<TensorType> = x.iter().map(|t| last(t)).collect();
        let seconds = |op, x: &[&TensorType]| self.device.roofline_seconds(op, x).unwrap_or(0.0);
        Some(seconds(of, x) - seconds(turned, &last.iter().collect::<Vec<_>>()))
    }

    /// Seconds of a transpose; none where nothing moves, as with one channel or one place.
    fn turning(self, ty: &TensorType) -> f64 {
        let perm = to_last(&(0..ty.rank()).collect::<Vec<_>>());
        if perm.iter().filter(|&&p| ty.shape[p] != 1).is_sorted() {
            return 0.0;
        }
        self.device.roofline_seconds(&Op::Transpose { perm }, &[ty]).unwrap_or(0.0)
    }
}

/// The type with axes of extent 1 before its own.
pub(super) fn padded(ty: &TensorType, rank: usize) -> TensorType {
    let ones = vec![1; rank.saturating_sub(ty.rank())];
    TensorType::new(ty.dtype, [&ones[..], &ty.shape].concat())
}

/// What reads each value that may be turned.
fn readers(g: &Graph, place: &SecondaryMap<NodeId, Option<usize>>) -> BTreeMap<ValueId, Readers> {
    let mut readers: BTreeMap<ValueId, Readers> = BTreeMap::new();
    let kept = g.kept();
    for (v, kept) in g.values.keys().map(|v| (v, kept[v])).filter(|(_, kept)| *kept) {
        readers.entry(v).or_default().plain |= kept;
    }
    for (n, node) in &g.nodes {
        let form = place[n].and_then(|_| form(g, node));
        for (i, &v) in node.inputs.iter().enumerate() {
            let root = g.resolve(v).root;
            if root != v {
                readers.entry(root).or_default().plain = true;
            }
            let of = readers.entry(v).or_default();
            match form.as_ref().map(|form| form.operands[i]) {
                Some(Reading::Turned) if of.either.last() != Some(&n) => of.either.push(n),
                Some(Reading::Turned) => {}
                _ => of.plain = true,
            }
        }
    }
    readers.retain(|&v, _| is_turned(g.ty(v)));
    readers
}

/// What it costs where a value's maker and its readers are on different sides.
fn transposed(
    g: &Graph,
    network: &mut Network,
    place: &SecondaryMap<NodeId, Option<usize>>,
    v: ValueId,
    readers: &Readers,
    cost: u64,
) {
    let at: Vec<usize> = readers.either.iter().filter_map(|&n| place[n]).collect();
    let maker = match g.values[v].def {
        Def::Node { node, .. } => place[node].unwrap_or(SOURCE),
        _ => SOURCE,
    };
    match at[..] {
        [] => {}
        [reader] => {
            network.arc(maker, reader, cost);
        }
        _ if is_turned_for_each(g, v) => {
            at.iter().for_each(|&reader| {
                network.arc(maker, reader, cost);
            });
        }
        _ => {
            let one = network.node();
            network.arc(maker, one, cost);
            at.iter().for_each(|&reader| {
                network.arc(one, reader, UNLIMITED);
            });
        }
    }
    // Turned back for whoever wants it as it is.
    if maker == SOURCE {
        return;
    }
    match at[..] {
        _ if readers.plain => {
            network.arc(SOURCE, maker, cost);
        }
        [] => {}
        [reader] => {
            network.arc(reader, maker, cost);
        }
        _ => {
            let one = network.node();
            network.arc(one, maker, cost);
            at.iter().for_each(|&reader| {
                network.arc(reader, one, UNLIMITED);
            });
        }
    }
}

/// True for what is there all the time: a turned copy for all readers would live from the first to
/// the last one.
pub(super) fn is_turned_for_each(g: &Graph, v: ValueId) -> bool {
    matches!(g.values[g.resolve(v).root].def, Def::State(_) | Def::Const(_))
}
