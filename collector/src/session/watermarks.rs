//! Passes watermarks on to the sink, and holds one back whose records run code that is not named yet.
//!
//! Who follows the order of the records adds events up once the watermark behind them has come, by the names that are known
//! then. Invariant: tickets rise, and a watermark is passed on when the questions about code that were asked before it are
//! answered, or after [`LONGEST_HOLD_NS`].

use crate::sink::sink_queue::SinkQueue;

/// How long a watermark is held back, in nanoseconds: maps may be unreadable for long, and the events are shown late meanwhile.
const LONGEST_HOLD_NS: u64 = 1_000_000_000;

/// What was taken before its records were drained.
#[derive(Debug)]
pub(super) struct Watermark {
    pub(super) ticket: u64,
    /// Streams that may still add records with earlier tickets.
    pub(super) busy: Vec<u32>,
    /// [`memtrack_transport::layout::ControlPage::asked`] when its records were drained.
    pub(super) asked: u32,
    pub(super) time_ns: u64,
}

/// The watermarks of a session.
#[derive(Debug, Default)]
pub(super) struct Watermarks {
    /// Records or observations have come that no watermark is behind.
    unmarked: bool,
    held: Option<Watermark>,
}

impl Watermarks {
    /// Whether records or observations have come that no watermark is behind.
    pub(super) fn is_due(&self) -> bool {
        self.unmarked
    }

    /// Records may have come: `changed`. `marked`: a watermark was taken before.
    pub(super) fn drained(&mut self, changed: bool, marked: bool) {
        self.unmarked = changed || (self.unmarked && !marked);
    }

    /// Passes a watermark on, or holds it back; tells whether it was passed on. While one is held, later ones are left out:
    /// [`Self::is_due`] stays.
    pub(super) fn add(&mut self, watermark: Watermark, is_answered: impl Fn(u32) -> bool, queue: &SinkQueue) -> bool {
        if self.held.is_some() {
            self.unmarked = true;
            return false;
        }
        let passes = is_answered(watermark.asked);
        if passes {
            queue.watermark(watermark.ticket, watermark.busy);
        } else {
            self.held = Some(watermark);
        }
        passes
    }

    /// Passes on what is held back, if it need not wait any longer; tells whether it did.
    pub(super) fn release(&mut self, now_ns: u64, is_answered: impl Fn(u32) -> bool, queue: &SinkQueue) -> bool {
        let is_over =
            |held: &mut Watermark| is_answered(held.asked) || now_ns.saturating_sub(held.time_ns) >= LONGEST_HOLD_NS;
        let released = self.held.take_if(is_over);
        released.map(|watermark| queue.watermark(watermark.ticket, watermark.busy)).is_some()
    }

    /// Passes this one on at once, which is later than all before it.
    pub(super) fn skip_to(&mut self, ticket: u64, busy: Vec<u32>, queue: &SinkQueue) {
        self.held = None;
        queue.watermark(ticket, busy);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use memtrack_format::meta::Process;

    use super::*;
    use crate::sink::{RecordPiece, Sink};

    /// Keeps the tickets of watermarks.
    struct WatermarkTickets(Arc<Mutex<Vec<u64>>>);

    impl Sink for WatermarkTickets {
        fn process(&mut self, _: &Process) -> io::Result<()> {
            Ok(())
        }

        fn records(&mut self, _: &RecordPiece<'_>) -> io::Result<()> {
            Ok(())
        }

        fn observations(&mut self, _: &[u8], _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn watermark(&mut self, before_ticket: u64, _: &[u32]) -> io::Result<()> {
            self.0.lock().unwrap().push(before_ticket);
            Ok(())
        }

        fn finish(&mut self, _complete: bool) -> io::Result<()> {
            Ok(())
        }
    }

    /// The tickets that the sink is given.
    fn passed(test: impl FnOnce(&mut Watermarks, &SinkQueue)) -> Vec<u64> {
        let passed = Arc::new(Mutex::new(Vec::new()));
        let (queue, _) = SinkQueue::start(Box::new(WatermarkTickets(Arc::clone(&passed)))).unwrap();
        test(&mut Watermarks::default(), &queue);
        queue.finish(true).unwrap();
        let passed = passed.lock().unwrap();
        passed.clone()
    }

    const fn taken(ticket: u64, asked: u32) -> Watermark {
        Watermark { ticket, busy: Vec::new(), asked, time_ns: 0 }
    }

    #[test]
    fn one_waits_for_the_answers_to_what_was_asked_before_it() {
        let answered = |number| move |asked| asked <= number;
        let tickets = passed(|watermarks, queue| {
            assert!(watermarks.add(taken(1, 0), answered(0), queue));
            watermarks.drained(true, true);
            assert!(!watermarks.add(taken(2, 5), answered(4), queue));
            assert!(!watermarks.release(1, answered(4), queue));
            // Left out, so that another one is due.
            watermarks.drained(false, true);
            assert!(!watermarks.add(taken(3, 9), answered(4), queue));
            assert!(watermarks.is_due());
            assert!(watermarks.release(2, answered(5), queue));
            assert!(!watermarks.release(3, answered(5), queue));
            assert!(watermarks.add(taken(4, 9), answered(9), queue));
            watermarks.drained(false, true);
            assert!(!watermarks.is_due());
        });
        assert_eq!(tickets, [1, 2, 4]);
    }

    #[test]
    fn none_waits_for_long_or_comes_after_a_later_one() {
        let tickets = passed(|watermarks, queue| {
            assert!(!watermarks.add(taken(1, 1), |_| false, queue));
            assert!(!watermarks.release(LONGEST_HOLD_NS - 1, |_| false, queue));
            assert!(watermarks.release(LONGEST_HOLD_NS, |_| false, queue));
            assert!(!watermarks.add(taken(2, 1), |_| false, queue));
            watermarks.skip_to(3, Vec::new(), queue);
            assert!(!watermarks.release(u64::MAX, |_| true, queue));
        });
        assert_eq!(tickets, [1, 3]);
    }
}
