//! Where the sockets of recordings are: `$XDG_RUNTIME_DIR/memtrack/<pid>.sock`, else `/tmp/memtrack-<uid>/<pid>.sock`.
//!
//! Invariant: a socket is made and looked for only in a directory that belongs to this user, with mode 0700, that is no
//! symbolic link; root looks into those of other users, too, and removes nothing there. Under its final name a socket
//! listens already, so one that refuses connections is stale: its recorder has died, and whoever lists his own sockets removes it.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::system::started_thread::WaitingThread;

/// The name of the thread that answers.
pub(super) const THREAD_NAME: &str = "memtrack-control";
/// Maximum length of the path of a socket, in bytes.
const MAX_PATH: usize = 107;
/// What follows the directory in the longest path of a socket.
const LONGEST_NAME: &str = "/4194304-999.sock";
const SUFFIX: &str = ".sock";
/// Recordings of the same process id, in several namespaces of process ids that share the directory.
const MOST_OF_ONE_PID: u32 = 999;
/// An unfinished socket of this age was left behind.
const UNFINISHED: Duration = Duration::from_secs(60);

/// A listening socket, which clients find once it is [published](ControlSocket::publish).
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    file: SocketFile,
    thread: Option<WaitingThread>,
}

/// The file of a socket, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // If it cannot be removed, it is stale, and whoever lists sockets removes it.
        let _ = fs::remove_file(&self.0);
    }
}

impl ControlSocket {
    /// Makes a socket in the first of the places where one can be made, before the program is started.
    ///
    /// # Errors
    /// For each place the reason why it cannot be used.
    pub fn bind() -> Result<Self, String> {
        Self::bind_in(&own_places())
    }

    pub(super) fn bind_in(places: &[PathBuf]) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for place in places {
            match Self::bind_at(place) {
                Ok(socket) => return Ok(socket),
                Err(error) => reasons.push(format!("{}: {error}", place.display())),
            }
        }
        Err(reasons.join("; "))
    }

    fn bind_at(directory: &Path) -> io::Result<Self> {
        let len = directory.as_os_str().as_bytes().len() + LONGEST_NAME.len();
        if len > MAX_PATH {
            return Err(io::Error::other("its path is too long for a socket"));
        }
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => check(directory)?,
        }
        let path = directory.join(format!("new-{}", std::process::id()));
        // One of that name was left behind by a process that had this id.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, file: SocketFile(path), thread: None })
    }

    /// Creates the thread that will answer. Whoever does this before the program is started has it whatever limits are set
    /// then; else it is created when it is to answer.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn create_thread(&mut self) -> io::Result<()> {
        self.thread = Some(WaitingThread::create(THREAD_NAME)?);
        Ok(())
    }

    /// Gives it the name by which clients find the recording of this process.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn publish(&mut self, pid: u32) -> io::Result<()> {
        let directory = self.file.0.parent().unwrap_or(Path::new("/"));
        for number in 1..=MOST_OF_ONE_PID {
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let path = directory.join(format!("{pid}{suffix}{SUFFIX}"));
            if is_stale(&path) {
                let _ = fs::remove_file(&path);
            }
            // Unlike a renaming, a link does not replace a file.
            match fs::hard_link(&self.file.0, &path) {
                Ok(()) => {
                    // The old name is removed when it is dropped here.
                    self.file = SocketFile(path);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    pub(super) fn into_parts(self) -> (UnixListener, SocketFile, Option<WaitingThread>) {
        (self.listener, self.file, self.thread)
    }
}

/// The sockets of all recordings that this user may reach. Stale ones of his own are removed.
#[must_use]
pub fn sockets() -> Vec<PathBuf> {
    sockets_in(&all_places())
}

pub(super) fn sockets_in(places: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in places.iter().filter(|place| check(place).is_ok()) {
        // Another user may put something else in the place of the directory at any time.
        let is_own = fs::symlink_metadata(directory).is_ok_and(|found| found.uid() == user());
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let is_socket = name.as_bytes().ends_with(SUFFIX.as_bytes());
            let is_unfinished = name.as_bytes().starts_with(b"new-") && age(&path) > UNFINISHED;
            if (is_socket || is_unfinished) && is_stale(&path) {
                if is_own {
                    let _ = fs::remove_file(&path);
                }
            } else if is_socket {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Where this user's recordings make their sockets, the preferred place first.
fn own_places() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = runtime.map(|path| path.join("memtrack"));
    runtime.into_iter().chain([PathBuf::from(format!("/tmp/memtrack-{}", user()))]).collect()
}

/// Where to look: also where a session of the same user has its runtime directory, and for root everywhere.
fn all_places() -> Vec<PathBuf> {
    let mut places = own_places();
    places.push(format!("/run/user/{}/memtrack", user()).into());
    if user() == 0 {
        let entries = |path| fs::read_dir(path).into_iter().flatten().flatten();
        places.extend(entries("/run/user").map(|entry| entry.path().join("memtrack")));
        let of_memtrack = |name: &std::ffi::OsStr| name.as_bytes().starts_with(b"memtrack-");
        places.extend(entries("/tmp").filter(|entry| of_memtrack(&entry.file_name())).map(|entry| entry.path()));
    }
    places.sort();
    places.dedup();
    places
}

/// Whether it is a directory for sockets: private to its owner, who is this user, or for root any user.
fn check(directory: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let denied = |text: &str| Err(io::Error::new(ErrorKind::PermissionDenied, text.to_owned()));
    if !found.is_dir() {
        return denied("it is no directory");
    }
    if found.uid() != user() && user() != 0 {
        return denied("it belongs to another user");
    }
    if found.mode() & 0o077 != 0 {
        return denied("others may access it");
    }
    Ok(())
}

/// Whether nobody listens there any more.
fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn age(path: &Path) -> Duration {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.ok().and_then(|time| time.elapsed().ok()).unwrap_or_default()
}

pub(super) fn user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// The process at the other end of a connection, as this side sees it.
pub(super) fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let into = (&raw mut credentials).cast();
    // SAFETY: the buffer is a local of the length that is given.
    let got = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len) };
    if got == 0 { Ok(credentials) } else { Err(io::Error::last_os_error()) }
}
