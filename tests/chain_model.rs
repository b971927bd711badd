//! The protocol of a slot under a model checker: transport's own `segment_chain.rs`, compiled with words of loom's atomics,
//! which tries every schedule and every value that the memory model lets a load return.
//!
//! Invariant that is checked: the collector reads each record whole, once and in order; and when it finds a thread
//! outside of hooks after the barrier, it sees all of that thread's records with earlier tickets. Every check is made
//! again with a fault, which the checker has to find.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, fence};
use loom::thread;

use layout::{ModelSegmentHeader, ModelSlotHeader, ModelWord, SEGMENT_ROOM, SEGMENTS_PER_SLOT};
use segment_chain::ChainReader;

mod atomics {
    pub(super) use loom::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

    /// The model's threads run what is written, in its order.
    pub(super) fn compiler_fence(_: Ordering) {}
}

/// The words of transport's layout that the protocol uses. Records are one byte long here.
mod layout {
    use super::atomics::Ordering::{self, Relaxed, Release};

    // The names by which the protocol knows them.
    pub(super) use self::{ModelSegmentHeader as SegmentHeader, ModelSlotHeader as SlotHeader};

    pub(super) const SEGMENT_ROOM: usize = 2;
    pub(super) const SEGMENTS_PER_SLOT: usize = 2;
    pub(super) const ALL_SEGMENTS: u32 = (1 << SEGMENTS_PER_SLOT) - 1;

    #[derive(Debug)]
    pub(super) struct ModelSlotHeader {
        pub(super) busy: ModelWord<u32>,
        pub(super) current: ModelWord<u32>,
        pub(super) taken: ModelWord<u32>,
        pub(super) waiting: ModelWord<u32>,
    }

    #[derive(Debug)]
    pub(super) struct ModelSegmentHeader {
        pub(super) fill: ModelWord<u32>,
        pub(super) next: ModelWord<u32>,
        pub(super) number: ModelWord<u32>,
        pub(super) start: ModelWord<u32>,
        pub(super) has_code: ModelWord<u32>,
        pub(super) first_ticket: ModelWord<u64>,
        pub(super) last_ticket: ModelWord<u64>,
    }

    /// An atomic word. With the fault its stores release nothing.
    #[derive(Debug)]
    pub(super) struct ModelWord<T> {
        value: loom::sync::atomic::AtomicU64,
        releases: bool,
        number: std::marker::PhantomData<T>,
    }

    impl<T: Into<u64> + TryFrom<u64>> ModelWord<T> {
        pub(super) fn new(value: T, releases: bool) -> Self {
            let value = loom::sync::atomic::AtomicU64::new(value.into());
            Self { value, releases, number: std::marker::PhantomData }
        }

        pub(super) fn load(&self, order: Ordering) -> T {
            number(self.value.load(order))
        }

        pub(super) fn store(&self, value: T, order: Ordering) {
            self.value.store(value.into(), if order == Release && !self.releases { Relaxed } else { order });
        }

        pub(super) fn fetch_and(&self, bits: T, order: Ordering) -> T {
            number(self.value.fetch_and(bits.into(), order))
        }

        pub(super) fn fetch_or(&self, bits: T, order: Ordering) -> T {
            number(self.value.fetch_or(bits.into(), order))
        }
    }

    fn number<T: TryFrom<u64>>(value: u64) -> T {
        T::try_from(value).unwrap_or_else(|_| unreachable!("it was stored as one"))
    }
}

#[path = "../transport/src/segment_chain.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "it is transport's, of which the model uses a part")]
mod segment_chain;

use atomics::{AcqRel, Acquire, Relaxed, Release};

/// Records of the writer: the last ones are in a segment that had been read and given back.
const RECORDS: u32 = 5;

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The fill level is stored without releasing the bytes below it.
    FillReleasesNothing,
    /// The collector gives a segment back before it has read its bytes.
    FreedBeforeRead,
    /// The collector reads `busy` without the barrier in the target's threads.
    NoBarrier,
    /// `busy` is cleared without releasing the record.
    BusyReleasesNothing,
}

