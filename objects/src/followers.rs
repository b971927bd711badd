//! Threads that read objects side by side: their sizes, and what they refer to.
//!
//! While a program stands still for its picture, its processors have nothing else to do. Invariant: what is read of an object does
//! not depend on the thread that reads it, nor on what it reads beside it; numbers are given by one thread, in their order.

use std::sync::Arc;

use memtrack_format::objects::PicturedObject;
use memtrack_inject::ProcessView;
use rustc_hash::FxHashMap;

use crate::addresses::AddressTable;
use crate::found_objects::ObjectHead;
use crate::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::references::ReferenceReader;
use crate::size::own_bytes;
use crate::static_types::StaticTypes;
use crate::types::{ObjectType, TypeTable};

/// Objects for which no thread is started.
const FEW: usize = 4 << 10;
/// Set in the number of an object that has no row yet.
const NEW: u32 = 1 << 31;

/// What was read of some objects.
#[derive(Debug, Default)]
pub(crate) struct FollowedObjects {
    /// Of each object; `None`: it cannot be read.
    pub(crate) sizes: Vec<Option<u64>>,
    /// Of each object, where its references end.
    ends: Vec<usize>,
    references: Vec<u32>,
    new: Vec<(u64, ObjectHead)>,
    /// Objects whose references could not all be read.
    pub(crate) unreadable: u64,
}

/// An object that another refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowedReference {
    /// Its row.
    Known(u32),
    /// It had no row.
    New(u64, ObjectHead),
}

impl FollowedObjects {
    fn clear(&mut self) {
        self.sizes.clear();
        self.ends.clear();
        self.references.clear();
        self.new.clear();
        self.unreadable = 0;
    }

    /// The references of the object with this number among these, as they were found.
    pub(crate) fn references_of(&self, number: usize) -> impl Iterator<Item = FollowedReference> {
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        let references = self.references.get(begin..self.ends[number]).unwrap_or_default();
        references.iter().map(|&reference| {
            let (address, head) = self.new.get((reference & !NEW) as usize).copied().unwrap_or_default();
            if reference & NEW == 0 {
                FollowedReference::Known(reference)
            } else {
                FollowedReference::New(address, head)
            }
        })
    }
}

/// What several threads read with.
#[derive(Clone, Copy)]
struct Shared<'a> {
    layout: &'a ObjectLayout,
    static_types: &'a StaticTypes,
    types: &'a [Arc<ObjectType>],
    leaves: &'a FxHashMap<u64, u32>,
    rows: &'a AddressTable,
}

/// The threads, each with memory of its own.
pub(crate) struct Followers<'a> {
    layout: &'a ObjectLayout,
    static_types: &'a StaticTypes,
    types: Vec<Arc<ObjectType>>,
    /// The numbers of those whose objects refer to nothing, by address.
    leaves: FxHashMap<u64, u32>,
    memories: Vec<ObjectMemory<'a>>,
    parts: Vec<FollowedObjects>,
}

impl<'a> Followers<'a> {
    /// So many threads.
    pub(crate) fn new(
        view: &'a ProcessView,
        layout: &'a ObjectLayout,
        static_types: &'a StaticTypes,
        threads: usize,
    ) -> Self {
        let memories: Vec<_> = (0..threads.max(1)).map(|_| ObjectMemory::one_of(view, threads)).collect();
        let parts = memories.iter().map(|_| FollowedObjects::default()).collect();
        Self { layout, static_types, types: Vec::new(), leaves: FxHashMap::default(), memories, parts }
    }

    /// Reads these objects; returns what each thread has read, in their order.
    pub(crate) fn read(
        &mut self,
        objects: &[PicturedObject],
        types: &TypeTable<'_>,
        rows: &AddressTable,
    ) -> &[FollowedObjects] {
        let known = self.types.len();
        types.complete(&mut self.types);
        let new = self.types.iter().zip(0..).skip(known).filter(|(of, _)| of.is_leaf());
        self.leaves.extend(new.map(|(of, number)| (of.address, number)));
        let Self { layout, static_types, types, leaves, .. } = self;
        let shared = Shared { layout, static_types, types, leaves, rows };
        let threads = if objects.len() <= FEW { 1 } else { self.memories.len() };
        self.parts.iter_mut().for_each(FollowedObjects::clear);
        let pieces = objects.chunks(objects.len().div_ceil(threads).max(1));
        std::thread::scope(|scope| {
            let mut work = pieces.zip(self.memories.iter_mut().zip(&mut self.parts));
            let own = work.next();
            for (objects, (memory, part)) in work {
                scope.spawn(move || shared.read(memory, objects, part));
            }
            if let Some((objects, (memory, part))) = own {
                shared.read(memory, objects, part);
            }
        });
        &self.parts
    }

    /// What each thread read with.
    pub(crate) fn into_memories(self) -> Vec<ObjectMemory<'a>> {
        self.memories
    }
}

impl Shared<'_> {
    fn read(&self, memory: &ObjectMemory<'_>, objects: &[PicturedObject], into: &mut FollowedObjects) {
        let Self { layout, static_types, types, rows, .. } = *self;
        let reader = ReferenceReader { memory, layout, static_types };
        let FollowedObjects { sizes, ends, references, new, unreadable } = into;
        for object in objects {
            let mut note = |address: u64| {
                if let Some(row) = rows.get(address) {
                    references.push(row);
                } else if let Some(head) = self.head(memory, address) {
                    references.push(NEW | new.len() as u32);
                    new.push((address, head));
                }
            };
            let of = types.get(object.type_number as usize);
            if object.own_bytes > 0 {
                // A leaf, which was measured when it was found.
                sizes.push(Some(object.own_bytes));
            } else {
                let is_whole = of.is_some_and(|of| reader.each(of, object.address, &mut |_, address| note(address)));
                *unreadable += u64::from(!is_whole);
                sizes.push(of.and_then(|of| own_bytes(memory, layout, of, object.address)));
            }
            // The object's type is kept by it, too, where types are objects of the program.
            of.into_iter().for_each(|of| note(of.address));
            ends.push(references.len());
        }
    }

    /// What an object begins with. Those that refer to nothing are measured at once: their memory is at hand.
    fn head(&self, memory: &ObjectMemory<'_>, address: u64) -> Option<ObjectHead> {
        let head = ObjectHead::read(memory, self.layout, address)?;
        let leaf = self.leaves.get(&head.of).and_then(|number| self.types.get(*number as usize));
        let own_bytes = leaf.and_then(|of| own_bytes(memory, self.layout, of, address)).unwrap_or(0);
        Some(ObjectHead { own_bytes, ..head })
    }
}
