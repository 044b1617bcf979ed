//! Where tensors are when: on the device, in host memory, or nowhere, to be computed again.
//!
//! A [`Strategy`](crate::Strategy) makes, under a limit, a [`ResidencyChoice`] over a [`Timeline`]. [`Walker`] carries
//! it out as a [`Script`] of kernels, copies and repeats, so that whatever was chosen, every task finds
//! its operands; [`Room::schedule`] gives copies the time to run beside kernels and predicts
//! the step's seconds; [`rewrite`] makes the script a plan, and the passes that follow the strategy
//! ([`Tail`](crate::tail::Tail)) place and simulate it.
//!
//! All copies are joined as a step ends. What has its home in host memory is copied there in
//! the step that renews it; what has it on the device may leave as the next step begins
//! ([`ResidencyChoice`]), which is how copies run beside kernels across the boundary.
//!
//! Sound because a copy holds the same bytes, a repeated node is pure and reads the same
//! operands (states as they enter, the generator's key its own), and `check` proves it.

mod absence;
mod choice;
mod rewrite;
mod schedule;
mod script;
#[cfg(test)]
mod tests;
mod timeline;

pub use absence::{Absence, Idle, absences, across_steps};
pub use choice::{Gap, ResidencyChoice};
pub use rewrite::rewrite;
pub use schedule::{Prediction, Room};
pub use script::{Fetch, Script, ScriptStep, Store, StoreKind, Walker};
pub use timeline::{RaggedRows, Tensor, Timeline};
