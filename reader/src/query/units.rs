//! Parses sizes and times: `512`, `10kB`, `1.5MiB`; `250ms`, `1.5s`, `50%`.
//!
//! Options and expressions share it. Invariant: a text that is not understood as a whole is rejected with the accepted
//! forms.

/// Why a text is neither a size nor a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// It does not begin with a number.
    #[error("not a size, such as 512, 10kB or 1MB")]
    NotASize,
    /// It does not begin with a number.
    #[error("not a time, such as 1.5s, 250ms or 50%")]
    NotATime,
    /// The unit of a size is none.
    #[error("unknown size unit {0}; expected B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")]
    SizeUnit(String),
    /// The unit of a time is none.
    #[error("unknown time unit {0}; expected s, ms, us, ns, min, h or %")]
    TimeUnit(String),
    /// A time has no unit.
    #[error("missing unit: {0}s, {0}ms or {0}%?")]
    NoUnit(String),
    /// More than the whole.
    #[error("more than 100%")]
    MoreThanAll,
    /// A part of the whole, where a span of time is meant.
    #[error("a percentage, where a time span is expected, such as 2s or 10ms")]
    NotASpan,
}

/// A time since recording began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {
    /// In nanoseconds.
    Ns(u64),
    /// As a part of the whole duration, from 0 to 100.
    Percent(f64),
}

impl Time {
    /// In nanoseconds, where the whole lasted this long.
    #[must_use]
    pub fn ns(self, duration_ns: u64) -> u64 {
        match self {
            Self::Ns(ns) => ns,
            Self::Percent(percent) => (duration_ns as f64 * percent / 100.0) as u64,
        }
    }
}

/// Bytes, with a unit of 1000 (kB, MB, GB, TB) or 1024 (KiB, MiB, GiB, TiB).
///
/// # Errors
/// A text that is not one; so below.
pub fn size(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = number_and_unit(text).ok_or(UnitError::NotASize)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return Err(UnitError::SizeUnit(unit.to_owned())),
    };
    Ok((number * factor) as u64)
}

/// A time since the start: seconds, milliseconds, microseconds, minutes, hours, or a part of the whole; 0 needs no unit.
pub fn time(text: &str) -> Result<Time, UnitError> {
    let (number, unit) = number_and_unit(text).ok_or(UnitError::NotATime)?;
    let factor = match unit {
        "%" if number <= 100.0 => return Ok(Time::Percent(number)),
        "%" => return Err(UnitError::MoreThanAll),
        "s" => 1e9,
        "ms" => 1e6,
        "us" | "µs" => 1e3,
        "ns" => 1.0,
        "m" | "min" => 6e10,
        "h" => 3.6e12,
        "" if number == 0.0 => 1.0,
        "" => return Err(UnitError::NoUnit(text.to_owned())),
        _ => return Err(UnitError::TimeUnit(unit.to_owned())),
    };
    Ok(Time::Ns((number * factor) as u64))
}

/// A span of time, which is no part of the whole.
pub fn span(text: &str) -> Result<u64, UnitError> {
    match time(text)? {
        Time::Ns(ns) => Ok(ns),
        Time::Percent(_) => Err(UnitError::NotASpan),
    }
}

/// A decimal number that is not negative, and what follows it.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::{Time, size, span, time};

    #[test]
    fn sizes() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("1.5kB"), Ok(1500));
        assert_eq!(size("10 MB"), Ok(10_000_000));
        assert_eq!(size("2KiB"), Ok(2048));
        assert!(size("-1").is_err() && size("kB").is_err() && size("1 apple").is_err());
    }

    #[test]
    fn times() {
        assert_eq!(time("1.5s"), Ok(Time::Ns(1_500_000_000)));
        assert_eq!(time("250ms"), Ok(Time::Ns(250_000_000)));
        assert_eq!(time("50%"), Ok(Time::Percent(50.0)));
        assert_eq!(time("0"), Ok(Time::Ns(0)));
        assert!(time("101%").is_err() && time("5").is_err() && time("soon").is_err());
        assert_eq!(span("2ms"), Ok(2_000_000));
        assert!(span("2%").is_err());
    }
}
