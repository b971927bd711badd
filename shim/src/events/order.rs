//! Where a thread's next event stands in the order of all threads' events.
//!
//! One shared word, the ticket word, names the last writer. A thread that finds another writer there takes the next
//! ticket and begins a *run* with it. Threads that record at full rate would pass that word to and fro with every
//! event, and that takes longer than all the rest; so they open a *shared run*: one ticket, for [`WINDOW`] events of
//! each of them. The events of different threads in a shared run have no order but what follows from this: a block
//! belongs to the neighbourhood whose last event of a shared run was this thread's, or its event gets a ticket for
//! itself, and the neighbourhood is this thread's from then on. So whatever happens to one block has the order in which
//! it happened, and so has whatever happens to a large one. So has what is recorded before and after a barrier, or by a
//! thread and after it was joined: who waits for others begins a run of its own.
//!
//! Why that holds. Let a thread A have an event of a block, and B the next one. If B's event is in a run of its own,
//! its ticket is above A's, since B reads the word after A has. If A's was, B's ticket is another, so above it. If both
//! are in shared runs, A read the word, then found the neighbourhood to be its own; B found it to be B's, so B had set
//! it in between, and had taken a ticket after that. Had A read that ticket or a later one, it would have found what B
//! set; so A's ticket is below the one that B took, and B's later events have at least that one.
//!
//! Invariant: events of one block, and of large blocks and other blocks, are in the order in which they happened.

use std::hint::cold_path;

use memtrack_transport::layout::ticket;

// From here, so that a test can put atomics of a model checker in their place.
use super::atomics::Ordering::{AcqRel, Acquire, Relaxed};
use super::atomics::{AtomicU16, AtomicU64};

/// Events of one thread in a shared run.
pub(super) const WINDOW: u32 = 64;
/// A thread whose runs are interrupted twice within this many ticks of the clock (1 to 2 µs of a time-stamp counter, 4
/// µs of CLOCK_MONOTONIC) shares them with one that records at full rate.
pub(super) const SOON: u64 = 4096;
/// Shared runs begin after this many such interruptions in a row.
pub(super) const HOT: u32 = 512;
/// What the count of interruptions is set to then. A later interruption halves it, so shared runs end after four such
/// in a row.
const HOTTEST: u32 = 8 * HOT;
/// As [`SOON`], for a shared run.
const SOON_IN_SHARED: u64 = 8 * SOON;
/// After this many shared runs that a thread has opened, and no other between them, it begins one of its own, to find out
/// whether others still record. Among many threads that is seldom.
pub(super) const SHARED_RUNS: u32 = 16;
/// Smallest size of a large block.
pub(super) const LARGE: usize = 32 * 1024;
/// Not a ticket word: its ticket would be the last of 2^48.
const NEVER: u64 = u64::MAX;

/// The writer of the last event of each neighbourhood in a shared run, by number; 0 for none. Neighbourhoods that share
/// a place here are one. What is left of a run, or of the process that this one was forked from, does no harm.
static OWNERS: [AtomicU16; 1 << 16] = [const { AtomicU16::new(0) }; 1 << 16];
/// For an index beyond that table.
static NOBODY: AtomicU16 = AtomicU16::new(0);
/// Bytes of a neighbourhood, as a power of two: blocks of different threads are seldom nearer.
const NEIGHBOURHOOD: u32 = 14;

/// What an event is about: what its order among shared ones depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventBlock {
    address: usize,
    is_large: bool,
}

impl EventBlock {
    /// One that is allocated, or with size 0 freed.
    #[inline(always)]
    pub(crate) const fn new(address: usize, size: usize) -> Self {
        Self { address, is_large: size >= LARGE }
    }

    #[inline(always)]
    fn owner(self) -> &'static AtomicU16 {
        // By a multiplicative hash: heaps of threads begin at multiples of large powers of two.
        let hash = (self.address as u64 >> NEIGHBOURHOOD).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
        // There always is one: the number has 16 bits.
        OWNERS.get(hash as usize).unwrap_or(&NOBODY)
    }
}

