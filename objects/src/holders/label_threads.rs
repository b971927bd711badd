//! Threads that read side by side how objects are held.
//!
//! Of most it was noted when they were found; of the others, the holder is read again. Invariant: who holds an object is known
//! before, so that what is said of it depends neither on the number of threads nor on what was noted, as long as there are no
//! more names than are kept.

use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, Scope};

use memtrack_format::objects::{HolderKind, PicturedHolder};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::finding::addresses::AddressTable;
use crate::finding::found_holders::FoundHolder;
use crate::finding::found_references::NewRows;
use crate::holders::labels::{KnownLabels, LabelReader, LabelTexts, rank_of_kind};
use crate::memory::ObjectMemory;
use crate::object::types::KnownTypes;
use crate::picture::ObjectPicture;
use crate::prefetch::{PREFETCHED, prefetch};
use crate::references::{ItemPart, ReferencePlace, ReferenceReader};
use crate::side_by_side;

/// References that a thread reads before it tells what it has read; and for how many the reading of an object counts.
const AT_ONCE: u64 = 256 << 10;
const OF_AN_OBJECT: u64 = 4;
/// Objects whose noted places it reads one after the other, and of how many it is looked where their keys are.
const NOTED_AT_ONCE: usize = 64 << 10;
const KEYS_LOOKED_AT: usize = 1 << 10;
/// What a thread has read and is not put to the rest yet, at most.
const AHEAD: usize = 2;

/// How an object is held: its row, the kind, and the value.
type ReadLabel = (u32, HolderKind, u64);

/// What was noted of objects, in the rows in which they were found, and the new rows; and the old rows of those of which a part
/// could not be read: what is behind their first items counts for nothing.
#[derive(Clone, Copy)]
pub(crate) struct NotedHolders<'a> {
    pub(crate) found: &'a [FoundHolder],
    pub(crate) rows: &'a NewRows,
    pub(crate) unreadable: &'a FxHashSet<u32>,
}

/// Objects, each of which has a parent that holds it, itself where nobody does; and the first parts of those that are read in
/// parts.
#[derive(Clone, Copy)]
pub(crate) struct HeldObjects<'a> {
    pub(crate) picture: &'a ObjectPicture,
    pub(crate) parents: &'a [u32],
    pub(crate) first_parts: &'a FxHashMap<u32, ItemPart>,
    pub(crate) noted: NotedHolders<'a>,
    /// Those of which it is said how they are held; `None`: all.
    pub(crate) wanted: Option<&'a [bool]>,
}

/// What a thread reads at once.
enum LabelPiece {
    /// Objects that hold others, by their numbers among these; of those with many items only the first part.
    Holding(Range<usize>),
    /// A further part of the object in this row.
    Part(u32, ItemPart),
}

/// What was read of a piece, and the texts that the thread had not come upon before.
#[derive(Default)]
struct ReadLabels {
    labels: Vec<ReadLabel>,
    texts: Vec<String>,
}

/// What reads pieces, and the row of each of its texts among those of all.
struct PieceSource<'e> {
    /// `None`: they are read where they are put together.
    thread: Option<Receiver<ReadLabels>>,
    here: PieceReader<'e>,
    texts: Vec<u32>,
}

/// Reads pieces one after the other.
struct PieceReader<'e> {
    reader: ReferenceReader<'e>,
    known: KnownLabels,
    /// Texts that were told.
    told: usize,
    input: LabelInput<'e>,
}

/// What all pieces are read with.
#[derive(Clone, Copy)]
struct LabelInput<'e> {
    types: &'e KnownTypes,
    rows: &'e AddressTable,
    held: HeldObjects<'e>,
    holding: &'e [u32],
}

impl HeldObjects<'_> {
    /// Whether it is said of an object how another holds it.
    fn is_held(&self, row: u32, by: u32) -> bool {
        let is_wanted = || self.wanted.is_none_or(|wanted| wanted.get(row as usize) == Some(&true));
        row != by && self.parents.get(row as usize) == Some(&by) && is_wanted()
    }

    /// Loads what was noted of the objects from this row on.
    fn prefetch(&self, row: u32) {
        let NotedHolders { found, rows, .. } = self.noted;
        let noted = next_of(&rows.old, row).filter_map(|old| found.get(*old as usize));
        prefetch(noted.filter_map(|found| rows.new.get(found.holder() as usize).copied()).map(u64::from));
        let parents = next_of(self.parents, row);
        prefetch(parents.filter_map(|parent| Some(self.picture.objects().get(*parent as usize)?.type_number.into())));
    }

    /// Where the object in this row is referred to by the one that holds it, if that was noted.
    fn noted(&self, row: u32, by: u32) -> Option<ReferencePlace> {
        let NotedHolders { found, rows, unreadable } = self.noted;
        let old = rows.old.get(row as usize)?;
        let (holder, place) = found.get(*old as usize)?.first()?;
        let is_readable = || unreadable.is_empty() || !unreadable.contains(&holder);
        (rows.new.get(holder as usize) == Some(&by) && is_readable()).then_some(place)
    }
}

