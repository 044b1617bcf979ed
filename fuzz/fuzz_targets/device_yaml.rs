#![no_main]
arenic_fuzz::libfuzzer!("device_yaml");
