//! The payload of an observations block: ticks (tickets with their time), memory snapshots and thread names.
//!
//! It is a sequence of
//!
//! ```text
//! 1 Tick      ticket+ time+                       events with a later ticket were recorded after this time
//! 2 Snapshot  ticket+ time+ ticks rss             a tick with the stamping clock and the resident memory
//! 3 Thread    tid length name                     the system's name of a thread
//! 4 Counted   stretch allocations bytes           what a thread of a sampled recording has allocated so far
//! ```
//!
//! All numbers are prefix varints; `+` marks a difference to the previous one in the same block. Times are CLOCK_MONOTONIC in nanoseconds.
//!
//! Invariant: tickets and times rise within a block.

use crate::fields::{FieldReader, FieldWriter};
use crate::record::AllocationCount;

/// One entry of an observations block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The collector took this ticket at this time.
    Tick(Tick),
    /// A tick with a memory snapshot.
    Snapshot {
        /// The tick.
        tick: Tick,
        /// The stamping clock at the tick.
        ticks: u64,
        /// Resident memory of the process in bytes, without memtrack's shared memory.
        rss: u64,
    },
    /// What a thread of a sampled recording has allocated so far.
    Counted(AllocationCount),
    /// The system's name of a thread.
    Thread {
        /// The operating system's id of the thread.
        tid: i32,
        /// Its name, at most 15 bytes on Linux.
        name: String,
    },
}

/// A ticket and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// Ticket sequence number.
    pub ticket: u64,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
}

const TICK: u8 = 1;
const SNAPSHOT: u8 = 2;
const THREAD: u8 = 3;
const COUNTED: u8 = 4;

/// Writes the payload of an observations block.
#[derive(Debug, Default)]
pub struct ObservationWriter {
    fields: FieldWriter,
    last: Tick,
    first_ticket: Option<u64>,
}

impl ObservationWriter {
    /// Adds one observation.
    pub fn add(&mut self, observation: &Observation) {
        match observation {
            Observation::Tick(tick) => self.tick(TICK, *tick),
            Observation::Snapshot { tick, ticks, rss } => {
                self.tick(SNAPSHOT, *tick);
                self.fields.numbers(&[*ticks, *rss]);
            }
            Observation::Counted(AllocationCount { stretch, allocations, bytes }) => {
                self.fields.raw(&[COUNTED]);
                self.fields.numbers(&[*stretch, *allocations, *bytes]);
            }
            Observation::Thread { tid, name } => {
                self.fields.raw(&[THREAD]);
                self.fields.number(u64::from(tid.cast_unsigned()));
                self.fields.bytes(name.as_bytes());
            }
        }
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.len() == 0
    }

    /// Takes the payload out, with its first and last ticket.
    pub fn take(&mut self) -> (Vec<u8>, u64, u64) {
        let taken = std::mem::take(self);
        (taken.fields.into_bytes(), taken.first_ticket.unwrap_or(0), taken.last.ticket)
    }

    fn tick(&mut self, kind: u8, tick: Tick) {
        self.fields.raw(&[kind]);
        self.fields.number(tick.ticket.wrapping_sub(self.last.ticket));
        self.fields.number(tick.time_ns.wrapping_sub(self.last.time_ns));
        self.last = tick;
        self.first_ticket.get_or_insert(tick.ticket);
    }
}

/// Reads the payload of an observations block; ends at the first malformed entry, and [`ObservationReader::failed`] is true
/// then.
#[derive(Debug)]
pub struct ObservationReader<'a> {
    fields: FieldReader<'a>,
    last: Tick,
    failed: bool,
}

impl<'a> ObservationReader<'a> {
    /// Reads this payload.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { fields: FieldReader::new(bytes), last: Tick::default(), failed: false }
    }

    /// Whether reading ended at a malformed entry.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failed
    }

    fn tick(&mut self) -> Option<Tick> {
        let ticket = self.last.ticket.wrapping_add(self.fields.number()?);
        let time_ns = self.last.time_ns.wrapping_add(self.fields.number()?);
        self.last = Tick { ticket, time_ns };
        Some(self.last)
    }

    fn observation(&mut self) -> Option<Observation> {
        match self.fields.byte()? {
            TICK => Some(Observation::Tick(self.tick()?)),
            SNAPSHOT => {
                let tick = self.tick()?;
                Some(Observation::Snapshot { tick, ticks: self.fields.number()?, rss: self.fields.number()? })
            }
            COUNTED => {
                let (stretch, allocations) = (self.fields.number()?, self.fields.number()?);
                Some(Observation::Counted(AllocationCount { stretch, allocations, bytes: self.fields.number()? }))
            }
            THREAD => {
                let tid = self.fields.small()?.cast_signed();
                let name = String::from_utf8_lossy(self.fields.bytes()?).into_owned();
                Some(Observation::Thread { tid, name })
            }
            _ => None,
        }
    }
}

impl Iterator for ObservationReader<'_> {
    type Item = Observation;

    fn next(&mut self) -> Option<Observation> {
        if self.failed || self.fields.is_at_end() {
            return None;
        }
        let next = self.observation();
        self.failed = next.is_none();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::{AllocationCount, Observation, ObservationReader, ObservationWriter, Tick};

    #[test]
    fn round_trip_and_truncation() {
        let tick = |ticket, time_ns| Tick { ticket, time_ns };
        let all = [
            Observation::Tick(tick(4, 1_000_000_000_000)),
            Observation::Counted(AllocationCount { stretch: 7 << 32 | 4711, allocations: 1 << 40, bytes: u64::MAX }),
            Observation::Thread { tid: 4711, name: "wörker".into() },
            Observation::Snapshot { tick: tick(9, 1_000_000_100_000), ticks: u64::MAX, rss: 1 << 33 },
        ];
        let mut writer = ObservationWriter::default();
        all.iter().for_each(|observation| writer.add(observation));
        let (bytes, first, last) = writer.take();
        assert!(writer.is_empty());
        assert_eq!((first, last), (4, 9));
        assert_eq!(ObservationReader::new(&bytes).collect::<Vec<_>>(), all);
        for cut in 0..bytes.len() {
            let got: Vec<_> = ObservationReader::new(&bytes[..cut]).collect();
            assert_eq!(got, all[..got.len()]);
        }
    }
}
