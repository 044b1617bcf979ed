//! The target `trace` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("trace");
