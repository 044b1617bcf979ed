//! Operators that carry a state from one part of a sequence to the next: convolutions that look
//! back, and attention that is linear in the length (Katharopoulos et al., 2020; with the delta rule,
//! Yang et al., 2024).

use super::compose::Made;
use super::position::part;
use super::{Row, row};
use crate::onnx::context::{Built, Cx};
use crate::onnx::error::Fault;
use arenic_ir::op::{Unary, Window};
use arenic_ir::{Op, TensorType, ValueId};

const LINEAR_ATTENTION: &[&str] =
    &["chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"];

pub(super) const ROWS: &[Row] = &[
    row("CausalConvWithState", (2, 4), &["activation"], causal_conv).since(27),
    row("LinearAttention", (3, 6), LINEAR_ATTENTION, linear_attention)
        .since(27)
        .note("steps become nodes"),
];

/// Most steps: each is some ten nodes.
const MOST_STEPS: usize = 4096;

/// `x[B,C,L], w[C,1,K][, bias[C]][, past[B,C,K−1]] → y[B,C,L], state[B,C,K−1]`.
fn causal_conv(cx: &mut Cx) -> Built {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let (bias, past) = (cx.optional(2)?, cx.optional(3)?);
    let gated = cx.attributes().one_of(
        "activation",
        "none",
        &[("none", false), ("silu", true), ("swish", true)],
    )?;
    let (ty, of_w) = (cx.ty(x), cx.ty(w));
    let (&[batch, channels, length], &[filters, 1, taps]) = (&ty.shape[..], &of_w.shape[..]) else {
        return Err(Fault(format!("{ty} and {of_w} are no sequence and no kernel of channels")));
    };
    if filters != channels || taps == 0 {
        return Err(Fault(format!("a kernel {of_w} does not fit {ty}")));
    }
    let kept = taps - 1;
    let whole = match past {
        Some(past) => {
            let of = cx.ty(past);
            if of.shape != [batch, channels, kept] {
                return Err(Fault(format!("its state is {of}")));
            }
            cx.emit1(Op::Concat { axis: 2 }, vec![past, x])?
        }
        None => {
            let shape = vec![batch, channels, kept + length];
            let op = Op::Pad { starts: vec![0, 0, kept], steps: vec![1; 3], shape, value: 0.0 };
            cx.emit1(op, vec![x])?
        }
    };
    let window = Window {
        kernel: vec![taps],
        strides: vec![1],
        dilations: vec![1],
        pads_begin: vec![0],
        pads_end: vec![0],
    };
    let operands = [Some(whole), Some(w), bias].into_iter().flatten().collect();
    let mut y = cx.emit1(Op::Conv { window, group: channels }, operands)?;
    if gated {
        let gate = cx.map(Unary::Sigmoid, y)?;
        y = cx.mul(y, gate)?;
    }
    let state = match cx.wants(1) {
        true => Some(part(cx, whole, 2, length, kept, 1)?),
        false => None,
    };
    Ok(vec![Some(y), state])
}

