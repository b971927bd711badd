//! Which system calls of memtrack's own the program's seccomp filters forbid: a forbidden one may end the program.
//!
//! A filter is read and executed when the program installs it, or by whoever begins to record a program that has one, for each
//! call that memtrack may make later. Those that it does not plainly allow are not made any more: a thread that would wait
//! for the collector spins, what is not known without a call is not recorded. What takes many calls is not done at all under
//! a filter: children are not connected to the collector, and programs that replace this one are not given this library.
//!
//! Invariant: what the program still may do is recorded as before; while a filter is being installed, no call is made.

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};

pub(crate) use memtrack_seccomp::own_calls::OwnCall;
use memtrack_seccomp::own_calls::forbidden;

/// A filter was installed: it stays.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);
/// The set of [`OwnCall`]s that are not to be made, as bits.
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);
/// Filters that are just being installed: of threads that run, it takes effect before it is known.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// Whether the program has installed a filter, or is about to. A forked child inherits the answer with the filter.
pub(crate) fn has_seccomp_filter() -> bool {
    HAS_FILTER.load(Acquire) || UNDER_WAY.load(Acquire) != 0
}

/// Whether memtrack may make this call: no filter is known that forbids it.
pub(crate) fn may(call: OwnCall) -> bool {
    !has_seccomp_filter() || (UNDER_WAY.load(SeqCst) == 0 && FORBIDDEN.load(SeqCst) & call.bit() == 0)
}

/// The program has had filters since before recording begins, which do not allow these calls, as bits.
pub(crate) fn restrict(calls: u32) {
    FORBIDDEN.fetch_or(calls, SeqCst);
    HAS_FILTER.store(true, SeqCst);
}

/// A filter that the program is installing, or another restriction of that kind: until this is dropped no call is made.
pub(crate) struct FilterInstallation(());

impl FilterInstallation {
    /// To be called before the filter takes effect.
    pub(crate) fn begin() -> Self {
        UNDER_WAY.fetch_add(1, SeqCst);
        Self(())
    }

    /// It is in effect for the calling thread alone, which does not record any more: the others may do what they could.
    pub(crate) fn installed_for_one_thread(self) {
        HAS_FILTER.store(true, SeqCst);
    }

    /// It is in effect.
    ///
    /// # Safety
    /// The system has just accepted this program: it can be read, with as many instructions as it says.
    pub(crate) unsafe fn installed(self, program: *const libc::sock_fprog) {
        // SAFETY: the caller's promise.
        let program = unsafe { program.read_unaligned() };
        let filter: &[libc::sock_filter] = if program.filter.is_null() || !program.filter.is_aligned() {
            &[]
        } else {
            // SAFETY: the caller's promise; any bytes make instructions.
            unsafe { std::slice::from_raw_parts(program.filter, program.len.into()) }
        };
        FORBIDDEN.fetch_or(forbidden(filter), SeqCst);
        HAS_FILTER.store(true, SeqCst);
    }
}

impl Drop for FilterInstallation {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, SeqCst);
    }
}
