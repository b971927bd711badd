//! Windows: what each stack allocated, freed and held in every span of one length.
//!
//! Invariant: a window contains the events whose time is in it; over all windows, what was allocated and freed adds up to the
//! whole recording, and the last window of a stack has what it holds at the end.

use memtrack_reader::analysis::{GroupFlow, Tally};
use memtrack_reader::source::Consumer;
use memtrack_reader::{Event, Frames, Options, Replay, Snapshot};

/// What one group did in a window: the window's number, and its figures.
pub(crate) type WindowRow = (u64, GroupFlow);

/// Replays a capture and cuts it into windows, the first from its begin.
#[derive(Debug)]
pub(crate) struct WindowReplay {
    replay: Replay,
    /// The length of a window.
    ns: u64,
    /// The window that the last event was in.
    number: u64,
    /// What each group had allocated and freed at the end of the last window.
    before: Vec<(Tally, Tally)>,
    rows: Vec<WindowRow>,
}

impl WindowReplay {
    /// Before the first event; windows have `ns` nanoseconds.
    pub(crate) fn new(options: &Options, ns: u64) -> Self {
        let replay = Replay::new(&Options { flows: true, window_peaks: true, ..*options });
        Self { replay, ns: ns.max(1), number: 0, before: Vec::new(), rows: Vec::new() }
    }

    /// The replay at the end, and the rows of all windows, in order.
    pub(crate) fn finish(mut self) -> (Replay, Vec<WindowRow>) {
        self.cut();
        (self.replay, self.rows)
    }

    /// Ends the window before the one that contains this time. Windows in which nothing happened have no rows: live bytes are
    /// those of the window before.
    #[inline]
    fn reach(&mut self, time_ns: u64) {
        let number = time_ns / self.ns;
        if number > self.number {
            self.cut();
            self.number = number;
        }
    }

    fn cut(&mut self) {
        for (at, flow) in self.replay.flows().enumerate() {
            if at == self.before.len() {
                self.before.push(Default::default());
            }
            let (allocated, freed) = std::mem::replace(&mut self.before[at], (flow.allocated, flow.freed));
            let [allocated, freed] = [flow.allocated.less(allocated), flow.freed.less(freed)];
            if [allocated, freed, flow.live].iter().any(|tally| *tally != Tally::default()) {
                self.rows.push((self.number, GroupFlow { allocated, freed, ..flow }));
            }
        }
        self.replay.begin_window();
    }
}

impl Consumer for WindowReplay {
    fn event(&mut self, event: &Event, _frames: &Frames) {
        self.reach(event.time_ns);
        self.replay.event(event);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.reach(snapshot.time_ns);
        let _ = self.replay.snapshot(snapshot.time_ns, snapshot.rss_bytes);
    }

    fn truncated_stacks(&mut self, count: u64) {
        self.replay.truncated_stacks(count);
    }

    fn replaced(&mut self) {
        self.replay.replaced();
    }
}
