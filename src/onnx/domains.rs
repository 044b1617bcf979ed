//! Domains of operators.

/// The domain of the optimizers.
pub(super) const TRAINING: &str = "ai.onnx.preview.training";

/// The domain of operators that ONNX may still change.
pub(super) const PREVIEW: &str = "ai.onnx.preview";
