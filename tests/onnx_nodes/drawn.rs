//! Tests whose expected values NumPy drew. What is drawn is checked for mask, scale and
//! ratio, over many steps.

use super::case::{Case, Tensor};
use super::numbers::numbers;
use super::planned::Planned;

/// Steps over which ratios are counted.
const STEPS: u64 = 400;
/// How far a count may be from its mean, in standard deviations.
const SIGMAS: f64 = 5.0;

/// What a test draws.
pub(crate) enum Drawn {
    /// A `Dropout` in training, with this ratio.
    Dropout(f64),
    /// `Bernoulli`, perhaps spelled out: a number between 0 and 1 compared with the operand.
    Bernoulli {
        /// How the function in ONNX does it, although a result is 1 with probability `x`
        /// only where the number is the lesser one.
        greater: bool,
    },
}

/// What the test draws, where it draws.
pub(crate) fn drawn(case: &Case, inputs: &[Tensor]) -> Option<Drawn> {
    let scalar = |name: &str| {
        let t = inputs.iter().find(|t| t.name == name)?;
        numbers(&t.ty, &t.bytes).first().copied()
    };
    case.graph().node.iter().find_map(|node| match node.op_type.as_deref() {
        Some("RandomUniformLike") => {
            let mut nodes = case.graph().node.iter();
            let reader = nodes.find(|n| n.input.first() == node.output.first())?;
            Some(Drawn::Bernoulli { greater: reader.op_type.as_deref() == Some("Greater") })
        }
        Some("Bernoulli") => Some(Drawn::Bernoulli { greater: false }),
        Some("Dropout") if scalar(node.input.get(2)?)? != 0.0 => {
            let ratio = match node.input[1].as_str() {
                "" => 0.5,
                name => scalar(name)?,
            };
            // Nothing is drawn where nothing is dropped.
            (ratio > 0.0).then_some(Drawn::Dropout(ratio))
        }
        _ => None,
    })
}

/// Checks what the model draws in the steps that `run` runs.
pub(crate) fn check(
    drawn: &Drawn,
    inputs: &[Tensor],
    expected: &[Tensor],
    planned: &Planned,
    run: impl Fn(u64) -> Result<Vec<Vec<Vec<u8>>>, String>,
) -> Result<(), String> {
    for (e, (_, ty)) in expected.iter().zip(planned.outputs()) {
        if e.ty != *ty {
            return Err(format!("`{}` is {ty}, not {}", e.name, e.ty));
        }
    }
    let steps: Vec<Vec<Vec<f64>>> = run(STEPS)?
        .into_iter()
        .map(|results| {
            results.iter().zip(expected).map(|(bytes, e)| numbers(&e.ty, bytes)).collect()
        })
        .collect();
    let x = numbers(&inputs[0].ty, &inputs[0].bytes);
    let kept: Vec<Vec<bool>> = match drawn {
        Drawn::Dropout(ratio) => steps
            .iter()
            .map(|results| mask(&x, results, 1.0 / (1.0 - ratio)))
            .collect::<Result<_, _>>()?,
        Drawn::Bernoulli { .. } => steps
            .iter()
            .map(|results| {
                let y = &results[0];
                match y.iter().find(|&&y| y != 0.0 && y != 1.0) {
                    Some(y) => Err(format!("{y} is neither 0 nor 1")),
                    None => Ok(y.iter().map(|&y| y == 1.0).collect()),
                }
            })
            .collect::<Result<_, _>>()?,
    };
    for (i, &x) in x.iter().enumerate() {
        let p = match drawn {
            Drawn::Dropout(ratio) => 1.0 - ratio,
            Drawn::Bernoulli { greater: true } => 1.0 - x,
            Drawn::Bernoulli { greater: false } => x,
        };
        ratio(p, kept.iter().map(|kept| kept[i])).map_err(|e| format!("element {i}: {e}"))?;
    }
    // Neighbours must not be drawn alike either.
    if let Drawn::Dropout(r) = drawn {
        ratio(1.0 - r, kept.iter().flatten().copied())?;
        let alike = r * r + (1.0 - r) * (1.0 - r);
        ratio(alike, kept.iter().flat_map(|k| k.windows(2).step_by(2).map(|w| w[0] == w[1])))?;
    }
    Ok(())
}

/// Which elements were kept: all as their scale and the mask, where there is one, say.
fn mask(x: &[f64], results: &[Vec<f64>], scale: f64) -> Result<Vec<bool>, String> {
    let y = &results[0];
    let kept: Vec<bool> = match results.get(1) {
        Some(mask) => mask.iter().map(|&m| m == 1.0).collect(),
        None => y.iter().map(|&y| y != 0.0).collect(),
    };
    for ((&x, &y), &kept) in x.iter().zip(y).zip(&kept) {
        let expected = if kept { x * scale } else { 0.0 };
        if (y - expected).abs() > 1e-6 * expected.abs() {
            return Err(format!("{x} became {y}, not {expected}"));
        }
    }
    Ok(kept)
}

/// Checks how many of some draws are true, when each is with probability `p`.
fn ratio(p: f64, draws: impl Iterator<Item = bool>) -> Result<(), String> {
    let (mut n, mut hits) = (0.0, 0.0);
    for draw in draws {
        n += 1.0;
        hits += f64::from(draw);
    }
    let deviation = (n * p * (1.0 - p)).sqrt();
    if (hits - n * p).abs() <= SIGMAS * deviation.max(1.0) {
        return Ok(());
    }
    Err(format!("{hits} of {n} draws, where the ratio is {p}"))
}
