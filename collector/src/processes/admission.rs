//! Admission of processes that connect: the first process, its later images after an exec, and its children if they are
//! recorded. Each gets shared memory of its own.
//!
//! Invariant: a process has one recording and one number, and separate memory for each of its images. It is
//! identified by the credentials of its socket.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Weak};

use memtrack_format::meta::{Process, TreePosition};
use memtrack_transport::Area;
use memtrack_transport::clock::{ClockPairing, StampingClock, realtime_ns};
use memtrack_transport::handshake::{ForkStart, Hello, send_memory};
use memtrack_transport::layout::{SLOT_COUNTS, python_allocators, ticket};

use crate::processes::memory_offer::{MemoryOffer, first_that_fits, next_offer};
use crate::processes::process_recording::ProcessRecording;
use crate::processes::recorded_children::{RecordedChild, RecordedChildren};
use crate::processes::refusal::{HELLO_LIMIT, is_exhausted};
use crate::recording::describe;
use crate::recording::options::{NativeStacks, RecordingOptions};
use crate::recording::process_tree::ProcessTree;
use crate::session::drain_command::{CommandSender, Connection, DrainCommand};
use crate::sink::{NewChild, OpenSink};
use crate::system::limits::explained;
use crate::system::process_handle::{ProcessHandle, peer};
use crate::system::process_stat;
use crate::system::procfs::{self, ResidentMemory};
use crate::system::task_limits::room_for_tasks;

/// The socket in the recording's directory.
pub(crate) const SOCKET_NAME: &str = "socket";
/// Threads of a process's recording.
const PROCESS_THREADS: u64 = 3;

/// The recordings that admitted processes are given to.
pub(crate) struct RecordingOpeners {
    /// The first process's recording, which is already started.
    pub(crate) first: CommandSender,
    /// Makes the sinks of children; `None`: they are not recorded.
    pub(crate) open: Option<OpenSink>,
    /// Where their recordings are put.
    pub(crate) children: RecordedChildren,
}

/// The state of the server.
pub(crate) struct Admission {
    dir: PathBuf,
    options: RecordingOptions,
    clock: StampingClock,
    openers: RecordingOpeners,
    tree: Arc<ProcessTree>,
    /// Id of this recording, which its captures share.
    tree_id: u64,
    /// Memory that is created before a process connects, so that the process need not wait for it.
    spare: Option<(Area, OwnedFd)>,
    /// Processes by their process id, ended ones included.
    served: HashMap<i32, ServedProcess>,
    /// The next number in the tree.
    next: u32,
    /// Whether a note about a child without a recording was made.
    child_noted: bool,
}

/// A process that is or was served.
#[derive(Clone)]
struct ServedProcess {
    number: u32,
    /// Gone when its recording has ended: as many children may end as there are descriptors, and more.
    handle: Weak<ProcessHandle>,
    commands: CommandSender,
    /// Gone when its recording has ended.
    area: Weak<Area>,
    offer: MemoryOffer,
    /// Its process id, as it says itself: in its own namespace.
    own_pid: i32,
    /// What is known of its program.
    program: Arc<Process>,
    /// When its recording began.
    start_ns: Option<u64>,
}

impl Admission {
    pub(crate) fn new(
        dir: PathBuf,
        options: RecordingOptions,
        openers: RecordingOpeners,
        tree: Arc<ProcessTree>,
    ) -> Self {
        let tree_id = realtime_ns();
        let clock = StampingClock::best();
        Self {
            dir,
            options,
            clock,
            openers,
            tree,
            tree_id,
            spare: None,
            served: HashMap::new(),
            next: 0,
            child_noted: false,
        }
    }

    /// Creates the memory for the next process that connects.
    pub(crate) fn prepare_spare(&mut self) {
        if self.spare.is_none() && (self.served.is_empty() || self.openers.open.is_some()) {
            self.spare = first_that_fits(0, |slots| Area::create(slots, &self.dir)).ok();
        }
    }

    /// Answers one process; a refusal closes its socket.
    pub(crate) fn answer(&mut self, socket: &UnixStream) {
        if !matches!(self.serve(socket), Ok(true)) {
            self.tree.add_refused();
        }
        self.prepare_spare();
    }

