//! The objects of a capture's picture, joined with the stacks that allocated their blocks.
//!
//! Invariant: an object is in one group; its stack ends with its type.

use anyhow::{Context, Result, bail};
use memtrack_format::Allocator;
use memtrack_format::objects::{PictureCause, PictureExtent, PictureHead};
use memtrack_objects::ObjectPicture;
use memtrack_reader::analysis::{Group, Sum, Tally};
use memtrack_reader::object_places::{LiveBlocks, ObjectBlock, PictureScan};
use memtrack_reader::source::{CaptureReader, PictureMoment, ReadSummary};
use memtrack_reader::{Frames, Options, StackId, ThreadId};
use rustc_hash::FxHashMap;

use super::picture_choice;
use crate::objects_moment::ObjectsMoment;
use crate::reports::NO_STACK;
use crate::reports::capture_info::{Capture, visible};
use crate::reports::picture_summary::PictureSummary;
use crate::terminal::Progress;
use crate::units::duration;

/// Whether a report has the view of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ObjectStacks {
    /// It has not.
    #[default]
    Unwanted,
    /// It has one where the capture has a picture, and no filter of single allocations was given.
    IfThere,
    /// It is about them.
    Needed,
}

/// Adds the objects of a capture's picture to its sums.
///
/// # Errors
/// The capture cannot be read, or has no picture where one is needed.
pub(super) fn add_objects(file: &CaptureReader, capture: &mut Capture, wanted: ObjectStacks) -> Result<()> {
    let is_wanted = match wanted {
        ObjectStacks::Unwanted => false,
        ObjectStacks::IfThere => !file.pictures()?.is_empty(),
        ObjectStacks::Needed => true,
    };
    if !is_wanted {
        return Ok(());
    }
    let moment = find_picture(file, None)?;
    let stored = file.picture(&moment, PictureExtent::Objects)?;
    let picture = ObjectPicture::of_stored(stored.with_context(|| unreadable(file))?);
    let (read, blocks) = blocks_at(file, &moment.head)?;
    let joined = JoinedObjects::of(&picture, &blocks);
    let groups = joined.groups(&picture, &read.frames, &mut capture.frames)?;
    capture.analysis.add_objects(groups);
    let JoinedObjects { all, with_stack, .. } = joined;
    capture.info.objects = Some(PictureSummary { when: when(file, &moment.head), all, with_stack });
    Ok(())
}

/// The blocks that were live at the moment of a picture.
///
/// # Errors
/// The capture cannot be read.
pub(crate) fn blocks_at(file: &CaptureReader, head: &PictureHead) -> Result<(ReadSummary, LiveBlocks)> {
    let options = Options { unknown_blocks: file.unknown_blocks(), ..Options::default() };
    let mut scan = PictureScan::new(&options, file.picture_ns(head));
    let mut progress = Progress::new(file.total_record_bytes(), "reading");
    let read = file.read(&mut scan, |bytes| progress.add(bytes))?;
    Ok((read, scan.finish()))
}

/// The block of each object, or of what is in it.
pub(crate) fn blocks_of(picture: &ObjectPicture, blocks: &LiveBlocks) -> impl Iterator<Item = Option<ObjectBlock>> {
    let contents = picture.contents().iter().map(|of| (of.object, of.address));
    blocks.of_objects(picture.objects().iter().map(|object| object.address), contents)
}

/// The objects of a picture by type and by who allocated their blocks.
struct JoinedObjects {
    /// By the number of the type, and by stack, allocator and thread; the empty stack where the block is not known.
    sums: FxHashMap<(u32, (StackId, Allocator, ThreadId)), Sum>,
    all: Tally,
    with_stack: Tally,
}

impl JoinedObjects {
    fn of(picture: &ObjectPicture, blocks: &LiveBlocks) -> Self {
        let mut joined = Self { sums: FxHashMap::default(), all: Tally::default(), with_stack: Tally::default() };
        // Without '--trace-python-allocators' the blocks that are not known are mostly of pymalloc.
        let unknown = (StackId::EMPTY, Allocator::PymallocMalloc, ThreadId(0));
        let of_objects = blocks_of(picture, blocks);
        for (object, block) in picture.objects().iter().zip(of_objects) {
            let key = block.map_or(unknown, |block| (block.stack, block.allocator, block.thread));
            let time_ns = block.map_or(0, |block| block.time_ns);
            joined.sums.entry((object.type_number, key)).or_default().add(object.own_bytes, 1, 0, time_ns);
            let one = Tally { bytes: object.own_bytes, count: 1, ..Tally::default() };
            joined.all += one;
            if key.0 != StackId::EMPTY {
                joined.with_stack += one;
            }
        }
        joined
    }

