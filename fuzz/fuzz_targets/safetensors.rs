//! The target `safetensors` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("safetensors");
