//! States on disk: where they are wanted, or else where there is room.

use super::{TrainError, TrainOptions};
use crate::data::{DataError, Notice, Progress, save};
use arenic_ir::graph::Graph;
use arenic_ir::types::TensorType;
use arenic_runtime::machine::Machine;
use arenic_runtime::variants::Variants;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What to do where states cannot be saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSaveError {
    /// Save them elsewhere, and end the run.
    #[default]
    Stop,
    /// Try again until it works, or until the run is told to stop.
    Wait,
}

/// How long to wait before states are saved again.
const PAUSE: Duration = Duration::from_secs(1);

/// How often in this time to see whether the run is told to stop.
const LOOKS: u32 = 10;

/// Where the states of a run that failed are.
#[derive(Debug)]
pub struct Kept {
    /// Steps that the states have behind them.
    pub steps: u64,
    /// The file; `None` if they could be written nowhere.
    pub path: Option<PathBuf>,
    /// Where they could not be written, and why not.
    pub refused: Vec<(PathBuf, String)>,
    /// States that the step that failed had written already, by name.
    pub renewed: Vec<String>,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kept { steps, path, refused, renewed } = self;
        match path {
            Some(path) => {
                let path = path.display();
                write!(f, "the state after {steps} steps is in `{path}`, which --init takes")?;
                if let Some(first) = renewed.first() {
                    let n = renewed.len();
                    write!(
                        f,
                        ", but {n} of its tensors are as the failed step left them (`{first}`"
                    )?;
                    f.write_str(if n > 1 { ", ...)" } else { ")" })?;
                }
                Ok(())
            }
            None => {
                write!(f, "the state after {steps} steps could be saved nowhere")?;
                refused
                    .iter()
                    .try_for_each(|(path, why)| write!(f, "; `{}`: {why}", path.display()))
            }
        }
    }
}

/// Saves the states of one run.
pub(super) struct Saver<'a> {
    /// Those of all variants.
    pub(super) graphs: Vec<&'a Graph>,
    pub(super) options: &'a TrainOptions,
    /// The seed of random operators, which is saved, too.
    pub(super) seed: u64,
}

