//! The target `artifact` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("artifact");
