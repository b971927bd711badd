//! `transform speedscope`: the file format of the viewer at speedscope.app, written as a stream.
//!
//! Two sampled profiles over one table of frames, bytes and numbers of allocations; a sample for each distinct stack,
//! root to leaf. Invariant: the weights of each profile add up to the view's total, and frames are unique by function,
//! file and line.

use std::collections::HashMap;
use std::io::{self, Write};

use memtrack_reader::analysis::ordering::{Ordering, Sample, samples};
use memtrack_reader::{FrameId, Frames, View};
use serde_json::json;

use super::NO_STACK;
use super::facts::Capture;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Writes the file.
///
/// # Errors
/// What the writer says.
pub(crate) fn write(capture: &Capture, view: View, ordering: Ordering, out: impl Write) -> io::Result<()> {
    let samples = samples(&capture.analysis.view(view), ordering);
    let file = File { capture, samples: &samples, table: FrameTable::new(&samples, &capture.frames) };
    file.write(view, ordering, out)
}

/// The view in `"memtrack"`.
fn view_name(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "high-water-mark",
        View::Leaks | View::LeaksAtExit => "leaks",
        View::Temporary => "temporary",
        View::Allocated => "allocated",
    }
}

fn view_title(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "High-water mark",
        View::Leaks => "Leaks",
        View::LeaksAtExit => "Leaks at exit",
        View::Temporary => "Temporary allocations",
        View::Allocated => "All allocations",
    }
}

fn ordering_name(ordering: Ordering) -> &'static str {
    match ordering {
        Ordering::Exact => "exact-timestamps",
        Ordering::Snapshot => "memory-snapshots",
        Ordering::Capture => "capture-order",
    }
}

struct File<'a> {
    capture: &'a Capture,
    samples: &'a [Sample],
    table: FrameTable,
}

impl File<'_> {
    fn write(&self, view: View, ordering: Ordering, mut out: impl Write) -> io::Result<()> {
        let title = view_title(view);
        write!(out, "{{\"$schema\":{},\"shared\":{{\"frames\":", json!(SCHEMA))?;
        list(&mut out, &self.table.order, |out, frame| write!(out, "{}", self.frame(*frame)))?;
        write!(out, "}},\"profiles\":[")?;
        self.profile(&format!("{title}: bytes"), "bytes", |sample| sample.bytes, &mut out)?;
        write!(out, ",")?;
        self.profile(&format!("{title}: allocations"), "none", |sample| sample.count, &mut out)?;
        let total = |weight: fn(&Sample) -> u64| sum(self.samples, weight);
        let done = json!({
            "view": view_name(view),
            "ordering": ordering_name(ordering),
            "total_bytes": total(|sample| sample.bytes),
            "total_allocations": total(|sample| sample.count),
        });
        let (name, exporter) = (json!(self.capture.facts.title()), concat!("memtrack@", env!("CARGO_PKG_VERSION")));
        writeln!(
            out,
            "],\"name\":{name},\"activeProfileIndex\":0,\"exporter\":{},\"memtrack\":{done}}}",
            json!(exporter)
        )
    }

    fn frame(&self, frame: Option<FrameId>) -> serde_json::Value {
        let Some(id) = frame else { return json!({"name": NO_STACK}) };
        let frames = &self.capture.frames;
        let mut value = json!({"name": frames.function(id)});
        if !frames.file(id).is_empty() {
            value["file"] = frames.file(id).into();
        }
        if frames.frame(id).line > 0 {
            value["line"] = frames.frame(id).line.into();
        }
        value
    }

    /// One profile; samples without weight are left out.
    fn profile(&self, name: &str, unit: &str, weight: impl Fn(&Sample) -> u64, out: &mut impl Write) -> io::Result<()> {
        let weighty: Vec<&Sample> = self.samples.iter().filter(|sample| weight(sample) > 0).collect();
        let end = sum(self.samples, &weight);
        let (name, unit) = (json!(name), json!(unit));
        write!(
            out,
            "{{\"type\":\"sampled\",\"name\":{name},\"unit\":{unit},\"startValue\":0,\"endValue\":{end},\"samples\":"
        )?;
        list(out, &weighty, |out, sample| {
            let stack = self.table.stack(&self.capture.frames, sample);
            list(out, &stack, |out, index| write!(out, "{index}"))
        })?;
        write!(out, ",\"weights\":")?;
        list(out, &weighty, |out, sample| write!(out, "{}", weight(sample)))?;
        write!(out, "}}")
    }
}

fn sum(samples: &[Sample], weight: impl Fn(&Sample) -> u64) -> u64 {
    samples.iter().fold(0, |sum: u64, sample| sum.saturating_add(weight(sample)))
}

/// The frames that samples use, numbered in the order of their first use; `None` is the one that stands for no stack.
struct FrameTable {
    order: Vec<Option<FrameId>>,
    numbers: HashMap<Option<FrameId>, usize>,
}

impl FrameTable {
    fn new(samples: &[Sample], frames: &Frames) -> Self {
        let mut table = Self { order: Vec::new(), numbers: HashMap::new() };
        for sample in samples {
            let stack = frames.root_to_leaf(sample.stack);
            stack.iter().for_each(|frame| table.add(Some(*frame)));
            if stack.is_empty() {
                table.add(None);
            }
        }
        table
    }

    fn add(&mut self, frame: Option<FrameId>) {
        self.numbers.entry(frame).or_insert_with(|| {
            self.order.push(frame);
            self.order.len() - 1
        });
    }

    /// A sample's frames by number, outermost first.
    fn stack(&self, frames: &Frames, sample: &Sample) -> Vec<usize> {
        let stack = frames.root_to_leaf(sample.stack);
        let whole: Vec<_> = if stack.is_empty() { vec![None] } else { stack.into_iter().map(Some).collect() };
        whole.iter().filter_map(|frame| self.numbers.get(frame).copied()).collect()
    }
}

/// Writes a JSON array item by item.
fn list<W: Write, T>(out: &mut W, items: &[T], mut item: impl FnMut(&mut W, &T) -> io::Result<()>) -> io::Result<()> {
    write!(out, "[")?;
    for (at, value) in items.iter().enumerate() {
        if at > 0 {
            write!(out, ",")?;
        }
        item(out, value)?;
    }
    write!(out, "]")
}

#[cfg(test)]
mod tests {
    use super::write;
    use crate::reports::fixture;
    use memtrack_reader::View;
    use memtrack_reader::analysis::ordering::Ordering;
    use serde_json::{Value, json};

    fn report(view: View, ordering: Ordering) -> Value {
        let mut text = Vec::new();
        write(&fixture::capture(), view, ordering, &mut text).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn golden() {
        let mut text = Vec::new();
        write(&fixture::capture(), View::Allocated, Ordering::Exact, &mut text).unwrap();
        fixture::compare("allocated.speedscope.json", &text);
    }

    #[test]
    fn totals_are_whole_and_no_stack_is_a_frame() {
        let report = report(View::Allocated, Ordering::Capture);
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
    fn samples_without_weight_are_left_out_of_their_profile_only() {
        let report = report(View::Allocated, Ordering::Capture);
        let len = |at: usize| report["profiles"][at]["samples"].as_array().unwrap().len();
        assert_eq!(len(0) + 1, len(1));
    }

    #[test]
    fn a_view_without_samples_is_a_valid_file() {
        let report = report(View::Temporary, Ordering::Snapshot);
        assert_eq!(report["profiles"][0]["samples"], json!([]));
        assert_eq!(report["profiles"][0]["endValue"], json!(0));
        assert_eq!(report["memtrack"]["ordering"], "memory-snapshots");
    }
}