    /// Records a process that does not connect, in a memory file that it shares: makes the memory in it. Returns the number
    /// of slots; `None`: there are no further numbers to offer after so many attempts.
    ///
    /// `ready` is called with that number once the process may write into the memory. Reading about the process comes after.
    pub(crate) fn give(
        &mut self,
        pid: i32,
        file: BorrowedFd<'_>,
        attempt: usize,
        ready: &mut dyn FnMut(u32),
    ) -> io::Result<Option<u32>> {
        if attempt >= SLOT_COUNTS.len() {
            return Ok(None);
        }
        let area = first_that_fits(attempt, |slots| Area::create_on(file, slots))?;
        let slots = area.slot_count();
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let offer = MemoryOffer { attempt, ..MemoryOffer::default() };
        let (served, handle) = self.find(pid, offer, || ProcessHandle::of(pid)).ok_or_else(refused)?;
        // From the first: sums are made while it is recorded.
        area.control().began_late.store(1, Relaxed);
        // Without it children cannot connect, and are not recorded.
        area.control().set_socket(self.dir.join(SOCKET_NAME).as_os_str().as_bytes());
        if let Some(library) = &self.options.library {
            area.control().set_library(library.as_os_str().as_bytes());
        }
        let native = self.records_native(pid);
        self.prepare(&area, served.offer, native);
        // Measured before the program may write events: none is earlier than the start.
        let start = ClockPairing::measure(self.clock);
        ready(slots);
        let hello =
            Hello { pid: procfs::own_id(pid).unwrap_or(pid), ppid: procfs::parent(pid).unwrap_or(0), fork: None };
        self.connect((area, handle), pid, &hello, served, native, start);
        Ok(Some(slots))
    }

    /// Notes that a process was refused before its Hello was read, for this reason.
    pub(crate) fn note_refused(&mut self, error: &io::Error) {
        self.tree.add_refused();
        if self.next == 0 {
            self.openers.first.send(DrainCommand::NoRoom(explained(error)));
        } else {
            self.not_recorded(explained(error));
        }
    }

    /// Notes why the first process waits: the reason that is told if it does not get in.
    pub(crate) fn note_waiting(&self, error: &io::Error) {
        if self.next == 0 {
            self.openers.first.send(DrainCommand::NoRoom(explained(error)));
        }
    }

    /// Adds a note for the first such child; the summary has their number.
    fn not_recorded(&mut self, error: impl std::fmt::Display) {
        if !std::mem::replace(&mut self.child_noted, true) {
            self.tree.note(format!("a child process was not recorded, and later ones may not be either: {error}"));
        }
    }

    fn serve(&mut self, socket: &UnixStream) -> io::Result<bool> {
        socket.set_read_timeout(Some(HELLO_LIMIT))?;
        socket.set_write_timeout(Some(HELLO_LIMIT))?;
        let pid = peer(socket)?;
        let received = Hello::receive(socket);
        let (hello, memory) = received.inspect_err(|error| {
            if is_exhausted(error) {
                self.not_recorded(explained(error));
            }
        })?;
        if let Some(memory) = memory {
            return self.adopt(socket, pid, &hello, memory.as_fd());
        }
        if self.is_own_child(pid, &hello) {
            self.tree.skip_child();
            return Ok(true);
        }
        let Some(offer) = self.find_offer(pid, &hello) else { return Ok(false) };
        // Create the memory before the recording is started, which would wait for the end of the process.
        let (area, memory) = match self.memory(offer.attempt, hello.fork.is_some()) {
            Ok(made) => made,
            Err(error) => {
                self.has_no_memory(pid, &error);
                return Err(error);
            }
        };
        let Some((served, handle)) = self.find(pid, offer, || ProcessHandle::of(pid)) else { return Ok(false) };
        let slots = area.slot_count();
        let native = self.records_native(pid);
        self.prepare(&area, served.offer, native);
        self.connect((area, handle), pid, &hello, served, native, ClockPairing::measure(self.clock));
        send_memory(socket, memory.as_fd(), slots)?;
        Ok(true)
    }

