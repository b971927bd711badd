//! How a capture was prepared for display: whether stacks are folded, and what was excluded.
//!
//! Invariant: the default is a capture as recorded, with nothing folded or excluded.

use memtrack_reader::analysis::Tally;
use memtrack_reader::origin::Origin;
use memtrack_reader::{StackId, View};

/// How a capture was prepared for display.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presentation {
    /// Whether stacks are folded and paths short.
    pub(crate) folded: bool,
    /// Whose code each frame is, if stacks are folded.
    pub(super) origins: Vec<Origin>,
    /// Imports excluded from leaks, and from leaks at exit.
    pub(super) imports: [Tally; 2],
    /// The folded stack of each recorded one, if groups keep the recorded ones.
    pub(super) stacks: Vec<StackId>,
}

impl Presentation {
    /// Memory of imports that a view excludes.
    pub(super) fn left_out(&self, view: View) -> Tally {
        let [leaked, at_exit] = self.imports;
        match view {
            View::Leaks => leaked,
            View::LeaksAtExit => at_exit,
            View::HighWaterMark | View::Temporary | View::Allocated | View::Pinned | View::Objects => Tally::default(),
        }
    }
}
