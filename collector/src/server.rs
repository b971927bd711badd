//! Listening for processes that connect: a thread that lets the [desk](crate::desk) answer them one by one.
//!
//! Invariant: whoever connects gets an answer at once (the shim waits for it in its constructor), whatever the draining
//! threads are doing; a refusal is a closed socket.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::desk::{Desk, Openers};
use crate::options::Options;
use crate::summary::Error;
use crate::tree::Tree;

/// A socket's address holds this many bytes of a path.
const MAX_PATH: usize = 107;
/// Before somebody who could not be let in is tried again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

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
    pub(crate) fn start(dir: &Path, options: Options, openers: Openers, tree: Arc<Tree>) -> Result<Self, Error> {
        let path = dir.join("socket");
        let len = path.as_os_str().as_bytes().len();
        if len > MAX_PATH {
            return Err(Error::LongPath { path, len });
        }
        let failed = |source| Error::Socket { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let desk = Desk::new(dir.to_owned(), options, openers, tree);
        let thread = std::thread::Builder::new()
            .name("memtrack-accept".into())
            .spawn(move || run(desk, &listener, &stopped))
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

fn run(mut desk: Desk, listener: &UnixListener, stopped: &UnixStream) {
    desk.prepare_spare();
    while wait(listener, stopped) {
        match listener.accept() {
            Ok((socket, _)) => desk.answer(&socket),
            // Out of descriptors, say: it waits in line meanwhile.
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
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
