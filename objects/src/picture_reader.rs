//! Reads a picture of a process: the objects that the garbage collector lists, and what they refer to.
//!
//! Invariant: each address is one object; what is no object, or cannot be read, is counted.

use memtrack_format::objects::{CollectorList, HolderKind, PicturedObject, PicturedRoot, PicturedType, StoredPicture};
use memtrack_inject::ProcessView;

use crate::addresses::AddressTable;
use crate::blocks::BlockPlaces;
use crate::graph::Holders;
use crate::interpreter::PythonRuntime;
use crate::labels::{LabelReader, LabelTexts};
use crate::layout::ObjectLayout;
use crate::memory::{GUARD, GUARDED, ObjectMemory};
use crate::mimalloc;
use crate::picture::ObjectPicture;
use crate::pymalloc::PoolLayout;
use crate::reference_count::{IMMORTAL, MOST_REFERENCES, ReferenceCount};
use crate::references::{ReferencePlace, ReferenceReader};
use crate::size::own_bytes;
use crate::types::{ObjectKind, ObjectType, TypeTable};

/// Bytes of the collector's header, before each of its objects; its low bits are flags.
const HEADER: u64 = 16;
const POINTER: u64 = !3;
/// Bytes of an object up to and with its type.
const HEAD: u64 = 16;
/// Bytes of the pointers before that, in objects of types that have such.
const PREFIX: u64 = 16;
/// In an object of a free-threaded build: bits of the collector, the counts of references, and the count of what never ends.
const COLLECTOR_BITS: u64 = 11;
const LOCAL_COUNT: u64 = 12;
const SHARED_COUNT: u64 = 16;
const TRACKED: u8 = 1;
const UNREACHABLE: u8 = 4;
const FROZEN: u8 = 8;
const COUNTED_LATE: u8 = 64;
/// No bit of the collector: what a block is filled with has it.
const FILLED: u8 = 128;
/// What a block is filled with before and after there is an object, if the interpreter checks what is written to blocks.
const NOT_YET_MADE: u64 = u64::from_le_bytes([0xcd; 8]);
const TAKEN_DOWN: u64 = u64::from_le_bytes([0xdd; 8]);
/// The hash of an object without one of its own is its address, shifted.
const HASH_SHIFT: u32 = 4;
/// Bytes of the smallest text.
const LEAST_TEXT: u64 = 40;
/// Objects that are read at most.
const MOST_OBJECTS: usize = 1 << 30;
const COUNT: u64 = (1 << 48) - 1;

/// What is read of a process besides types and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureDetail<'a> {
    /// What refers to what, without names.
    References,
    /// How the objects are called that [`ObjectPicture::find`] finds for this.
    PathsTo(&'a str),
    /// How all objects are called.
    Paths,
}

/// A root whose name is not read yet: the frame and the place in it; `None`: the table of modules.
type FoundRoot = (u32, Option<(u64, ReferencePlace)>);

struct PictureBuilder<'a> {
    memory: &'a ObjectMemory<'a>,
    layout: &'a ObjectLayout,
    types: TypeTable<'a>,
    objects: Vec<PicturedObject>,
    reference_counts: Vec<u32>,
    /// References to each that were found.
    found_counts: Vec<u32>,
    by_address: AddressTable,
    unreadable: u64,
}

