//! Sums the rows of a view by innermost frame, module, allocator or thread.
//!
//! Invariant: each breakdown counts every byte of its rows once; rows without a frame have a row of their own.

use std::collections::BTreeMap;
use std::hash::Hash;

use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

use super::{GroupRow, Tally};
use crate::event::ThreadId;
use crate::frames::{FrameId, Frames};
use crate::modules::{self, ModuleId, ModuleTable};
use crate::native::ModuleSource;

/// What one innermost frame allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRow {
    /// The innermost frame; `None` for allocations without any.
    pub frame: Option<FrameId>,
    /// Bytes and number.
    pub tally: Tally,
}

/// What one module allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleRow {
    /// The module's name, or [`crate::modules::ROOT`].
    pub module: String,
    /// How its native objects were found; `None` where it has none.
    pub source: Option<ModuleSource>,
    /// Bytes and number.
    pub tally: Tally,
}

/// What was allocated by one function of the allocator interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorRow {
    /// The function.
    pub allocator: Allocator,
    /// Bytes and number.
    pub tally: Tally,
}

/// What one thread allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRow {
    /// The thread.
    pub thread: ThreadId,
    /// Bytes and number.
    pub tally: Tally,
}

/// The sums of a view, by each of these. Computed together, since the rows of a view may be many millions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Of all rows.
    pub whole: Tally,
    /// By innermost frame, in the order in which the rows first name one.
    pub frames: Vec<FrameRow>,
    /// By the nearest module that is not the standard library, in the same order.
    pub modules: Vec<ModuleRow>,
    /// By allocator, in the order of their numbers.
    pub allocators: Vec<AllocatorRow>,
    /// By thread, in the order of their ids.
    pub threads: Vec<ThreadRow>,
}

impl Breakdown {
    /// The sums of these rows.
    #[must_use]
    pub fn of(rows: impl IntoIterator<Item = GroupRow>, frames: &Frames) -> Self {
        let mut modules = ModuleTable::default();
        // Stacks have the same frames again and again, of which the table has the files only.
        let mut known: Vec<Option<Option<ModuleId>>> = vec![None; frames.frames().len()];
        let mut module_of = |frame: FrameId| match known.get_mut(frame.0 as usize) {
            Some(known) => *known.get_or_insert_with(|| modules.of_frame(frames, frame)),
            None => None,
        };
        let mut whole = Tally::default();
        let (mut by_frame, mut by_module) = (KeyedSums::default(), KeyedSums::default());
        let (mut by_allocator, mut by_thread) = (BTreeMap::<_, Tally>::new(), BTreeMap::<_, Tally>::new());
        for row in rows {
            let tally = row.tally();
            whole += tally;
            by_frame.add(frames.node(row.stack).map(|node| node.frame), tally);
            by_module.add(frames.leaf_to_root(row.stack).find_map(&mut module_of).unwrap_or_default(), tally);
            *by_allocator.entry(row.allocator).or_default() += tally;
            *by_thread.entry(row.thread).or_default() += tally;
        }
        let sources = modules::sources(frames);
        let module_row = |(module, tally): (ModuleId, Tally)| {
            let name = modules.name(module);
            ModuleRow { module: name.to_owned(), source: sources.get(name).copied(), tally }
        };
        Self {
            whole,
            frames: by_frame.sums.into_iter().map(|(frame, tally)| FrameRow { frame, tally }).collect(),
            modules: by_module.sums.into_iter().map(module_row).collect(),
            allocators: by_allocator.into_iter().map(|(allocator, tally)| AllocatorRow { allocator, tally }).collect(),
            threads: by_thread.into_iter().map(|(thread, tally)| ThreadRow { thread, tally }).collect(),
        }
    }

    /// The allocators with those as one that `key` maps to one, in the order of their numbers.
    #[must_use]
    pub fn allocators_by(&self, key: impl Fn(Allocator) -> Allocator) -> Vec<AllocatorRow> {
        let mut sums = BTreeMap::<_, Tally>::new();
        self.allocators.iter().for_each(|row| *sums.entry(key(row.allocator)).or_default() += row.tally);
        sums.into_iter().map(|(allocator, tally)| AllocatorRow { allocator, tally }).collect()
    }
}

/// Sums by key, in the order in which the keys came.
#[derive(Debug)]
struct KeyedSums<K> {
    places: FxHashMap<K, usize>,
    sums: Vec<(K, Tally)>,
}

impl<K> Default for KeyedSums<K> {
    fn default() -> Self {
        Self { places: FxHashMap::default(), sums: Vec::new() }
    }
}

impl<K: Copy + Eq + Hash> KeyedSums<K> {
    fn add(&mut self, key: K, tally: Tally) {
        let place = *self.places.entry(key).or_insert_with(|| {
            self.sums.push((key, Tally::default()));
            self.sums.len() - 1
        });
        self.sums[place].1 += tally;
    }
}
