//! The target `npz` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("npz");
