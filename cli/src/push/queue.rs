//! The profiles that wait to be sent, on disk, so that a server that is gone for an hour costs no memory.
//!
//! What the queue of a memtrack that was killed has for the same server is taken over.
//! Invariant: never more than [`MOST_BYTES`] and [`MOST_WAITING`] wait; when there are more, the oldest are given up, and
//! counted.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::request::PushRequest;
use super::stored;
use crate::owned_directory::{LeftDirectory, OwnedDirectory};

/// Bytes of bodies that wait.
pub(super) const MOST_BYTES: u64 = 64 << 20;
/// Requests that wait: a day of windows of 15 s.
const MOST_WAITING: usize = 6_000;

/// A request that is in a file.
#[derive(Debug)]
pub(super) struct QueuedPush {
    number: u64,
    bytes: u64,
}

/// The queue of one server.
#[derive(Debug)]
pub(super) struct PushQueue {
    /// The kind and the address of its server.
    server: String,
    directory: OwnedDirectory,
    state: Mutex<PushQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PushQueueState {
    waiting: VecDeque<QueuedPush>,
    bytes: u64,
    /// How many were put into it.
    made: u64,
    /// How many were given up.
    lost: u64,
    /// Nothing is put into it any more; what waits is given up at this time.
    closed: Option<Instant>,
}

impl PushQueue {
    /// A queue in a directory of its own, with what was left for this server.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new(server: String) -> io::Result<Self> {
        let directory = OwnedDirectory::for_pushes()?;
        let queue = Self { server, directory, state: Mutex::default(), changed: Condvar::new() };
        OwnedDirectory::left_pushes().into_iter().for_each(|left| queue.take_over(left));
        Ok(queue)
    }

    /// Takes what a queue that was left has for this server. The rest waits for a recording that sends to its server.
    fn take_over(&self, left: LeftDirectory) {
        let mut state = self.lock();
        for file in left.files() {
            let Ok(Some(bytes)) = stored::bytes_for(&file, &self.server) else { continue };
            let number = state.made;
            if fs::rename(&file, self.file(number)).is_ok() {
                state.made += 1;
                state.bytes += bytes;
                state.waiting.push_back(QueuedPush { number, bytes });
                self.shrink(&mut state);
            }
        }
        left.remove_if_empty();
    }

    /// Gives up the oldest while there are too many.
    fn shrink(&self, state: &mut PushQueueState) {
        while state.bytes > MOST_BYTES || state.waiting.len() > MOST_WAITING {
            let Some(oldest) = state.waiting.pop_front() else { break };
            state.bytes -= oldest.bytes;
            state.lost += 1;
            // It is removed with the directory else.
            let _ = fs::remove_file(self.file(oldest.number));
        }
    }

    fn lock(&self) -> MutexGuard<'_, PushQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, number: u64) -> PathBuf {
        self.directory.path().join(number.to_string())
    }

    /// Adds a request; one that cannot be written is given up.
    pub(super) fn put(&self, request: &PushRequest) {
        let mut state = self.lock();
        let number = state.made;
        state.made += 1;
        let file = self.file(number);
        let written = stored::write(&file, &self.server, request).ok().filter(|bytes| *bytes <= MOST_BYTES);
        let Some(bytes) = written else {
            let _ = fs::remove_file(file);
            state.lost += 1;
            return;
        };
        state.bytes += bytes;
        state.waiting.push_back(QueuedPush { number, bytes });
        self.shrink(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the oldest request, and takes it; `None`: the queue is closed, and empty or out of time.
    pub(super) fn take(&self) -> Option<QueuedPush> {
        let mut state = self.lock();
        loop {
            if state.closed.is_some_and(|end| Instant::now() >= end) {
                return None;
            }
            if let Some(oldest) = state.waiting.pop_front() {
                state.bytes -= oldest.bytes;
                return Some(oldest);
            }
            if state.closed.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The request with its body.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub(super) fn whole(&self, queued: &QueuedPush) -> io::Result<PushRequest> {
        stored::read(&self.file(queued.number))
    }

    /// Puts a request back that was not delivered: it is the next one again.
    pub(super) fn put_back(&self, queued: QueuedPush) {
        let mut state = self.lock();
        state.bytes += queued.bytes;
        state.waiting.push_front(queued);
    }

    /// A request that was taken is done with.
    pub(super) fn done(&self, queued: &QueuedPush, is_delivered: bool) {
        let _ = fs::remove_file(self.file(queued.number));
        self.lock().lost += u64::from(!is_delivered);
    }

    /// Waits this long before the next try, and not less than the server has asked for. The end of the recording cuts a longer
    /// pause short; then nothing is tried any more where the server has asked for more time than is left.
    pub(super) fn pause(&self, time: Duration, asked: Duration) {
        let begun = Instant::now();
        let mut state = self.lock();
        let was_closed = state.closed.is_some();
        loop {
            let now = Instant::now();
            let pause = if state.closed.is_some() && !was_closed { asked } else { time.max(asked) };
            if let Some(end) = state.closed
                && begun + asked > end
            {
                state.closed = Some(now.min(end));
                return;
            }
            let until = begun + pause;
            let left = state.closed.map_or(until, |end| until.min(end)).saturating_duration_since(now);
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Nothing more comes; what waits at this time is given up.
    pub(super) fn close(&self, end: Instant) {
        self.lock().closed = Some(end);
        self.changed.notify_all();
    }

    /// When what waits is given up, if the queue is closed.
    pub(super) fn end(&self) -> Option<Instant> {
        self.lock().closed
    }

    /// How many requests were given up or wait, and how many there were.
    pub(super) fn undelivered(&self) -> (u64, u64) {
        let state = self.lock();
        (state.lost + state.waiting.len() as u64, state.made)
    }
}