/// A slot with its segments.
struct ModelSlot {
    header: ModelSlotHeader,
    segments: [ModelSegment; SEGMENTS_PER_SLOT],
}

struct ModelSegment {
    header: ModelSegmentHeader,
    records: [UnsafeCell<u32>; SEGMENT_ROOM],
}

impl ModelSlot {
    fn new(fault: Fault) -> Self {
        let word = |value| ModelWord::new(value, true);
        let busy = ModelWord::new(0, fault != Fault::BusyReleasesNothing);
        let header = ModelSlotHeader { busy, current: word(0), taken: word(0), waiting: word(0) };
        Self { header, segments: std::array::from_fn(|_| ModelSegment::new(fault)) }
    }

    /// Writes these records, as the shim's ring does.
    fn write(&self, records: std::ops::RangeInclusive<u32>) {
        let mut at: Option<(&ModelSegment, u32)> = None;
        let mut number = 0;
        for record in records {
            let (segment, fill) = match at {
                Some((segment, fill)) if (fill as usize) < SEGMENT_ROOM => (segment, fill),
                _ => {
                    let index = loop {
                        match segment_chain::take_free(&self.header) {
                            Some(index) => break index,
                            None => thread::yield_now(),
                        }
                    };
                    let new = &self.segments[index as usize];
                    segment_chain::begin_segment(&new.header, number, record.into(), 0);
                    number += 1;
                    segment_chain::link(&self.header, index, at.map(|(old, fill)| (&old.header, fill)));
                    (new, 0)
                }
            };
            segment.records[fill as usize].with_mut(|place| {
                // SAFETY: loom fails the test where another thread may use the record now.
                unsafe { *place = record };
            });
            segment_chain::publish(&segment.header, fill + 1);
            at = Some((segment, fill + 1));
        }
    }

    /// Reads what is published, as the collector does; `true`: a segment was finished.
    fn read(&self, chain: &mut ChainReader, records: &mut Vec<u32>, fault: Fault) -> bool {
        if !chain.has_begun(&self.header) {
            return false;
        }
        let segment = &self.segments[chain.segment() as usize];
        let seen = chain.seen();
        let level = chain.look(&segment.header).expect("the chain is whole");
        let copy = |records: &mut Vec<u32>| {
            for record in &segment.records[seen as usize..level.fill as usize] {
                // SAFETY: loom fails the test where another thread may write the record now.
                records.push(record.with(|place| unsafe { *place }));
            }
        };
        if fault != Fault::FreedBeforeRead {
            copy(records);
        }
        let finished = level.next != 0;
        if finished {
            let _ = chain.advance(&self.header, level.next).expect("the chain is whole");
        }
        if fault == Fault::FreedBeforeRead {
            copy(records);
        }
        finished
    }
}

impl ModelSegment {
    fn new(fault: Fault) -> Self {
        let fill = ModelWord::new(0, fault != Fault::FillReleasesNothing);
        let word = |value| ModelWord::new(value, true);
        let (next, number) = (word(0), word(0));
        let header = ModelSegmentHeader {
            fill,
            next,
            number,
            start: ModelWord::new(0, true),
            has_code: ModelWord::new(0, true),
            first_ticket: ModelWord::new(0, true),
            last_ticket: ModelWord::new(0, true),
        };
        Self { header, records: std::array::from_fn(|_| UnsafeCell::new(0)) }
    }
}

#[test]
fn each_record_is_read_once_whole_and_in_order() {
    explore(|| records_arrive(Fault::None));
}

#[test]
fn a_fill_level_that_releases_nothing_is_found() {
    assert_found(Fault::FillReleasesNothing, records_arrive);
}

#[test]
fn a_segment_that_is_freed_before_it_is_read_is_found() {
    assert_found(Fault::FreedBeforeRead, records_arrive);
}

