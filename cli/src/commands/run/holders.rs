//! Who holds most of a view's memory, in few lines: the answer that `run` ends with.
//!
//! Memory that own code asked for is put down to the innermost line of own code on the stack, with what most of it went
//! through. Invariant: memory of imports, libraries and of Python itself is one line together, below the program's lines.

use std::cmp::Reverse;

use memtrack_reader::analysis::{GroupRow, Tally};
use memtrack_reader::frames::Frame;
use memtrack_reader::origin::{Origin, Whose, origins, whose};
use memtrack_reader::paths;
use memtrack_reader::plumbing::Plumbing;
use memtrack_reader::{FrameId, Frames, View};
use rustc_hash::FxHashMap;

use crate::reports::facts::{Capture, visible};
use crate::reports::shown::{joined, place};
use crate::units::{percent, size};

/// Lines of own code that are named for each view.
const SHOWN: usize = 3;
/// A line of less than this part of the whole, in percent, is not worth one.
const LEAST_PERCENT: u64 = 1;

/// What a line of own code asked for.
#[derive(Clone, Debug, Default)]
struct OwnLine {
    tally: Tally,
    /// Bytes by the innermost frame below that line that is no runtime's.
    through: FxHashMap<FrameId, u64>,
}

/// The biggest holders, a line each: bytes, part of the view's whole, place.
pub(super) fn lines(capture: &Capture, view: View) -> Vec<String> {
    let frames = &capture.frames;
    let (origins, whose, plumbing) = (origins(frames), whose(frames), Plumbing::default());
    let mut own: FxHashMap<Frame, OwnLine> = FxHashMap::default();
    let mut others: FxHashMap<Whose, u64> = FxHashMap::default();
    let mut whole = 0_u64;
    let leaks = view == View::Leaks;
    // The figure of leaks leaves arenas of Python's allocators out.
    for row in capture.analysis.view(view).iter().filter(|row| !(leaks && row.allocator.is_python_arena())) {
        whole = whole.saturating_add(row.bytes);
        let of = whose.get(row.stack.0 as usize).copied().unwrap_or_default();
        match own_line(row, frames, &origins, &plumbing).filter(|_| of == Whose::Own) {
            Some((line, through)) => own.entry(line).or_default().add(row, through),
            None => *others.entry(of).or_default() += row.bytes,
        }
    }
    let least = whole / (100 / LEAST_PERCENT);
    let mut own: Vec<_> = own.into_iter().filter(|(_, line)| line.tally.bytes > least).collect();
    own.sort_by_key(|(frame, line)| (Reverse(line.tally.bytes), frame.file, frame.line));
    let own = own.iter().take(SHOWN).map(|(frame, line)| (line.tally.bytes, line.named(frame, frames)));
    own.chain(not_own(others, least))
        .map(|(bytes, text)| format!("{:>9} {:>7}  {text}", size(bytes), percent(bytes, whole)))
        .collect()
}

impl OwnLine {
    fn add(&mut self, row: &GroupRow, through: Option<FrameId>) {
        self.tally.add(row.bytes, row.count);
        if let Some(through) = through {
            *self.through.entry(through).or_default() += row.bytes;
        }
    }

    fn named(&self, frame: &Frame, frames: &Frames) -> String {
        let path = paths::short(frames, frames.name(frame.file));
        let mut text = joined(frames.name(frame.function), &place(*frame, &path));
        let most = self.through.iter().max_by_key(|(frame, bytes)| (**bytes, Reverse(**frame)));
        if let Some((through, _)) = most {
            text = format!("{text}, via {}", frames.function(*through));
        }
        visible(&text)
    }
}

/// The innermost line of own code that is no plumbing, and what it called; plumbing's own where there is nothing else.
fn own_line(
    row: &GroupRow,
    frames: &Frames,
    origins: &[Origin],
    plumbing: &Plumbing,
) -> Option<(Frame, Option<FrameId>)> {
    let (mut through, mut skipped) = (None, None);
    for frame in frames.leaf_to_root(row.stack) {
        let is_plumbing = || match frames.module_id(frame) {
            Some(_) => plumbing.skips_native(frames.function(frame)),
            None => plumbing.skips(frames.function(frame)),
        };
        match origins.get(frame.0 as usize).copied().unwrap_or(Origin::Runtime) {
            Origin::Runtime => {}
            // Calls in one line are one.
            Origin::Own if is_plumbing() => skipped = skipped.or(Some(Frame { column: 0, ..frames.frame(frame) })),
            Origin::Own => return Some((Frame { column: 0, ..frames.frame(frame) }, through)),
            _ => through = through.or(Some(frame)),
        }
    }
    skipped.map(|frame| (frame, None))
}

/// What no line of own code asked for, in one line.
fn not_own(others: FxHashMap<Whose, u64>, least: u64) -> Option<(u64, String)> {
    let bytes = others.values().sum();
    let mut kinds: Vec<_> = others.into_iter().filter(|(_, bytes)| *bytes > least).collect();
    kinds.sort_by_key(|(whose, bytes)| (Reverse(*bytes), *whose));
    let kinds: Vec<_> = kinds.into_iter().map(|(whose, bytes)| format!("{} {}", kind(whose), size(bytes))).collect();
    (bytes > least).then(|| (bytes, format!("not by a line of own code: {}", kinds.join(", "))))
}

fn kind(whose: Whose) -> &'static str {
    match whose {
        Whose::Own => "the program, without a line",
        Whose::Libraries => "libraries",
        Whose::Standard => "the interpreter and standard libraries",
        Whose::Imports => "imports",
    }
}
