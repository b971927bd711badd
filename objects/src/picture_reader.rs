//! Reads a picture of a process: the objects that the garbage collector lists, and what they refer to.
//!
//! Invariant: each address is one object; what is no object, or cannot be read, is counted.

use memtrack_format::objects::{HolderKind, PicturedObject, PicturedRoot, StoredPicture};
use memtrack_inject::ProcessView;

use crate::addresses::AddressTable;
use crate::graph::Holders;
use crate::interpreter::PythonRuntime;
use crate::labels::{LabelReader, LabelTexts};
use crate::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::mimalloc;
use crate::picture::ObjectPicture;
use crate::references::{ReferencePlace, ReferenceReader};
use crate::size::own_bytes;
use crate::types::TypeTable;

/// Bytes of the collector's header, before each of its objects; its low bits are flags.
const HEADER: u64 = 16;
const POINTER: u64 = !3;
/// In an object of a free-threaded build: bits of the collector, the counts of references, and the count of what never ends.
const COLLECTOR_BITS: u64 = 11;
const LOCAL_COUNT: u64 = 12;
const SHARED_COUNT: u64 = 16;
const TRACKED: u8 = 1;
const UNREACHABLE: u8 = 4;
const FROZEN: u8 = 8;
/// No bit of the collector: what a block is filled with has it.
const FILLED: u8 = 128;
const IMMORTAL: u32 = u32::MAX;
/// What is added to the shared count of an object whose references are counted late.
const COUNTED_LATE: i64 = i64::MAX / 8;
/// What a block is filled with before and after there is an object, if the interpreter checks what is written to blocks.
const NOT_YET_MADE: u64 = u64::from_le_bytes([0xcd; 8]);
const TAKEN_DOWN: u64 = u64::from_le_bytes([0xdd; 8]);
/// Objects that are read at most.
const MOST_OBJECTS: usize = 1 << 30;
/// Counts of references above this are none: those of objects that never end are below.
const MOST_REFERENCES: u64 = 1 << 33;
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
        by_address: AddressTable::default(),
        unreadable: 0,
    };
    if runtime.layout.is_free_threaded() {
        builder.blocks(view, runtime);
    } else {
        let lists = runtime.lists(&memory);
        for (number, head) in lists.iter().enumerate() {
            builder.list(*head, number % 4 != 3);
        }
    }
    let (roots, early_roots) = builder.roots(runtime, reader);
    let (first_reference, references) = builder.follow(runtime, reader);
    let new_rows = builder.sort();
    let PictureBuilder { types, objects, by_address, unreadable, .. } = builder;
    let (first_reference, references) = renumbered(&new_rows, &first_reference, &references);
    let mut texts = LabelTexts::default();
    let type_texts = types.names(|name| texts.row(name));
    let stored = StoredPicture {
        minor: runtime.layout.minor,
        unreadable,
        types: type_texts,
        objects,
        first_reference,
        references,
        ..StoredPicture::default()
    };
    let mut picture = ObjectPicture { stored, early_roots };
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
    fn list(&mut self, head: u64, is_tracked: bool) {
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
                Some(type_number) => {
                    self.add(address, type_number, is_tracked);
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
        let found = mimalloc::collected_blocks(memory, mimalloc::places(view), known, |address| {
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
                Some(of) => {
                    self.add(address, of, bits & (UNREACHABLE | FROZEN) == 0);
                }
                None => self.unreadable += 1,
            }
        });
        self.unreadable += found.unreadable;
    }

    /// The type of the object at this address, if there is one.
    fn type_at(&self, address: u64) -> Option<u32> {
        if !address.is_multiple_of(8) || !(4096..1 << 47).contains(&address) {
            return None;
        }
        let references = if self.layout.is_free_threaded() {
            self.references_of_two_counts(address)?
        } else {
            // Above the count are flags from 3.14 on.
            self.memory.u64(address)? & COUNT
        };
        if references == 0 || references >= MOST_REFERENCES {
            return None;
        }
        self.types.number(self.layout.type_of(self.memory, address)?)
    }

    /// References of an object that has a count for its own thread, and one for all others, which has two flags below.
    fn references_of_two_counts(&self, address: u64) -> Option<u64> {
        let local = self.memory.u32(address.wrapping_add(LOCAL_COUNT))?;
        let shared = self.memory.u64(address.wrapping_add(SHARED_COUNT))?.cast_signed() >> 2;
        if local == IMMORTAL || shared.abs_diff(COUNTED_LATE) < MOST_REFERENCES {
            return Some(1);
        }
        u64::try_from(i64::from(local) + shared).ok()
    }

    fn add(&mut self, address: u64, type_number: u32, is_tracked: bool) -> u32 {
        let number = self.objects.len() as u32;
        self.objects.push(PicturedObject { address, own_bytes: 0, type_number, is_tracked });
        self.by_address.insert(address, number);
        number
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
        let type_number = self.type_at(address)?;
        Some(self.add(address, type_number, false))
    }

    /// Puts the objects in the order of their addresses; returns the new row of each.
    fn sort(&mut self) -> Vec<u32> {
        let mut new_rows = vec![0; self.objects.len()];
        let mut sorted = Vec::with_capacity(self.objects.len());
        self.by_address.renumber(|old| {
            if let (Some(row), Some(object)) = (new_rows.get_mut(old as usize), self.objects.get(old as usize)) {
                *row = sorted.len() as u32;
                sorted.push(*object);
            }
        });
        self.objects = sorted;
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
            } else if let Some(of) = self.type_at(frame).and_then(|of| self.types.get(of)) {
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
    fn follow(&mut self, runtime: &PythonRuntime, reader: ReferenceReader<'_>) -> (Vec<u64>, Vec<u32>) {
        let (mut first, mut references) = (vec![0], Vec::new());
        let mut held = Vec::new();
        let mut object = 0;
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
        (first, references)
    }
}
