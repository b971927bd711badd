//! Exports: a capture as a file of another tool's format, one module for each format.
//!
//! Most formats hold sums and implement [`SumsFormat`]; [`heaptrack`] and `parquet` hold events, which they take one by one.
//! Invariant: a format knows nothing of options and of how a capture is read; what it writes adds up to the view's total, to
//! the byte; stacks without any frame appear as `<no stack>`.

mod collapsed;
mod csv;
mod dhat;
mod firefox;
mod gprof2dot;
pub(crate) mod heaptrack;
mod json;
mod jsonl;
mod numbering;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
mod pprof;
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
pub(crate) use jsonl::Jsonl;
pub(crate) use pprof::Pprof;
pub(crate) use speedscope::{SampleOrder, Speedscope};

/// A file format that a capture's sums are written in.
pub(crate) trait SumsFormat {
    /// What it is called on the command line and in the names of files.
    fn name(&self) -> &'static str;
    /// What the name of its files ends with.
    fn suffix(&self) -> &'static str;
    /// What opens it, to complete the sentence "written; …".
    fn opens_in(&self) -> &'static str;
    /// Whether it holds all views, whichever is asked for.
    fn holds_every_view(&self) -> bool {
        false
    }
    /// How captures have to be read for it.
    fn reading(&self, options: Options) -> Options {
        options
    }
    /// Writes the file.
    ///
    /// # Errors
    /// What the writer says, or what the capture does not have; then nothing was written.
    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()>;
}

/// Which number of an allocation is its weight, where a format has room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weight {
    /// Bytes requested
    Bytes,
    /// The number of allocations
    Allocations,
}

/// The stack's frames, outermost first; one `None` where there is none.
fn root_to_leaf(frames: &Frames, stack: StackId) -> Vec<Option<FrameId>> {
    let known: Vec<_> = frames.root_to_leaf(stack).into_iter().map(Some).collect();
    if known.is_empty() { vec![None] } else { known }
}

/// The stack's frames, innermost first; one `None` where there is none.
fn leaf_to_root(frames: &Frames, stack: StackId) -> Vec<Option<FrameId>> {
    let mut known = root_to_leaf(frames, stack);
    known.reverse();
    known
}

/// `function (file:line)`, as far as it is known.
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
