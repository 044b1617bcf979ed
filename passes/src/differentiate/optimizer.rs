//! Updates of parameters, one group of elementwise nodes per parameter, which `fuse_updates`
//! makes one node of. Formulas and defaults are PyTorch's; what depends on the step alone is
//! computed in double precision, once for all parameters.

use super::schedule::Schedule;
use super::tape::Tape;
use super::{Differentiate, DifferentiateError, Optimizer};
use arenic_ir::graph::{Data, StateId, ValueId};
use arenic_ir::op::{Binary, TypeError, Unary};
use arenic_ir::types::{DType, TensorType};
use std::collections::HashMap;

/// The settings of an optimizer, defaults filled in.
struct Settings {
    momentum: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    decay: f64,
}

/// Numbers of the step that every update reads, of doubles.
struct Shared {
    /// The learning rate.
    rate: ValueId,
    /// What scales Adam's direction, `lr / (1 − β₁ᵗ)`, and the root that its second moment's is
    /// divided by, `√(1 − β₂ᵗ)`.
    corrections: Option<[ValueId; 2]>,
    /// What decay multiplies parameters by, by the bits of the decay.
    shrinks: HashMap<u64, ValueId>,
    /// Numbers as other types.
    cast: HashMap<(ValueId, DType), ValueId>,
}

impl Shared {
    /// A number as one of this type.
    fn of(&mut self, t: &mut Tape, number: ValueId, dtype: DType) -> Result<ValueId, TypeError> {
        if let Some(&known) = self.cast.get(&(number, dtype)) {
            return Ok(known);
        }
        let made = t.cast(number, dtype)?;
        self.cast.insert((number, dtype), made);
        Ok(made)
    }

    /// `1 − lr · decay`.
    fn shrink(&mut self, t: &mut Tape, decay: f64, dtype: DType) -> Result<ValueId, TypeError> {
        let shrink = match self.shrinks.get(&decay.to_bits()) {
            Some(&known) => known,
            None => {
                let (one, rest) = (t.scalar(DType::F64, 1.0), t.scalar(DType::F64, decay));
                let part = t.mul(self.rate, rest)?;
                let made = t.binary(Binary::Sub, one, part)?;
                self.shrinks.insert(decay.to_bits(), made);
                made
            }
        };
        self.of(t, shrink, dtype)
    }
}

impl Optimizer {
    /// True where moments are divided by what they lack in the first steps.
    fn corrects_bias(self) -> bool {
        match self {
            Optimizer::Adam | Optimizer::Adamw => true,
            Optimizer::Sgd
            | Optimizer::Momentum
            | Optimizer::Adagrad
            | Optimizer::Rmsprop
            | Optimizer::Lion => false,
        }
    }

    /// True where weight decay shrinks the parameter itself, instead of being part of the gradient.
    fn decouples_decay(self) -> bool {
        match self {
            Optimizer::Adamw | Optimizer::Lion => true,
            Optimizer::Sgd
            | Optimizer::Momentum
            | Optimizer::Adam
            | Optimizer::Adagrad
            | Optimizer::Rmsprop => false,
        }
    }
}

/// Adds updates to the graph.
pub(super) struct Updates<'o> {
    options: &'o Differentiate,
    settings: Settings,
    shared: Shared,
}

