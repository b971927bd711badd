//! Listening for processes that connect: a thread that lets the [admission](crate::admission) answer them one by one.
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

use crate::admission::{Admission, RecordingOpeners, SOCKET_NAME};
use crate::options::RecordingOptions;
use crate::process_tree::ProcessTree;
use crate::summary::Error;

/// Maximum length of the path of a socket, in bytes.
const MAX_PATH: usize = 107;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The running server.
pub(crate) struct Server {
    path: PathBuf,
    /// A byte requests spare memory; closing it ends the thread.
    ask: UnixStream,
    admission: Arc<Mutex<Admission>>,
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
        let (ask, asked) = UnixStream::pair().map_err(failed)?;
        let reserve = reserve().map_err(failed)?;
        let admission = Arc::new(Mutex::new(Admission::new(dir.to_owned(), options, openers, tree)));
        let shared = Arc::clone(&admission);
        let thread = std::thread::Builder::new()
            .name("memtrack-accept".into())
            .spawn(move || run(&shared, &listener, &asked, Some(reserve)))
            .map_err(Error::Thread)?;
        Ok(Self { path, ask, admission, thread })
    }

    /// A process will connect soon: creates its memory in advance. Called after the process was started, so as not to delay
    /// it.
    pub(crate) fn expect(&self) {
        // If this fails, the memory is created when the process connects.
        let _ = (&self.ask).write_all(&[0]);
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

    /// Stops listening.
    pub(crate) fn stop(self) {
        drop(self.ask);
        // It does not panic; and nothing depends on it any more.
        let _ = self.thread.join();
        // The directory goes with the recording anyway.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn run(admission: &Mutex<Admission>, listener: &UnixListener, asked: &UnixStream, mut reserve: Option<File>) {
    while let Some(wish) = wait(listener, asked) {
        if wish == ServerRequest::Prepare {
            lock(admission).prepare_spare();
            continue;
        }
        match listener.accept() {
            Ok((socket, _)) => lock(admission).answer(&socket),
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
}

fn lock(admission: &Mutex<Admission>) -> MutexGuard<'_, Admission> {
    admission.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A spare descriptor, to be closed when no other is left.
fn reserve() -> io::Result<File> {
    File::open("/dev/null")
}

/// Whether no descriptor is left to accept the next connection.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Accepts and closes the next connection when descriptors are exhausted; returns whether that succeeded.
fn refuse_next(listener: &UnixListener, reserve: &mut Option<File>) -> bool {
    let is_free = reserve.take().is_some();
    let refused = is_free && listener.accept().is_ok();
    *reserve = self::reserve().ok();
    refused
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
