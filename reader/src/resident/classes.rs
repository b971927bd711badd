//! The classes of resident memory, and what a report of it has.
//!
//! Invariant: the classes are all there is: their bytes add up to what is resident.

use super::pinned::PinnedPages;
use super::pools::PoolClass;
use super::size_spread::SizeSpread;
use super::untouched::UntouchedBlocks;
use crate::analysis::Tally;
use memtrack_format::resident::{AllocatorFigures, AllocatorStatistics, HugePages, ResidentAccount};

/// The name of glibc's malloc.
pub(super) const GLIBC: &str = "glibc";
/// The name of jemalloc.
pub(super) const JEMALLOC: &str = "jemalloc";
/// The name of Python's.
pub(super) const PYMALLOC: &str = "pymalloc";

/// Where resident memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum MemoryClass {
    /// Bytes of live blocks.
    Live,
    /// The rest of pages that a live block keeps, or one that a thread caches.
    Slack,
    /// Kept by an allocator, without a live block.
    Retained,
    /// Free pools of Python's allocator.
    PythonFree,
    /// Stacks of threads.
    Stacks,
    /// Files, with private copies.
    File,
    /// Shared memory.
    Shared,
    /// memtrack's own.
    Memtrack,
    /// All other pages.
    Unexplained,
}

impl MemoryClass {
    /// All of them; they add up to what is resident.
    pub const ALL: [Self; 9] = [
        Self::Live,
        Self::Slack,
        Self::Retained,
        Self::PythonFree,
        Self::Stacks,
        Self::File,
        Self::Shared,
        Self::Memtrack,
        Self::Unexplained,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Slack => "slack",
            Self::Retained => "retained",
            Self::PythonFree => "python_free",
            Self::Stacks => "stacks",
            Self::File => "file",
            Self::Shared => "shared",
            Self::Memtrack => "memtrack",
            Self::Unexplained => "unexplained",
        }
    }
}

/// Resident bytes as the system counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentSizes {
    /// `RssAnon`.
    pub anonymous: u64,
    /// `RssFile`.
    pub file: u64,
    /// `RssShmem`.
    pub shared: u64,
}

impl ResidentSizes {
    /// All of it.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

/// The memory of an allocator that lies together: glibc's main heap, a heap of another arena, a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocatorArena {
    /// The allocator's name.
    pub allocator: &'static str,
    /// First address.
    pub address: u64,
    /// Of a heap of glibc's: the address of its arena's state, which the heaps of an arena share; 0 of the main arena.
    pub state: u64,
    /// Resident bytes.
    pub resident: u64,
    /// Of these, bytes of live blocks.
    pub live: u64,
    /// Of these, bytes of pages without a live block.
    pub retained: u64,
    /// Of these, bytes that the allocator does not give back when it is asked: the end of an arena of glibc's other than the
    /// main one; of other allocators, their own data, and of jemalloc the rest of slabs in which a block lives.
    pub held: u64,
    /// Of the retained bytes of glibc's main heap, those behind its last page in use.
    pub behind: u64,
}

/// What an allocator said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorStatisticsAt {
    /// Its name.
    pub allocator: &'static str,
    /// How long before the account, in nanoseconds; below 0: after it began.
    pub age_ns: i64,
    /// Its figures.
    pub figures: AllocatorFigures,
}

impl AllocatorStatisticsAt {
    pub(super) fn of(account: &ResidentAccount) -> Option<Self> {
        let AllocatorStatistics { source, time_ns, figures } = account.statistics?;
        let age_ns = account.time_ns.wrapping_sub(time_ns).cast_signed();
        Some(Self { allocator: source.name(), age_ns, figures })
    }
}

/// What an account and the live blocks of its moment say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidentBreakdown {
    /// As the system counts.
    pub rss: ResidentSizes,
    pub(super) classes: [u64; MemoryClass::ALL.len()],
    /// Bytes of live blocks that are neither resident nor swapped out.
    pub untouched: u64,
    /// Of these, what large blocks have in memory at no account, nor may have had between two, if they were followed.
    pub never_touched: u64,
    /// The same of large blocks and mappings by stack, most first.
    pub untouched_blocks: Vec<UntouchedBlocks>,
    /// Bytes that are swapped out.
    pub swapped: u64,
    /// Memory of allocators, by address.
    pub arenas: Vec<AllocatorArena>,
    /// Bytes that glibc's arenas held more, each at its own peak, than all of them at one time: what one arena for all
    /// threads would not have taken.
    pub arena_excess: u64,
    /// Those that keep most first.
    pub pinned: Vec<PinnedPages>,
    /// The same by group: a page belongs to that of its first block.
    pub pinned_groups: Vec<(u32, Tally)>,
    /// Resident bytes of arenas of Python's allocator, whose objects were not recorded; they count as live.
    pub python_arenas: u64,
    /// Resident bytes of shared memory that the program was seen to map.
    pub shared_mapped: u64,
    /// Anonymous memory in huge pages.
    pub huge: HugePages,
    /// What the program's allocator last said of itself, if its library exports that.
    pub statistics: Option<AllocatorStatisticsAt>,
    /// The reserve of libstdc++ from which exceptions are made when there is no memory: its bytes, and the resident ones.
    pub exception_reserve: Option<(u64, u64)>,
    /// Live bytes and the rest of their pages by the size of blocks, smallest first.
    pub sizes: Vec<SizeSpread>,
    /// Pools of Python's allocator that have a live block, by size class; none without `--trace-python-allocators`.
    pub pools: Vec<PoolClass>,
}

impl ResidentBreakdown {
    /// The bytes of a class.
    #[must_use]
    pub const fn bytes(&self, class: MemoryClass) -> u64 {
        self.classes[class as usize]
    }

    /// What malloc_trim gives back.
    #[must_use]
    pub fn trimmable(&self) -> u64 {
        self.arenas.iter().filter(|arena| arena.allocator == GLIBC).map(|arena| arena.retained - arena.held).sum()
    }

    /// Free memory at the end of glibc's main heap: what a smaller trim threshold gives back.
    #[must_use]
    pub fn behind_main_heap(&self) -> u64 {
        let is_main = |arena: &&AllocatorArena| arena.allocator == GLIBC && arena.state == 0;
        self.arenas.iter().rfind(is_main).map_or(0, |arena| arena.behind)
    }

    /// Free memory of allocators other than glibc's: what they have on pages that once had a block.
    #[must_use]
    pub fn purgeable(&self) -> u64 {
        self.arenas.iter().filter(|arena| arena.allocator != GLIBC).map(|arena| arena.retained - arena.held).sum()
    }
}
