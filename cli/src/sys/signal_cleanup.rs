//! What is done before a signal ends memtrack: the temporary file or directory of a report is removed, a copy of a process ended.
//!
//! Invariant: from [`EndSignals::take`] on, a terminating signal has its usual effect, after what [`EndSignals::remove`] or
//! [`EndSignals::end_with`] says is done. Ignored signals stay ignored.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::signals::ignored_signals;

/// Caught signals that are not yet processed.
pub(crate) struct EndSignals(Signals);

impl EndSignals {
    /// Catches the signals. Called before the file is created, so that there is no gap.
    ///
    /// # Errors
    /// sigaction fails.
    pub(crate) fn take() -> io::Result<Self> {
        let ignored = ignored_signals();
        Signals::new([SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0))
            .map(Self)
    }

    /// Processes the signals: removes this file or directory if it still exists, then raises the signal with its
    /// default action.
    pub(crate) fn remove(self, path: PathBuf) {
        self.end_with(move |signal| {
            // The file may be complete and renamed by now; a failure cannot be reported any more.
            remove(&path);
            let _ = emulate_default_handler(signal);
        });
    }

    /// Processes the signals by this, which is to end with the signal's default action.
    pub(crate) fn end_with(mut self, end: impl Fn(i32) + Send + 'static) {
        thread::spawn(move || self.0.forever().for_each(end));
    }
}

/// Removal is repeated, because the writer may create another file in the directory at the same time.
fn remove(path: &Path) {
    for _ in 0..3 {
        if fs::remove_file(path).or_else(|_| fs::remove_dir_all(path)).is_ok() {
            return;
        }
    }
}
