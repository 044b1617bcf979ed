//! The target `programs` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("programs");
