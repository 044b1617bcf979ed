//! Where states and constants get their values before the first step.

use super::{Step, replaceable};
use crate::data::{Array, DataError, Progress, TensorFile};
use crate::tensor::Tensor;
use arenic_ir::graph::Data;
use arenic_ir::types::TensorType;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::variants::Variants;
use std::collections::{BTreeMap, HashSet};

/// Sources of initial values, strongest first: tensors, the file, the model, zeros.
#[derive(Debug, Default)]
pub struct Initial {
    /// States, and constants to be replaced, by name, from memory.
    pub tensors: BTreeMap<String, Tensor>,
    /// The same in a file.
    pub file: Option<TensorFile>,
    /// Names in the file that are passed over.
    pub skip: Vec<glob::Pattern>,
    /// States without a value elsewhere that begin at zero.
    pub zeros: Vec<glob::Pattern>,
}

/// Why a state or a constant has no proper value.
#[derive(Debug, thiserror::Error)]
pub enum InitialError {
    /// The file.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Names in the file that are neither states nor constants.
    #[error(
        "--init names tensors that are neither states nor replaceable constants: {}; leave them \
         out, or skip them with --skip GLOB",
        .0.join(", ")
    )]
    Unknown(Vec<String>),
    /// A constant that was used up at compile time.
    #[error(
        "--init names `{0}`, whose value was used when the model was compiled; compile again with it, or skip it with --skip `{0}`"
    )]
    Bound(String),
    /// An array of another type.
    #[error("--init holds `{name}` as {found}, the graph takes {expected}")]
    Type {
        /// The name.
        name: String,
        /// Its type in the file.
        found: TensorType,
        /// Its type in the graph.
        expected: TensorType,
    },
    /// States without a value.
    #[error(
        "no initial value for the state{} {}; give them in --init FILE, or start them at zero \
         with --zeros GLOB",
        if .0.len() == 1 { "" } else { "s" },
        .0.join(", ")
    )]
    Missing(Vec<String>),
    /// A constant whose data was not at hand when the model was compiled.
    #[error("the artifact has no data for the constants {}", .0.join(", "))]
    NoData(Vec<String>),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] DeviceError),
}

