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

/// Nanoseconds within which all processes of a recording set one mark.
const ONE_MOMENT: u64 = 1_000_000_000;
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
                let mut captures = vec![file.marks().to_vec()];
                for path in paths {
                    for member in source::members(path)?.paths {
                        if member != file.path() {
                            captures.push(CaptureReader::open(&member)?.marks().to_vec());
                        }
                    }
                }
                match find(&captures, name) {
                    Some(mark) => Ok(file.mark_ns(mark)),
                    None => bail!("{}: there is no mark {name:?}{}", file.path().display(), listed(&captures.concat())),
                }
            }
        }
    }
}

/// The last mark of this name; for `NAME#N` the N-th: where the first capture has it, as it has it.
fn find<'a>(captures: &'a [Vec<Mark>], wanted: &str) -> Option<&'a Mark> {
    moments(captures, wanted).pop().or_else(|| {
        let (name, number) = wanted.rsplit_once('#')?;
        let number: usize = number.parse().ok()?;
        moments(captures, name).into_iter().nth(number.checked_sub(1)?)
    })
}

/// The moments of this name, by time. Each process that was recorded at one has a mark of it, at a time of its own.
fn moments<'a>(captures: &'a [Vec<Mark>], name: &str) -> Vec<&'a Mark> {
    let of = |(at, marks): (usize, &'a Vec<Mark>)| marks.iter().map(move |mark| (mark.time_ns, at, mark));
    let mut marks: Vec<_> = captures.iter().enumerate().flat_map(of).filter(|(.., mark)| mark.name == name).collect();
    marks.sort_by_key(|(time_ns, at, _)| (*time_ns, *at));
    // Of each moment when it began, the captures that have it, and the mark of the first of them.
    let mut moments: Vec<(u64, Vec<usize>, &Mark)> = Vec::new();
    for (time_ns, at, mark) in marks {
        match moments.last_mut().filter(|(begin, seen, _)| time_ns - begin < ONE_MOMENT && !seen.contains(&at)) {
            Some((_, seen, first)) => {
                if seen.iter().all(|seen| at < *seen) {
                    *first = mark;
                }
                seen.push(at);
            }
            None => moments.push((time_ns, vec![at], mark)),
        }
    }
    moments.into_iter().map(|(.., mark)| mark).collect()
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

    fn marks(marks: &[(u64, &str)]) -> Vec<Mark> {
        marks.iter().map(|&(time_ns, name)| Mark { time_ns, name: name.into() }).collect()
    }

    #[test]
    fn the_last_one_of_a_name_counts_unless_it_is_numbered() {
        let captures = [marks(&[(1, "a"), (2, "b"), (3, "a"), (4, "c#2")])];
        let time = |wanted| find(&captures, wanted).map(|mark| mark.time_ns);
        let wanted = ["a", "a#1", "a#2", "a#3", "a#0", "b#2", "c#2", "d"];
        assert_eq!(wanted.map(time), [Some(3), Some(1), Some(3), None, None, None, Some(4), None]);
        assert_eq!(listed(&captures[0]), "; the marks are \"a\", \"b\", \"c#2\"");
        assert!(listed(&[]).contains("memtrack mark PID NAME"));
    }

    #[test]
    fn a_moment_is_one_in_all_processes_although_some_came_later_or_ended_before() {
        const S: u64 = 1_000_000_000;
        let parent = marks(&[(S, "a"), (5 * S, "a")]);
        let child = marks(&[(5 * S - 7, "a"), (9 * S, "a"), (9 * S + 4, "a")]);
        let wanted = ["a", "a#1", "a#2", "a#3", "a#4", "a#5"];
        let times = |captures: [Vec<Mark>; 2]| wanted.map(|wanted| find(&captures, wanted).map(|mark| mark.time_ns));
        let all = [9 * S + 4, S, 5 * S, 9 * S, 9 * S + 4].map(Some);
        assert_eq!(times([parent.clone(), child.clone()])[..5], all);
        assert_eq!(times([child, parent])[..3], [Some(9 * S + 4), Some(S), Some(5 * S - 7)]);
    }
}