#[test]
fn after_the_barrier_a_thread_outside_of_hooks_has_no_earlier_record_under_way() {
    explore(|| barrier_orders(Fault::None));
}

#[test]
fn a_missing_barrier_is_found() {
    assert_found(Fault::NoBarrier, barrier_orders);
}

#[test]
fn a_hook_that_ends_without_releasing_its_record_is_found() {
    assert_found(Fault::BusyReleasesNothing, barrier_orders);
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn assert_found(fault: Fault, model: fn(Fault)) {
    let found = catch_unwind(AssertUnwindSafe(|| explore(move || model(fault))));
    assert!(found.is_err(), "the checker does not see {fault:?}");
}

/// A writer fills more segments than there are, and the collector reads them meanwhile.
fn records_arrive(fault: Fault) {
    let slot = Arc::new(ModelSlot::new(fault));
    let writer = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.write(1..=RECORDS))
    };
    let (mut chain, mut records) = (ChainReader::default(), Vec::new());
    // The writer needs two segments to be given back at the most; the rest is read when it has ended.
    while chain.number() < RECORDS.div_ceil(SEGMENT_ROOM as u32) - 1 {
        if !slot.read(&mut chain, &mut records, fault) {
            thread::yield_now();
        }
    }
    writer.join().expect("the writer ends");
    slot.read(&mut chain, &mut records, fault);
    assert_eq!(records, (1..=RECORDS).collect::<Vec<_>>());
}

/// What the collector's tick asks of the target's thread: to pass a memory barrier, at whatever it does.
#[derive(Debug)]
struct MemoryBarrier {
    wanted: AtomicBool,
    passed: AtomicBool,
}

impl MemoryBarrier {
    /// The target's thread may be interrupted here.
    fn pass(&self) -> bool {
        let wanted = self.wanted.load(Acquire);
        if wanted {
            fence(atomics::SeqCst);
            self.passed.store(true, Release);
        }
        wanted
    }

    /// `membarrier` returns when every thread has passed one.
    fn raise(&self) {
        fence(atomics::SeqCst);
        self.wanted.store(true, Release);
        while !self.passed.load(Acquire) {
            thread::yield_now();
        }
        fence(atomics::SeqCst);
    }
}

/// A thread records two events with the tickets that it finds; the collector takes a ticket and looks whether it is in a hook.
fn barrier_orders(fault: Fault) {
    let slot = Arc::new(ModelSlot::new(fault));
    let ticket = Arc::new(AtomicU64::new(1));
    let barrier = Arc::new(MemoryBarrier { wanted: AtomicBool::new(false), passed: AtomicBool::new(false) });
    let writer = {
        let (slot, ticket, barrier) = (Arc::clone(&slot), Arc::clone(&ticket), Arc::clone(&barrier));
        thread::spawn(move || {
            let segment = &slot.segments[0].header;
            let mut tickets = Vec::new();
            let mut passed = false;
            for fill in 1..=2 {
                let mut interrupt = || passed = passed || barrier.pass();
                interrupt();
                segment_chain::enter_hook(&slot.header);
                interrupt();
                tickets.push(ticket.load(Relaxed));
                interrupt();
                segment_chain::publish(segment, fill);
                segment_chain::leave_hook(&slot.header);
            }
            while !passed && fault != Fault::NoBarrier {
                passed = barrier.pass();
                thread::yield_now();
            }
            tickets
        })
    };
    let tick = ticket.fetch_add(1, AcqRel) + 1;
    if fault != Fault::NoBarrier {
        barrier.raise();
    }
    let seen = (!segment_chain::is_in_hook(&slot.header)).then(|| slot.segments[0].header.fill.load(Acquire) as usize);
    let tickets = writer.join().expect("the writer ends");
    if let Some(seen) = seen {
        assert!(tickets[seen..].iter().all(|later| *later >= tick), "{tickets:?} after {seen} at {tick}");
    }
}
