//! Which operators are in the region: a least cut.

use super::form::{Form, Reading, form};
use super::{Axes, Border};
use crate::flow::{Network, SINK, SOURCE, UNLIMITED};
use arenic_ir::graph::{Def, Graph, NodeId, ValueId};
use arenic_ir::types::TensorType;
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;

/// Arcs that are looked at before a cut is given up, some seconds.
const WORK: u64 = 1 << 32;

/// What reads a value.
#[derive(Default)]
struct Readers {
    /// The places of operators that want it in the other order where they are in the region, of which transposes that
    /// end it always are.
    either: Vec<usize>,
    /// Something wants it as it is, whatever the choice.
    plain: bool,
}

/// What is compared, in any unit.
pub(crate) trait Costs {
    /// What an operator on these operands costs less in the region; `None` where it must be there.
    fn gain(&self, x: &[&TensorType], form: &Form) -> Option<i64>;

    /// What a transpose of a tensor costs that moves something.
    fn moving(&self, ty: &TensorType, perm: Vec<usize>) -> u64;
}

/// The operators in the region.
pub(crate) type Turned = SecondaryMap<NodeId, bool>;

/// The smallest region of least cost, empty where no other costs less.
pub(crate) fn choose(g: &Graph, axes: &Axes, costs: &impl Costs) -> Turned {
    let mut turned = SecondaryMap::new();
    let mut network = Network::default();
    network.clear();
    let mut place: Places = SecondaryMap::new();
    let turning = |ty: &TensorType| turning(axes, costs, ty);
    let mut gains = false;
    for n in g.nodes.keys() {
        if let Some(border) = axes.border(g, n) {
            gains = true;
            place[n] = (border == Border::Makes).then_some(Place { at: SINK, results: 1 });
            continue;
        }
        let Some(form) = form(g, n, axes) else { continue };
        let at = network.node();
        place[n] = Some(Place { at, results: form.results });
        let x = g.input_types(n);
        let broadcast = form.operands.iter().zip(&x).filter(|(r, _)| **r == Reading::Broadcast);
        let cost: u64 = broadcast.map(|(_, t)| turning(&padded(t, form.rank))).sum();
        let gain = costs.gain(&x, &form).map_or(UNLIMITED as i64, |gain| gain - cost as i64);
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
    for (v, readers) in readers(g, axes, &place) {
        let cost = turning(g.ty(v));
        if cost > 0 {
            transposed(g, &mut network, &place, v, &readers, cost);
        }
    }
    network.flow(&mut work);
    if work > 0 {
        let apart = network.reaching_sink();
        let is_apart = |at: usize| at != SINK && apart[at];
        g.nodes.keys().for_each(|n| turned[n] = place[n].is_some_and(|place| is_apart(place.at)));
    }
    turned
}

/// What it costs to turn a tensor: nothing where nothing moves, as with one channel or one place.
fn turning(axes: &Axes, costs: &impl Costs, ty: &TensorType) -> u64 {
    let perm = axes.perm(ty.rank());
    if perm.iter().filter(|&&p| ty.shape[p] != 1).is_sorted() {
        return 0;
    }
    costs.moving(ty, perm)
}

/// What a node is in the network.
#[derive(Clone, Copy)]
struct Place {
    /// The sink where a transpose begins the region.
    at: usize,
    /// How many of its results it may give in the other order.
    results: usize,
}

type Places = SecondaryMap<NodeId, Option<Place>>;

/// The type with axes of extent 1 before its own.
pub(super) fn padded(ty: &TensorType, rank: usize) -> TensorType {
    let ones = vec![1; rank.saturating_sub(ty.rank())];
    TensorType::new(ty.dtype, [&ones[..], &ty.shape].concat())
}

/// What reads each value that may be turned.
fn readers(g: &Graph, axes: &Axes, place: &Places) -> BTreeMap<ValueId, Readers> {
    let mut readers: BTreeMap<ValueId, Readers> = BTreeMap::new();
    let kept = g.kept();
    for (v, kept) in g.values.keys().map(|v| (v, kept[v])).filter(|(_, kept)| *kept) {
        readers.entry(v).or_default().plain |= kept;
    }
    for (n, node) in &g.nodes {
        let form = place[n].and_then(|_| form(g, n, axes));
        let ends = axes.border(g, n) == Some(Border::Reads);
        for (i, &v) in node.inputs.iter().enumerate() {
            let root = g.resolve(v).root;
            if root != v {
                readers.entry(root).or_default().plain = true;
            }
            let of = readers.entry(v).or_default();
            let reading = form.as_ref().map(|form| form.operands[i]);
            let own = place[n].filter(|_| reading == Some(Reading::Turned));
            match own.map(|place| place.at).or(ends.then_some(SINK)) {
                Some(at) if !of.either.contains(&at) => of.either.push(at),
                Some(_) => {}
                None => of.plain = true,
            }
        }
    }
    readers.retain(|&v, _| axes.turns(g.ty(v)));
    readers
}

/// What it costs where a value's maker and its readers are on different sides.
fn transposed(
    g: &Graph,
    network: &mut Network,
    place: &Places,
    v: ValueId,
    readers: &Readers,
    cost: u64,
) {
    let at = &readers.either;
    let maker = match g.values[v].def {
        Def::Node { node, output } => {
            place[node].filter(|place| output < place.results).map_or(SOURCE, |place| place.at)
        }
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
