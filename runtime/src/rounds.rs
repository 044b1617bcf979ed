//! A step in rounds as one machine.
//!
//! [`WholeStep`] says what such a step is fed and gives: the whole batch, whose rows its main part
//! gets round by round. [`InRounds`] keeps the batch in memory of its own, feeds each part before
//! its turn, and collects what parts give. The parts are executors over the same arenas, of which
//! one runs at a time.

mod machine;
mod whole;

pub use machine::InRounds;
pub use whole::{Part, RoundsError, WholeStep};
