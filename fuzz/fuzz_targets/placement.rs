//! The target `placement` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("placement");
