//! One node per update, fused with the product that makes its gradient.
//!
//! **Updates.** Exporters write an update as a dozen elementwise nodes. Those that lead to
//! the exit value of a state, or to what rows are scattered to at last, and that nobody else reads become one `pointwise`; states
//! whose updates read the same gradient are updated together, as both moments of Adam.
//! Intermediate results then never have bytes. Sound because a `pointwise` applies the
//! same functions to the same elements, each rounded once: the bits stay the same. It
//! never needs more memory than its parts: it is fused only where at most one operand
//! `u` of full size comes and goes, and until the last of the parts has run, `u` or
//! something of its size computed from it is alive in any order. Where a parameter's update reads
//! a moment's, both are one where `u` is a small fraction of what others make of the parameter,
//! who have to run before: biases, scales, but no weights of products.
//!
//! **Gradients.** Where the gradient that an update reads (an optimizer's node or a
//! `pointwise`) is the product of two matrices, both become one `product_update`: the
//! kernel computes a tile of the product and updates with it while it is in the cache, and
//! the gradient is never stored. Legal only where nobody else reads the gradient: not a
//! norm for clipping, not a second gradient that is added to it (the weight has several
//! readers, or gradients are accumulated), not an output, not a loss scale's check. The
//! tiles have the product's bits, so losses and states keep theirs. (A GEMM that adds to
//! the weight itself would round otherwise, and do for SGD alone.)
//!
//! A gradient that is not stored may be computed when its update runs, or its update when
//! it is computed. The first costs the product's operands until then instead of the
//! gradient; the second is free where nobody but the update reads the old values of the
//! states, which holds for moments, but not for a weight through which the gradient still
//! passes on. So by default both are fused where one of these is sure to need no more
//! memory, in whatever order: the operands that come and go are together no larger than
//! the gradient, or the update could run at once. What remains are the few tiles and
//! scalars. ("Forcing updates early" beyond that is what OLLA's control edges do.)
//!
//! Where a library may compute the product alone, that is done, and the update after it, unless one
//! kernel for both takes less time: as measured, or, of small products, by the device's roofline. A
//! tile of our own is far from what tensor cores reach, so that large ones are not even compared.
//!
//! Convolutions' weight gradients are not fused: exporters write them as convolutions of
//! transposed operands whose result is transposed again, and small beside activations.

mod region;

use crate::rewrite::{GraphView, Group};
use crate::{Cx, GraphPass, PassError, Stats};
use arenic_ir::TargetInfo;
use arenic_ir::graph::{Def, Graph, Node, NodeId, StateId, ValueId};
use arenic_ir::op::{MAX_OPERANDS, Op};
use arenic_ir::types::DType;
use cranelift_entity::SecondaryMap;
use region::step;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Makes each update one node, with the product that is its gradient where that saves memory.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FuseUpdates {
    /// Which gradients are computed inside their update.
    pub gradients: Gradients,
}

/// Which gradients are computed inside their update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gradients {
    /// None.
    Never,
    /// Those where no order of the graph can need more memory afterwards, but for products that a
    /// library computes sooner.
    #[default]
    Safe,
    /// All that nobody else reads.
    Always,
}

impl GraphPass for FuseUpdates {
    fn run(&self, g: &mut Graph, cx: &Cx) -> Result<Stats, PassError> {
        let updates = self.updates(g, cx);
        let mut removed: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        let (mut fused, mut gradients) = (0, 0);
        for update in updates {
            update.members.iter().for_each(|&n| removed[n] = n != update.at);
            fused += u64::from(update.members.len() > 1);
            if let Some(product) = &update.product {
                removed[product.node] = true;
                gradients += 1;
            }
            let (op, inputs) = match &update.product {
                Some(product) => update.with(g, product),
                None => (update.op, update.inputs),
            };
            op.infer(&g.types_of(&inputs))?;
            for (output, &v) in update.outputs.iter().enumerate() {
                if let Some(v) = v {
                    g.values[v].def = Def::Node { node: update.at, output };
                }
            }
            let name = g.nodes[update.at].name.clone();
            g.nodes[update.at] = Node { name, op, inputs, outputs: update.outputs };
        }
        *g = g.compacted(|n| !removed[n]);
        Ok(Stats::from([("fused_updates", fused), ("fused_gradients", gradients)]))
    }
}

/// An update to be made: nodes that become one.
struct Update {
    members: Group,
    /// The node whose place it takes.
    at: NodeId,
    op: Op,
    inputs: Vec<ValueId>,
    outputs: Vec<Option<ValueId>>,
    product: Option<Product>,
}

