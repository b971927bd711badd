//! Limits while the program runs: it is ended, or a snapshot is written, when its resident memory, or its address space or
//! data where that is limited, is above a limit, or from time to time.
//!
//! Invariant: each recorded process is sent one signal at the most, and only snapshots of this run are removed.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use memtrack_collector::RecordingHandle;
use memtrack_collector::control_groups::memory_at_most;

use crate::args::running::{LimitArgs, MemoryBound};
use crate::control::snapshot;
use crate::control::snapshot::{CapturePaths, CopyableCapture, OwnSnapshot};
use crate::message;
use crate::output::ReportOutput;
use crate::sys::{Child, ResourceLimits, VirtualSizes};
use crate::text::quoted_path;
use crate::units::{count, duration, plural, size};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long the processes that are to end may take until it is settled what belongs to the snapshot of that moment: they grow
/// meanwhile.
const SETTLE_LIMIT: Duration = Duration::from_millis(200);

/// The program was ended by a limit.
#[derive(Clone, Debug)]
pub(super) struct StoppedByLimit {
    exceeded: ExceededLimit,
    after: Duration,
    /// Recorded children that were told, too.
    children: usize,
    /// What was live when the program was told to end, or soon after (`is_late`): it may free that.
    snapshot: Option<PathBuf>,
    /// It was told before that was settled.
    is_late: bool,
}

impl StoppedByLimit {
    /// As a sentence.
    pub(super) fn text(&self) -> String {
        let after = duration(u64::try_from(self.after.as_nanos()).unwrap_or(u64::MAX));
        let held = if self.is_late { "what it held soon after" } else { "what it held then" };
        let snapshot = self.snapshot.as_ref().map(|path| format!("; {held} is in {}", path.display()));
        let program = match self.children {
            0 => "the program was".to_owned(),
            number => format!("the program and its {} were", plural(number as u64, "child", "children")),
        };
        // Limits of the system are those of each process; the first one's are watched.
        let is_of_all = self.children > 0 && matches!(self.exceeded.of, LimitedMemory::Resident);
        let its = if is_of_all { "their" } else { "its" };
        format!(
            "{program} sent SIGTERM after {after}: {its} {}, {}, was above --stop-above {}{}",
            self.exceeded.of.name(),
            size(self.exceeded.used),
            size(self.exceeded.limit),
            snapshot.unwrap_or_default()
        )
    }
}

/// What is limited. Address space and data run out before resident memory is near any limit.
#[derive(Clone, Copy, Debug)]
enum LimitedMemory {
    Resident,
    /// By `ulimit -v`.
    AddressSpace,
    /// By `ulimit -d`.
    Data,
}

impl LimitedMemory {
    const ALL: [Self; 3] = [Self::Resident, Self::AddressSpace, Self::Data];

    fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident memory",
            Self::AddressSpace => "address space",
            Self::Data => "data segment",
        }
    }
}

/// What was above a limit.
#[derive(Clone, Copy, Debug)]
struct ExceededLimit {
    limit: u64,
    used: u64,
    of: LimitedMemory,
}

/// Limits in bytes, in the order of [`LimitedMemory::ALL`].
#[derive(Clone, Copy, Debug)]
struct WatchedLimit([Option<u64>; 3]);

impl WatchedLimit {
    /// `most`: what the program can have at most of each.
    fn of(bound: MemoryBound, [resident, rest @ ..]: [Option<u64>; 3]) -> Self {
        let is_part = matches!(bound, MemoryBound::Percent(_));
        let [address_space, data] = rest.map(|most| most.filter(|_| is_part).and_then(|all| bound.bytes(Some(all))));
        Self([bound.bytes(resident), address_space, data])
    }

    /// Whether more than resident memory is limited.
    fn is_of_virtual_sizes(&self) -> bool {
        self.0.iter().skip(1).any(Option::is_some)
    }

    /// The first one that is exceeded by what is used.
    fn exceeded(&self, used: [u64; 3]) -> Option<ExceededLimit> {
        let each = LimitedMemory::ALL.into_iter().zip(self.0).zip(used);
        let mut exceeded = each.filter_map(|((of, limit), used)| {
            limit.filter(|limit| used > *limit).map(|limit| ExceededLimit { limit, used, of })
        });
        exceeded.next()
    }

