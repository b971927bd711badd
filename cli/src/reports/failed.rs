//! Calls for memory that failed: how many, and where the largest was made.
//!
//! Invariant: the place is the innermost line of own code on the stack, where there is one; for programs the same as for
//! people.

use memtrack_reader::origin::{Origin, origins};
use memtrack_reader::{FrameId, StackId, paths};
use serde_json::{Value, json};

use super::facts::{Capture, visible};
use super::{NO_STACK, shown};
use crate::units::{count, size};

/// In a few words; `None`: none has failed.
pub(crate) fn text(capture: &Capture) -> Option<String> {
    let failed = &capture.analysis.failed;
    let largest = failed.largest()?;
    let frames = &capture.frames;
    let place = place(capture, largest.stack).map_or_else(
        || NO_STACK.to_owned(),
        |frame| {
            let path = paths::short(frames, frames.file(frame));
            visible(&shown::joined(frames.function(frame), &shown::place(frames.frame(frame), &path)))
        },
    );
    let bytes = size(largest.largest_bytes);
    Some(match failed.total().count {
        1 => format!("{bytes} in {place}"),
        number => format!("{bytes} in {place}, the largest of {}", count(number)),
    })
}

/// For `stats --json`.
pub(crate) fn json(capture: &Capture) -> Value {
    let failed = &capture.analysis.failed;
    let total = failed.total();
    let largest = failed.largest().map(|group| {
        let frames = &capture.frames;
        let place = place(capture, group.stack);
        let file = place.map(|frame| frames.file(frame)).filter(|file| !file.is_empty());
        let line = place.map(|frame| frames.frame(frame).line).filter(|line| *line > 0);
        json!({
            "bytes": group.largest_bytes,
            "allocator": group.allocator.name(),
            "time_ms": group.largest_time_ns / 1_000_000,
            "function": place.map_or(NO_STACK, |frame| frames.function(frame)),
            "file": file,
            "line": line,
        })
    });
    json!({"count": total.count, "bytes": total.bytes, "largest": largest})
}

/// Where it was: in own code, else in any that somebody wrote, else wherever.
fn place(capture: &Capture, stack: StackId) -> Option<FrameId> {
    let frames = &capture.frames;
    let origins = origins(frames);
    let is = |frame: &FrameId, wanted| origins.get(frame.0 as usize) == Some(&wanted);
    let stack = || frames.leaf_to_root(stack);
    let own = stack().find(|frame| is(frame, Origin::Own));
    own.or_else(|| stack().find(|frame| !is(frame, Origin::Runtime))).or_else(|| stack().next())
}

#[cfg(test)]
mod tests {
    use super::{json, text};
    use crate::reports::fixture;

    #[test]
    fn the_largest_is_named_with_its_place() {
        let capture = fixture::capture();
        let expected = "4.00 GB in work at /home/user/project/application/app.py:12, the largest of 2";
        assert_eq!(text(&capture).as_deref(), Some(expected));
        assert_eq!(json(&capture)["largest"]["function"], "work");
    }

    #[test]
    fn where_nothing_failed_nothing_is_said() {
        let capture = fixture::empty();
        assert_eq!(text(&capture), None);
        assert_eq!(json(&capture), serde_json::json!({"count": 0, "bytes": 0, "largest": null}));
    }
}
