//! The network (equations 1 to 4), by candle.
//!
//! States of the graph are taken one by one: their tensors are so small that candle starts no
//! threads for them, which would cost more than they save.

use super::actions::World;
use super::episode::State;
use super::product::product;
use candle_core::{Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

/// Features of a node.
const FEATURES: usize = 6;

/// The weights, each with its inputs as rows.
struct Weights {
    /// W1 to W4.
    features: Tensor,
    neighbours: Tensor,
    lags: Tensor,
    lag: Tensor,
    /// W5, W6 and W8.
    whole: Tensor,
    current: Tensor,
    action: Tensor,
    /// W7: for the graph, and for the action.
    of_graph: Tensor,
    of_action: Tensor,
}

/// What is learned, as it is now and as it was some steps ago: targets are by the latter, or
/// they would run away from what follows them.
pub(super) struct Network {
    rounds: usize,
    embedding: usize,
    now: Weights,
    before: Weights,
    optimizer: AdamW,
    steps: usize,
}

/// Steps after which targets follow.
const FOLLOW: usize = 20;

/// Seconds of the reference core that a round takes in any graph, and more for each product of
/// two numbers.
const PER_ROUND: f64 = 1e-5;
const PER_PRODUCT: f64 = 5e-10;

/// The part of a graph that no action changes, as tensors.
pub(super) struct Fixed<'a> {
    world: &'a World<'a>,
    group: Tensor,
    from: Tensor,
    to: Tensor,
    lag: Tensor,
}

impl<'a> Fixed<'a> {
    pub(super) fn new(world: &'a World<'a>) -> Result<Self> {
        let events = &world.events;
        let n = events.nodes.len();
        let end = events.nodes.last().map_or(0.0, |e| e.time).max(f64::MIN_POSITIVE);
        let lag: Vec<f32> = events.lag.iter().map(|lag| (lag / end) as f32).collect();
        let (from, to): (Vec<u32>, Vec<u32>) = events.beside.iter().copied().unzip();
        let edges = from.len();
        Ok(Fixed {
            world,
            group: Tensor::from_slice(&events.group, n, &Device::Cpu)?,
            from: Tensor::from_vec(from, edges, &Device::Cpu)?,
            to: Tensor::from_vec(to, edges, &Device::Cpu)?,
            lag: Tensor::from_vec(lag, (n, 1), &Device::Cpu)?,
        })
    }

    /// The features of all nodes in a state.
    fn features(&self, state: &State) -> Result<Tensor> {
        let features: Vec<f32> = (self.world.features.iter().zip(&state.valid))
            .flat_map(|(fixed, &valid)| fixed.iter().copied().chain([f32::from(u8::from(valid))]))
            .collect();
        Tensor::from_vec(features, (state.valid.len(), FEATURES), &Device::Cpu)
    }

    /// The sum of each node's vector and those of its neighbours.
    fn sum_neighbours(&self, vectors: &Tensor) -> Result<Tensor> {
        let shape = (self.world.events.groups, vectors.dim(1)?);
        let of_group = Tensor::zeros(shape, vectors.dtype(), vectors.device())?
            .index_add(&self.group, vectors, 0)?
            .index_select(&self.group, 0)?;
        if self.world.events.beside.is_empty() {
            return Ok(of_group);
        }
        of_group.index_add(&self.to, &vectors.index_select(&self.from, 0)?, 0)
    }
}

/// How a network is made and learns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) embedding: usize,
    pub(super) rounds: usize,
    pub(super) learning_rate: f64,
}

impl Weights {
    /// Random ones, and as variables.
    fn random(p: usize, random: &mut fastrand::Rng) -> Result<(Self, Vec<Var>)> {
        let mut variables = Vec::new();
        let mut weights = |inputs: usize, outputs: usize, scale: f64| {
            let most = scale / (inputs as f64).sqrt();
            let drawn = |_| ((2.0 * random.f64() - 1.0) * most) as f32;
            let values: Vec<f32> = (0..inputs * outputs).map(drawn).collect();
            let variable = Var::from_vec(values, (inputs, outputs), &Device::Cpu)?;
            variables.push(variable.clone());
            Ok::<Tensor, candle_core::Error>(variable.as_tensor().clone())
        };
        let weights = Weights {
            features: weights(FEATURES, p, 1.0)?,
            // Sums over neighbours should not grow from round to round.
            neighbours: weights(p, p, 0.3)?,
            lags: weights(p, p, 0.3)?,
            lag: weights(1, p, 1.0)?,
            whole: weights(p, p, 1.0)?,
            current: weights(p, p, 1.0)?,
            action: weights(p, p, 1.0)?,
            of_graph: weights(2 * p, 1, 1.0)?,
            of_action: weights(p, 1, 1.0)?,
        };
        Ok((weights, variables))
    }

