//! ONNX Runtime's optimizers, as updates of one parameter.

use super::super::compose::Made;
use crate::onnx::context::{Built, Cx};
use arenic_ir::op::{Binary, Unary};
use arenic_ir::{DType, Op, ValueId};

/// `lr, t, p, g, m, v → p', m', v'`. Mode 1 has ONNX's own formula, the epsilon beside the root
/// of an uncorrected `v`, and takes the decay off afterwards; mode 0 is PyTorch's.
pub(in super::super) fn adam(cx: &mut Cx) -> Built {
    let a = cx.attributes();
    let (alpha, beta) = (a.float_or("alpha", 0.9)?, a.float_or("beta", 0.999)?);
    let (epsilon, decay) = (a.float_or("epsilon", 1e-8)?, a.float_or("weight_decay", 1e-2)?);
    let correct = a.flag("correct_bias", true)?;
    let mode = a.int_or("adam_mode", 0)?;
    let [rate, t, p, g, m, v] = [0, 1, 2, 3, 4, 5].map(|i| cx.input(i));
    let (rate, t, p, g, m, v) = (rate?, t?, p?, g?, m?, v?);
    match mode {
        0 => {
            let decayed = decay_of(cx, p, rate, decay)?;
            let p = cx.sub(p, decayed)?;
            let m = average(cx, m, g, alpha)?;
            let square = cx.mul(g, g)?;
            let v = average(cx, v, square, beta)?;
            let (mut m_part, mut v_part) = (cx.mul(m, rate)?, v);
            let mut m_correction = None;
            if correct {
                let dtype = cx.ty(p).dtype;
                m_correction = Some(correction(cx, t, alpha, dtype)?);
                let v_correction = correction(cx, t, beta, dtype)?;
                v_part = cx.div(v, v_correction)?;
            }
            let root = cx.map(Unary::Sqrt, v_part)?;
            let mut below = cx.plus(root, epsilon.into())?;
            if let Some(c) = m_correction {
                below = cx.mul(below, c)?;
            }
            m_part = cx.div(m_part, below)?;
            let p = cx.sub(p, m_part)?;
            Ok(vec![Some(p), Some(m), Some(v)])
        }
        1 => {
            // The count 0 is that of an update without correction.
            let t = if correct { t } else { cx.scalar(DType::I64, 0.0) };
            let op = Op::Adam {
                alpha,
                beta,
                epsilon,
                norm_coefficient: 0.0,
                norm_coefficient_post: 0.0,
            };
            let mut results = cx.whole(op, vec![rate, t, p, g, m, v])?;
            if let Some(Some(p)) = results.first_mut()
                && decay != 0.0
            {
                let decayed = decay_of(cx, *p, rate, decay)?;
                *p = cx.sub(*p, decayed)?;
            }
            Ok(results)
        }
        _ => Err(format!("attribute `adam_mode` is {mode}, not 0 or 1").into()),
    }
}

/// `lr · decay · p`.
fn decay_of(cx: &mut Cx, p: ValueId, rate: ValueId, decay: f32) -> Made {
    let factor = cx.times(rate, decay.into())?;
    cx.mul(p, factor)
}

/// `keep · old + (1 − keep) · new`, the factors in single precision.
fn average(cx: &mut Cx, old: ValueId, new: ValueId, keep: f32) -> Made {
    let old = cx.times(old, keep.into())?;
    let new = cx.times(new, (1.0 - keep).into())?;
    cx.add(old, new)
}

/// `1 − factor^t`.
fn correction(cx: &mut Cx, t: ValueId, factor: f32, dtype: DType) -> Made {
    let t = cx.cast(t, dtype)?;
    let base = cx.scalar(dtype, factor.into());
    let power = cx.both(Binary::Pow, base, t)?;
    cx.number_minus(1.0, power)
}

/// `lr, p, g → p − lr · g`.
pub(in super::super) fn sgd(cx: &mut Cx) -> Built {
    let (rate, p, g) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let change = cx.mul(g, rate)?;
    Ok(vec![Some(cx.sub(p, change)?)])
}