    /// Records a forked child that brings its memory, and may have ended. A refusal stands in the memory.
    fn adopt(&mut self, socket: &UnixStream, pid: i32, hello: &Hello, memory: BorrowedFd<'_>) -> io::Result<bool> {
        let Some((fork, begun)) = hello.fork.and_then(|fork| Some((fork, fork.begun?))) else { return Ok(false) };
        let adopted = self.record_adopted((socket, pid), hello, begun, || Area::adopt(memory, fork.slots));
        if !matches!(adopted, Ok(true)) {
            Area::refuse(memory, fork.slots);
        }
        adopted
    }

    fn record_adopted(
        &mut self,
        (socket, pid): (&UnixStream, i32),
        hello: &Hello,
        begun: ForkStart,
        map: impl FnOnce() -> io::Result<Area>,
    ) -> io::Result<bool> {
        let Some(offer) = self.find_offer(pid, hello) else { return Ok(false) };
        let area = map().inspect_err(|error| self.has_no_memory(pid, error))?;
        let start = self.start_of(pid, hello, begun);
        let handle = || ProcessHandle::of_peer(socket, pid, start.monotonic_ns);
        let Some((served, handle)) = self.find(pid, offer, handle) else { return Ok(false) };
        area.control().adopted.store(1, Relaxed);
        let native = area.control().native.load(Relaxed) == 1;
        self.connect((area, handle), pid, hello, served, native, start);
        Ok(true)
    }

    /// When a forked child says that it began: after its parent. Otherwise its clocks are others (time namespaces), and it is now.
    fn start_of(&self, pid: i32, hello: &Hello, begun: ForkStart) -> ClockPairing {
        let now = ClockPairing::measure(self.clock);
        let since_ns = self.parent(pid, hello).and_then(|parent| parent.start_ns).unwrap_or(0);
        if (since_ns..=now.monotonic_ns).contains(&begun.start.monotonic_ns) { begun.start } else { now }
    }

    /// Begins to drain this memory; `start`: a moment before its first event.
    fn connect(
        &mut self,
        (area, handle): (Area, Arc<ProcessHandle>),
        pid: i32,
        hello: &Hello,
        mut served: ServedProcess,
        native: bool,
        start: ClockPairing,
    ) {
        let area = Arc::new(area);
        served.area = Arc::downgrade(&area);
        served.own_pid = hello.pid;
        served.start_ns.get_or_insert(start.monotonic_ns);
        let parent = hello.fork.and_then(|_| self.parent(pid, hello));
        let parent = parent.map(|parent| Arc::clone(&parent.program));
        served.program = match parent {
            Some(program) => {
                let own = describe::forked_program(pid, &program);
                // Another process may have its number by now.
                if handle.has_ended() { program } else { own }
            }
            None => Arc::new(describe::program(pid)),
        };
        let began_late = area.control().began_late.load(Relaxed) == 1;
        let process = Process { began_late, ..self.describe(pid, hello, &served, native, start) };
        let connection = self.connection((area, handle), pid, hello, &served, process);
        served.commands.send(DrainCommand::Connected(Box::new(connection)));
        self.served.insert(pid, served);
    }

    fn connection(
        &self,
        (area, handle): (Arc<Area>, Arc<ProcessHandle>),
        pid: i32,
        hello: &Hello,
        served: &ServedProcess,
        process: Process,
    ) -> Connection {
        let MemoryOffer { base, replaces, .. } = served.offer;
        let begun = hello.fork.and_then(|fork| fork.begun);
        let name = match begun {
            Some(begun) => Some(thread_name(&begun)),
            None => procfs::thread(pid, pid).name(),
        };
        let mut resident = match begun {
            // Opened first: it was still the process's own if that lives now.
            Some(begun) => {
                let opened = ResidentMemory::of(pid);
                opened.said(begun.resident, handle.has_ended())
            }
            None => ResidentMemory::of(pid),
        };
        // A forked child already has the resident pages of the library.
        if hello.fork.is_none() {
            resident.read_library_memory(pid);
        }
        Connection { area, pid, handle, own_pid: hello.pid, name, resident, clock: self.clock, process, base, replaces }
    }

