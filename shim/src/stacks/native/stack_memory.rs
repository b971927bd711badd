//! Reads of the thread's stack, and of other stacks that code may run on.
//!
//! Invariant: no read faults. A thread's own stack is known from its upper end down to the deepest page that was found
//! readable, all pages between included, and stays while the thread lives. Any other page (an alternate signal stack, a
//! coroutine's) is checked each time it is reached.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::platform::own_ids;
use crate::platform::readable::is_readable;

const PAGE: usize = 4096;
/// No stack is larger.
const LARGEST: usize = 1 << 30;

/// What is known of the calling thread's stack.
#[derive(Debug)]
pub(super) struct StackMemory {
    low: usize,
    high: usize,
    /// A page outside, which was readable a moment ago; 0 for none.
    page: usize,
    /// The page below the stack that could not be read (its guard), which is asked about first: what is below is another
    /// stack. 0 for none.
    blocked: usize,
}

/// The descriptor of the first thread, which a child that another thread has forked does not run; 0: unknown.
static FIRST_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Recording begins in this thread.
pub(super) fn note_first_thread() {
    if own_ids::thread_id() == own_ids::process_id() && FIRST_THREAD.load(Relaxed) == 0 {
        FIRST_THREAD.store(descriptor(), Relaxed);
    }
}

/// The C library's descriptor of the calling thread.
fn descriptor() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

impl StackMemory {
    pub(super) const fn new() -> Self {
        Self { low: 0, high: 0, page: 0, blocked: 0 }
    }

    /// One that is known from `low` to `high`.
    #[cfg(test)]
    pub(super) const fn between(low: usize, high: usize) -> Self {
        Self { low, high, page: 0, blocked: 0 }
    }

    /// Of a thread that is asked when it walks its stack first.
    pub(super) const UNKNOWN: Self = Self { low: usize::MAX, high: usize::MAX, page: 0, blocked: 0 };

    /// The stack of the calling thread, of which nothing is known but its end.
    fn of_this_thread() -> Self {
        let is_first = match FIRST_THREAD.load(Relaxed) {
            0 => own_ids::thread_id() == own_ids::process_id(),
            first => first == descriptor(),
        };
        let high = if is_first {
            // The system writes the random bytes for the program above the first thread's stack.
            // SAFETY: no preconditions.
            unsafe { libc::getauxval(libc::AT_RANDOM) as usize }
        } else {
            // It is above the thread's stack, in one mapping.
            descriptor()
        };
        Self { low: page_of(high), high, page: 0, blocked: 0 }
    }

    /// A walk begins with this stack pointer.
    #[inline(always)]
    pub(super) fn begin(&mut self, sp: usize) {
        self.page = 0;
        if sp < self.low {
            self.deepen(sp);
        }
    }

    /// Takes the pages down to this address in, if they are all there.
    #[cold]
    fn deepen(&mut self, sp: usize) {
        if self.high == usize::MAX {
            *self = Self::of_this_thread();
            if sp >= self.low {
                return;
            }
        }
        if self.high.wrapping_sub(sp) > LARGEST
            || (self.blocked != 0 && sp < self.blocked.wrapping_add(PAGE) && !is_readable(self.blocked))
        {
            return;
        }
        let mut low = self.low;
        while low > sp {
            low = low.wrapping_sub(PAGE);
            if !is_readable(low) {
                self.blocked = low;
                return;
            }
        }
        self.low = low;
    }

    /// Whether the word at an address is in the known part of the thread's own stack, which stays readable.
    #[inline(always)]
    pub(super) const fn holds(&self, address: usize) -> bool {
        address >= self.low && address < self.high.wrapping_sub(7)
    }

    /// The word at an address, if it is in the known part of the thread's own stack.
    #[inline(always)]
    pub(super) fn own_word(&self, address: usize) -> Option<usize> {
        // SAFETY: readable, by the module's invariant.
        self.holds(address).then(|| unsafe { (address as *const usize).read_unaligned() })
    }

    /// The word at an address, if it can be read.
    #[inline(always)]
    pub(super) fn word(&mut self, address: usize) -> Option<usize> {
        if !self.holds(address) && !self.is_readable_outside(address) {
            return None;
        }
        // SAFETY: readable, by the module's invariant.
        Some(unsafe { (address as *const usize).read_unaligned() })
    }

    #[cold]
    fn is_readable_outside(&mut self, address: usize) -> bool {
        if address & 7 != 0 {
            return false;
        }
        let page = page_of(address);
        if page != self.page && is_readable(page) {
            self.page = page;
        }
        page == self.page && page != 0
    }
}

const fn page_of(address: usize) -> usize {
    address & !(PAGE - 1)
}

#[cfg(test)]
mod tests {
    use super::{StackMemory, is_readable, page_of};

    #[test]
    fn pages_are_asked_about() {
        let value = 5_usize;
        assert!(is_readable(page_of(&raw const value as usize)));
        assert!(!is_readable(0));
    }

    #[test]
    fn the_own_stack_is_known_once_it_was_walked_and_guards_are_not() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let value = 7_usize;
                let address = &raw const value as usize;
                let mut stack = StackMemory::UNKNOWN;
                stack.begin(address);
                assert!(stack.low <= address && address < stack.high);
                assert_eq!(stack.word(address), Some(7));
                assert_eq!(stack.word(8), None);
                stack.begin(4096);
                assert!(stack.low > 4096 && stack.blocked == 0);
                // Below the guard is no part of this stack, as a coroutine's is none.
                let low = stack.low;
                stack.begin(address - (64 << 20));
                assert!(stack.low == low && stack.blocked < low && !is_readable(stack.blocked));
            });
        });
    }
}
