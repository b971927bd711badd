//! Threads that read side by side how objects are held.
//!
//! Invariant: who holds an object is known before, so that only one thread says how, whatever the number of threads.

use memtrack_format::objects::{HolderKind, PicturedHolder, PicturedObject};

use crate::addresses::AddressTable;
use crate::labels::{KnownLabels, LabelReader, LabelTexts};
use crate::memory::ObjectMemory;
use crate::references::ReferenceReader;
use crate::side_by_side;
use crate::types::KnownTypes;

/// Objects whose references are read by one thread, before what all threads have read is put together.
const AT_ONCE: usize = 256 << 10;

/// How an object is held: its row, the kind, and the value.
type ReadLabel = (u32, HolderKind, u64);

/// A thread, and the row of each of its texts among those of all.
struct LabelThread<'a, 'b> {
    memory: &'a mut ObjectMemory<'b>,
    known: KnownLabels,
    texts: Vec<u32>,
    read: Vec<ReadLabel>,
}

/// Who holds each object, which is its parent, or each of those that are wanted; itself where nobody does. There is a thread for
/// each of the memories; `texts` are those of all.
pub(crate) fn read_holders(
    (references, memories): (ReferenceReader<'_>, &mut [ObjectMemory<'_>]),
    (types, rows): (&KnownTypes, &AddressTable),
    (objects, parents): (&[PicturedObject], &[u32]),
    wanted: Option<&[bool]>,
    texts: &mut LabelTexts,
) -> Vec<PicturedHolder> {
    let (mut holders, holding) = unlabelled(parents, wanted);
    let thread = |memory| {
        let known = KnownLabels::of(LabelTexts::default());
        LabelThread { memory, known, texts: Vec::new(), read: Vec::new() }
    };
    let mut threads: Vec<LabelThread<'_, '_>> = memories.iter_mut().map(thread).collect();
    let (layout, static_types) = (references.layout, references.static_types);
    for some in holding.chunks(AT_ONCE * threads.len().max(1)) {
        let (count, known) = (threads.len(), (objects, holders.as_slice()));
        let pieces = some.chunks(some.len().div_ceil(count.max(1)).max(1));
        let work = pieces.zip(&mut threads).map(|(piece, thread)| {
            move || {
                let reader = ReferenceReader { memory: thread.memory, layout, static_types };
                let mut reader = LabelReader { reader, types, rows, known: &mut thread.known };
                read_labels(&mut reader, piece, known, &mut thread.read);
            }
        });
        side_by_side::execute(work.collect(), count);
        for thread in &mut threads {
            let new = thread.known.texts.since(thread.texts.len());
            thread.texts.extend(new.iter().map(|text| texts.row(text)));
            for (row, kind, value) in thread.read.drain(..) {
                let text = || thread.texts.get(value as usize).copied().unwrap_or(0);
                let value = if kind.has_text() { text().into() } else { value };
                if let Some(holder) = holders.get_mut(row as usize) {
                    (holder.kind, holder.value) = (kind, value);
                }
            }
        }
    }
    holders
}

/// Who holds each object, without a word on how, and the objects that hold some.
fn unlabelled(parents: &[u32], wanted: Option<&[bool]>) -> (Vec<PicturedHolder>, Vec<u32>) {
    let is_wanted = |row: u32| wanted.is_none_or(|wanted| wanted.get(row as usize) == Some(&true));
    let mut has_held = vec![false; parents.len()];
    let holders = parents.iter().zip(0..).map(|(&parent, row)| {
        let is_held = parent != row && is_wanted(row);
        if let Some(has_held) = has_held.get_mut(parent as usize).filter(|_| is_held) {
            *has_held = true;
        }
        // Every object holds its class; that it does is what is left when nothing else is found.
        let kind = if is_held { HolderKind::Class } else { HolderKind::None };
        PicturedHolder { parent: if is_held { parent } else { row }, kind, value: 0 }
    });
    let holders = holders.collect();
    let holding = has_held.iter().zip(0..).filter(|(has_held, _)| **has_held).map(|(_, row)| row);
    (holders, holding.collect())
}

fn read_labels(
    reader: &mut LabelReader<'_>,
    holding: &[u32],
    (objects, holders): (&[PicturedObject], &[PicturedHolder]),
    into: &mut Vec<ReadLabel>,
) {
    for &holder in holding {
        let Some(object) = objects.get(holder as usize) else { continue };
        reader.held_by((holder, object), (objects, holders), &mut |row, kind, value| into.push((row, kind, value)));
    }
}
