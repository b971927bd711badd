//! `transform speedscope`: the file format of the viewer at speedscope.app, written as a stream.
//!
//! Two sampled profiles share one frame table: bytes and number of allocations. Each distinct stack is a sample, root
//! to leaf. Invariant: the weights of each profile add up to the view's total, and frames are unique by function, file
//! and line.

use std::io::{self, Write};

use anyhow::{Result, bail};
use clap::ValueEnum;
use memtrack_reader::analysis::Tally;
use memtrack_reader::analysis::ordering::{Ordering, StackSample, samples};
use memtrack_reader::frames::Frame;
use memtrack_reader::{Frames, StackId, View};
use serde_json::json;

use super::numbering::Numbering;
use super::{SumsFormat, json::list, root_to_leaf};
use crate::reports::capture_info::Capture;
use crate::reports::{NO_STACK, estimates, view};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// The format of speedscope.
#[derive(Debug)]
pub(crate) struct Speedscope(pub(crate) SampleOrder);

/// The requested order of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SampleOrder {
    /// The best that the capture has
    Auto,
    /// By time; needs a capture with --allocation-timestamps
    Exact,
    /// By the first memory snapshot that contains them
    Snapshot,
    /// In capture order
    Capture,
}

impl SumsFormat for Speedscope {
    fn name(&self) -> &'static str {
        "speedscope"
    }

    fn suffix(&self) -> &'static str {
        "speedscope.json"
    }

    fn opens_in(&self) -> &'static str {
        "open it at https://www.speedscope.app"
    }

    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        let ordering = self.0.ordering(capture)?;
        let samples = samples(&capture.analysis.view(view), ordering);
        let file = SpeedscopeFile { capture, samples: &samples, table: frame_table(&samples, &capture.frames) };
        Ok(file.write(view, ordering, out)?)
    }
}

impl SampleOrder {
    /// The order to use; an error if the capture does not support the requested one.
    fn ordering(self, capture: &Capture) -> Result<Ordering> {
        let file = capture.info.file.display();
        let aggregated = capture.info.aggregated;
        Ok(match self {
            Self::Exact if aggregated => bail!("{file}: an aggregated capture has no exact times; use --order capture"),
            Self::Exact if !capture.analysis.exact_times => {
                bail!("{file}: has no exact times; record with --allocation-timestamps, or use --order snapshot")
            }
            Self::Snapshot if aggregated => {
                bail!(
                    "{file}: an aggregated capture has only the order in which stacks were first seen; use --order capture"
                )
            }
            Self::Exact => Ordering::Exact,
            Self::Snapshot => Ordering::Snapshot,
            Self::Capture => Ordering::Capture,
            Self::Auto if aggregated => Ordering::Capture,
            Self::Auto => Ordering::best_for(&capture.analysis),
        })
    }
}

/// The frames of the samples, numbered in the order of first use; `None` represents an empty stack.
fn frame_table(samples: &[StackSample], frames: &Frames) -> Numbering<Option<Frame>> {
    let mut table = Numbering::new();
    for sample in samples {
        shown(frames, sample.stack).for_each(|frame| {
            table.number(frame);
        });
    }
    table
}

/// What the format shows of a stack's frames, the outermost first: the same function of two libraries is one frame.
fn shown(frames: &Frames, stack: StackId) -> impl Iterator<Item = Option<Frame>> {
    let stack = root_to_leaf(frames, stack).into_iter();
    stack.map(|frame| frame.map(|frame| Frame { column: 0, ..frames.frame(frame) }))
}

fn ordering_name(ordering: Ordering) -> &'static str {
    match ordering {
        Ordering::Exact => "exact-timestamps",
        Ordering::Snapshot => "memory-snapshots",
        Ordering::Capture => "capture-order",
    }
}

struct SpeedscopeFile<'a> {
    capture: &'a Capture,
    samples: &'a [StackSample],
    table: Numbering<Option<Frame>>,
}

