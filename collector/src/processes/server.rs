//! Listening for processes that connect: a thread that lets the [admission](super::admission) answer them one by one.
//!
//! Invariant: a process that connects gets an answer at once (the shim waits for it in its constructor), whatever the
//! draining threads do and even if no descriptors are left; a refusal is a closed socket.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::processes::admission::{Admission, RecordingOpeners, SOCKET_NAME};
use crate::processes::refusal::{is_exhausted, refuse};
use crate::recording::options::RecordingOptions;
use crate::recording::process_tree::ProcessTree;
use crate::recording::summary::Error;

/// Maximum length of the path of a socket, in bytes.
const MAX_PATH: usize = 107;
/// Processes that may wait in line. Forked children do not wait for the answer, and their memory is in the line until then; one
/// more waits until there is room.
const MOST_WAITING: i32 = 64;
/// Spare descriptors: of a connection, and of the memory that it brings.
const RESERVE: usize = 2;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The running server.
pub(crate) struct Server {
    path: PathBuf,
    admission: Arc<Mutex<Admission>>,
    /// `None`: it listens no more.
    listening: Option<Listening>,
}

/// The thread that listens.
struct Listening {
    /// A byte requests spare memory; closing it ends the thread.
    ask: UnixStream,
    thread: JoinHandle<()>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens in `dir`, which is made if it does not exist.
    pub(crate) fn start(
        dir: &Path,
        options: RecordingOptions,
        openers: RecordingOpeners,
        tree: Arc<ProcessTree>,
    ) -> Result<Self, Error> {
        let path = dir.join(SOCKET_NAME);
        let len = path.as_os_str().as_bytes().len();
        if len > MAX_PATH {
            return Err(Error::LongPath { path, len });
        }
        let failed = |reason| Error::Socket { path: path.clone(), reason };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let listener = UnixListener::bind(&path).map_err(failed)?;
        limit_line(&listener).map_err(failed)?;
        let (ask, asked) = UnixStream::pair().map_err(failed)?;
        let reserve =
            (0..RESERVE).map(|_| File::open("/dev/null")).collect::<io::Result<Vec<File>>>().map_err(failed)?;
        let admission = Arc::new(Mutex::new(Admission::new(dir.to_owned(), options, openers, tree)));
        let shared = Arc::clone(&admission);
        let thread = std::thread::Builder::new()
            .name("memtrack-accept".into())
            .spawn(move || run(&shared, &listener, &asked, reserve))
            .map_err(Error::Thread)?;
        Ok(Self { path, admission, listening: Some(Listening { ask, thread }) })
    }

    /// A process will connect soon: creates its memory in advance. Called after the process was started, so as not to delay
    /// it.
    pub(crate) fn expect(&self) {
        if let Some(Listening { ask, .. }) = &self.listening {
            // If this fails, the memory is created when the process connects.
            let _ = (&*ask).write_all(&[0]);
        }
    }

    /// Records a process that does not connect, see [`Admission::give`].
    pub(crate) fn give(
        &self,
        pid: i32,
        file: BorrowedFd<'_>,
        attempt: usize,
        ready: &mut dyn FnMut(u32),
    ) -> io::Result<Option<u32>> {
        lock(&self.admission).give(pid, file, attempt, ready)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Answers those who are still in line, and stops listening: who connects later is refused, and knows that nobody listens.
    pub(crate) fn stop_listening(&mut self) {
        if let Some(Listening { ask, thread }) = self.listening.take() {
            drop(ask);
            // It does not panic; and nothing depends on it any more.
            let _ = thread.join();
        }
    }

    /// Stops listening. The socket stays until the result is dropped.
    pub(crate) fn stop(mut self) -> SocketPlace {
        self.stop_listening();
        SocketPlace(self.path)
    }
}

/// The socket's place in the file system, which is removed with this.
#[derive(Debug)]
#[must_use]
pub(crate) struct SocketPlace(PathBuf);

impl Drop for SocketPlace {
    fn drop(&mut self) {
        // The directory goes with the recording anyway.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn limit_line(listener: &UnixListener) -> io::Result<()> {
    // SAFETY: an open socket, which listens already.
    let limited = unsafe { libc::listen(listener.as_raw_fd(), MOST_WAITING) };
    if limited == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn run(admission: &Mutex<Admission>, listener: &UnixListener, asked: &UnixStream, mut reserve: Vec<File>) {
    while let Some(wish) = wait(listener, asked) {
        if wish == ServerRequest::Prepare {
            lock(admission).prepare_spare();
            continue;
        }
        match listener.accept() {
            Ok((socket, _)) => {
                // For the memory that it may bring.
                drop(reserve.pop());
                lock(admission).answer(&socket);
                drop(socket);
                fill(&mut reserve);
            }
            Err(error) if is_exhausted(&error) && refuse_next(listener, &mut reserve) => {
                lock(admission).note_refused(&error)
            }
            // It waits in line meanwhile, perhaps until it gives up.
            Err(error) => {
                if is_exhausted(&error) {
                    lock(admission).note_waiting(&error);
                }
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
    answer_rest(admission, listener);
}

/// Answers those who are still in line: forked children that have recorded, and ended, perhaps.
fn answer_rest(admission: &Mutex<Admission>, listener: &UnixListener) {
    if listener.set_nonblocking(true).is_ok() {
        let waiting = (0..=MOST_WAITING).map_while(|_| listener.accept().ok());
        waiting.for_each(|(socket, _)| lock(admission).answer(&socket));
    }
}

fn lock(admission: &Mutex<Admission>) -> MutexGuard<'_, Admission> {
    admission.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts and refuses the next connection when descriptors are exhausted; returns whether that succeeded.
fn refuse_next(listener: &UnixListener, reserve: &mut Vec<File>) -> bool {
    let is_free = !std::mem::take(reserve).is_empty();
    let refused = is_free && listener.accept().map(|(socket, _)| refuse(&socket)).is_ok();
    fill(reserve);
    refused
}

/// Opens the spare descriptors again that were closed.
fn fill(reserve: &mut Vec<File>) {
    let missing = RESERVE.saturating_sub(reserve.len());
    reserve.extend((0..missing).map_while(|_| File::open("/dev/null").ok()));
}

/// A request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerRequest {
    /// A process has connected.
    Connect,
    /// A process will connect soon.
    Prepare,
}

/// Waits for a request; `None`: the server is to stop.
fn wait(listener: &UnixListener, mut asked: &UnixStream) -> Option<ServerRequest> {
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut watched = [watch(listener.as_raw_fd()), watch(asked.as_raw_fd())];
    loop {
        // SAFETY: the array is ours and its length is given.
        let ready = unsafe { libc::poll(watched.as_mut_ptr(), 2, -1) };
        if ready > 0 && watched[1].revents == 0 {
            return Some(ServerRequest::Connect);
        }
        if ready > 0 {
            match asked.read(&mut [0]) {
                Ok(1..) => return Some(ServerRequest::Prepare),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                _ => return None,
            }
        }
        if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}
