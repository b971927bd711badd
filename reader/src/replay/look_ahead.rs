//! Takes up events before they are replayed, so that the memory that their look-ups need is in the cache by then.
//!
//! On a large heap a look-up misses the cache at the node of the address and at its block, and takes longer than everything
//! else. So events are taken up in groups, each two groups before it is replayed: first the nodes of its addresses are found,
//! then its blocks, and each time the processor is asked to load them while the groups in between are replayed.
//!
//! Invariant: the groups have the events in their order, each event once.

use super::addresses::Bottom;
use crate::event::RunEvent;

/// Number of addresses that are looked up together.
pub(super) const TOGETHER: usize = 32;
/// Number of events that are taken at once.
const MOST_TAKEN: usize = 256;
/// Groups that were taken up: one is replayed, in one the blocks are found, in one the nodes.
const GROUPS: usize = 3;

/// The groups.
#[derive(Debug, Default)]
pub(super) struct LookAhead {
    groups: [EventGroup; GROUPS],
    /// The group that is replayed; those behind it, around the end, come next.
    now: usize,
}

/// Events that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventGroup {
    /// The addresses that are looked up: not those of short-lived blocks.
    addresses: [u64; TOGETHER],
    /// How many there are.
    count: usize,
    /// What was found of them.
    bottoms: [Bottom; TOGETHER],
    /// How many events there are.
    events: usize,
}

impl Default for EventGroup {
    fn default() -> Self {
        Self { addresses: [0; TOGETHER], count: 0, bottoms: [Bottom::UNKNOWN; TOGETHER], events: 0 }
    }
}

impl EventGroup {
    /// The addresses that are looked up, and what was found of them.
    #[inline(always)]
    pub(super) fn lookups(&mut self) -> (&[u64], &mut [Bottom; TOGETHER]) {
        (self.addresses.get(..self.count).unwrap_or_default(), &mut self.bottoms)
    }

    #[inline(always)]
    fn fill(&mut self, upcoming: &mut impl Iterator<Item = RunEvent>) {
        (self.count, self.events) = (0, 0);
        while self.count < TOGETHER
            && self.events < MOST_TAKEN
            && let Some(RunEvent { event, short_lived }) = upcoming.next()
        {
            // Without a branch, since nothing foretells it: the next one stands in the place of one that is not looked up.
            self.addresses[self.count] = event.address;
            self.count += usize::from(!short_lived);
            self.events += 1;
        }
    }
}

impl LookAhead {
    /// Other events come than those that were taken up.
    pub(super) fn begin(&mut self) {
        self.groups.iter_mut().for_each(|group| (group.count, group.events) = (0, 0));
    }

    /// What was found is no longer valid.
    #[cold]
    pub(super) fn forget(&mut self) {
        self.groups.iter_mut().for_each(|group| group.bottoms = [Bottom::UNKNOWN; TOGETHER]);
    }

    /// Goes on to the next group, and takes up a further one: returns that one, and the one that is replayed next.
    #[inline(always)]
    pub(super) fn advance(
        &mut self,
        upcoming: &mut impl Iterator<Item = RunEvent>,
    ) -> (&mut EventGroup, &mut EventGroup) {
        self.now = (self.now + 1) % GROUPS;
        let [first, second, third] = &mut self.groups;
        let (next, last) = match self.now {
            0 => (second, third),
            1 => (third, first),
            _ => (first, second),
        };
        last.fill(upcoming);
        (last, next)
    }

    /// Events of the group that is replayed; 0: they come later; `None`: there are no more.
    #[inline(always)]
    pub(super) fn events(&self) -> Option<usize> {
        let events = self.groups[self.now].events;
        (events > 0 || self.groups.iter().any(|group| group.events > 0)).then_some(events)
    }

    /// What was found of an address of the group that is replayed.
    #[inline(always)]
    pub(super) fn found(&self, number: usize) -> Bottom {
        self.groups[self.now].bottoms.get(number).copied().unwrap_or(Bottom::UNKNOWN)
    }
}
