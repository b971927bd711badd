//! What one thread reads of objects: their sizes, what they refer to, and what that begins with.
//!
//! Invariant: what is read of an object does not depend on the thread that reads it, nor on what it reads beside it.

use std::sync::Arc;

use memtrack_format::objects::PicturedObject;
use memtrack_format::pymalloc::LARGEST_BLOCK;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::finding::addresses::AddressTable;
use crate::finding::blocks::{BlockInUse, ScreenedBlocks};
use crate::finding::followed_objects::{FollowedObjects, NEW};
use crate::finding::found_holders::NotedPlace;
use crate::finding::large_objects::{LargeObject, LargeRead, LargeWork, PartReading};
use crate::interpreter::layout::ObjectLayout;
use crate::interpreter::static_types::StaticTypes;
use crate::memory::{ObjectMemory, are_scattered};
use crate::object::instance_values::InstanceValues;
use crate::object::object_head::{ObjectHead, may_be_object};
use crate::object::size::own_bytes;
use crate::object::types::ObjectType;
use crate::prefetch::{PREFETCHED, prefetch};
use crate::references::{ItemPart, ReferenceReader};

/// What objects begin with is so many bytes before and behind their addresses, mostly.
const BEFORE: u64 = 32;
/// So many unknown items of an object are read in the order in which they are found.
const FEW_ITEMS: usize = 16 << 10;

/// The types that are known when some objects are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct TypesSoFar {
    pub(crate) all: Vec<Arc<ObjectType>>,
    /// The numbers of those whose objects refer to nothing, by address.
    pub(crate) leaves: FxHashMap<u64, u32>,
}

/// What a thread reads with.
pub(crate) struct Follower<'a> {
    pub(crate) memory: &'a ObjectMemory<'a>,
    pub(crate) layout: &'a ObjectLayout,
    pub(crate) static_types: &'a StaticTypes,
    pub(crate) rows: &'a AddressTable,
}

/// What a thread is to read.
pub(crate) struct FollowerOrder {
    pub(crate) work: FollowerWork,
    pub(crate) into: FollowedObjects,
    pub(crate) types: Arc<TypesSoFar>,
}

pub(crate) enum FollowerWork {
    /// The objects in what they are read into.
    Objects,
    Large(LargeWork),
    /// Blocks, and the addresses of all types.
    Blocks(Vec<BlockInUse>, Arc<FxHashSet<u64>>),
}

