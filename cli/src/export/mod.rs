//! Exports a capture to the format of another tool, one module for each format.
//!
//! Most formats hold sums and implement [`SumsFormat`]; [`heaptrack`] and `parquet` consume events one by one.
//! Invariant: a format depends neither on options nor on how captures are read; its figures add up exactly to the
//! view's total; stacks without frames appear as `<no stack>`.

mod collapsed;
mod csv;
mod dhat;
mod firefox;
mod gprof2dot;
pub(crate) mod heaptrack;
mod json;
mod jsonl;
mod numbering;
pub(crate) mod otlp;
pub(crate) mod packed;
pub(crate) mod parquet;
mod pprof;
pub(crate) mod records;
mod speedscope;

use std::io::Write;

use anyhow::Result;
use clap::ValueEnum;
use memtrack_reader::{FrameId, Frames, Options, StackId, View};

use crate::reports::NO_STACK;
use crate::reports::capture_info::{Capture, visible};

pub(crate) use collapsed::Collapsed;
pub(crate) use csv::Csv;
pub(crate) use dhat::Dhat;
pub(crate) use firefox::Firefox;
pub(crate) use gprof2dot::Gprof2dot;
pub(crate) use jsonl::{Jsonl, WindowRecords, WindowTotals};
pub(crate) use pprof::{Pprof, write_window as write_pprof_window};
pub(crate) use speedscope::{SampleOrder, Speedscope};

/// A format for the sums of a capture.
pub(crate) trait SumsFormat {
    /// Its name on the command line and in file names.
    fn name(&self) -> &'static str;
    /// The suffix of its files.
    fn suffix(&self) -> &'static str;
    /// How to open the file; completes the sentence "written; …".
    fn opens_in(&self) -> &'static str;
    /// Whether it contains all views, whichever is requested.
    fn holds_every_view(&self) -> bool {
        false
    }
    /// Whether its viewer shows times, and not how precise they are.
    fn shows_times(&self) -> bool {
        false
    }
    /// The options with which captures must be read for it.
    fn reading(&self, options: Options) -> Options {
        options
    }
    /// Writes the file.
    ///
    /// # Errors
    /// A write error, or the capture lacks required data; in the latter case nothing was written.
    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()>;
}

/// The weight of an allocation, in formats with one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weight {
    /// Bytes requested
    Bytes,
    /// The number of allocations
    Allocations,
}

/// The stack's frames, outermost first; a single `None` if it has none.
fn root_to_leaf(frames: &Frames, stack: StackId) -> Vec<Option<FrameId>> {
    let known: Vec<_> = frames.root_to_leaf(stack).into_iter().map(Some).collect();
    if known.is_empty() { vec![None] } else { known }
}

/// The stack's frames, innermost first; a single `None` if it has none.
fn leaf_to_root(frames: &Frames, stack: StackId) -> Vec<Option<FrameId>> {
    let mut known = root_to_leaf(frames, stack);
    known.reverse();
    known
}

/// `function (file:line)`, as far as known.
fn frame_text(frame: Option<FrameId>, frames: &Frames) -> String {
    let Some(id) = frame else { return NO_STACK.into() };
    let (function, file, line) = (frames.function(id), frames.file(id), frames.frame(id).line);
    let text = match (file, line) {
        ("", _) => function.to_owned(),
        (file, 0) => format!("{function} ({file})"),
        (file, line) => format!("{function} ({file}:{line})"),
    };
    visible(&text)
}
