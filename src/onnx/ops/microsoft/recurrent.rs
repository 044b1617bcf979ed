//! The gradient of an LSTM as ONNX Runtime's training artifacts have it: back through all steps at
//! once, then products for the weights.
//!
//! Its own kernel leaves out what reaches the cells through peepholes
//! (`orttraining/training_ops/cpu/rnn/lstm_grad_compute.cc`); here gradients are whole. Without
//! peepholes both are the same.

use super::super::compose::Made;
use super::super::position::part;
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::op::Reduction;
use arenic_ir::{Op, ValueId};

/// Operands by their places.
const X: usize = 0;
const W: usize = 1;
const R: usize = 2;
const LENGTHS: usize = 4;
const H0: usize = 5;
const C0: usize = 6;
const P: usize = 7;
const STATES: usize = 8;
const CELLS: usize = 9;
const GATES: usize = 10;
const OF_STATES: usize = 11;
const OF_LAST_STATE: usize = 12;
const OF_LAST_CELL: usize = 13;

/// The extents of the step.
struct Extents {
    steps: usize,
    batch: usize,
    inputs: usize,
    hidden: usize,
}

/// `x, w, r, b, lengths, h0, c0, p, states, cells, gates, dstates, dlast state, dlast cell →
/// dx, dw, dr, db, dh0, dc0, dp`, in one direction; states, cells and gates are of every step.
pub(in super::super) fn lstm_grad(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    a.one_of("direction", "forward", &[("forward", ())])?;
    if a.float("clip")?.is_some() || a.int_or("input_forget", 0)? != 0 {
        return Err("attributes `clip` and `input_forget` are not supported".into());
    }
    if let Some(names) = a.strings("activations")? {
        let usual = ["sigmoid", "tanh", "tanh"];
        if names.len() != 3 || !names.iter().zip(usual).all(|(a, b)| a.eq_ignore_ascii_case(b)) {
            let names = names.join(", ");
            return Err(Fault(format!("attribute `activations`: {names} is not supported")));
        }
    }
    if cx.optional(LENGTHS)?.is_some() {
        return Err("operand 4, sequence_lens, is not supported".into());
    }
    let (x, r) = (cx.input(X)?, cx.input(R)?);
    let (of_x, of_r) = (cx.ty(x), cx.ty(r));
    let (&[steps, batch, inputs], &[1, _, hidden]) = (&of_x.shape[..], &of_r.shape[..]) else {
        return Err(Fault(format!(
            "{of_x} and {of_r} are no steps and no weight of one direction"
        )));
    };
    if steps == 0 {
        return Err("it has no steps".into());
    }
    Extents { steps, batch, inputs, hidden }.build(cx)
}

impl Extents {
    fn build(&self, cx: &mut Cx) -> Built {
        let &Extents { steps, batch, inputs, hidden } = self;
        let dtype = {
            let x = cx.input(X)?;
            cx.ty(x).dtype
        };
        let each = vec![steps, batch, hidden];
        let states = self.shaped(cx, STATES, &each)?.ok_or("its states are missing")?;
        let cells = self.shaped(cx, CELLS, &each)?.ok_or("its cells are missing")?;
        let gates = self.shaped(cx, GATES, &[steps, batch, 4 * hidden])?;
        let gates = gates.ok_or("its gates are missing")?;
        let w = self.shaped(cx, W, &[4 * hidden, inputs])?.ok_or("its weight is missing")?;
        let r = self.shaped(cx, R, &[4 * hidden, hidden])?.ok_or("its weight is missing")?;
        let p = self.shaped(cx, P, &[3 * hidden])?;
        let mut initial =
            [H0, C0].into_iter().map(|i| match self.shaped(cx, i, &[batch, hidden])? {
                Some(state) => Ok(state),
                None => cx.filled(dtype, &[batch, hidden], 0.0),
            });
        let (Some(h0), Some(c0)) = (initial.next(), initial.next()) else {
            return Err("its states are missing".into());
        };
        let (h0, c0) = (h0?, c0?);
        let of_states = self.shaped(cx, OF_STATES, &each)?;
        let of_last = self.at_last(cx, OF_LAST_STATE)?;
        let dy = match (of_states, of_last) {
            (Some(all), Some(last)) => cx.add(all, last)?,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => cx.filled(dtype, &each, 0.0)?,
        };
        let dcells = self.at_last(cx, OF_LAST_CELL)?;
        let mut operands = vec![gates, cells, r, c0, dy];
        operands.extend(dcells);
        operands.extend(p);
        let op = Op::LstmGrad { reverse: false, dcells: dcells.is_some() };
        let results = cx.emit(op, operands)?;
        let [dpre, dh0, dc0] = results[..] else { return Err("it has no results".into()) };
        self.results(cx, [w, dpre, dh0, dc0], [states, h0, cells, c0])
    }

