//! The profiles that wait to be sent, on disk, so that a server that is gone for an hour costs no memory.
//!
//! Invariant: never more than [`MOST_BYTES`] and [`MOST_WAITING`] wait; when there are more, the oldest are given up, and
//! counted.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::request::PushRequest;
use crate::owned_directory::OwnedDirectory;

/// Bytes of bodies that wait.
pub(super) const MOST_BYTES: u64 = 64 << 20;
/// Requests that wait: a day of windows of 15 s.
const MOST_WAITING: usize = 6_000;
/// The longest time between two tries at the end.
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// A request whose body is in a file.
#[derive(Debug)]
pub(super) struct QueuedPush {
    number: u64,
    bytes: u64,
    /// Its body is empty here.
    request: PushRequest,
}

/// The queue of one server.
#[derive(Debug)]
pub(super) struct PushQueue {
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
    /// An empty queue in a directory of its own.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { directory: OwnedDirectory::for_pushes()?, state: Mutex::default(), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, PushQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, number: u64) -> PathBuf {
        self.directory.path().join(number.to_string())
    }

    /// Adds a request; one that cannot be written is given up.
    pub(super) fn put(&self, mut request: PushRequest) {
        let body = std::mem::take(&mut request.body);
        let mut state = self.lock();
        let number = state.made;
        state.made += 1;
        let bytes = body.len() as u64;
        if bytes > MOST_BYTES || fs::write(self.file(number), body).is_err() {
            let _ = fs::remove_file(self.file(number));
            state.lost += 1;
            return;
        }
        state.bytes += bytes;
        state.waiting.push_back(QueuedPush { number, bytes, request });
        while state.bytes > MOST_BYTES || state.waiting.len() > MOST_WAITING {
            let Some(oldest) = state.waiting.pop_front() else { break };
            state.bytes -= oldest.bytes;
            state.lost += 1;
            // It is removed with the directory else.
            let _ = fs::remove_file(self.file(oldest.number));
        }
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
        Ok(PushRequest { body: fs::read(self.file(queued.number))?, ..queued.request.clone() })
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

    /// Waits this long before the next try; shorter once the queue is closed.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        if let Some(end) = state.closed {
            drop(state);
            thread::sleep(time.min(LAST_PAUSE).min(end.saturating_duration_since(Instant::now())));
        } else {
            // A poisoned lock ends the wait early, which does no harm.
            drop(self.changed.wait_timeout_while(state, time, |state| state.closed.is_none()));
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
