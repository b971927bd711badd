//! Prepares a capture for display: folded stacks, short paths, and leaks without allocations of imports.
//!
//! JSON, exports and `--all-frames` show captures as recorded. Invariant: a view's totals cover what is shown; excluded
//! bytes are printed beside them.

use std::borrow::Cow;
use std::io::{self, Write};

use anyhow::Result;
use memtrack_reader::analysis::{CallTree, Tally};
use memtrack_reader::fold::{all_folded, fold};
use memtrack_reader::frames::Frame;
use memtrack_reader::origin::{Origin, Whose, is_own_elsewhere, origins, own_packages, whose};
use memtrack_reader::plumbing::Plumbing;
use memtrack_reader::{FrameId, Frames, StackId, View};
use regex::Regex;

use super::NO_STACK;
use super::capture_info::Capture;
use crate::cell_names;
use crate::terminal::TextFormat;
use crate::text::{Label, paragraph};
use crate::units::{plural, size};

/// Display options.
#[derive(Clone, Debug, Default)]
pub(crate) struct DisplayOptions {
    /// Include allocations of imports in leaks.
    pub(crate) with_imports: bool,
    /// Unfolded stacks and full paths.
    pub(crate) all_frames: bool,
    /// Functions to skip, in addition to the built-in allocator wrappers.
    pub(crate) skip: Vec<Regex>,
}

impl Capture {
    /// Prepares the capture for display.
    ///
    /// # Errors
    /// More call stacks than the id type can number.
    pub(crate) fn show(&mut self, display: &DisplayOptions) -> Result<()> {
        self.exclude_imports(display);
        self.fold(display)
    }

    /// Folds the stacks of all groups, unless unfolded stacks are requested.
    ///
    /// # Errors
    /// As [`Capture::show`].
    pub(crate) fn fold(&mut self, display: &DisplayOptions) -> Result<()> {
        if display.all_frames {
            return Ok(());
        }
        let plumbing = Plumbing::with(display.skip.clone());
        fold(&mut self.analysis, &mut self.frames, &plumbing)?;
        self.shown.folded = true;
        self.shown.origins = origins(&self.frames);
        Ok(())
    }

    /// Computes the folded stacks, but keeps the recorded ones in the groups: for reports that match individual
    /// allocations by whole stacks.
    ///
    /// # Errors
    /// As [`Capture::show`].
    pub(crate) fn fold_beside(&mut self, display: &DisplayOptions) -> Result<()> {
        if display.all_frames {
            return Ok(());
        }
        self.shown.stacks = all_folded(&mut self.frames, &Plumbing::with(display.skip.clone()))?;
        self.shown.folded = true;
        self.shown.origins = origins(&self.frames);
        Ok(())
    }

    /// The stack to display for a recorded one.
    pub(crate) fn stack(&self, recorded: StackId) -> StackId {
        self.shown.stacks.get(recorded.0 as usize).copied().unwrap_or(recorded)
    }

    /// Excludes allocations made during imports from the leaks, unless `--with-imports` is set.
    pub(crate) fn exclude_imports(&mut self, display: &DisplayOptions) {
        if display.with_imports {
            return;
        }
        let whose = whose(&self.frames);
        let imports = &mut self.shown.imports;
        self.analysis.groups.change_all(|group| {
            // The contents of arenas are unknown; they are excluded separately.
            if whose.get(group.stack.0 as usize) == Some(&Whose::Imports) && !group.allocator.is_python_arena() {
                for (sum, left_out) in [&mut group.leaked, &mut group.leaked_at_exit].into_iter().zip(&mut *imports) {
                    let sum = std::mem::take(sum);
                    *left_out += sum.tally();
                }
            }
        });
    }

    /// Prints what a view excludes.
    ///
    /// # Errors
    /// A write error.
    pub(crate) fn write_left_out(&self, view: View, format: TextFormat, mut out: impl Write) -> io::Result<()> {
        let sentences = self.left_out(view).into_iter().chain(self.earlier_frees());
        let mut lines = sentences.flat_map(|sentence| paragraph(&sentence, format));
        lines.try_for_each(|line| writeln!(out, "{line}"))
    }

    /// A sentence about frees of what the program had allocated before it was recorded.
    pub(crate) fn earlier_frees(&self) -> Option<String> {
        let number = self.analysis.totals.frees_of_earlier_blocks();
        let frees = plural(number, "free of a block", "frees of blocks");
        (number > 0).then(|| format!("{frees} from before the recording not counted"))
    }

    /// A sentence about what a view excludes.
    pub(crate) fn left_out(&self, view: View) -> Option<String> {
        let left_out = self.shown.left_out(view);
        let any = left_out != Tally::default();
        any.then(|| format!("{} allocated during imports not shown; use --with-imports", size(left_out.bytes)))
    }

    /// Where own code is, if it is installed.
    pub(crate) fn own_packages(&self) -> Option<String> {
        let packages = own_packages(&self.frames);
        let elsewhere = if is_own_elsewhere(&self.frames) { ", and files in no installation" } else { "" };
        let named = match &packages[..] {
            [] if elsewhere.is_empty() => return None,
            [] => return Some("files in no installation: no other was recorded".into()),
            [one] => format!("package {one}"),
            several => format!("packages {}", several.join(", ")),
        };
        Some(format!("that of the installed {named}, which the command line starts{elsewhere}: no other was recorded"))
    }

    /// Whose code a frame is; `None` if stacks are not folded.
    pub(crate) fn origin(&self, frame: FrameId) -> Option<Origin> {
        self.shown.origins.get(frame.0 as usize).copied()
    }

    /// Whether a frame is own code; never if stacks are not folded.
    pub(crate) fn is_own(&self, frame: FrameId) -> bool {
        self.origin(frame) == Some(Origin::Own)
    }

    /// Function and location of a node with this key; an unknown location is empty.
    pub(crate) fn described(&self, key: u32) -> (&str, String) {
        if key == CallTree::NO_FRAME {
            return (NO_STACK, String::new());
        }
        let (frames, id) = (&self.frames, FrameId(key));
        (frames.function(id), place(frames.frame(id), &self.path(frames.file(id))))
    }

    /// The same as a label that marks own code.
    pub(crate) fn label(&self, key: u32) -> Label {
        let (function, place) = self.described(key);
        Label::new(function, place, self.is_own(FrameId(key)))
    }

    /// The label of a frame, or of an empty stack.
    pub(crate) fn frame_label(&self, frame: Option<FrameId>) -> Label {
        self.label(frame.map_or(CallTree::NO_FRAME, |frame| frame.0))
    }

    /// A path, shortened if stacks are folded.
    pub(crate) fn path<'p>(&self, path: &'p str) -> Cow<'p, str> {
        if self.shown.folded { cell_names::short(&self.frames, path) } else { path.into() }
    }
}

/// A frame as text, with the recorded path.
pub(crate) fn named(frames: &Frames, id: FrameId) -> String {
    joined(frames.function(id), &place(frames.frame(id), frames.file(id)))
}

/// A function and its location as text.
pub(crate) fn joined(function: &str, place: &str) -> String {
    if place.is_empty() { function.into() } else { format!("{function} at {place}") }
}

/// File, line, and the column if the line has several calls; as far as known.
pub(crate) fn place(frame: Frame, path: &str) -> String {
    match (path, frame.line, frame.column) {
        ("", _, _) => String::new(),
        (path, 0, _) => path.into(),
        (path, line, 0) => format!("{path}:{line}"),
        (path, line, column) => format!("{path}:{line}:{column}"),
    }
}
