//! The objects that are found in a process, each once: those of the collector's lists and pages, those in other blocks, and
//! what they lead to.
//!
//! Invariant: each address is one object; what is no object, or cannot be read, is counted.

use std::sync::Arc;

use memtrack_format::objects::{CollectorList, PicturedObject};
use memtrack_format::pymalloc::LARGEST_BLOCK;
use memtrack_inject::ProcessView;

use rustc_hash::FxHashMap;

use crate::allocators::mimalloc;
use crate::allocators::pool_headers::PoolHeaders;
use crate::allocators::pymalloc::PoolLayout;
use crate::finding::addresses::{AddressTable, MOST_ROWS};
use crate::finding::blocks::{BlockInUse, BlockPlaces, ScreenedBlocks};
use crate::finding::followers::{AT_ONCE, Followers};
use crate::finding::found_holders::FoundHolders;
use crate::finding::found_references::ReferenceSpan;
use crate::interpreter::PythonRuntime;
use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::block_object::may_be_in_block;
use crate::object::object_head::{HEADER, ObjectHead};
use crate::object::reached_object::{is_table, may_be_reached};
use crate::object::reference_count::{IMMORTAL, LOCAL_COUNT, ReferenceCount};
use crate::object::size::own_bytes;
use crate::object::types::{ObjectKind, ObjectType, TypeTable};
use crate::prefetch::{PREFETCHED, prefetch};

/// The bits of an address in the collector's header; the others are flags.
const POINTER: u64 = !3;
/// In an object of a free-threaded build: bits of the collector.
const COLLECTOR_BITS: u64 = 11;
const TRACKED: u8 = 1;
const UNREACHABLE: u8 = 4;
const FROZEN: u8 = 8;
const COUNTED_LATE: u8 = 64;
/// The first version without a global lock, and the only one in which dictionaries may be untracked.
const FIRST_FREE_THREADED: u8 = 13;
/// No bit of the collector: what a block is filled with has it.
const FILLED: u8 = 128;
/// What a block is filled with before and after there is an object, if the interpreter checks what is written to blocks.
const NOT_YET_MADE: u64 = u64::from_le_bytes([0xcd; 8]);
const TAKEN_DOWN: u64 = u64::from_le_bytes([0xdd; 8]);
/// Members of all lists that are no objects: after more, a list ends with one.
const MOST_MISSED: u64 = 1 << 20;
/// Objects that are read at most.
const MOST_OBJECTS: usize = MOST_ROWS as usize;

/// Objects, and what is known of each.
pub(crate) struct FoundObjects<'a> {
    pub(crate) memory: &'a ObjectMemory<'a>,
    pub(crate) layout: &'a ObjectLayout,
    pub(crate) types: TypeTable<'a>,
    pub(crate) objects: Vec<PicturedObject>,
    pub(crate) reference_counts: Vec<u32>,
    /// What of the references to each is noted.
    pub(crate) holders: FoundHolders,
    /// The rows of those that are to be read, or were: all that were not measured when they were found.
    pub(crate) unmeasured: Vec<u32>,
    /// By number of a type that measured ones are of: its row, and the reference to it that they share.
    pub(crate) type_references: Vec<Option<(u32, ReferenceSpan)>>,
    /// Bytes that the values of all instances of a type have besides their sizes, by the type's number.
    pub(crate) value_bytes: FxHashMap<u32, u64>,
    pub(crate) by_address: &'a AddressTable,
    pub(crate) unreadable: u64,
    /// Whether no collector works.
    pub(crate) is_at_rest: bool,
    /// Known classes that large blocks begin with.
    pub(crate) classes_in_blocks: usize,
    /// Blocks in use in which no object was found, where names are read: pointers are searched in them.
    pub(crate) blocks_without: Vec<BlockInUse>,
    /// Whether all places were looked at in which there may be such.
    pub(crate) has_all_blocks: bool,
}