/// Those that are prefetched from this row on.
fn next_of(all: &[u32], row: u32) -> impl Iterator<Item = &u32> {
    all.iter().skip(row as usize).take(PREFETCHED)
}

/// Who holds each object. There is a thread for each of `memories`, and `reader` for the pieces of those that the system
/// refuses; `texts` are those of all.
pub(crate) fn read_holders(
    (reader, memories): (ReferenceReader<'_>, &mut [ObjectMemory<'_>]),
    (types, rows): (&KnownTypes, &AddressTable),
    held: HeldObjects<'_>,
    texts: &mut LabelTexts,
) -> Vec<PicturedHolder> {
    let input = LabelInput { types, rows, held, holding: &[] };
    let (mut holders, holding) = noted_holders((reader, memories), input, texts);
    let pieces = pieces(&holding, held);
    let input = LabelInput { holding: &holding, ..input };
    std::thread::scope(|scope| {
        let count = memories.len().max(1);
        let source = |thread| PieceSource { thread, here: PieceReader::new(reader, input), texts: Vec::new() };
        let mut sources: Vec<PieceSource<'_>> = memories
            .iter_mut()
            .zip(0..)
            .map(|(memory, first)| {
                source(start(scope, (memory, reader), input, pieces.iter().skip(first).step_by(count)))
            })
            .collect();
        if sources.is_empty() {
            sources.push(source(None));
        }
        for (piece, number) in pieces.iter().zip(0..) {
            let source = &mut sources[number % count];
            let read = source.next(piece);
            source.texts.extend(read.texts.into_iter().map(|text| texts.row_of(text)));
            for (row, kind, value) in read.labels {
                let text = || source.texts.get(value as usize).copied().unwrap_or(0);
                let value = if kind.has_text() { text().into() } else { value };
                let is_better = |known: &&mut PicturedHolder| rank_of_kind(kind) < rank_of_kind(known.kind);
                // Of the parts of one object, the first says it.
                if let Some(holder) = holders.get_mut(row as usize).filter(is_better) {
                    (holder.kind, holder.value) = (kind, value);
                }
            }
        }
    });
    holders
}

/// Starts a thread that reads these pieces; `None`: the system refuses it.
fn start<'s, 'e: 's, 'm: 'e>(
    scope: &'s Scope<'s, 'e>,
    (memory, reader): (&'e mut ObjectMemory<'m>, ReferenceReader<'e>),
    input: LabelInput<'e>,
    pieces: impl Iterator<Item = &'e LabelPiece> + Send + 'e,
) -> Option<Receiver<ReadLabels>> {
    let (layout, static_types) = (reader.layout, reader.static_types);
    let (tell, read) = sync_channel(AHEAD);
    let work = move || {
        let mut reader = PieceReader::new(ReferenceReader { memory, layout, static_types }, input);
        for piece in pieces {
            if tell.send(reader.read(piece)).is_err() {
                break;
            }
        }
    };
    Builder::new().spawn_scoped(scope, work).ok().map(|_| read)
}

impl PieceSource<'_> {
    fn next(&mut self, piece: &LabelPiece) -> ReadLabels {
        match &self.thread {
            // A thread that has ended has panicked, which ends this one, too.
            Some(thread) => thread.recv().unwrap_or_default(),
            None => self.here.read(piece),
        }
    }
}

impl<'e> PieceReader<'e> {
    fn new(reader: ReferenceReader<'e>, input: LabelInput<'e>) -> Self {
        Self { reader, known: KnownLabels::of(LabelTexts::default()), told: 0, input }
    }

    fn read(&mut self, piece: &LabelPiece) -> ReadLabels {
        let mut labels = Vec::new();
        match piece {
            LabelPiece::Holding(some) => {
                let holding = self.input.holding.get(some.clone()).unwrap_or_default();
                let objects = self.input.held.picture.objects();
                let addresses = holding.iter().filter_map(|row| Some(objects.get(*row as usize)?.address));
                self.reader.memory.expect(addresses);
                holding.iter().for_each(|row| self.read_part(*row, ItemPart::FIRST, &mut labels));
            }
            LabelPiece::Part(row, part) => self.read_part(*row, part.clone(), &mut labels),
        }
        let texts = self.known.texts.since(self.told).to_vec();
        self.told += texts.len();
        ReadLabels { labels, texts }
    }

    fn read_part(&mut self, holder: u32, mut part: ItemPart, into: &mut Vec<ReadLabel>) {
        let LabelInput { types, rows, held, .. } = self.input;
        let objects = held.picture.objects();
        let Some(object) = objects.get(holder as usize) else { return };
        let mut reader = LabelReader { reader: self.reader, types, rows, known: &mut self.known };
        let is_held = |row: u32| held.is_held(row, holder) && held.noted(row, holder).is_none();
        reader.held_by(object, &mut part, (objects, is_held), &mut |row, kind, value| into.push((row, kind, value)));
    }

