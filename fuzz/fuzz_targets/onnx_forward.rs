//! The target `onnx_forward` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("onnx_forward");
