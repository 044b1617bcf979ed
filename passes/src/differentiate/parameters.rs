//! Which of a model's weights are trained.
//!
//! What the model's file says of a weight counts first ([`Standing`]). Most files name no
//! parameters: an initializer may be a weight, a running statistic, a mask or a number. What a model
//! is imported for training with are states that keep their value; of these, what reads a tensor tells
//! what it is (`roles`), then its name. What neither tells from a constant is kept, and said to
//! be doubtful.

use super::DifferentiateError;
use super::glob::Glob;
use super::roles::{Use, Uses};
use arenic_ir::graph::{Data, Graph, State, StateId};
use arenic_ir::types::{DType, TensorType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The role of a tensor, as a model's file gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// A parameter of the module.
    Parameter,
    /// A parameter whose `requires_grad` is false.
    Fixed,
    /// A buffer of the module.
    Buffer,
    /// A constant of the program.
    Constant,
}

/// A weight of the model, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// What becomes of it.
    pub role: WeightRole,
    pub(super) state: StateId,
}

/// What becomes of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightRole {
    /// It is updated.
    Trained,
    /// It would be trained, but for this pattern.
    Frozen(String),
    /// It is kept as it is, as the file says what it is.
    Said(Standing),
    /// It is kept as it is, since it is no tensor.
    Scalar,
    /// It is kept as it is: one element that scales, or an epsilon.
    Number,
    /// It is kept as it is, since it looks like a mask.
    Mask,
    /// It is kept as it is: a statistic of a normalisation that the file has in pieces.
    Fixed,
    /// It is kept as it is: it shifts or scales an input.
    Feed,
    /// It is kept as it is: a recurrence starts from it.
    Initial,
    /// It is kept as it is, since nothing tells whether it is a parameter.
    Doubtful,
    /// The forward part gives its next value.
    Statistic,
    /// The loss does not depend on it.
    Unused,
}

impl WeightRole {
    /// True where the weight may be a parameter all the same.
    pub fn is_doubtful(&self) -> bool {
        matches!(self, WeightRole::Doubtful)
    }
}

impl fmt::Display for WeightRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = match self {
            WeightRole::Trained => return f.write_str("trained"),
            WeightRole::Frozen(glob) => return write!(f, "kept: frozen by `{glob}`"),
            WeightRole::Statistic => return f.write_str("updated by the model itself"),
            WeightRole::Unused => return f.write_str("kept: the loss does not depend on it"),
            WeightRole::Said(Standing::Parameter | Standing::Fixed) => "its requires_grad is false",
            WeightRole::Said(Standing::Buffer) => "a buffer of the module",
            WeightRole::Said(Standing::Constant) => "a constant of the exporter's",
            WeightRole::Scalar => "a scalar",
            WeightRole::Number => "one number that scales, or an epsilon",
            WeightRole::Mask => "looks like a mask",
            WeightRole::Fixed => "a statistic of a normalisation in pieces",
            WeightRole::Feed => "it shifts or scales an input",
            WeightRole::Initial => "a recurrence starts from it",
            WeightRole::Doubtful => "nothing tells whether it is a parameter",
        };
        write!(f, "kept: {kept} (--train NAME trains it)")
    }
}

/// All weights of a graph, in order. A pattern to train is stronger than one to freeze, and both
/// are stronger than what the file says, which is stronger than what is told from the graph.
///
/// # Errors
/// A pattern that fits no weight, or one to train that fits what holds no floats.
pub(super) fn find(
    g: &Graph,
    train: &[Glob],
    freeze: &[Glob],
    said: &BTreeMap<String, Standing>,
) -> Result<Vec<Parameter>, DifferentiateError> {
    let fits = |globs: &[Glob], name: &str| globs.iter().find(|p| p.matches(name)).cloned();
    let uses = Uses::new(g);
    let mut used: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for (s, state) in &g.states {
        let ty = g.ty(state.enter).clone();
        let (wanted, frozen) = (fits(train, &state.name), fits(freeze, &state.name));
        used.push(&state.name);
        let role = if state.exit != state.enter {
            WeightRole::Statistic
        } else if wanted.is_some() {
            if !ty.dtype.is_float() {
                return Err(DifferentiateError::Integers { name: state.name.clone(), ty });
            }
            WeightRole::Trained
        } else if let Some(glob) = frozen {
            WeightRole::Frozen(glob.to_string())
        } else if !ty.dtype.is_float() {
            WeightRole::Scalar
        } else {
            match said.get(&state.name) {
                Some(Standing::Parameter) => WeightRole::Trained,
                Some(&other) => WeightRole::Said(other),
                None => told(state, &ty, &uses.of(state.enter)),
            }
        };
        found.push(Parameter { name: state.name.clone(), ty, role, state: s });
    }
    match train.iter().chain(freeze).find(|p| !used.iter().any(|name| p.matches(name))) {
        Some(glob) => Err(DifferentiateError::Pattern(glob.to_string())),
        None => Ok(found),
    }
}

/// What a tensor of floats is of which the file says nothing.
fn told(state: &State, ty: &TensorType, uses: &[Use]) -> WeightRole {
    let has = |u: &Use| uses.contains(u);
    let only = |of: &[Use]| !uses.is_empty() && uses.iter().all(|u| of.contains(u));
    let named = is_of_module(&state.name);
    if ty.rank() == 0 {
        return WeightRole::Scalar;
    }
    if [Use::Product, Use::Table].iter().any(has) {
        return WeightRole::Trained;
    }
    if only(&[Use::UnderRoot]) {
        return if ty.elements() == 1 { WeightRole::Number } else { WeightRole::Fixed };
    }
    if is_mask(state, ty) {
        return WeightRole::Mask;
    }
    if [Use::Bias, Use::Affine].iter().any(has) {
        return WeightRole::Trained;
    }
    if named {
        return WeightRole::Trained;
    }
    if only(&[Use::Initial]) {
        return WeightRole::Initial;
    }
    if ty.elements() == 1 {
        return WeightRole::Number;
    }
    if only(&[Use::Subtracted, Use::UnderRoot]) {
        return WeightRole::Fixed;
    }
    if only(&[Use::Feed]) {
        return WeightRole::Feed;
    }
    if has(&Use::Score) || is_generated(&state.name) {
        WeightRole::Doubtful
    } else {
        WeightRole::Trained
    }
}

/// True for the path of a module's tensor, such as `layers.0.weight`. The last word of a constant's is
/// often its number.
fn is_of_module(name: &str) -> bool {
    let words: Vec<&str> = name.split('.').collect();
    let is_word = |w: &&str| !w.is_empty() && w.chars().all(|c| c.is_alphanumeric() || c == '_');
    let last = words.last().copied().unwrap_or("");
    words.len() > 1
        && words.iter().all(is_word)
        && last.contains(|c: char| c.is_alphabetic())
        && !is_generated(name)
}

/// True for names that exporters give to what they computed: `val_8`, `onnx::Add_12`, `const_3`,
/// `const_fold_opt__188`, `auto.cast.4`, `Constant_0_output`.
fn is_generated(name: &str) -> bool {
    let counted = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let marks = ["const", "Const", "::", "auto.cast", "helper.", "p2o.", "scalar_tensor"];
    counted.is_empty()
        || marks.iter().any(|mark| name.contains(mark))
        || (counted != name
            && ["val_", "tmp", "tensor_", "__"].iter().any(|m| counted.ends_with(m)))
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
