//! Reads a picture of a process: its objects, what they refer to, and what holds them.
//!
//! Invariant: the rows of a picture are its objects in the order of their addresses, whatever the order in which they were found.

use memtrack_format::objects::{HolderKind, PicturedObject, PicturedRoot, PicturedType, StoredPicture};
use memtrack_inject::ProcessView;

use crate::addresses::AddressTable;
use crate::followed_objects::{FollowedObjects, FollowedReference};
use crate::followers::{AT_ONCE, FollowerMemories, Followers};
use crate::found_holders::NotedPlace;
use crate::found_objects::FoundObjects;
use crate::found_references::{FoundReferences, ReferenceSpan, in_rows};
use crate::graph::Holders;
use crate::interned::interned_texts;
use crate::interpreter::PythonRuntime;
use crate::label_threads::{HeldObjects, read_holders};
use crate::labels::{KnownLabels, LabelReader, LabelTexts};
use crate::memory::{ObjectMemory, pieces_of};
use crate::picture::ObjectPicture;
use crate::references::{ReferencePlace, ReferenceReader};
use crate::side_by_side::SideWork;
use crate::types::{ObjectKind, TypeTable};

/// Of the memory that all threads may keep, one in so many parts is for what one thread reads before and after.
const PARTS: usize = 8;

/// After so many objects of the collector's lists, threads are given those to read.
const LISTED_AT_ONCE: usize = 8 << 10;

/// Objects that are sorted before they are read, at least; of so many orders it is looked what memory they read; and how often each
/// piece of memory may be read without it.
const LEAST_SORTED: usize = 8 * AT_ONCE;
const SAMPLED_ORDERS: usize = 4;
const MOST_TIMES_READ: usize = 3;

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

/// What holds a root.
#[derive(Clone, Copy, Debug)]
enum RootHolder {
    /// It is the table of modules.
    Modules,
    /// A frame, in a place of it.
    Frame(u64, ReferencePlace),
    /// The interpreter itself has it: it is a static type.
    Interpreter,
    /// It is the dictionary of interned strings.
    Interned,
    /// Nothing needs to: it is immortal.
    Immortal,
}

/// How far objects have been read.
#[derive(Debug, Default)]
struct Following {
    references: FoundReferences,
    /// Of [`FoundObjects::unmeasured`]: those that threads have been told to read, and those of which that is known.
    sent: usize,
    taken: usize,
    /// Those of which it was considered in which order they are read.
    considered: usize,
    /// Rows among which those are taken that were measured when they were found.
    measured: usize,
}

/// A root whose name is not read yet.
type FoundRoot = (u32, RootHolder);

