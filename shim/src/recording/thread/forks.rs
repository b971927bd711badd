//! What a thread notes of itself before it forks.
//!
//! Invariant: a child learns of its parent's thread by memory of its own only.

use memtrack_transport::segment_chain;

use super::of_word;
use crate::platform::tls;

/// The ticket of a thread that forks inside a hook.
pub(super) const INSIDE: u64 = u64::MAX;

/// This thread is about to fork: the ticket that it took for an earlier fork is forgotten. Whether it is inside a hook is noted, since
/// the child cannot ask: that stands in memory which is still its parent's, and tells of what the parent does now.
pub(crate) fn before_fork() {
    if let Some(thread) = of_word(tls::get()) {
        thread.fork_ticket.set(if thread.is_busy() { INSIDE } else { 0 });
    }
}

/// The ticket that this thread took for the fork, which is forgotten. `None`: it took none.
pub(crate) fn take_fork_ticket() -> Option<u64> {
    let thread = of_word(tls::get()).filter(|thread| thread.fork_ticket.get() != INSIDE)?;
    Some(thread.fork_ticket.take()).filter(|ticket| *ticket != 0)
}

/// In a forked child, whose slots are new and its own: this thread is still inside the hook in which it has forked.
pub(crate) fn stay_inside() {
    if let Some(thread) = of_word(tls::get()).filter(|thread| thread.fork_ticket.get() == INSIDE) {
        segment_chain::enter_hook(thread.slot);
    }
}