/// Reads the objects of a process that stands still.
pub fn read_objects(view: &ProcessView, runtime: &PythonRuntime, detail: PictureDetail<'_>) -> ObjectPicture {
    let memory = ObjectMemory::new(view);
    let reader = ReferenceReader { memory: &memory, layout: &runtime.layout };
    let mut builder = PictureBuilder {
        memory: &memory,
        layout: &runtime.layout,
        types: TypeTable::new(&memory, &runtime.layout, runtime.type_type),
        objects: Vec::new(),
        reference_counts: Vec::new(),
        found_counts: Vec::new(),
        by_address: AddressTable::default(),
        unreadable: 0,
    };
    if runtime.layout.is_free_threaded() {
        builder.blocks(view, runtime);
    } else {
        let lists = runtime.lists(&memory);
        for (number, head) in lists.iter().enumerate() {
            builder.list(*head, CollectorList::of_generation(number % 4));
        }
    }
    let (roots, early_roots) = builder.roots(runtime, reader);
    let (first_reference, references) = builder.follow(view, runtime, reader);
    let (unexplained, uncounted) = (builder.unexplained(), builder.uncounted());
    let new_rows = builder.sort();
    let PictureBuilder { types, objects, reference_counts, by_address, unreadable, .. } = builder;
    let (first_reference, references) = renumbered(&new_rows, &first_reference, &references);
    let mut texts = LabelTexts::default();
    let pictured_types =
        types.each(|of| PicturedType { text: texts.row(&of.name), is_conservative: of.is_conservative });
    let stored = StoredPicture {
        minor: runtime.layout.minor,
        unreadable,
        types: pictured_types,
        objects,
        reference_counts,
        first_reference,
        references,
        ..StoredPicture::default()
    };
    let renumbered = |old: Vec<u32>| {
        let mut new: Vec<u32> = old.iter().map(|old| new_rows[*old as usize]).collect();
        new.sort_unstable();
        new
    };
    let (unexplained, uncounted) = (renumbered(unexplained), renumbered(uncounted));
    let mut picture = ObjectPicture { stored, early_roots, unexplained, uncounted };
    let mut labels = LabelReader::new(reader, &types, &by_address, texts);
    let new_row = |old: u32| new_rows.get(old as usize).copied().unwrap_or(0);
    let named = roots.into_iter().map(|(object, frame)| PicturedRoot {
        object: new_row(object),
        text: frame.map(|(frame, place)| labels.root(frame, place)),
    });
    picture.stored.roots = named.collect();
    picture.stored.texts = labels.texts();
    if detail != PictureDetail::References {
        let (parents, rings) = Holders::find(&picture).into_parents();
        let wanted = match detail {
            PictureDetail::PathsTo(wanted) => Some(picture.on_paths(&parents, wanted)),
            _ => None,
        };
        picture.stored.holders = labels.holders(&picture.stored.objects, &parents, wanted.as_deref());
        picture.stored.texts = labels.texts();
        for ring in rings {
            if let Some(holder) = picture.stored.holders.get_mut(ring as usize) {
                holder.kind = HolderKind::Ring;
            }
        }
    }
    picture
}

/// The references of objects that have new rows, ascending again.
fn renumbered(new_rows: &[u32], first: &[u64], references: &[u32]) -> (Vec<u64>, Vec<u32>) {
    let mut old_rows = vec![0_u32; new_rows.len()];
    for (new, old) in new_rows.iter().zip(0..) {
        old_rows[*new as usize] = old;
    }
    let (mut new_first, mut all) = (vec![0], Vec::with_capacity(references.len()));
    for old in old_rows {
        let begin = all.len();
        let (from, to) = (first[old as usize] as usize, first[old as usize + 1] as usize);
        all.extend(references[from..to].iter().map(|held| new_rows[*held as usize]));
        all[begin..].sort_unstable();
        new_first.push(all.len() as u64);
    }
    (new_first, all)
}

