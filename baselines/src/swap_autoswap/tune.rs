//! Bayesian optimization of weights (section IV-C): a Gaussian process is fitted to what was
//! tried, and the weights are tried next that promise the largest expected improvement
//! (Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", 1998).
//!
//! The process is `friedrich`'s. Its kernel is the squared exponential, because in 0.6.0 the
//! gradient of its Matérn kernel, by which the length scale is fitted, is not that of the kernel.

use arenic_passes::scores::{ALONE, SCORES, Weights};
use friedrich::gaussian_process::GaussianProcess;
use friedrich::kernel::SquaredExp;
use std::f64::consts::{PI, SQRT_2};

/// Weights whose expected improvement is looked at, for each that is tried.
const LOOKED_AT: usize = 500;

/// Of these, near the best so far, and how near.
const NEAR_BEST: usize = 100;
const NEAR: f64 = 0.2;

/// The weights in [−1, 1] with the least cost of so many that are tried; each score alone is
/// tried first.
pub(super) fn tune(
    evaluations: usize,
    seed: u64,
    mut cost: impl FnMut(&Weights) -> f64,
) -> Weights {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tried: Vec<(Weights, f64)> = ALONE.iter().map(|w| (*w, cost(w))).collect();
    while tried.len() < evaluations {
        let best = least(&tried);
        let looked_at: Vec<Weights> = (0..LOOKED_AT)
            .map(|i| match i < NEAR_BEST {
                true => best.0.map(|w| (w + NEAR * drawn(&mut random)).clamp(-1.0, 1.0)),
                false => [(); SCORES].map(|()| drawn(&mut random)),
            })
            .collect();
        let next = looked_at[most_promising(&tried, best.1, &looked_at)];
        tried.push((next, cost(&next)));
    }
    least(&tried).0
}

fn drawn(random: &mut fastrand::Rng) -> f64 {
    2.0 * random.f64() - 1.0
}

/// The first of those with the least cost.
fn least(tried: &[(Weights, f64)]) -> (Weights, f64) {
    let mut all = tried.iter().copied();
    let first = all.next().unwrap_or((ALONE[0], f64::INFINITY));
    all.fold(first, |best, new| if new.1 < best.1 { new } else { best })
}

/// The weights of those looked at that promise most; the last, which are random, where all
/// that was tried costs the same.
fn most_promising(tried: &[(Weights, f64)], least: f64, looked_at: &[Weights]) -> usize {
    let last = looked_at.len() - 1;
    let count = tried.len() as f64;
    let mean = tried.iter().map(|t| t.1).sum::<f64>() / count;
    let deviation = (tried.iter().map(|t| (t.1 - mean).powi(2)).sum::<f64>() / count).sqrt();
    if deviation <= f64::EPSILON * mean.abs() {
        return last;
    }
    let inputs: Vec<Vec<f64>> = tried.iter().map(|t| t.0.to_vec()).collect();
    let costs: Vec<f64> = tried.iter().map(|t| (t.1 - mean) / deviation).collect();
    let process = GaussianProcess::builder(inputs, costs)
        .set_kernel(SquaredExp::default())
        .set_noise(1e-2)
        .set_cholesky_epsilon(Some(1e-6))
        .fit_kernel()
        .train();
    let looked_at: Vec<Vec<f64>> = looked_at.iter().map(|w| w.to_vec()).collect();
    let (means, variances) = process.predict_mean_variance(&looked_at);
    let least = (least - mean) / deviation;
    let improvement =
        |i: usize| expected_improvement(least, means[i], variances[i].max(0.0).sqrt());
    (0..=last).max_by(|&a, &b| improvement(a).total_cmp(&improvement(b))).unwrap_or(last)
}

/// How far a normal variable is below `least` on average, zero where it is above.
fn expected_improvement(least: f64, mean: f64, deviation: f64) -> f64 {
    let gain = least - mean;
    let z = gain / deviation;
    if !z.is_finite() {
        return gain.max(0.0);
    }
    let density = (-0.5 * z * z).exp() / (2.0 * PI).sqrt();
    let below = 0.5 * (1.0 + libm::erf(z / SQRT_2));
    gain * below + deviation * density
}