/// Reads the objects of a process that stands still, in so many threads. Where its allocator is not known, `recorded` is asked
/// for address and size of all blocks in use, as a recording knows them.
pub fn read_objects(
    view: &ProcessView,
    runtime: &PythonRuntime,
    detail: PictureDetail<'_>,
    recorded: &mut dyn FnMut() -> Vec<(u64, u64)>,
    threads: usize,
) -> ObjectPicture {
    let memory = ObjectMemory::one_of(view, PARTS);
    let static_types = runtime.static_types(&memory);
    let reader = ReferenceReader { memory: &memory, layout: &runtime.layout, static_types: &static_types };
    let by_address = AddressTable::default();
    let mut builder = FoundObjects {
        memory: &memory,
        layout: &runtime.layout,
        types: TypeTable::new(&memory, &runtime.layout, runtime.type_type),
        objects: Vec::new(),
        reference_counts: Vec::new(),
        holders: Vec::new(),
        unmeasured: Vec::new(),
        type_references: Vec::new(),
        by_address: &by_address,
        unreadable: 0,
        is_at_rest: runtime.is_at_rest(view),
        classes_in_blocks: 0,
    };
    if runtime.layout.is_free_threaded() {
        builder.blocks(view, runtime);
    }
    let mut memories = FollowerMemories::new(view, &runtime.layout, &static_types, threads);
    let (found, mut roots, early) = builder.follow((view, runtime, reader), &mut memories, recorded);
    // What is next takes as much memory, which the system has to clear unless it has just got it back.
    memories.forget();
    builder.complete_lists();
    roots.extend(builder.static_types());
    let late_roots = early..roots.len();
    let misses_large = !runtime.layout.is_free_threaded() && builder.misses_large();
    roots.extend(builder.last_roots());
    let (unexplained, uncounted) = (builder.unexplained(), builder.uncounted());
    let rows = by_address.renumber(threads);
    let FoundObjects { types, objects, reference_counts, holders, unreadable, is_at_rest, .. } = builder;
    let (first_parts, parts_unreadable) = (found.first_parts(&rows), found.unreadable_rows());
    // Types were numbered as they were found, which depends on how fast threads are.
    let type_numbers = types.sort();
    let in_types = |of: PicturedObject| {
        let type_number = type_numbers.get(of.type_number as usize).copied().unwrap_or(of.type_number);
        PicturedObject { type_number, ..of }
    };
    let (mut sorted, mut sorted_counts) = (Vec::new(), Vec::new());
    let others: Vec<SideWork<'_>> = vec![
        Box::new(|| sorted = rows.old.iter().map(|row| in_types(objects[*row as usize])).collect()),
        Box::new(|| sorted_counts = in_rows(&rows.old, &reference_counts)),
    ];
    let (first_reference, references) = found.renumbered(&rows, threads, others);
    drop((objects, reference_counts));
    let mut texts = LabelTexts::default();
    let pictured_types = types.each(|of| PicturedType {
        text: texts.row(&of.name),
        is_conservative: of.is_conservative,
        is_size_partial: of.is_size_partial,
    });
    let stored = StoredPicture {
        minor: runtime.layout.minor,
        is_consistent: is_at_rest || !misses_large,
        misses_large,
        unreadable,
        types: pictured_types,
        objects: sorted,
        reference_counts: sorted_counts,
        first_reference,
        references,
        ..StoredPicture::default()
    };
    let (unexplained, uncounted) = (rows.of_all(&unexplained), rows.of_all(&uncounted));
    let classes = types.each(|of| by_address.get(of.address));
    let mut picture = ObjectPicture { stored, late_roots, unexplained, uncounted, classes };
    let known = types.known();
    let mut labels = KnownLabels::of(texts);
    let mut named = LabelReader { reader, types: &known, rows: &by_address, known: &mut labels };
    let new_row = |old: u32| rows.new.get(old as usize).copied().unwrap_or(0);
    let roots = roots.into_iter().map(|(old, holder)| {
        let object = new_row(old);
        let text = root_text(holder, picture.stored.objects.get(object as usize), &types, &mut named);
        PicturedRoot { object, text }
    });
    picture.stored.roots = roots.collect();
    let mut texts = labels.texts;
    // What is wanted is called by the names of types.
    picture.stored.texts = texts.since(0).to_vec();
    if detail != PictureDetail::References {
        let (parents, rings) = Holders::find(&picture).into_parents();
        let wanted = match detail {
            PictureDetail::PathsTo(wanted) => Some(picture.on_paths(&parents, wanted)),
            _ => None,
        };
        let (wanted, first_parts, noted) = (wanted.as_deref(), &first_parts, (holders.as_slice(), &rows));
        let unreadable = &parts_unreadable;
        let held = HeldObjects { picture: &picture, parents: &parents, first_parts, noted, unreadable, wanted };
        let (own, mut others) = memories.into_own_and_others();
        let (from, by) = ((ReferenceReader { memory: &own, ..reader }, others.as_mut_slice()), (&known, &by_address));
        picture.stored.holders = read_holders(from, by, held, &mut texts);
        for ring in rings {
            if let Some(holder) = picture.stored.holders.get_mut(ring as usize) {
                holder.kind = HolderKind::Ring;
            }
        }
    }
    picture.stored.texts = texts.into_all();
    picture
}

/// The row of the text that a root is called by; `None`: it is the table of modules.
fn root_text(
    holder: RootHolder,
    object: Option<&PicturedObject>,
    types: &TypeTable<'_>,
    named: &mut LabelReader<'_>,
) -> Option<u32> {
    match holder {
        RootHolder::Modules => None,
        RootHolder::Frame(frame, place) => Some(named.root(frame, place)),
        RootHolder::Interned => Some(named.row("<interned strings>")),
        RootHolder::Interpreter => {
            let of = object.and_then(|of| types.number(of.address));
            Some(named.row(&format!("<static type {}>", types.short_name(of))))
        }
        RootHolder::Immortal => {
            let of = object.map(|of| of.type_number);
            Some(named.row(&format!("<immortal {}>", types.short_name(of))))
        }
    }
}

