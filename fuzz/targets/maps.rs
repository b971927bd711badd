//! What the system says a process has mapped.
#![no_main]

#[path = "../src/maps.rs"]
mod maps;

libfuzzer_sys::fuzz_target!(|data: &[u8]| maps::maps(data));
