//! GELU in its tanh form: `½ z (1 + t)`, where `t = tanh(α (z + κ z³))` (Hendrycks and Gimpel,
//! "Gaussian Error Linear Units", 2016; PyTorch's `approximate="tanh"`).
//!
//! Its slope is `½ (1 + t) + ½ z (1 − t²) α (1 + 3κ z²)`. Kernels and what is exported go by one
//! order of the arithmetic, which is the one that imported models have, so that they give the
//! same bits.

/// `α = √(2/π)`, the factor of what `tanh` is applied to.
pub const SCALE: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

/// `κ`, the factor of the cube.
pub const CUBIC: f64 = 0.044715;