impl PictureBuilder<'_> {
    /// The objects of a list of the collector.
    fn list(&mut self, head: u64, list: CollectorList) {
        let mut at = head;
        loop {
            let Some(next) = self.memory.u64(at).map(|next| next & POINTER) else {
                self.unreadable += 1;
                return;
            };
            if next == head || next == 0 {
                return;
            }
            let address = next.wrapping_add(HEADER);
            // A ring that does not come back to its head ends where it was before.
            if self.by_address.get(address).is_some() || self.objects.len() >= MOST_OBJECTS {
                self.unreadable += 1;
                return;
            }
            match self.type_at(address) {
                Some((type_number, count)) => {
                    self.add(PicturedObject { address, type_number, list, ..PicturedObject::default() }, count);
                }
                None => self.unreadable += 1,
            }
            at = next;
        }
    }

    /// The objects in the blocks of free-threaded builds, which have no lists.
    fn blocks(&mut self, view: &ProcessView, runtime: &PythonRuntime) {
        let memory = self.memory;
        let Some(known) = runtime.module_tables(memory).first().copied() else {
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
                // What never ends is not tracked, but an object as any other.
                if memory.u32(address.wrapping_add(LOCAL_COUNT)) == Some(IMMORTAL) {
                    self.number(address);
                }
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
                    let list = match bits & (UNREACHABLE | FROZEN) {
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
    fn type_at(&self, address: u64) -> Option<(u32, u32)> {
        if !address.is_multiple_of(8) || !(4096..1 << 47).contains(&address) {
            return None;
        }
        let count = self.reference_count(address)?;
        if matches!(count, ReferenceCount::Counted(0 | MOST_REFERENCES..)) {
            return None;
        }
        Some((self.types.number(self.layout.type_of(self.memory, address)?)?, count.stored()))
    }

    fn reference_count(&self, address: u64) -> Option<ReferenceCount> {
        if self.layout.is_free_threaded() {
            let local = self.memory.u32(address.wrapping_add(LOCAL_COUNT))?;
            let shared = self.memory.u64(address.wrapping_add(SHARED_COUNT))?;
            return ReferenceCount::of_two(local, shared);
        }
        // Above the count are flags from 3.14 on.
        Some(ReferenceCount::of_one(self.memory.u64(address)? & COUNT, self.layout.minor))
    }

    fn add(&mut self, object: PicturedObject, reference_count: u32) -> u32 {
        let number = self.objects.len() as u32;
        self.objects.push(object);
        self.reference_counts.push(reference_count);
        self.found_counts.push(0);
        self.by_address.insert(object.address, number);
        number
    }

    /// The objects in blocks in use in which none is known: those that C code holds, and the collector does not list.
    fn other_blocks(&mut self, view: &ProcessView) {
        let places = BlockPlaces::of(view, PoolLayout::of(self.layout.minor));
        places.blocks(view, self.memory, |block, size| self.find_in_block(block, size));
    }

    /// Adds the object in a block, if there is one that is not known.
    fn find_in_block(&mut self, block: u64, size: u64) {
        let (memory, layout) = (self.memory, self.layout);
        let guards = [0, GUARDED].map(|at| memory.u64((block + at).wrapping_add(8)).unwrap_or(0));
        let is_guard = |word: u64| word >> 8 == GUARD >> 8;
        let begin = match guards {
            [GUARD, _] => block + GUARDED,
            // What is too large for blocks of pools has a guard of each of the two allocators.
            [other, GUARD] if is_guard(other) => block + 2 * GUARDED,
            [other, _] if is_guard(other) => return,
            _ => block,
        };
        let places = [0, HEADER, HEADER + PREFIX].map(|before| begin + before);
        let mut places = places.into_iter().filter(|at| at + HEAD <= block + size);
        if places.clone().any(|at| self.by_address.get(at).is_some()) {
            return;
        }
        // The first place where a type stands is that of an object, or was: blocks of some types are kept for the next.
        let is_of_a_type = |at: &u64| layout.type_of(memory, *at).is_some_and(|of| self.is_type(of));
        if let Some(at) = places.find(is_of_a_type) {
            let before = at - begin;
            let is_expected = |of: &ObjectType| match before {
                0 => !of.is_collected,
                HEADER => of.is_collected && !of.has_prefix,
                _ => of.is_collected && of.has_prefix,
            };
            self.find_object(at, (block + size).saturating_sub(at), is_expected);
        }
    }

    /// Whether it is the address of a known object that is a type.
    fn is_type(&self, address: u64) -> bool {
        let object = self.by_address.get(address).and_then(|number| self.objects.get(number as usize));
        object.and_then(|object| self.types.get(object.type_number)).is_some_and(|of| of.kind == ObjectKind::Type)
    }

    /// Adds the object at this address, if there is one of a type that is expected there and as small as it must be.
    fn find_object(&mut self, address: u64, room: u64, is_expected: impl Fn(&ObjectType) -> bool) {
        if self.by_address.get(address).is_some() {
            return;
        }
        let found = self.type_at(address).filter(|_| self.objects.len() < MOST_OBJECTS && !self.is_table(address));
        let least = |of: &ObjectType| match of.kind {
            // Texts of one byte for each character have no more than that.
            ObjectKind::Text => of.basic_size.min(self.layout.fields(LEAST_TEXT)),
            _ => of.basic_size,
        };
        let fits = |of: &ObjectType| least(of) <= room && is_expected(of);
        if let Some((type_number, count)) = found.filter(|(of, _)| self.types.get(*of).is_some_and(|of| fits(&of))) {
            self.add(PicturedObject { address, type_number, ..PicturedObject::default() }, count);
        }
    }

    /// Whether the word before what looks like the address of a type is no count, but the address of an object, as in the
    /// items of a list, or the type's hash, as in the keys of a dictionary. In programs with low addresses such words are small.
    fn is_table(&self, address: u64) -> bool {
        let (Some(first), Some(of)) = (self.memory.u64(address), self.layout.type_of(self.memory, address)) else {
            return true;
        };
        !self.layout.is_free_threaded() && (first == of >> HASH_SHIFT || self.type_at(first).is_some())
    }

    /// The number of the object at this address, which is added if it is new.
    fn number(&mut self, address: u64) -> Option<u32> {
        if address == 0 {
            return None;
        }
        if let Some(number) = self.by_address.get(address) {
            return Some(number);
        }
        if self.objects.len() >= MOST_OBJECTS {
            return None;
        }
        let (type_number, count) = self.type_at(address)?;
        Some(self.add(PicturedObject { address, type_number, ..PicturedObject::default() }, count))
    }

    /// The objects that have more references than were found, so that something holds them that is no object.
    fn unexplained(&self) -> Vec<u32> {
        let counts = self.reference_counts.iter().zip(&self.found_counts).zip(0_u32..);
        let more = counts.filter(|((counted, found), _)| counted > found).map(|(_, object)| object);
        more.filter(|object| !self.is_counted_late(self.objects[*object as usize].address)).collect()
    }

    /// The objects to which no references were found, and whose count does not tell whether there are any.
    fn uncounted(&self) -> Vec<u32> {
        let lone = self.found_counts.iter().zip(0_u32..).filter(|(found, _)| **found == 0).map(|(_, object)| object);
        lone.filter(|object| self.is_counted_late(self.objects[*object as usize].address)).collect()
    }

    /// Whether threads count the references to the object each on its own, or not at all while they are on their stacks.
    fn is_counted_late(&self, address: u64) -> bool {
        let bits = || self.memory.u8(address.wrapping_add(COLLECTOR_BITS)).unwrap_or(0);
        self.layout.is_free_threaded() && bits() & COUNTED_LATE != 0
    }

    /// Puts the objects in the order of their addresses; returns the new row of each.
    fn sort(&mut self) -> Vec<u32> {
        let mut new_rows = vec![0; self.objects.len()];
        let mut sorted = Vec::with_capacity(self.objects.len());
        let mut counts = Vec::with_capacity(self.objects.len());
        self.by_address.renumber(|old| {
            if let (Some(row), Some(object)) = (new_rows.get_mut(old as usize), self.objects.get(old as usize)) {
                *row = sorted.len() as u32;
                sorted.push(*object);
                counts.extend(self.reference_counts.get(old as usize));
            }
        });
        (self.objects, self.reference_counts) = (sorted, counts);
        new_rows
    }

    /// What modules and the frames of threads hold; the first ones, so many, are modules and variables, from which all that
    /// they reach is called.
    fn roots(&mut self, runtime: &PythonRuntime, reader: ReferenceReader<'_>) -> (Vec<FoundRoot>, usize) {
        let tables = runtime.module_tables(self.memory);
        let mut roots: Vec<FoundRoot> = tables.into_iter().filter_map(|at| Some((self.number(at)?, None))).collect();
        let mut others: Vec<FoundRoot> = Vec::new();
        for frame in runtime.frames(self.memory).into_iter().flatten() {
            let mut held = Vec::new();
            if runtime.layout.has_light_frames() {
                reader.frame(frame, &mut |place, address| held.push((place, address)));
            } else if let Some(of) = self.type_at(frame).and_then(|(of, _)| self.types.get(of)) {
                held.push((ReferencePlace::Field(0), frame));
                reader.each(&of, frame, &mut |place, address| held.push((place, address)));
            }
            for (place, address) in held {
                let is_local = matches!(place, ReferencePlace::Local(_));
                let into = if is_local { &mut roots } else { &mut others };
                let object = self.number(address);
                into.extend(object.map(|object| (object, Some((frame, place)))));
            }
        }
        let early = roots.len();
        roots.extend(others);
        (roots, early)
    }

    /// Measures all objects and follows their references, those of objects that are found on the way included.
    fn follow(
        &mut self,
        view: &ProcessView,
        runtime: &PythonRuntime,
        reader: ReferenceReader<'_>,
    ) -> (Vec<u64>, Vec<u32>) {
        let (mut first, mut references) = (vec![0], Vec::new());
        self.follow_rest(runtime, reader, (&mut first, &mut references));
        if !self.layout.is_free_threaded() {
            self.other_blocks(view);
            self.follow_rest(runtime, reader, (&mut first, &mut references));
        }
        (first, references)
    }

    /// The same for those that have no row in `first` yet.
    fn follow_rest(
        &mut self,
        runtime: &PythonRuntime,
        reader: ReferenceReader<'_>,
        (first, references): (&mut Vec<u64>, &mut Vec<u32>),
    ) {
        let mut held = Vec::new();
        let mut object = first.len() - 1;
        while let Some(PicturedObject { address, type_number, .. }) = self.objects.get(object).copied() {
            held.clear();
            let of = self.types.get(type_number);
            let is_whole = of.as_ref().is_some_and(|of| reader.each(of, address, &mut |_, address| held.push(address)));
            self.unreadable += u64::from(!is_whole);
            match of.and_then(|of| own_bytes(self.memory, &runtime.layout, &of, address)) {
                Some(bytes) => self.objects[object].own_bytes = bytes,
                None => self.unreadable += 1,
            }
            let begin = references.len();
            references.extend(held.iter().filter_map(|address| self.number(*address)));
            // The object's type is kept by it, too, where types are objects of the program.
            if let Some(own) = self.layout.type_of(self.memory, address).and_then(|own| self.number(own)) {
                references.push(own);
            }
            for held in &references[begin..] {
                self.found_counts[*held as usize] = self.found_counts[*held as usize].saturating_add(1);
            }
            references[begin..].sort_unstable();
            let mut kept = begin;
            for at in begin..references.len() {
                if at == begin || references[at] != references[kept - 1] {
                    references[kept] = references[at];
                    kept += 1;
                }
            }
            references.truncate(kept);
            first.push(references.len() as u64);
            object += 1;
        }
    }
}
