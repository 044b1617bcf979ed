//! What a run is told: data, initial values, how long, where results go.

use super::{Initial, OnSaveError};
use crate::data::Mixing;
use crate::gpu_code::Trust;
use arenic_runtime::ranks::Communicator;
use arenic_runtime::ways::Way;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How many steps to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This many steps; after the last row of the data the first follows.
    Steps(u64),
    /// This many times through the data.
    Epochs(u64),
}

/// What to run, besides the artifact.
#[derive(Debug)]
pub struct TrainOptions {
    /// Batches, as `.npz` files.
    pub data: Vec<PathBuf>,
    /// How several files, or several variants, share the steps.
    pub mixing: Mixing,
    /// Initial values of states, and replacements of constants.
    pub initial: Initial,
    /// Inputs of one element, as `name`, `value`.
    pub set: Vec<(String, String)>,
    /// How long.
    pub length: Length,
    /// Permute rows or batches, from this seed.
    pub shuffle: Option<u64>,
    /// Seed of random operators; by default that of the loaded state, else 0.
    pub seed: Option<u64>,
    /// Where states are saved at the end.
    pub save: Option<PathBuf>,
    /// Also save every this many steps.
    pub save_every: Option<u64>,
    /// What to do if saving fails.
    pub on_save_error: OnSaveError,
    /// Where non-scalar outputs go.
    pub outputs: Option<PathBuf>,
    /// Threads; 0 takes one per core.
    pub threads: usize,
    /// On a GPU: algorithms of libraries are deterministic ones, not chosen by measurement.
    pub deterministic: bool,
    /// Whose code for GPUs is run.
    pub trust: Trust,
    /// Fill dead bytes with NaN patterns.
    pub poison: bool,
    /// Where the times of the last step's commands go, in the trace event format.
    pub trace: Option<PathBuf>,
    /// Called once, before the first step, with the ways that products, convolutions and attentions
    /// go: on a GPU.
    pub ways: Option<fn(&[Way])>,
    /// Once this is set the run ends with the step that it is at, as if that were the last one. Of several ranks
    /// one that is told so ends the run of all.
    pub stop: Option<&'static AtomicBool>,
    /// The other ranks that run the step, too; `None` for a process alone.
    pub ranks: Option<Arc<dyn Communicator>>,
    /// How long a rank may be silent; by default ten seconds beyond three times the longest step so far.
    pub rank_timeout: Option<Duration>,
}

/// Once through the data from initial values, without saving anything.
impl Default for TrainOptions {
    fn default() -> TrainOptions {
        TrainOptions {
            data: Vec::new(),
            mixing: Mixing::default(),
            initial: Initial::default(),
            set: Vec::new(),
            length: Length::Epochs(1),
            shuffle: None,
            seed: None,
            save: None,
            save_every: None,
            on_save_error: OnSaveError::Stop,
            outputs: None,
            threads: 0,
            deterministic: false,
            trust: Trust::Own,
            poison: false,
            trace: None,
            ways: None,
            stop: None,
            ranks: None,
            rank_timeout: None,
        }
    }
}
