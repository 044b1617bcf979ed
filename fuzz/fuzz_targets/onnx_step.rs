#![no_main]
arenic_fuzz::libfuzzer!("onnx_step");
