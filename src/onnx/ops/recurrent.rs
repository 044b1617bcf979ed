//! LSTM, GRU and RNN: the product of all steps' inputs first, as one, then the recurrence.
//!
//! Two directions are two recurrences, whose results are joined.

use super::compose::Made;
use super::position::part;
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::op::Activation;
use arenic_ir::{Op, TensorType, ValueId};

const LSTM: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
    "layout",
];
const GRU: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "layout",
    "linear_before_reset",
];
const RNN: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "layout",
];
pub(super) const WHOLE: &str = "whole sequences, without clip; sigmoid and tanh";

pub(super) const ROWS: &[Row] = &[
    row("GRU", (3, 6), GRU, gru).since(7).note(WHOLE),
    row("LSTM", (3, 8), LSTM, lstm).since(7).note(WHOLE),
    row("RNN", (3, 6), RNN, rnn).since(7).note("whole sequences, without clip; tanh or relu"),
];

/// An operator of ONNX.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Lstm,
    Gru { linear_before_reset: bool },
    Rnn,
}

impl Cell {
    fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru { .. } => 3,
            Cell::Rnn => 1,
        }
    }

    /// Activation functions of one direction, where the node does not name them.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Cell::Gru { .. } => &["Sigmoid", "Tanh"],
            Cell::Rnn => &["Tanh"],
        }
    }
}

pub(super) fn lstm(cx: &mut Cx) -> Built {
    if cx.attributes().int_or("input_forget", 0)? != 0 {
        return Err("attribute `input_forget` is not 0; coupled gates are not supported".into());
    }
    recurrent(cx, Cell::Lstm)
}

fn gru(cx: &mut Cx) -> Built {
    let linear_before_reset = cx.attributes().int_or("linear_before_reset", 0)? != 0;
    recurrent(cx, Cell::Gru { linear_before_reset })
}

pub(super) fn rnn(cx: &mut Cx) -> Built {
    recurrent(cx, Cell::Rnn)
}

/// What the node's attributes and the shapes of its operands say.
struct Node {
    cell: Cell,
    /// Of each direction, whether it runs from the last step to the first.
    reverse: &'static [bool],
    /// The function of each direction's RNN.
    activations: Vec<Activation>,
    /// The batch comes before steps and directions.
    batch_first: bool,
    steps: usize,
    batch: usize,
    inputs: usize,
    hidden: usize,
}

fn recurrent(cx: &mut Cx, cell: Cell) -> Built {
    let a = cx.attributes();
    if a.float("clip")?.is_some() {
        return Err("attribute `clip` is not supported".into());
    }
    let choices: [(&str, &[bool]); 3] =
        [("forward", &[false]), ("reverse", &[true]), ("bidirectional", &[false, true])];
    let reverse = a.one_of("direction", "forward", &choices)?;
    let activations = activations(cx, cell, reverse.len())?;
    let batch_first = a.flag("layout", false)?;
    let (x, w, r) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (of_x, of_r) = (cx.ty(x), cx.ty(r));
    let (&[first, second, inputs], &[.., hidden]) = (&of_x.shape[..], &of_r.shape[..]) else {
        return Err(Fault(format!("{of_x} has no steps, batch and features")));
    };
    let (steps, batch) = if batch_first { (second, first) } else { (first, second) };
    let node = Node { cell, reverse, activations, batch_first, steps, batch, inputs, hidden };
    node.check(cx, w, r)?;
    let mut rows = x;
    if batch_first {
        rows = cx.transposed(x, vec![1, 0, 2])?;
    }
    let count = steps.checked_mul(batch).ok_or("its extents are too large")?;
    let rows = cx.reshape(rows, vec![count, inputs])?;
    // Of every step, then of the last one; a training step's gradients read cells and gates, too.
    let mut found: [Vec<ValueId>; 5] = Default::default();
    for (d, &reverse) in reverse.iter().enumerate() {
        let Steps { y, gates, cells } = node.direction(cx, d, rows)?;
        let last = if reverse { 0 } else { steps.saturating_sub(1) };
        for (i, all) in [(0, Some(y)), (3, cells), (4, gates)] {
            if let Some(all) = all.filter(|_| cx.wants(i)) {
                let width = cx.ty(all).shape.last().copied().unwrap_or(hidden);
                found[i].push(cx.reshape(all, vec![steps, 1, batch, width])?);
            }
        }
        for (i, all) in [(1, Some(y)), (2, cells)] {
            if let Some(all) = all.filter(|_| cx.wants(i)) {
                found[i].push(part(cx, all, 0, last, 1, 1)?);
            }
        }
    }
    let mut results = Vec::new();
    for (i, parts) in found.into_iter().enumerate() {
        let of_steps = matches!(i, 0 | 3 | 4);
        let axis = usize::from(of_steps);
        let joined = match &parts[..] {
            [] => None,
            &[one] => Some(one),
            _ => Some(cx.emit1(Op::Concat { axis }, parts)?),
        };
        let perm = if of_steps { vec![2, 0, 1, 3] } else { vec![1, 0, 2] };
        results.push(match joined {
            Some(v) if batch_first => Some(cx.transposed(v, perm)?),
            joined => joined,
        });
    }
    Ok(results)
}

