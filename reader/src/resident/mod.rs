//! Where resident memory is: the pages of a process joined with the blocks that were live at the same moment.
//!
//! A capture has accounts of resident memory ([`memtrack_format::resident`]). [`MomentScan`] replays the capture up to the
//! moment of one, [`WidestScan`] to its end and finds the moment itself, and [`FullestScan`] tells what its blocks had in memory at others. `mappings` tells what each mapping is, and
//! [`ResidentBreakdown`] divides the resident pages into classes.
//!
//! Invariant: the classes add up to the resident pages of the account, to the page.

mod allocator_trace;
mod arena_peaks;
mod bands;
mod block_pages;
mod breakdown;
mod classes;
mod free_pages;
mod fullest;
mod fullest_blocks;
mod heap_calls;
mod lasting;
mod loaded_allocators;
mod mappings;
mod moment;
mod pinned;
mod pools;
mod process_facts;
mod size_spread;
mod slabs;
mod stored;
mod thread_cache;
mod untouched;
mod used;
mod widest;

#[cfg(test)]
mod tests;

pub use allocator_trace::AllocatorTrace;
pub use bands::ClassesAt;
pub use classes::{AllocatorArena, AllocatorStatisticsAt, MemoryClass, ResidentBreakdown, ResidentSizes};
pub use fullest::FullestScan;
pub use heap_calls::{HeapCall, HeapCalls, HeapFunction, ThreadEnds};
pub use lasting::AccountOutlines;
pub use loaded_allocators::allocator_file;
pub use moment::{LiveMoment, MomentScan};
pub use pinned::PinnedPages;
pub use pools::PoolClass;
pub use process_facts::ProcessFacts;
pub use size_spread::SizeSpread;
pub use untouched::UntouchedBlocks;
pub use widest::{AccountOutline, KeptLive, WidestScan};