    fn describe(&self, pid: i32, hello: &Hello, served: &ServedProcess, native: bool, start: ClockPairing) -> Process {
        let is_new = served.offer.replaces.is_none();
        let parent = self.served.get(&hello.ppid).filter(|_| is_new && served.number > 0);
        Process {
            tree: TreePosition {
                recording: Some(self.tree_id),
                number: self.openers.open.is_some().then(|| served.number.into()),
                parent: parent.map(|parent| parent.number.into()),
            },
            fork_ticket: hello.fork.map(|fork| fork.ticket),
            ..describe::at_start(&served.program, (pid, hello.ppid), self.clock, start, &self.options, native)
        }
    }

    /// A process that connected before and has not ended, with its shared memory and its handle. An ended process with the same
    /// pid does not count.
    fn known(&self, pid: i32) -> Option<(&ServedProcess, Arc<Area>, Arc<ProcessHandle>)> {
        let served = self.served.get(&pid)?;
        let (area, handle) = (served.area.upgrade()?, served.handle.upgrade()?);
        (!handle.has_ended()).then_some((served, area, handle))
    }

    /// The process that a fork child says it was forked by.
    fn parent(&self, pid: i32, hello: &Hello) -> Option<&ServedProcess> {
        if hello.pid == pid {
            return self.served.get(&hello.ppid);
        }
        // The first of another namespace, whose parent is in this one.
        let outer = self.served.get(&hello.ppid).filter(|served| served.own_pid == hello.ppid);
        // Where the number may be one of several.
        let mut found = self.served.values().filter(|served| served.own_pid == hello.ppid);
        outer.or_else(|| found.next().filter(|_| found.next().is_none()))
    }

    /// Whether a child that connects for the first time runs memtrack, as the reader of a capture that the program reads: what
    /// that allocates is none of the program's.
    fn is_own_child(&self, pid: i32, hello: &Hello) -> bool {
        self.next > 0 && hello.fork.is_none() && self.known(pid).is_none() && procfs::runs_memtrack(pid)
    }

    /// The memory to offer the process, if it is to be served.
    fn find_offer(&self, pid: i32, hello: &Hello) -> Option<MemoryOffer> {
        if let Some((served, area, _)) = self.known(pid) {
            return next_offer(&area, served.offer).filter(|_| hello.fork.is_none());
        }
        let is_expected = if self.next == 0 { self.tree.may_be_first(pid) } else { self.openers.open.is_some() };
        let slots = hello.fork.map_or(SLOT_COUNTS[0], |fork| fork.slots);
        let attempt = SLOT_COUNTS.iter().position(|&count| count == slots)?;
        is_expected.then(|| MemoryOffer { attempt, ..MemoryOffer::default() })
    }

    /// Reports that there is no shared memory for the process, which runs on unrecorded.
    fn has_no_memory(&mut self, pid: i32, error: &io::Error) {
        let reason = format!("cannot create shared memory: {}", explained(error));
        match self.known(pid) {
            Some((served, ..)) => served.commands.send(DrainCommand::NoRoom(reason)),
            None if self.next == 0 => self.openers.first.send(DrainCommand::NoRoom(reason)),
            None => self.not_recorded(reason),
        }
    }

    /// The served process, with its handle; `None` if it is refused.
    fn find(
        &mut self,
        pid: i32,
        offer: MemoryOffer,
        handle: impl FnOnce() -> ProcessHandle,
    ) -> Option<(ServedProcess, Arc<ProcessHandle>)> {
        match self.known(pid) {
            Some((served, _, handle)) => {
                Some((ServedProcess { area: Weak::new(), offer, own_pid: pid, ..served.clone() }, handle))
            }
            None => {
                let handle = Arc::new(handle());
                Some((self.admit_new(pid, offer, &handle)?, handle))
            }
        }
    }

