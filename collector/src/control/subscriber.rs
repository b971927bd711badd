//! A client that lines are pushed to by another thread.
//!
//! Invariant: [`Subscriber::push`] never waits for the client. At most [`MOST_LINES`] lines and [`MOST_BYTES`] wait; then
//! the oldest ones are dropped whole, and the next line that is sent says how many (`"skipped"`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::wake::ControlWaker;

/// Lines that may wait.
const MOST_LINES: usize = 16;
/// Their bytes; one line may be longer.
const MOST_BYTES: usize = 4 << 20;

/// Pushes lines to a client. When it is dropped, the client is told nothing more.
#[derive(Debug)]
pub struct Subscriber {
    queue: SubscriberQueue,
    waker: ControlWaker,
}

impl Subscriber {
    pub(super) fn new(waker: ControlWaker) -> Self {
        Self { queue: SubscriberQueue::default(), waker }
    }

    /// The end from which the client's connection takes the lines.
    pub(super) fn queue(&self) -> SubscriberQueue {
        self.queue.clone()
    }

    /// Queues a line: a JSON object with at least one member and a newline at its end; all subscribers can be given the
    /// same bytes. `false`: the client has gone.
    #[must_use]
    pub fn push(&self, line: &Arc<[u8]>) -> bool {
        let mut state = self.queue.lock();
        if state.gone {
            return false;
        }
        state.bytes += line.len();
        state.lines.push_back(Arc::clone(line));
        while state.lines.len() > 1 && (state.lines.len() > MOST_LINES || state.bytes > MOST_BYTES) {
            state.bytes -= state.lines.pop_front().map_or(0, |line| line.len());
            state.skipped += 1;
        }
        drop(state);
        self.waker.wake();
        true
    }

    /// Whether the client has gone.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        self.queue.lock().gone
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.queue.lock().ended = true;
        self.waker.wake();
    }
}

/// The lines that wait for a client.
#[derive(Clone, Debug, Default)]
pub(super) struct SubscriberQueue(Arc<Mutex<QueueState>>);

#[derive(Debug, Default)]
struct QueueState {
    lines: VecDeque<Arc<[u8]>>,
    bytes: usize,
    /// Lines that were dropped since the last one that was taken.
    skipped: u64,
    /// The client has gone.
    gone: bool,
    /// Nothing more is pushed.
    ended: bool,
}

impl SubscriberQueue {
    /// The next line, with the number of those that were skipped before it.
    pub(super) fn take(&self) -> Option<(u64, Arc<[u8]>)> {
        let mut state = self.lock();
        let line = state.lines.pop_front()?;
        state.bytes -= line.len();
        Some((std::mem::take(&mut state.skipped), line))
    }

    /// Whether all lines were taken and nothing more is pushed.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.ended && state.lines.is_empty()
    }

    /// Whether no line waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().lines.is_empty()
    }

    /// The client has gone.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.gone = true;
        state.lines.clear();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{MOST_BYTES, MOST_LINES, Subscriber};
    use crate::control::wake;

    fn line(text: &str) -> Arc<[u8]> {
        format!("{{\"window\":{text}}}\n").into_bytes().into()
    }

    #[test]
    fn the_oldest_lines_are_dropped_and_counted() {
        let subscriber = Subscriber::new(wake::pair().unwrap().0);
        let queue = subscriber.queue();
        (0..MOST_LINES + 3).for_each(|number| assert!(subscriber.push(&line(&number.to_string()))));
        assert_eq!(queue.take(), Some((3, line("3"))));
        assert_eq!(queue.take(), Some((0, line("4"))));
        let large = line(&"1".repeat(MOST_BYTES));
        assert!(subscriber.push(&large) && subscriber.push(&large));
        assert!(queue.take().unwrap().0 > 0);
        assert!(queue.take().is_none() && !queue.is_over());
        assert!(!subscriber.has_gone());
        queue.leave();
        assert!(subscriber.has_gone() && !subscriber.push(&large));
        drop(subscriber);
        assert!(queue.is_over());
    }
}
