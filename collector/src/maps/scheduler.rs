//! Schedules the readings of a process's maps (at its start, and when it has asked) and passes the answers on.
//!
//! Reading maps can block, even on the recorded process, so it has a thread of its own; the draining thread waits for that
//! only for a short time, and only where order matters. Invariant: however often a process asks,
//! its maps are read [`BURST`] times, and then once in [`REFILL_NS`]; besides for each snapshot, and at its end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use memtrack_transport::Area;

use super::answer::{Answerer, MapsAnswer};
use crate::sink::sink_queue::SinkQueue;
use crate::system::process_handle::ProcessHandle;
use crate::system::worker_pool::WorkerPool;

static READING: WorkerPool = WorkerPool::new("memtrack-maps");

/// Number of readings that may follow each other at once.
const BURST: u32 = 16;
/// Nanoseconds after which one more reading is allowed.
const REFILL_NS: u64 = 100_000_000;
/// How long the draining thread waits for an answer that must come before the records.
const PATIENCE: Duration = Duration::from_millis(5);
/// The same, at the end of the recording.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// Requests readings of the maps of one process image.
#[derive(Debug)]
pub(crate) struct MapsScheduler {
    looks: Sender<()>,
    answers: Receiver<MapsAnswer>,
    /// A reading was requested and has not ended.
    outstanding: bool,
    /// The draining thread no longer waits for it.
    late: bool,
    /// [`memtrack_transport::layout::ControlPage::asked`] when the last reading was requested.
    asked: u32,
    /// The same of the last one that has ended.
    answered: u32,
    left: u32,
    next_refill_ns: u64,
    error_text: Option<String>,
}

impl MapsScheduler {
    /// For a process that has connected: requests a reading at once. `None`: no thread could be started.
    pub(crate) fn start(pid: i32, area: &Arc<Area>, handle: &Arc<ProcessHandle>, now: u64) -> Option<Self> {
        let mut answerer = Answerer::new(pid, Arc::clone(area), Arc::clone(handle));
        let (looks, orders) = bounded(1);
        let (tell, answers) = bounded(2);
        let answer = move || orders.iter().all(|()| tell.send(answerer.read_maps()).is_ok());
        // Nothing comes before its first answer.
        let (_reading, _begins) = READING.execute(answer).ok()?;
        let next_refill_ns = now.saturating_add(REFILL_NS);
        let mut scheduler = Self {
            looks,
            answers,
            outstanding: false,
            late: false,
            asked: 0,
            answered: 0,
            left: BURST,
            next_refill_ns,
            error_text: None,
        };
        scheduler.order(0);
        Some(scheduler)
    }

    /// Requests a reading if there are questions, and passes answers on. With `wait` they come before the records that
    /// are drained next.
    pub(crate) fn round(&mut self, area: &Area, now: u64, wait: bool, queue: &SinkQueue) {
        if now >= self.next_refill_ns {
            self.left = (self.left + 1).min(BURST);
            self.next_refill_ns = now.saturating_add(REFILL_NS);
        }
        let patience = if wait { PATIENCE } else { Duration::ZERO };
        // A reading that was requested earlier may have been too early for the questions since.
        self.take(patience, queue);
        let asked = area.control().asked.load(Acquire);
        if asked != self.asked && self.left > 0 && !self.outstanding {
            self.left -= 1;
            self.order(asked);
            self.take(patience, queue);
        }
    }

    /// Answers the last questions of a process that has ended, or is no longer recorded.
    pub(crate) fn end(&mut self, area: &Area, queue: &SinkQueue) {
        self.catch_up(area, LAST_PATIENCE, queue);
    }

    /// Answers the pending questions now; waits twice this time at most.
    pub(crate) fn catch_up(&mut self, area: &Area, patience: Duration, queue: &SinkQueue) {
        self.late = false;
        self.take(patience, queue);
        let asked = area.control().asked.load(Acquire);
        if asked != self.asked && !self.outstanding {
            self.order(asked);
            self.take(patience, queue);
        }
    }

    /// Whether the questions are answered that were asked by then, as far as they can be: `asked` is
    /// [`memtrack_transport::layout::ControlPage::asked`] of then.
    pub(crate) fn has_answered(&self, asked: u32) -> bool {
        self.answered.wrapping_sub(asked).cast_signed() >= 0
    }

    /// Why a question could not be answered, as a message; once.
    pub(crate) fn take_error(&mut self) -> Option<String> {
        self.error_text.take()
    }

    fn order(&mut self, asked: u32) {
        if self.looks.try_send(()).is_ok() {
            self.asked = asked;
            (self.outstanding, self.late) = (true, false);
        }
    }

    /// Passes the answer on, if it has come, or comes within this time.
    fn take(&mut self, patience: Duration, queue: &SinkQueue) {
        if !self.outstanding {
            return;
        }
        let patience = if self.late { Duration::ZERO } else { patience };
        let Ok(MapsAnswer { files, error_text }) = self.answers.recv_timeout(patience) else {
            self.late |= patience > Duration::ZERO;
            return;
        };
        self.outstanding = false;
        self.answered = self.asked;
        self.error_text = error_text.or(self.error_text.take());
        if !files.is_empty() {
            queue.mapped(files);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use memtrack_format::mapped::MappedFile;
    use memtrack_format::meta::Process;

    use super::*;
    use crate::sink::{RecordPiece, Sink};

    /// Keeps the paths of files.
    struct FilePaths(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Sink for FilePaths {
        fn process(&mut self, _: &Process) -> io::Result<()> {
            Ok(())
        }

        fn records(&mut self, _: &RecordPiece<'_>) -> io::Result<()> {
            Ok(())
        }

        fn observations(&mut self, _: &[u8], _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn mapped(&mut self, files: &[MappedFile]) -> io::Result<()> {
            self.0.lock().unwrap().extend(files.iter().map(|file| file.path.clone()));
            Ok(())
        }

        fn finish(&mut self, _complete: bool) -> io::Result<()> {
            Ok(())
        }
    }

    /// The first reading was made before the program mapped the code that it asks about.
    #[test]
    fn what_is_asked_during_an_earlier_reading_is_answered_before_what_is_drained_next() {
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let (looks, orders) = bounded(1);
        let (tell, answers) = bounded(2);
        let (outstanding, late, error_text) = (true, false, None);
        let mut scheduler = MapsScheduler {
            looks,
            answers,
            outstanding,
            late,
            asked: 0,
            answered: 0,
            left: 1,
            next_refill_ns: u64::MAX,
            error_text,
        };
        area.control().asked.store(1, std::sync::atomic::Ordering::Release);
        for path in [&b"earlier"[..], b"asked for"] {
            let files = vec![MappedFile { path: path.to_vec(), ..MappedFile::default() }];
            tell.send(MapsAnswer { files, error_text: None }).unwrap();
        }
        let told = Arc::new(Mutex::new(Vec::new()));
        let (queue, _) = SinkQueue::start(Box::new(FilePaths(Arc::clone(&told)))).unwrap();
        assert!(scheduler.has_answered(0) && !scheduler.has_answered(1));
        scheduler.round(&area, 0, true, &queue);
        assert!(scheduler.has_answered(1) && !scheduler.has_answered(2));
        queue.finish(true).unwrap();
        assert_eq!(orders.len(), 1);
        assert_eq!(*told.lock().unwrap(), [&b"earlier"[..], b"asked for"]);
    }
}
