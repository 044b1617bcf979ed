#![no_main]
arenic_fuzz::libfuzzer!("memory_graph");
