//! Resolves the ids of a capture: code objects, frames, stacks and threads of all streams.
//!
//! Invariant: a frame whose code object is not described is shown as `<unknown>` and counted; it is looked up again
//! each time, since the description may still come.

use std::borrow::Cow;
use std::sync::Arc;

use memtrack_format::mapped::MappedFile;
use memtrack_format::record::{AllocationCount, RawFrame};
use rustc_hash::FxHashMap;

use super::brief::BriefStacks;
use super::segment::{CodeDescription, Definition};
use super::segment_nodes::SegmentNode;
use super::stretch_counts::StretchCounts;
use super::thread_names::{NameSource, ThreadNames};
use crate::error::Error;
use crate::event::{StackId, Thread, ThreadId};
use crate::frames::{self, FrameId, Frames};
use crate::lines::{SourcePosition, position};
use crate::native::NativeModule;
use crate::symbols::{Symbolizer, UNKNOWN, frames_of};

/// All tables of one capture.
#[derive(Debug, Default)]
pub(super) struct IdTables {
    pub(super) frames: Frames,
    pub(super) threads: Vec<Thread>,
    /// Nodes whose frame's code object was not known.
    pub(super) unknown_frames: u64,
    /// Frames have no columns.
    pub(super) without_columns: bool,
    /// Names of native frames are not looked up.
    pub(super) without_names: bool,
    /// Reduces stacks, if that is enough.
    pub(super) brief: Option<BriefStacks>,
    thread_ids: FxHashMap<i32, ThreadId>,
    /// What was counted in sampled recordings.
    pub(super) counts: StretchCounts,
    /// The names of threads, by thread.
    names: Vec<ThreadNames>,
    /// The names of native frames.
    pub(super) symbols: Symbolizer,
    /// The code objects of each image of the process.
    images: Vec<CodeImage>,
}

/// The code objects of one image of the process: an exec begins another image, with ids of its own.
#[derive(Debug, Default)]
struct CodeImage {
    codes: FxHashMap<u32, (CodeDescription, Vec<u8>)>,
    known: FxHashMap<(u32, u32), FrameId>,
    modules: FxHashMap<u32, NativeModule>,
    /// The mapped files of pages outside loaded objects, by the page's id.
    files: FxHashMap<u32, Arc<MappedFile>>,
    /// The frames of native places, root first: a function, and those that are inlined there.
    native: FxHashMap<(u32, u32), Vec<FrameId>>,
    /// Source positions that the collector decoded from line tables.
    located: FxHashMap<(u32, u32), SourcePosition>,
}