    /// What somebody reads of the gradients.
    fn results(
        &self,
        cx: &mut Cx,
        [w, dpre, dh0, dc0]: [ValueId; 4],
        [states, h0, cells, c0]: [ValueId; 4],
    ) -> Built {
        let &Extents { steps, batch, inputs, hidden } = self;
        let rows = steps.checked_mul(batch).ok_or("its extents are too large")?;
        let of_rows = cx.reshape(dpre, vec![rows, 4 * hidden])?;
        let product = |cx: &mut Cx, trans_a: bool, b: ValueId| {
            cx.emit1(Op::MatMul { trans_a, trans_b: false }, vec![of_rows, b])
        };
        let mut found = vec![None; 7];
        if cx.wants(0) {
            let dx = product(cx, false, w)?;
            found[0] = Some(cx.reshape(dx, vec![steps, batch, inputs])?);
        }
        if cx.wants(1) {
            let x = cx.input(X)?;
            let x = cx.reshape(x, vec![rows, inputs])?;
            let dw = product(cx, true, x)?;
            found[1] = Some(cx.reshape(dw, vec![1, 4 * hidden, inputs])?);
        }
        if cx.wants(2) {
            let earlier = self.before(cx, states, h0)?;
            let earlier = cx.reshape(earlier, vec![rows, hidden])?;
            let dr = product(cx, true, earlier)?;
            found[2] = Some(cx.reshape(dr, vec![1, 4 * hidden, hidden])?);
        }
        if cx.wants(3) {
            // Both biases are added alike.
            let sum = cx.without(Reduction::Sum, of_rows, &[0])?;
            let db = cx.emit1(Op::Concat { axis: 0 }, vec![sum, sum])?;
            found[3] = Some(cx.reshape(db, vec![1, 8 * hidden])?);
        }
        for (i, state) in [(4, dh0), (5, dc0)] {
            if cx.wants(i) {
                found[i] = Some(cx.reshape(state, vec![1, batch, hidden])?);
            }
        }
        if cx.wants(6) {
            // Input and forget gates see the cells before, output gates those after.
            let earlier = self.before(cx, cells, c0)?;
            let mut sums = Vec::new();
            for (gate, seen) in [(0, earlier), (1, cells), (2, earlier)] {
                let d = part(cx, dpre, 2, gate * hidden, hidden, 1)?;
                let d = cx.mul(d, seen)?;
                sums.push(cx.without(Reduction::Sum, d, &[0, 1])?);
            }
            let dp = cx.emit1(Op::Concat { axis: 0 }, sums)?;
            found[6] = Some(cx.reshape(dp, vec![1, 3 * hidden])?);
        }
        Ok(found)
    }

    /// An operand without its directions, of which there is one; `None` where it is left out.
    fn shaped(&self, cx: &mut Cx, i: usize, shape: &[usize]) -> Result<Option<ValueId>, Fault> {
        let Some(x) = cx.optional(i)? else { return Ok(None) };
        let ty = cx.ty(x);
        // Of every step, directions come second.
        let at = usize::from(shape.len() == 3);
        let fits = ty.shape.len() == shape.len() + 1 && ty.shape[at] == 1;
        let rest = ty.shape.iter().enumerate().filter(|&(j, _)| j != at).map(|(_, d)| d);
        if !fits || !rest.eq(shape) {
            return Err(Fault(format!("operand {i} is {ty}, not {shape:?} in one direction")));
        }
        cx.reshape(x, shape.to_vec()).map(Some)
    }

    /// A gradient of the last step alone, zero before it.
    fn at_last(&self, cx: &mut Cx, i: usize) -> Result<Option<ValueId>, Fault> {
        let &Extents { steps, batch, hidden, .. } = self;
        let Some(last) = self.shaped(cx, i, &[batch, hidden])? else { return Ok(None) };
        let last = cx.reshape(last, vec![1, batch, hidden])?;
        let starts = vec![steps - 1, 0, 0];
        let shape = vec![steps, batch, hidden];
        cx.emit1(Op::Pad { starts, steps: vec![1; 3], shape, value: 0.0 }, vec![last]).map(Some)
    }

    /// What came before each step: `initial` before the first one.
    fn before(&self, cx: &mut Cx, all: ValueId, initial: ValueId) -> Made {
        let initial = cx.reshape(initial, vec![1, self.batch, self.hidden])?;
        if self.steps == 1 {
            return Ok(initial);
        }
        let others = part(cx, all, 0, 0, self.steps - 1, 1)?;
        cx.emit1(Op::Concat { axis: 0 }, vec![initial, others])
    }
}
