//! Asks the process's allocator for its own statistics, and keeps the last answer.
//!
//! A thread of the process answers when it next allocates or frees, so an answer may come later, or never. It is asked for
//! with each account, and ahead, since a process at its end no longer answers.
//!
//! Invariant: an answer is read only after the thread has written all of it; and those that are asked for ahead take at
//! most a two-hundredth of the process's time.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memtrack_format::resident::{AllocatorFigures, AllocatorStatistics, StatisticsSource};
use memtrack_transport::layout::{AllocatorAnswer, allocator_answer};

/// The allocator is asked again when resident memory has changed by this part, or after this time.
const CHANGED_PART: u64 = 50;
const PAUSE_NS: u64 = 100_000_000;
/// The part of the time that answers may take.
const TIME_PART: u64 = 200;
/// An answer takes at least so long. One that took more than twice as long as the one before was interrupted, or others will
/// take as long.
const LEAST_COST_NS: u64 = 20_000;

/// Asks one process.
#[derive(Debug, Default)]
pub(super) struct AllocatorAsker {
    last: Option<AllocatorStatistics>,
    /// How long the last answer took.
    cost_ns: u64,
    /// When it was asked for, and what was resident then.
    asked_ns: u64,
    resident: u64,
}

impl AllocatorAsker {
    /// Asks if the last answer is too old; `resident`: the process's resident memory.
    pub(super) fn ask(&mut self, answer: &AllocatorAnswer, now: u64, resident: u64) {
        self.last(answer);
        let age = now.saturating_sub(self.asked_ns);
        let has_changed = resident.abs_diff(self.resident) > self.resident / CHANGED_PART;
        let is_due = (has_changed || age >= PAUSE_NS) && age >= self.cost_ns.saturating_mul(TIME_PART);
        if is_due && self.ask_now(answer, now) {
            self.resident = resident;
        }
    }

    /// Asks for an answer of this moment; whether that was possible.
    pub(super) fn ask_now(&mut self, answer: &AllocatorAnswer, now: u64) -> bool {
        let may = answer.source.load(Relaxed) != 0 && answer.state.load(Relaxed) == allocator_answer::NONE;
        if may {
            self.asked_ns = now;
            answer.state.store(allocator_answer::ASKED, Release);
        }
        may
    }

    /// The last answer that has come.
    pub(super) fn last(&mut self, answer: &AllocatorAnswer) -> Option<AllocatorStatistics> {
        if answer.state.load(Acquire) == allocator_answer::DONE {
            self.last = read(answer);
            self.cost_ns = answer.cost_ns.load(Relaxed).min(2 * self.cost_ns.max(LEAST_COST_NS));
            answer.state.store(allocator_answer::NONE, Relaxed);
        }
        self.last
    }
}

/// The answer, if it has come, and was not taken.
pub(super) fn read(answer: &AllocatorAnswer) -> Option<AllocatorStatistics> {
    if answer.state.load(Acquire) != allocator_answer::DONE {
        return None;
    }
    let source = StatisticsSource::from_number(answer.source.load(Relaxed).into())?;
    let figure = |at: usize| {
        let bytes = answer.figures.get(at)?.load(Relaxed);
        (bytes != AllocatorAnswer::UNKNOWN).then_some(bytes)
    };
    let figures = AllocatorFigures::from_array(std::array::from_fn(figure));
    Some(AllocatorStatistics { source, time_ns: answer.time_ns.load(Relaxed), figures })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    fn answer() -> AllocatorAnswer {
        AllocatorAnswer {
            state: AtomicU32::new(allocator_answer::NONE),
            source: AtomicU32::new(StatisticsSource::Mimalloc as u32),
            time_ns: AtomicU64::new(0),
            cost_ns: AtomicU64::new(MILLISECOND),
            figures: [const { AtomicU64::new(AllocatorAnswer::UNKNOWN) }; 6],
        }
    }

    fn state(answer: &AllocatorAnswer) -> u32 {
        answer.state.load(Relaxed)
    }

    #[test]
    fn an_answer_is_read_once_it_is_whole_and_stays_the_last_one() {
        let (shared, mut asker) = (answer(), AllocatorAsker::default());
        asker.ask(&shared, MILLISECOND, 1 << 20);
        assert_eq!(state(&shared), allocator_answer::ASKED);
        shared.state.store(allocator_answer::BEGUN, Relaxed);
        shared.figures[1].store(7, Relaxed);
        asker.ask(&shared, 300 * MILLISECOND, 1 << 30);
        assert_eq!((asker.last(&shared), state(&shared)), (None, allocator_answer::BEGUN));
        shared.state.store(allocator_answer::DONE, Relaxed);
        let figures = AllocatorFigures { committed: Some(7), ..AllocatorFigures::default() };
        let told = AllocatorStatistics { source: StatisticsSource::Mimalloc, time_ns: 0, figures };
        assert_eq!(asker.last(&shared), Some(told));
        // Too soon after an answer that took 40 microseconds, as far as it was not interrupted, and then not.
        asker.ask(&shared, 8 * MILLISECOND, 1 << 30);
        assert_eq!((asker.last(&shared), state(&shared)), (Some(told), allocator_answer::NONE));
        asker.ask(&shared, 9 * MILLISECOND, 1 << 30);
        assert_eq!((asker.last(&shared), state(&shared)), (Some(told), allocator_answer::ASKED));
    }

    #[test]
    fn an_allocator_that_cannot_be_asked_is_not() {
        let (shared, mut asker) = (answer(), AllocatorAsker::default());
        shared.source.store(0, Relaxed);
        asker.ask(&shared, MILLISECOND, 1 << 20);
        assert!(!asker.ask_now(&shared, 2 * MILLISECOND));
        assert_eq!((asker.last(&shared), state(&shared)), (None, allocator_answer::NONE));
    }
}
