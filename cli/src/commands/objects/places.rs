//! Who made the objects of each type, and when: the innermost Python frame of the stack that allocated their blocks, the thread
//! that did it, and how long ago it was.
//!
//! Invariant: an object counts at one place, in one thread and at one age, or at none where its block is not known.

use std::cmp::Reverse;
use std::hash::Hash;

use anyhow::Result;
use memtrack_format::objects::PictureHead;
use memtrack_objects::ObjectPicture;
use memtrack_reader::paths::short;
use memtrack_reader::source::CaptureReader;
use memtrack_reader::{FrameId, Frames, StackId, ThreadId};
use rustc_hash::FxHashMap;

use crate::load::objects::{blocks_at, blocks_of};

/// Ages at which a class of ages ends, in milliseconds.
const AGE_BOUNDS_MS: [u64; 8] = [10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000];

/// How many objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectSum {
    pub(super) count: u64,
    pub(super) own_bytes: u64,
}

/// Objects of one type that were made at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPlace {
    pub(super) function: String,
    pub(super) file: String,
    /// The file as reports show it: below the directory of installation, or of the program.
    pub(super) shown_file: String,
    pub(super) line: u32,
    pub(super) count: u64,
    pub(super) own_bytes: u64,
}

/// Objects of one type that one thread made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectThread {
    /// The operating system's number for it.
    pub(super) tid: i32,
    /// Its last name; empty where it has none.
    pub(super) name: String,
    pub(super) sum: ObjectSum,
}

/// Objects of one type that are of about one age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectAge {
    /// At least so old, in milliseconds.
    pub(super) min_ms: u64,
    /// Younger than this; `None`: the last class.
    pub(super) max_ms: Option<u64>,
    pub(super) sum: ObjectSum,
}

/// Who made the objects of one type, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct MadeObjects {
    /// The largest first.
    pub(super) places: Vec<ObjectPlace>,
    /// The largest first.
    pub(super) threads: Vec<ObjectThread>,
    /// The youngest first.
    pub(super) ages: Vec<ObjectAge>,
}

/// The same of all types, by the lowest number of those of one name.
#[derive(Debug)]
pub(super) struct PlaceTable {
    by_type: FxHashMap<u32, MadeObjects>,
    placed: ObjectSum,
}

impl ObjectSum {
    fn add(&mut self, own_bytes: u64) {
        self.count += 1;
        self.own_bytes += own_bytes;
    }
}

impl PlaceTable {
    /// Joins the objects of a picture with the blocks that were live at its moment.
    ///
    /// # Errors
    /// The capture cannot be read.
    pub(super) fn of(file: &CaptureReader, head: &PictureHead, picture: &ObjectPicture) -> Result<Self> {
        let taken_ns = file.picture_ns(head);
        let (read, blocks) = blocks_at(file, head)?;
        let frames = &read.frames;
        let mut known: FxHashMap<StackId, Option<FrameId>> = FxHashMap::default();
        let (mut places, mut threads, mut ages) = (TypeSums::default(), TypeSums::default(), TypeSums::default());
        let mut placed = ObjectSum::default();
        let (of_objects, names) = (blocks_of(picture, &blocks), picture.first_of_names());
        for (object, block) in picture.objects().iter().zip(of_objects) {
            let Some(block) = block else { continue };
            let of = names.get(object.type_number as usize).copied().unwrap_or(object.type_number);
            let own_bytes = object.own_bytes;
            threads.add(of, block.thread, own_bytes);
            ages.add(of, age_class(taken_ns.saturating_sub(block.time_ns)), own_bytes);
            if let Some(frame) = *known.entry(block.stack).or_insert_with(|| innermost(frames, block.stack)) {
                places.add(of, frame, own_bytes);
                placed.add(own_bytes);
            }
        }
        let mut by_type: FxHashMap<u32, MadeObjects> = FxHashMap::default();
        for (of, frame, ObjectSum { count, own_bytes }) in places.sums() {
            let (function, file) = (frames.function(frame).to_owned(), frames.file(frame).to_owned());
            let (shown_file, line) = (short(frames, &file).into_owned(), frames.frame(frame).line);
            let place = ObjectPlace { function, file, shown_file, line, count, own_bytes };
            by_type.entry(of).or_default().places.push(place);
        }
        for (of, ThreadId(number), sum) in threads.sums() {
            let (tid, name) =
                read.threads.get(number as usize).map(|thread| (thread.tid, thread.name.clone())).unwrap_or_default();
            by_type.entry(of).or_default().threads.push(ObjectThread { tid, name, sum });
        }
        for (of, class, sum) in ages.sums() {
            let min_ms = class.checked_sub(1).map_or(0, |before| AGE_BOUNDS_MS[before]);
            by_type.entry(of).or_default().ages.push(ObjectAge {
                min_ms,
                max_ms: AGE_BOUNDS_MS.get(class).copied(),
                sum,
            });
        }
        by_type.values_mut().for_each(MadeObjects::sort);
        Ok(Self { by_type, placed })
    }

