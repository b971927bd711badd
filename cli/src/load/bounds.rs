//! The moments that `--from` and `--to` take: a time, a part of the duration, or a mark.
//!
//! Invariant: a mark is the same moment in every capture of a report: in one of a process that was not recorded then, it
//! lies before the first event or after the last.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use memtrack_format::marks::Mark;
use memtrack_reader::query::units::{Time, UnitError, time};
use memtrack_reader::source::{self, CaptureReader};

/// Marks that an error lists.
const LISTED: usize = 20;

/// A moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TimeBound {
    /// Since the recording began.
    Time(Time),
    /// A mark, by its name or `NAME#N`.
    Mark(String),
}

impl FromStr for TimeBound {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text.strip_prefix("mark:") {
            Some(name) => Ok(Self::Mark(name.into())),
            None => time(text).map(Self::Time),
        }
    }
}

impl TimeBound {
    /// Whether it is 100% of the duration.
    pub(super) fn is_the_end(&self) -> bool {
        *self == Self::Time(Time::Percent(100.0))
    }

    /// In nanoseconds since the recording in `file` began. `paths`: all captures of the report.
    ///
    /// # Errors
    /// No capture has the mark; or a capture cannot be read.
    pub(crate) fn ns(&self, file: &CaptureReader, paths: &[PathBuf]) -> Result<u64> {
        match self {
            Self::Time(time @ Time::Percent(_)) => Ok(time.ns(file.duration_ns()?)),
            Self::Time(time) => Ok(time.ns(0)),
            Self::Mark(name) => {
                if let Some(mark) = find(file.marks(), name) {
                    return Ok(file.mark_ns(mark));
                }
                let mut all = file.marks().to_vec();
                for path in paths {
                    for member in source::members(path)?.paths {
                        all.extend_from_slice(CaptureReader::open(&member)?.marks());
                    }
                }
                match find(&all, name) {
                    Some(mark) => Ok(file.mark_ns(mark)),
                    None => bail!("{}: there is no mark {name:?}{}", file.path().display(), listed(&all)),
                }
            }
        }
    }
}

/// The last mark of this name; for `NAME#N` the N-th.
fn find<'a>(marks: &'a [Mark], wanted: &str) -> Option<&'a Mark> {
    let last = marks.iter().rev().find(|mark| mark.name == wanted);
    last.or_else(|| {
        let (name, number) = wanted.rsplit_once('#')?;
        let number: usize = number.parse().ok()?;
        marks.iter().filter(|mark| mark.name == name).nth(number.checked_sub(1)?)
    })
}

/// The names of the marks, for an error.
fn listed(marks: &[Mark]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for mark in marks {
        if !names.contains(&mark.name.as_str()) {
            names.push(&mark.name);
        }
    }
    if names.is_empty() {
        return "; nobody has set a mark while it was recorded ('memtrack mark PID NAME')".into();
    }
    let more = if names.len() > LISTED { ", …" } else { "" };
    let shown: Vec<String> = names.iter().take(LISTED).map(|name| format!("{name:?}")).collect();
    format!("; the marks are {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{Mark, TimeBound, UnitError, find, listed};
    use memtrack_reader::query::units::Time;

    #[test]
    fn times_and_marks() {
        assert_eq!("250ms".parse(), Ok(TimeBound::Time(Time::Ns(250_000_000))));
        assert_eq!("mark:after warm-up".parse(), Ok(TimeBound::Mark("after warm-up".into())));
        assert_eq!("soon".parse::<TimeBound>(), Err(UnitError::NotATime));
        assert!("100%".parse::<TimeBound>().unwrap().is_the_end() && !"99%".parse::<TimeBound>().unwrap().is_the_end());
    }

    #[test]
    fn the_last_one_of_a_name_counts_unless_it_is_numbered() {
        let marks =
            [(1, "a"), (2, "b"), (3, "a"), (4, "c#2")].map(|(time_ns, name)| Mark { time_ns, name: name.into() });
        let time = |wanted| find(&marks, wanted).map(|mark| mark.time_ns);
        let wanted = ["a", "a#1", "a#2", "a#3", "a#0", "c#2", "d"];
        assert_eq!(wanted.map(time), [Some(3), Some(1), Some(3), None, None, Some(4), None]);
        assert_eq!(listed(&marks), "; the marks are \"a\", \"b\", \"c#2\"");
        assert!(listed(&[]).contains("memtrack mark PID NAME"));
    }
}
