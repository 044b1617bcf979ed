//! The target `snapshot` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("snapshot");
