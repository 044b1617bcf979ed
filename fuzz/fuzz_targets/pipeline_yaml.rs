#![no_main]
arenic_fuzz::libfuzzer!("pipeline_yaml");
