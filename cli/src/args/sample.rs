//! `--sample`: how far apart samples of allocations are, or how many there may be a second.
//!
//! Invariant: what is parsed can be recorded.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use memtrack_reader::query::units::size;

/// Where `auto` begins.
const FIRST_BYTES: NonZeroU64 = NonZeroU64::new(512 << 10).unwrap();
/// Samples a second of `auto`.
const USUAL_RATE: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// A terabyte: of a program that allocates less, there would be no sample.
const MOST_BYTES: u64 = 1 << 40;

/// How allocations are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleOption {
    /// Bytes between two samples on the average, at first.
    pub(crate) bytes: NonZeroU64,
    /// The distance is changed so that there are no more samples a second than this.
    pub(crate) rate: Option<NonZeroU32>,
}

impl FromStr for SampleOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let auto = |rate| Self { bytes: FIRST_BYTES, rate: Some(rate) };
        if text == "auto" {
            return Ok(auto(USUAL_RATE));
        }
        if let Some(rate) = text.strip_prefix("auto:") {
            return rate.parse().map(auto).map_err(|_| "expected samples a second, from 1, such as auto:100".into());
        }
        let bytes = size(text).map_err(|error| error.to_string())?;
        let bytes = NonZeroU64::new(bytes).filter(|bytes| bytes.get() <= MOST_BYTES);
        bytes.map(|bytes| Self { bytes, rate: None }).ok_or_else(|| {
            "expected the bytes between two samples, such as 65536, 512KiB or 2MiB, up to 1TiB, or auto".into()
        })
    }
}

/// Says why this is no value of `--sample`.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let parsed: Result<SampleOption, String> = text.parse();
    parsed.map(|_| ()).map_err(|error| format!("invalid value '{text}' for '--sample[=<BYTES|auto[:N]>]': {error}"))
}

/// As it is parsed.
impl fmt::Display for SampleOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "auto:{rate}"),
            None => write!(f, "{}", self.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SampleOption;

    #[test]
    fn bytes_or_a_rate() {
        let parsed =
            |text: &str| text.parse::<SampleOption>().map(|option| (option.bytes.get(), option.rate.map(u32::from)));
        assert_eq!(parsed("64KiB"), Ok((65536, None)));
        assert_eq!(parsed("auto"), Ok((512 << 10, Some(100))));
        for text in ["65536", "auto:7"] {
            assert_eq!(text.parse::<SampleOption>().unwrap().to_string(), text);
        }
        assert_eq!(parsed("auto:7"), Ok((512 << 10, Some(7))));
        assert!(["0", "auto:0", "auto:", "auto7", "2TiB", "x"].into_iter().all(|text| parsed(text).is_err()));
    }
}