impl<'o> Updates<'o> {
    /// Adds the input `lr`, the count of steps where it matters, and what follows from both.
    ///
    /// # Errors
    /// The schedule lacks a number; a weight has the name of the count.
    pub(super) fn new(
        t: &mut Tape,
        options: &'o Differentiate,
    ) -> Result<Updates<'o>, DifferentiateError> {
        let or = |x: Option<f64>, default: f64| x.unwrap_or(default);
        let (beta1, beta2, epsilon, decay) = match options.optimizer {
            Optimizer::Sgd | Optimizer::Momentum => (0.0, 0.0, 0.0, 0.0),
            Optimizer::Adam => (0.9, 0.999, 1e-8, 0.0),
            Optimizer::Adamw => (0.9, 0.999, 1e-8, 0.01),
            Optimizer::Adagrad => (0.0, 0.0, 1e-10, 0.0),
            Optimizer::Rmsprop => (0.0, 0.99, 1e-8, 0.0),
            Optimizer::Lion => (0.9, 0.99, 0.0, 0.0),
        };
        let settings = Settings {
            momentum: or(options.momentum, 0.9),
            beta1: or(options.beta1, beta1),
            beta2: or(options.beta2, beta2),
            epsilon: or(options.epsilon, epsilon),
            decay: or(options.weight_decay, decay),
        };
        t.name = "lr".into();
        let lr = t.g.add_input("lr", TensorType::scalar(DType::F32));
        let base = t.cast(lr, DType::F64)?;
        let schedule = Schedule::new(options)?;
        let corrects = options.optimizer.corrects_bias();
        let count = match schedule.is_some() || corrects {
            true => Some(count(t)?),
            false => None,
        };
        let rate = match (schedule, count) {
            (Some(schedule), Some([before, _])) => {
                let factor = schedule.factor(t, before)?;
                t.mul(base, factor)?
            }
            _ => base,
        };
        let corrections = match count {
            Some([_, now]) if corrects => {
                let one = t.scalar(DType::F64, 1.0);
                let mut rest = |beta: f64| {
                    let beta = t.scalar(DType::F64, beta);
                    let power = t.binary(Binary::Pow, beta, now)?;
                    t.binary(Binary::Sub, one, power)
                };
                let (first, second) = (rest(settings.beta1)?, rest(settings.beta2)?);
                let size = t.binary(Binary::Div, rate, first)?;
                Some([size, t.unary(Unary::Sqrt, second)?])
            }
            _ => None,
        };
        let (shrinks, cast) = (HashMap::new(), HashMap::new());
        let shared = Shared { rate, corrections, shrinks, cast };
        Ok(Updates { options, settings, shared })
    }

    /// Updates one parameter by its gradient.
    pub(super) fn update(
        &mut self,
        t: &mut Tape,
        parameter: StateId,
        gradient: ValueId,
    ) -> Result<(), TypeError> {
        let (p, name) = (t.g.states[parameter].enter, t.g.states[parameter].name.clone());
        t.name = format!("{name}.update");
        let dtype = t.ty(p).dtype;
        let Settings { momentum, beta1, beta2, epsilon, .. } = self.settings;
        let decay = self.decay(&name);
        let rate = self.shared.of(t, self.shared.rate, dtype)?;
        let mut g = gradient;
        // Decay that is part of the gradient, or that shrinks the parameter itself.
        let mut before = p;
        if decay != 0.0 {
            if self.options.optimizer.decouples_decay() {
                let shrink = self.shared.shrink(t, decay, dtype)?;
                before = t.mul(p, shrink)?;
            } else {
                let pull = t.scaled(p, decay)?;
                g = t.binary(Binary::Add, g, pull)?;
            }
        }
        let next = match self.options.optimizer {
            Optimizer::Sgd => {
                let step = t.mul(rate, g)?;
                t.binary(Binary::Sub, before, step)?
            }
            Optimizer::Momentum => {
                let (state, v) = moment(t, &name, "momentum", p);
                let kept = t.scaled(v, momentum)?;
                let v = t.binary(Binary::Add, kept, g)?;
                t.g.states[state].exit = v;
                let direction = if self.options.nesterov {
                    let ahead = t.scaled(v, momentum)?;
                    t.binary(Binary::Add, g, ahead)?
                } else {
                    v
                };
                let step = t.mul(rate, direction)?;
                t.binary(Binary::Sub, before, step)?
            }
            Optimizer::Adam | Optimizer::Adamw => {
                let m = averaged(t, &name, "m", p, g, beta1)?;
                let square = t.mul(g, g)?;
                let v = averaged(t, &name, "v", p, square, beta2)?;
                let root = t.unary(Unary::Sqrt, v)?;
                let (size, root) = match self.shared.corrections {
                    Some([size, second]) => {
                        let size = self.shared.of(t, size, dtype)?;
                        let second = self.shared.of(t, second, dtype)?;
                        (size, t.binary(Binary::Div, root, second)?)
                    }
                    None => (rate, root),
                };
                let epsilon = t.scalar(dtype, epsilon);
                let divisor = t.binary(Binary::Add, root, epsilon)?;
                let direction = t.binary(Binary::Div, m, divisor)?;
                let step = t.mul(size, direction)?;
                t.binary(Binary::Sub, before, step)?
            }
            Optimizer::Adagrad => {
                let (state, v) = moment(t, &name, "v", p);
                let square = t.mul(g, g)?;
                let v = t.binary(Binary::Add, v, square)?;
                t.g.states[state].exit = v;
                scaled_step(t, before, rate, g, v, epsilon)?
            }
            Optimizer::Rmsprop => {
                let square = t.mul(g, g)?;
                let v = averaged(t, &name, "v", p, square, beta2)?;
                scaled_step(t, before, rate, g, v, epsilon)?
            }
            Optimizer::Lion => {
                let (state, m) = moment(t, &name, "m", p);
                let mixed = mix(t, m, g, beta1)?;
                let sign = t.unary(Unary::Sign, mixed)?;
                t.g.states[state].exit = mix(t, m, g, beta2)?;
                let step = t.mul(rate, sign)?;
                t.binary(Binary::Sub, before, step)?
            }
        };
        t.g.states[parameter].exit = next;
        Ok(())
    }

    /// The decay of a parameter: what the last pattern that fits says.
    fn decay(&self, name: &str) -> f64 {
        let rule = self.options.decay.iter().rfind(|d| d.of.matches(name));
        rule.map_or(self.settings.decay, |d| d.is)
    }
}

