//! The classes of resident memory at several moments, found while a capture is replayed once.
//!
//! Each moment takes a walk over all live blocks. So there is a bound on the blocks of all of them together, which is shared out
//! over the moments: with few live blocks each moment is looked at, with millions a few.
//!
//! Invariant: the classes of a moment add up to what its account has resident.

use memtrack_format::resident::ResidentAccount;

use super::allocator_trace::AllocatorTrace;
use super::classes::{MemoryClass, ResidentBreakdown};
use super::moment::LiveMoment;
use crate::replay::Replay;

/// Live blocks that are walked over in all.
const MOST_BLOCKS: u64 = 4 << 20;

/// Resident bytes at one moment, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassesAt {
    /// Nanoseconds since recording began.
    pub time_ns: u64,
    /// In the order of [`MemoryClass::ALL`].
    pub bytes: [u64; MemoryClass::ALL.len()],
}

/// Divides resident memory at the moments of these accounts.
#[derive(Debug, Default)]
pub(super) struct BandScan {
    /// Those to come, with their times in nanoseconds since recording began, the next one last.
    accounts: Vec<(u64, ResidentAccount)>,
    knows_all: bool,
    /// Blocks that may be walked over, and by how many more for each account.
    room: u64,
    share: u64,
    found: Vec<ClassesAt>,
}

impl BandScan {
    /// The accounts, by time; `knows_all`: no block is older than the recording.
    pub(super) fn new(mut accounts: Vec<(u64, ResidentAccount)>, knows_all: bool) -> Self {
        accounts.reverse();
        let share = MOST_BLOCKS / (accounts.len() as u64).max(1);
        Self { accounts, knows_all, share, ..Self::default() }
    }

    /// None is to come.
    pub(super) fn is_over(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Divides resident memory at the accounts before this time; the last events before them were replayed.
    pub(super) fn take_before(&mut self, time_ns: u64, replay: &Replay, trace: &AllocatorTrace) {
        while let Some((time_ns, account)) = self.accounts.pop_if(|(at, _)| *at < time_ns) {
            self.room += self.share;
            let blocks = replay.live().count;
            if blocks > self.room {
                continue;
            }
            self.room -= blocks;
            let moment = LiveMoment::of(replay, trace.caches.chunks_at(&account, &[]), trace);
            let found = ResidentBreakdown::of(&account, &moment, self.knows_all);
            self.found.push(ClassesAt { time_ns, bytes: MemoryClass::ALL.map(|class| found.bytes(class)) });
        }
    }

    /// By time.
    pub(super) fn finish(self) -> Vec<ClassesAt> {
        self.found
    }
}
