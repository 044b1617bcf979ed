//! Domains of operators.

/// The domain of the optimizers.
pub(super) const TRAINING: &str = "ai.onnx.preview.training";
