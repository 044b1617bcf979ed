//! The target `text` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("text");
