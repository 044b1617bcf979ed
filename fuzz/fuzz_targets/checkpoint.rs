//! The target `checkpoint` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("checkpoint");
