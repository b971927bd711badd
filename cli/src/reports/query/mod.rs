//! `query`: allocations that match an expression, individually or in groups, as text or JSON.
//!
//! Invariant: all output forms have the same totals.

mod groups;
mod listing;

use memtrack_reader::analysis::Tally;
use memtrack_reader::{FrameId, StackId};
use serde_json::{Value, json};

use super::capture_info::Capture;
use super::{NO_STACK, own_lines};
use crate::text::Label;
use crate::units::{count, size};

pub(crate) use groups::{GroupBy, QueryGroups};
pub(crate) use listing::{Largest, ListingWriter};

/// Totals of matching and of all allocations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MatchTotals {
    /// Matching allocations.
    pub(crate) matched: Tally,
    /// All allocations.
    pub(crate) of: Tally,
}

impl MatchTotals {
    fn heading(&self) -> String {
        let Self { matched, of } = self;
        format!(
            "{} of {} allocations, {} of {}",
            count(matched.count),
            count(of.count),
            size(matched.bytes),
            size(of.bytes)
        )
    }

    fn json(&self) -> (Value, Value) {
        let tally = |tally: Tally| json!({"count": tally.count, "bytes": tally.bytes});
        (tally(self.matched), tally(self.of))
    }
}

/// A frame as JSON.
fn frame_value(capture: &Capture, frame: Option<FrameId>) -> Value {
    let Some(id) = frame else { return json!({"function": NO_STACK, "file": null, "line": null}) };
    let frames = &capture.frames;
    let (file, line) = (frames.file(id), frames.frame(id).line);
    json!({
        "function": frames.function(id),
        "file": Some(file).filter(|file| !file.is_empty()),
        "line": Some(line).filter(|line| *line > 0),
    })
}

/// All frames of a stack, innermost first.
fn stack_value(capture: &Capture, stack: StackId) -> Value {
    capture.frames.leaf_to_root(stack).map(|frame| frame_value(capture, Some(frame))).collect()
}

/// A stack as one line: own-code line and callee, or the innermost frame if stacks are not folded.
fn label(capture: &Capture, recorded: StackId) -> Label {
    let stack = capture.stack(recorded);
    if capture.shown.folded {
        return own_lines::label(capture, stack);
    }
    capture.frame_label(capture.frames.node(stack).map(|node| node.frame))
}

/// A duration with two or three digits, from microseconds on.
pub(super) fn span(ns: u64) -> String {
    match ns {
        0..10_000_000 => match ns as f64 / 1e3 {
            us if us < 999.5 => format!("{us:.0} µs"),
            us => format!("{:.1} ms", us / 1e3),
        },
        _ => crate::units::duration(ns),
    }
}

/// A capture as JSON.
fn capture_value(capture: &Capture) -> Value {
    let info = &capture.info;
    json!({
        "file": info.file.to_string_lossy(),
        "pid": info.process.pid,
        "command_line": info.command_line(),
        "complete": info.complete,
        "has_allocation_timestamps": capture.analysis.exact_times,
        "time_uncertainty_ns": info.time_uncertainty_ns,
    })
}
