//! Collects the native places in a capture, so that their names can be looked up in parallel.
//!
//! Invariant: as in the merge, ids are those of an image of the process; a frame whose module is not described is not
//! native.

use std::ops::Range;

use memtrack_format::record::RawFrame;
use rayon::prelude::{IntoParallelIterator, ParallelIterator};
use rustc_hash::{FxHashMap, FxHashSet};

use super::file::OpenCaptureFile;
use super::group_records::GroupRecords;
use super::index::{Index, IndexedSegment};
use super::segment::{Batch, DecodeProgress, Definition, SegmentReader};
use super::tables::place;
use crate::decode_threads;
use crate::error::Error;
use crate::native::NativeModule;
use crate::symbols::WantedOffsets;

/// Events that are decoded at a time.
const BATCH: usize = 1 << 16;

/// Modules and frames in some segments, by the image of the process.
#[derive(Default)]
struct NativeIds {
    modules: FxHashMap<(usize, u32), NativeModule>,
    frames: FxHashSet<(usize, RawFrame)>,
}

/// Number of segments that have most of the places.
const FIRST: usize = 16;

/// Every native place of the capture, by module.
pub(super) fn places(
    file: &OpenCaptureFile,
    index: &Index,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<WantedOffsets>, Error> {
    places_in(file, index, 0..index.segments.len(), progress)
}

/// The native places in the first segments, which have most modules, so that not everything is read twice.
pub(super) fn first_places(file: &OpenCaptureFile, index: &Index) -> Result<Vec<WantedOffsets>, Error> {
    places_in(file, index, 0..index.segments.len().min(FIRST), &|_| ())
}

fn places_in(
    file: &OpenCaptureFile,
    index: &Index,
    segments: Range<usize>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<WantedOffsets>, Error> {
    decode_threads::start();
    let both = |one: NativeIds, other: NativeIds| Ok(one.and(other));
    let places = |segment: usize| {
        let places = of(file, index, &index.segments[segment]);
        progress(index.stored_bytes(segment));
        places
    };
    let all = segments.into_par_iter().map(places).try_reduce(NativeIds::default, both)?;
    let mut files = FxHashMap::default();
    for (ticket, file) in &index.mapped {
        let image = index.images.partition_point(|first| first <= ticket);
        file.codes.iter().for_each(|&code| _ = files.entry((image, code)).or_insert(file));
    }
    let mut offsets: FxHashMap<NativeModule, Vec<u64>> = FxHashMap::default();
    for (image, frame) in all.frames {
        let Some(module) = all.modules.get(&(image, frame.code)) else { continue };
        let (module, offset) = place(module, files.get(&(image, frame.code)).copied(), frame);
        if !module.path.is_empty() {
            offsets.entry(module.into_owned()).or_default().push(offset);
        }
    }
    let mut wanted: Vec<_> = offsets.into_iter().map(|(module, offsets)| WantedOffsets { module, offsets }).collect();
    wanted.sort_by(|a, b| (&a.module.path, a.module.start).cmp(&(&b.module.path, b.module.start)));
    Ok(wanted)
}

impl NativeIds {
    fn and(mut self, other: Self) -> Self {
        self.frames.extend(other.frames);
        for (key, module) in other.modules {
            self.modules.entry(key).or_insert(module);
        }
        self
    }

    fn add(&mut self, image: usize, batch: Batch) {
        self.frames.extend(batch.nodes.iter().map(|node| (image, node.frame)));
        for definition in batch.definitions {
            if let Definition::Module(id, module) = definition {
                self.modules.entry((image, id)).or_insert(module);
            }
        }
    }
}

fn of(file: &OpenCaptureFile, index: &Index, segment: &IndexedSegment) -> Result<NativeIds, Error> {
    let (mut records, _) = GroupRecords::load(file, index, segment)?;
    let (mut places, mut reader, mut image) = (NativeIds::default(), SegmentReader::default(), 0);
    loop {
        let mut batch = Batch::default();
        let progress = records.decode(&mut reader, &mut batch, BATCH);
        if let Some(begin) = batch.begin {
            image = index.images.partition_point(|&first| first <= begin.ticket);
        }
        places.add(image, batch);
        if progress != DecodeProgress::Full {
            return Ok(places);
        }
    }
}
