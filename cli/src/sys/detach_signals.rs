//! Signals that end `memtrack attach`: they detach instead of ending memtrack at once.
//!
//! Invariant: a signal that is ignored when memtrack starts stays ignored.

use std::io;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::signals::ignored_signals;

/// Caught signals that nobody is told of yet.
pub(crate) struct DetachSignals(Signals);

impl DetachSignals {
    /// Catches the signals.
    ///
    /// # Errors
    /// sigaction fails.
    pub(crate) fn take() -> io::Result<Self> {
        let ignored = ignored_signals();
        let is_taken = |signal: &i32| ignored & (1 << (signal - 1)) == 0;
        if is_taken(&SIGXFSZ) {
            // Exceeding the file size limit must be a write error, and not end memtrack.
            flag::register(SIGXFSZ, Arc::default())?;
        }
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(is_taken)).map(Self)
    }

    /// Calls the function for each signal, on a thread of its own.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn notify(mut self, call: impl Fn() + Send + 'static) -> io::Result<()> {
        let wait = move || self.0.forever().for_each(|_| call());
        thread::Builder::new().name("memtrack-signal".into()).spawn(wait).map(drop)
    }
}
