//! `transform dhat`: the JSON of valgrind's DHAT, version 2, for its viewer `dh_view.html`: lifetimes, no accesses.
//!
//! A program point is a stack with the allocating function as its innermost frame. Its maximum is exact for one thread;
//! for several threads it is the sum of their maxima, an upper bound. Its end (`te`, dh_view's `t-end`) is the moment of
//! the leaks: when Python began to finalize, where that is known and the leaks at exit were not asked for. Invariant: no
//! two points have the same frames, and the points' bytes at the high-water mark and at the end add up to the view's
//! totals, at the moments that the file gives for them.

use std::collections::HashMap;
use std::io::{self, Write};

use anyhow::{Result, bail};
use memtrack_format::Allocator;
use memtrack_reader::analysis::{Detail, Group};
use memtrack_reader::{FrameId, Options, View};
use serde_json::{Value, json};

use super::numbering::Numbering;
use super::{SumsFormat, frame_text, json::list, leaf_to_root};
use crate::reports::capture_info::Capture;

/// Blocks that live less than this are called short-lived, in microseconds.
const SHORT_LIVED_US: u64 = 1000;
/// The root frame, which is first and in no program point.
const ROOT: &str = "[root]";

/// The JSON of DHAT.
#[derive(Debug)]
pub(crate) struct Dhat;

impl SumsFormat for Dhat {
    fn name(&self) -> &'static str {
        "dhat"
    }

    fn suffix(&self) -> &'static str {
        "dhat.json"
    }

    fn opens_in(&self) -> &'static str {
        "open it in valgrind's dh_view.html"
    }

    fn holds_every_view(&self) -> bool {
        true
    }

    fn reading(&self, options: Options) -> Options {
        Options { details: true, ..options }
    }

    /// Writes all views; `view` only selects the moment of the leaks.
    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        let analysis = &capture.analysis;
        let Some(details) = &analysis.details else {
            bail!(
                "{}: an aggregated capture does not know how long allocations lived; use another format, such as pprof",
                capture.info.file.display()
            );
        };
        let end = if matches!(view, View::LeaksAtExit) { View::LeaksAtExit } else { View::Leaks };
        let mut frames = Numbering::new();
        frames.number(DhatFrame::Root);
        write!(out, "{{{},\"pps\":", head(capture, end).trim_start_matches('{').trim_end_matches('}'))?;
        list(out, points(capture, details, end), |out, point| point.write(capture, &mut frames, out))?;
        write!(out, ",\"ftbl\":")?;
        list(out, frames.order(), |out, place| write!(out, "{}", json!(place.text(capture))))?;
        writeln!(out, "}}")?;
        Ok(())
    }
}

fn head(capture: &Capture, end: View) -> String {
    let (info, analysis) = (&capture.info, &capture.analysis);
    let peak = analysis.totals.peak.at.unwrap_or_default();
    let exit_ns = info.duration_ns(analysis).max(analysis.totals.end_time_ns);
    let finalizing = analysis.totals.finalizing.filter(|_| end == View::Leaks);
    let end_ns = finalizing.map_or(exit_ns, |moment| moment.time_ns);
    let head = json!({
        "dhatFileVersion": 2,
        "mode": "heap",
        "verb": "Allocated",
        "bklt": true,
        "bkacc": false,
        "tu": "µs",
        "Mtu": "s",
        "tuth": SHORT_LIVED_US,
        "cmd": info.title(),
        "pid": info.process.pid.unwrap_or(0),
        "tg": peak.time_ns / 1000,
        "te": end_ns / 1000,
    });
    head.to_string()
}

/// An entry of the frame table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DhatFrame {
    Root,
    Allocator(Allocator),
    Frame(Option<FrameId>),
}

impl DhatFrame {
    fn text(self, capture: &Capture) -> String {
        match self {
            Self::Root => ROOT.into(),
            Self::Allocator(allocator) => allocator.name().into(),
            Self::Frame(frame) => frame_text(frame, &capture.frames),
        }
    }
}

