//! Answering processes that connect: one is served, its later images after an exec too, all others are refused.
//!
//! Invariant: whoever connects gets an answer at once (the shim waits for it in its constructor), whatever the draining
//! thread is doing; a refusal is a closed socket.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Sender;
use memtrack_transport::Area;
use memtrack_transport::clock::Clock;
use memtrack_transport::handshake::{Hello, send_memory};
use memtrack_transport::layout::{SLOT_COUNTS, image, python_allocators, state, ticket};

use crate::bell::Bell;
use crate::collect::Event;
use crate::collector::Options;
use crate::describe;
use crate::proc;
use crate::session::Connection;
use crate::summary::Error;

/// A socket's address holds this many bytes of a path.
const MAX_PATH: usize = 107;
/// A process that has connected says who it is within this time.
const HELLO_LIMIT: Duration = Duration::from_millis(500);
/// Before somebody who could not be let in is tried again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What the server shares with the rest of the collector.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// The only process to serve; 0: the first that connects.
    pub(crate) expected: AtomicI32,
    /// Processes that were refused.
    pub(crate) refused: AtomicU32,
}

/// The running server.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// Closing it ends the thread.
    stop: UnixStream,
    thread: JoinHandle<()>,
}

impl Server {
    /// Listens in `dir`, which is made if it does not exist.
    pub(crate) fn start(
        dir: &Path,
        options: Options,
        events: Sender<Event>,
        bell: Arc<Bell>,
        counters: Arc<Counters>,
    ) -> Result<Self, Error> {
        let path = dir.join("socket");
        let len = path.as_os_str().as_bytes().len();
        if len > MAX_PATH {
            return Err(Error::LongPath { path, len });
        }
        let failed = |source| Error::Socket { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let desk = Desk {
            dir: dir.to_owned(),
            options,
            clock: Clock::best(),
            events,
            bell,
            counters,
            spare: None,
            served: None,
        };
        let thread = std::thread::Builder::new()
            .name("memtrack-accept".into())
            .spawn(move || desk.run(&listener, &stopped))
            .map_err(Error::Thread)?;
        Ok(Self { path, stop, thread })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Stops listening.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // It does not panic; and nothing depends on it any more.
        let _ = self.thread.join();
        // The directory goes with the recording anyway.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The server's thread.
struct Desk {
    dir: PathBuf,
    options: Options,
    clock: Clock,
    events: Sender<Event>,
    bell: Arc<Bell>,
    counters: Arc<Counters>,
    /// Made before anybody asks, so that nobody waits for it.
    spare: Option<(Area, OwnedFd)>,
    served: Option<Served>,
}

/// The process that is served.
struct Served {
    pid: i32,
    area: Arc<Area>,
    place: Place,
}

/// What a process is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// Index of the first number of slots to try.
    attempt: usize,
    base: u32,
    replaces: Option<u64>,
}

impl Desk {
    fn run(mut self, listener: &UnixListener, stopped: &UnixStream) {
        self.spare = self.make(0).ok();
        while wait(listener, stopped) {
            let Ok((socket, _)) = listener.accept() else {
                // Out of descriptors, say: it waits in line meanwhile.
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if !matches!(self.serve(&socket), Ok(true)) {
                self.counters.refused.fetch_add(1, Relaxed);
            }
        }
    }

    /// Answers one process; `false` and errors: refuses it by closing its socket.
    fn serve(&mut self, socket: &UnixStream) -> io::Result<bool> {
        socket.set_read_timeout(Some(HELLO_LIMIT))?;
        socket.set_write_timeout(Some(HELLO_LIMIT))?;
        let pid = peer(socket)?;
        let hello = Hello::receive(socket)?;
        let Some(place) = self.place(pid) else { return Ok(false) };
        let made = if place.attempt == 0 { self.spare.take() } else { None };
        let (area, memory) = match made.map_or_else(|| self.make(place.attempt), Ok) {
            Ok(made) => made,
            Err(error) => {
                self.tell(Event::NoMemory(error.to_string()));
                return Err(error);
            }
        };
        let area = Arc::new(area);
        self.prepare(&area, place);
        self.served = Some(Served { pid, area: Arc::clone(&area), place });
        self.bell.watch(Arc::clone(&area));
        let slots = area.slot_count();
        let same_namespace = hello.pid == pid;
        let process = describe::at_start(pid, hello.ppid, self.clock, &self.options);
        let Place { base, replaces, .. } = place;
        let name = same_namespace.then(|| proc::thread(pid, pid)).and_then(proc::Thread::name);
        let connection = Connection { area, pid, same_namespace, name, clock: self.clock, process, base, replaces };
        self.tell(Event::Connected(Box::new(connection)));
        send_memory(socket, memory.as_fd(), slots)?;
        Ok(true)
    }

    /// What to offer to this process, if anything.
    fn place(&self, pid: i32) -> Option<Place> {
        let Some(served) = &self.served else {
            let expected = self.counters.expected.load(Acquire);
            return (expected == 0 || expected == pid).then(Place::default);
        };
        let control = served.area.control();
        if served.pid != pid {
            None
        } else if control.state.load(Acquire) == state::READY {
            // It could not map what it was offered.
            let attempt = served.place.attempt + 1;
            (attempt < SLOT_COUNTS.len()).then_some(Place { attempt, ..served.place })
        } else if control.image.load(Acquire) == image::IN_EXEC {
            let base = served.place.base.saturating_add(served.area.slot_count());
            let last = ticket::sequence(control.ticket.0.load(SeqCst));
            Some(Place { attempt: 0, base, replaces: Some(last.wrapping_add(1)) })
        } else {
            None
        }
    }

    fn make(&self, attempt: usize) -> io::Result<(Area, OwnedFd)> {
        let counts = SLOT_COUNTS.get(attempt..).unwrap_or_default();
        let mut last = io::ErrorKind::OutOfMemory.into();
        for &slots in counts {
            match Area::create(slots, &self.dir) {
                Ok(made) => return Ok(made),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn prepare(&self, area: &Area, place: Place) {
        let control = area.control();
        control.timestamps.store(self.options.timestamps.into(), Relaxed);
        control.frame_marks.store(self.options.frame_marks.into(), Relaxed);
        let python = if self.options.python_allocators { python_allocators::WANTED } else { python_allocators::OFF };
        control.python_allocators.store(python, Relaxed);
        control.clock.store(self.clock as u32, Relaxed);
        control.collector_pid.store(std::process::id().cast_signed(), Relaxed);
        let first = place.replaces.unwrap_or(0) << 16 | ticket::COLLECTOR;
        control.ticket.0.store(first, SeqCst);
    }

    fn tell(&self, event: Event) {
        // Fails only when the draining thread is gone, and then nobody is interested.
        let _ = self.events.send(event);
        self.bell.ring();
    }
}

/// Waits until somebody connects; `false`: the server shall stop.
fn wait(listener: &UnixListener, stopped: &UnixStream) -> bool {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut watched = [watch(listener.as_raw_fd()), watch(stopped.as_raw_fd())];
    loop {
        // SAFETY: the array is ours and its length is given.
        let ready = unsafe { libc::poll(watched.as_mut_ptr(), 2, -1) };
        if ready > 0 {
            return watched[1].revents == 0;
        }
        if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

/// The process at the other end, as this side numbers it.
fn peer(socket: &UnixStream) -> io::Result<i32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let into = (&raw mut credentials).cast();
    // SAFETY: the buffer is a local of the length that is given.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut len) };
    if got == 0 { Ok(credentials.pid) } else { Err(io::Error::last_os_error()) }
}
