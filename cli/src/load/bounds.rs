//! The moments that `--from` and `--to` take: a time, a part of the duration, or a mark.
//!
//! Invariant: a mark is the same moment in every capture of a report: in one of a process that was not recorded then, it
//! lies before the first event or after the last.

use std::collections::HashSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

use anyhow::{Result, bail};
use memtrack_format::marks::Mark;
use memtrack_reader::analysis::Selection;
use memtrack_reader::query::units::{Time, UnitError, time};
use memtrack_reader::source::{self, CaptureReader};

use super::Request;
use super::clock::{CaptureStart, CaptureTimes, have_one_clock};
use crate::units::duration;

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

    /// In nanoseconds since the earliest recording of the report began. `paths`: all captures of the report, one of them in `file`,
    /// of which `marked` has times and marks once they were needed.
    ///
    /// # Errors
    /// No capture of the recording has the mark; or a capture cannot be read.
    pub(crate) fn ns(&self, file: &CaptureReader, paths: &[PathBuf], marked: &MarkedCaptures) -> Result<u64> {
        match self {
            Self::Time(time @ Time::Percent(_)) => Ok(time.ns(marked.times(file, paths)?.whole_ns)),
            Self::Time(time) => Ok(time.ns(0)),
            Self::Mark(name) => {
                let own = MarkedCapture::of(file);
                let mut captures = vec![&own];
                let others = if is_alone(file, paths) { &[] } else { marked.of(paths)? };
                // Another recording has marks of its own, by a clock that may be another, too.
                let is_other = |one: &&MarkedCapture| one.path != own.path && one.recording == own.recording;
                captures.extend(others.iter().filter(is_other).filter(|_| own.recording.is_some()));
                match find(&captures, name) {
                    Some(mark) => {
                        let first = file.process().start.monotonic_ns.unwrap_or(mark.time_ns);
                        let first = first.saturating_sub(marked.times(file, paths)?.start_ns);
                        Ok(mark.time_ns.saturating_sub(first))
                    }
                    None => bail!("{}: there is no mark {name:?}{}", file.path().display(), listed(&captures)),
                }
            }
        }
    }
}

impl Request<'_> {
    /// The selection by size and time, with percentages and marks resolved for this capture.
    ///
    /// # Errors
    /// The duration cannot be read, or there is no such mark.
    pub(crate) fn selection(&self, file: &CaptureReader) -> Result<Selection> {
        let ns = |bound: Option<&TimeBound>, without: u64| match bound {
            Some(bound) => bound.ns(file, self.paths, &self.marked),
            None => Ok(without),
        };
        // Up to 100% includes allocations at the very end.
        let to = self.to.as_ref().filter(|to| !to.is_the_end());
        let (from_ns, to_ns) = (ns(self.from.as_ref(), 0)?, ns(to, u64::MAX)?);
        if from_ns > to_ns {
            bail!(
                "{}: --from is {} after the start, later than --to, {}: nothing lies between; exchange them",
                file.path().display(),
                duration(from_ns),
                duration(to_ns)
            );
        }
        if from_ns == 0 && to_ns == u64::MAX {
            return Ok(Selection { min_bytes: self.min_bytes, ..Selection::default() });
        }
        let times = self.times(file)?;
        Ok(Selection { min_bytes: self.min_bytes, from_ns: times.own_ns(from_ns), to_ns: times.own_ns(to_ns) })
    }

    /// Where a capture of the request lies in the time of all of them.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub(crate) fn times(&self, file: &CaptureReader) -> Result<CaptureTimes> {
        self.marked.times(file, self.paths)
    }
}

/// Times and marks of all captures of a report.
#[derive(Clone, Debug, Default)]
pub(crate) struct MarkedCaptures(OnceLock<Vec<MarkedCapture>>);

/// Whether the report is of one capture.
fn is_alone(file: &CaptureReader, paths: &[PathBuf]) -> bool {
    matches!(paths, [] | [_]) && paths.iter().all(|only| only == file.path())
}

