//! Who made the mappings that do not count as heap: reserved address space, mappings of files, and shared memory.
//!
//! They are apart from the groups, since no view and no total of the heap includes them. Invariant: the rows of a class are what
//! was mapped when the mappings of that class were largest, and add up to that peak.

use memtrack_format::{Allocator, MapClass};

use super::Group;
use crate::event::{StackId, ThreadId};

/// The mappings of one class that one stack made in one thread, when those of the class were largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedGroup {
    /// Not [`MapClass::Heap`].
    pub class: MapClass,
    /// The full call stack.
    pub stack: StackId,
    /// The function that mapped.
    pub allocator: Allocator,
    /// The thread that called it.
    pub thread: ThreadId,
    /// Mapped bytes.
    pub bytes: u64,
    /// The number of mappings.
    pub count: u64,
}

/// All of them, in the order of the first of each group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    groups: Vec<MappedGroup>,
}

impl Mapped {
    /// The groups.
    pub fn iter(&self) -> impl Iterator<Item = &MappedGroup> {
        self.groups.iter()
    }

    /// Those of a class.
    pub fn of_class(&self, class: MapClass) -> impl Iterator<Item = &MappedGroup> {
        self.iter().filter(move |group| group.class == class)
    }

    /// Adds a group.
    pub(crate) fn push(&mut self, group: MappedGroup) {
        self.groups.push(group);
    }

    /// Keeps some.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&MappedGroup) -> bool) {
        self.groups.retain(keep);
    }

    /// Maps each row to another stack and allocator.
    pub(crate) fn merge(&mut self, key: impl Fn(&Group) -> (StackId, Allocator)) {
        for group in &mut self.groups {
            (group.stack, group.allocator) = key(&Group::new(group.stack, group.allocator, group.thread));
        }
    }
}

impl FromIterator<MappedGroup> for Mapped {
    fn from_iter<I: IntoIterator<Item = MappedGroup>>(groups: I) -> Self {
        Self { groups: groups.into_iter().collect() }
    }
}
