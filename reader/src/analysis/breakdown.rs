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

/// Sums by innermost frame, in the order in which the rows first name one.
#[must_use]
pub fn by_frame(rows: &[GroupRow], frames: &Frames) -> Vec<FrameRow> {
    let sums = summed(rows, |row| frames.node(row.stack).map(|node| node.frame));
    sums.into_iter().map(|(frame, tally)| FrameRow { frame, tally }).collect()
}

/// Sums by the nearest module that is not the standard library, in the order in which the rows first name one.
#[must_use]
pub fn by_module(rows: &[GroupRow], frames: &Frames) -> Vec<ModuleRow> {
    let mut modules = ModuleTable::default();
    // Stacks have the same frames again and again, of which the table has the files only.
    let mut known: Vec<Option<Option<ModuleId>>> = vec![None; frames.frames().len()];
    let mut of_frame = |frame: FrameId| match known.get_mut(frame.0 as usize) {
        Some(known) => *known.get_or_insert_with(|| modules.of_frame(frames, frame)),
        None => None,
    };
    let sums = summed(rows, |row| frames.leaf_to_root(row.stack).find_map(&mut of_frame).unwrap_or_default());
    let sources = modules::sources(frames);
    let row = |(module, tally): (ModuleId, Tally)| {
        let name = modules.name(module);
        ModuleRow { module: name.to_owned(), source: sources.get(name).copied(), tally }
    };
    sums.into_iter().map(row).collect()
}

/// Sums by allocator, in the order of their numbers; `key` may map several allocators to one.
#[must_use]
pub fn by_allocator(rows: &[GroupRow], key: impl Fn(Allocator) -> Allocator) -> Vec<AllocatorRow> {
    let sums: BTreeMap<_, _> = summed(rows, |row| key(row.allocator)).into_iter().collect();
    sums.into_iter().map(|(allocator, tally)| AllocatorRow { allocator, tally }).collect()
}

/// Sums by thread, in the order of their ids.
#[must_use]
pub fn by_thread(rows: &[GroupRow]) -> Vec<ThreadRow> {
    let sums: BTreeMap<_, _> = summed(rows, |row| row.thread).into_iter().collect();
    sums.into_iter().map(|(thread, tally)| ThreadRow { thread, tally }).collect()
}

fn summed<K: Copy + Eq + Hash>(rows: &[GroupRow], mut key: impl FnMut(&GroupRow) -> K) -> Vec<(K, Tally)> {
    let mut places: FxHashMap<K, usize> = FxHashMap::default();
    let mut sums: Vec<(K, Tally)> = Vec::new();
    for row in rows {
        let key = key(row);
        let place = *places.entry(key).or_insert_with(|| {
            sums.push((key, Tally::default()));
            sums.len() - 1
        });
        sums[place].1 += row.tally();
    }
    sums
}
