//! States on disk: where they are wanted, or else where there is room.

use super::initial::part;
use super::ranks::Peers;
use super::{TrainError, TrainOptions};
use crate::data::{DataError, Notice, Progress, in_file_order, save_streamed};
use arenic_ir::graph::{Graph, StateId};
use arenic_ir::types::TensorType;
use arenic_runtime::machine::Machine;
use arenic_runtime::ranks::RankError;
use arenic_runtime::variants::Variants;
use std::collections::BTreeMap;
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
    /// Ranks save together: each has its part of some states, and the first one writes.
    pub(super) peers: Peers<'a>,
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
            && !self.peers.are_several()
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

    /// True once the run is to end, on all ranks alike.
    pub(super) fn all_are_told_to_stop(&self) -> Result<bool, RankError> {
        self.peers.any(self.is_told_to_stop())
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
        let mut tensors: BTreeMap<&str, Saved> = BTreeMap::new();
        for (v, &g) in self.graphs.iter().enumerate() {
            for (s, state) in &g.states {
                let tensor =
                    tensors.entry(&state.name).or_insert_with(|| (g.saved_type(s), vec![]));
                // The rows of one tensor are states of its name, one after another; another variant
                // has it at the same place.
                if tensor.1.first().is_none_or(|(of, _)| *of == v) {
                    tensor.1.push((v, s));
                }
            }
        }
        let types = in_file_order(tensors.iter().map(|(&name, (ty, _))| (name, ty)));
        let progress = Progress { step, seed: self.seed };
        self.peers.wait_long();
        let put_tensor = |name: &str, put: Put| {
            for &(v, s) in tensors.get(name).map_or(&[][..], |(_, states)| states) {
                self.put(machines.read(v), self.graphs[v], s, put)?;
            }
            Ok::<(), TrainError>(())
        };
        let mut result = Ok(());
        if self.peers.is_first() {
            let metadata = progress.to_metadata();
            // What is received is taken to the end, whatever became of the file.
            let mut done = 0;
            result = save_streamed(path, &types, &metadata, |name, put| {
                done += 1;
                let mut failed = None;
                put_tensor(name, &mut |bytes| {
                    if failed.is_none() {
                        failed = put(bytes).err();
                    }
                    Ok(())
                })?;
                failed.map_or(Ok(()), |e| Err(e.into()))
            });
            if self.peers.are_several() {
                for (name, _) in &types[done..] {
                    put_tensor(name, &mut |_| Ok(()))?;
                }
            }
        } else {
            for (name, _) in &types {
                put_tensor(name, &mut |_| Ok(()))?;
            }
        }
        let failed = self.peers.any(result.is_err())?;
        self.peers.watch_again();
        if failed && result.is_ok() { Err(TrainError::FirstRank) } else { result }
    }

    /// Hands the bytes of a state to `put`, piece by piece. Of a state in parts every rank sends its
    /// part to the first one, which puts them one after another.
    fn put(
        &self,
        machine: &impl Machine,
        g: &Graph,
        s: StateId,
        put: Put,
    ) -> Result<(), TrainError> {
        let bytes = machine.state(s)?;
        let (Some(whole), Some(ranks)) = (&g.states[s].part_of, self.peers.others()) else {
            return Ok(put(&bytes)?);
        };
        let first = self.peers.is_first();
        let mut room = vec![0; if first { PIECE.min(bytes.len()) } else { 0 }];
        for from in 0..ranks.ranks() {
            let (_, len) = part(whole, from, bytes.len());
            for at in (0..len).step_by(PIECE) {
                let n = PIECE.min(len - at);
                let own = &bytes[at..at + n];
                if from == 0 {
                    put(own)?;
                    continue;
                }
                // This one alone sends something, and the first one alone receives it.
                let mut sent: Vec<&[u8]> = vec![&[]; ranks.ranks()];
                if ranks.rank() == from {
                    sent[0] = own;
                }
                let mut received: Vec<&mut [u8]> =
                    std::iter::repeat_with(|| &mut [][..]).take(ranks.ranks()).collect();
                if first {
                    received[from] = &mut room[..n];
                }
                ranks.exchange(&sent, &mut received)?;
                if first {
                    put(&room[..n])?;
                }
            }
        }
        Ok(())
    }
}

/// A tensor, and the states that are it or its rows, each with its variant.
type Saved = (TensorType, Vec<(usize, StateId)>);

/// Takes bytes to where they are written.
type Put<'p> = &'p mut dyn FnMut(&[u8]) -> Result<(), DataError>;

/// Bytes of a state that go from rank to rank at a time.
const PIECE: usize = 1 << 20;

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
