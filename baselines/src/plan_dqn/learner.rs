//! The network at work: arenic compiles it, and a training step of it (equation 4), by its own default pipeline,
//! and runs both on one thread.

use super::actions::World;
use super::episode::State;
use super::network::{Asked, FEATURES, Shape, inputs};
use arenic_backends::CPU;
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::program::Program;
use arenic_passes::differentiate::{Differentiate, Optimizer, Standing};
use arenic_passes::pipeline::{Pipeline, RunOptions};
use arenic_passes::{Cx, PassError, Search, Standard};
use arenic_runtime::executor::{Executor, ExecutorOptions};
use arenic_runtime::kernel::Draw;
use std::collections::BTreeMap;
use std::fmt::Display;

/// States of a graph, as bytes by name.
type States = BTreeMap<String, Vec<u8>>;

/// What was learned, of whatever world.
pub(super) struct Network {
    shape: Shape,
    learning_rate: f32,
    /// The weights, with what the optimizer keeps of each.
    now: States,
    /// The weights as they were some steps ago: targets are by these, or they would run away from what
    /// follows them.
    before: States,
    steps: usize,
}

/// Steps after which targets follow.
const FOLLOW: usize = 20;

/// Seconds of the reference core that a round takes in any graph, and more for each product of
/// two numbers.
const PER_ROUND: f64 = 1e-5;
const PER_PRODUCT: f64 = 5e-10;

fn failed(error: impl Display) -> PassError {
    PassError::Other(format!("the network failed: {error}"))
}

impl Network {
    /// With random weights.
    pub(super) fn new(shape: Shape, learning_rate: f64, random: &mut fastrand::Rng) -> Network {
        let now: States = shape.random(random).into_iter().collect();
        let before = now.clone();
        Network { shape, learning_rate: learning_rate as f32, now, before, steps: 0 }
    }
}

/// A graph and the program that implements it.
struct Compiled {
    graph: Graph,
    program: Program,
}

impl Compiled {
    fn new(graph: Graph, trained: Option<Differentiate>) -> Result<Compiled, PassError> {
        let pipeline = Pipeline::named("default", &Standard);
        let pipeline = pipeline.ok_or_else(|| failed("there is no default pipeline"))?;
        let pipeline = match trained {
            Some(pass) => pipeline.differentiating(pass)?,
            None => pipeline,
        };
        let search = Search { effort: Some(0.0), ..Search::default() };
        let cx = Cx { search, ..Cx::new(CPU.target()) };
        let outcome = pipeline.run(graph, &cx, RunOptions::default()).map_err(failed)?.module;
        let program = outcome.program.ok_or_else(|| failed("the pipeline makes no program"))?;
        Ok(Compiled { graph: outcome.graph, program })
    }

    fn runner(&self, states: &States) -> Result<Runner<'_>, PassError> {
        let options = ExecutorOptions { threads: 1, ..ExecutorOptions::default() };
        let executor = Executor::new(&self.graph, &self.program, options).map_err(failed)?;
        let mut runner = Runner { graph: &self.graph, executor };
        for (v, data) in self.graph.consts() {
            let bytes = data.bytes().ok_or_else(|| failed("a constant has no bytes"))?;
            runner.fill(v, bytes);
        }
        for state in self.graph.states.values() {
            if let Some(init) = state.init.as_ref().and_then(|init| init.bytes()) {
                runner.fill(state.enter, init);
            }
        }
        runner.set_states(states);
        Ok(runner)
    }
}

/// A program that runs.
struct Runner<'p> {
    graph: &'p Graph,
    executor: Executor<'p>,
}

impl Runner<'_> {
    fn fill(&mut self, v: ValueId, bytes: &[u8]) {
        if let Some(home) = self.executor.carried_mut(v) {
            home.copy_from_slice(bytes);
        }
    }

    /// Sets those states that are named.
    fn set_states(&mut self, states: &States) {
        for state in self.graph.states.values() {
            if let Some(bytes) = states.get(&state.name) {
                self.fill(state.enter, bytes);
            }
        }
    }

    fn states(&self) -> States {
        let states = self.graph.states.iter();
        states.map(|(s, state)| (state.name.clone(), self.executor.state(s).to_vec())).collect()
    }

    /// Feeds the elements of an input, as bytes.
    fn feed<const N: usize>(&mut self, name: &str, elements: impl Iterator<Item = [u8; N]>) {
        let input = self.graph.inputs().find(|&v| self.graph.values[v].name == name);
        if let Some(home) = input.and_then(|v| self.executor.input_mut(v)) {
            home.as_chunks_mut().0.iter_mut().zip(elements).for_each(|(to, from)| *to = from);
        }
    }

    fn step(&mut self) -> Result<(), PassError> {
        self.executor.step(Draw::default()).map_err(failed)
    }

    /// The first output.
    fn output(&self) -> impl Iterator<Item = f32> {
        self.executor.output(0).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
    }
}

/// The network compiled for a world.
pub(super) struct Programs<'w> {
    world: &'w World<'w>,
    /// One state in, what each node's action is worth out.
    answers: Compiled,
    /// A training step on a batch of states, of each one action.
    learns: Compiled,
}