impl Follower<'_> {
    pub(crate) fn execute(&self, order: FollowerOrder) -> FollowedObjects {
        let FollowerOrder { work, into: mut made, types } = order;
        match work {
            FollowerWork::Objects => self.read(&types, &mut made),
            FollowerWork::Large(work) => self.read_large(&work, &types, &mut made),
            FollowerWork::Blocks(blocks, of_types) => made.blocks = self.screen(&blocks, &of_types),
        }
        made
    }

    pub(crate) fn read(&self, types: &TypesSoFar, made: &mut FollowedObjects) {
        let objects = std::mem::take(&mut made.objects);
        self.memory.expect(objects.iter().map(|object| object.address));
        for (some, first) in objects.chunks(PREFETCHED).zip((0..).step_by(PREFETCHED)) {
            let addresses = some.iter().map(|object| object.address);
            self.memory.prefetch(addresses.flat_map(|at| [at.wrapping_sub(BEFORE), at.wrapping_add(BEFORE)]));
            for (object, number) in some.iter().zip(first..) {
                self.read_object(object, number, types, made);
            }
        }
        self.look_up(made.addresses.len(), made);
        self.read_heads(types, made);
        made.objects = objects;
    }

    /// Reads the object with this number among those of the order.
    fn read_object(&self, object: &PicturedObject, number: usize, types: &TypesSoFar, made: &mut FollowedObjects) {
        let of = types.all.get(object.type_number as usize);
        let (mut part, begin) = (ItemPart::FIRST, made.addresses.len());
        let mut is_whole = of.is_some_and(|of| self.note_part(of, object.address, &mut part, made));
        let size = of.and_then(|of| own_bytes(self.memory, self.layout, of, object.address));
        if part.next().is_some() && size.is_some() {
            self.look_up(begin, made);
            let before = made.new.len();
            self.look_up(made.addresses.len(), made);
            if lies_anywhere(&made.new[before..]) {
                made.truncate(begin, before);
                part = part.without_items();
                is_whole = of.is_some_and(|of| self.note_part(of, object.address, &mut part, made));
            }
            made.large.push((number, part));
        }
        // What cannot be read is counted once, and has no bytes: its size may have been overwritten, too. Without a size it is counted
        // by who takes it.
        made.unreadable += u64::from(!is_whole && size.is_some());
        made.sizes.push(size.map(|bytes| if is_whole { bytes } else { 0 }));
        let values = of.map_or(0, |of| InstanceValues::bytes(self.memory, self.layout, of, object.address));
        made.value_bytes.extend((values > 0).then_some((object.type_number, values)));
        // The object's type is kept by it, too, where types are objects of the program.
        of.into_iter().for_each(|of| note(NotedPlace::NONE, of.address, made));
        made.ends.push(made.addresses.len());
    }

    pub(crate) fn read_large(&self, work: &LargeWork, types: &TypesSoFar, made: &mut FollowedObjects) {
        match work {
            LargeWork::Part(part) => self.read_part(part, types, made),
            LargeWork::Addresses(ascending) => {
                made.part = Some(LargeRead::Addresses);
                made.new.extend(ascending.iter().map(|address| (*address, ObjectHead::default())));
                made.order.extend(0..made.new.len() as u32);
                self.memory.expect(ascending.iter().copied());
                made.new.iter_mut().for_each(|(address, head)| *head = self.head_or_none(*address, types));
            }
        }
    }

    fn read_part(&self, large: &LargeObject, types: &TypesSoFar, made: &mut FollowedObjects) {
        let LargeObject { row, object, part, reading } = large;
        let of = types.all.get(object.type_number as usize);
        let is_whole = of.is_some_and(|of| self.note_part(of, object.address, &mut part.clone(), made));
        self.look_up(made.addresses.len(), made);
        if *reading == PartReading::Collecting {
            made.part = Some(LargeRead::Collected(large.clone(), is_whole));
            return;
        }
        made.part = Some(LargeRead::Part(*row));
        made.unreadable += u64::from(!is_whole);
        self.read_heads(types, made);
    }

    /// Reads what everything begins with that has no row, by address where that is scattered.
    fn read_heads(&self, types: &TypesSoFar, made: &mut FollowedObjects) {
        let FollowedObjects { new, order, .. } = made;
        self.memory.expect(later_half(new));
        let read = |(address, head): &mut (u64, ObjectHead)| *head = self.head_or_none(*address, types);
        if self.memory.is_scattered() {
            order.extend(0..new.len() as u32);
            order.sort_unstable_by_key(|number| new[*number as usize].0);
            for some in order.chunks(PREFETCHED) {
                self.memory.prefetch(some.iter().map(|number| new[*number as usize].0));
                some.iter().for_each(|number| read(&mut new[*number as usize]));
            }
        } else {
            new.iter_mut().for_each(read);
        }
    }

    /// Leaves out blocks with nothing new: with an object that has a row, unless it is in a large block, and those in which
    /// nothing is the address of a type.
    pub(crate) fn screen(&self, blocks: &[BlockInUse], of_types: &FxHashSet<u64>) -> ScreenedBlocks {
        let has_type = |at: u64| self.layout.type_of(self.memory, at).is_some_and(|of| of_types.contains(&of));
        let mut screened = ScreenedBlocks::default();
        self.memory.expect(blocks.iter().map(|block| block.address));
        for block in blocks {
            match block.known(self.rows) {
                Some(_) if block.size <= LARGEST_BLOCK => {}
                None if !block.places(self.memory).1.any(has_type) => screened.others.push(*block),
                _ => screened.new.push(*block),
            }
        }
        screened
    }

    /// Notes what an object refers to; returns whether all could be read.
    fn note_part(&self, of: &ObjectType, address: u64, part: &mut ItemPart, made: &mut FollowedObjects) -> bool {
        let Self { memory, layout, static_types, .. } = *self;
        let reader = ReferenceReader { memory, layout, static_types };
        reader.part(of, address, part, &mut |place, address| note(NotedPlace::of(place), address, made))
    }

    /// Looks up the first addresses, so many.
    fn look_up(&self, end: usize, made: &mut FollowedObjects) {
        let FollowedObjects { addresses, references, new, .. } = made;
        let begin = references.len();
        for some in addresses[begin..end].chunks(PREFETCHED) {
            if self.memory.is_shared() {
                prefetch(some.iter().map(|address| self.rows.to_prefetch(*address)));
            }
            references.extend(some.iter().map(|address| {
                self.rows.get(*address).unwrap_or_else(|| {
                    if new.len() < !NEW as usize {
                        new.push((*address, ObjectHead::default()));
                        return NEW | (new.len() - 1) as u32;
                    }
                    // There is no such number: it is no object.
                    u32::MAX
                })
            }));
        }
    }

    /// The same as [`Self::head`]; one without a type where there is no object.
    fn head_or_none(&self, address: u64, types: &TypesSoFar) -> ObjectHead {
        self.head(address, types).unwrap_or_default()
    }

    /// What an object begins with. Those that refer to nothing are measured at once: their memory is at hand. What has no size
    /// then is none of them.
    fn head(&self, address: u64, types: &TypesSoFar) -> Option<ObjectHead> {
        let head = ObjectHead::read(self.memory, self.layout, address)?;
        let leaf = types.leaves.get(&head.of).and_then(|number| types.all.get(*number as usize));
        let own_bytes = leaf.map_or(Some(0), |of| own_bytes(self.memory, self.layout, of, address))?;
        Some(ObjectHead { own_bytes, ..head })
    }
}

/// Whether these have to be read in the order of their addresses, with all others of the same object.
fn lies_anywhere(new: &[(u64, ObjectHead)]) -> bool {
    new.len() > FEW_ITEMS && are_scattered(later_half(new))
}

/// The addresses from the middle on: what comes first may be what all have.
fn later_half(new: &[(u64, ObjectHead)]) -> impl Iterator<Item = u64> {
    new[new.len() / 2..].iter().map(|(address, _)| *address)
}

/// Notes a reference.
fn note(place: NotedPlace, address: u64, made: &mut FollowedObjects) {
    if may_be_object(address) {
        made.addresses.push(address);
        made.places.push(place);
    }
}
