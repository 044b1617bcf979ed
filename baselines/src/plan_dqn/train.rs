//! Algorithm 1: episodes, and what is learned from them.

use super::PlanDqn;
use super::episode::{Episode, State};
use super::learner::{Learner, Network, Programs};
use arenic_passes::PassError;
use arenic_passes::residency::{Prediction, ResidencyChoice};
use arenic_passes::search::{Budget, Search};
use std::collections::VecDeque;
use std::rc::Rc;

/// What an action led to.
#[derive(Clone)]
struct Transition {
    before: Rc<State>,
    action: usize,
    reward: f64,
    /// None at the end.
    after: Option<Rc<State>>,
}

/// What a sample of a batch takes, in evaluations of the network: one for its target, the others
/// for the gradient.
const LEARNED: f64 = 4.0;

/// Who plays episodes, and what it may take.
pub(super) struct Agent<'a> {
    pub(super) options: &'a PlanDqn,
    pub(super) random: fastrand::Rng,
    pub(super) search: &'a Search<'a>,
    pub(super) budget: Budget<'a>,
    /// Episodes so far, and actions in them.
    pub(super) episodes: u64,
    pub(super) actions: u64,
}

impl Agent<'_> {
    /// Trains a network in a world under a limit; the best choice of all episodes.
    pub(super) fn train(
        &mut self,
        network: &mut Network,
        programs: &Programs,
        limit: u64,
        episodes: usize,
    ) -> Result<Option<(ResidencyChoice, Prediction)>, PassError> {
        let mut learner = Learner::new(programs, network)?;
        let mut episode = Episode::new(programs.world(), limit);
        let mut replay: VecDeque<Transition> = VecDeque::new();
        let mut best: Option<(ResidencyChoice, Prediction)> = None;
        for i in 1..=episodes {
            // Where no effort is left, one episode does as well as it can.
            let late = self.budget.is_over();
            if late && i > 1 {
                break;
            }
            let greedy = if late { 1.0 } else { i as f64 / episodes as f64 };
            if !self.walk(&mut learner, &mut episode, greedy, &mut replay)? {
                break;
            }
            episode.prune();
            self.budget.spend(episode.take_effort());
            let (choice, promise) = episode.result();
            if best.as_ref().is_none_or(|(_, least)| promise.is_better_than(least)) {
                best = Some((choice.clone(), promise));
            }
        }
        Ok(best)
    }

    /// One episode, in which actions are greedy so often; false where it was stopped.
    fn walk(
        &mut self,
        learner: &mut Learner,
        episode: &mut Episode,
        greedy: f64,
        replay: &mut VecDeque<Transition>,
    ) -> Result<bool, PassError> {
        self.episodes += 1;
        let mut next = episode.begin();
        while let Some(state) = next {
            if self.search.is_stopped() {
                return Ok(false);
            }
            let action = match self.random.f64() > greedy {
                true => self.any(&state),
                false => {
                    self.budget.spend(learner.effort());
                    learner.best(&state)?
                }
            };
            let Some(action) = action else { break };
            let acted = episode.act(action);
            self.budget.spend(episode.take_effort());
            let Some((reward, after)) = acted else {
                next = Some(episode.state());
                continue;
            };
            self.actions += 1;
            if replay.len() >= self.options.replay.max(1) {
                replay.pop_front();
            }
            next = after.clone();
            replay.push_back(Transition { before: state, action, reward, after });
            if self.actions.is_multiple_of(self.options.update_every.max(1))
                && !self.budget.is_over()
            {
                self.update(learner, replay)?;
            }
        }
        Ok(true)
    }

    /// A random action.
    fn any(&mut self, state: &State) -> Option<usize> {
        let actions: Vec<usize> = state.actions().collect();
        self.random.choice(actions)
    }

    /// Equation 5 for a batch of what was seen, and a step by equation 4.
    fn update(
        &mut self,
        learner: &mut Learner,
        replay: &VecDeque<Transition>,
    ) -> Result<(), PassError> {
        let mut samples = Vec::with_capacity(self.options.batch);
        for _ in 0..self.options.batch.max(1) {
            self.budget.spend(LEARNED * learner.effort());
            let seen = &replay[self.random.usize(0..replay.len())];
            let later = match &seen.after {
                Some(state) => learner.worth(state)?,
                None => 0.0,
            };
            let worth = seen.reward + self.options.discount * later;
            samples.push((&*seen.before, seen.action, worth));
        }
        learner.learn(&samples)
    }
}