impl FoundObjects<'_> {
    /// The objects of the collector's lists, by their heads; `each` is called when there is another one.
    pub(crate) fn lists(&mut self, heads: &[u64], each: &mut impl FnMut(&mut Self)) {
        let mut missed = 0;
        for (head, number) in heads.iter().zip(0..) {
            self.list(*head, CollectorList::of_generation(number % 4), (heads, &mut missed), each);
        }
    }

    /// While the collector works, lists change into one another, and some hang on its stack. What is in those
    /// is found in other ways; see [`Self::complete_lists`].
    fn list(
        &mut self,
        head: u64,
        list: CollectorList,
        (heads, missed): (&[u64], &mut u64),
        each: &mut impl FnMut(&mut Self),
    ) {
        let (mut at, mut nodes) = (head, Vec::with_capacity(PREFETCHED));
        loop {
            nodes.clear();
            let end = self.next_nodes(at, heads, &mut nodes);
            at = nodes.last().copied().unwrap_or(at);
            let addresses = nodes.iter().map(|node| node.wrapping_add(HEADER));
            prefetch(addresses.clone().map(|address| self.by_address.to_prefetch(address)));
            for address in addresses {
                if !self.listed(address, list, missed) {
                    self.unreadable += u64::from(self.is_at_rest);
                    return;
                }
                each(self);
            }
            if let Some(is_whole) = end {
                self.unreadable += u64::from(self.is_at_rest && !is_whole);
                return;
            }
        }
    }

    /// Adds the next nodes of a list, [`PREFETCHED`] at most; whether it is whole, if these are the last ones.
    fn next_nodes(&self, mut at: u64, heads: &[u64], nodes: &mut Vec<u64>) -> Option<bool> {
        while nodes.len() < PREFETCHED {
            let Some(next) = self.memory.u64(at).map(|next| next & POINTER) else { return Some(false) };
            if next == 0 || heads.contains(&next) {
                return Some(true);
            }
            nodes.push(next);
            at = next;
        }
        None
    }

    /// Adds an object of a list; `false`: the list goes on no further.
    fn listed(&mut self, address: u64, list: CollectorList, missed: &mut u64) -> bool {
        let (memory, layout) = (self.memory, self.layout);
        let row = self.number_or_add(address, |types| {
            let head = ObjectHead::read(memory, layout, address)?;
            let type_number = types.number(head.of)?;
            Some((PicturedObject { address, type_number, ..PicturedObject::default() }, head.count))
        });
        match row.and_then(|row| self.objects.get_mut(row as usize)) {
            // It is new, or another refers to it that was read meanwhile.
            Some(object) if object.list == CollectorList::Unlisted => object.list = list,
            None if *missed < MOST_MISSED => {
                *missed += 1;
                self.unreadable += u64::from(self.is_at_rest);
            }
            // A ring that does not come back to its head ends where it was before.
            _ => return false,
        }
        true
    }

    /// Says of the objects that were found otherwise, while the collector works, whether they are in one of its lists.
    /// In which one nobody knows then.
    pub(crate) fn complete_lists(&mut self) {
        if self.is_at_rest || self.layout.is_free_threaded() {
            return;
        }
        for number in 0..self.objects.len() {
            let PicturedObject { address, type_number, list, .. } = self.objects[number];
            let has_header = || match self.types.get(type_number) {
                Some(of) if of.kind == ObjectKind::Type => self.types.is_heap_type(address),
                of => of.is_some_and(|of| of.is_collected),
            };
            let is_listed = || self.memory.u64(address.wrapping_sub(HEADER)).is_some_and(|next| next & POINTER != 0);
            if list == CollectorList::Unlisted && has_header() && is_listed() {
                self.objects[number].list = CollectorList::Listed;
            }
        }
    }

    /// The objects in the blocks of free-threaded builds, which have no lists.
    pub(crate) fn blocks(&mut self, view: &ProcessView, runtime: &PythonRuntime) {
        let memory = self.memory;
        let Some((_, known)) = runtime.module_tables(memory).first().copied() else {
            self.unreadable += 1;
            return;
        };
        let found = mimalloc::object_blocks(memory, mimalloc::places(view), known, |block| {
            let address = block.object;
            if !block.is_collected {
                self.find_object(address, block.room, |of| !of.is_collected);
                return;
            }
            if self.objects.len() >= MOST_OBJECTS {
                self.unreadable += 1;
                return;
            }
            let bits = memory.u8(address.wrapping_add(COLLECTOR_BITS)).unwrap_or(0);
            if bits & FILLED != 0 {
                return;
            }
            if bits & TRACKED == 0 {
                // What never ends is not tracked, nor are tuples that can be part of no cycle, and in 3.13
                // dictionaries of texts, as that of interned ones, to which no object refers. Others are being made,
                // or taken down.
                let is_immortal = memory.u32(address.wrapping_add(LOCAL_COUNT)) == Some(IMMORTAL);
                self.find_object(address, block.room, |of| match of.kind {
                    ObjectKind::Tuple => true,
                    ObjectKind::Dictionary => is_immortal || self.layout.minor == FIRST_FREE_THREADED,
                    _ => is_immortal,
                });
                return;
            }
            let of = self.layout.type_of(memory, address);
            if matches!(of, Some(NOT_YET_MADE | TAKEN_DOWN)) {
                return;
            }
            // Those without a reference wait for their thread to take them down.
            match of.and_then(|of| self.types.number(of)).filter(|_| self.by_address.get(address).is_none()) {
                Some(type_number) => {
                    let count = self.reference_count(address).unwrap_or(ReferenceCount::Counted(0)).stored();
                    // While the collector works, what it has not reached yet is no garbage.
                    let unreachable = if self.is_at_rest { UNREACHABLE } else { 0 };
                    let list = match bits & (unreachable | FROZEN) {
                        0 => CollectorList::Listed,
                        FROZEN => CollectorList::Frozen,
                        _ => CollectorList::Unlisted,
                    };
                    self.add(PicturedObject { address, type_number, list, ..PicturedObject::default() }, count);
                }
                None => self.unreadable += 1,
            }
        });
        self.unreadable += found.unreadable;
    }

    /// The type of the object at this address, if there is one, and its references as they are stored.
    pub(crate) fn type_at(&self, address: u64) -> Option<(u32, u32)> {
        let head = ObjectHead::read(self.memory, self.layout, address)?;
        Some((self.types.number(head.of)?, head.count))
    }

    fn reference_count(&self, address: u64) -> Option<ReferenceCount> {
        ReferenceCount::read(self.memory, self.layout, address)
    }

    fn add(&mut self, object: PicturedObject, reference_count: u32) -> Option<u32> {
        self.number_or_add(object.address, |_| Some((object, reference_count)))
    }

    /// The number of the object at an address, where `make` makes one if there is none yet.
    fn number_or_add(
        &mut self,
        address: u64,
        make: impl FnOnce(&TypeTable<'_>) -> Option<(PicturedObject, u32)>,
    ) -> Option<u32> {
        let Self { objects, reference_counts, holders, unmeasured, by_address, types, .. } = self;
        by_address.get_or_insert(address, || {
            let (object, reference_count) = make(types).filter(|_| objects.len() < MOST_OBJECTS)?;
            let number = objects.len() as u32;
            if object.own_bytes == 0 {
                unmeasured.push(number);
            }
            objects.push(object);
            reference_counts.push(reference_count);
            holders.push();
            Some(number)
        })
    }

    /// The objects in blocks in use in which none is known: those that C code holds, and the collector does not list.
    pub(crate) fn other_blocks(&mut self, view: &ProcessView, followers: &mut Followers<'_>) {
        let pools = PoolLayout::of(self.layout.minor);
        let (places, headers) = (BlockPlaces::of(view, pools), PoolHeaders::new(view, pools.bytes()));
        if !self.is_at_rest {
            // A type may be in a block, too, before its objects.
            let memory = self.memory;
            self.has_all_blocks = places.blocks(&headers, memory, |address, size| self.look_into(address, size));
            return;
        }
        let of_types = Arc::new(self.types_among_objects().map(|of| of.address).collect());
        let (mut some, mut kept) = (Vec::with_capacity(AT_ONCE), ScreenedBlocks::of_all(self.holders.has_names()));
        self.has_all_blocks = places.blocks(&headers, self.memory, |block, size| {
            some.push(BlockInUse { address: block, size });
            if some.len() == AT_ONCE {
                let blocks = std::mem::replace(&mut some, Vec::with_capacity(AT_ONCE));
                followers.screen(blocks, &of_types, &mut kept);
            }
        });
        followers.screen(some, &of_types, &mut kept);
        followers.screened(&mut kept);
        let ScreenedBlocks { new, others, .. } = kept;
        new.iter().for_each(|block| self.find_in_block(*block));
        self.blocks_without = others;
        if self.holders.has_names() {
            self.blocks_without.extend(new.into_iter().filter(|block| block.known(self.by_address).is_none()));
        }
    }

    /// The same in blocks that somebody else knows to be in use.
    pub(crate) fn blocks_in_use(&mut self, blocks: impl IntoIterator<Item = (u64, u64)>) {
        (self.classes_in_blocks, self.has_all_blocks) = (0, true);
        blocks.into_iter().for_each(|(address, size)| self.look_into(address, size));
    }

    fn look_into(&mut self, address: u64, size: u64) {
        let block = BlockInUse { address, size };
        self.find_in_block(block);
        let is_kept = self.holders.has_names() && block.known(self.by_address).is_none();
        self.blocks_without.extend(is_kept.then_some(block));
    }

    /// Whether most blocks were not found that are too large for the interpreter's own allocator: classes are in such.
    pub(crate) fn misses_large(&self) -> bool {
        let is_class = |object: &&PicturedObject| self.types.is_heap_type(object.address);
        self.classes_in_blocks < self.types_among_objects().filter(is_class).count() / 2
    }

    /// The objects that are types.
    pub(crate) fn types_among_objects(&self) -> impl Iterator<Item = &PicturedObject> {
        let is_type = self.types.each(|of| of.kind == ObjectKind::Type);
        self.objects.iter().filter(move |object| is_type.get(object.type_number as usize) == Some(&true))
    }

    /// Adds the object in a block, if there is one that is not known.
    fn find_in_block(&mut self, block: BlockInUse) {
        let (memory, layout) = (self.memory, self.layout);
        if let Some(known) = block.known(self.by_address) {
            self.classes_in_blocks += usize::from(block.size > LARGEST_BLOCK && self.is_type(known));
            return;
        }
        // The first place where a type stands is that of an object, or was: blocks of some types are kept for the next.
        let is_of_a_type = |at: &u64| layout.type_of(memory, *at).is_some_and(|of| self.is_type(of));
        let (begin, mut places) = block.places(memory);
        if let Some(at) = places.find(is_of_a_type) {
            let (before, is_at_rest) = (at - begin, self.is_at_rest);
            let is_expected = |of: &ObjectType| match before {
                0 => !of.is_collected,
                HEADER => of.is_collected && !of.has_prefix,
                // Instances of the program's classes are listed all their lives: at rest, another is one that was.
                _ => of.is_collected && of.has_prefix && !is_at_rest,
            };
            self.find_object(at, block.end().saturating_sub(at), is_expected);
        }
    }

    /// Whether it is the address of a known object that is a type.
    fn is_type(&self, address: u64) -> bool {
        let object = self.by_address.get(address).and_then(|number| self.objects.get(number as usize));
        object.and_then(|object| self.types.get(object.type_number)).is_some_and(|of| of.kind == ObjectKind::Type)
    }

    /// Adds the object at this address, if there is one of a type that is expected there and can be in its block.
    fn find_object(&mut self, address: u64, room: u64, is_expected: impl Fn(&ObjectType) -> bool) {
        if self.by_address.get(address).is_some() {
            return;
        }
        let found = self
            .type_at(address)
            .filter(|_| self.objects.len() < MOST_OBJECTS && !is_table(self.memory, self.layout, &self.types, address));
        let fits = |of: &ObjectType| is_expected(of) && may_be_in_block(self.memory, self.layout, of, address, room);
        if let Some((type_number, count)) = found.filter(|(of, _)| self.types.get(*of).is_some_and(|of| fits(&of))) {
            self.add(PicturedObject { address, type_number, ..PicturedObject::default() }, count);
        }
    }

    /// The number of the object at this address, which is added if it is new.
    pub(crate) fn number(&mut self, address: u64) -> Option<u32> {
        if address == 0 {
            return None;
        }
        if let Some(number) = self.by_address.get(address) {
            return Some(number);
        }
        self.number_of(address, ObjectHead::read(self.memory, self.layout, address)?)
    }

    /// The same of one that begins with this.
    pub(crate) fn number_of(&mut self, address: u64, head: ObjectHead) -> Option<u32> {
        if head.of == 0 {
            return None;
        }
        let (memory, layout) = (self.memory, self.layout);
        self.number_or_add(address, |types| {
            let type_number = types.number(head.of)?;
            // A number in a structure of C may be the address of another one, which looks like the head of an object.
            if layout.is_free_threaded() && mimalloc::has_no_objects(memory, address) {
                return None;
            }
            if !may_be_reached(memory, layout, types, (&*types.get(type_number)?, address, head)) {
                return None;
            }
            // Whoever read it may not have known the type.
            let own_bytes = match types.leaf(type_number).filter(|_| head.own_bytes == 0) {
                Some(of) => own_bytes(memory, layout, &of, address)?,
                None => head.own_bytes,
            };
            let object = PicturedObject { address, type_number, own_bytes, ..PicturedObject::default() };
            Some((object, head.count))
        })
    }

    /// The objects that have more references than were found, so that something holds them that is no object.
    pub(crate) fn unexplained(&self) -> Vec<u32> {
        let counts = self.reference_counts.iter().zip(0_u32..);
        let more = counts.filter(|(counted, object)| **counted > self.holders.count(*object)).map(|(_, object)| object);
        more.filter(|object| !self.is_counted_late(self.objects[*object as usize].address)).collect()
    }

    /// The objects to which no references were found, and whose count does not tell whether there are any.
    pub(crate) fn uncounted(&self) -> Vec<u32> {
        let lone = (0..self.objects.len() as u32).filter(|object| self.holders.count(*object) == 0);
        lone.filter(|object| self.is_counted_late(self.objects[*object as usize].address)).collect()
    }

    /// Whether threads count the references to the object each on its own, or not at all while they are on their stacks.
    pub(crate) fn is_counted_late(&self, address: u64) -> bool {
        let bits = || self.memory.u8(address.wrapping_add(COLLECTOR_BITS)).unwrap_or(0);
        self.layout.is_free_threaded() && bits() & COUNTED_LATE != 0
    }
}
