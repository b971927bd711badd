//! The recording of one process image: rounds of draining and observing, rests while it is idle, and its end.
//!
//! Invariant: the sink gets the data of rounds in their order; and when [`Session::end`] returns for a process that has
//! ended, all its published records have been handed over.

pub(crate) mod active_threads;
pub(crate) mod allocation_counts;
pub(crate) mod busy_writers;
pub(crate) mod drain_command;
pub(crate) mod drain_thread;
pub(crate) mod observer;
pub(crate) mod sample_rate;
pub(crate) mod slot_owners;
pub(crate) mod slot_reader;
pub(crate) mod touched_pages;
pub(crate) mod waker;

mod due_work;
mod early_end;
mod exec_watch;
mod moments;
mod panic;
mod pictures;
mod resident;
mod resident_peak;
mod slots;
mod watermarks;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use memtrack_format::meta::Process;
use memtrack_transport::clock::{ClockPairing, StampingClock, monotonic_ns};
use memtrack_transport::layout::{image, state};
use memtrack_transport::{Area, futex};

use crate::maps::MapsScheduler;
use crate::pictures::PictureScheduler;
use crate::recording::describe;
use crate::recording::options::RecordingOptions;
use crate::recording::recording_progress::RecordingProgress;
use crate::recording::summary::ProcessExit;
use crate::resident::AccountScheduler;
use crate::session::active_threads::ActiveThreads;
use crate::session::allocation_counts::AllocationCounts;
use crate::session::drain_command::Connection;
use crate::session::observer::Observer;
use crate::session::sample_rate::SampleRate;
use crate::session::slot_owners::SlotOwners;
use crate::session::slot_reader::SlotReader;
use crate::session::watermarks::Watermarks;
use crate::sink::sink_queue::SinkQueue;
use crate::system::memory_limit::MemoryLimitWatch;
use crate::system::process_end::{EndWatch, ProcessEnd};
use crate::system::process_handle::ProcessHandle;
use crate::system::procfs::ProcessorTimes;
use crate::system::thread_ids::ThreadIds;

use early_end::{EarlyEnd, last_alive_ns};
use exec_watch::ExecWatch;

/// Without events for this long, in nanoseconds, the process counts as idle.
const IDLE_NS: u64 = 2_000_000;
/// Interval of checking the threads, in nanoseconds.
const CHECK_NS: u64 = 20_000_000;
/// Interval of looking for threads that record nothing, in nanoseconds.
const IDLE_CHECK_NS: u64 = 100_000_000;
/// Interval of checking whether the process is alive, in nanoseconds.
const LIFE_NS: u64 = 10_000_000;
/// After this it is not waited for that the target is registered for barriers: whoever should have done that has ended.
const REGISTERED_NS: u64 = 1_000_000_000;
/// Interval of reading the high-water mark of resident memory, in nanoseconds: shortest and longest.
const SHORTEST_PEAK_NS: u64 = 1_000_000;
const LONGEST_PEAK_NS: u64 = 100_000_000;
/// Age at which memtrack's library is in use in a process, in nanoseconds.
const LIBRARY_IN_USE_NS: u64 = 8_000_000;
/// Interval of checkpoints while somebody follows the capture, in nanoseconds.
const FOLLOWED_CHECKPOINT_NS: u64 = 100_000_000;
/// The longest sleep while the process is idle.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// Maximum number of rounds at the end of a process, in case a target goes on writing after its end.
const LAST_ROUNDS: u32 = 1000;

/// One tracked process image.
#[derive(Debug)]
pub(crate) struct Session {
    area: Arc<Area>,
    handle: Arc<ProcessHandle>,
    pid: i32,
    /// Its processor times when this image began.
    before: ProcessorTimes,
    /// The latest known processor time.
    cpu_ns: Option<u64>,
    base: u32,
    clock: StampingClock,
    process: Process,
    /// Where others read it.
    progress: Arc<RecordingProgress>,
    /// Metadata of the process's earlier images, whose counts continue.
    earlier: Process,
    slot_readers: Vec<SlotReader>,
    threads: SlotOwners,
    active: ActiveThreads,
    counts: AllocationCounts,
    sample_rate: SampleRate,
    observer: Observer,
    /// Where native stacks are recorded.
    maps: Option<MapsScheduler>,
    accounts: AccountScheduler,
    pictures: PictureScheduler,
    memory_limit: MemoryLimitWatch,
    end_watch: EndWatch,
    exec_watch: ExecWatch,
    end_reason: fn(&ProcessEnd) -> Option<String>,
    told_cut_off: fn(&str),
    sleep: Duration,
    checkpoint_ns: u64,
    changed: bool,
    dirty: bool,
    watermarks: Watermarks,
    last_event_ns: u64,
    last_checkpoint_ns: u64,
    last_check_ns: u64,
    next_idle_check_ns: u64,
    next_life_ns: u64,
    /// When the process was last known to be alive.
    alive_ns: u64,
    /// When it ended, if it had when it connected, and that is known.
    ended_at: Option<ClockPairing>,
    begun_ns: u64,
    next_peak_ns: u64,
    /// Until when to read the resident memory of memtrack's library, which grows while recording begins.
    library_reads_end_ns: u64,
    /// The process has ended.
    over: bool,
    /// The last drain is done.
    ended: bool,
    begun: bool,
}

