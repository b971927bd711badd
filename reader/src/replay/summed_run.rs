//! Replays runs by the sums of their short-lived blocks.
//!
//! Where only sums are asked for, nothing needs to know of these blocks one by one, but what was live of them at the peak.
//! They are summed where the records are decoded, in other threads than the replay.
//!
//! Invariant: a replay by these sums is in the state that it would have reached event by event.

use super::Replay;
use super::look_ahead::TOGETHER;
use super::short_lived::{PLACES, place};
use crate::analysis::short_lived_sums::ShortLivedSums;
use crate::event::{Event, EventKind, RunEvent};

impl Replay {
    /// How many further allocations of its thread a temporary block may outlive, if it suffices to have the sums of
    /// short-lived blocks.
    pub(crate) fn short_lived_threshold(&self) -> Option<u32> {
        let suffices = self.watch.is_none() && self.sums.is_short_lived_summable();
        suffices.then_some(self.sums.totals.temporary_threshold)
    }

    /// Replays the next run, which has so many events, all of one time.
    pub(crate) fn summed_run(&mut self, sums: &ShortLivedSums, length: usize, event: impl Fn(usize) -> Event) {
        self.settle();
        let (first, end) = (event(0), length as u32);
        self.sums.add_short_lived(sums, &first, length as u64);
        let mut passed = PassedStretches { sums, first, groups: 0, stretches: 0 };
        let mut next = 0;
        let mut upcoming = sums.others.iter().map(|&at| RunEvent::from(event(at as usize)));
        self.heap.begin();
        for numbers in sums.others.chunks(TOGETHER) {
            self.heap.find(&mut upcoming);
            for (looked_up, &at) in numbers.iter().enumerate() {
                if at != next {
                    passed.pass(self, at, &event);
                }
                next = at + 1;
                self.event_at::<true>(&event(at as usize), self.heap.found(looked_up));
            }
        }
        if next != end {
            passed.pass(self, end, &event);
        }
        if let Some(peak) = self.sums.peak_since(first.order) {
            for block in live_at(sums, peak, length as u64, &event) {
                self.sums.ends_after_peak(&block);
            }
        }
        self.next_order = first.order.saturating_add(length as u64);
    }
}

/// How far a run was replayed.
struct PassedStretches<'a> {
    sums: &'a ShortLivedSums,
    first: Event,
    groups: usize,
    stretches: usize,
}

impl PassedStretches<'_> {
    /// The stretch before the event of this number.
    #[inline]
    fn pass(&mut self, replay: &mut Replay, end: u32, event: &impl Fn(usize) -> Event) {
        // The groups are found or added where their first blocks begin, between those of other blocks.
        while let Some(group) = self.sums.groups.get(self.groups).filter(|group| group.first < end) {
            replay.sums.allocate_short_lived(group, &event(group.first as usize), self.first.order);
            self.groups += 1;
        }
        if let Some(stretch) = self.sums.stretches.get(self.stretches) {
            replay.sums.pass_stretch(stretch, &self.first);
            self.stretches += 1;
        }
    }
}

/// The allocations of short-lived blocks that are live after the event of this number, of a run of so many events.
///
/// While memory grows, the peak is near the end of each run. So what ends behind it is looked at first, and then only
/// as many events before it as it takes to find what ends.
fn live_at(sums: &ShortLivedSums, number: u64, length: u64, event: &impl Fn(usize) -> Event) -> Vec<Event> {
    let (before, behind) = sums.others.split_at(sums.others.partition_point(|&other| u64::from(other) <= number));
    let (mut ends, mut begun, mut left) = ([false; PLACES], [false; PLACES], 0);
    each_short_lived(number + 1..length, behind.iter(), |at| {
        let event = event(at);
        let place = place(event.address);
        if matches!(event.kind, EventKind::Alloc(_)) {
            begun[place] = true;
        } else if !begun[place] {
            ends[place] = true;
            left += 1;
        }
        true
    });
    let mut live = Vec::with_capacity(left);
    each_short_lived((0..=number).rev(), before.iter().rev(), |at| {
        let event = event(at);
        if matches!(event.kind, EventKind::Alloc(_)) && std::mem::take(&mut ends[place(event.address)]) {
            live.push(event);
        }
        live.len() < left
    });
    live
}

/// The numbers of short-lived blocks' events among these, without those of others, until `go_on` says no.
fn each_short_lived<'a>(
    mut numbers: impl Iterator<Item = u64>,
    others: impl Iterator<Item = &'a u32>,
    mut go_on: impl FnMut(usize) -> bool,
) {
    let mut others = others.map(|&other| u64::from(other)).peekable();
    _ = numbers.all(|at| others.next_if_eq(&at).is_some() || go_on(at as usize));
}
