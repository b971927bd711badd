//! The most resident memory that a process had, as the kernel keeps it.
//!
//! Invariant: a value of another process with the same id is never taken.

use std::sync::atomic::Ordering::Acquire;

use memtrack_transport::layout::image;

use super::{LONGEST_PEAK_NS, SHORTEST_PEAK_NS, Session};
use crate::system::procfs;

impl Session {
    /// Reads the kernel's high-water mark of resident memory, more often while the process is young: an eighth of its life
    /// is what one that ends may have grown in unseen.
    pub(super) fn read_resident_peak(&mut self, now: u64) {
        if now < self.next_peak_ns || self.area.control().image.load(Acquire) == image::IN_EXEC {
            return;
        }
        let age = now.saturating_sub(self.begun_ns);
        self.next_peak_ns = now.saturating_add((age / 8).clamp(SHORTEST_PEAK_NS, LONGEST_PEAK_NS));
        if now < self.library_reads_end_ns {
            self.observer.read_library_memory(self.pid);
        }
        let peak = procfs::resident_peak(self.pid);
        // If the process has ended, the value may be that of another process with the same pid.
        if let Some(peak) = peak.filter(|_| !self.handle.has_ended()) {
            self.observer.note_peak(&self.area, peak);
        }
    }

    /// The peak of resident memory, of this image and earlier ones.
    pub(super) fn resident_peak(&self) -> Option<u64> {
        self.observer.peak().max(self.earlier.resident_peak)
    }
}