/// The functions of each direction's RNN; those of other cells have to be ONNX's default ones.
fn activations(cx: &Cx, cell: Cell, directions: usize) -> Result<Vec<Activation>, Fault> {
    let Some(given) = cx.attributes().strings("activations")? else {
        return Ok(vec![Activation::Tanh; directions]);
    };
    let own = cell.functions();
    if given.len() != own.len() * directions {
        let (count, wanted) = (given.len(), own.len() * directions);
        return Err(Fault(format!("attribute `activations` has {count} entries, not {wanted}")));
    }
    let mut found = Vec::new();
    for of_direction in given.chunks(own.len()) {
        let is =
            |words: &[&str]| of_direction.iter().zip(words).all(|(a, b)| a.eq_ignore_ascii_case(b));
        found.push(match cell {
            _ if is(own) => Activation::Tanh,
            Cell::Rnn if is(&["Relu"]) => Activation::Relu,
            _ => {
                let words = of_direction.join(", ");
                return Err(Fault(format!("attribute `activations`: {words} is not supported")));
            }
        });
    }
    Ok(found)
}

/// What a recurrence gives of all steps.
struct Steps {
    /// States.
    y: ValueId,
    /// Gates, of an LSTM whose gradient the model has.
    gates: Option<ValueId>,
    /// Cells, of an LSTM.
    cells: Option<ValueId>,
}

impl Node {
    /// Refuses weights of other shapes, a size that contradicts them, and sequences that end
    /// before the last step.
    fn check(&self, cx: &mut Cx, w: ValueId, r: ValueId) -> Result<(), Fault> {
        let rows = self.cell.gates().saturating_mul(self.hidden);
        for (name, v, columns) in [("W", w, self.inputs), ("R", r, self.hidden)] {
            let (ty, shape) = (cx.ty(v), [self.reverse.len(), rows, columns]);
            if ty.shape != shape {
                return Err(Fault(format!("its `{name}` is {ty}, not of shape {shape:?}")));
            }
        }
        if let Some(size) = cx.attributes().int("hidden_size")?
            && usize::try_from(size) != Ok(self.hidden)
        {
            let hidden = self.hidden;
            return Err(Fault(format!(
                "attribute `hidden_size` is {size}, but `R` has {hidden} columns"
            )));
        }
        if let Some(lengths) = cx.ints(4)?
            && lengths.iter().any(|&n| usize::try_from(n) != Ok(self.steps))
        {
            return Err(Fault(format!(
                "operand 4, sequence_lens, is not {} for every sequence; shorter ones are not \
                 supported (pad them and mask the loss)",
                self.steps
            )));
        }
        Ok(())
    }