    /// Says of these objects, which begin in these rows, how they are held, where that was noted.
    fn read_noted<'h>(mut self, share: impl Iterator<Item = (u32, &'h mut [PicturedHolder])>) -> NotedLabels {
        let LabelInput { types, rows, held, .. } = self.input;
        let objects = held.picture.objects();
        let mut holding = Vec::new();
        for (begin, some) in share {
            let key = |row: u32| match held.noted(row, *held.parents.get(row as usize)?)? {
                ReferencePlace::Value(key) | ReferencePlace::Attribute(key) => Some(key),
                _ => None,
            };
            self.reader.memory.expect((begin..).take(KEYS_LOOKED_AT).filter_map(key));
            let mut reader = LabelReader { reader: self.reader, types, rows, known: &mut self.known };
            for (row, holder) in (begin..).zip(some) {
                if (row - begin).is_multiple_of(PREFETCHED as u32) {
                    held.prefetch(row);
                }
                let parent = held.parents[row as usize];
                if !held.is_held(row, parent) {
                    *holder = PicturedHolder { parent: row, ..PicturedHolder::default() };
                    continue;
                }
                let place = held.noted(row, parent);
                let both = objects.get(parent as usize).zip(objects.get(row as usize));
                let label = place.zip(both).and_then(|(place, (of, held))| reader.held_in((of, place), held));
                if label.is_none() && holding.last() != Some(&parent) {
                    holding.push(parent);
                }
                // Every object holds its class; that it does is what is left when nothing else is found.
                let (kind, value) = label.unwrap_or((HolderKind::Class, 0));
                *holder = PicturedHolder { parent, kind, value };
            }
        }
        NotedLabels { texts: self.known.texts.into_all(), holding }
    }
}

/// Pieces of about the same size.
fn pieces(holding: &[u32], held: HeldObjects<'_>) -> Vec<LabelPiece> {
    let (mut made, mut begin, mut size) = (Vec::new(), 0, 0);
    for (row, number) in holding.iter().zip(0..) {
        size += OF_AN_OBJECT + held.picture.references_of(*row).len() as u64;
        let first = held.first_parts.get(row);
        if size >= AT_ONCE || first.is_some() {
            made.push(LabelPiece::Holding(begin..number + 1));
            (begin, size) = (number + 1, 0);
        }
        let others = first.into_iter().flat_map(|first| std::iter::successors(first.next(), ItemPart::next));
        made.extend(others.map(|part| LabelPiece::Part(*row, part)));
    }
    made.push(LabelPiece::Holding(begin..holding.len()));
    made
}

/// What a thread has of the objects of which it was noted how they are held.
#[derive(Default)]
struct NotedLabels {
    texts: Vec<String>,
    /// Objects that are read again, since of some that they hold it was not noted.
    holding: Vec<u32>,
}

/// Who holds each object, and how, as far as that was noted; and the objects that are read again for the rest.
fn noted_holders(
    (reader, memories): (ReferenceReader<'_>, &mut [ObjectMemory<'_>]),
    input: LabelInput<'_>,
    texts: &mut LabelTexts,
) -> (Vec<PicturedHolder>, Vec<u32>) {
    let (threads, all) = (memories.len().max(1), input.held.parents.len());
    let mut holders = vec![PicturedHolder::default(); all];
    let mut shares: Vec<Vec<(u32, &mut [PicturedHolder])>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, some) in holders.chunks_mut(NOTED_AT_ONCE).enumerate() {
        shares[number % threads].push(((number * NOTED_AT_ONCE) as u32, some));
    }
    let mut noted: Vec<NotedLabels> = shares.iter().map(|_| NotedLabels::default()).collect();
    if memories.is_empty() {
        let share = shares.into_iter().flatten();
        noted = vec![PieceReader::new(reader, input).read_noted(share)];
    } else {
        let (layout, static_types) = (reader.layout, reader.static_types);
        let work = memories.iter_mut().zip(shares).zip(&mut noted).map(|((memory, share), noted)| {
            move || {
                let reader = ReferenceReader { memory, layout, static_types };
                *noted = PieceReader::new(reader, input).read_noted(share.into_iter());
            }
        });
        side_by_side::execute(work.collect(), threads);
    }
    let mut rows =
        |noted: &mut NotedLabels| std::mem::take(&mut noted.texts).into_iter().map(|text| texts.row_of(text)).collect();
    let rows: Vec<Vec<u32>> = noted.iter_mut().map(&mut rows).collect();
    let work = holders.chunks_mut(NOTED_AT_ONCE).enumerate().map(|(number, some)| {
        let rows = &rows[number % threads];
        move || {
            for holder in some.iter_mut().filter(|holder| holder.kind.has_text()) {
                holder.value = rows.get(holder.value as usize).copied().unwrap_or(0).into();
            }
        }
    });
    side_by_side::execute(work.collect(), threads);
    let mut holding: Vec<u32> = noted.into_iter().flat_map(|noted| noted.holding).collect();
    holding.sort_unstable();
    holding.dedup();
    (holders, holding)
}
