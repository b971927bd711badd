//! `memtrack await-program`: takes the place of a `memtrack run` that aborted, as for lack of memory, until its program ends.
//!
//! The recording has ended with that image, as after a SIGKILL: the capture has what was written before. Invariant: the
//! program keeps its parent, gets its signals, and its exit status is returned.

use std::sync::Arc;

use anyhow::Result;

use crate::args::running::AwaitProgramArgs;
use crate::message;
use crate::sys::{Child, Signals, shell_status, stop_signal_probe, unblock_signals};

/// Waits for the program; returns its exit status as a shell would.
///
/// # Errors
/// It is no child of this process.
pub(crate) fn run(options: &AwaitProgramArgs) -> Result<u8> {
    let signals = Signals::take()?.forwarder()?;
    let child = Arc::new(Child::of_earlier_image(options.pid));
    signals.pass_on(&child, 0);
    unblock_signals();
    if !options.quiet {
        message::warning(
            "memtrack aborted, most likely because it could not allocate memory: the recording ends here, and the program \
             runs on; the capture has what was written before (raise the limit of address space, ulimit -v, or of memory)",
        );
    }
    let status = shell_status(child.reap()?.status);
    stop_signal_probe();
    Ok(status)
}