    /// What has a place.
    pub(super) fn placed(&self) -> ObjectSum {
        self.placed
    }

    /// Who made the objects of a type, and when.
    pub(super) fn take(&mut self, of: u32) -> MadeObjects {
        self.by_type.remove(&of).unwrap_or_default()
    }
}

impl MadeObjects {
    fn sort(&mut self) {
        self.places
            .sort_by(|a, b| (b.own_bytes, b.count, &a.file, a.line).cmp(&(a.own_bytes, a.count, &b.file, b.line)));
        self.threads.sort_by_key(|thread| (Reverse((thread.sum.own_bytes, thread.sum.count)), thread.tid));
        self.ages.sort_by_key(|age| age.min_ms);
    }
}

/// Sums by type and something else.
#[derive(Debug)]
struct TypeSums<K> {
    rows: Vec<(u32, K, ObjectSum)>,
    /// The row of each.
    known: FxHashMap<(u32, K), usize>,
    /// The row that was added to last: neighbours in memory are mostly alike.
    last: usize,
}

impl<K> Default for TypeSums<K> {
    fn default() -> Self {
        Self { rows: Vec::new(), known: FxHashMap::default(), last: 0 }
    }
}

impl<K: Copy + Eq + Hash> TypeSums<K> {
    fn add(&mut self, of: u32, key: K, own_bytes: u64) {
        if self.rows.get(self.last).is_none_or(|row| (row.0, row.1) != (of, key)) {
            self.last = *self.known.entry((of, key)).or_insert_with(|| {
                self.rows.push((of, key, ObjectSum::default()));
                self.rows.len() - 1
            });
        }
        self.rows[self.last].2.add(own_bytes);
    }

    fn sums(self) -> impl Iterator<Item = (u32, K, ObjectSum)> {
        self.rows.into_iter()
    }
}

/// The number of the class of an age.
fn age_class(age_ns: u64) -> usize {
    AGE_BOUNDS_MS.partition_point(|bound| *bound <= age_ns / 1_000_000)
}

/// The innermost frame of Python; else the innermost one.
fn innermost(frames: &Frames, stack: StackId) -> Option<FrameId> {
    let mut all = frames.leaf_to_root(stack);
    let python = frames.leaf_to_root(stack).find(|frame| frames.module_id(*frame).is_none());
    python.or_else(|| all.next())
}

#[cfg(test)]
mod tests {
    use super::age_class;

    #[test]
    fn classes_of_ages_have_their_lower_bounds() {
        let classes = [0, 9_999_999, 10_000_000, 999_000_000, 1_000_000_000, 86_399_999_999_999, 86_400_000_000_000];
        assert_eq!(classes.map(age_class), [0, 0, 1, 2, 3, 7, 8]);
    }
}
