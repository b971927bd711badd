//! Who holds most of a view's memory, in few lines: the answer that `run` ends with.
//!
//! Memory that own code asked for is put down to the innermost line of own code on the stack, with what that called beside
//! it. Invariant: memory of imports, libraries and of Python itself is one line for each kind, so that it never hides the
//! program's lines.

use std::collections::HashMap;

use memtrack_reader::analysis::{GroupRow, Tally};
use memtrack_reader::origin::{Origin, Whose, origins, whose};
use memtrack_reader::{FrameId, Frames, View};

use crate::reports::facts::{Capture, visible};
use crate::reports::shown::named;
use crate::units::{percent, size};

/// So many lines for each view.
const SHOWN: usize = 3;
/// A line of less than this part of the whole, in percent, is not worth one.
const LEAST_PERCENT: u64 = 1;

/// What memory is put down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// A line of own code, and the innermost frame below it that is no runtime's.
    Own(FrameId, Option<FrameId>),
    /// All code of a kind.
    Others(Whose),
}

/// The biggest holders, a line each: bytes, part of the view's whole, place.
pub(super) fn lines(capture: &Capture, view: View) -> Vec<String> {
    let frames = &capture.frames;
    let (origins, whose) = (origins(frames), whose(frames));
    let mut held: HashMap<Holder, Tally> = HashMap::new();
    let mut whole = Tally::default();
    let leaks = view == View::Leaks;
    // The figure of leaks leaves arenas of Python's allocators out.
    for row in capture.analysis.view(view).iter().filter(|row| !(leaks && row.allocator.is_python_arena())) {
        let of = whose.get(row.stack.0 as usize).copied().unwrap_or_default();
        held.entry(holder(row, of, frames, &origins)).or_default().add(row.bytes, row.count);
        whole.add(row.bytes, row.count);
    }
    let mut held: Vec<(String, Tally)> =
        held.into_iter().map(|(holder, tally)| (text(holder, frames), tally)).collect();
    held.sort_by(|(a, one), (b, other)| other.bytes.cmp(&one.bytes).then_with(|| a.cmp(b)));
    held.into_iter()
        .filter(|(_, tally)| tally.bytes > whole.bytes / (100 / LEAST_PERCENT))
        .take(SHOWN)
        .map(|(text, tally)| format!("{:>9} {:>7}  {text}", size(tally.bytes), percent(tally.bytes, whole.bytes)))
        .collect()
}

fn holder(row: &GroupRow, whose: Whose, frames: &Frames, origins: &[Origin]) -> Holder {
    let origin = |frame: &FrameId| origins.get(frame.0 as usize).copied().unwrap_or(Origin::Runtime);
    let stack = || frames.leaf_to_root(row.stack);
    match stack().find(|frame| origin(frame) == Origin::Own).filter(|_| whose == Whose::Own) {
        Some(own) => {
            let called = stack().take_while(|frame| *frame != own);
            Holder::Own(own, called.into_iter().find(|frame| origin(frame) != Origin::Runtime))
        }
        None => Holder::Others(whose),
    }
}

fn text(holder: Holder, frames: &Frames) -> String {
    match holder {
        Holder::Own(own, None) => visible(&named(frames, own)),
        Holder::Own(own, Some(called)) => visible(&format!("{} via {}", named(frames, own), frames.function(called))),
        Holder::Others(Whose::Own) => "the program, without a line".into(),
        Holder::Others(Whose::Libraries) => "libraries, not called by own code".into(),
        Holder::Others(Whose::Standard) => "Python itself, the standard library and the C library".into(),
        Holder::Others(Whose::Imports) => "imports: modules and what they set up".into(),
    }
}
