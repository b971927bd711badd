//! When a running recording takes accounts of resident memory.
//!
//! Invariant: each account has a tick of its own, which was taken before its pages were read.

use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use memtrack_format::meta::Process;
use memtrack_format::observe::Tick;
use memtrack_format::resident::AccountCause;
use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::layout::{image, state};

use super::Session;
use crate::sink::sink_queue::SinkQueue;

/// How long a snapshot waits for its account, and how long between rounds of draining meanwhile.
const PATIENCE_NS: u64 = 2_000_000_000;
const ROUND: Duration = Duration::from_millis(1);

impl Session {
    /// Passes an account on that was read, and orders the next one if it is due.
    pub(super) fn account(&mut self, now: u64, queue: &SinkQueue) {
        self.picture(now, queue);
        let is_taken = self.accounts.take(Duration::ZERO, queue);
        let found = self.accounts.take_library_allocators();
        self.note_library_allocators(found, queue);
        if !is_taken || self.area.control().image.load(Acquire) == image::IN_EXEC {
            return;
        }
        // The process waits for its picture first: its account releases it.
        if self.pictures.holds() {
            return;
        }
        if let Some(cause) = self.accounts.due(now, self.observer.last_rss()) {
            if cause == AccountCause::End {
                self.progress.set_ends_itself();
            }
            // It may have come to its end since its picture was looked for, which then is the next one's to order.
            if matches!(cause, AccountCause::End | AccountCause::Finalizing) && self.pictures.come_first() {
                return;
            }
            self.order_account(cause);
        }
    }

    /// Orders an account of this moment, which somebody has asked for.
    pub(super) fn ask_for_account(&mut self, tick: Tick, cause: AccountCause) {
        if !self.handle.has_ended() {
            self.accounts.ask(tick, cause, monotonic_ns());
        }
    }

    /// Orders an account and waits for it, while it goes on draining.
    pub(super) fn wait_for_account(&mut self, cause: AccountCause, queue: &mut SinkQueue) {
        let begun = monotonic_ns();
        self.accounts.end(queue);
        let tick = self.observer.moment(&self.area);
        self.ask_for_account(tick, cause);
        while !self.accounts.take(ROUND, queue) && monotonic_ns().saturating_sub(begun) < PATIENCE_NS {
            self.drain(true, queue);
        }
    }

    /// The account of the end: of a process that runs on, it is taken now.
    pub(super) fn last_account(&mut self, queue: &mut SinkQueue) {
        let control = self.area.control();
        let runs_on = control.state.load(Acquire) == state::RECORDING || control.state.load(Acquire) == state::STOPPED;
        self.accounts.end(queue);
        if runs_on && !self.handle.has_ended() && control.image.load(Acquire) != image::IN_EXEC {
            self.wait_for_account(AccountCause::End, queue);
        }
        let found = self.accounts.last_library_allocators();
        self.note_library_allocators(found, queue);
        if let Some(reason) = self.accounts.error_text() {
            let resident_note = Some(reason.as_bytes().to_vec());
            self.update_process(Process { resident_note, ..Process::default() }, queue);
        }
    }

    /// Notes which libraries have an allocator of their own, if accounts have found new ones.
    fn note_library_allocators(&mut self, found: Option<Vec<Vec<u8>>>, queue: &SinkQueue) {
        if let Some(library_allocators) = found {
            self.update_process(Process { library_allocators, ..Process::default() }, queue);
            self.dirty = true;
        }
    }

    fn order_account(&mut self, cause: AccountCause) {
        // At its end it waits until the account is there, with the memory that it has then: much may be freed after the last snapshot.
        let is_waiting = matches!(cause, AccountCause::End | AccountCause::Finalizing);
        let tick = if is_waiting { self.observer.moment(&self.area) } else { self.observer.tick(&self.area) };
        if is_waiting {
            self.alive_ns = tick.time_ns;
        }
        self.dirty = true;
        self.accounts.order(tick, cause);
    }
}
