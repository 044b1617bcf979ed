//! The deep-Q-network planner ("GPU memory management for deep neural networks using deep
//! Q-network", anonymous, under review): swaps and recomputation, as an agent learns to choose
//! them by walking over the step.
//!
//! [`events`] are the step as a graph (section 4.2), [`actions`] what its nodes stand for
//! (4.5, 4.9), an [`episode`] is a walk over it, judged by the schedule that copies and repeats
//! get (4.6 to 4.8), the [`network`] has equations 1 to 4, and [`train`] is algorithm 1 with
//! equation 5. The network is arenic's own as well: [`learner`] has it compiled, and a training step of it, and runs
//! both. Copies back are in the order of reuse (`Room::schedule`). The forward pass, in
//! which tensors are dropped, ends where the most bytes lie idle. Training begins with a smaller
//! graph, that of the same step's largest tensors under a higher limit, and goes on with the
//! same weights (4.4.2); so it does where addresses take more than live bytes, and the aim is
//! lower.
//!
//! Where this departs from the paper:
//! - The best episode is returned, not the last one; what was decided in it without need is taken
//!   back. What it promises is simulated, placed, and refused where it does not fit.
//! - A state may have its home in host memory, and a result may be handed out there; the node of
//!   the tensor's last access stands for that. Tensors too small to have nodes go to host memory
//!   where nothing else makes a position fit.
//! - The reward is what an action adds to the predicted step, with room for copies up to the peak
//!   that is left; rewards add up to minus the overhead. An action that frees nothing above the
//!   limit is none. After doing nothing, the walk goes on to where another action begins.
//! - Equation 2's sum is divided by the number of nodes, steps are Adam's instead of plain ones,
//!   and targets are by weights of some steps ago and never above zero: with plain
//!   equation 5 the values run away.
//!
//! Sound because a copy holds the same bytes, a repeated operator is pure and reads the same operands
//! ([`arenic_passes::residency`]), and `check` proves it. The same seed gives the same plan on processors with the
//! same instructions: kernels add in an order that shapes alone decide, and no random numbers are drawn but the seed's.

mod actions;
mod episode;
mod events;
mod learner;
mod network;
mod search;
#[cfg(test)]
mod tests;
mod train;

use arenic_passes::{PassError, Problem, Strategy, StrategyResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Swaps and recomputes by a deep Q-network until the plan keeps the byte limit; without a limit it
/// does nothing.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanDqn {
    /// Episodes of training; the paper's l.
    pub episodes: usize,
    /// Length of a node's vector; the paper's p.
    #[schemars(range(min = 1, max = 256))]
    pub embedding: usize,
    /// Rounds of message passing between neighbours; the paper's T.
    #[schemars(range(min = 1, max = 64))]
    pub rounds: usize,
    /// Learning rate.
    pub learning_rate: f64,
    /// Discount of later rewards; the paper's γ.
    pub discount: f64,
    /// Size of the replay buffer, in actions.
    pub replay: usize,
    /// Actions of one batch of training.
    #[schemars(range(min = 1, max = 1024))]
    pub batch: usize,
    /// Train after this many actions.
    pub update_every: u64,
    /// Most nodes of the graph; nodes are events of the largest tensors.
    #[schemars(range(min = 1, max = 65536))]
    pub nodes: usize,
    /// Least size of a tensor with nodes, as a part of the bytes by which the step exceeds the
    /// limit.
    #[schemars(range(min = 0.0))]
    pub smallest: f64,
    /// Train first on a graph of a quarter of the nodes, with a higher limit.
    pub pretrain: bool,
    /// Effort for all training, in seconds of the reference core.
    #[schemars(range(min = 0.0))]
    pub effort: f64,
}

impl Default for PlanDqn {
    fn default() -> Self {
        PlanDqn {
            episodes: 40,
            embedding: 16,
            rounds: 4,
            learning_rate: 3e-3,
            discount: 0.99,
            replay: 2000,
            batch: 8,
            update_every: 4,
            nodes: 1024,
            smallest: 0.002,
            pretrain: true,
            effort: 45.0,
        }
    }
}

impl Strategy for PlanDqn {
    fn moves(&self) -> bool {
        true
    }

    fn search(&self, p: &Problem) -> Result<StrategyResult, PassError> {
        match p.whole <= p.limit {
            true => Ok(StrategyResult::default()),
            false => self.trained(p),
        }
    }
}
