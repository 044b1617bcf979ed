//! The network (equations 1 to 3) as a graph: what actions are worth in states of a world.

use super::actions::World;
use arenic_ir::graph::{Data, Graph, Output, ValueId};
use arenic_ir::op::{Binary, Op, Reduction, Scatter, TypeError, Unary};
use arenic_ir::types::{DType, TensorType};

/// Features of a node.
pub(super) const FEATURES: usize = 6;

/// The inputs. Rows of nodes are numbered through all states.
pub(super) mod inputs {
    /// The features of the nodes, a row each.
    pub(crate) const FEATURES: &str = "features";
    /// Of each state the row of the node under execution.
    pub(crate) const CURRENT: &str = "current";
    /// Of each state the row of the node whose action is asked for.
    pub(crate) const ACTION: &str = "action";
}

/// How large a network is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Length of a node's vector; the paper's p.
    pub(super) embedding: usize,
    /// Rounds of message passing; the paper's T.
    pub(super) rounds: usize,
}

/// What is asked of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// What each node's action is worth in one state.
    All,
    /// What one action of each of so many states is worth.
    One { states: usize },
}

/// A weight, with its inputs as rows.
struct Weight {
    name: &'static str,
    rows: usize,
    columns: usize,
    /// Numbers begin between plus and minus this, divided by the root of the rows.
    scale: f64,
}

impl Shape {
    /// W1 to W8; W7 in two, for the graph and for the action.
    fn weights(&self) -> [Weight; 9] {
        let p = self.embedding;
        let weight = |name, rows, columns, scale| Weight { name, rows, columns, scale };
        [
            weight("features", FEATURES, p, 1.0),
            // Sums over neighbours should not grow from round to round.
            weight("neighbours", p, p, 0.3),
            weight("lags", p, p, 0.3),
            weight("lag", 1, p, 1.0),
            weight("whole", p, p, 1.0),
            weight("current", p, p, 1.0),
            weight("action", p, p, 1.0),
            weight("of_graph", 2 * p, 1, 1.0),
            weight("of_action", p, 1, 1.0),
        ]
    }

    /// Random weights, as bytes by name.
    pub(super) fn random(&self, random: &mut fastrand::Rng) -> Vec<(String, Vec<u8>)> {
        let drawn = |w: Weight| {
            let most = w.scale / (w.rows as f64).sqrt();
            let mut number = |_| ((2.0 * random.f64() - 1.0) * most) as f32;
            (
                w.name.to_owned(),
                (0..w.rows * w.columns).flat_map(|i| number(i).to_le_bytes()).collect(),
            )
        };
        self.weights().into_iter().map(drawn).collect()
    }

    /// The network for a world.
    pub(super) fn graph(&self, world: &World, asked: Asked) -> Result<Graph, TypeError> {
        let states = match asked {
            Asked::All => 1,
            Asked::One { states } => states,
        };
        let mut b = Builder { g: Graph::default(), world, p: self.embedding, states };
        let [features, neighbours, lags, lag, whole, current, action, of_graph, of_action] =
            self.weights().map(|w| {
                let state = b.g.add_state(w.name, f32s(&[w.rows, w.columns]), None);
                b.g.states[state].enter
            });
        let vectors = b.embed(self.rounds, [features, neighbours, lags, lag])?;
        // Equations 2 and 3. The sum over all nodes is divided by their number.
        let by_state = b.op(Op::Reshape { shape: vec![states, b.nodes(), b.p] }, &[vectors])?;
        let mean = Op::Reduce { f: Reduction::Mean, axes: vec![1], keep: false };
        let mean = b.op(mean, &[by_state])?;
        let whole = b.product(mean, whole)?;
        let at = b.g.add_input(inputs::CURRENT, i64s(&[states]));
        let now = b.op(Op::Gather { axis: 0 }, &[vectors, at])?;
        let current = b.product(now, current)?;
        let both = b.op(Op::Concat { axis: 1 }, &[whole, current])?;
        let both = b.relu(both)?;
        let of_graph = b.product(both, of_graph)?;
        let chosen = match asked {
            Asked::All => vectors,
            Asked::One { .. } => {
                let at = b.g.add_input(inputs::ACTION, i64s(&[states]));
                b.op(Op::Gather { axis: 0 }, &[vectors, at])?
            }
        };
        let of_chosen = b.product(chosen, action)?;
        let of_chosen = b.relu(of_chosen)?;
        let of_action = b.product(of_chosen, of_action)?;
        let worth = b.sum(of_action, of_graph)?;
        let count = b.g.ty(worth).elements();
        let value = b.op(Op::Reshape { shape: vec![count] }, &[worth])?;
        b.g.outputs.push(Output { name: "worth".into(), value });
        Ok(b.g)
    }
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn i64s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::I64, shape)
}