impl SpeedscopeFile<'_> {
    fn write(&self, view: View, ordering: Ordering, out: &mut dyn Write) -> io::Result<()> {
        let title = self.capture.title(view);
        // The viewer shows the names of profiles, and no more.
        let title = if self.capture.is_sampled() { format!("{title} (estimates)") } else { title.to_owned() };
        write!(out, "{{\"$schema\":{},\"shared\":{{\"frames\":", json!(SCHEMA))?;
        list(out, self.table.order(), |out, frame| write!(out, "{}", self.frame(*frame)))?;
        write!(out, "}},\"profiles\":[")?;
        self.profile(&format!("{title}: bytes"), "bytes", |sample| sample.bytes, out)?;
        write!(out, ",")?;
        self.profile(&format!("{title}: allocations"), "none", |sample| sample.count, out)?;
        let total = |weight: fn(&StackSample) -> u64| sum(self.samples, weight);
        let is_exact = self.capture.analysis.exact_times;
        let uncertainty_ns = if is_exact { Some(0) } else { self.capture.info.time_uncertainty_ns };
        let mut done = json!({
            "view": view::name(view),
            "ordering": ordering_name(ordering),
            "total_bytes": total(|sample| sample.bytes),
            "total_allocations": total(|sample| sample.count),
            "time_uncertainty_ns": uncertainty_ns,
        });
        self.put_intervals(view, &mut done);
        let (name, exporter) = (json!(self.capture.info.title()), concat!("memtrack@", env!("CARGO_PKG_VERSION")));
        writeln!(
            out,
            "],\"name\":{name},\"activeProfileIndex\":0,\"exporter\":{},\"memtrack\":{done}}}",
            json!(exporter)
        )
    }

    /// Of samples: the ends of the 95 % intervals of the totals, and of the weights in their order.
    fn put_intervals(&self, view: View, done: &mut serde_json::Value) {
        if !self.capture.is_sampled() {
            return;
        }
        estimates::put_distance(done, self.capture);
        let whole = Tally {
            bytes: sum(self.samples, |sample| sample.bytes),
            count: sum(self.samples, |sample| sample.count),
            variance: self.capture.analysis.whole_variance(view),
        };
        estimates::whole(self.capture, view, whole).put(done, ["total_bytes", "total_allocations"]);
        let ends = |weight: fn(&StackSample) -> u64, range: fn(&Tally) -> (u64, u64)| {
            let weighty = self.samples.iter().filter(|sample| weight(sample) > 0);
            weighty.map(|sample| range(&sample.tally())).unzip::<_, _, Vec<_>, Vec<_>>()
        };
        let (low, high) = ends(|sample| sample.bytes, Tally::bytes_range);
        (done["bytes_low"], done["bytes_high"]) = (low.into(), high.into());
        let (low, high) = ends(|sample| sample.count, Tally::count_range);
        (done["allocations_low"], done["allocations_high"]) = (low.into(), high.into());
    }

    fn frame(&self, frame: Option<Frame>) -> serde_json::Value {
        let Some(frame) = frame else { return json!({"name": NO_STACK}) };
        let names = &self.capture.frames;
        let mut value = json!({"name": names.name(frame.function)});
        if !names.name(frame.file).is_empty() {
            value["file"] = names.name(frame.file).into();
        }
        if frame.line > 0 {
            value["line"] = frame.line.into();
        }
        value
    }

    /// Writes a profile; samples of weight 0 are omitted.
    fn profile(
        &self,
        name: &str,
        unit: &str,
        weight: impl Fn(&StackSample) -> u64,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let weighty: Vec<&StackSample> = self.samples.iter().filter(|sample| weight(sample) > 0).collect();
        let end = sum(self.samples, &weight);
        let (name, unit) = (json!(name), json!(unit));
        write!(
            out,
            "{{\"type\":\"sampled\",\"name\":{name},\"unit\":{unit},\"startValue\":0,\"endValue\":{end},\"samples\":"
        )?;
        list(out, &weighty, |out, sample| {
            let numbers = shown(&self.capture.frames, sample.stack).filter_map(|frame| self.table.known(&frame));
            list(out, numbers, |out, number| write!(out, "{number}"))
        })?;
        write!(out, ",\"weights\":")?;
        list(out, &weighty, |out, sample| write!(out, "{}", weight(sample)))?;
        write!(out, "}}")
    }
}

fn sum(samples: &[StackSample], weight: impl Fn(&StackSample) -> u64) -> u64 {
    samples.iter().fold(0, |sum: u64, sample| sum.saturating_add(weight(sample)))
}

#[cfg(test)]
mod tests {
    use super::{SampleOrder, Speedscope, SumsFormat, shown};
    use crate::reports::fixture;
    use memtrack_reader::frames::Frame;
    use memtrack_reader::{Frames, StackId, View};
    use serde_json::{Value, json};

    fn report(view: View, order: SampleOrder) -> Value {
        let mut text = Vec::new();
        Speedscope(order).write(&fixture::capture(), view, &mut text).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn golden() {
        let mut text = Vec::new();
        Speedscope(SampleOrder::Exact).write(&fixture::capture(), View::Allocated, &mut text).unwrap();
        fixture::compare("allocated.speedscope.json", &text);
    }

    #[test]
    fn totals_are_whole_and_no_stack_is_a_frame() {
        let report = report(View::Allocated, SampleOrder::Capture);
        for (at, key) in ["total_bytes", "total_allocations"].iter().enumerate() {
            let profile = &report["profiles"][at];
            let sum: u64 = profile["weights"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
            assert_eq!(profile["endValue"], json!(sum));
            assert_eq!(report["memtrack"][key], json!(sum));
        }
        let frames = report["shared"]["frames"].as_array().unwrap();
        assert!(frames.contains(&json!({"name": "<no stack>"})));
    }

    #[test]
    fn a_function_of_two_libraries_is_shown_as_one_frame() {
        let mut frames = Frames::new();
        let [function, file, a, b] = ["make", "pool.h", "liba.so", "libb.so"].map(|name| frames.name_id(name).unwrap());
        let [a, b] = [a, b].map(|path| {
            let frame = frames.id_in_module(Frame { function, file, line: 7, column: 0 }, path).unwrap();
            frames.stack_id(StackId::EMPTY, frame).unwrap()
        });
        assert!(a != b && shown(&frames, a).eq(shown(&frames, b)));
    }

    #[test]
    fn a_sum_of_peaks_is_not_called_a_peak() {
        let mut text = Vec::new();
        let view = View::HighWaterMark;
        Speedscope(SampleOrder::Exact).write(&fixture::of_several_peaks(), view, &mut text).unwrap();
        let report: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(report["profiles"][0]["name"], "Per-process high-water marks (not simultaneous): bytes");
    }

    #[test]
    fn samples_without_weight_are_left_out_of_their_profile_only() {
        let report = report(View::Allocated, SampleOrder::Capture);
        let len = |at: usize| report["profiles"][at]["samples"].as_array().unwrap().len();
        assert_eq!(len(0) + 1, len(1));
    }

    #[test]
    fn a_view_without_samples_is_a_valid_file() {
        let report = report(View::Temporary, SampleOrder::Snapshot);
        assert_eq!(report["profiles"][0]["samples"], json!([]));
        assert_eq!(report["profiles"][0]["endValue"], json!(0));
        assert_eq!(report["memtrack"]["ordering"], "memory-snapshots");
        assert_eq!(report["memtrack"]["time_uncertainty_ns"], 0);
    }
}