/// The count of steps, as doubles: before this one, and with it.
fn count(t: &mut Tape) -> Result<[ValueId; 2], DifferentiateError> {
    let name = "step";
    if t.g.states.values().any(|s| s.name == name) {
        return Err(DifferentiateError::Name(name.into()));
    }
    t.name = name.into();
    let zero = Data::Bytes(vec![0; 8].into());
    let state = t.g.add_state(name, TensorType::scalar(DType::I64), Some(zero));
    let before = t.g.states[state].enter;
    let one = t.scalar(DType::I64, 1.0);
    let now = t.binary(Binary::Add, before, one)?;
    t.g.states[state].exit = now;
    Ok([t.cast(before, DType::F64)?, t.cast(now, DType::F64)?])
}

/// A tensor of the optimizer beside a parameter, which starts at zero.
fn moment(t: &mut Tape, parameter: &str, name: &str, p: ValueId) -> (StateId, ValueId) {
    let ty = t.ty(p);
    let zeros = Data::Bytes(vec![0; ty.bytes() as usize].into());
    let state = t.g.add_state(format!("{parameter}.{name}"), ty, Some(zeros));
    (state, t.g.states[state].enter)
}

/// `β a + (1 − β) x`, as PyTorch's `lerp` has it.
fn mix(t: &mut Tape, a: ValueId, x: ValueId, beta: f64) -> Result<ValueId, TypeError> {
    let difference = t.binary(Binary::Sub, x, a)?;
    let part = t.scaled(difference, 1.0 - beta)?;
    t.binary(Binary::Add, a, part)
}

/// The next value of a running average.
fn averaged(
    t: &mut Tape,
    parameter: &str,
    name: &str,
    p: ValueId,
    x: ValueId,
    beta: f64,
) -> Result<ValueId, TypeError> {
    let (state, old) = moment(t, parameter, name, p);
    let next = mix(t, old, x, beta)?;
    t.g.states[state].exit = next;
    Ok(next)
}

/// `p − lr · g / (√v + ε)`.
fn scaled_step(
    t: &mut Tape,
    p: ValueId,
    rate: ValueId,
    g: ValueId,
    v: ValueId,
    epsilon: f64,
) -> Result<ValueId, TypeError> {
    let root = t.unary(Unary::Sqrt, v)?;
    let epsilon = t.number(root, epsilon);
    let divisor = t.binary(Binary::Add, root, epsilon)?;
    let direction = t.binary(Binary::Div, g, divisor)?;
    let step = t.mul(rate, direction)?;
    t.binary(Binary::Sub, p, step)
}
