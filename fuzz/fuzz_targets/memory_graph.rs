//! The target `memory_graph` for libFuzzer.
#![no_main]
arenic_fuzz::libfuzzer!("memory_graph");
