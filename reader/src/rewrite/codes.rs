//! Assigns code objects to the frames of a rewritten capture.
//!
//! A frame is a function, a file and a source position; in a capture it is a code object and an instruction. So each
//! function of a file becomes a code object, and each of its frames one of its instructions, whose source position is
//! recorded.
//!
//! Invariant: equal frames have the same code object and instruction.

use memtrack_format::lines::SourcePosition;
use memtrack_format::record;
use rustc_hash::FxHashMap;

use crate::frames::{FrameId, Frames, NameId, Native};

/// Bytes from one instruction to the next.
const INSTRUCTION: u32 = 2;

/// The code objects so far.
#[derive(Debug, Default)]
pub(super) struct CodeTable {
    /// By function and file: the id, and how many instructions there are.
    ids: FxHashMap<(NameId, NameId), (u32, u32)>,
    /// By number of a native module: its id among code objects.
    modules: FxHashMap<u32, u32>,
    frames: FxHashMap<FrameId, record::RawFrame>,
}

impl CodeTable {
    /// The code object and the instruction that stand for a frame.
    pub(super) fn frame(&mut self, id: FrameId, frames: &Frames) -> record::RawFrame {
        if let Some(known) = self.frames.get(&id) {
            return *known;
        }
        let next = u32::try_from(self.ids.len() + self.modules.len()).unwrap_or(u32::MAX).saturating_add(1);
        if let Some(Native { module, offset }) = frames.native(id) {
            let code = *self.modules.entry(module).or_insert(next);
            // It came as 32 bits, or as an address in a file that was mapped.
            let frame = record::RawFrame { code, instruction: u32::try_from(offset).unwrap_or(u32::MAX) };
            self.frames.insert(id, frame);
            return frame;
        }
        let parts = frames.frame(id);
        let (code, instructions) = self.ids.entry((parts.function, parts.file)).or_insert((next, 0));
        let frame = record::RawFrame { code: *code, instruction: *instructions };
        *instructions = instructions.saturating_add(INSTRUCTION);
        self.frames.insert(id, frame);
        frame
    }
}

/// Where a frame is in its file.
pub(super) fn position(id: FrameId, frames: &Frames) -> SourcePosition {
    let frame = frames.frame(id);
    SourcePosition { line: frame.line, end_line: frame.line, column: frame.column.checked_sub(1), end_column: None }
}