/// DHAT's program point: the sums of one stack and allocator.
struct ProgramPoint {
    group: Group,
    detail: Detail,
    end: View,
}

/// The groups, merged over threads, in the order of their first allocation.
fn points(capture: &Capture, details: &[Detail], end: View) -> Vec<ProgramPoint> {
    let mut places = HashMap::new();
    let mut points: Vec<ProgramPoint> = Vec::new();
    for (group, detail) in capture.analysis.groups.iter().zip(details) {
        let place = *places.entry((group.stack, group.allocator)).or_insert(points.len());
        match points.get_mut(place) {
            Some(point) => {
                point.group.add(&group);
                point.detail.add(detail);
            }
            None => points.push(ProgramPoint { group, detail: detail.clone(), end }),
        }
    }
    points
}

impl ProgramPoint {
    fn write(&self, capture: &Capture, frames: &mut Numbering<DhatFrame>, out: &mut dyn Write) -> io::Result<()> {
        let stack = leaf_to_root(&capture.frames, self.group.stack).into_iter().map(DhatFrame::Frame);
        let places = std::iter::once(DhatFrame::Allocator(self.group.allocator)).chain(stack);
        let fs: Vec<_> = places.map(|place| frames.number(place)).collect();
        let (all, peak, end) = (&self.group.allocated, &self.group.peak, self.group.sum(self.end));
        let value: Value = json!({
            "tb": all.bytes, "tbk": all.count, "tl": self.detail.lifetime_ns / 1000,
            "mb": self.detail.most.bytes, "mbk": self.detail.most.count,
            "gb": peak.bytes, "gbk": peak.count, "eb": end.bytes, "ebk": end.count, "fs": fs,
        });
        write!(out, "{value}")
    }
}

#[cfg(test)]
mod tests {
    use super::{Dhat, SumsFormat};
    use crate::reports::capture_info::Capture;
    use crate::reports::fixture;
    use memtrack_reader::View;
    use memtrack_reader::analysis::{Detail, Moment};
    use serde_json::{Value, json};

    fn report() -> Vec<u8> {
        report_of(fixture::capture(), View::HighWaterMark)
    }

    fn report_of(mut capture: Capture, view: View) -> Vec<u8> {
        let detail = Detail { freed: 1, lifetime_ns: 5_000_000, ..Detail::default() };
        capture.analysis.details = Some(vec![detail; capture.analysis.groups.len()]);
        let mut text = Vec::new();
        Dhat.write(&capture, view, &mut text).unwrap();
        text
    }

    #[test]
    fn golden() {
        fixture::compare("capture.dhat.json", &report());
    }

    #[test]
    fn points_are_distinct_and_add_up() {
        let report: Value = serde_json::from_slice(&report()).unwrap();
        let points = report["pps"].as_array().unwrap();
        let sum = |key: &str| points.iter().filter_map(|point| point[key].as_u64()).sum::<u64>();
        assert_eq!((sum("tb"), sum("gb"), sum("tbk"), sum("tl")), (1_505_096, 1_505_096, 96, 20_000));
        assert_eq!(report["ftbl"][0], json!("[root]"));
        assert_eq!(report["ftbl"][points[0]["fs"][0].as_u64().unwrap() as usize], json!("malloc"));
    }

    #[test]
    fn the_end_is_the_moment_of_the_leaks() {
        let end_us = |view| {
            let mut capture = fixture::capture();
            capture.analysis.totals.finalizing = Some(Moment { order: 1, time_ns: 7_000 });
            let report: Value = serde_json::from_slice(&report_of(capture, view)).unwrap();
            report["te"].as_u64().unwrap()
        };
        assert_eq!([View::HighWaterMark, View::Leaks].map(end_us), [7, 7]);
        assert!(end_us(View::LeaksAtExit) > 7);
    }

    #[test]
    fn sums_without_lifetimes_are_refused() {
        let refused = Dhat.write(&fixture::capture(), View::HighWaterMark, &mut Vec::new()).unwrap_err();
        assert!(refused.to_string().contains("aggregated"), "{refused}");
    }
}