impl Update {
    /// The operator and the operands of this update with its gradient inside.
    fn with(&self, g: &Graph, product: &Product) -> (Op, Vec<ValueId>) {
        let &Product { node, alpha, trans_a, trans_b, gradient } = product;
        let mut inputs = self.inputs.clone();
        inputs.remove(gradient);
        inputs.extend(&g.nodes[node].inputs);
        let update = Box::new(self.op.clone());
        (Op::ProductUpdate { alpha, trans_a, trans_b, gradient, update }, inputs)
    }
}

/// The product that makes a gradient.
struct Product {
    node: NodeId,
    alpha: f32,
    trans_a: bool,
    trans_b: bool,
    /// Position of the gradient among the update's operands.
    gradient: usize,
}

impl FuseUpdates {
    /// Every update that changes something.
    fn updates(&self, g: &Graph, cx: &Cx) -> Vec<Update> {
        let view = GraphView::new(g);
        let groups = view.groups();
        let pointwise = groups.into_iter().filter_map(|group| pointwise(&view, group));
        let optimizers = g.nodes.keys().filter_map(|n| optimizer(g, n));
        let mut updates: Vec<Update> = pointwise.chain(optimizers).collect();
        for update in &mut updates {
            update.product = self.product(&view, update, cx);
        }
        updates.retain(|u| u.members.len() > 1 || u.product.is_some());
        updates
    }

    /// The product that can be computed inside the update.
    fn product(&self, view: &GraphView, update: &Update, cx: &Cx) -> Option<Product> {
        if self.gradients == Gradients::Never {
            return None;
        }
        let inputs = update.inputs.iter().enumerate();
        let mut products = inputs.filter_map(|(i, &v)| product(view, &update.members, v, i));
        products.find(|p| match self.gradients {
            Gradients::Always => true,
            _ => is_safe(view, update, p, cx.target) && !is_sooner_apart(view.g, update, p, cx),
        })
    }
}

/// A group as one update, where that is sure to need no more memory.
fn pointwise(view: &GraphView, group: Group) -> Option<Update> {
    let g = view.g;
    let (inputs, results) = (view.operands(&group), view.results(&group));
    let first = results.first()?;
    let transient = transient_roots(view, inputs.iter().filter(|&&v| g.ty(v).elements() > 1));
    let fits = inputs.len() <= MAX_OPERANDS
        && results.len() <= MAX_OPERANDS
        && transient.len() <= 1
        && transient.iter().all(|&r| g.ty(r).bytes() == g.ty(*first).bytes());
    if !fits {
        return None;
    }
    let mut sources = inputs.clone();
    let mut steps = Vec::new();
    for &n in &group {
        let of = |v: &ValueId| sources.iter().position(|s| s == v);
        let read: Vec<usize> = g.nodes[n].inputs.iter().map(of).collect::<Option<_>>()?;
        steps.push(step(&g.nodes[n].op, &read)?);
        sources.push(g.result(n)?);
    }
    let place = |v: &ValueId| sources.iter().position(|s| s == v);
    let op = Op::Pointwise { steps, results: results.iter().map(place).collect::<Option<_>>()? };
    let at = *group.last()?;
    let outputs = results.into_iter().map(Some).collect();
    Some(Update { members: group, at, op, inputs, outputs, product: None })
}

/// A node that is an optimizer's update already.
fn optimizer(g: &Graph, n: NodeId) -> Option<Update> {
    let node = &g.nodes[n];
    matches!(node.op, Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. }).then(|| Update {
        members: Group::from([n]),
        at: n,
        op: node.op.clone(),
        inputs: node.inputs.clone(),
        outputs: node.outputs.clone(),
        product: None,
    })
}

/// The product that makes operand `i`, the value `v`, of an update, where nobody else
/// reads it.
fn product(view: &GraphView, members: &Group, v: ValueId, i: usize) -> Option<Product> {
    let g = view.g;
    let Def::Node { node, .. } = g.values[v].def else { return None };
    let (alpha, trans_a, trans_b) = match g.nodes[node].op {
        Op::MatMul { trans_a, trans_b } => (1.0, trans_a, trans_b),
        Op::Gemm { alpha, trans_a, trans_b, .. } => (alpha, trans_a, trans_b),
        _ => return None,
    };
    let [a, b] = g.nodes[node].inputs[..] else { return None };
    let fits = g.ty(a).rank() == 2
        && g.ty(b).rank() == 2
        && g.ty(v).dtype.is_float()
        && g.ty(v).dtype != DType::Bf16
        && view.only_read_by(v, members);
    // An optimizer's node has the gradient at one position, and might read it at others.
    let once = |n: &NodeId| {
        let update =
            matches!(g.nodes[*n].op, Op::Adam { .. } | Op::Adagrad { .. } | Op::Momentum { .. });
        !update || (i == 3 && g.nodes[*n].inputs.iter().filter(|&&x| x == v).count() == 1)
    };
    (fits && members.iter().all(once)).then_some(Product {
        node,
        alpha,
        trans_a,
        trans_b,
        gradient: i,
    })
}

