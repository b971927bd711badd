//! The layouts of free-threaded builds.
//!
//! They are separate tables because the object header has two more words, and from 3.14 on frames and code objects have
//! fields for thread-local bytecode. Invariant: as for the other layouts.
//!
//! Why reading them in place is sound. Only the thread that runs a frame writes its links and its position, and a
//! generator is in the chain of the thread that runs it alone. Others write to a frame while every thread is stopped:
//! the collector tags the reference to the code object anew, which leaves its address, and so does not matter here. A
//! frame's reference keeps its code object, counted or not: the collector looks for those that are not counted in the
//! frames of all threads. An address, of a code object or of copied bytecode, goes to another one only by way of the
//! allocator, which orders that after the note of the death (see `freed_code_objects`).
//!
//! Why frame sentinels are sound as they are with the GIL (see `frame_sentinels`). A frame of the thread's is created,
//! evaluated and removed by that thread alone, through the same functions. The words that hold sentinels are not read
//! by other threads, except by the garbage collector: in 3.13 it does not look at frames; later it reads operands below
//! the stack's top, and never the byte that is set on creation. Machine code is not generated.

use super::{Delegation, IncompleteFrameOffsets, L313, Layout, Objects, ResultSlot, SentinelKind, ThreadLocalBytecode};

const WITHOUT_GIL: Objects = Objects { header: 32, str_state: 48, str_kind: 2 };

pub(super) const L313T: Layout = Layout {
    is_free_threaded: true,
    objects: WITHOUT_GIL,
    incomplete_frame: Some(IncompleteFrameOffsets { owner: 70, first_traceable: 200, bytecode: 216 }),
    sentinel_kind: SentinelKind::ResultSlot(ResultSlot {
        stack_top: 64,
        locals: 72,
        locals_count: 88,
        stack_size: 80,
        is_entry: None,
        delegation: Some(Delegation { behind: 0, opcodes: [104, 208] }),
    }),
    filename: 128,
    name: 136,
    qualname: Some(144),
    line_table: 152,
    first_line: 84,
    code_size: 216,
    ascii_data: 56,
    compact_data: 72,
    str_size: 80,
    debug_offsets: &[
        (32, 608),
        (184, 72),
        (232, 8),
        (240, 0),
        (248, 56),
        (264, 70),
        (280, 128),
        (288, 136),
        (296, 144),
        (304, 152),
        (312, 84),
        (344, 216),
        (360, 24),
        (520, 32),
        (528, 48),
        (544, 48),
        (552, 32),
        (560, 56),
    ],
    ..L313
};

pub(super) const L314T: Layout = Layout {
    minor: 14,
    finalizing: 784,
    objects: Objects { str_state: 49, str_kind: 0, ..WITHOUT_GIL },
    thread_local_bytecode: Some(ThreadLocalBytecode { number: 72, array: 224 }),
    incomplete_frame: Some(IncompleteFrameOffsets { owner: 78, first_traceable: 208, bytecode: 232 }),
    sentinel_kind: SentinelKind::CreationByte { offset: 79, since: 0x030e_05f0 },
    code_size: 232,
    debug_offsets: &[
        (32, 784),
        (208, 72),
        (256, 8),
        (264, 0),
        (272, 56),
        (288, 78),
        (304, 72),
        (320, 128),
        (328, 136),
        (336, 144),
        (344, 152),
        (352, 84),
        (384, 232),
        (392, 224),
        (408, 24),
        (600, 32),
        (608, 48),
        (624, 48),
        (632, 32),
        (640, 56),
    ],
    ..L313T
};

pub(super) const L315T: Layout = Layout {
    minor: 15,
    finalizing: 912,
    tracing: 64,
    debug_offsets: &[
        (32, 912),
        (208, 72),
        (320, 8),
        (328, 0),
        (336, 56),
        (352, 78),
        (368, 72),
        (384, 128),
        (392, 136),
        (400, 144),
        (408, 152),
        (416, 84),
        (448, 232),
        (456, 224),
        (472, 24),
        (696, 32),
        (704, 48),
        (720, 48),
        (728, 32),
        (736, 56),
        (744, 72),
    ],
    ..L314T
};
