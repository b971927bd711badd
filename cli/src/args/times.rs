//! Times in options: a number with ms, s, m or h.
//!
//! Invariant: these options take the same spellings.

use std::time::Duration;

/// The shortest window, or time between snapshots: checkpoints come as often while somebody watches.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest window.
const LONGEST: Duration = Duration::from_hours(24);

/// Parses a time.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..) {
        Some("ms") => 0.001,
        Some("s" | "") => 1.0,
        Some("m" | "min") => 60.0,
        Some("h") => 3600.0,
        _ => 0.0,
    };
    let number = digits.trim().parse::<f64>().ok().filter(|number| *number > 0.0 && unit > 0.0);
    let duration = number.and_then(|number| Duration::try_from_secs_f64(number * unit).ok());
    duration.ok_or_else(|| "expected a time such as 30s, 500ms, 10m or 2h".into())
}

/// Parses the time between snapshots.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    if time < SHORTEST { Err("at least 100ms".into()) } else { Ok(time) }
}

/// Parses the length of a window.
pub(super) fn window(text: &str) -> Result<Duration, String> {
    let time = time(text).ok().filter(|time| (SHORTEST..=LONGEST).contains(time));
    time.ok_or_else(|| "expected a time from 100ms to a day, such as 15s, 500ms, 5m or 1h".into())
}

#[cfg(test)]
mod tests {
    use super::{interval, time, window};
    use std::time::Duration;

    #[test]
    fn times_have_units() {
        let parsed = ["30s", "500ms", "1.5m", "2h", "7", "10 min"].map(|text| time(text).unwrap().as_millis());
        assert_eq!(parsed, [30_000, 500, 90_000, 7_200_000, 7000, 600_000]);
        for wrong in ["", "s", "ms", "0s", "-1s", "3d", "1e400s", "nan", "99999999999999999999999s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn windows_have_bounds() {
        let parsed = |text| window(text).ok().map(|time: Duration| time.as_millis());
        assert_eq!(
            ["100ms", "1.5s", "24h", "99ms", "25h"].map(parsed),
            [Some(100), Some(1500), Some(86_400_000), None, None]
        );
        assert!(interval("99ms").is_err() && interval("48h").is_ok());
    }
}
