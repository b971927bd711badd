//! The threads that own the slots: notes their names, and releases the slots of threads that have ended.
//!
//! A new thread may take such a slot before it is released here. Invariant: a slot is released only if its owner is the
//! thread that was found to have ended.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use memtrack_transport::Area;
use memtrack_transport::layout::SlotHeader;

use crate::session::observer::Observer;
use crate::system::process_handle::ProcessHandle;
use crate::system::procfs::ThreadStatus;
use crate::system::thread_ids::ThreadIds;

/// Slots that one check covers: with many threads it takes several calls to check all.
const A_CHECK: u32 = 32;

/// The known owner of each slot.
#[derive(Debug)]
pub(crate) struct SlotOwners {
    handle: Arc<ProcessHandle>,
    ids: ThreadIds,
    known: Vec<Owner>,
    cursor: u32,
    /// Slots that are owned now.
    pub(crate) owned: u32,
}

#[derive(Clone, Debug, Default)]
struct Owner {
    tid: i32,
    owners: u32,
    name: String,
}

impl SlotOwners {
    pub(crate) fn new(handle: &Arc<ProcessHandle>, ids: ThreadIds) -> Self {
        Self { handle: Arc::clone(handle), ids, known: Vec::new(), cursor: 0, owned: 0 }
    }

    /// Looks for new owners in the first `count` slots and notes their names.
    pub(crate) fn find_new(&mut self, area: &Area, count: u32, observer: &mut Observer) {
        self.known.resize_with(count as usize, Owner::default);
        let new = (0..).zip(&self.known).filter_map(|(index, known)| {
            let slot = area.slot(index)?;
            let owner = (slot.owner.load(Acquire), slot.owners.load(Relaxed));
            (owner.0 != 0 && owner != (known.tid, known.owners)).then_some(owner.0)
        });
        self.ids.find(new);
        let (handle, ids) = (&self.handle, &self.ids);
        self.owned = 0;
        for (index, known) in (0..).zip(&mut self.known) {
            let Some(slot) = area.slot(index) else { break };
            let (tid, owners) = (slot.owner.load(Acquire), slot.owners.load(Relaxed));
            self.owned += u32::from(tid != 0);
            if tid != 0 && (known.tid, known.owners) != (tid, owners) {
                *known = Owner { tid, owners, name: String::new() };
                if let ThreadStatus::Named(name) = ids.status(handle, tid) {
                    known.rename(name, observer);
                }
            }
        }
    }

    /// Checks the next few owners: notes new names, and releases the slots of threads that have ended.
    pub(crate) fn check(&mut self, area: &Area, observer: &mut Observer) {
        let count = self.known.len() as u32;
        for _ in 0..count.min(A_CHECK) {
            let index = self.cursor % count;
            self.cursor = index + 1;
            if let Some(slot) = area.slot(index) {
                self.check_slot(area, slot, index, observer);
            }
        }
    }

    /// Notes the name that the process's first thread had at its end.
    pub(crate) fn note_last_name(&mut self, name: String, observer: &mut Observer) {
        if let Some(first) = self.known.iter_mut().find(|owner| owner.tid == self.ids.first()) {
            first.rename(name, observer);
        }
    }

    /// Whether this name is already known.
    pub(crate) fn has_last_name(&self, name: &str) -> bool {
        self.known.iter().all(|owner| owner.tid != self.ids.first() || owner.name == name)
    }

    fn check_slot(&mut self, area: &Area, slot: &SlotHeader, index: u32, observer: &mut Observer) {
        let Some(known) = self.known.get_mut(index as usize) else { return };
        if known.tid == 0 || slot.owner.load(Acquire) != known.tid {
            return;
        }
        match self.ids.status(&self.handle, known.tid) {
            ThreadStatus::Named(name) => known.rename(name, observer),
            ThreadStatus::Unknown => {}
            ThreadStatus::Gone => {
                if slot.owner.compare_exchange(known.tid, 0, AcqRel, Relaxed).is_ok() {
                    area.control().slot_hint.0.fetch_min(index, AcqRel);
                }
                *known = Owner::default();
            }
        }
    }
}

impl Owner {
    fn rename(&mut self, name: String, observer: &mut Observer) {
        if self.name != name {
            observer.thread(self.tid, name.clone());
            self.name = name;
        }
    }
}