impl Saver<'_> {
    /// Saves the states after `step` steps. Where that fails they are saved elsewhere, or it is
    /// tried until it works, as the options say.
    pub(super) fn save(
        &self,
        path: &Path,
        machines: &Variants<impl Machine>,
        step: u64,
        notice: &mut impl FnMut(&Notice),
    ) -> Result<(), TrainError> {
        let mut result = self.write(path, machines, step);
        if let Err(TrainError::Data(error)) = &result
            && self.options.on_save_error == OnSaveError::Wait
            && may_pass(error)
            && !self.is_told_to_stop()
        {
            notice(&Notice::WaitsToSave { error: error.to_string() });
            while result.is_err() && self.pause() {
                result = self.write(path, machines, step);
            }
            if result.is_ok() {
                notice(&Notice::SavedAtLast { path: path.to_owned() });
            }
        }
        result.map_err(|error| self.rescue(error, machines, step, Vec::new()))
    }

    /// Saves states that are not finite where nobody takes them for good ones: as
    /// `W.nonfinite.safetensors` beside `W.safetensors`. Gives the error that says where they are.
    pub(super) fn save_aside(
        &self,
        error: TrainError,
        machines: &Variants<impl Machine>,
        steps: u64,
        notice: &mut impl FnMut(&Notice),
    ) -> TrainError {
        let Some(wanted) = &self.options.save else { return error };
        let aside = wanted.with_extension("nonfinite.safetensors");
        let kept = match self.save(&aside, machines, steps, notice) {
            Ok(()) => Kept { steps, path: Some(aside), refused: Vec::new(), renewed: Vec::new() },
            Err(TrainError::Kept { kept, .. }) => kept,
            Err(other) => return other,
        };
        TrainError::Kept { error: Box::new(error), kept }
    }

    /// Saves states that are not to be lost with an error: beside where they are wanted, or else
    /// in a folder for temporary files. Without a wish to save them the error stays alone.
    pub(super) fn rescue(
        &self,
        error: TrainError,
        machines: &Variants<impl Machine>,
        steps: u64,
        renewed: Vec<String>,
    ) -> TrainError {
        let Some(wanted) = &self.options.save else { return error };
        let mut kept = Kept { steps, path: None, refused: Vec::new(), renewed };
        let beside = beside(wanted, steps);
        match self.write(&beside, machines, steps) {
            Ok(()) => kept.path = Some(beside),
            Err(e) => {
                kept.refused.push((beside.clone(), e.to_string()));
                self.rescue_far(&beside, machines, &mut kept);
            }
        }
        TrainError::Kept { error: Box::new(error), kept }
    }

    /// What failed after the states were saved where they are wanted.
    pub(super) fn saved_before(&self, error: DataError, steps: u64) -> TrainError {
        let Some(path) = self.options.save.clone() else { return error.into() };
        let kept = Kept { steps, path: Some(path), refused: Vec::new(), renewed: Vec::new() };
        TrainError::Kept { error: Box::new(error.into()), kept }
    }

    /// A folder of its own, so that nobody else's files or links are in the way.
    fn rescue_far(&self, beside: &Path, machines: &Variants<impl Machine>, kept: &mut Kept) {
        let all = std::env::temp_dir();
        let far = tempfile::Builder::new().prefix("arenic-rescued-").tempdir_in(&all);
        let folder = match far {
            Ok(folder) => folder,
            Err(e) => return kept.refused.push((all, e.to_string())),
        };
        let path = folder.path().join(beside.file_name().unwrap_or_default());
        match self.write(&path, machines, kept.steps) {
            Ok(()) => {
                let _ = folder.keep();
                kept.path = Some(path);
            }
            Err(e) => kept.refused.push((all, e.to_string())),
        }
    }

    /// True once the run is to end.
    pub(super) fn is_told_to_stop(&self) -> bool {
        self.options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Waits a while; false where the run is told to stop.
    fn pause(&self) -> bool {
        (0..LOOKS).all(|_| {
            std::thread::sleep(PAUSE / LOOKS);
            !self.is_told_to_stop()
        })
    }

    fn write(
        &self,
        path: &Path,
        machines: &Variants<impl Machine>,
        step: u64,
    ) -> Result<(), TrainError> {
        let mut tensors: BTreeMap<&str, (usize, TensorType, Cow<[u8]>)> = BTreeMap::new();
        for (v, &g) in self.graphs.iter().enumerate() {
            for (s, state) in &g.states {
                match tensors.entry(&state.name) {
                    Entry::Vacant(entry) => {
                        entry.insert((v, g.saved_type(s), machines.read(v).state(s)?));
                    }
                    // The rows of one tensor are states of its name, one after another.
                    Entry::Occupied(mut entry) if entry.get().0 == v => {
                        let bytes = machines.read(v).state(s)?;
                        entry.get_mut().2.to_mut().extend_from_slice(&bytes);
                    }
                    // Another variant has it at the same place.
                    Entry::Occupied(_) => {}
                }
            }
        }
        let states = tensors.iter().map(|(&name, (_, ty, bytes))| (name, ty, &bytes[..]));
        let progress = Progress { step, seed: self.seed };
        Ok(save(path, states, &progress.to_metadata())?)
    }
}

/// True where the same save may work later.
fn may_pass(error: &DataError) -> bool {
    matches!(error, DataError::Io { .. } | DataError::NoFile { .. })
}

/// `W.rescued-STEPS.safetensors` beside `W.safetensors`, or such a name that is not taken.
fn beside(wanted: &Path, steps: u64) -> PathBuf {
    let name = |extension: String| wanted.with_extension(extension);
    let first = name(format!("rescued-{steps}.safetensors"));
    let others = (2..1000).map(|n| name(format!("rescued-{steps}-{n}.safetensors")));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    std::iter::once(first.clone()).chain(others).find(is_free).unwrap_or(first)
}
