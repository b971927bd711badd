//! A stopped thread of another process, with the registers that it had.
//!
//! Invariant: one that is released goes on as if it had not been stopped.

use crate::tracee::Tracee;
use crate::waiting::resumable;

/// A stopped thread: at a safe point, or anywhere.
#[derive(Debug)]
pub(crate) struct StoppedThread {
    pub(crate) tracee: Tracee,
    pub(crate) registers: libc::user_regs_struct,
}

impl StoppedThread {
    /// Lets it go on as if it had not been stopped.
    pub(crate) fn release(self) {
        // An interruption that is a restart for the kernel is none for the thread, too.
        let _ = self.tracee.set_registers(&resumable(&self.registers));
        let _ = self.tracee.detach(0);
    }
}