    /// A tenth less.
    fn lowered(&self) -> Self {
        Self(self.0.map(|limit| limit.map(|limit| limit - limit / 10)))
    }
}

/// What was done while the limits were watched.
#[derive(Debug, Default)]
pub(super) struct LimitOutcome {
    /// The program was told to end.
    pub(super) stopped: Option<StoppedByLimit>,
    /// Snapshots that were written and kept, the oldest first.
    pub(super) snapshots: Vec<PathBuf>,
}

impl LimitOutcome {
    /// The snapshots, as a text; empty if there are none.
    pub(super) fn snapshots_text(&self) -> String {
        let here = std::env::current_dir().unwrap_or_default();
        let shown = |path: &PathBuf| quoted_path(path.strip_prefix(&here).unwrap_or(path));
        match self.snapshots.as_slice() {
            [] => String::new(),
            [only] => shown(only),
            [first, .., last] => {
                format!("{} kept, {} to {}", count(self.snapshots.len() as u64), shown(first), shown(last))
            }
        }
    }
}

/// The thread that watches the limits; it ends with this.
pub(super) struct LimitWatch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<LimitOutcome>>,
}

impl LimitWatch {
    /// Begins to watch, if there are limits.
    pub(super) fn start(
        limits: LimitArgs,
        recording: RecordingHandle,
        captures: CapturePaths,
        child: Arc<Child>,
    ) -> Option<Self> {
        if limits.stop_above.is_none() && limits.snapshot_above.is_none() && limits.snapshot_every.is_none() {
            return None;
        }
        let of_process = ResourceLimits::of(child.pid());
        let most = [memory_at_most(), of_process.address_space, of_process.data];
        let limit = |bound: Option<MemoryBound>| bound.map(|bound| WatchedLimit::of(bound, most));
        let (stop_above, snapshot_above) = (limit(limits.stop_above), limit(limits.snapshot_above));
        let (stop, stopping) = mpsc::channel::<()>();
        let mut watched = WatchedProgram {
            stop_above,
            is_ending: false,
            snapshot_above,
            keep: limits.snapshot_keep,
            recording,
            captures,
            child,
            begun: Instant::now(),
            stopped: None,
            pending: None,
            is_above: false,
            written: VecDeque::new(),
            has_failed: false,
        };
        let watch = move || {
            let mut next = limits.snapshot_every.map(|every| watched.begun + every);
            while stopping.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                watched.look();
                if let Some((due, every)) = next.zip(limits.snapshot_every).filter(|(due, _)| Instant::now() >= *due) {
                    watched.write_snapshot();
                    watched.write_stopped();
                    next = Some((due + every).max(Instant::now()));
                }
            }
            watched.finish_stopped();
            LimitOutcome { stopped: watched.stopped, snapshots: watched.written.into() }
        };
        match thread::Builder::new().name("memtrack-limits".into()).spawn(watch) {
            Ok(thread) => Some(Self { stop: Some(stop), thread: Some(thread) }),
            Err(error) => {
                message::warning(format_args!("the limits are not watched: {error}"));
                None
            }
        }
    }

    /// Ends it; what was done.
    pub(super) fn end(mut self) -> LimitOutcome {
        drop(self.stop.take());
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

/// What the thread knows.
struct WatchedProgram {
    stop_above: Option<WatchedLimit>,
    /// It was above that.
    is_ending: bool,
    snapshot_above: Option<WatchedLimit>,
    keep: NonZeroUsize,
    recording: RecordingHandle,
    captures: CapturePaths,
    child: Arc<Child>,
    begun: Instant,
    stopped: Option<StoppedByLimit>,
    pending: Option<PendingStop>,
    /// The program was above the limit of snapshots, and not clearly below since.
    is_above: bool,
    /// Snapshots that were written and kept, the oldest first.
    written: VecDeque<PathBuf>,
    has_failed: bool,
}

/// The program was told to end; what it held then is to be written.
struct PendingStop {
    stopped: StoppedByLimit,
    /// Whether anybody was told.
    is_sent: bool,
    snapshot: OwnSnapshot,
}

impl WatchedProgram {
    fn look(&mut self) {
        let used = self.used();
        self.stop_above(used);
        if let Some(limit) = self.snapshot_above {
            if limit.exceeded(used).is_some() && !self.is_above {
                self.is_above = true;
                self.write_snapshot();
            } else if limit.lowered().exceeded(used).is_none() {
                self.is_above = false;
            }
        }
        self.write_stopped();
    }

    /// What is used of each, in the order of [`LimitedMemory::ALL`].
    fn used(&self) -> [u64; 3] {
        let mut limits = self.stop_above.iter().chain(&self.snapshot_above);
        let sizes = limits.any(WatchedLimit::is_of_virtual_sizes).then(|| VirtualSizes::of(self.child.pid()));
        let VirtualSizes { address_space, data } = sizes.unwrap_or_default();
        [self.recording.resident_bytes(), address_space, data]
    }

    /// Tells the program to end if it is above that limit. The snapshot is written later: the program would go on to grow.
    fn stop_above(&mut self, used: [u64; 3]) {
        if self.is_ending {
            // What the program starts while it ends.
            let _ = self.recording.terminate_children();
        }
        let Some(exceeded) = self.stop_above.and_then(|limit| limit.exceeded(used)) else { return };
        (self.stop_above, self.is_ending) = (None, true);
        let after = self.begun.elapsed();
        // Which bytes belong to it is settled before, since the program may free what it holds.
        let mut snapshot = OwnSnapshot::ask(&self.recording, &self.captures);
        let is_late = snapshot.wait_until(Instant::now() + SETTLE_LIMIT);
        let is_sent = self.child.signal(libc::SIGTERM);
        // The first process may be a shell, which tells nobody.
        let children = self.recording.terminate_children();
        let stopped = StoppedByLimit { exceeded, after, children, snapshot: None, is_late };
        self.pending = Some(PendingStop { stopped, is_sent: is_sent || children > 0, snapshot });
    }

    /// Writes the snapshot of the moment at which the program was told to end, once every process has answered.
    fn write_stopped(&mut self) {
        if !self.pending.as_mut().is_some_and(|pending| pending.snapshot.wait_until(Instant::now())) {
            self.finish_stopped();
        }
    }

    /// Writes it now, and waits for the answers.
    fn finish_stopped(&mut self) {
        let Some(PendingStop { stopped, is_sent, snapshot }) = self.pending.take() else { return };
        let snapshot = self.keep_snapshot(snapshot.finish());
        if is_sent {
            self.stopped = Some(StoppedByLimit { snapshot, ..stopped });
        }
    }

    /// Writes a snapshot of now. The limit at which the program is ended is watched while processes have not answered.
    fn write_snapshot(&mut self) {
        let mut snapshot = OwnSnapshot::ask(&self.recording, &self.captures);
        while snapshot.wait_until(Instant::now() + LOOK) {
            let used = self.used();
            self.stop_above(used);
        }
        self.keep_snapshot(snapshot.finish());
    }

    /// Writes a snapshot, and removes the oldest if there are too many; gives its path.
    fn keep_snapshot(&mut self, captures: Result<Vec<CopyableCapture>>) -> Option<PathBuf> {
        let written = captures.and_then(|captures| self.write(captures));
        let path = written.as_ref().ok().cloned();
        match written {
            Ok(path) => self.written.push_back(path),
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                message::warning(format_args!("no snapshot was written: {error:#}"));
            }
            Err(_) => {}
        }
        while self.written.len() > self.keep.get() {
            // Somebody may have moved it.
            let _ = self.written.pop_front().map(std::fs::remove_file);
        }
        path
    }

    fn write(&mut self, mut captures: Vec<CopyableCapture>) -> Result<PathBuf> {
        let capture = (self.captures)(0);
        let directory = capture.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        // A number that was removed is not used again, so that the newest has the highest.
        let path =
            snapshot::new_name(directory, capture.as_deref(), self.child.pid().cast_unsigned(), self.written.back());
        let mut out = ReportOutput::unwatched(&path)?;
        let looked = Instant::now();
        snapshot::write(&mut captures, &mut WatchedWriter { out: &mut out, watched: self, looked })?;
        out.finish()?;
        Ok(path)
    }
}

/// Writes, and watches the limit at which the program is ended meanwhile: a snapshot may be large.
struct WatchedWriter<'a> {
    out: &'a mut ReportOutput,
    watched: &'a mut WatchedProgram,
    looked: Instant,
}

impl Write for WatchedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        if self.looked.elapsed() >= LOOK {
            let used = self.watched.used();
            self.watched.stop_above(used);
            self.looked = Instant::now();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
