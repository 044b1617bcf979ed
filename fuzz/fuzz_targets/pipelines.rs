//! The target `pipelines` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("pipelines");
