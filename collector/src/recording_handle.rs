//! Access to a running recording from other threads: for the commands of the control socket, and limits.
//!
//! Invariant: it keeps no recording alive, and no draining thread waits for its user.

use std::time::Duration;

use memtrack_transport::clock::monotonic_ns;

use crate::recorded_children::RecordedChildren;
use crate::recording_access::{RecordedProcess, RecordingAccess};

/// Looks at a running recording and steers it; clones are of the same recording.
#[derive(Clone, Debug)]
pub struct RecordingHandle {
    first: RecordingAccess,
    children: RecordedChildren,
}

impl RecordingHandle {
    pub(crate) fn new(first: RecordingAccess, children: RecordedChildren) -> Self {
        Self { first, children }
    }

    /// The recorded processes, the first one first.
    #[must_use]
    pub fn processes(&self) -> Vec<RecordedProcess> {
        self.all().iter().map(|(number, access)| access.describe(*number)).collect()
    }

    /// For this long, checkpoints come more often: somebody follows the captures while they are written.
    pub fn follow_for(&self, time: Duration) {
        let until_ns = monotonic_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.all().iter().for_each(|(_, access)| access.progress.set_followed(until_ns));
    }

    /// All recordings, with their numbers.
    fn all(&self) -> Vec<(u32, RecordingAccess)> {
        [(0, self.first.clone())].into_iter().chain(self.children.access()).collect()
    }
}