impl MarkedCaptures {
    /// Where a capture lies in the time of these, which are the report's.
    ///
    /// # Errors
    /// A capture cannot be read.
    pub(crate) fn times(&self, file: &CaptureReader, paths: &[PathBuf]) -> Result<CaptureTimes> {
        let alone = || anyhow::Ok(CaptureTimes { start_ns: 0, whole_ns: file.duration_ns()? });
        if is_alone(file, paths) {
            return alone();
        }
        let all = self.of(paths)?;
        let starts: Vec<&CaptureStart> = all.iter().map(|one| &one.start).collect();
        let Some(own_ns) = file.process().start.monotonic_ns.filter(|_| have_one_clock(&starts)) else {
            return alone();
        };
        let first_ns = all.iter().map(|one| one.start_ns).min().unwrap_or(own_ns).min(own_ns);
        let end_ns = all.iter().map(|one| one.end_ns).max().unwrap_or(own_ns);
        Ok(CaptureTimes { start_ns: own_ns - first_ns, whole_ns: end_ns.saturating_sub(first_ns) })
    }

    /// Those of these captures, which are read once.
    fn of(&self, paths: &[PathBuf]) -> Result<&[MarkedCapture]> {
        if let Some(known) = self.0.get() {
            return Ok(known);
        }
        let mut all = Vec::new();
        for path in paths {
            for member in source::members(path)?.paths {
                let file = CaptureReader::open(&member)?;
                let own = MarkedCapture::of(&file);
                all.push(MarkedCapture { end_ns: own.start_ns.saturating_add(file.duration_ns()?), ..own });
            }
        }
        Ok(self.0.get_or_init(|| all))
    }
}

/// Times and marks of a capture.
#[derive(Clone, Debug, Default)]
struct MarkedCapture {
    start: CaptureStart,
    path: PathBuf,
    /// The number of its recording.
    recording: Option<u64>,
    /// When the recording of its process began, on the clock of marks.
    start_ns: u64,
    /// When it ended, where that was looked up.
    end_ns: u64,
    marks: Vec<Mark>,
}

impl MarkedCapture {
    fn of(file: &CaptureReader) -> Self {
        let process = file.process();
        Self {
            start: CaptureStart::of(process),
            path: file.path().to_path_buf(),
            recording: process.tree.recording,
            start_ns: process.start.monotonic_ns.unwrap_or(0),
            end_ns: 0,
            marks: file.marks().to_vec(),
        }
    }
}

/// The last mark of this name; for `NAME#N` the N-th. Of the marks of that moment it is that of the first capture that has one.
fn find<'a>(captures: &[&'a MarkedCapture], wanted: &str) -> Option<&'a Mark> {
    moments(captures, wanted).pop().or_else(|| {
        let (name, number) = wanted.rsplit_once('#')?;
        let number: usize = number.parse().ok()?;
        moments(captures, name).into_iter().nth(number.checked_sub(1)?)
    })
}

/// A moment that was marked.
struct MarkedMoment<'a> {
    /// When its first mark was set.
    begin_ns: u64,
    /// The first of the captures that have a mark of it, and its mark.
    first: usize,
    mark: &'a Mark,
}

/// The moments of this name, by time. Each process that was recorded at one has a mark of it, at a time of its own, and all have
/// them in one order.
fn moments<'a>(captures: &[&'a MarkedCapture], name: &str) -> Vec<&'a Mark> {
    let of = |(at, capture): (usize, &&'a MarkedCapture)| {
        let start_ns = capture.start_ns;
        capture.marks.iter().map(move |mark| (mark, at, start_ns)).collect::<Vec<_>>()
    };
    let mut marks: Vec<_> = captures.iter().enumerate().flat_map(of).filter(|(mark, ..)| mark.name == name).collect();
    marks.sort_by_key(|(mark, at, _)| (mark.time_ns, *at));
    let mut moments: Vec<MarkedMoment<'a>> = Vec::new();
    // Of each capture the first moment that it may have a later mark of.
    let mut next = vec![0; captures.len()];
    for (mark, at, start_ns) in marks {
        let is_past =
            |moment: &MarkedMoment<'_>| mark.time_ns - moment.begin_ns >= ONE_MOMENT || moment.begin_ns < start_ns;
        let place = next[at].max(moments.partition_point(is_past));
        next[at] = place + 1;
        match moments.get_mut(place) {
            Some(moment) if at < moment.first => (moment.first, moment.mark) = (at, mark),
            Some(_) => {}
            None => moments.push(MarkedMoment { begin_ns: mark.time_ns, first: at, mark }),
        }
    }
    moments.into_iter().map(|moment| moment.mark).collect()
}

