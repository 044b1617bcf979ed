//! From training to a plan that fits.

use super::PlanDqn;
use super::actions::World;
use super::learner::{Network, Programs};
use super::network::Shape;
use super::train::Agent;
use arenic_passes::residency::ResidencyChoice;
use arenic_passes::{PassError, Problem, Stats, StrategyResult};

impl PlanDqn {
    /// The best episode, placed; a lower aim goes on with the same network.
    pub(super) fn trained(&self, p: &Problem) -> Result<StrategyResult, PassError> {
        let search = &p.cx.search;
        let mut random = fastrand::Rng::with_seed(search.seed);
        let shape = Shape { embedding: self.embedding, rounds: self.rounds };
        let mut network = Network::new(shape, self.learning_rate, &mut random);
        let budget = search.budget(self.effort);
        let mut agent = Agent { options: self, random, search, budget, episodes: 0, actions: 0 };
        let excess = p.whole.saturating_sub(p.limit);
        let least = (excess as f64 * self.smallest) as u64;
        let world = World::new(&p.t, p.device, self.nodes, least);
        let mut episodes = self.episodes.max(1);
        if self.pretrain {
            let small = World::new(&p.t, p.device, world.events.nodes.len() / 4, least);
            let half = p.limit + excess / 2;
            let programs = Programs::new(&small, &network, self.batch)?;
            agent.train(&mut network, &programs, half, episodes)?;
        }
        let programs = Programs::new(&world, &network, self.batch)?;
        let (best, placed) = p.aim_with(|aim| {
            // Where someone asked to stop there is no episode.
            let found = agent.train(&mut network, &programs, aim, episodes)?;
            episodes = (self.episodes / 4).max(1);
            let choice =
                found.map_or_else(|| ResidencyChoice::spill_all(&p.t), |(choice, _)| choice);
            p.carry_out(&choice, aim)
        })?;
        let stats = Stats::from([
            ("nodes", world.events.nodes.len() as u64),
            ("decisions", world.actions.len() as u64),
            ("episodes", agent.episodes),
            ("actions", agent.actions),
            ("plans_placed", placed),
        ]);
        Ok(StrategyResult { best, stats, ..StrategyResult::default() })
    }
}
