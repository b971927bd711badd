//! What is due in some rounds only: looks at threads, at the life of the process and at its memory, checkpoints; and how soon the next
//! round comes.
//!
//! Invariant: whatever was observed is handed over before a checkpoint is asked for.

use memtrack_transport::layout::state;
use std::sync::atomic::Ordering::SeqCst;

use super::{CHECK_NS, DrainPace, FOLLOWED_CHECKPOINT_NS, IDLE_CHECK_NS, IDLE_NS, LIFE_NS, Session};
use crate::recording::describe;
use crate::sink::sink_queue::SinkQueue;

impl Session {
    pub(super) fn do_due_work(&mut self, now: u64, checkpoint: bool, queue: &mut SinkQueue) {
        self.threads.find_new(&self.area, self.slot_readers.len() as u32, &mut self.observer);
        let rare = if self.threads.owned > 1 { CHECK_NS } else { self.checkpoint_ns };
        if now.saturating_sub(self.last_check_ns) >= rare {
            self.threads.check(&self.area, &mut self.observer);
            self.last_check_ns = now;
        }
        if now >= self.next_life_ns {
            self.read_processor_time();
            self.over |= self.handle.has_ended();
            self.alive_ns = if self.over { self.alive_ns } else { now };
            self.next_life_ns = now.saturating_add(LIFE_NS);
            self.look_at_exec(now);
            self.progress.set_stop_reason(describe::stopped_early(self.area.control()));
        }
        self.read_resident_peak(now);
        if now >= self.next_idle_check_ns {
            self.look_for_idle_threads(queue);
            if !self.over {
                self.end_watch.look();
            }
            self.next_idle_check_ns = now.saturating_add(IDLE_CHECK_NS);
        }
        if self.is_cut_off(queue) {
            self.area.control().state.store(state::CLOSED, SeqCst);
        }
        if checkpoint {
            self.save(queue);
            self.last_checkpoint_ns = now;
        } else if self.observer.is_full() {
            self.observer.hand_over(queue);
        }
    }

    /// Ends this where the process runs on as a program that cannot be recorded.
    fn look_at_exec(&mut self, now: u64) {
        let found = self.exec_watch.look(self.area.control(), &self.handle, self.pid, now);
        if let Some(program) = found.filter(|_| !self.over) {
            self.progress.set_unrecorded_program(Some(program));
            self.over = true;
        }
    }

    pub(super) fn checkpoint_interval(&mut self, now: u64) -> u64 {
        if self.memory_limit.is_near(now) {
            return 0;
        }
        let is_followed = self.progress.is_followed(now);
        if is_followed { self.checkpoint_ns.min(FOLLOWED_CHECKPOINT_NS) } else { self.checkpoint_ns }
    }

    /// Hands over all other changes and requests a checkpoint.
    fn save(&mut self, queue: &SinkQueue) {
        self.counts.note_changes(&self.area, &mut self.observer);
        self.dirty |= self.observer.hand_over(queue);
        let news = describe::by_now(self.area.control());
        let mut known = self.process.clone();
        known.update(&news.encode());
        if known != self.process {
            self.update_process(news, queue);
            self.dirty = true;
        }
        if std::mem::take(&mut self.dirty) {
            queue.checkpoint();
        }
    }

    pub(super) fn pace(&self, now: u64, freed: u32) -> DrainPace {
        if self.over {
            DrainPace::Over
        } else if freed >= 4 || self.memory_limit.was_near() {
            DrainPace::Fast
        } else if now.saturating_sub(self.last_event_ns) < IDLE_NS {
            DrainPace::Steady
        } else {
            DrainPace::Idle
        }
    }
}
