//! Failed allocations: their number, and the location of the largest.
//!
//! Invariant: the location is the innermost own-code line of the stack, if there is one; the same in text and JSON.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memtrack_reader::origin::{Origin, origins};
use memtrack_reader::{FrameId, Frames, StackId, paths};
use serde_json::{Value, json};

use super::capture_info::{Capture, visible};
use super::{NO_STACK, display};
use crate::units::{count, duration, size, whole_ms};

/// Maximum number of locations that a page lists.
const MOST_ROWS: usize = 10;

/// A short text; `None` if no allocation failed.
pub(crate) fn text(capture: &Capture) -> Option<String> {
    let failed = &capture.analysis.failed;
    let largest = failed.largest()?;
    let place = FailedCalls::of(capture).place_text(largest.stack);
    let bytes = size(largest.largest_bytes);
    Some(match failed.total().count {
        1 => format!("{bytes} in {place}"),
        number => format!("{bytes} in {place}, the largest of {}", count(number)),
    })
}

/// For pages: the same with the time, and a line for each location, largest failed call first.
pub(crate) fn page(capture: &Capture) -> Value {
    let failed = &capture.analysis.failed;
    let Some((text, largest)) = text(capture).zip(failed.largest()) else { return Value::Null };
    let mut places: BTreeMap<String, FailedPlace> = BTreeMap::new();
    let calls = FailedCalls::of(capture);
    for group in failed.iter() {
        let place = places.entry(calls.place_text(group.stack)).or_default();
        place.largest_bytes = place.largest_bytes.max(group.largest_bytes);
        place.count = place.count.saturating_add(group.count);
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, place)| Reverse(place.largest_bytes));
    let rows = places.iter().take(MOST_ROWS).map(|(text, FailedPlace { largest_bytes, count: calls })| match calls {
        1 => format!("{} in {text}", size(*largest_bytes)),
        _ => format!("{} calls in {text}, the largest of {}", count(*calls), size(*largest_bytes)),
    });
    let time = capture.analysis.snapshots.is_empty();
    let after = if time { String::new() } else { format!(", after {}", duration(largest.largest_time_ns)) };
    json!({"text": format!("{text}{after}"), "rows": rows.collect::<Vec<_>>()})
}

/// The failed calls of one location.
#[derive(Default)]
struct FailedPlace {
    largest_bytes: u64,
    count: u64,
}

/// For `stats --json`.
pub(crate) fn json(capture: &Capture) -> Value {
    let failed = &capture.analysis.failed;
    let total = failed.total();
    let largest = failed.largest().map(|group| {
        let frames = &capture.frames;
        let place = FailedCalls::of(capture).place(group.stack);
        let file = place.map(|frame| frames.file(frame)).filter(|file| !file.is_empty());
        let line = place.map(|frame| frames.frame(frame).line).filter(|line| *line > 0);
        json!({
            "bytes": group.largest_bytes,
            "allocator": group.allocator.name(),
            "time_ms": whole_ms(group.largest_time_ns),
            "function": place.map_or(NO_STACK, |frame| frames.function(frame)),
            "file": file,
            "line": line,
        })
    });
    // A size that was computed wrongly, such as -1: the sum of these says nothing.
    let bytes = Some(total.bytes).filter(|bytes| *bytes < u64::MAX);
    json!({"count": total.count, "bytes": bytes, "largest": largest})
}

/// Finds the locations of calls.
struct FailedCalls<'a> {
    frames: &'a Frames,
    origins: Vec<Origin>,
}

impl<'a> FailedCalls<'a> {
    fn of(capture: &'a Capture) -> Self {
        Self { frames: &capture.frames, origins: origins(&capture.frames) }
    }

    /// The location as text.
    fn place_text(&self, stack: StackId) -> String {
        let frames = self.frames;
        self.place(stack).map_or_else(
            || NO_STACK.to_owned(),
            |frame| {
                let path = paths::short(frames, frames.file(frame));
                visible(&display::joined(frames.function(frame), &display::place(frames.frame(frame), &path)))
            },
        )
    }

    /// Its location: innermost own-code frame, else innermost library frame, else innermost frame.
    fn place(&self, stack: StackId) -> Option<FrameId> {
        let is = |frame: &FrameId, wanted| self.origins.get(frame.0 as usize) == Some(&wanted);
        let stack = || self.frames.leaf_to_root(stack);
        let own = stack().find(|frame| is(frame, Origin::Own));
        own.or_else(|| stack().find(|frame| !is(frame, Origin::Runtime))).or_else(|| stack().next())
    }
}

#[cfg(test)]
mod tests {
    use super::{json, page, text};
    use crate::reports::fixture;

    #[test]
    fn the_largest_is_named_with_its_place() {
        let capture = fixture::capture();
        let expected = "4.00 GB in work at /home/user/project/application/app.py:12, the largest of 2";
        assert_eq!(text(&capture).as_deref(), Some(expected));
        assert_eq!(json(&capture)["largest"]["function"], "work");
        let page = page(&capture);
        assert!(page["text"].as_str().is_some_and(|text| text.starts_with(expected)), "{page}");
        assert_eq!(page["rows"].as_array().map(Vec::len), Some(2), "{page}");
    }

    #[test]
    fn requests_beyond_any_memory_have_no_sum() {
        let mut capture = fixture::capture();
        let mut groups: Vec<_> = capture.analysis.failed.iter().copied().collect();
        groups[0].bytes = u64::MAX;
        capture.analysis.failed = groups.into_iter().collect();
        let json = json(&capture);
        assert_eq!((&json["bytes"], &json["count"]), (&serde_json::Value::Null, &serde_json::json!(2)));
    }

    #[test]
    fn where_nothing_failed_nothing_is_said() {
        let capture = fixture::empty();
        assert_eq!(text(&capture), None);
        assert!(page(&capture).is_null());
        assert_eq!(json(&capture), serde_json::json!({"count": 0, "bytes": 0, "largest": null}));
    }
}
