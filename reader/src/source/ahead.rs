//! Decodes segments ahead of the merge, in parallel.
//!
//! Segments are queued for rayon's threads in the order in which they will be needed, up to a bound. A thread decodes batch
//! after batch of a segment, as far ahead as there is room: to wake it for each batch would take as long as a batch, on a
//! busy machine. If the merge needs a batch that no thread has begun, it decodes it itself, so it never waits for a thread
//! that may not run.
//!
//! Invariant: at most [`AheadLimits::ahead`] segments wait with at most [`AheadLimits::waiting`] batches of
//! [`AheadLimits::batch`] events each; those that are being merged share [`AheadLimits::open`], or have one each.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::file::OpenCaptureFile;
use super::group_records::GroupRecords;
use super::index::Index;
use super::segment::{Batch, DecodeProgress, SegmentReader};
use super::short_lived::ShortLivedMarker;
use super::{DataLoss, ShortLivedUse};
use crate::decode_threads;
use crate::error::Error;

/// Limits of decoding ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct AheadLimits {
    /// Segments at most.
    ahead: usize,
    /// Events in a batch.
    batch: usize,
    /// Batches of a segment whose turn has not come.
    waiting: usize,
    /// Batches of all segments that are being merged.
    open: usize,
}

impl AheadLimits {
    /// For one capture: a batch fits into a processor's own cache.
    pub(super) const ALONE: Self = Self { ahead: 12, batch: 16 << 10, waiting: 1, open: 6 };
    /// For each of several captures that are read together, perhaps hundreds.
    pub(super) const SHARED: Self = Self { ahead: 1, batch: 2 << 10, waiting: 1, open: 1 };
}

/// A decoded part of a segment.
pub(super) struct SegmentPart {
    pub(super) batch: Batch,
    /// Whether there are further parts.
    pub(super) more: bool,
    pub(super) lost: DataLoss,
}

/// The rest of a segment, which is not decoded yet.
#[derive(Default)]
struct UndecodedRest {
    reader: SegmentReader,
    records: GroupRecords,
}

enum QueuedDecode {
    Segment(usize),
    Rest(Box<UndecodedRest>),
}

/// A segment that is decoded ahead.
pub(super) struct Task {
    state: Mutex<TaskState>,
    changed: Condvar,
}

struct TaskState {
    /// What is decoded next; `None` while a thread decodes it, and at the end.
    work: Option<QueuedDecode>,
    /// What the merge has not taken yet.
    parts: VecDeque<Result<SegmentPart, Error>>,
    /// Whether it is queued for a thread, or a thread decodes it.
    queued: bool,
    /// Whether it is being merged.
    open: bool,
}

