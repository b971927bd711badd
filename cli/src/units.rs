//! Formats numbers: SI units with three digits, counts with separators, durations.
//!
//! Invariant: the same number looks the same in every report.

/// From this multiple on that an interval reaches further up than down, both of its ends are shown.
const UNEVEN: u64 = 3;

/// Bytes with three digits: `0 B`, `999 B`, `1.05 GB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    // From 999.5 on three digits would round up to 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Bytes with their interval: `12.4 MB ± 900 kB`; without it, if they are exact.
pub(crate) fn size_within(bytes: u64, range: (u64, u64)) -> String {
    within(size, bytes, range)
}

/// A count with its interval: `12,345 ± 678`; `12 (1 to 62,654)` where it reaches so much further up that half of it says nothing.
pub(crate) fn count_within(number: u64, (low, high): (u64, u64)) -> String {
    let (below, above) = (number.saturating_sub(low), high.saturating_sub(number));
    if above > number && above / UNEVEN > below {
        return format!("{} ({} to {})", count(number), count(low), count(high));
    }
    within(count, number, (low, high))
}

/// `12,345 ± 678 allocations`.
pub(crate) fn allocations_within(number: u64, range: (u64, u64)) -> String {
    let text = count_within(number, range);
    format!("{text} {}", if text == "1" { "allocation" } else { "allocations" })
}

/// The interval may reach further up than down: the larger half is shown.
fn within(text: fn(u64) -> String, figure: u64, (low, high): (u64, u64)) -> String {
    match figure.saturating_sub(low).max(high.saturating_sub(figure)) {
        0 => text(figure),
        half => format!("{} ± {}", text(figure), text(half)),
    }
}

/// A count with separators: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 process`, `2 processes`.
pub(crate) fn plural(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

/// A duration in nanoseconds: `850 ms`, `12.3 s`, `5 min 07 s`, `2 h 03 min`.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    let whole = seconds.round() as u64;
    match seconds {
        s if s < 0.9995 => format!("{} ms", whole_ms(ns)),
        s if s < 9.995 => format!("{s:.2} s"),
        s if s < 59.95 => format!("{s:.1} s"),
        s if s < 3599.5 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Nanoseconds as whole milliseconds, rounded: in text and in JSON alike.
pub(crate) fn whole_ms(ns: u64) -> u64 {
    ns / 1_000_000 + u64::from(ns % 1_000_000 >= 500_000)
}

/// An upper bound of a duration: rounded up to two digits or a millisecond.
pub(crate) fn at_most(ns: u64) -> String {
    match ns as f64 / 1e6 {
        ms if ms <= 9.9 => format!("{:.1} ms", (ms * 10.0).ceil() / 10.0),
        ms if ms <= 999.0 => format!("{:.0} ms", ms.ceil()),
        ms => duration(((ms / 10.0).ceil() * 1e7) as u64),
    }
}

/// Average bytes, with three digits down to a hundredth: `2.05 bytes`, `0.004 bytes`.
pub(crate) fn bytes_each(bytes: u64, number: u64) -> String {
    let each = if number == 0 { 0.0 } else { bytes as f64 / number as f64 };
    let decimals = match each {
        each if each >= 99.95 => 0,
        each if each >= 9.995 => 1,
        each if each >= 0.0995 || each == 0.0 => 2,
        _ => 3,
    };
    format!("{each:.decimals$} bytes")
}

/// A share in percent, with at most three digits: `100 %`, `12.5 %`; 0 of 0 is 0 %.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let value = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let decimals = usize::from(value < 99.95);
    format!("{value:.decimals$} %")
}

#[cfg(test)]
mod tests {
    use super::{at_most, bytes_each, count, duration, percent, size, whole_ms};

    #[test]
    fn sizes_have_three_digits() {
        let expected = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9994, "9.99 kB"),
            (9996, "10.0 kB"),
            (99_960, "100 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (1_048_576_000, "1.05 GB"),
            (u64::MAX, "18.4 EB"),
        ];
        expected.iter().for_each(|(bytes, text)| assert_eq!(size(*bytes), *text));
    }

    #[test]
    fn counts_have_separators() {
        let expected = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        expected.iter().for_each(|(number, text)| assert_eq!(count(*number), *text));
    }

    #[test]
    fn durations_and_percents() {
        assert_eq!(duration(850_400_000), "850 ms");
        assert_eq!(duration(999_600_000), "1.00 s");
        for ns in [0, 499_999, 500_000, 1_809_000, 2_500_000, 145_640_000, 999_499_999] {
            assert_eq!(duration(ns), format!("{} ms", whole_ms(ns)));
        }
        assert_eq!([145_640_000, 1_809_000, 1_499_999, u64::MAX].map(whole_ms), [146, 2, 1, 18_446_744_073_710]);
        assert_eq!(duration(12_340_000_000), "12.3 s");
        assert_eq!(duration(307_000_000_000), "5 min 07 s");
        assert_eq!(duration(7_380_000_000_000), "2 h 03 min");
        let bounds = [
            (1, "0.1 ms"),
            (1_130_000, "1.2 ms"),
            (9_910_000, "10 ms"),
            (80_100_000, "81 ms"),
            (1_001_000_000, "1.01 s"),
        ];
        bounds.iter().for_each(|(ns, text)| assert_eq!(at_most(*ns), *text));
        assert_eq!(percent(1, 8), "12.5 %");
        assert_eq!(percent(8, 8), "100 %");
        assert_eq!(percent(0, 0), "0.0 %");
        assert_eq!(bytes_each(205, 100), "2.05 bytes");
        assert_eq!(bytes_each(4, 1000), "0.004 bytes");
        assert_eq!(bytes_each(5000, 0), "0.00 bytes");
        assert_eq!(bytes_each(5_000_000, 10), "500000 bytes");
    }
}