    /// The same, and nothing is learned any more.
    fn frozen(&self) -> Result<Self> {
        let copy = |weights: &Tensor| Ok::<Tensor, candle_core::Error>(weights.copy()?.detach());
        Ok(Weights {
            features: copy(&self.features)?,
            neighbours: copy(&self.neighbours)?,
            lags: copy(&self.lags)?,
            lag: copy(&self.lag)?,
            whole: copy(&self.whole)?,
            current: copy(&self.current)?,
            action: copy(&self.action)?,
            of_graph: copy(&self.of_graph)?,
            of_action: copy(&self.of_action)?,
        })
    }

    /// Equation 1: the vector of each node.
    fn embed(&self, fixed: &Fixed, state: &State, rounds: usize) -> Result<Tensor> {
        // No lag is negative: the sum of ReLU(W4 w) is ReLU(W4) times the sum of w.
        let lags = product(&fixed.lag, &product(&self.lag.relu()?, &self.lags)?)?;
        let own = (product(&fixed.features(state)?, &self.features)? + lags)?;
        let mut vectors = own.relu()?;
        for _ in 1..rounds {
            let sums = fixed.sum_neighbours(&vectors)?;
            vectors = (&own + product(&sums, &self.neighbours)?)?.relu()?;
        }
        Ok(vectors)
    }

    /// Equations 2 and 3: what the actions of some nodes are worth. The sum over all nodes is
    /// divided by their number.
    fn values(
        &self,
        fixed: &Fixed,
        state: &State,
        nodes: Vec<u32>,
        rounds: usize,
    ) -> Result<Tensor> {
        let vectors = self.embed(fixed, state, rounds)?;
        let whole = product(&vectors.mean_keepdim(0)?, &self.whole)?;
        let current = product(&vectors.narrow(0, state.current, 1)?, &self.current)?;
        let of_graph = product(&Tensor::cat(&[whole, current], 1)?.relu()?, &self.of_graph)?;
        let count = nodes.len();
        let chosen = vectors.index_select(&Tensor::from_vec(nodes, count, &Device::Cpu)?, 0)?;
        let of_action = product(&product(&chosen, &self.action)?.relu()?, &self.of_action)?;
        of_action.broadcast_add(&of_graph)?.flatten_all()
    }

    /// The best action of a state, and what it is worth.
    fn best(&self, fixed: &Fixed, state: &State, rounds: usize) -> Result<Option<(usize, f32)>> {
        let nodes: Vec<u32> = state.actions().map(|v| v as u32).collect();
        if nodes.is_empty() {
            return Ok(None);
        }
        let values = self.values(fixed, state, nodes, rounds)?.to_vec1::<f32>()?;
        let worth = state.actions().zip(values);
        Ok(worth.reduce(|best, new| if new.1 > best.1 { new } else { best }))
    }
}

impl Network {
    /// With random weights.
    pub(super) fn new(shape: &Shape, random: &mut fastrand::Rng) -> Result<Self> {
        let (now, variables) = Weights::random(shape.embedding, random)?;
        let settings =
            ParamsAdamW { lr: shape.learning_rate, weight_decay: 0.0, ..ParamsAdamW::default() };
        let optimizer = AdamW::new(variables, settings)?;
        let before = now.frozen()?;
        Ok(Network {
            rounds: shape.rounds,
            embedding: shape.embedding,
            now,
            before,
            optimizer,
            steps: 0,
        })
    }

    /// Seconds of the reference core for one evaluation.
    pub(super) fn effort(&self, fixed: &Fixed) -> f64 {
        let (n, edges) = (fixed.world.events.nodes.len(), fixed.world.events.beside.len());
        let multiplied = n * self.embedding * self.embedding + (n + edges) * self.embedding;
        self.rounds as f64 * (PER_ROUND + PER_PRODUCT * multiplied as f64)
    }

    /// The best action of a state.
    pub(super) fn best(&self, fixed: &Fixed, state: &State) -> Result<Option<usize>> {
        Ok(self.now.best(fixed, state, self.rounds)?.map(|(action, _)| action))
    }

    /// What the best action of a state is worth: nothing is worth more than no cost.
    pub(super) fn worth(&self, fixed: &Fixed, state: &State) -> Result<f64> {
        let best = self.before.best(fixed, state, self.rounds)?;
        Ok(best.map_or(0.0, |(_, worth)| f64::from(worth.min(0.0))))
    }

    /// Equation 4: a step towards what actions turned out to be worth.
    pub(super) fn learn(&mut self, fixed: &Fixed, samples: &[(&State, usize, f64)]) -> Result<()> {
        let loss = |&(state, action, worth): &(&State, usize, f64)| {
            let value = self.now.values(fixed, state, vec![action as u32], self.rounds)?;
            value.affine(1.0, -worth)?.sqr()
        };
        let losses = samples.iter().map(loss).collect::<Result<Vec<_>>>()?;
        self.optimizer.backward_step(&Tensor::cat(&losses, 0)?.mean_all()?)?;
        self.steps += 1;
        if self.steps.is_multiple_of(FOLLOW) {
            self.before = self.now.frozen()?;
        }
        Ok(())
    }
}
