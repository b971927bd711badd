//! What memory of a forked child was its parent's, and memtrack's own.
//!
//! Invariant: what was kept for the parent's threads is given back before the collector knows of the child: it looks at the child's
//! resident memory from then on.

use std::sync::atomic::Ordering::Relaxed;

use memtrack_transport::layout::ControlPage;

use crate::platform::{own_memory, own_resources};
use crate::recording::thread;

/// Resident memory of the child when it began: the kernel's high-water mark has it.
pub(crate) struct InheritedMemory {
    resident: u64,
    /// What of it was kept for its parent's threads, whether that is given back or not.
    own: u64,
}

impl InheritedMemory {
    /// Gives back what was kept for the parent's threads, of which none is in this process.
    pub(crate) fn give_back() -> Self {
        let resident = own_resources::resident();
        thread::begin_again();
        own_memory::nobody_extends();
        let given_back = resident.saturating_sub(own_resources::resident());
        Self { resident, own: given_back.saturating_add(own_memory::resident()) }
    }

    /// Tells the collector, and where memory of memtrack's own will be.
    pub(crate) fn tell(&self, control: &ControlPage) {
        control.inherited_rss.store(self.resident, Relaxed);
        control.inherited_own.store(self.own, Relaxed);
        own_memory::tell_all(control);
    }
}