/// The names of the marks, for an error.
fn listed(captures: &[&MarkedCapture]) -> String {
    let (mut names, mut known) = (Vec::new(), HashSet::new());
    for mark in captures.iter().flat_map(|capture| &capture.marks) {
        if known.insert(&mark.name) {
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
    use super::{Mark, MarkedCapture, TimeBound, UnitError, find, listed};
    use memtrack_reader::query::units::Time;

    #[test]
    fn times_and_marks() {
        assert_eq!("250ms".parse(), Ok(TimeBound::Time(Time::Ns(250_000_000))));
        assert_eq!("mark:after warm-up".parse(), Ok(TimeBound::Mark("after warm-up".into())));
        assert_eq!("soon".parse::<TimeBound>(), Err(UnitError::NotATime));
        assert!("100%".parse::<TimeBound>().unwrap().is_the_end() && !"99%".parse::<TimeBound>().unwrap().is_the_end());
    }

    fn marked(start_ns: u64, marks: &[(u64, &str)]) -> MarkedCapture {
        let marks = marks.iter().map(|&(time_ns, name)| Mark { time_ns, name: name.into() }).collect();
        MarkedCapture { start_ns, marks, ..MarkedCapture::default() }
    }

    #[test]
    fn the_last_one_of_a_name_counts_unless_it_is_numbered() {
        let capture = marked(0, &[(1, "a"), (2, "b"), (3, "a"), (4, "c#2")]);
        let time = |wanted| find(&[&capture], wanted).map(|mark| mark.time_ns);
        let wanted = ["a", "a#1", "a#2", "a#3", "a#0", "b#2", "c#2", "d"];
        assert_eq!(wanted.map(time), [Some(3), Some(1), Some(3), None, None, None, Some(4), None]);
        assert_eq!(listed(&[&capture]), "; the marks are \"a\", \"b\", \"c#2\"");
        assert!(listed(&[]).contains("memtrack mark PID NAME"));
    }

    #[test]
    fn a_moment_is_one_in_all_processes_although_some_came_later_or_ended_before() {
        const S: u64 = 1_000_000_000;
        let parent = marked(0, &[(S, "a"), (5 * S, "a")]);
        let child = marked(2 * S, &[(5 * S - 7, "a"), (9 * S, "a"), (9 * S + 4, "a")]);
        let times = |captures: [&MarkedCapture; 2]| {
            ["a", "a#1", "a#2", "a#3", "a#4", "a#5"].map(|wanted| Some(find(&captures, wanted)?.time_ns))
        };
        assert_eq!(
            times([&parent, &child]),
            [9 * S + 4, S, 5 * S, 9 * S, 9 * S + 4, 0].map(|ns| Some(ns).filter(|_| ns > 0))
        );
        assert_eq!(times([&child, &parent])[..3], [9 * S + 4, S, 5 * S - 7].map(Some));
        // Two marks one after the other, which reach the child later than the second is set.
        let [parent, child] = [marked(0, &[(10, "a"), (12, "a")]), marked(0, &[(15, "a"), (17, "a")])];
        assert_eq!(times([&child, &parent])[..4], [Some(17), Some(15), Some(17), None]);
        // One that began between them has the second only.
        let late = marked(11, &[(15, "a")]);
        assert_eq!(times([&late, &parent])[..4], [Some(15), Some(10), Some(15), None]);
    }
}
