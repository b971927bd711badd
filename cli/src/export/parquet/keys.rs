//! The keys by which tables of different processes join: hashes of what they name.
//!
//! A frame's key is XXH64, with seed 0, of its function, file and module, each with a byte 0xff behind it, which UTF-8
//! does not contain, and of its line and column as 32-bit little-endian numbers. A stack's key is XXH64 of its caller's
//! key (0 for none) and its innermost frame's. Invariant: equal frames and stacks have equal keys in every process, on
//! every machine; 0 is no key.

use memtrack_format::meta::Process;
use memtrack_reader::modules::ModuleTable;
use memtrack_reader::origin::{Origin, origins};
use memtrack_reader::{FrameId, Frames, StackId};
use twox_hash::XxHash64;

/// The keys of one capture's frames and stacks.
#[derive(Debug)]
pub(super) struct CaptureKeys {
    /// By number of the frame.
    frames: Vec<u64>,
    /// By number of the stack; the first is the empty one, without key.
    stacks: Vec<u64>,
    /// The frame to which a stack's memory is attributed, by number of the stack.
    own: Vec<u64>,
    /// The module of each frame.
    modules: Vec<Option<String>>,
}

impl CaptureKeys {
    /// The keys of all frames and stacks.
    pub(super) fn of(frames: &Frames) -> Self {
        let mut known = ModuleTable::default();
        let numbers = || (0..).map(FrameId).take(frames.frames().len());
        let modules: Vec<_> =
            numbers().map(|id| known.of_frame(frames, id).map(|module| known.name(module).to_owned())).collect();
        let of_frame =
            |(id, module): (FrameId, &Option<String>)| frame_key(frames, id, module.as_deref().unwrap_or(""));
        let mut keys =
            Self { frames: numbers().zip(&modules).map(of_frame).collect(), stacks: vec![0], own: vec![0], modules };
        let origins = origins(frames);
        // The innermost frame of own code so far; 0: none.
        let mut innermost_own = vec![0_u64];
        for node in frames.stacks() {
            let [caller, own] = [&keys.stacks, &innermost_own].map(|all| at(all, node.parent.0));
            let frame = at(&keys.frames, node.frame.0);
            let is_own = origins.get(node.frame.0 as usize) == Some(&Origin::Own);
            let own = if is_own { frame } else { own };
            keys.stacks.push(hash(&[caller.to_le_bytes(), frame.to_le_bytes()].concat()));
            keys.own.push(if own == 0 { frame } else { own });
            innermost_own.push(own);
        }
        keys
    }

    /// The key of a frame.
    pub(super) fn frame(&self, frame: FrameId) -> u64 {
        at(&self.frames, frame.0)
    }

    /// The module of a frame; the standard library is none.
    pub(super) fn module(&self, frame: FrameId) -> Option<&str> {
        self.modules.get(frame.0 as usize)?.as_deref()
    }

    /// The key of a stack; `None` for the empty one.
    pub(super) fn stack(&self, stack: StackId) -> Option<u64> {
        Some(at(&self.stacks, stack.0)).filter(|key| *key != 0)
    }

    /// The key of the innermost frame of own code, or else of the innermost frame; `None` for the empty stack.
    pub(super) fn own_frame(&self, stack: StackId) -> Option<u64> {
        Some(at(&self.own, stack.0)).filter(|key| *key != 0)
    }
}

/// The key of a process: of its host, process id, and start.
pub(super) fn process_key(process: &Process, host: &str) -> u64 {
    let start = process.start.realtime_ns.unwrap_or(0);
    hash(&[host.as_bytes(), &[0xff], &process.pid.unwrap_or(0).to_le_bytes(), &start.to_le_bytes()].concat())
}

fn frame_key(frames: &Frames, id: FrameId, module: &str) -> u64 {
    let frame = frames.frame(id);
    let mut bytes = Vec::new();
    for text in [frames.function(id), frames.file(id), module] {
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0xff);
    }
    [frame.line, frame.column].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    hash(&bytes)
}

/// Never 0, which is no key.
fn hash(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes).max(1)
}

fn at(all: &[u64], number: u32) -> u64 {
    all.get(number as usize).copied().unwrap_or(0)
}
