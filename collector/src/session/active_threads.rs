//! How many threads record, and how much of a segment each of them is to use.
//!
//! Every thread that records has a segment that it writes, whose pages are resident up to where it writes. Few threads use
//! all of their segments, whose records compress better; many use the ends of theirs only.
//!
//! Invariant: the segments of threads that record now take [`ALL_BYTES`] in all, or [`LEAST_ROOM`] each.

use memtrack_transport::layout::{PAGE, SEGMENT_ROOM};

/// Bytes of the segments that all threads are writing.
const ALL_BYTES: usize = 1536 * 1024;
/// The least that a thread uses of a segment, in bytes; a call stack takes more.
const LEAST_ROOM: usize = 4 * PAGE;

/// Threads that have recorded in this interval, and in the one before.
#[derive(Debug, Default)]
pub(crate) struct ActiveThreads {
    now: usize,
    before: usize,
}

impl ActiveThreads {
    /// One more has recorded in this interval.
    pub(crate) fn add(&mut self) {
        self.now += 1;
    }

    /// A new interval begins.
    pub(crate) fn begin_interval(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// How many record bytes a thread is to use of its next segment; 0: all.
    pub(crate) fn segment_room(&self) -> u32 {
        let room = ALL_BYTES / self.now.max(self.before).max(1) / PAGE * PAGE;
        if room >= SEGMENT_ROOM { 0 } else { room.max(LEAST_ROOM) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL_BYTES, ActiveThreads, LEAST_ROOM};

    #[test]
    fn many_threads_use_less_of_each_segment() {
        let of = |now, before| ActiveThreads { now, before }.segment_room();
        assert_eq!([of(0, 0), of(1, 12), of(12, 1)], [0; 3]);
        assert_eq!((of(64, 0), of(3, 64)), (24 * 1024, 24 * 1024));
        assert!((13..90).all(|count| of(count, 0) > 0 && of(count, 0) as usize * count <= ALL_BYTES));
        assert_eq!(of(4000, 0) as usize, LEAST_ROOM);
        let mut threads = ActiveThreads::default();
        (0..64).for_each(|_| threads.add());
        threads.begin_interval();
        assert_eq!(threads.segment_room(), of(64, 0));
        threads.begin_interval();
        assert_eq!(threads.segment_room(), 0);
    }
}
