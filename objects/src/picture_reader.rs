//! Reads a picture of a process: its objects, what they refer to, and what holds them.
//!
//! Invariant: the rows of a picture are its objects in the order of their addresses, whatever the order in which they were found.

use std::sync::Arc;

use memtrack_format::objects::{HolderKind, PicturedObject, PicturedRoot, PicturedType, StoredPicture};
use memtrack_inject::ProcessView;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::finding::addresses::AddressTable;
use crate::finding::followers::FollowerMemories;
use crate::finding::found_holders::FoundHolders;
use crate::finding::found_objects::FoundObjects;
use crate::finding::found_references::{FoundReferences, NewRows, in_rows};
use crate::holders::graph::Holders;
use crate::holders::homes::Modules;
use crate::holders::label_threads::{HeldObjects, NotedHolders, read_holders};
use crate::holders::labels::{KnownLabels, LabelReader, LabelTexts};
use crate::holders::roots::{RootHolder, root_text};
use crate::interpreter::PythonRuntime;
use crate::memory::ObjectMemory;
use crate::memory::shared_pieces::SharedPieces;
use crate::object::contents::{ContentsKind, contents_of, count_once};
use crate::object::types::TypeTable;
use crate::picture::{ModuleRows, ObjectPicture};
use crate::pointers::search::SearchedProcess;
use crate::references::ReferenceReader;
use crate::side_by_side::SideWork;

/// Of the memory that all threads may keep, one in so many parts is for what one thread reads before and after.
const PARTS: usize = 8;

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

/// What reading objects may take.
#[derive(Clone, Copy, Debug)]
pub struct ReadingRoom {
    /// Threads that read side by side.
    pub threads: usize,
    /// Called first in each of them, if there are several: it may give other processes precedence.
    pub begin: fn(),
    /// Bytes of the process's memory that are kept while its objects are found, besides 256 MiB: where they lie anywhere, it is
    /// read many times otherwise.
    pub most_kept: u64,
}

