//! Why a run failed.

use super::{InitialError, Kept, PlaceError, RankCountError, StepFailure};
use crate::data::DataError;
use crate::dynamic::DynamicError;
use arenic_ir::graph::{Graph, ValueId};
use arenic_ir::types::{DType, TensorType};
use arenic_runtime::cuda;
use arenic_runtime::executor::SetupError;
use arenic_runtime::kernel::KernelError;
use arenic_runtime::machine::DeviceError;
use arenic_runtime::ranks::RankError;
use arenic_runtime::rounds::RoundsError;

/// The input with the targets of a loss.
const TARGET: &str = "target";

/// How labels of a loss's nodes end.
const LOSS: &str = "`loss`";

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The program cannot be run here.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The program cannot be run on this device.
    #[error(transparent)]
    DeviceSetup(#[from] cuda::SetupError),
    /// The artifact holds no program for the place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// An input cannot be fed with what is given for it.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The thread of a trainer could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(String),
    /// The thread of a trainer ended by a panic, which is a defect of arenic.
    #[error("the step ended by a defect of arenic; make another trainer, and please report this")]
    Ended,
    /// There are other ranks than the artifact is for.
    #[error(transparent)]
    RankCount(#[from] RankCountError),
    /// Other ranks are not there, or silent.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// The first rank could not save what all have.
    #[error("rank 0 could not save the states")]
    FirstRank,
    /// The parts of a step in rounds do not fit.
    #[error(transparent)]
    Rounds(#[from] RoundsError),
    /// The device failed between steps.
    #[error("the device failed: {0}")]
    Device(#[from] DeviceError),
    /// States or constants have no proper values.
    #[error(transparent)]
    Initial(#[from] InitialError),
    /// Data files.
    #[error(transparent)]
    Data(#[from] DataError),
    /// There is no step of the batch's sizes. The states are as they were.
    #[error(transparent)]
    Dynamic(#[from] DynamicError),
    /// A target is no class.
    #[error(
        "step {step}: the target {class} in row {row} of the batch is no class: the model has {classes} \
         (0 to {}); a class that counts for nothing is given to `arenic compile` by --ignore-index",
        .classes.saturating_sub(1)
    )]
    Class {
        /// The step.
        step: u64,
        /// The target.
        class: i64,
        /// Which of the batch's targets it is, counted from 0.
        row: usize,
        /// How many classes there are.
        classes: usize,
    },
    /// A kernel refused its operands, or the device failed.
    #[error("step {step}: {error}")]
    Step {
        /// The step.
        step: u64,
        /// Why.
        error: StepFailure,
    },
    /// The loss is NaN or infinite.
    #[error("step {step}: `{name}` is not finite")]
    NonFinite {
        /// The step.
        step: u64,
        /// The output.
        name: String,
    },
    /// Something failed after the first step of a run whose states were to be saved.
    #[error("{error}; {kept}")]
    Kept {
        /// What failed.
        error: Box<TrainError>,
        /// Where the states are now.
        kept: Kept,
    },
}

/// What is given for inputs does not fit them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Nothing is given.
    #[error("no value for the input{} {}", if .0.len() == 1 { "" } else { "s" }, .0.join(", "))]
    Missing(Vec<String>),
    /// There is no such input.
    #[error("`{name}` is no input; the inputs are {}", .known.join(", "))]
    Unknown {
        /// What is given.
        name: String,
        /// What could be.
        known: Vec<String>,
    },
    /// There is no such variant.
    #[error("`{name}` is no variant; there are {}", .known.join(", "))]
    Variant {
        /// What is named.
        name: String,
        /// What could be.
        known: Vec<String>,
    },
    /// Elements of another type, or in another number.
    #[error("the input `{name}` takes {expected}, not {found}")]
    Type {
        /// The input.
        name: String,
        /// What it takes.
        expected: TensorType,
        /// What is given.
        found: String,
    },
}

impl TrainError {
    /// How to mend it, where the message does not say that.
    pub fn help(&self) -> Option<String> {
        match self {
            TrainError::Place(e) => Some(e.help()),
            _ => None,
        }
    }

    /// True where the run ended because the loss is NaN or infinite.
    pub fn is_non_finite(&self) -> bool {
        match self {
            TrainError::NonFinite { .. } => true,
            TrainError::Kept { error, .. } => error.is_non_finite(),
            _ => false,
        }
    }
}

/// Why a step failed, where it may be that a target is no class: the loss takes an element by it. `fed` gives
/// the bytes of an input.
pub(super) fn class_error(
    g: &Graph,
    error: TrainError,
    fed: impl FnOnce(ValueId) -> Option<Vec<u8>>,
) -> TrainError {
    let TrainError::Step { step, error: StepFailure::Refused(refused) } = &error else {
        return error;
    };
    let KernelError::IndexOutOfRange { index, extent } = refused.error else { return error };
    let is_target = |v: &ValueId| g.values[*v].name == TARGET && g.ty(*v).dtype == DType::I64;
    let target = g.inputs().find(is_target).filter(|_| refused.node.ends_with(LOSS));
    let Some(bytes) = target.and_then(fed) else { return error };
    let mut targets = bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
    match targets.position(|t| t == index) {
        Some(row) => TrainError::Class { step: *step, class: index, row, classes: extent },
        None => error,
    }
}
