//! Replays events that come again and again: the rounds of a loop.
//!
//! Once a round has found what the one before it left, all that follow do the same. So two are replayed, and what the others add
//! to the sums is counted; what is live does not change, and no moment in them is a new peak.
//!
//! Invariant: a replay of rounds is in the state that it would have reached event by event.

use rustc_hash::FxHashMap;

use super::Replay;
use crate::analysis::short_lived_sums::RoundBlock;
use crate::event::{Event, EventKind};

/// Rounds that are replayed.
const REPLAYED: u64 = 2;

/// What a round does, if each does the same.
#[derive(Debug)]
struct Round {
    /// The blocks that end in it; as many begin.
    blocks: Vec<RoundBlock>,
    /// The addresses of those that are live at its end.
    live: Vec<u64>,
}

impl Round {
    /// Of these events. `None`: a round does not leave what it finds.
    fn of(events: impl Iterator<Item = Event> + Clone, threshold: u64) -> Option<Self> {
        let mut live: FxHashMap<u64, (Event, u64)> = FxHashMap::default();
        let (mut blocks, mut allocations) = (Vec::new(), 0);
        for is_first in [true, false] {
            for event in events.clone() {
                match event.kind {
                    EventKind::Alloc(_) => {
                        allocations += 1;
                        if live.insert(event.address, (event, allocations)).is_some() {
                            return None;
                        }
                    }
                    EventKind::Free => match live.remove(&event.address) {
                        Some((allocation, nth)) if !is_first => {
                            blocks.push(RoundBlock { allocation, temporary: allocations - nth <= threshold });
                        }
                        None if !is_first => return None,
                        _ => {}
                    },
                    _ => return None,
                }
            }
        }
        Some(Self { blocks, live: live.into_keys().collect() })
    }
}

/// The events of the round with this number, given those of the first.
pub(crate) fn round(
    events: &(impl ExactSizeIterator<Item = Event> + Clone),
    number: u64,
) -> impl ExactSizeIterator<Item = Event> + Clone {
    let before = number.saturating_mul(events.len() as u64);
    events.clone().map(move |event| Event { order: event.order.saturating_add(before), ..event })
}

impl Replay {
    /// Replays these events so many times; they have the numbers of the first time. They have come just before, too, and the
    /// last free of them is not undone.
    pub(crate) fn repeated(&mut self, times: u64, events: impl ExactSizeIterator<Item = Event> + Clone) {
        let laid_aside = self.settle_for(events.clone());
        let length = events.len() as u64;
        let threshold = self.short_lived_threshold().filter(|_| times > REPLAYED);
        let known = threshold.and_then(|threshold| Round::of(events.clone(), threshold.into()));
        let replayed = if known.is_some() { REPLAYED } else { times };
        (0..replayed).for_each(|number| self.events(round(&events, number)));
        if let Some(Round { blocks, live }) = known {
            let further = times - replayed;
            self.sums.repeat(&blocks, length, further);
            // They are of the last round.
            let (orders, allocations) = (further.saturating_mul(length), further.saturating_mul(blocks.len() as u64));
            for address in live {
                let Some(block) = self.heap.at(address) else { continue };
                block.order = block.order.saturating_add(orders);
                block.nth = block.nth.wrapping_add(allocations as u32);
            }
            self.next_order = self.next_order.saturating_add(orders);
        }
        self.recent.go_on(laid_aside);
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::super::Replay;
    use crate::analysis::Options;
    use crate::event::{Event, EventKind, StackId, ThreadId};

    /// Events from the order `first` on.
    fn events(made: &[(u8, u8)], first: usize) -> impl ExactSizeIterator<Item = Event> + Clone + '_ {
        made.iter().enumerate().map(move |(at, &(kind, place))| {
            let kind = match kind % 16 {
                0..8 => EventKind::Alloc(if kind < 4 { Allocator::Malloc } else { Allocator::Calloc }),
                15 => EventKind::FreeUndo,
                _ => EventKind::Free,
            };
            let (stack, thread) = (StackId(1 + u32::from(place) % 3), ThreadId(0));
            let (address, size) = (0x1000 + u64::from(place) % 4 * 16, u64::from(place) / 4 + 1);
            Event { kind, address, size, stack, thread, order: (first + at) as u64, time_ns: 7 }
        })
    }

    proptest! {
        #[test]
        fn rounds_are_their_events(
            before in prop::collection::vec(any::<(u8, u8)>(), 0..9), round in prop::collection::vec((0u8..15, any::<u8>()), 1..7),
            after in prop::collection::vec((0u8..15, any::<u8>()), 0..9), times in 0usize..9, closed: bool, flows: bool, temporary_threshold in 0u32..4,
        ) {
            let frees: Vec<_> = round.iter().filter(|(kind, _)| *kind < 8 && closed).map(|&(_, place)| (8, place)).collect();
            let round = [round, frees].concat();
            let options = Options { flows, temporary_threshold, ..Options::default() };
            let (mut rounds, mut one_by_one) = (Replay::new(&options), Replay::new(&options));
            for replay in [&mut rounds, &mut one_by_one] {
                replay.events(events(&before, 0));
                replay.events(events(&round, before.len()));
            }
            let begin = before.len() + round.len();
            rounds.repeated(times as u64, events(&round, begin));
            (0..times).for_each(|time| one_by_one.events(events(&round, begin + time * round.len())));
            for replay in [&mut rounds, &mut one_by_one] {
                replay.events(events(&after, begin + times * round.len()));
                replay.snapshot(8, 1);
            }
            prop_assert_eq!(rounds.flows().collect::<Vec<_>>(), one_by_one.flows().collect::<Vec<_>>());
            prop_assert_eq!(rounds.into_analysis(), one_by_one.into_analysis());
        }
    }
}