/// True where computing the gradient inside the update needs no more memory in any order.
fn is_safe(view: &GraphView, update: &Update, product: &Product, target: TargetInfo) -> bool {
    let g = view.g;
    let gradient = g.ty(update.inputs[product.gradient]);
    let (op, inputs) = update.with(g, product);
    let inputs = g.types_of(&inputs);
    let Ok(results) = op.infer(&inputs) else { return false };
    let scratch = op.scratch_bytes(target, &inputs, &results.iter().collect::<Vec<_>>());
    let roots = transient_roots(view, g.nodes[product.node].inputs.iter());
    let alive: u64 = roots.iter().map(|&r| g.ty(r).bytes()).sum();
    scratch <= gradient.bytes() / 2
        && (alive <= gradient.bytes() || could_run_at_once(view, update, product))
}

/// Arithmetic of a product above which a library is taken where nothing was measured: 2^20
/// multiplications with their additions.
const MOST_FLOPS: u64 = 2 << 20;

/// True where a library's product and the update after it take no longer than one kernel for both.
fn is_sooner_apart(g: &Graph, update: &Update, product: &Product, cx: &Cx) -> bool {
    let bare = &g.nodes[product.node];
    let operands = g.input_types(product.node);
    let gradient = g.ty(update.inputs[product.gradient]);
    if !bare.op.may_use_library(cx.target, &operands, &[gradient]) {
        return false;
    }
    let Some(device) = cx.device else { return true };
    let (both, inputs) = update.with(g, product);
    let apart = g.types_of(&update.inputs);
    let parts = [(&both, g.types_of(&inputs)), (&bare.op, operands.clone()), (&update.op, apart)];
    let measured = parts.each_ref().map(|(op, x)| device.measured.seconds(op, x));
    if let [Some(both), Some(product), Some(update)] = measured {
        return product + update <= both;
    }
    if bare.op.work(&operands, &[gradient]).flops > MOST_FLOPS {
        return true;
    }
    match parts.each_ref().map(|(op, x)| device.roofline_seconds(op, x)) {
        [Ok(both), Ok(product), Ok(update)] => product + update <= both,
        _ => true,
    }
}

/// Roots that come and go, once each.
fn transient_roots<'a>(
    view: &GraphView,
    values: impl Iterator<Item = &'a ValueId>,
) -> Vec<ValueId> {
    let g = view.g;
    let mut roots: Vec<ValueId> = values.map(|&v| g.resolve(v).root).collect();
    roots.retain(|&r| view.is_transient(r));
    roots.sort_unstable();
    roots.dedup();
    roots
}

/// True where the update could follow its gradient at once: the states that it changes
/// have no other readers, and its other operands are there already.
fn could_run_at_once(view: &GraphView, update: &Update, product: &Product) -> bool {
    let g = view.g;
    let changes = |v: ValueId| {
        let changed = move |&s: &StateId| g.resolve(view.updated(s)).root == v;
        g.states.keys().filter(changed).map(|s| &g.states[s])
    };
    let unread = update
        .outputs
        .iter()
        .flatten()
        .flat_map(|&v| changes(v))
        .all(|s| view.readers[s.enter].iter().all(|n| update.members.contains(n)));
    let others = update.inputs.iter().enumerate().filter(|&(i, _)| i != product.gradient);
    unread && others.map(|(_, &v)| v).all(|v| is_early(g, v))
}

/// True for what is there when a step begins, and for scalars computed of such scalars.
fn is_early(g: &Graph, v: ValueId) -> bool {
    /// More nodes than any schedule of a learning rate has.
    const MOST: usize = 64;
    let mut stack = vec![v];
    let mut seen = 0;
    while let Some(v) = stack.pop() {
        let root = g.resolve(v).root;
        if let Def::Node { node, .. } = g.values[root].def {
            seen += 1;
            if seen > MOST || g.ty(root).elements() > 1 {
                return false;
            }
            stack.extend(&g.nodes[node].inputs);
        }
    }
    true
}
