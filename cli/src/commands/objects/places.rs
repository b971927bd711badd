//! Which place made the objects of each type: the innermost Python frame of the stack that allocated their blocks.
//!
//! Invariant: an object counts at one place, or at none where its block is not known.

use anyhow::Result;
use memtrack_format::objects::PictureHead;
use memtrack_objects::ObjectPicture;
use memtrack_reader::object_places::PictureScan;
use memtrack_reader::source::CaptureReader;
use memtrack_reader::{FrameId, Frames, Options, StackId};
use rustc_hash::FxHashMap;

use crate::terminal::Progress;

/// Objects of one type that were made at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPlace {
    pub(super) function: String,
    pub(super) file: String,
    pub(super) line: u32,
    pub(super) count: u64,
    pub(super) own_bytes: u64,
}

/// The places of all types.
#[derive(Debug)]
pub(super) struct PlaceTable {
    by_type: FxHashMap<u32, Vec<ObjectPlace>>,
    placed: (u64, u64),
}

impl PlaceTable {
    /// Joins the objects of a picture with the blocks that were live at its moment.
    ///
    /// # Errors
    /// The capture cannot be read.
    pub(super) fn of(file: &CaptureReader, head: &PictureHead, picture: &ObjectPicture) -> Result<Self> {
        let options = Options { unknown_blocks: file.unknown_blocks(), ..Options::default() };
        let mut scan = PictureScan::new(&options, file.picture_ns(head));
        let mut progress = Progress::new(file.total_record_bytes(), "reading");
        let read = file.read(&mut scan, |bytes| progress.add(bytes))?;
        let (blocks, frames) = (scan.finish(), &read.frames);
        let mut known: FxHashMap<StackId, Option<FrameId>> = FxHashMap::default();
        let mut sums: FxHashMap<(u32, FrameId), (u64, u64)> = FxHashMap::default();
        let mut placed = (0, 0);
        for object in picture.objects() {
            let stack = blocks.stack_of(object.address);
            let Some(frame) = stack.and_then(|stack| *known.entry(stack).or_insert_with(|| innermost(frames, stack)))
            else {
                continue;
            };
            let sum = sums.entry((object.type_number, frame)).or_default();
            for (count, bytes) in [sum, &mut placed] {
                *count += 1;
                *bytes += object.own_bytes;
            }
        }
        let mut by_type: FxHashMap<u32, Vec<ObjectPlace>> = FxHashMap::default();
        for ((of, frame), (count, own_bytes)) in sums {
            let (function, file) = (frames.function(frame).to_owned(), frames.file(frame).to_owned());
            let line = frames.frame(frame).line;
            by_type.entry(of).or_default().push(ObjectPlace { function, file, line, count, own_bytes });
        }
        for places in by_type.values_mut() {
            places
                .sort_by(|a, b| (b.own_bytes, b.count, &a.file, a.line).cmp(&(a.own_bytes, a.count, &b.file, b.line)));
        }
        Ok(Self { by_type, placed })
    }

    /// Objects and bytes that have a place.
    pub(super) fn placed(&self) -> (u64, u64) {
        self.placed
    }

    /// The places of a type, the largest first.
    pub(super) fn take(&mut self, of: u32) -> Vec<ObjectPlace> {
        self.by_type.remove(&of).unwrap_or_default()
    }
}

/// The innermost frame of Python; else the innermost one.
fn innermost(frames: &Frames, stack: StackId) -> Option<FrameId> {
    let mut all = frames.leaf_to_root(stack);
    let python = frames.leaf_to_root(stack).find(|frame| frames.module_id(*frame).is_none());
    python.or_else(|| all.next())
}
