//! Which native places a capture refers to: for finding the names of all of them at once, beside each other.
//!
//! Invariant: what a frame's id means depends on the image of the process, as in the merge; a frame without a described
//! module is no native one.

use memtrack_format::record::Frame;
use rayon::prelude::{IntoParallelRefIterator, ParallelIterator};
use rustc_hash::{FxHashMap, FxHashSet};

use super::ahead::join;
use super::file::CaptureFile;
use super::index::{Index, Segment};
use super::segment::{Batch, Definition, Progress, SegmentReader};
use crate::error::Error;
use crate::native::NativeModule;
use crate::symbols::Wanted;

/// Events that are decoded at a time.
const BATCH: usize = 1 << 16;

/// Of some segments: modules and frames by the image of the process that they are of.
#[derive(Default)]
struct Places {
    modules: FxHashMap<(usize, u32), NativeModule>,
    frames: FxHashSet<(usize, Frame)>,
}

/// Every native place of the capture, by module.
pub(super) fn places(file: &CaptureFile, index: &Index) -> Result<Vec<Wanted>, Error> {
    let both = |one: Places, other: Places| Ok(one.and(other));
    let all = index.segments.par_iter().map(|segment| of(file, index, segment)).try_reduce(Places::default, both)?;
    let mut offsets: FxHashMap<NativeModule, Vec<u64>> = FxHashMap::default();
    for (image, frame) in all.frames {
        if let Some(module) = all.modules.get(&(image, frame.code)).filter(|module| !module.path.is_empty()) {
            offsets.entry(module.clone()).or_default().push(frame.instruction.into());
        }
    }
    let mut wanted: Vec<_> = offsets.into_iter().map(|(module, offsets)| Wanted { module, offsets }).collect();
    wanted.sort_by(|a, b| (&a.module.path, a.module.start).cmp(&(&b.module.path, b.module.start)));
    Ok(wanted)
}

impl Places {
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

fn of(file: &CaptureFile, index: &Index, segment: &Segment) -> Result<Places, Error> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    join(file, index, segment, &mut bytes)?;
    let (mut places, mut reader, mut image) = (Places::default(), SegmentReader::default(), 0);
    loop {
        let mut batch = Batch::default();
        let progress = reader.decode(&bytes, &mut at, &mut batch, BATCH);
        if let Some(begin) = batch.begin {
            image = index.images.partition_point(|&first| first <= begin.ticket);
        }
        places.add(image, batch);
        if progress != Progress::Full {
            return Ok(places);
        }
    }
}
