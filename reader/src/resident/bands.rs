//! The classes of resident memory at several moments, found while a capture is replayed once.
//!
//! Each moment takes a walk over all live blocks. So there is a bound on the blocks of all of them together, which is shared out
//! over the moments: with few live blocks each moment is looked at, with millions a few.
//!
//! Invariant: the classes of a moment add up to what its account has resident.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use memtrack_format::resident::ResidentAccount;

use super::allocator_trace::AllocatorTrace;
use super::classes::{MemoryClass, ResidentBreakdown};
use super::moment::LiveMoment;
use super::process_facts::ProcessFacts;
use crate::live_extent::LiveExtent;
use crate::replay::Replay;

/// Live blocks that are walked over in all.
const MOST_BLOCKS: u64 = 4 << 20;
/// Live blocks to walk over which takes longer than to start a thread.
const MANY_BLOCKS: u64 = if cfg!(test) { 4 } else { 1 << 14 };

/// Resident bytes at one moment, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassesAt {
    /// Nanoseconds since recording began.
    pub time_ns: u64,
    /// In the order of [`MemoryClass::ALL`].
    pub bytes: [u64; MemoryClass::ALL.len()],
}

/// Divides resident memory at the moments of these accounts.
#[derive(Debug)]
pub(super) struct BandScan {
    /// Those to come, with their times in nanoseconds since recording began, the next one last.
    accounts: Vec<(u64, ResidentAccount)>,
    process: ProcessFacts,
    /// Blocks that may be walked over, and by how many more for each account.
    room: u64,
    share: u64,
    found: Vec<ClassesAt>,
    /// The moment that is divided while the replay goes on.
    running: Option<(JoinHandle<ClassesAt>, Arc<BandMoment>)>,
    /// The memory of the extents of an earlier moment.
    spare: Vec<LiveExtent>,
}

/// What is divided at a moment.
#[derive(Debug)]
struct BandMoment {
    time_ns: u64,
    account: ResidentAccount,
    live: LiveMoment,
    process: ProcessFacts,
}

impl BandMoment {
    fn classes(&self) -> ClassesAt {
        let found = ResidentBreakdown::of(&self.account, &self.live, self.process);
        ClassesAt { time_ns: self.time_ns, bytes: MemoryClass::ALL.map(|class| found.bytes(class)) }
    }
}

impl BandScan {
    /// The accounts of a process, by time.
    pub(super) fn new(mut accounts: Vec<(u64, ResidentAccount)>, process: ProcessFacts) -> Self {
        accounts.reverse();
        let share = MOST_BLOCKS / (accounts.len() as u64).max(1);
        Self { accounts, process, room: 0, share, found: Vec::new(), running: None, spare: Vec::new() }
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
            // One at a time: each has a copy of all live blocks.
            self.wait();
            let live =
                LiveMoment::of(replay, trace.caches.chunks_at(&account, &[]), trace, std::mem::take(&mut self.spare));
            self.divide(BandMoment { time_ns, account, live, process: self.process });
        }
    }

    /// Divides resident memory at a moment, beside the replay if that takes longer than to start a thread.
    fn divide(&mut self, moment: BandMoment) {
        let moment = Arc::new(moment);
        let beside = Arc::clone(&moment);
        let has_many = moment.live.live.count > MANY_BLOCKS;
        let started = has_many.then(|| Builder::new().spawn(move || beside.classes()).ok()).flatten();
        match started {
            Some(started) => self.running = Some((started, moment)),
            None => {
                self.found.push(moment.classes());
                self.reuse(moment);
            }
        }
    }

    /// Keeps the memory of what nobody looks at any more, if there is another moment to come.
    fn reuse(&mut self, moment: Arc<BandMoment>) {
        let extents = Arc::into_inner(moment).map(|moment| moment.live.extents);
        self.spare = extents.filter(|_| !self.is_over()).unwrap_or_default();
    }

    /// Waits for the moment that is divided.
    fn wait(&mut self) {
        if let Some((running, moment)) = self.running.take() {
            self.found.push(running.join().unwrap_or_else(|panic| resume_unwind(panic)));
            self.reuse(moment);
        }
    }

    /// By time.
    pub(super) fn finish(mut self) -> Vec<ClassesAt> {
        self.wait();
        self.found
    }
}
