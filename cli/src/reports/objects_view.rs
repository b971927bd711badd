//! The texts of the view of Python objects: those of one moment, each below its type and the stack that allocated it.
//!
//! Invariant: without filters the view has the objects and bytes of `memtrack objects` at the same moment.

use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use super::capture_info::Capture;
use super::picture_summary::PictureSummary;
use crate::units::{count, percent, size};

/// Where there are none.
const NONE: &str = "the capture has no picture of objects; 'memtrack run --objects-at end' takes one";

impl Capture {
    /// The line above the rows.
    pub(super) fn objects_headline(&self, whole: Tally) -> String {
        let title = self.title(View::Objects);
        let Some(picture) = &self.info.objects else { return format!("{title}: {NONE}") };
        format!("{title}: {} in {} objects {}", size(whole.bytes), count(whole.count), picture.when)
    }

    /// What its rows have in common.
    pub(super) fn objects_qualifier(&self) -> String {
        let Some(PictureSummary { when, all, with_stack }) = &self.info.objects else { return NONE.into() };
        let share = percent(with_stack.bytes, all.bytes);
        format!("there {when}; {share} of their bytes have the stack that allocated them")
    }

    /// A sentence about the view, for pages.
    pub(super) fn objects_description(&self) -> String {
        let Some(PictureSummary { when, all, with_stack }) = &self.info.objects else {
            return format!("None: {NONE}.");
        };
        format!(
            "Python objects {when}, with their own sizes, below their types and the stacks that allocated them. {} of their \
             bytes have a stack.",
            percent(with_stack.bytes, all.bytes)
        )
    }
}
