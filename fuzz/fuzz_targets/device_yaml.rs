//! The target `device_yaml` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("device_yaml");
