//! AutoSwap (Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems",
//! section IV): swaps alone, chosen by priority scores.
//!
//! Candidates are tensors of at least 1 MB that lie idle across the peak of the load curve,
//! states across the step boundary among them. A [`Score`] ranks them ([`arenic_passes::scores`]); in this sequence they
//! leave until the load fits, and their copies are scheduled as section IV-E says
//! (`Room::schedule`). The score `bo` is a weighted sum of the other four, its weights
//! [tuned](tune) by Bayesian optimization of the predicted overhead; as the four are carried
//! out beside it, it is never worse than the best of them.
//!
//! Where all candidates leave the load above the limit, other tensors follow by the same
//! scores ("by swapping variables not only from the candidate variables", section VI-B). In one
//! thing this departs from the paper: a tensor whose absence frees nothing at a position above
//! the limit is passed over.
//!
//! Sound because a copy holds the same bytes, a repeated operator is pure and reads the same operands
//! ([`arenic_passes::residency`]), and `check` proves it.

#[cfg(test)]
mod tests;
mod tune;

use arenic_passes::residency::{ResidencyChoice, Room, Walker};
use arenic_passes::scores::{
    ALONE, Candidates, LEAST_BYTES, Weights, everything, load_of, selects,
};
use arenic_passes::tail::Finished;
use arenic_passes::{PassError, Problem, Stats, Strategy, StrategyResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tune::tune;

/// A priority score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Duration of absence: seconds between the two accesses, less both copies.
    Doa,
    /// Area of absence: duration of absence times bytes, or divided by bytes if negative.
    Aoa,
    /// Weighted duration of absence: byte-seconds under the load between the two accesses.
    Wdoa,
    /// Submodular WDOA: the same under the load that earlier selections leave.
    Swdoa,
    /// The sum of all four with tuned weights (equation 3).
    #[default]
    Bo,
}

/// Swaps by AutoSwap's priority scores until the plan keeps the byte limit; without a limit it does
/// nothing.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SwapAutoswap {
    /// Score that ranks the candidates.
    pub score: Score,
    /// Least size of a candidate, in bytes.
    pub min_bytes: u64,
    /// Weights that `bo` tries, the four scores alone included.
    pub evaluations: usize,
}

impl Default for SwapAutoswap {
    fn default() -> Self {
        SwapAutoswap { score: Score::default(), min_bytes: LEAST_BYTES, evaluations: 30 }
    }
}

/// What a choice costs that cannot be carried out, as a part of the step.
const IMPOSSIBLE: f64 = 10.0;

impl Strategy for SwapAutoswap {
    fn moves(&self) -> bool {
        true
    }

    /// The fastest plan that the scores lead to.
    fn search(&self, p: &Problem) -> Result<StrategyResult, PassError> {
        let candidates = Candidates::new(&p.t, p.device, self.min_bytes);
        let (mut best, mut placed, mut evaluations) = (None, 0, 0);
        let mut keep = |(found, count): (Option<Finished>, u64)| {
            placed += count;
            best = Finished::fastest([best.take(), found]);
        };
        if p.whole <= p.limit {
            // Nothing needs to leave.
        } else if !selects(p, &candidates) {
            keep((everything(p, &candidates)?, 1));
        } else {
            for weights in self.score.alone() {
                keep(p.aim(|aim| Some(candidates.select(weights, aim)))?);
            }
            if self.score == Score::Bo {
                let mut judge =
                    Judge { p, walker: Walker::new(&p.t), room: Room::new(&p.t, p.device) };
                keep(p.aim(|aim| {
                    let overhead = |weights: &Weights| {
                        evaluations += 1;
                        judge.overhead(&candidates.select(weights, aim), aim)
                    };
                    let weights = tune(self.evaluations, p.cx.search.seed, overhead);
                    Some(candidates.select(&weights, aim))
                })?);
            }
        }
        let stats = Stats::from([
            ("candidates", candidates.count() as u64),
            ("load_min_bytes", load_of(&p.t, &candidates.all())),
            ("evaluations", evaluations),
            ("plans_placed", placed),
        ]);
        Ok(StrategyResult { best, stats, ..StrategyResult::default() })
    }
}

/// Judges choices without placing them.
struct Judge<'a> {
    p: &'a Problem<'a>,
    walker: Walker<'a>,
    room: Room,
}

impl Judge<'_> {
    /// The predicted overhead as a part of the step, and a fine for bytes above the limit.
    fn overhead(&mut self, choice: &ResidencyChoice, limit: u64) -> f64 {
        let Some(script) = self.walker.walk(choice) else { return IMPOSSIBLE };
        let promise = self.room.schedule(script, limit);
        let step = self.p.t.start.last().copied().unwrap_or(0.0).max(f64::MIN_POSITIVE);
        let fine = match promise.over {
            0 => 0.0,
            over => (over as f64 / limit.max(1) as f64).min(IMPOSSIBLE),
        };
        (promise.seconds / step - 1.0).min(IMPOSSIBLE) + fine
    }
}

impl Score {
    /// The scores that are carried out alone, as weights.
    fn alone(self) -> &'static [Weights] {
        match self {
            Score::Doa => &ALONE[0..1],
            Score::Aoa => &ALONE[1..2],
            Score::Wdoa => &ALONE[2..3],
            Score::Swdoa => &ALONE[3..4],
            Score::Bo => &ALONE,
        }
    }
}
