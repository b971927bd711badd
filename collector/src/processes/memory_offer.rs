//! Which shared memory a process that connects is offered: of how many slots, and from which ticket on.
//!
//! Invariant: a process that could not map what it was offered is offered less each time, and then nothing.

use std::io;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use memtrack_transport::Area;
use memtrack_transport::could_map;
use memtrack_transport::layout::{SLOT_COUNTS, image, state, ticket, total_bytes};

/// Address space in bytes that the collector keeps for memory of its own where fewer slots do.
const COLLECTOR_ROOM: usize = 64 << 20;

/// The memory that a process is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryOffer {
    /// Index of the first number of slots to try.
    pub(crate) attempt: usize,
    pub(crate) base: u32,
    pub(crate) replaces: Option<u64>,
}

/// Memory of the first number of slots from this attempt on that can be had, and leaves address space for a forked child, which
/// needs as many, and for the collector.
pub(crate) fn first_that_fits<T>(attempt: usize, create: impl Fn(u32) -> io::Result<T>) -> io::Result<T> {
    let counts = SLOT_COUNTS.get(attempt..).unwrap_or_default();
    let leaves_room = |slots| could_map(2 * total_bytes(slots) + COLLECTOR_ROOM);
    let mut last = io::ErrorKind::OutOfMemory.into();
    for &slots in counts.iter().filter(|slots| leaves_room(**slots) || counts.last() == Some(slots)) {
        match create(slots) {
            Ok(made) => return Ok(made),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The next offer to a process that has been offered memory before; `None`: it is refused.
pub(crate) fn next_offer(area: &Area, offer: MemoryOffer) -> Option<MemoryOffer> {
    let control = area.control();
    if control.state.load(Acquire) == state::READY {
        // It could not map the memory that it was offered.
        let attempt = offer.attempt + 1;
        (attempt < SLOT_COUNTS.len()).then_some(MemoryOffer { attempt, ..offer })
    } else if control.image.load(Acquire) == image::IN_EXEC {
        let base = offer.base.saturating_add(area.slot_count());
        let last = ticket::sequence(control.ticket.0.load(SeqCst));
        Some(MemoryOffer { attempt: 0, base, replaces: Some(last.wrapping_add(1)) })
    } else {
        None
    }
}