/// How soon the next round is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainPace {
    /// Rings fill quickly, or the process may be killed at any moment: the next round comes soon.
    Fast,
    /// Events flow.
    Steady,
    /// No events for a while.
    Idle,
    /// The process has ended.
    Over,
}

impl Session {
    /// Begins the recording of an image. `earlier`: the metadata of the process's previous image.
    pub(crate) fn begin(
        connection: Connection,
        earlier: Process,
        options: &RecordingOptions,
        queue: &SinkQueue,
        progress: &Arc<RecordingProgress>,
    ) -> Self {
        let Connection { area, pid, handle, own_pid, name, resident, clock, process, base, replaces } = connection;
        if let Some(ticket) = replaces {
            queue.replaced(ticket);
        }
        progress.set_handle(&handle);
        progress.set_process(&process);
        queue.process(process.clone());
        queue.checkpoint();
        let interval = nanoseconds(options.snapshot_interval).max(1_000_000);
        let now = monotonic_ns();
        let mut observer = Observer::new(resident, clock, interval);
        if let Some(name) = name {
            observer.thread(own_pid, name);
        }
        // A forked child may have: what has its process id now is another process.
        let has_ended = handle.has_ended();
        // Before the first tick, which overwrites a time that the process has left.
        let early_end = if has_ended { EarlyEnd::of(area.control(), &process, clock) } else { EarlyEnd::none(now) };
        if let Some(end) = early_end.end {
            observer.has_ended_at(end);
        }
        // One at the start, so that the shortest run has resident memory to show.
        observer.observe_first(&area);
        let is_fork = process.fork_ticket.is_some();
        let library_reads_end_ns = if is_fork { 0 } else { now.saturating_add(LIBRARY_IN_USE_NS) };
        let before = if has_ended { ProcessorTimes::default() } else { ProcessorTimes::of(pid) };
        let native = area.control().native.load(Acquire) == 1;
        let accounts = AccountScheduler::new(pid, options.accounts, &area, now);
        let pictures = PictureScheduler::new(options.pictures.clone(), pid, &area, now);
        let maps = if native && !has_ended { MapsScheduler::start(pid, &area, &handle, now) } else { None };
        Self {
            threads: SlotOwners::new(&handle, ThreadIds::new(pid, own_pid)),
            area,
            handle,
            pid,
            before,
            // A short process may end before the next reading.
            cpu_ns: Some(before.own_ns).filter(|ns| *ns > 0),
            base,
            clock,
            process,
            progress: Arc::clone(progress),
            earlier,
            slot_readers: Vec::new(),
            active: ActiveThreads::default(),
            counts: AllocationCounts::default(),
            sample_rate: SampleRate::new(options.sample_rate.map(NonZeroU32::get), now),
            observer,
            maps,
            accounts,
            pictures,
            memory_limit: if has_ended { MemoryLimitWatch::default() } else { MemoryLimitWatch::of(pid) },
            end_watch: if has_ended { EndWatch::default() } else { EndWatch::of(pid) },
            exec_watch: ExecWatch::default(),
            end_reason: options.end_reason,
            told_cut_off: options.cut_off,
            sleep: Duration::from_nanos(interval).min(LONGEST_SLEEP),
            checkpoint_ns: nanoseconds(options.checkpoint),
            changed: false,
            dirty: false,
            watermarks: Watermarks::default(),
            last_event_ns: now,
            last_checkpoint_ns: now,
            last_check_ns: 0,
            next_idle_check_ns: now,
            next_life_ns: if has_ended { now } else { now.saturating_add(LIFE_NS) },
            alive_ns: early_end.alive_ns,
            ended_at: early_end.end,
            begun_ns: now,
            next_peak_ns: now,
            library_reads_end_ns,
            over: false,
            ended: false,
            begun: false,
        }
    }

