//! A step in rounds: the batch is fed in parts of equal size, one after another.
//!
//! Such a step is three graphs with a program each. The main one runs once per round and reads the
//! round's rows of the batch; another runs once before all rounds, and a third once after them. They
//! have the same states in the same homes, so that a state which one part leaves is what the next
//! one finds. States that are [`carried`](crate::State::carried) take sums from round to round: of
//! gradients and losses.
//!
//! [`check_rounds`](crate::check::check_rounds) proves that each program implements its graph and
//! that any sequence of them is safe. That the three graphs compute the whole step is the word of
//! the pass that divided it, as for every pass that rewrites a graph.

use std::collections::BTreeSet;

/// What runs around the rounds of a step; `P` is a part, whatever is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounds<P> {
    /// How often the main part runs in a step; at least 1.
    pub count: u32,
    /// Names of inputs and outputs of the main part that have a round's rows of the step's: of `count`
    /// equal parts of the first axis, round `k` has part `k`.
    pub by_rows: BTreeSet<String>,
    /// Runs before the first round. Its inputs are the whole batch's.
    pub before: P,
    /// Runs after the last round. Its inputs are the whole batch's.
    pub after: P,
}

impl<P> Rounds<P> {
    /// The same rounds with other parts.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn map<'a, Q, E>(
        &'a self,
        mut f: impl FnMut(&'a P) -> Result<Q, E>,
    ) -> Result<Rounds<Q>, E> {
        let (before, after) = (f(&self.before)?, f(&self.after)?);
        Ok(Rounds { count: self.count, by_rows: self.by_rows.clone(), before, after })
    }
}