    /// One direction's part of an operand, whose first axis are directions.
    fn of(&self, cx: &mut Cx, x: ValueId, d: usize) -> Made {
        let shape = cx.ty(x).shape;
        if shape.first() != Some(&self.reverse.len()) {
            return Err(Fault(format!("an operand is {}, without directions", cx.ty(x))));
        }
        let one = if self.reverse.len() > 1 { part(cx, x, 0, d, 1, 1)? } else { x };
        cx.reshape(one, shape[1..].to_vec())
    }

    /// The state before the first step: zeros where none is given.
    fn initial(&self, cx: &mut Cx, operand: usize, d: usize, like: &TensorType) -> Made {
        let Some(mut all) = cx.optional(operand)? else {
            return cx.filled(like.dtype, &[self.batch, self.hidden], 0.0);
        };
        if self.batch_first && cx.ty(all).rank() == 3 {
            all = cx.transposed(all, vec![1, 0, 2])?;
        }
        self.of(cx, all, d)
    }

    /// The recurrence in one direction.
    fn direction(&self, cx: &mut Cx, d: usize, rows: ValueId) -> Result<Steps, Fault> {
        let (gates, n, reverse) = (self.cell.gates(), self.hidden, self.reverse[d]);
        let ty = cx.ty(rows);
        let (w, r) = (cx.input(1)?, cx.input(2)?);
        let (w, r) = (self.of(cx, w, d)?, self.of(cx, r, d)?);
        let (bias, reset) = self.bias(cx, d, &ty)?;
        let product = Op::Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
        let mut operands = vec![rows, w];
        operands.extend(bias);
        let pre = cx.emit1(product, operands)?;
        let pre = cx.reshape(pre, vec![self.steps, self.batch, gates * n])?;
        let h0 = self.initial(cx, 5, d, &ty)?;
        let mut operands = vec![pre, r, h0];
        let op = match self.cell {
            Cell::Lstm => {
                operands.push(self.initial(cx, 6, d, &ty)?);
                if let Some(p) = cx.optional(7)? {
                    operands.push(self.of(cx, p, d)?);
                }
                Op::Lstm { reverse }
            }
            Cell::Gru { linear_before_reset } => {
                operands.extend(reset);
                Op::Gru { reverse, linear_before_reset }
            }
            Cell::Rnn => Op::Rnn { reverse, activation: self.activations[d] },
        };
        let results = cx.emit(op, operands)?;
        let y = results.first().copied().ok_or("it has no result")?;
        let trains = cx.node.op == "LSTMTraining";
        Ok(Steps {
            y,
            gates: results.get(1).copied().filter(|_| trains),
            cells: results.get(2).copied(),
        })
    }

    /// The bias of all gates, where there is one, and that of the product which a GRU's reset
    /// gate multiplies.
    fn bias(
        &self,
        cx: &mut Cx,
        d: usize,
        like: &TensorType,
    ) -> Result<(Option<ValueId>, Option<ValueId>), Fault> {
        let n = self.hidden;
        let resets = self.cell == Cell::Gru { linear_before_reset: true };
        let Some(both) = cx.optional(3)? else {
            let reset = resets.then(|| cx.filled(like.dtype, &[n], 0.0)).transpose()?;
            return Ok((None, reset));
        };
        let both = self.of(cx, both, d)?;
        let (ty, width) = (cx.ty(both), self.cell.gates() * n);
        if ty.shape != [2 * width] {
            return Err(Fault(format!("its `B` is {ty} in a direction, not [{}]", 2 * width)));
        }
        let (of_w, of_r) = (part(cx, both, 0, 0, width, 1)?, part(cx, both, 0, width, width, 1)?);
        if !resets {
            return Ok((Some(cx.add(of_w, of_r)?), None));
        }
        let (w, r) = (part(cx, of_w, 0, 0, 2 * n, 1)?, part(cx, of_r, 0, 0, 2 * n, 1)?);
        let gates = cx.add(w, r)?;
        let hidden = part(cx, of_w, 0, 2 * n, n, 1)?;
        let bias = cx.emit1(Op::Concat { axis: 0 }, vec![gates, hidden])?;
        Ok((Some(bias), Some(part(cx, of_r, 0, 2 * n, n, 1)?)))
    }
}