    /// Whether the target has started to record.
    pub(crate) fn has_begun(&self) -> bool {
        if self.ended { self.begun } else { self.area.control().state.load(Acquire) != state::READY }
    }

    /// Whether the process has ended, whatever its recording has.
    pub(crate) fn process_has_ended(&self) -> bool {
        self.handle.has_ended()
    }

    /// One round: takes a ticket, drains, and does periodic work that is due.
    pub(crate) fn round(&mut self, queue: &mut SinkQueue) -> DrainPace {
        // Where the order is followed, once more after the last record: it may be of a thread that had taken its ticket
        // before the last one that was taken here.
        let followed = (self.changed || self.watermarks.is_due()) && queue.wants_watermarks();
        self.round_with(followed || self.observer.is_behind(&self.area), queue)
    }

    fn round_with(&mut self, observe: bool, queue: &mut SinkQueue) -> DrainPace {
        let now = monotonic_ns();
        self.area.control().rounds.0.fetch_add(1, Relaxed);
        self.account(now, queue);
        self.find_used_slots();
        let checkpoint = now.saturating_sub(self.last_checkpoint_ns) >= self.checkpoint_interval(now);
        // While the target is being registered, only a slow barrier reaches it, which would delay the drain.
        let waits = !self.over && !self.is_registration_over() && now.saturating_sub(self.begun_ns) < REGISTERED_NS;
        let marks = checkpoint && !waits && (self.watermarks.is_due() || self.observer.has_waiting());
        let ticket = (observe || marks).then(|| self.observer.observe(&self.area, now));
        let marked = ticket.filter(|_| marks || (!waits && queue.wants_watermarks()));
        let watermark = marked.map(|ticket| (ticket, self.busy()));
        if let Some(maps) = &mut self.maps {
            maps.round(&self.area, now, queue.wants_watermarks(), queue);
        }
        let freed = self.drain(checkpoint || queue.wants_watermarks(), queue);
        // A thread may have recorded since the ticket was taken.
        self.watermarks.drained(self.changed, watermark.is_some());
        self.pass_watermark(watermark, now, queue);
        if self.changed {
            self.last_event_ns = now;
            self.read_processor_time();
        }
        self.look_at_samples(now, queue);
        self.do_due_work(now, checkpoint, queue);
        self.pace(now, freed)
    }

    /// Sleeps until the target records again, a command comes, or a snapshot is due. `pending`: whether a command waits.
    pub(crate) fn sleep(&mut self, queue: &mut SinkQueue, pending: impl Fn() -> bool) {
        // The Arc keeps the word while self is used.
        let area = Arc::clone(&self.area);
        let control = area.control();
        if control.sleeping.0.load(SeqCst) == 0 {
            // At its next event, every thread finds that it is not the last writer, leaves its fast path and sees the
            // `sleeping` word. Events recorded before that are drained now; one event of each thread may come too late,
            // and is drained after the sleep.
            control.sleeping.0.store(1, SeqCst);
            self.round_with(true, queue);
            if self.changed || pending() {
                control.sleeping.0.store(0, SeqCst);
                return;
            }
        }
        // A program that is not recorded, after an exec, may run for long.
        let sleep = if control.image.load(Acquire) == image::IN_EXEC { LONGEST_SLEEP } else { self.sleep };
        if !pending() {
            futex::wait(&control.sleeping.0, 1, sleep);
        }
        if control.sleeping.0.load(SeqCst) != 0 {
            let now = monotonic_ns();
            self.observer.observe_idle(&self.area, now);
            self.read_resident_peak(now);
            self.account(now, queue);
        }
    }

