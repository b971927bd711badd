//! Names and titles of the views, the same in every report.
//!
//! Invariant: names are for JSON and never change; titles are for text and pages.

use memtrack_reader::View;

/// The name in JSON.
pub(crate) fn name(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "high-water-mark",
        View::Leaks | View::LeaksAtExit => "leaks",
        View::Temporary => "temporary",
        View::Allocated => "allocated",
        View::Pinned => "pinned",
        View::Objects => "objects",
    }
}

/// The title in text and pages.
pub(crate) fn title(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "High-water mark",
        View::Leaks => "Leaks",
        View::LeaksAtExit => "Leaks at exit",
        View::Temporary => "Temporary allocations",
        View::Allocated => "All allocations",
        View::Pinned => "Pinned pages",
        View::Objects => "Python objects",
    }
}