impl FoundObjects<'_> {
    /// What modules and the frames of threads hold; the first ones, so many, are modules and variables, from which all that
    /// they reach is called.
    fn roots(&mut self, runtime: &PythonRuntime, reader: ReferenceReader<'_>) -> (Vec<FoundRoot>, usize) {
        let tables = runtime.module_tables(self.memory);
        let mut roots: Vec<FoundRoot> =
            tables.into_iter().filter_map(|at| Some((self.number(at)?, RootHolder::Modules))).collect();
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
                into.extend(object.map(|object| (object, RootHolder::Frame(frame, place))));
            }
        }
        for address in reader.static_types.all(self.memory, self.layout) {
            self.number(address);
        }
        let early = roots.len();
        roots.extend(others);
        (roots, early)
    }

    /// The types that are no objects of the heap: nothing needs to hold them.
    fn static_types(&self) -> Vec<FoundRoot> {
        let statics = self.types_among_objects().filter(|object| !self.types.is_heap_type(object.address));
        let mut addresses: Vec<u64> = statics.map(|object| object.address).collect();
        addresses.sort_unstable();
        let rows = addresses.into_iter().filter_map(|address| self.by_address.get(address));
        rows.map(|row| (row, RootHolder::Interpreter)).collect()
    }

    /// Of what no object refers to, what the interpreter has for itself: the dictionary of interned strings, whose references
    /// to them count no longer, and immortal objects.
    fn last_roots(&mut self) -> Vec<FoundRoot> {
        let mut roots = Vec::new();
        for object in 0..self.objects.len() {
            if self.holders[object].references != 0 {
                continue;
            }
            let PicturedObject { address, type_number, .. } = self.objects[object];
            let kind_of = |number: u32| self.types.get(number).map(|of| of.kind);
            let is_text = |at: u64| {
                let text = self.by_address.get(at).and_then(|text| self.objects.get(text as usize));
                text.map(|text| kind_of(text.type_number) == Some(ObjectKind::Text))
            };
            let is_dictionary = kind_of(type_number) == Some(ObjectKind::Dictionary);
            let texts = is_dictionary.then(|| interned_texts(self.memory, self.layout, address, is_text)).flatten();
            if let Some(texts) = texts {
                roots.push((object as u32, RootHolder::Interned));
                for text in texts.into_iter().filter_map(|at| self.by_address.get(at)) {
                    let found = &mut self.holders[text as usize].references;
                    *found = found.saturating_sub(2);
                }
            } else if self.reference_counts[object] == 0 {
                roots.push((object as u32, RootHolder::Immortal));
            }
        }
        roots
    }

    /// Reads the collector's lists and all that is a root, measures all objects and follows their references, those of objects that
    /// are found on the way included.
    fn follow(
        &mut self,
        (view, runtime, reader): (&ProcessView, &PythonRuntime, ReferenceReader<'_>),
        memories: &mut FollowerMemories<'_>,
        recorded: &mut dyn FnMut() -> Vec<(u64, u64)>,
    ) -> (FoundReferences, Vec<FoundRoot>, usize) {
        let mut following = Following::default();
        let roots = std::thread::scope(|scope| {
            let mut followers = memories.start(scope, self.by_address);
            if !self.layout.is_free_threaded() {
                let is_alone = followers.is_alone();
                let mut listed = 0_usize;
                self.lists(&runtime.lists(self.memory), &mut |found| {
                    listed += 1;
                    if !is_alone && listed.is_multiple_of(LISTED_AT_ONCE) {
                        found.follow_ready(&mut followers, &mut following);
                    }
                });
            }
            let roots = self.roots(runtime, reader);
            self.follow_rest(&mut followers, &mut following);
            if !self.layout.is_free_threaded() {
                self.other_blocks(view, &mut followers);
                if self.misses_large() {
                    self.blocks_in_use(recorded());
                }
                self.follow_rest(&mut followers, &mut following);
            }
            roots
        });
        (following.references, roots.0, roots.1)
    }

    /// Takes what has been read, and has as much read as threads are idle.
    fn follow_ready(&mut self, followers: &mut Followers<'_>, following: &mut Following) {
        while let Some(read) = followers.try_receive() {
            self.take(&read, followers, following);
            followers.take_back(read);
        }
        self.send(followers, following);
    }

    /// Measures all objects of which nothing has been read yet, and follows their references.
    fn follow_rest(&mut self, followers: &mut Followers<'_>, following: &mut Following) {
        loop {
            if !followers.has_parts() {
                self.sort_rest(following);
            }
            self.send(followers, following);
            if let Some(read) = followers.receive() {
                self.take(&read, followers, following);
                followers.take_back(read);
                continue;
            }
            self.take_measured(following);
            if following.sent == self.unmeasured.len() {
                return;
            }
        }
    }

    /// Has the objects that are not read yet read in the order of their addresses, if the same memory would be read several times
    /// otherwise: what a shuffled list refers to, for example. Looks at them again only when there are twice as many.
    fn sort_rest(&mut self, following: &mut Following) {
        let considered = following.considered.saturating_sub(following.sent);
        let rest = self.unmeasured.get_mut(following.sent..).unwrap_or_default();
        if rest.len() < LEAST_SORTED || rest.len() < 2 * considered {
            return;
        }
        following.considered = following.sent + rest.len();
        let objects = &self.objects;
        let address = |row: &u32| objects[*row as usize].address;
        let orders = rest.chunks(AT_ONCE);
        let (count, sampled) = (orders.len(), orders.step_by(rest.len() / AT_ONCE / SAMPLED_ORDERS + 1));
        let (samples, in_samples) =
            (sampled.len(), sampled.map(|order| pieces_of(order.iter().map(address))).sum::<usize>());
        if in_samples * count > samples * self.by_address.pieces() * MOST_TIMES_READ {
            let mut sorted: Vec<(u64, u32)> = rest.iter().map(|row| (address(row), *row)).collect();
            sorted.sort();
            rest.iter_mut().zip(sorted).for_each(|(row, (_, sorted))| *row = sorted);
        }
    }

    /// Has the next objects read.
    fn send(&self, followers: &mut Followers<'_>, following: &mut Following) {
        let rest = self.unmeasured.get(following.sent..).unwrap_or_default();
        following.sent += followers.send(rest, &self.objects, &self.types);
    }

    /// Takes what was read of the next objects, or of a part of one, and has the other parts read.
    fn take(&mut self, read: &FollowedObjects, followers: &mut Followers<'_>, following: &mut Following) {
        let references = &mut following.references;
        for (number, first) in &read.large {
            let row = self.unmeasured[following.taken + number];
            followers.read_rest(row, self.objects[row as usize], first);
            references.begin_parts(row, first.clone());
        }
        let rows = self.unmeasured.get(following.taken..).unwrap_or_default();
        let rows = rows.get(..read.sizes.len()).unwrap_or_default().to_vec();
        self.take_read(read, &rows, references);
        following.taken += rows.len();
        if let Some(row) = read.part_of.filter(|row| references.is_unreadable(*row)) {
            followers.give_up(row);
        }
    }

    /// Takes what was read of the objects in these rows.
    fn take_read(&mut self, read: &FollowedObjects, rows: &[u32], references: &mut FoundReferences) {
        if read.part_of.is_some_and(|row| references.is_unreadable(row)) {
            return;
        }
        self.unreadable += read.unreadable;
        for (address, head) in read.new_by_address() {
            self.number_of(address, head);
        }
        if let Some(row) = read.part_of {
            references.add_part(row, read.references_of_part().filter_map(|held| self.held(row, held)));
            if read.unreadable > 0 {
                references.end_parts(row);
            }
        }
        for ((number, size), row) in read.sizes.iter().enumerate().zip(rows) {
            match (size, self.objects.get_mut(*row as usize)) {
                (Some(bytes), Some(object)) => object.own_bytes = *bytes,
                _ => self.unreadable += 1,
            }
            references.add(*row as usize, read.references_of(number).filter_map(|held| self.held(*row, held)));
        }
    }

    /// Takes objects that were measured when they were found: they refer to their types only.
    fn take_measured(&mut self, following: &mut Following) {
        while let Some(&PicturedObject { own_bytes, type_number, .. }) = self.objects.get(following.measured) {
            let row = following.measured;
            following.measured += 1;
            if own_bytes > 0
                && !following.references.is_read(row)
                && let Some((of, span)) = self.type_reference(type_number, &mut following.references)
            {
                self.holders[of as usize].hold(row as u32, NotedPlace::NONE);
                following.references.put(row, span);
            }
        }
    }

    /// The row of the type with this number, and the reference to it that its objects share.
    fn type_reference(&mut self, number: u32, references: &mut FoundReferences) -> Option<(u32, ReferenceSpan)> {
        if let Some(known) = self.type_references.get(number as usize).copied().flatten() {
            return Some(known);
        }
        let row = self.number(self.types.get(number)?.address)?;
        let made = (row, references.shared(row));
        let all = &mut self.type_references;
        all.resize(all.len().max(number as usize + 1), None);
        all[number as usize] = Some(made);
        Some(made)
    }

    /// The row of an object to which that in the row `holder` refers, noted.
    fn held(&mut self, holder: u32, (reference, place): (FollowedReference, NotedPlace)) -> Option<u32> {
        let held = match reference {
            FollowedReference::Known(row) => row,
            FollowedReference::New(address, head) => self.number_of(address, head)?,
        };
        self.holders[held as usize].hold(holder, place);
        Some(held)
    }
}