    /// Ends the recording of a process, which has ended or runs on: drains the rest. Returns the number of children that it
    /// announced; 0 at later calls.
    pub(crate) fn end(&mut self, queue: &mut SinkQueue) -> u32 {
        if std::mem::replace(&mut self.ended, true) {
            return 0;
        }
        self.last_picture(queue);
        self.last_account(queue);
        self.begun = self.area.control().state.swap(state::CLOSED, SeqCst) != state::READY;
        self.find_used_slots();
        self.threads.find_new(&self.area, self.slot_readers.len() as u32, &mut self.observer);
        let last = self.observer.observe(&self.area, monotonic_ns());
        if let Some(name) = self.handle.name_at_end() {
            self.threads.note_last_name(name, &mut self.observer);
        }
        let end = self.ended_at.unwrap_or_else(|| ClockPairing::measure(self.clock));
        if let Some(maps) = &mut self.maps {
            maps.end(&self.area, queue);
        }
        for _ in 0..LAST_ROUNDS {
            if self.drain(true, queue) == 0 && !self.changed {
                break;
            }
        }
        self.counts.note_changes(&self.area, &mut self.observer);
        self.observer.hand_over(queue);
        self.watermarks.skip_to(last, Vec::new(), queue);
        self.read_processor_time();
        self.note_early_end();
        let (cpu_ns, resident_peak) = (self.cpu_ns, self.resident_peak());
        let (record_bytes, collector_cpu_ns) = (Some(queue.record_bytes), queue.processor_ns());
        let mut known = describe::at_end(&self.area, &self.process, end, &self.earlier);
        known.end.alive_ns =
            self.handle.has_ended().then(|| last_alive_ns(self.area.control(), self.alive_ns, end.monotonic_ns));
        // The image after an exec has connected and could not map its memory, for want of a descriptor, for example.
        known.ended_by_exec |= !self.begun && self.base > 0;
        let ended = known.end.alive_ns.and_then(|_| self.end_watch.end(&self.handle, self.progress.ends_itself()));
        let exit_status = ended.as_ref().and_then(ProcessEnd::shell_status);
        let end_reason = ended.as_ref().and_then(self.end_reason).map(String::into_bytes);
        let news = Process { exit_status, end_reason, cpu_ns, record_bytes, collector_cpu_ns, resident_peak, ..known };
        self.update_process(news, queue);
        queue.checkpoint();
        self.area.control().children.load(SeqCst)
    }

    /// Reads the processor time.
    fn read_processor_time(&mut self) {
        self.cpu_ns = self.handle.processor_ns().max(self.cpu_ns);
    }

    /// Adds what the system reported when the process was waited for.
    pub(crate) fn has_exited(&mut self, exited: &ProcessExit, queue: &SinkQueue) {
        if let Some(peak) = exited.resident_peak {
            self.observer.note_peak(&self.area, peak);
        }
        // The process may have been reaped before its end was noticed here.
        if let Some(name) = exited.name.as_ref().filter(|name| !self.threads.has_last_name(name)) {
            self.observer.observe(&self.area, monotonic_ns());
            self.threads.note_last_name(name.clone(), &mut self.observer);
            self.observer.hand_over(queue);
        }
        let news = Process {
            exit_status: Some(exited.status),
            end_reason: exited.reason.as_ref().map(|reason| reason.clone().into_bytes()),
            cpu_ns: exited.cpu_ns,
            resident_peak: self.resident_peak(),
            ..Process::default()
        };
        self.update_process(news, queue);
    }

    /// Changes the distance between samples, if there are too many or few.
    fn look_at_samples(&mut self, now: u64, queue: &SinkQueue) {
        let distance = self.sample_rate.look(&self.area, self.slot_readers.len() as u32, now);
        // The metadata has the largest.
        if distance > self.process.sample_bytes {
            self.update_process(Process { sample_bytes: distance, ..Process::default() }, queue);
        }
    }

    /// Updates the metadata of the process, and passes the changes to the sink.
    pub(crate) fn update_process(&mut self, news: Process, queue: &SinkQueue) {
        self.process.update(&news.encode());
        self.progress.set_process(&self.process);
        queue.process(news);
    }

    /// Its processor times when this image began.
    pub(crate) fn before(&self) -> ProcessorTimes {
        self.before
    }

    /// Resident memory, without memtrack's own; 0 if it is not known.
    pub(crate) fn resident_bytes(&mut self) -> u64 {
        let now = self.observer.resident_now(&self.area, monotonic_ns());
        self.progress.set_reading(self.observer.reading());
        now
    }

    /// The metadata of the process.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Takes out a message for the user about names or pictures of objects that could not be read; no records are missing.
    pub(crate) fn take_warning(&mut self) -> Option<String> {
        self.maps.as_mut().and_then(MapsScheduler::take_error).or_else(|| self.pictures.take_warning())
    }

    /// Messages for the user about lost records.
    pub(crate) fn notes(&self) -> Vec<String> {
        let note = |slot_reader: &SlotReader| {
            let reason = slot_reader.given_up()?;
            let stream = slot_reader.stream();
            Some(format!("later records of stream {stream} are lost: its shared memory was damaged ({reason})"))
        };
        self.slot_readers.iter().filter_map(note).collect()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