impl IdTables {
    /// Adds a definition of an image. The first one of a code object counts; later ones add missing parts of its line
    /// table.
    pub(super) fn define(&mut self, image: usize, definition: &Definition) {
        match definition {
            Definition::Code(code) => {
                self.image(image).codes.entry(code.id).or_insert_with(|| (code.clone(), Vec::new()));
            }
            Definition::Module(id, module) => {
                self.image(image).modules.entry(*id).or_insert_with(|| module.clone());
            }
            Definition::Lines { id, bytes } => {
                let Some((code, table)) = self.image(image).codes.get_mut(id) else { return };
                let room = (code.lines_len as usize).saturating_sub(table.len());
                table.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            Definition::Located { frame, position } => {
                let image = self.image(image);
                // Only of what is described, so that a few bytes of a hostile file do not become a large table.
                if image.codes.contains_key(&frame.code) {
                    image.located.insert((frame.code, frame.instruction), *position);
                }
            }
            // See `Merger::load`, which knows its place.
            Definition::Counted(_) => {}
            Definition::ThreadName { tid, name, source } => {
                self.name_thread(*tid, &String::from_utf8_lossy(name), *source);
            }
        }
    }

    /// Adds the mapped file of pages of an image. The first one of a page counts.
    pub(super) fn mapped(&mut self, image: usize, file: &MappedFile) {
        let file = Arc::new(file.clone());
        for &code in &file.codes {
            self.image(image).files.entry(code).or_insert_with(|| Arc::clone(&file));
        }
    }

    /// The module that a native frame is in, and its offset there; `None`: it is no native frame.
    pub(super) fn native_place(&self, image: usize, frame: RawFrame) -> Option<(Cow<'_, NativeModule>, u64)> {
        let image = self.images.get(image)?;
        Some(place(image.modules.get(&frame.code)?, image.files.get(&frame.code).map(|file| &**file), frame))
    }

    fn image(&mut self, number: usize) -> &mut CodeImage {
        if self.images.len() <= number {
            self.images.resize_with(number + 1, CodeImage::default);
        }
        &mut self.images[number]
    }

    /// Adds what a thread has allocated by the moment of this ticket, if it is news.
    pub(super) fn count(&mut self, count: &AllocationCount, ticket: u64) {
        let Some((before, now)) = self.counts.note(count, ticket) else { return };
        let place = self.thread(count.tid()).0 as usize;
        if let Some(thread) = self.threads.get_mut(place) {
            let counted = thread.counted.get_or_insert_default();
            *counted = counted.less(before).with(now);
        }
    }

    /// The thread with this id of the operating system.
    pub(super) fn thread(&mut self, tid: i32) -> ThreadId {
        *self.thread_ids.entry(tid).or_insert_with(|| {
            self.threads.push(Thread { tid, ..Thread::default() });
            self.names.push(ThreadNames::default());
            // Every thread stands in the file with at least a byte, and nobody has 2^32 of them in memory.
            ThreadId((self.threads.len() - 1) as u32)
        })
    }

    /// Adds a name of a thread, which has its last one then.
    pub(super) fn name_thread(&mut self, tid: i32, name: &str, source: NameSource) {
        let place = self.thread(tid).0 as usize;
        if let (Some(thread), Some(known)) = (self.threads.get_mut(place), self.names.get_mut(place)) {
            known.add(name, source);
            known.last().clone_into(&mut thread.name);
        }
    }

    /// Adds the stacks of a segment's new nodes to `map`, which knows those before them.
    pub(super) fn map_nodes(
        &mut self,
        image: usize,
        nodes: &[SegmentNode],
        map: &mut Vec<StackId>,
    ) -> Result<(), Error> {
        for node in nodes {
            let parent = map.get(node.parent as usize).copied().unwrap_or_default();
            map.push(if self.is_native(image, node.frame) {
                self.native_stack(image, parent, node.frame)?
            } else {
                let frame = self.frame(image, node.frame)?;
                stack_id(&mut self.brief, &mut self.frames, parent, frame)?
            });
        }
        Ok(())
    }

    fn is_native(&self, image: usize, frame: RawFrame) -> bool {
        self.images.get(image).is_some_and(|image| image.modules.contains_key(&frame.code))
    }

    /// The stack after a call of a native frame from `parent`, with the functions that are inlined there.
    fn native_stack(&mut self, image: usize, parent: StackId, frame: RawFrame) -> Result<StackId, Error> {
        let key = (frame.code, frame.instruction);
        if !self.image(image).native.contains_key(&key) {
            let frames = self.native_frames(image, frame)?;
            self.image(image).native.insert(key, frames);
        }
        let Self { images, frames, brief, .. } = self;
        let places = images.get(image).and_then(|image| image.native.get(&key)).map(Vec::as_slice).unwrap_or_default();
        places.iter().try_fold(parent, |parent, &frame| stack_id(brief, frames, parent, frame))
    }

    fn native_frames(&mut self, image: usize, frame: RawFrame) -> Result<Vec<FrameId>, Error> {
        let Some((module, offset)) = self.native_place(image, frame) else { return Ok(Vec::new()) };
        let module = module.into_owned();
        if self.without_names {
            return Ok(vec![self.frames.native_id(&module, offset)?]);
        }
        frames_of(&module, offset, &mut self.symbols, &mut self.frames)
    }

    fn frame(&mut self, image: usize, frame: RawFrame) -> Result<FrameId, Error> {
        let key = (frame.code, frame.instruction);
        let known = self.images.get(image).and_then(|image| image.known.get(&key));
        if let Some(&id) = known {
            return Ok(id);
        }
        let Some((code, table)) = self.images.get(image).and_then(|image| image.codes.get(&frame.code)) else {
            self.unknown_frames += 1;
            return self.frames.frame_named(UNKNOWN, "", 0);
        };
        let met = self.images.get(image).and_then(|image| image.located.get(&key)).copied();
        let place = met.unwrap_or_else(|| position(code.lines, table, code.first_line, frame.instruction));
        let function = self.frames.name_id(&String::from_utf8_lossy(&code.name))?;
        let file = self.frames.name_id(&String::from_utf8_lossy(&code.file))?;
        // Columns count from 1 here, as in editors, so that 0 is none.
        let column = place.column.filter(|_| !self.without_columns).map_or(0, |column| column.saturating_add(1));
        let id = self.frames.id_of(frames::Frame { function, file, line: place.line, column })?;
        self.image(image).known.insert(key, id);
        Ok(id)
    }
}

/// The stack after a call of a frame from `parent`.
fn stack_id(
    brief: &mut Option<BriefStacks>,
    frames: &mut Frames,
    parent: StackId,
    frame: FrameId,
) -> Result<StackId, Error> {
    match brief {
        Some(brief) => brief.stack_id(frames, parent, frame),
        None => frames.stack_id(parent, frame),
    }
}

/// Module and offset of a frame: of the module itself or, for a page of a file, of that file.
pub(super) fn place<'a>(
    module: &'a NativeModule,
    file: Option<&MappedFile>,
    frame: RawFrame,
) -> (Cow<'a, NativeModule>, u64) {
    let offset = frame.instruction.into();
    match file.filter(|_| module.path.is_empty()) {
        Some(file) => {
            let (module, offset) = module.of_page(file, offset);
            (Cow::Owned(module), offset)
        }
        None => (Cow::Borrowed(module), offset),
    }
}
