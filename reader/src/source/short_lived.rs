//! Marks the blocks of a batch that end in the run in which they begin, at an address that had none.
//!
//! A small table has what became of recent addresses. Who replays the events need not look for the address of a marked
//! block among those of all live blocks, which takes longer than everything else. To mark blocks takes about as long as it
//! spares, so it is done where other threads decode than the one that replays.
//!
//! Invariant: a marked allocation and a marked free belong together; in between no thread has another event at the
//! address, no other marked block has the same [`place`], and the free is not undone.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::ShortLivedUse;
use super::segment::{Batch, TicketRun};
use super::short_lived_sums::ShortLivedSummer;
use crate::decoded_run::Compact;
use crate::event::EventKind;
use crate::replay::short_lived::{PLACES, place};

/// What became of an address.
#[derive(Clone, Copy, Debug, Default)]
struct RecentAddress {
    address: u64,
    /// The number of the run in which this was seen, counted from 1, since in others nothing is known of it. Below it
    /// [`FREE`], [`UNCLEAR`], or the number of the allocation of its block, before which it had none.
    run_and_state: u64,
}

/// The address has no block.
const FREE: u64 = u32::MAX as u64;
/// The address has a block, before which it may have had another.
const UNCLEAR: u64 = FREE - 1;

/// Batches that are passed over where there was little to mark: programs differ, and to look takes a twentieth of the time
/// of reading.
const PASSED_OVER: u32 = 7;
/// Of so many events one must be marked, else it is little.
const LITTLE: usize = 8;
/// Of so many events one may be of another block, else sums are not worth it: they stand for the few events between two others.
const OTHERS: usize = if cfg!(test) { 1 } else { 5 };

/// Which batches are worth a look.
#[derive(Debug)]
pub(super) struct ShortLivedMarker {
    /// What is asked for.
    wanted: ShortLivedUse,
    /// Batches that are passed over from now on.
    passed_over: AtomicU32,
}

impl ShortLivedMarker {
    pub(super) const fn new(wanted: ShortLivedUse) -> Self {
        Self { wanted, passed_over: AtomicU32::new(0) }
    }

    /// Marks the short-lived blocks of a batch, or none of them, and sums them up if asked and worth it. The batch is whole: what follows
    /// in its segment is another one.
    pub(super) fn mark(&self, batch: &mut Batch) {
        if self.wanted == ShortLivedUse::Nothing {
            return;
        }
        let one_less = |left: u32| left.checked_sub(1);
        if self.passed_over.try_update(Relaxed, Relaxed, one_less).is_ok() {
            return;
        }
        let (marked, events) = (mark(batch), batch.events.len());
        let is_worth_it = marked > 0 && (events - marked) * OTHERS <= events && batch.times.is_empty();
        if let ShortLivedUse::Sums { temporary_threshold } = self.wanted
            && is_worth_it
        {
            sum(batch, ShortLivedSummer::new(temporary_threshold));
        } else if marked < events / LITTLE {
            self.passed_over.store(PASSED_OVER, Relaxed);
        }
    }
}

/// Sums up the marked blocks of each run.
fn sum(batch: &mut Batch, mut summer: ShortLivedSummer) {
    let Batch { events, runs, sums, .. } = batch;
    let ends = runs.iter().skip(1).map(|run| run.start).chain([events.len()]);
    let of_run = |(run, end): (&TicketRun, usize)| summer.sum(events.get(run.start..end).unwrap_or_default());
    sums.extend(runs.iter().zip(ends).map(of_run));
}

/// Marks all; returns how many events are marked.
fn mark(batch: &mut Batch) -> usize {
    let Batch { events, runs, .. } = batch;
    if events.len() as u64 >= UNCLEAR || events.iter().any(|event| event.kind == EventKind::FreeUndo) {
        return 0;
    }
    let mut marked = 0;
    let mut places = [RecentAddress::default(); PLACES];
    let (mut last_free, mut last_marked) = (None, None);
    let ends = runs.iter().skip(1).map(|run| run.start).chain([events.len()]);
    for ((number, &TicketRun { start, .. }), end) in (1..).zip(runs.iter()).zip(ends) {
        let run: u64 = number << u32::BITS;
        for at in start..end {
            let Some(&Compact { address, kind, .. }) = events.get(at) else { break };
            let recent = &mut places[place(address)];
            let is_same = recent.address == address;
            // Of another run: larger than any state.
            let state = recent.run_and_state ^ run;
            match kind {
                EventKind::Alloc(_) => {
                    let was_free = is_same && state == FREE;
                    *recent =
                        RecentAddress { address, run_and_state: run | if was_free { at as u64 } else { UNCLEAR } };
                }
                EventKind::Free => {
                    *recent = RecentAddress { address, run_and_state: run | FREE };
                    last_free = Some(at);
                    if is_same && state < UNCLEAR {
                        let begun = state as usize;
                        set(events, begun, at, true);
                        marked += 2;
                        last_marked = Some((begun, at));
                    }
                }
                _ => {}
            }
        }
    }
    // The next batch may begin with what undoes the last free.
    if let Some((begun, at)) = last_marked.filter(|&(_, at)| last_free == Some(at)) {
        set(events, begun, at, false);
    }
    marked
}

fn set(events: &mut [Compact], first: usize, second: usize, mark: bool) {
    for at in [first, second] {
        if let Some(event) = events.get_mut(at) {
            event.short_lived = mark;
        }
    }
}
