//! Decodes segments ahead of the merge, in parallel.
//!
//! Segments are queued for rayon's threads in the order in which they will be needed, up to a bound. If the merge needs
//! a batch that no thread has begun, it decodes it itself, so it never waits for a thread that may not run.
//!
//! Invariant: at most [`AheadLimits::ahead`] segments wait with at most one batch of [`AheadLimits::batch`] events
//! each, and so does each segment that is being merged.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::DataLoss;
use super::file::OpenCaptureFile;
use super::group_records::GroupRecords;
use super::index::Index;
use super::segment::{Batch, DecodeProgress, SegmentReader};
use crate::error::Error;

/// Limits of decoding ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct AheadLimits {
    /// Segments at most.
    ahead: usize,
    /// Events in a batch.
    batch: usize,
}

impl AheadLimits {
    /// For one capture: a batch fits into a processor's own cache.
    pub(super) const ALONE: Self = Self { ahead: 12, batch: 16 << 10 };
    /// For each of several captures that are read together, perhaps hundreds.
    pub(super) const SHARED: Self = Self { ahead: 1, batch: 2 << 10 };
}

/// A decoded part of a segment, and the rest.
pub(super) struct SegmentPart {
    pub(super) batch: Batch,
    pub(super) rest: Option<Box<UndecodedRest>>,
    pub(super) lost: DataLoss,
}

/// The rest of a segment, which is not decoded yet.
#[derive(Default)]
pub(super) struct UndecodedRest {
    reader: SegmentReader,
    records: GroupRecords,
}

enum BatchState {
    Open(QueuedDecode),
    Taken,
    Done(Result<SegmentPart, Error>),
}

enum QueuedDecode {
    Segment(usize),
    Rest(Box<UndecodedRest>),
}

/// A batch that is queued or being decoded.
pub(super) struct Task {
    state: Mutex<BatchState>,
    changed: Condvar,
}

impl Task {
    fn lock(&self) -> MutexGuard<'_, BatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<QueuedDecode> {
        // One lock for check and change, else a result in between would be overwritten.
        let mut state = self.lock();
        match std::mem::replace(&mut *state, BatchState::Taken) {
            BatchState::Open(work) => Some(work),
            other => {
                *state = other;
                None
            }
        }
    }
}

/// The state that the threads share.
pub(super) struct DecodePool {
    pub(super) file: Arc<OpenCaptureFile>,
    pub(super) index: Arc<Index>,
    room: AheadLimits,
    used: Mutex<Vec<Batch>>,
}

impl DecodePool {
    pub(super) fn new(file: &Arc<OpenCaptureFile>, index: &Arc<Index>, room: AheadLimits) -> Self {
        Self { file: Arc::clone(file), index: Arc::clone(index), room, used: Mutex::default() }
    }

    /// Returns a batch's memory for reuse.
    pub(super) fn give_back(&self, mut batch: Batch) {
        batch.clear();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() < self.room.ahead {
            used.push(batch);
        }
    }

    fn work(&self, work: QueuedDecode) -> Result<SegmentPart, Error> {
        let mut lost = DataLoss::default();
        let mut rest = match work {
            QueuedDecode::Rest(rest) => rest,
            QueuedDecode::Segment(segment) => {
                let mut rest = Box::<UndecodedRest>::default();
                if let Some(segment) = self.index.segments.get(segment) {
                    (rest.records, lost) = GroupRecords::load(&self.file, &self.index, segment)?;
                }
                rest
            }
        };
        let mut batch = self.used.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let progress = rest.records.decode(&mut rest.reader, &mut batch, self.room.batch);
        if let DecodeProgress::Damaged { left } = progress {
            lost.add(1, left as u64);
        }
        Ok(SegmentPart { batch, rest: (progress == DecodeProgress::Full).then_some(rest), lost })
    }
}

/// Decodes parts, in this thread or in others.
pub(super) struct Ahead {
    pool: Arc<DecodePool>,
    /// The first part of each segment of the index, while it is queued or decoded and not taken.
    ordered: Vec<Option<Arc<Task>>>,
    /// The first segment that was not queued.
    next: usize,
    waiting: usize,
    /// How many may wait; more than a few per thread gain too little for their memory.
    most: usize,
}

impl Ahead {
    pub(super) fn new(pool: Arc<DecodePool>) -> Self {
        let ordered = vec![None; pool.index.segments.len()];
        let most = pool.room.ahead.min(2 * rayon::current_num_threads() + 2);
        Self { pool, ordered, next: 0, waiting: 0, most }
    }

    /// The first part of a segment.
    pub(super) fn first(&mut self, segment: usize) -> Result<SegmentPart, Error> {
        let task = self.ordered.get_mut(segment).and_then(Option::take);
        if task.is_some() {
            self.waiting -= 1;
        }
        self.next = self.next.max(segment + 1);
        while self.waiting < self.most && self.next < self.ordered.len() {
            let ordered = self.order(QueuedDecode::Segment(self.next));
            self.ordered[self.next] = Some(ordered);
            self.next += 1;
            self.waiting += 1;
        }
        match task {
            Some(task) => self.fetch(&task),
            None => self.pool.work(QueuedDecode::Segment(segment)),
        }
    }

    /// Queues the rest of a segment.
    pub(super) fn order_rest(&self, rest: Box<UndecodedRest>) -> Arc<Task> {
        self.order(QueuedDecode::Rest(rest))
    }

    fn order(&self, work: QueuedDecode) -> Arc<Task> {
        let task = Arc::new(Task { state: Mutex::new(BatchState::Open(work)), changed: Condvar::new() });
        let (pool, theirs) = (Arc::clone(&self.pool), Arc::clone(&task));
        rayon::spawn_fifo(move || {
            if let Some(work) = theirs.take() {
                let done = pool.work(work);
                *theirs.lock() = BatchState::Done(done);
                theirs.changed.notify_one();
            }
        });
        task
    }

    /// The part that was queued.
    pub(super) fn fetch(&self, task: &Task) -> Result<SegmentPart, Error> {
        if let Some(work) = task.take() {
            return self.pool.work(work);
        }
        let mut state = task.lock();
        loop {
            match std::mem::replace(&mut *state, BatchState::Taken) {
                BatchState::Done(done) => return done,
                other => *state = other,
            }
            state = task.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Ahead {
    /// Queued parts that were not begun are no longer needed.
    fn drop(&mut self) {
        self.ordered.iter().flatten().for_each(|task| drop(task.take()));
    }
}
