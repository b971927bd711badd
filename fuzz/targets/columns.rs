//! The record decoder, of columns.
#![no_main]

#[path = "../src/checks.rs"]
#[allow(dead_code, reason = "each target runs one of the checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::columns(data));
