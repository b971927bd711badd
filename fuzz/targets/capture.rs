//! The block reader, and everything behind it up to the sums.
#![no_main]

#[path = "../src/checks.rs"]
#[allow(dead_code, reason = "each target runs one of the checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::capture(data));
