//! AutoSwap (Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems",
//! section IV): swaps alone, chosen by priority scores.
//!
//! [`candidates`] are tensors of at least 1 MB that lie idle across the peak of the load curve,
//! states across the step boundary among them. A [`score`] ranks them; in this sequence they
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
//! ([`crate::residency`]), and `check` proves it.

mod candidates;
mod load;
mod score;
#[cfg(test)]
mod tests;
mod tune;

use crate::residency::{Problem, ResidencyChoice, Room, StrategyResult, Timeline, Walker};
use crate::tail::Finished;
use crate::{PassError, Stats, Strategy};
use arenic_ir::cost::Device;
use candidates::Candidates;
use schemars::JsonSchema;
pub use score::Score;
use score::{SCORES, Weights};
use serde::{Deserialize, Serialize};
use tune::tune;

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
        SwapAutoswap { score: Score::default(), min_bytes: 1_000_000, evaluations: 30 }
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
        let mut judge = Judge { p, walker: Walker::new(&p.t), room: Room::new(&p.t, p.device) };
        let (mut best, mut placed, mut evaluations): (Option<Finished>, _, _) = (None, 0, 0);
        let mut keep = |(found, count): (Option<Finished>, u64)| {
            placed += count;
            let faster = |f: &Finished| best.as_ref().is_none_or(|b| f.seconds < b.seconds);
            best = found.filter(faster).or(best.take());
        };
        let everything = candidates.select(&ALONE[0], 0);
        if p.whole <= p.limit {
            // Nothing needs to leave.
        } else if judge.load(&everything) > p.limit {
            // Sharing in place may still do with less than the load says.
            let found = p.carry_out(&everything, 0)?;
            keep((found.filter(|f| f.fits(&p.cx.limits)), 1));
        } else {
            for weights in self.score.alone() {
                keep(p.aim(|aim| Some(candidates.select(weights, aim)))?);
            }
            if self.score == Score::Bo {
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
            ("candidates", candidates.len() as u64),
            ("load_min_bytes", judge.load(&candidates.all())),
            ("evaluations", evaluations),
            ("plans_placed", placed),
        ]);
        Ok(StrategyResult { best, stats, ..StrategyResult::default() })
    }
}

/// What each score alone lets leave so that live bytes keep a limit; for other searches to
/// begin with.
pub(crate) fn by_each_score(t: &Timeline, device: &Device, limit: u64) -> Vec<ResidencyChoice> {
    let candidates = Candidates::new(t, device, SwapAutoswap::default().min_bytes);
    ALONE.iter().map(|weights| candidates.select(weights, limit)).collect()
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

    /// The peak of a choice whose copies take no time, in bytes.
    fn load(&mut self, choice: &ResidencyChoice) -> u64 {
        let script = self.walker.walk(choice);
        script.and_then(|s| s.steps.iter().map(|step| step.live).max()).unwrap_or(0)
    }
}

/// Each score alone.
const ALONE: [Weights; SCORES] =
    [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]];

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
