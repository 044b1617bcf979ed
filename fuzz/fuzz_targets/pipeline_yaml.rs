//! The target `pipeline_yaml` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("pipeline_yaml");
