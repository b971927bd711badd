//! Removes the temporary file or directory of a report when a signal ends memtrack.
//!
//! Invariant: from [`EndSignals::take`] on, a signal that ends memtrack ends it as it would have, and the file of
//! [`EndSignals::remove`] is gone by then. Signals that are ignored stay so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::signals::ignored_signals;

/// Signals that have been taken and wait for somebody to act on them.
pub(crate) struct EndSignals(Signals);

impl EndSignals {
    /// Takes them: before the file is made, so that no signal comes in between.
    ///
    /// # Errors
    /// What sigaction says.
    pub(crate) fn take() -> io::Result<Self> {
        let ignored = ignored_signals();
        Signals::new([SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0))
            .map(Self)
    }

    /// Acts on them: removes this file or directory, if it is still there, and lets the signal do what it does.
    pub(crate) fn remove(mut self, path: PathBuf) {
        thread::spawn(move || {
            for signal in self.0.forever() {
                // It may have been completed, and have another name by now; and nobody is left to tell of a failure.
                remove(&path);
                let _ = emulate_default_handler(signal);
            }
        });
    }
}

/// Whoever writes may make another file in a directory while it is being removed: so more than once.
fn remove(path: &Path) {
    for _ in 0..3 {
        if fs::remove_file(path).or_else(|_| fs::remove_dir_all(path)).is_ok() {
            return;
        }
    }
}
