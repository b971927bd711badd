//! Which Python objects are in the blocks that a line of own code has allocated, and who holds them.
//!
//! Invariant: counts are those of `objects --places` of the same picture, summed up by the line of own code, and bytes, too, with those
//! of attributes.

use anyhow::Result;
use memtrack_format::objects::{PictureExtent, PictureHead};
use memtrack_objects::ObjectPicture;
use memtrack_reader::StackId;
use memtrack_reader::source::CaptureReader;
use rustc_hash::FxHashMap;

use crate::load::objects::{blocks_at, blocks_of, find_picture, when};
use crate::reports::capture_info::Capture;
use crate::reports::line_objects::{LineObjects, ObjectsOfLine};
use crate::reports::own_lines::{OwnLineKey, line_of};

/// Lines of which objects are told: those with most bytes of them, at least so many.
const MOST_LINES: usize = 8;
const LEAST: u64 = 64 << 10;
/// Types of a line that are told, and the percentage of its objects' bytes that one has at least.
const MOST_TYPES: usize = 2;
const LEAST_PERCENT: u64 = 10;

/// Objects, by their rows, and the sum of their sizes, with those of the values of attributes.
#[derive(Debug, Default)]
struct ObjectRows {
    rows: Vec<u32>,
    bytes: u64,
}

/// Those of the capture's picture: that of the end, or the last one. None, if it has no picture that can be read.
///
/// # Errors
/// The capture cannot be read.
pub(crate) fn objects_of_lines(file: &CaptureReader, capture: &mut Capture) -> Result<LineObjects> {
    if file.pictures()?.is_empty() {
        return Ok(LineObjects::default());
    }
    let moment = find_picture(file, None)?;
    let Some(stored) = file.picture(&moment, PictureExtent::Whole)? else { return Ok(LineObjects::default()) };
    let picture = ObjectPicture::of_stored(stored);
    let mut by_line = rows_by_line(file, &moment.head, &picture, capture)?;
    by_line.retain(|(_, types)| bytes_of(types) >= LEAST);
    by_line.sort_by_key(|(_, types)| std::cmp::Reverse(bytes_of(types)));
    by_line.truncate(MOST_LINES);
    let names: FxHashMap<u32, String> = picture.by_type().into_iter().map(|of| (of.number, of.name)).collect();
    let told = by_line.into_iter().map(|(line, types)| (line, largest(&picture, &names, types))).collect();
    Ok(LineObjects { by_line: told, when: when(file, &moment.head) })
}

/// The objects with a known block, by the line that allocated it, and by the number of their type.
fn rows_by_line(
    file: &CaptureReader,
    head: &PictureHead,
    picture: &ObjectPicture,
    capture: &mut Capture,
) -> Result<Vec<(OwnLineKey, FxHashMap<u32, ObjectRows>)>> {
    let (read, blocks) = blocks_at(file, head)?;
    let stacks = capture.frames.take_over(&read.frames, |frame| frame)?;
    let capture = &*capture;
    let values = picture.value_bytes_of_one();
    let mut lines: FxHashMap<StackId, OwnLineKey> = FxHashMap::default();
    let mut by_line: FxHashMap<OwnLineKey, FxHashMap<u32, ObjectRows>> = FxHashMap::default();
    for ((object, block), row) in picture.objects().iter().zip(blocks_of(picture, &blocks)).zip(0..) {
        let Some(stack) = block.and_then(|block| stacks.get(block.stack.0 as usize).copied()) else { continue };
        let line = *lines.entry(stack).or_insert_with(|| line_of(capture, stack));
        let of = by_line.entry(line).or_default().entry(object.type_number).or_default();
        of.rows.push(row);
        of.bytes += object.own_bytes + values.get(object.type_number as usize).copied().unwrap_or(0);
    }
    Ok(by_line.into_iter().collect())
}

fn bytes_of(types: &FxHashMap<u32, ObjectRows>) -> u64 {
    types.values().map(|of| of.bytes).sum()
}

/// The types with most bytes, with who holds their objects.
fn largest(
    picture: &ObjectPicture,
    names: &FxHashMap<u32, String>,
    types: FxHashMap<u32, ObjectRows>,
) -> Vec<ObjectsOfLine> {
    let least = bytes_of(&types) / 100 * LEAST_PERCENT;
    let mut types: Vec<(u32, ObjectRows)> = types.into_iter().filter(|(_, of)| of.bytes >= least).collect();
    types.sort_by_key(|(number, of)| (std::cmp::Reverse(of.bytes), *number));
    types.truncate(MOST_TYPES);
    let told = types.into_iter().filter_map(|(number, of)| {
        let holder = picture.paths(&of.rows).first()?.told().to_owned();
        Some(ObjectsOfLine { name: names.get(&number)?.clone(), count: of.rows.len() as u64, bytes: of.bytes, holder })
    });
    told.collect()
}
