//! How a capture was prepared for a report that people read: whether stacks are folded, and what was left out.
//!
//! Invariant: the default is a capture as it was recorded, with nothing folded and nothing left out.

use memtrack_reader::analysis::Tally;
use memtrack_reader::origin::Origin;
use memtrack_reader::{StackId, View};

/// How a capture was prepared for a report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presentation {
    /// Whether stacks are folded and paths short.
    pub(crate) folded: bool,
    /// Whose code each frame is, where stacks are folded.
    pub(super) origins: Vec<Origin>,
    /// What was left out of the leaks, and of those at exit.
    pub(super) imports: [Tally; 2],
    /// How recorded stacks look folded, where groups keep theirs.
    pub(super) stacks: Vec<StackId>,
}

impl Presentation {
    /// What imports hold of a view, and the view's sums do not have.
    pub(super) fn left_out(&self, view: View) -> Tally {
        let [leaked, at_exit] = self.imports;
        match view {
            View::Leaks => leaked,
            View::LeaksAtExit => at_exit,
            View::HighWaterMark | View::Temporary | View::Allocated => Tally::default(),
        }
    }
}
