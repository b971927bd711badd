//! The line above the rows of a view.
//!
//! Invariant: it has the interval that `stats` says of the same sum.

use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use super::capture_info::Capture;
use super::estimates::PartRanges;

impl Capture {
    /// The line above a view's rows: title and totals.
    pub(crate) fn headline(&self, view: View, whole: Tally) -> String {
        let moment = match view {
            View::Leaks => format!(", live {}", self.info.leak_moment.when()),
            View::Pinned => return self.pinned_headline(whole),
            View::Objects => return self.objects_headline(whole),
            View::LeaksAtExit | View::HighWaterMark | View::Temporary | View::Allocated => String::new(),
        };
        format!("{}: {}{moment}", self.title(view), PartRanges::of(self, view).part(whole).in_words())
    }
}