    /// A group for each of the sums; its stack, in `frames`, ends with the type. `of_blocks` has the stacks of the blocks.
    fn groups(&self, picture: &ObjectPicture, of_blocks: &Frames, frames: &mut Frames) -> Result<Vec<Group>> {
        let stacks = frames.take_over(of_blocks, |frame| frame)?;
        let unknown = frames.frame_named(NO_STACK, "", 0)?;
        let unknown = frames.stack_id(StackId::EMPTY, unknown)?;
        let mut types = FxHashMap::default();
        for of_type in picture.by_type() {
            types.insert(of_type.number, frames.frame_named(&type_frame(&of_type.name), "", 0)?);
        }
        let mut groups = Vec::with_capacity(self.sums.len());
        for (&(of_type, (stack, allocator, thread)), &objects) in &self.sums {
            let Some(of_type) = types.get(&of_type) else { continue };
            let parent = stacks.get(stack.0 as usize).copied().filter(|stack| *stack != StackId::EMPTY);
            let stack = frames.stack_id(parent.unwrap_or(unknown), *of_type)?;
            groups.push(Group { objects, ..Group::new(stack, allocator, thread) });
        }
        groups.sort_unstable_by_key(|group| (group.stack.0, group.thread.0, group.allocator as u8));
        Ok(groups)
    }
}

/// The frame that stands for the objects of a type.
fn type_frame(name: &str) -> String {
    format!("{} objects", visible(name.strip_prefix("builtins.").unwrap_or(name)))
}

/// The picture of a moment; that of the end or the last one, if none is named.
///
/// # Errors
/// There is none.
pub(crate) fn find_picture(file: &CaptureReader, at: Option<&ObjectsMoment>) -> Result<PictureMoment> {
    let pictures = file.pictures()?;
    let path = file.path().display();
    if pictures.is_empty() {
        bail!("{path}: {}", no_picture(file));
    }
    let heads: Vec<&PictureHead> = pictures.iter().map(|picture| &picture.head).collect();
    let found = match at {
        Some(at) => picture_choice::find(&heads, file.marks(), at),
        None => heads.iter().rposition(|head| head.cause == PictureCause::End).or(heads.len().checked_sub(1)),
    };
    let found = found.and_then(|place| pictures.get(place));
    found.cloned().with_context(|| {
        let listed = picture_choice::listed(file, &heads);
        format!("{path}: no picture of objects at that moment; there are: {listed}")
    })
}

/// Why a capture has no picture.
fn no_picture(file: &CaptureReader) -> String {
    let process = file.process();
    if process.stripped.count.is_some() || process.anonymized {
        return "no picture of objects: 'memtrack strip' and 'anonymize' leave it out; use the original capture".into();
    }
    match &process.objects_note {
        Some(note) => {
            format!("no picture of objects in it, though it was asked for: {}", String::from_utf8_lossy(note))
        }
        None if file.is_growing() => {
            "no picture of objects in it yet: it is still being recorded. One that --objects-at asked for is there some seconds after its \
             moment, when it has been read; 'memtrack objects PID' takes one now"
                .into()
        }
        None if !file.complete() => {
            "no picture of objects in it: the recording was cut off, and with it any that was asked for; record the program again".into()
        }
        None if process.python_version.is_none() => {
            "no picture of objects in it: its program does not run Python, and only Python programs have objects".into()
        }
        None => "no picture of objects in it; record the program with 'memtrack run --objects-at end'".into(),
    }
}

/// The error of a picture that cannot be read.
pub(crate) fn unreadable(file: &CaptureReader) -> String {
    let why = if file.is_growing() {
        "is still being written; try again in some seconds"
    } else if file.complete() {
        "is damaged"
    } else {
        "is not whole: the recording was cut off while it was written"
    };
    format!("{}: the picture of objects {why}", file.path().display())
}

/// The moment of a picture in words.
pub(crate) fn when(file: &CaptureReader, head: &PictureHead) -> String {
    let moment = match head.cause {
        PictureCause::End => "at the end".into(),
        PictureCause::Peak => "near the peak of resident memory".into(),
        PictureCause::Mark => format!("at the mark '{}'", head.mark),
    };
    format!("{moment}, {} after the start", duration(file.picture_ns(head)))
}