/// `q[B,T,Q·D], k[B,T,H·D], v[B,T,H·E][, state[B,H,D,E]][, decay][, rate] → y[B,T,Q·E], state`.
fn linear_attention(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    // Whether the state decays, and whether what it already says of a key is taken off.
    let rules = [
        ("linear", (false, false)),
        ("gated", (true, false)),
        ("delta", (false, true)),
        ("gated_delta", (true, true)),
    ];
    let (decays, corrects) = a.one_of("update_rule", "gated_delta", &rules)?;
    let count = |name: &str| {
        let n = a.int(name)?.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        n.ok_or_else(|| Fault(format!("attribute `{name}` is missing or not positive")))
    };
    let (queries, heads) = (count("q_num_heads")?, count("kv_num_heads")?);
    let [q, k, v] = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let of: [TensorType; 3] = [cx.ty(q), cx.ty(k), cx.ty(v)];
    let [&[batch, steps, of_q], &[_, _, of_k], &[_, _, of_v]] = [0, 1, 2].map(|i| &of[i].shape[..])
    else {
        return Err("its operands are not of batch, steps and features".into());
    };
    let (size, out) = (of_k / heads, of_v / heads);
    let fits = queries.is_multiple_of(heads)
        && [(of_q, queries, size), (of_k, heads, size), (of_v, heads, out)]
            .iter()
            .all(|&(all, n, each)| n.checked_mul(each) == Some(all))
        && of.iter().all(|ty| ty.shape[..2] == [batch, steps])
        && (1..=MOST_STEPS).contains(&steps)
        && size > 0;
    if !fits {
        let [q, k, v] = &of;
        return Err(Fault(format!(
            "{queries} and {heads} heads do not make up {q}, {k}, {v} in at most {MOST_STEPS} steps"
        )));
    }
    let scale = match a.float_or("scale", 0.0)? {
        0.0 => 1.0 / (size as f64).sqrt(),
        scale => scale.into(),
    };
    let each = queries / heads;
    let dtype = of[0].dtype;
    let mut state = match cx.optional(3)? {
        Some(state) if cx.ty(state).shape == [batch, heads, size, out] => state,
        Some(state) => return Err(Fault(format!("its state is {}", cx.ty(state)))),
        None => cx.filled(dtype, &[batch, heads, size, out], 0.0)?,
    };
    let decay = if decays {
        let decay = cx.optional(4)?.ok_or("its decay is missing")?;
        let wide = match cx.ty(decay).shape[..] {
            [b, t, n] if [b, t] == [batch, steps] && n == heads => 1,
            [b, t, n] if [b, t] == [batch, steps] && n == of_k => size,
            _ => return Err(Fault(format!("its decay is {}", cx.ty(decay)))),
        };
        let decay = cx.reshape(decay, vec![batch, steps, heads, wide, 1])?;
        Some(cx.map(Unary::Exp, decay)?)
    } else {
        None
    };
    let rate = if corrects {
        let rate = cx.optional(5)?.ok_or("its rate is missing")?;
        let wide = match cx.ty(rate).shape[..] {
            [b, t, n] if [b, t] == [batch, steps] && (n == heads || n == 1) => n,
            _ => return Err(Fault(format!("its rate is {}", cx.ty(rate)))),
        };
        Some(cx.reshape(rate, vec![batch, steps, wide, 1, 1])?)
    } else {
        None
    };
    let q = cx.times(q, scale)?;
    let q = cx.reshape(q, vec![batch, steps, heads, each, size])?;
    let k = cx.reshape(k, vec![batch, steps, heads, 1, size])?;
    let v = cx.reshape(v, vec![batch, steps, heads, 1, out])?;
    let mut rows = Vec::with_capacity(steps);
    for t in 0..steps {
        if let Some(decay) = decay {
            let decay = at(cx, decay, t)?;
            state = cx.mul(state, decay)?;
        }
        let (key, mut value) = (at(cx, k, t)?, at(cx, v, t)?);
        if let Some(rate) = rate {
            let said = product(cx, key, state, false)?;
            let new = cx.sub(value, said)?;
            let rate = at(cx, rate, t)?;
            value = cx.mul(new, rate)?;
        }
        let added = product(cx, key, value, true)?;
        state = cx.add(state, added)?;
        let query = at(cx, q, t)?;
        let y = product(cx, query, state, false)?;
        rows.push(cx.reshape(y, vec![batch, 1, queries * out])?);
    }
    let y = cx.emit1(Op::Concat { axis: 1 }, rows)?;
    Ok(vec![Some(y), Some(state)])
}

/// One step of what has steps on axis 1, which goes.
fn at(cx: &mut Cx, x: ValueId, t: usize) -> Made {
    let one = part(cx, x, 1, t, 1, 1)?;
    let mut shape = cx.ty(one).shape;
    shape.remove(1);
    cx.reshape(one, shape)
}

fn product(cx: &mut Cx, a: ValueId, b: ValueId, trans_a: bool) -> Made {
    cx.emit1(Op::MatMul { trans_a, trans_b: false }, vec![a, b])
}
