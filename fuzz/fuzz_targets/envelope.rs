//! The target `envelope` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("envelope");