impl Task {
    fn new(work: QueuedDecode) -> Arc<Self> {
        let state = TaskState { work: Some(work), parts: VecDeque::new(), queued: false, open: false };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that the threads share.
pub(super) struct DecodePool {
    pub(super) file: Arc<OpenCaptureFile>,
    pub(super) index: Arc<Index>,
    room: AheadLimits,
    used: Mutex<Vec<Batch>>,
    marker: ShortLivedMarker,
    /// Segments that are being merged.
    open: AtomicUsize,
}

impl DecodePool {
    /// `short_lived`: see [`ShortLivedMarker`].
    pub(super) fn new(
        file: &Arc<OpenCaptureFile>,
        index: &Arc<Index>,
        room: AheadLimits,
        short_lived: ShortLivedUse,
    ) -> Self {
        let (file, index) = (Arc::clone(file), Arc::clone(index));
        Self {
            file,
            index,
            room,
            used: Mutex::default(),
            marker: ShortLivedMarker::new(short_lived),
            open: AtomicUsize::new(0),
        }
    }

    /// Returns a batch's memory for reuse.
    pub(super) fn give_back(&self, mut batch: Batch) {
        batch.clear();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() < self.room.ahead {
            used.push(batch);
        }
    }

    /// How many batches of a segment may wait.
    fn most(&self, open: bool) -> usize {
        if open { (self.room.open / self.open.load(Relaxed).max(1)).max(1) } else { self.room.waiting }
    }

    /// Queues a segment for a thread, unless it is queued or has no room or nothing to decode.
    fn queue(self: &Arc<Self>, task: &Arc<Task>, state: &mut TaskState, most: usize) {
        if state.queued || state.work.is_none() || state.parts.len() >= most {
            return;
        }
        state.queued = true;
        let (pool, task) = (Arc::clone(self), Arc::clone(task));
        rayon::spawn_fifo(move || pool.decode(&task));
    }

    /// Decodes a segment as far as there is room, in a thread of the pool.
    fn decode(&self, task: &Task) {
        let mut state = task.lock();
        while state.parts.len() < self.most(state.open)
            && let Some(work) = state.work.take()
        {
            drop(state);
            let (part, rest) = self.work(work);
            state = task.lock();
            state.work = rest;
            state.parts.push_back(part);
            task.changed.notify_one();
        }
        state.queued = false;
    }

    /// Decodes a batch; what is left.
    fn work(&self, work: QueuedDecode) -> (Result<SegmentPart, Error>, Option<QueuedDecode>) {
        let mut lost = DataLoss::default();
        let mut rest = match work {
            QueuedDecode::Rest(rest) => rest,
            QueuedDecode::Segment(segment) => {
                let mut rest = Box::<UndecodedRest>::default();
                if let Some(segment) = self.index.segments.get(segment) {
                    match GroupRecords::load(&self.file, &self.index, segment) {
                        Ok(loaded) => (rest.records, lost) = loaded,
                        Err(error) => return (Err(error), None),
                    }
                }
                rest
            }
        };
        let mut batch = self.used.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let progress = rest.records.decode(&mut rest.reader, &mut batch, self.room.batch);
        if let DecodeProgress::Damaged { left } = progress {
            lost.add(1, left as u64);
        }
        self.marker.mark(&mut batch);
        let more = progress == DecodeProgress::Full;
        (Ok(SegmentPart { batch, more, lost }), more.then_some(QueuedDecode::Rest(rest)))
    }
}

/// Decodes parts, in this thread or in others.
pub(super) struct Ahead {
    pool: Arc<DecodePool>,
    /// Each segment of the index, while it is queued or decoded and its turn has not come.
    ordered: Vec<Option<Arc<Task>>>,
    /// The first segment that was not queued.
    next: usize,
    waiting: usize,
    /// How many may wait; more than a few per thread gain too little for their memory.
    most: usize,
}

impl Ahead {
    pub(super) fn new(pool: Arc<DecodePool>) -> Self {
        decode_threads::start();
        let ordered = vec![None; pool.index.segments.len()];
        let most = pool.room.ahead.min(2 * rayon::current_num_threads() + 2);
        Self { pool, ordered, next: 0, waiting: 0, most }
    }

    /// A segment whose turn has come.
    pub(super) fn open(&mut self, segment: usize) -> Arc<Task> {
        let task = self.ordered.get_mut(segment).and_then(Option::take);
        if task.is_some() {
            self.waiting -= 1;
        }
        self.next = self.next.max(segment + 1);
        while self.waiting < self.most && self.next < self.ordered.len() {
            let task = Task::new(QueuedDecode::Segment(self.next));
            self.pool.queue(&task, &mut task.lock(), self.pool.room.waiting);
            self.ordered[self.next] = Some(task);
            self.next += 1;
            self.waiting += 1;
        }
        let task = task.unwrap_or_else(|| Task::new(QueuedDecode::Segment(segment)));
        task.lock().open = true;
        self.pool.open.fetch_add(1, Relaxed);
        task
    }

    /// The next part of an open segment, which has one.
    pub(super) fn next_part(&self, task: &Arc<Task>) -> Result<SegmentPart, Error> {
        let mut state = task.lock();
        let part = loop {
            if let Some(part) = state.parts.pop_front() {
                break part;
            }
            let Some(work) = state.work.take() else {
                state = task.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let (part, rest) = self.pool.work(work);
            state = task.lock();
            state.work = rest;
            break part;
        };
        // Before all parts are taken, so that none has to be waited for.
        self.pool.queue(task, &mut state, self.pool.most(true).div_ceil(2));
        if part.as_ref().is_ok_and(|part| !part.more) {
            self.pool.open.fetch_sub(1, Relaxed);
        }
        part
    }
}

impl Drop for Ahead {
    /// Queued parts that were not begun are no longer needed.
    fn drop(&mut self) {
        self.ordered.iter().flatten().for_each(|task| task.lock().work = None);
    }
}