struct Builder<'w> {
    g: Graph,
    world: &'w World<'w>,
    p: usize,
    states: usize,
}

impl Builder<'_> {
    fn nodes(&self) -> usize {
        self.world.events.nodes.len()
    }

    fn op(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, TypeError> {
        let n = self.g.add_node("", op, inputs.to_vec())?;
        self.g.result(n).ok_or_else(|| TypeError("an operator without a result".into()))
    }

    fn product(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.op(Op::MatMul { trans_a: false, trans_b: false }, &[a, b])
    }

    fn sum(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.op(Op::Binary { f: Binary::Add }, &[a, b])
    }

    fn relu(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        self.op(Op::Unary { f: Unary::Relu }, &[x])
    }

    /// Indices, the same in every state but for where its numbers begin: so many after those of the state before.
    fn indices(&mut self, of_one: &[u32], stride: usize) -> ValueId {
        let of_state = |state: usize| {
            of_one.iter().flat_map(move |&i| (i64::from(i) + (state * stride) as i64).to_le_bytes())
        };
        let bytes: Vec<u8> = (0..self.states).flat_map(of_state).collect();
        let ty = i64s(&[self.states * of_one.len()]);
        self.g.add_const("", ty, Data::Bytes(bytes.into()))
    }

    /// Adds rows to the rows of another tensor that indices name.
    fn add_rows(
        &mut self,
        onto: ValueId,
        at: ValueId,
        rows: ValueId,
    ) -> Result<ValueId, TypeError> {
        let count = self.g.ty(at).elements();
        let at = self.op(Op::Reshape { shape: vec![count, 1] }, &[at])?;
        self.op(Op::ScatterNd { reduction: Scatter::Add }, &[onto, at, rows])
    }

    /// Equation 1: the vector of each node.
    fn embed(&mut self, rounds: usize, weights: [ValueId; 4]) -> Result<ValueId, TypeError> {
        let (n, p, states) = (self.nodes(), self.p, self.states);
        let [of_features, of_neighbours, of_lags, of_lag] = weights;
        let features = self.g.add_input(inputs::FEATURES, f32s(&[states * n, FEATURES]));
        let own = self.product(features, of_features)?;
        let own = self.op(Op::Reshape { shape: vec![states, n, p] }, &[own])?;
        // No lag is negative: the sum of ReLU(W4 w) is ReLU(W4) times the sum of w.
        let lag = self.relu(of_lag)?;
        let lag = self.product(lag, of_lags)?;
        let lags = self.lags();
        let lags = self.product(lags, lag)?;
        let own = self.sum(own, lags)?;
        let own = self.op(Op::Reshape { shape: vec![states * n, p] }, &[own])?;
        let mut vectors = self.relu(own)?;
        for _ in 1..rounds {
            let sums = self.sum_neighbours(vectors)?;
            let heard = self.product(sums, of_neighbours)?;
            let next = self.sum(own, heard)?;
            vectors = self.relu(next)?;
        }
        Ok(vectors)
    }

    /// The lags of each node, added up, as parts of the step.
    fn lags(&mut self) -> ValueId {
        let events = &self.world.events;
        let end = events.nodes.last().map_or(0.0, |e| e.time).max(f64::MIN_POSITIVE);
        let bytes: Vec<u8> =
            events.lag.iter().flat_map(|lag| ((lag / end) as f32).to_le_bytes()).collect();
        let ty = f32s(&[events.lag.len(), 1]);
        self.g.add_const("", ty, Data::Bytes(bytes.into()))
    }

    /// The sum of each node's vector and those of its neighbours.
    fn sum_neighbours(&mut self, vectors: ValueId) -> Result<ValueId, TypeError> {
        let events = &self.world.events;
        let zero = Data::Bytes(vec![0; 4].into());
        let zero = self.g.add_const("", TensorType::scalar(DType::F32), zero);
        let shape = vec![self.states * events.groups, self.p];
        let zeros = self.op(Op::Expand { shape }, &[zero])?;
        let group = self.indices(&events.group, events.groups);
        let of_groups = self.add_rows(zeros, group, vectors)?;
        let of_group = self.op(Op::Gather { axis: 0 }, &[of_groups, group])?;
        if events.beside.is_empty() {
            return Ok(of_group);
        }
        let (from, to): (Vec<u32>, Vec<u32>) = events.beside.iter().copied().unzip();
        let [from, to] = [from, to].map(|ends| self.indices(&ends, events.nodes.len()));
        let beside = self.op(Op::Gather { axis: 0 }, &[vectors, from])?;
        self.add_rows(of_group, to, beside)
    }
}
