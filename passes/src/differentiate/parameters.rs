//! Which of a model's weights are trained.
//!
//! Files name no parameters: an initializer may be a weight, a running statistic, a mask or a
//! number. What a model is imported for training with are states that keep their value; of
//! these, every tensor of floats is a parameter that does not look like something else.

use super::DifferentiateError;
use super::glob::Glob;
use arenic_ir::graph::{Data, Graph, State, StateId};
use arenic_ir::types::{DType, TensorType};
use std::fmt;

/// A weight of the model, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// What becomes of it.
    pub role: Role,
    pub(super) state: StateId,
}

/// What becomes of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is updated.
    Trained,
    /// It would be trained, but for this pattern.
    Frozen(String),
    /// It is kept as it is, since it is no tensor.
    Scalar,
    /// It is kept as it is, since it looks like a mask.
    Mask,
    /// The forward part gives its next value.
    Statistic,
    /// The loss does not depend on it.
    Unused,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Trained => f.write_str("trained"),
            Role::Frozen(glob) => write!(f, "kept: frozen by `{glob}`"),
            Role::Scalar => f.write_str("kept: a scalar (--train NAME trains it)"),
            Role::Mask => f.write_str("kept: looks like a mask (--train NAME trains it)"),
            Role::Statistic => f.write_str("updated by the model itself"),
            Role::Unused => f.write_str("kept: the loss does not depend on it"),
        }
    }
}

/// All weights of a graph, in order. A pattern to train is stronger than one to freeze.
///
/// # Errors
/// A pattern that fits no weight, or one to train that fits what holds no floats.
pub(super) fn find(
    g: &Graph,
    train: &[Glob],
    freeze: &[Glob],
) -> Result<Vec<Parameter>, DifferentiateError> {
    let fits = |globs: &[Glob], name: &str| globs.iter().find(|p| p.matches(name)).cloned();
    let mut used: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for (s, state) in &g.states {
        let ty = g.ty(state.enter).clone();
        let (wanted, frozen) = (fits(train, &state.name), fits(freeze, &state.name));
        used.push(&state.name);
        let role = if state.exit != state.enter {
            Role::Statistic
        } else if wanted.is_some() {
            if !ty.dtype.is_float() {
                return Err(DifferentiateError::Integers { name: state.name.clone(), ty });
            }
            Role::Trained
        } else if let Some(glob) = frozen {
            Role::Frozen(glob.to_string())
        } else if ty.rank() == 0 || !ty.dtype.is_float() {
            Role::Scalar
        } else if is_mask(state, &ty) {
            Role::Mask
        } else {
            Role::Trained
        };
        found.push(Parameter { name: state.name.clone(), ty, role, state: s });
    }
    match train.iter().chain(freeze).find(|p| !used.iter().any(|name| p.matches(name))) {
        Some(glob) => Err(DifferentiateError::Pattern(glob.to_string())),
        None => Ok(found),
    }
}

/// True for what hides positions: an element that is not finite or at most −10⁴, or, in two
/// dimensions or more, zeros and ones alone and both of them (zeros are a weight that starts
/// at zero, ones a scale).
fn is_mask(state: &State, ty: &TensorType) -> bool {
    let Some(Data::Bytes(bytes)) = &state.init else { return false };
    let (mut zeros, mut ones, mut others) = (false, false, false);
    for x in floats(ty.dtype, bytes) {
        if !x.is_finite() || x <= -1e4 {
            return true;
        }
        match x {
            0.0 => zeros = true,
            1.0 => ones = true,
            _ => others = true,
        }
    }
    ty.rank() >= 2 && zeros && ones && !others
}

/// The elements of a tensor of floats.
fn floats(dtype: DType, bytes: &[u8]) -> Box<dyn Iterator<Item = f64> + '_> {
    let words = bytes.chunks_exact(dtype.size() as usize);
    match dtype {
        DType::F32 => {
            let word = |b: &[u8]| b.try_into().map(f32::from_le_bytes).ok();
            Box::new(words.filter_map(word).map(f64::from))
        }
        DType::F64 => Box::new(words.filter_map(|b| b.try_into().map(f64::from_le_bytes).ok())),
        _ => Box::new(std::iter::empty()),
    }
}