/// A thread's place in the order.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct WriterTurn {
    /// The ticket word as long as it says that this thread wrote last.
    mine: u64,
    /// The ticket word of its run.
    word: u64,
    /// Its number in ticket words.
    writer: u16,
    /// Events that it may still add to its shared run.
    left: u32,
    /// Shared runs that it has opened since another thread did.
    shared_runs: u32,
    /// How often it was interrupted soon after the time before, up to [`HOT`]; then how long that counts, up to
    /// [`HOTTEST`].
    heat: u32,
    /// When it was interrupted last, in ticks of the clock.
    interrupted: u64,
}

impl WriterTurn {
    /// Another thread has it now, with this number.
    pub(crate) fn begin(&mut self, writer: u16) {
        *self = Self { writer, mine: NEVER, ..Self::default() };
    }

    /// The ticket of the current run.
    #[inline(always)]
    pub(crate) const fn sequence(&self) -> u64 {
        ticket::sequence(self.word)
    }

    /// Whether no other thread has written since.
    #[inline(always)]
    pub(crate) fn is_mine(&self, word: &AtomicU64) -> bool {
        word.load(Relaxed) == self.mine
    }

    /// Whether an event of this block is the next of the shared run that the thread is in.
    #[inline(always)]
    pub(crate) fn share(&mut self, word: &AtomicU64, block: EventBlock) -> bool {
        // The word is read before the owner: see above.
        let goes_on = self.left != 0 && word.load(Acquire) == self.word;
        if !goes_on || block.is_large || block.owner().load(Relaxed) != self.writer {
            cold_path();
            return false;
        }
        self.left = self.left.wrapping_sub(1);
        true
    }

    /// Begins a run for an event of this block, a shared one where threads record at full rate.
    pub(crate) fn interrupted(&mut self, word: &AtomicU64, block: EventBlock, now: u64) {
        let is_hot = self.is_hot(now);
        if !is_hot || block.is_large || !self.begin_shared(word, block) {
            self.begin_own(word);
        }
    }

    /// Begins a run that no other thread has.
    pub(crate) fn begin_own(&mut self, word: &AtomicU64) {
        let mut seen = word.load(Relaxed);
        self.word = loop {
            let next = ticket::next(seen, self.writer.into());
            match word.compare_exchange_weak(seen, next, AcqRel, Relaxed) {
                Ok(_) => break next,
                Err(now) => seen = now,
            }
        };
        self.mine = self.word;
        self.left = 0;
        self.shared_runs = 0;
    }

    /// The thread is about to wait for others: what it records then comes after what they have recorded by now.
    pub(crate) fn synchronize_before_wait(&mut self) {
        (self.left, self.heat) = (0, 0);
    }

    fn is_hot(&mut self, now: u64) -> bool {
        let soon = if self.mine == NEVER { SOON_IN_SHARED } else { SOON };
        let was_soon = now.wrapping_sub(self.interrupted) < soon;
        self.interrupted = now;
        self.heat = match self.heat.saturating_add(1) {
            HOT.. if was_soon => HOTTEST,
            more if was_soon => more,
            _ if self.heat >= HOT => self.heat / 2,
            _ => 0,
        };
        self.heat >= HOT
    }

    /// Takes part in the shared run that is open, or opens one; `false`: an event of this block needs an own one.
    fn begin_shared(&mut self, word: &AtomicU64, block: EventBlock) -> bool {
        if self.shared_runs >= SHARED_RUNS || !self.owns(block) {
            return false;
        }
        let mut seen = word.load(Acquire);
        self.word = loop {
            if ticket::writer(seen) == ticket::SHARED && seen != self.word {
                self.shared_runs = 0;
                break seen;
            }
            let next = ticket::next(seen, ticket::SHARED);
            match word.compare_exchange_weak(seen, next, AcqRel, Acquire) {
                Ok(_) => {
                    self.shared_runs = if seen == self.word { self.shared_runs.wrapping_add(1) } else { 1 };
                    break next;
                }
                Err(now) => seen = now,
            }
        };
        self.mine = NEVER;
        self.left = WINDOW - 1;
        // Once more, for it was read before the word.
        self.owns(block)
    }

    /// Whether the block's neighbourhood was this thread's; it is from now on.
    fn owns(&self, block: EventBlock) -> bool {
        let owner = block.owner();
        let owned = owner.load(Relaxed) == self.writer;
        if !owned {
            // Before the ticket that is taken for this.
            owner.store(self.writer, Relaxed);
        }
        owned
    }
}
