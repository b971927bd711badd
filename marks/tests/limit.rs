//! A limit in a test, as a user of the crate writes it. `MEMTRACK_EXAMPLE_NUMBER` changes what the function needs, so that
//! the limit can be seen to fail.

use memtrack_marks::{is_recording, measure};

/// Joins numbers, and needs some memory for it.
fn joined(number: usize) -> String {
    let texts: Vec<String> = (0..number).map(|number| number.to_string()).collect();
    texts.join(",")
}

#[test]
fn joining_a_thousand_numbers_takes_less_than_a_megabyte() {
    let number = std::env::var("MEMTRACK_EXAMPLE_NUMBER").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    let (text, figures) = measure(|| joined(number));
    assert!(text.starts_with("0,1,2"));
    // Without memtrack there is nothing to compare; with it, a limit that cannot be measured is to fail.
    if is_recording() {
        let figures = figures.expect("figures of the recording");
        assert!(figures.peak_bytes < 1_000_000, "{} bytes at its peak", figures.peak_bytes);
        assert!(figures.peak_bytes > 20_000 && figures.allocations >= 1000, "{figures:?}");
    }
}
