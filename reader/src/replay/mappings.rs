//! The mappings of a process: mapped ranges, with the call that mapped them and their class.
//!
//! A mapping may lose its middle, be overlaid, or be unmapped together with its neighbours, so the map has pieces that
//! refer to their mapping. Each operation takes O(log n) for each piece that it touches.
//!
//! Invariant: pieces do not overlap, and each mapping has the number of its pieces.

use std::collections::BTreeMap;

use memtrack_format::MapClass;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{LiveBlock, LivePart};

/// The kernel unmaps whole pages, so the end of a range is rounded up. Larger pages exist, but events do not tell, and
/// rounding to this size is right for them, too, as far as it goes.
const PAGE: u64 = 4096;

/// A mapping, as one call made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) block: LiveBlock,
    /// Never [`MapClass::Inherited`].
    pub(crate) class: MapClass,
    /// The number of its mapped pieces.
    pieces: u32,
}

/// A part that was cut out of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    start: u64,
    end: u64,
    id: u64,
    pub(crate) mapping: Mapping,
    /// It was the last part of its mapping.
    pub(crate) last: bool,
}

impl Cut {
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

#[derive(Clone, Copy, Debug)]
struct MappingPiece {
    end: u64,
    /// Its mapping.
    id: u64,
}

/// The interval map.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// By start address.
    pieces: BTreeMap<u64, MappingPiece>,
    /// The mappings that have pieces. Numbers are not reused, so an undo finds its mapping or sees that it is gone.
    mappings: FxHashMap<u64, Mapping>,
    next_id: u64,
}

impl Mappings {
    /// Adds a mapping. The range must have been [cleared](Self::cut) before.
    pub(crate) fn insert(&mut self, start: u64, block: LiveBlock, class: MapClass) {
        let id = self.next_id;
        self.next_id += 1;
        self.mappings.insert(id, Mapping { block, class, pieces: 1 });
        self.pieces.insert(start, MappingPiece { end: start.saturating_add(block.size), id });
    }

    /// Unmaps the range, up to the end of its last page, and appends the cut parts to `cuts`, highest address first.
    pub(crate) fn cut(&mut self, start: u64, size: u64, cuts: &mut Vec<Cut>) {
        let end = page_end(start, size);
        while let Some((&at, &piece)) = self.pieces.range(..end).next_back().filter(|(_, piece)| piece.end > start) {
            self.pieces.remove(&at);
            cuts.extend(self.cut_piece(at, piece, start, end));
        }
    }

    /// Restores a cut part; returns whether it is the only piece of its mapping now. `None` if something else is mapped
    /// there now: then the unmap did take place.
    pub(crate) fn restore(&mut self, cut: &Cut) -> Option<bool> {
        if self.is_mapped(cut.start, cut.end) {
            return None;
        }
        self.pieces.insert(cut.start, MappingPiece { end: cut.end, id: cut.id });
        let mapping = self.mappings.entry(cut.id).or_insert(Mapping { pieces: 0, ..cut.mapping });
        mapping.pieces += 1;
        Some(mapping.pieces == 1)
    }

    /// The class of what is mapped at this address.
    pub(crate) fn class_at(&self, address: u64) -> Option<MapClass> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        self.mappings.get(&piece.id).filter(|_| piece.end > address).map(|mapping| mapping.class)
    }

    /// All mapped pieces, with the class of their mapping.
    pub(crate) fn live(&self) -> impl Iterator<Item = (MapClass, LivePart)> + '_ {
        let mut seen = FxHashSet::default();
        self.pieces.iter().filter_map(move |(start, piece)| {
            let mapping = self.mappings.get(&piece.id)?;
            let (bytes, first) = (piece.end - start, seen.insert(piece.id));
            Some((mapping.class, LivePart { block: mapping.block, bytes, first }))
        })
    }

    /// All mapped ranges by address: start, end, class and allocation.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64, MapClass, &LiveBlock)> {
        self.pieces.iter().filter_map(|(start, piece)| {
            let mapping = self.mappings.get(&piece.id)?;
            Some((*start, piece.end, mapping.class, &mapping.block))
        })
    }

    fn is_mapped(&self, start: u64, end: u64) -> bool {
        self.pieces.range(..end).next_back().is_some_and(|(_, piece)| piece.end > start)
    }

    /// Cuts `start..end` out of this piece, which was already removed; the rest on either side is inserted again.
    fn cut_piece(&mut self, at: u64, piece: MappingPiece, start: u64, end: u64) -> Option<Cut> {
        let (from, to) = (at.max(start), piece.end.min(end));
        let (below, above) = (at < from, to < piece.end);
        if below {
            self.pieces.insert(at, MappingPiece { end: from, id: piece.id });
        }
        if above {
            self.pieces.insert(to, piece);
        }
        let mapping = self.mappings.get_mut(&piece.id)?;
        mapping.pieces = mapping.pieces + u32::from(below) + u32::from(above) - 1;
        let cut = Cut { start: from, end: to, id: piece.id, mapping: *mapping, last: mapping.pieces == 0 };
        if cut.last {
            self.mappings.remove(&piece.id);
        }
        Some(cut)
    }
}

/// The end of the range's last page.
fn page_end(start: u64, size: u64) -> u64 {
    let end = start.saturating_add(size);
    end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}