impl<'w> Programs<'w> {
    /// Compiles a network for a world; steps are taken on batches of so many states.
    ///
    /// # Errors
    /// None but a defect's.
    pub(super) fn new(
        world: &'w World<'w>,
        network: &Network,
        batch: usize,
    ) -> Result<Programs<'w>, PassError> {
        let graph = |asked| network.shape.graph(world, asked).map_err(failed);
        let weights = network.before.keys().map(|name| (name.clone(), Standing::Parameter));
        let pass = Differentiate {
            loss: "mse".into(),
            optimizer: Optimizer::Adam,
            weights: weights.collect(),
            ..Differentiate::default()
        };
        Ok(Programs {
            world,
            answers: Compiled::new(graph(Asked::All)?, None)?,
            learns: Compiled::new(graph(Asked::One { states: batch })?, Some(pass))?,
        })
    }

    /// The world that they are for.
    pub(super) fn world(&self) -> &'w World<'w> {
        self.world
    }
}

/// A network that answers and learns in a world.
pub(super) struct Learner<'p> {
    world: &'p World<'p>,
    network: &'p mut Network,
    now: Runner<'p>,
    before: Runner<'p>,
    learns: Runner<'p>,
}

impl<'p> Learner<'p> {
    /// Goes on with what the network learned.
    ///
    /// # Errors
    /// No memory is left.
    pub(super) fn new(
        programs: &'p Programs,
        network: &'p mut Network,
    ) -> Result<Learner<'p>, PassError> {
        let now = programs.answers.runner(&network.now)?;
        let before = programs.answers.runner(&network.before)?;
        let learns = programs.learns.runner(&network.now)?;
        Ok(Learner { world: programs.world, network, now, before, learns })
    }

    /// Seconds of the reference core for one answer.
    pub(super) fn effort(&self) -> f64 {
        let (n, edges) = (self.world.events.nodes.len(), self.world.events.beside.len());
        let Shape { embedding, rounds } = self.network.shape;
        let multiplied = n * embedding * embedding + (n + edges) * embedding;
        rounds as f64 * (PER_ROUND + PER_PRODUCT * multiplied as f64)
    }

    /// The best action of a state.
    ///
    /// # Errors
    /// None but a defect's.
    pub(super) fn best(&mut self, state: &State) -> Result<Option<usize>, PassError> {
        Ok(best(self.world, &mut self.now, state)?.map(|(action, _)| action))
    }

    /// What the best action of a state is worth: nothing is worth more than no cost.
    ///
    /// # Errors
    /// None but a defect's.
    pub(super) fn worth(&mut self, state: &State) -> Result<f64, PassError> {
        let best = best(self.world, &mut self.before, state)?;
        Ok(best.map_or(0.0, |(_, worth)| f64::from(worth.min(0.0))))
    }

    /// Equation 4: a step towards what actions turned out to be worth, as many as a batch has.
    ///
    /// # Errors
    /// None but a defect's.
    pub(super) fn learn(&mut self, samples: &[(&State, usize, f64)]) -> Result<(), PassError> {
        let nodes = self.world.events.nodes.len();
        let row = |(i, v): (usize, usize)| ((i * nodes + v) as i64).to_le_bytes();
        let states = samples.iter().map(|sample| sample.0);
        let current = states.clone().map(|state| state.current).enumerate();
        let actions = samples.iter().map(|sample| sample.1).enumerate();
        let worth = samples.iter().map(|sample| (sample.2 as f32).to_le_bytes());
        self.learns.feed(inputs::FEATURES, states.flat_map(|s| features(self.world, s)));
        self.learns.feed(inputs::CURRENT, current.map(row));
        self.learns.feed(inputs::ACTION, actions.map(row));
        self.learns.feed("target", worth);
        self.learns.feed("lr", std::iter::once(self.network.learning_rate.to_le_bytes()));
        self.learns.step()?;
        self.network.now = self.learns.states();
        self.now.set_states(&self.network.now);
        self.network.steps += 1;
        if self.network.steps.is_multiple_of(FOLLOW) {
            self.before.set_states(&self.network.now);
            self.network.before = self.before.states();
        }
        Ok(())
    }
}

/// The features of all nodes in a state.
fn features<'s>(world: &'s World, state: &'s State) -> impl Iterator<Item = [u8; 4]> + 's {
    let nodes = world.features.iter().zip(&state.valid);
    nodes.flat_map(|(fixed, &valid)| {
        let all: [f32; FEATURES] = std::array::from_fn(|i| match fixed.get(i) {
            Some(&fixed) => fixed,
            None => f32::from(u8::from(valid)),
        });
        all.map(f32::to_le_bytes)
    })
}

/// What each node's action is worth in a state.
fn all<'r>(
    world: &World,
    answers: &'r mut Runner,
    state: &State,
) -> Result<impl Iterator<Item = f32> + 'r, PassError> {
    answers.feed(inputs::FEATURES, features(world, state));
    answers.feed(inputs::CURRENT, std::iter::once((state.current as i64).to_le_bytes()));
    answers.step()?;
    Ok(answers.output())
}

/// The best action of a state, and what it is worth.
fn best(
    world: &World,
    answers: &mut Runner,
    state: &State,
) -> Result<Option<(usize, f32)>, PassError> {
    let valid = all(world, answers, state)?.enumerate().filter(|&(v, _)| state.valid[v]);
    Ok(valid.reduce(|best, new| if new.1 > best.1 { new } else { best }))
}

#[cfg(test)]
impl Network {
    pub(super) fn weight(&self, name: &str) -> Vec<f32> {
        self.now[name].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

#[cfg(test)]
impl Learner<'_> {
    pub(super) fn all(&mut self, state: &State) -> Result<Vec<f32>, PassError> {
        Ok(all(self.world, &mut self.now, state)?.collect())
    }
}