    /// Admits a process that connects for the first time.
    fn admit_new(&mut self, pid: i32, offer: MemoryOffer, handle: &Arc<ProcessHandle>) -> Option<ServedProcess> {
        let number = self.next;
        if number == 0 && !self.tree.may_be_first(pid) {
            return None;
        }
        // A child that cannot be recorded has its number for itself, too: its file may have been made.
        self.next += 1;
        let commands = if number == 0 { self.openers.first.clone() } else { self.start(pid, number)? };
        if number == 0 {
            self.tree.add_first();
        }
        Some(ServedProcess {
            number,
            handle: Arc::downgrade(handle),
            commands,
            area: Weak::new(),
            offer,
            own_pid: pid,
            program: Arc::default(),
            start_ns: None,
        })
    }

    /// Starts the recording of a child.
    fn start(&mut self, pid: i32, number: u32) -> Option<CommandSender> {
        let open = self.openers.open.as_mut()?;
        if let Err(left) = room_for_tasks(PROCESS_THREADS) {
            self.not_recorded(format!(
                "its recording takes {PROCESS_THREADS} threads, and no more than {left} processes and threads may still be \
                 started; raise the limit (ulimit -u, pids.max)"
            ));
            return None;
        }
        let sink = open(NewChild { pid, number }).map_err(|error| error.to_string());
        let start = |sink| ProcessRecording::start(self.options.clone(), sink, Arc::clone(&self.tree), true);
        match sink.and_then(|sink| start(sink).map_err(|error| error.to_string())) {
            Ok((recording, threads)) => {
                threads.wait();
                let commands = recording.commands().clone();
                self.tree.add_child();
                self.openers.children.add(RecordedChild { pid, number, recording });
                Some(commands)
            }
            Err(error) => {
                self.not_recorded(error);
                None
            }
        }
    }

    /// A forked child can use no other number of slots.
    fn memory(&mut self, attempt: usize, is_fork: bool) -> io::Result<(Area, OwnedFd)> {
        let most = SLOT_COUNTS.get(attempt).copied().unwrap_or(0);
        let fits = |slots| if is_fork { slots == most } else { slots <= most };
        match self.spare.take_if(|(area, _)| fits(area.slot_count())) {
            Some(spare) => Ok(spare),
            None if is_fork => Area::create(most, &self.dir),
            None => first_that_fits(attempt, |slots| Area::create(slots, &self.dir)),
        }
    }

    /// Whether native stacks are recorded of the program that the process runs now.
    fn records_native(&self, pid: i32) -> bool {
        match self.options.native {
            NativeStacks::Never => false,
            NativeStacks::WithoutPython => procfs::runs_python(pid) == Some(false),
            NativeStacks::Always => true,
        }
    }

    fn prepare(&self, area: &Area, offer: MemoryOffer, native: bool) {
        let control = area.control();
        control.adopted.store(1, Relaxed);
        control.timestamps.store(self.options.has_times().into(), Relaxed);
        let distance = self.options.sample_bytes.map_or(0, NonZeroU64::get);
        control.first_sample_bytes.store(distance, Relaxed);
        control.sample_bytes.store(distance, Relaxed);
        control.sample_varies.store(self.options.sample_rate.is_some().into(), Relaxed);
        control.native.store(native.into(), Relaxed);
        control.frame_marks.store(self.options.frame_marks.into(), Relaxed);
        let python = if self.options.python_allocators { python_allocators::WANTED } else { python_allocators::OFF };
        control.python_allocators.store(python, Relaxed);
        let pictured = self.options.pictures.as_ref().is_some_and(|pictures| pictures.at_end);
        control.pictured_at_end.store(pictured.into(), Relaxed);
        control.follow.store(self.openers.open.is_some().into(), Relaxed);
        control.clock.store(self.clock as u32, Relaxed);
        control.collector_pid.store(std::process::id().cast_signed(), Relaxed);
        control.collector_started.store(process_stat::own_start().unwrap_or(0), Relaxed);
        let first = offer.replaces.unwrap_or(0) << 16 | ticket::COLLECTOR;
        control.ticket.0.store(first, SeqCst);
    }
}

/// The name of a forked child's thread, as it says.
fn thread_name(begun: &ForkStart) -> String {
    let name = begun.name.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}
