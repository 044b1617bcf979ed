#![no_main]
arenic_fuzz::libfuzzer!("envelope");
