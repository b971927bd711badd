//! A terminal of memtrack's own for a program: a pseudo-terminal, and a process that has it as its controlling terminal.
//!
//! Invariant: the process begins in a session of its own, so signals of this terminal (Ctrl-C, a changed size) reach it and
//! what it starts, and nothing else.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

/// Bytes of a name in /dev/pts.
const NAME: usize = 128;

/// The side of a pseudo-terminal at which a terminal emulator reads and writes.
#[derive(Debug)]
pub(crate) struct PseudoTerminal {
    master: File,
}

impl PseudoTerminal {
    /// Opens one, and starts the command in it.
    ///
    /// # Errors
    /// There is no pseudo-terminal, or the command cannot be started.
    pub(crate) fn start(mut command: Command, rows: u16, columns: u16) -> io::Result<(Self, Child)> {
        // SAFETY: takes numbers only.
        let master = checked(unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) })?;
        // SAFETY: a new descriptor that nobody else owns.
        let master = File::from(unsafe { OwnedFd::from_raw_fd(master) });
        // SAFETY: a descriptor of a pseudo-terminal.
        checked(unsafe { libc::grantpt(master.as_raw_fd()) })?;
        // SAFETY: as before.
        checked(unsafe { libc::unlockpt(master.as_raw_fd()) })?;
        let mut name = [0_u8; NAME];
        // SAFETY: writes at most so many bytes to a live local, with a zero at the end.
        let failed = unsafe { libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr().cast(), NAME) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(0);
        let path = std::ffi::OsStr::from_bytes(name.get(..length).unwrap_or_default());
        let slave = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)?;
        let terminal = Self { master };
        terminal.resize(rows, columns)?;
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        let take_terminal = || {
            // SAFETY: no arguments.
            checked(unsafe { libc::setsid() })?;
            // SAFETY: the standard input is the terminal; the request takes a number.
            checked(unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) })?;
            Ok(())
        };
        // SAFETY: what runs between fork and exec makes system calls only.
        unsafe { command.pre_exec(take_terminal) };
        let child = command.spawn()?;
        // The command holds the other side: reading ends when it and all that it has started have closed it.
        drop(command);
        Ok((terminal, child))
    }

    /// The side of the terminal emulator.
    ///
    /// # Errors
    /// There are too many open files.
    pub(crate) fn emulator(&self) -> io::Result<File> {
        self.master.try_clone()
    }

    /// Sets the size; the program is told by SIGWINCH.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the request reads a live local of its type.
        checked(unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(|_| ())
    }

    /// Whether a program in it reads keys and not lines, as editors, pagers and interpreters do.
    pub(crate) fn reads_keys(&self) -> bool {
        let mut modes = MaybeUninit::<libc::termios>::zeroed();
        // SAFETY: writes to a live local of its type.
        let known = unsafe { libc::tcgetattr(self.master.as_raw_fd(), modes.as_mut_ptr()) } == 0;
        // SAFETY: all zeroes is a valid value, which the call has filled.
        known && unsafe { modes.assume_init() }.c_lflag & libc::ICANON == 0
    }

    /// Whether there is something to read within this time.
    pub(crate) fn has_output(&self, longest: Duration) -> bool {
        let mut output = libc::pollfd { fd: self.master.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one descriptor's record, which is ours.
        let ready = unsafe { libc::poll(&raw mut output, 1, milliseconds) };
        ready == 1 && output.revents & libc::POLLIN != 0
    }
}

/// Sends a signal to a process that was not waited for.
pub(crate) fn send_signal(child: &Child, signal: i32) {
    super::kill(child.id().cast_signed(), signal);
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
