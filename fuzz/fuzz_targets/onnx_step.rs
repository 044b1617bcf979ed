//! The target `onnx_step` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("onnx_step");