/// Reads the objects of a process that stands still. Where its allocator is not known, `recorded` is asked
/// for address and size of all blocks in use, as a recording knows them.
pub fn read_objects(
    view: &ProcessView,
    runtime: &PythonRuntime,
    detail: PictureDetail<'_>,
    recorded: &mut dyn FnMut() -> Vec<(u64, u64)>,
    ReadingRoom { threads, begin, most_kept }: ReadingRoom,
) -> ObjectPicture {
    let shared = Arc::new(SharedPieces::new(most_kept));
    let memory = ObjectMemory::one_of(view, PARTS, &shared);
    let static_types = runtime.static_types(&memory);
    let reader = ReferenceReader { memory: &memory, layout: &runtime.layout, static_types: &static_types };
    let by_address = AddressTable::default();
    let mut builder = FoundObjects {
        memory: &memory,
        layout: &runtime.layout,
        types: TypeTable::new(&memory, &runtime.layout, runtime.type_type),
        objects: Vec::new(),
        reference_counts: Vec::new(),
        holders: FoundHolders::new(detail != PictureDetail::References),
        unmeasured: Vec::new(),
        type_references: Vec::new(),
        value_bytes: FxHashMap::default(),
        by_address: &by_address,
        unreadable: 0,
        is_at_rest: runtime.is_at_rest(view),
        classes_in_blocks: 0,
        blocks_without: Vec::new(),
        has_all_blocks: false,
    };
    let lists = if runtime.layout.is_free_threaded() {
        builder.blocks(view, runtime);
        Vec::new()
    } else {
        runtime.lists(&memory)
    };
    let mut memories = FollowerMemories::new(view, &runtime.layout, &static_types, (threads, begin), &shared);
    drop(shared);
    let roots = |found: &mut FoundObjects<'_>| found.roots(runtime, reader);
    let (references, (mut roots, early)) = builder.follow((view, &lists), &mut memories, recorded, roots);
    // What is next takes as much memory, which the system has to clear unless it has just got it back.
    memories.forget();
    memory.forget();
    builder.complete_lists();
    roots.extend(builder.static_types());
    roots.extend(builder.on_stacks(runtime, reader));
    roots.extend(builder.in_context_variables(&references));
    let late_roots = early..roots.len();
    let misses_large = !runtime.layout.is_free_threaded() && builder.misses_large();
    roots.extend(builder.last_roots());
    let (unexplained, uncounted) = (builder.unexplained(), builder.uncounted());
    let rows = by_address.renumber(threads);
    let (first_parts, unreadable) = (references.first_parts(&rows), references.unreadable_rows());
    let found = std::mem::replace(&mut builder.holders, FoundHolders::new(false)).into_named();
    let mut blocks = std::mem::take(&mut builder.blocks_without);
    let (is_at_rest, has_all_blocks) = (builder.is_at_rest, builder.has_all_blocks);
    let (stored, types, value_bytes) = builder.into_stored(references, &rows, threads);
    let mut texts = LabelTexts::default();
    let mut value_bytes = value_bytes.into_iter();
    let pictured_types = types.each(|of| PicturedType {
        text: texts.row(&of.name),
        is_conservative: of.is_conservative,
        is_size_partial: of.is_size_partial,
        value_bytes: value_bytes.next().unwrap_or(0),
    });
    let is_consistent = is_at_rest || !misses_large;
    let stored = StoredPicture { is_consistent, misses_large, types: pictured_types, ..stored };
    let (unexplained, uncounted) = (rows.of_all(&unexplained), rows.of_all(&uncounted));
    let classes = types.each(|of| by_address.get(of.address));
    let main = runtime.module_tables(&memory).into_iter().find(|(number, _)| *number == 0);
    let modules = main.map(|(_, table)| Modules::read(&memory, &runtime.layout, table)).unwrap_or_default();
    let modules = ModuleRows {
        of_types: types.each(|of| by_address.get(modules.of_type(&of.name)?)),
        main: modules.main().and_then(|at| by_address.get(at)),
        all: rows_of_all(modules.addresses(), &by_address),
        tables: roots.iter().take_while(|(_, holder)| matches!(holder, RootHolder::Modules(_))).count(),
    };
    let mut picture = ObjectPicture { stored, late_roots, unexplained, uncounted, classes, modules };
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
        let noted = NotedHolders { found: &found, rows: &rows, unreadable: &unreadable };
        let (wanted, first_parts) = (wanted.as_deref(), &first_parts);
        let firsts = held_by_c(&picture.stored.roots, &parents, &rings, wanted);
        // Recordings know those of pools, too.
        blocks.sort_unstable_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        let process =
            SearchedProcess { view, memory: &memory, runtime, rows: &by_address, blocks: &blocks, has_all_blocks };
        picture.stored.pointers = process.find_pointers(&picture.stored, &firsts, &mut texts);
        let held = HeldObjects { picture: &picture, parents: &parents, first_parts, noted, wanted };
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

/// The objects with which paths begin that neither modules nor frames nor rings hold; of those that are wanted.
fn held_by_c(roots: &[PicturedRoot], parents: &[u32], rings: &[u32], wanted: Option<&[bool]>) -> Vec<u32> {
    let known: FxHashSet<u32> = roots.iter().map(|root| root.object).chain(rings.iter().copied()).collect();
    let is_first = |(parent, object): &(&u32, u32)| *parent == object && !known.contains(object);
    let firsts = parents.iter().zip(0_u32..).filter(is_first).map(|(_, object)| object);
    firsts.filter(|object| wanted.is_none_or(|wanted| wanted.get(*object as usize) == Some(&true))).collect()
}

/// The rows of the objects at these addresses, ascending.
fn rows_of_all(addresses: impl Iterator<Item = u64>, by_address: &AddressTable) -> Vec<u32> {
    let mut rows: Vec<u32> = addresses.filter_map(|address| by_address.get(address)).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

impl<'a> FoundObjects<'a> {
    /// What is stored of the objects, by their new rows, besides names and paths; and their types, by name, with the bytes of the values of
    /// each one's instances.
    fn into_stored(
        self,
        found: FoundReferences,
        rows: &NewRows,
        threads: usize,
    ) -> (StoredPicture, TypeTable<'a>, Vec<u64>) {
        let Self { types, mut objects, reference_counts, value_bytes, unreadable, layout, memory, unmeasured, .. } =
            self;
        drop(unmeasured);
        // Large ones of which a later part could not be read have no bytes, as the others that cannot be read.
        for row in found.unreadable_rows() {
            if let Some(object) = objects.get_mut(row as usize) {
                object.own_bytes = 0;
            }
        }
        // Types were numbered as they were found, which depends on how fast threads are.
        let type_numbers = types.sort();
        let mut sorted_bytes = vec![0; type_numbers.len()];
        for (old, bytes) in value_bytes {
            if let Some(sum) = type_numbers.get(old as usize).and_then(|new| sorted_bytes.get_mut(*new as usize)) {
                *sum += bytes;
            }
        }
        let in_types = |of: PicturedObject| {
            let type_number = type_numbers.get(of.type_number as usize).copied().unwrap_or(of.type_number);
            PicturedObject { type_number, ..of }
        };
        let (mut sorted, mut sorted_counts) = (Vec::new(), Vec::new());
        let (into, counts_into, in_types) = (&mut sorted, &mut sorted_counts, &in_types);
        // Each takes what it puts in order along with it: the references need room next.
        let others: Vec<SideWork<'_>> = vec![
            Box::new(move || *into = rows.old.iter().map(|row| in_types(objects[*row as usize])).collect()),
            Box::new(move || *counts_into = in_rows(&rows.old, &reference_counts)),
        ];
        let (first_reference, references) = found.renumbered(rows, threads, others);
        let kinds = types.each(ContentsKind::of);
        count_once(memory, layout, &kinds, &mut sorted);
        let stored = StoredPicture {
            minor: layout.minor,
            unreadable,
            contents: contents_of(memory, layout, &kinds, &sorted),
            objects: sorted,
            reference_counts: sorted_counts,
            first_reference,
            references,
            ..StoredPicture::default()
        };
        (stored, types, sorted_bytes)
    }
}