/// Fills the homes of all constants and states; returns how far the loaded run was. A state that
/// several variants have begins as the first of them has it.
pub(super) fn load<M: Machine>(
    initial: &Initial,
    steps: &[Step],
    machines: &mut Variants<M>,
    rank: usize,
) -> Result<Progress, InitialError> {
    let file = initial.file.as_ref();
    let skipped = |name: &str| initial.skip.iter().any(|p| p.matches(name));
    let given = |name: &str| {
        let of_file = || file.and_then(|f| f.tensor(name)).map(Given::File);
        let given = initial.tensors.get(name).map(Given::Memory).or_else(of_file);
        given.filter(|_| !name.is_empty() && !skipped(name))
    };
    let in_file = file.map_or(&[][..], |file| file.tensors()).iter().map(Array::name);
    let names = initial.tensors.keys().map(String::as_str).chain(in_file);
    refuse_unknown(steps, names.filter(|name| !skipped(name)))?;
    let (mut absent, mut missing) = (Vec::new(), Vec::new());
    let mut begun: HashSet<&str> = HashSet::new();
    for (v, step) in steps.iter().enumerate() {
        let (g, machine) = (step.graph, machines.at(v));
        for (v, data) in g.consts() {
            let name = &g.values[v].name;
            machine.fill_home(v, |home| {
                match (given(name), data) {
                    (Some(array), _) => copy(array, name, g.ty(v), 0, home)?,
                    (None, Data::Bytes(bytes)) => step.file.copy(bytes, home),
                    (None, Data::Absent) => absent.push(format!("`{name}`")),
                }
                Ok::<(), InitialError>(())
            })?;
        }
        for (s, state) in g.states.iter().filter(|(_, state)| !begun.contains(&state.name[..])) {
            machine.fill_home(state.enter, |home| {
                if let Some(whole) = &state.part_of {
                    let (first, len) = part(whole, rank, home.len());
                    let (home, beyond) = home.split_at_mut(len);
                    beyond.fill(0);
                    match (given(&state.name), &state.init) {
                        (Some(array), _) => copy(array, &state.name, whole, first, home)?,
                        (None, Some(Data::Bytes(bytes))) => {
                            step.file.copy(&bytes[first..first + len], home);
                        }
                        _ if initial.zeros.iter().any(|p| p.matches(&state.name)) => home.fill(0),
                        _ => missing.push(format!("`{}`", state.name)),
                    }
                    return Ok(());
                }
                match (given(&state.name), &state.init) {
                    (Some(array), _) => {
                        let whole = g.saved_type(s);
                        let rows = whole.shape.first().copied().unwrap_or(1).max(1) as u64;
                        let first =
                            state.rows.map_or(0, |r| r.first as u64 * (whole.bytes() / rows));
                        copy(array, &state.name, &whole, first as usize, home)?;
                    }
                    (None, Some(Data::Bytes(bytes))) => step.file.copy(bytes, home),
                    _ if initial.zeros.iter().any(|p| p.matches(&state.name)) => home.fill(0),
                    _ => missing.push(format!("`{}`", state.name)),
                }
                Ok::<(), InitialError>(())
            })?;
        }
        begun.extend(g.states.values().map(|state| state.name.as_str()));
    }
    if !absent.is_empty() {
        return Err(InitialError::NoData(absent));
    }
    if !missing.is_empty() {
        return Err(InitialError::Missing(missing));
    }
    let saved = file.map(Progress::of).transpose()?.flatten();
    // Without states nothing is carried on: an evaluation begins with the first batch.
    let resumed = saved.filter(|_| !begun.is_empty());
    Ok(resumed.unwrap_or(Progress { step: 0, seed: 0 }))
}

/// Where a rank's part of a tensor begins, and how many bytes of it there are; its home has `home` bytes.
pub(super) fn part(whole: &TensorType, rank: usize, home: usize) -> (usize, usize) {
    let bytes = whole.bytes() as usize;
    let first = rank.saturating_mul(home).min(bytes);
    (first, home.min(bytes - first))
}

/// A tensor of this name.
#[derive(Clone, Copy)]
enum Given<'a> {
    File(&'a Array),
    Memory(&'a Tensor),
}

/// Fills a home with a tensor's bytes from `first` on.
fn copy(
    given: Given,
    name: &str,
    expected: &TensorType,
    first: usize,
    home: &mut [u8],
) -> Result<(), InitialError> {
    let found = match given {
        Given::File(array) => array.ty(),
        Given::Memory(tensor) => tensor.ty(),
    };
    if found != expected {
        return Err(InitialError::Type {
            name: name.to_owned(),
            found: found.clone(),
            expected: expected.clone(),
        });
    }
    match given {
        Given::File(array) => array.read(first, home)?,
        Given::Memory(tensor) => home.copy_from_slice(&tensor.bytes()[first..first + home.len()]),
    }
    Ok(())
}

/// Refuses names that are neither states nor constants.
fn refuse_unknown<'a>(
    steps: &[Step],
    names: impl Iterator<Item = &'a str>,
) -> Result<(), InitialError> {
    let mut known: HashSet<&str> = HashSet::new();
    for step in steps {
        known.extend(step.graph.states.values().map(|s| s.name.as_str()));
        known.extend(replaceable(step.graph).map(|(_, name)| name));
    }
    let is_bound = |name: &str| steps.iter().any(|step| step.bound.iter().any(|b| b == name));
    let mut unknown = Vec::new();
    for name in names {
        if is_bound(name) {
            return Err(InitialError::Bound(name.to_owned()));
        }
        if !known.contains(name) {
            unknown.push(format!("`{name}`"));
        }
    }
    if unknown.is_empty() { Ok(()) } else { Err(InitialError::Unknown(unknown)) }
}
