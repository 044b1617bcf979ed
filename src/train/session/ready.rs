//! What a machine that is ready to step is fed, keeps and gives, and where that lies.

use crate::data::Progress;
use crate::train::outputs::Outputs;
use crate::train::{Step, TrainError, replaceable};
use arenic_ir::graph::{StateId, ValueId};
use arenic_ir::types::TensorType;
use arenic_runtime::machine::{DeviceError, Machine};
use arenic_runtime::variants::Variants;

/// Bytes of the machine's memory.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The first byte.
    pub ptr: *mut u8,
    /// How many bytes.
    pub len: usize,
}

// SAFETY: an address alone; who follows it says why that is sound.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    fn of(bytes: &mut [u8]) -> Slot {
        Slot { ptr: bytes.as_mut_ptr(), len: bytes.len() }
    }
}

/// What is fed or given: its name, its type and where it lies.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Its bytes; `None` for an input that the step does not read.
    pub slot: Option<Slot>,
}

/// A state, or a constant that may be replaced.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// Its parts in the order of their rows; most have one.
    pub(crate) parts: Vec<HomePart>,
}

/// Rows of a state, or all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HomePart {
    /// A variant that has it.
    pub(super) variant: usize,
    pub(super) value: ValueId,
    /// `None` for a constant.
    pub(super) state: Option<StateId>,
    /// Where it lies; `None` in a device's memory, and where nothing reads it.
    pub(crate) slot: Option<Slot>,
}

/// What a variant is fed and gives.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    /// Its name, which is empty where there is one alone.
    pub(crate) name: String,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    /// Which output is the loss, which must be finite.
    pub(crate) loss: Option<usize>,
}

/// What is known of a machine that is ready to step.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    /// By variant.
    pub(crate) variants: Vec<Ports>,
    /// The variant that is fed, and whose outputs are read.
    pub(crate) chosen: usize,
    /// Those of all variants, each once.
    pub(crate) states: Vec<Home>,
    pub(crate) constants: Vec<Home>,
    /// Where the states came from was so far.
    pub(crate) progress: Progress,
    pub(crate) arena_bytes: u64,
    /// Inputs and outputs stay where they are.
    pub(crate) is_in_host_memory: bool,
    /// The device's stream on which inputs are copied, where they may be lent.
    pub(crate) stream: Option<u64>,
}

impl Ready {
    /// What the chosen variant is fed and gives.
    pub(crate) fn ports(&self) -> &Ports {
        &self.variants[self.chosen]
    }
}

/// What a step is fed and gives.
pub(super) fn ports(step: &Step, machine: &mut impl Machine) -> Ports {
    let g = step.graph;
    let named = step.inputs().map(|v| (g.values[v].name.clone(), g.ty(v).clone()));
    let given = g.outputs.iter().map(|o| (o.name.clone(), g.ty(o.value).clone()));
    let ports = named.chain(given).zip(slots(step, machine));
    let mut inputs: Vec<Port> = ports.map(|((name, ty), slot)| Port { name, ty, slot }).collect();
    let outputs = inputs.split_off(step.inputs().count());
    let (name, loss) = (step.name.0.to_owned(), Outputs::new(g).loss);
    Ports { name, inputs, outputs, loss }
}

/// Where inputs and then outputs are.
pub(super) fn slots(step: &Step, machine: &mut impl Machine) -> Vec<Option<Slot>> {
    let g = step.graph;
    let mut slots: Vec<Option<Slot>> =
        step.inputs().map(|v| machine.input_mut(v).map(Slot::of)).collect();
    slots.extend((0..g.outputs.len()).map(|i| {
        let bytes = machine.output(i);
        Some(Slot { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() })
    }));
    slots
}

pub(super) fn ready<M: Machine>(
    steps: &[Step],
    machines: &mut Variants<M>,
    progress: Progress,
) -> Result<Ready, TrainError> {
    let (mut variants, mut states, mut constants) = (Vec::new(), Vec::<Home>::new(), Vec::new());
    let (mut is_in_host_memory, mut stream) = (true, None);
    for (variant, step) in steps.iter().enumerate() {
        let (g, machine) = (step.graph, machines.at(variant));
        variants.push(ports(step, machine));
        (is_in_host_memory, stream) = (machine.is_in_host_memory(), machine.stream());
        let mut home = |value: ValueId| {
            let mut slot = None;
            machine.fill_home(value, |bytes| {
                slot = is_in_host_memory.then(|| Slot::of(bytes));
                Ok::<(), DeviceError>(())
            })?;
            Ok::<_, DeviceError>(slot)
        };
        let others = states.len();
        for (s, state) in &g.states {
            let known = states.iter().position(|home| home.name == state.name);
            // Another variant has it at the same place.
            if known.is_some_and(|i| i < others) {
                continue;
            }
            // Filling a device's home would overwrite it.
            let slot = if is_in_host_memory { home(state.enter)? } else { None };
            let part = HomePart { variant, value: state.enter, state: Some(s), slot };
            match known {
                Some(i) => states[i].parts.push(part),
                None => {
                    let (name, ty) = (state.name.clone(), g.saved_type(s));
                    states.push(Home { name, ty, parts: vec![part] });
                }
            }
        }
        for (value, name) in replaceable(g) {
            let slot = if is_in_host_memory { home(value)? } else { None };
            let parts = vec![HomePart { variant, value, state: None, slot }];
            constants.push(Home { name: name.to_owned(), ty: g.ty(value).clone(), parts });
        }
    }
    Ok(Ready {
        variants,
        chosen: 0,
        states,
        constants,
        progress,
        arena_bytes: machines.arena_bytes().device,
        is_in_host_memory,
        stream,
    })
}
