#![no_main]
arenic_fuzz::libfuzzer!("pipelines");
