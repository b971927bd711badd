//! Offsets of the fields of CPython's structures: one table for each supported version, and one for each free-threaded
//! build from 3.13 on.
//!
//! It exists because frames are read in place, without the interpreter's help. Invariant: a table holds for release
//! builds on 64-bit Linux (x86_64 and aarch64 agree); `layout_check` refuses an interpreter that contradicts it.

use crate::events::stack_model::NOT_STARTED;
use memtrack_format::lines::LineTableFormat;

mod free_threaded;

use free_threaded::{L313T, L314T, L315T};

/// How a thread state leads to its newest frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameRoot {
    /// The thread state holds the frame's address at this offset.
    Direct(usize),
    /// The thread state holds a pointer at `cframe`; the frame's address is at `current` behind it.
    Through { cframe: usize, current: usize },
}

/// How a frame says which instruction it executes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Position {
    /// A 32-bit index at `offset`, `scale` bytes each; negative before the first instruction.
    Index { offset: usize, scale: u32 },
    /// A pointer into the bytecode at this offset.
    Pointer(usize),
}

/// Offsets of the fields by which `_PyFrame_IsIncomplete` decides, of 3.11 and later.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncompleteFrameOffsets {
    /// Offset of the frame's owner, one byte.
    pub(super) owner: usize,
    /// Offset of `_co_firsttraceable` in the code object, a 32-bit count of code units.
    pub(super) first_traceable: usize,
    /// Offset of the inline bytecode in the code object, which is also the type's basic size.
    pub(super) bytecode: usize,
}

/// Which word of a frame can hold a sentinel that the interpreter is bound to destroy; see `frame_sentinels`.
#[derive(Clone, Copy, Debug)]
pub(super) enum SentinelKind {
    /// Not known of this version.
    #[allow(dead_code, reason = "a new version's table says so until a sentinel is proven for it")]
    Unknown,
    /// The byte at this offset in the frame is 1 while it executes, and only asked whether it is 0.
    RunningByte(usize),
    /// The int at this offset in the frame is -1 while it executes, and only asked whether it is positive.
    RunningDepth(usize),
    /// The place of a result in the stack of operands of a frame that waits for another.
    ResultSlot(ResultSlot),
    /// The byte at `offset` in the frame is set to 0 when the frame is created and then never looked at, in versions
    /// from `since` on, a `PY_VERSION_HEX`.
    CreationByte { offset: usize, since: u32 },
}

impl SentinelKind {
    /// Whether it holds for an interpreter of this `PY_VERSION_HEX`.
    pub(super) const fn holds_for(&self, version: u32) -> bool {
        match self {
            Self::CreationByte { since, .. } => version >= *since,
            _ => true,
        }
    }
}

/// Where the stack of operands is, and how to tell that the evaluation loop itself, not C code, entered a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultSlot {
    /// In a frame: the depth of its stack of operands, an int; negative while it executes.
    pub(super) stack_top: usize,
    /// In a frame: its locals, and then its stack of operands; one word each.
    pub(super) locals: usize,
    /// In a code object: how many locals there are, an int.
    pub(super) locals_count: usize,
    /// In a code object: how many operands there can be, an int.
    pub(super) stack_size: usize,
    /// In a frame: the byte that is 1 when C code entered it. Without one, C code enters by a frame of its own.
    pub(super) is_entry: Option<usize>,
    /// How a frame waits for a generator that it delegates to; elsewhere generators are entered by C code.
    pub(super) delegation: Option<Delegation>,
}

/// The instructions of `yield from` and `await`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delegation {
    /// How far behind the instruction a frame's position is while it waits, in bytes.
    pub(super) behind: usize,
    /// `SEND` and its specialised form.
    pub(super) opcodes: [u8; 2],
}

/// Thread-local bytecode (TLBC) of a free-threaded build: each thread executes its own copy of a code object's bytecode.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadLocalBytecode {
    /// In a frame: the number of the copy that its position is in, 32 bits; 0 is the inline one.
    pub(super) number: usize,
    /// In a code object: the address of the array, a count and then that many addresses.
    pub(super) array: usize,
}

/// How objects are laid out that every version has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects {
    /// What every object begins with; its type is the last word of that.
    header: usize,
    /// In a str: the byte with its kind, and above that whether it is compact and ASCII.
    pub(super) str_state: usize,
    /// The lowest bit of the kind in that byte.
    pub(super) str_kind: u32,
}

impl Objects {
    /// In every object: its type.
    pub(super) const fn kind(&self) -> usize {
        self.header.wrapping_sub(8)
    }

    /// In a str: its length in characters. In every object of variable size: its length.
    pub(super) const fn length(&self) -> usize {
        self.header
    }

    /// In a bytes object: its data.
    pub(super) const fn bytes_data(&self) -> usize {
        self.header.wrapping_add(16)
    }

    /// In a type: `tp_basicsize`.
    pub(super) const fn basic_size(&self) -> usize {
        self.header.wrapping_add(16)
    }

    /// In a type: `tp_dealloc`.
    pub(super) const fn deallocator(&self) -> usize {
        self.header.wrapping_add(32)
    }

    /// In a type: `tp_flags`.
    pub(super) const fn type_flags(&self) -> usize {
        self.header.wrapping_add(152)
    }
}

/// The objects of builds with the GIL.
const WITH_GIL: Objects = Objects { header: 16, str_state: 32, str_kind: 2 };

/// The offsets in bytes of one version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) minor: u8,
    pub(super) is_free_threaded: bool,
    pub(super) objects: Objects,
    /// Only where each thread executes a copy of the bytecode.
    pub(super) thread_local_bytecode: Option<ThreadLocalBytecode>,
    /// `_PyRuntime`'s pointer to the thread state that finalizes, null before.
    pub(super) finalizing: usize,
    pub(super) frame_root: FrameRoot,
    /// In a frame: the frame that called it.
    pub(super) previous: usize,
    /// In a frame: its code object, with tag bits in the low two from 3.14 on.
    pub(super) executable: usize,
    pub(super) position: Position,
    pub(super) incomplete_frame: Option<IncompleteFrameOffsets>,
    pub(super) sentinel_kind: SentinelKind,
    /// In a thread state: how many trace functions are running, an int.
    pub(super) tracing: usize,
    pub(super) filename: usize,
    pub(super) name: usize,
    pub(super) qualname: Option<usize>,
    pub(super) line_table: usize,
    pub(super) first_line: usize,
    pub(super) line_table_format: LineTableFormat,
    /// `PyCode_Type.tp_basicsize`.
    pub(super) code_size: usize,
    /// `PyFrame_Type.tp_basicsize` where the frames of the chain are such objects (up to 3.10).
    pub(super) frame_size: Option<usize>,
    /// In a str: the data of compact ASCII; `PyASCIIObject`'s size.
    pub(super) ascii_data: usize,
    /// In a str: the data of compact non-ASCII, and the pointer to the data of what is not compact.
    pub(super) compact_data: usize,
    /// `PyUnicode_Type.tp_basicsize`.
    pub(super) str_size: usize,
    /// What `_Py_DebugOffsets` must hold: byte position in that table and value.
    pub(super) debug_offsets: &'static [(usize, usize)],
}

/// Frame owner: the thread, that is, an ordinary call.
pub(super) const OWNER_THREAD: u8 = 0;
/// Frame owner: a generator or coroutine.
pub(super) const OWNER_GENERATOR: u8 = 1;
/// Frame owners from here on are the interpreter's own entry frames (`FRAME_OWNED_BY_INTERPRETER`,
/// `FRAME_OWNED_BY_CSTACK`).
pub(super) const OWNER_ENTRY: u8 = 3;

/// A version's layout as a constant, so that the walker's offsets are immediates.
#[expect(private_interfaces, reason = "only the modules of this one look inside")]
pub(crate) trait Version {
    /// The layout.
    const L: Layout;
}

/// A generic operation that is compiled once for each supported build of CPython; see [`Build::dispatch`].
pub(crate) trait ForVersion {
    /// Its result.
    type Output;
    /// The operation for one build.
    fn run<V: Version>(self) -> Self::Output;
}

macro_rules! versions {
    ($($name:ident = $layout:expr;)*) => {
        $(
            #[derive(Debug)]
            pub(crate) enum $name {}
            impl Version for $name {
                const L: Layout = $layout;
            }
        )*

        /// A supported build of CPython: a minor version, with the GIL or free-threaded. There is no value for any
        /// other.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Build {
            $($name,)*
        }

        impl Build {
            const ALL: &[Self] = &[$(Self::$name),*];

            pub(super) const fn layout(self) -> &'static Layout {
                match self {
                    $(Self::$name => &$name::L,)*
                }
            }

            /// Runs the operation that was compiled for this build.
            #[inline(always)]
            pub(crate) fn dispatch<F: ForVersion>(self, operation: F) -> F::Output {
                match self {
                    $(Self::$name => operation.run::<$name>(),)*
                }
            }
        }
    };
}

versions! {
    V38 = L38; V39 = L39; V310 = L310; V311 = L311; V312 = L312; V313 = L313; V314 = L314; V315 = L315;
    V313T = L313T; V314T = L314T; V315T = L315T;
}

/// The supported versions as messages name them; a test compares them with the layouts.
macro_rules! supported_versions {
    () => {
        "3.8 to 3.15"
    };
}
pub(super) use supported_versions;

impl Build {
    /// The build of `3.minor`, if it is supported.
    pub(super) fn find(minor: u8, is_free_threaded: bool) -> Option<Self> {
        Self::ALL.iter().copied().find(|build| {
            let layout = build.layout();
            layout.minor == minor && layout.is_free_threaded == is_free_threaded
        })
    }
}

const L38: Layout = Layout {
    minor: 8,
    is_free_threaded: false,
    objects: WITH_GIL,
    thread_local_bytecode: None,
    finalizing: 16,
    frame_root: FrameRoot::Direct(24),
    previous: 24,
    executable: 32,
    position: Position::Index { offset: 104, scale: 1 },
    incomplete_frame: None,
    sentinel_kind: SentinelKind::RunningByte(116),
    tracing: 44,
    filename: 104,
    name: 112,
    qualname: None,
    line_table: 120,
    first_line: 40,
    line_table_format: LineTableFormat::Lnotab,
    code_size: 176,
    frame_size: Some(368),
    ascii_data: 48,
    compact_data: 72,
    str_size: 80,
    debug_offsets: &[],
};

const L39: Layout = Layout { minor: 9, ..L38 };

const L310: Layout = Layout {
    minor: 10,
    position: Position::Index { offset: 96, scale: 2 },
    sentinel_kind: SentinelKind::RunningDepth(80),
    line_table_format: LineTableFormat::Ranges,
    frame_size: Some(360),
    ..L38
};

const L311: Layout = Layout {
    minor: 11,
    finalizing: 24,
    frame_root: FrameRoot::Through { cframe: 56, current: 8 },
    previous: 48,
    executable: 32,
    position: Position::Pointer(56),
    incomplete_frame: Some(IncompleteFrameOffsets { owner: 69, first_traceable: 168, bytecode: 184 }),
    sentinel_kind: SentinelKind::ResultSlot(ResultSlot {
        stack_top: 64,
        locals: 72,
        locals_count: 76,
        stack_size: 68,
        is_entry: Some(68),
        delegation: None,
    }),
    filename: 112,
    name: 120,
    qualname: Some(128),
    line_table: 136,
    first_line: 72,
    line_table_format: LineTableFormat::Locations,
    code_size: 184,
    frame_size: None,
    ..L38
};

const L312: Layout = Layout {
    minor: 12,
    frame_root: FrameRoot::Through { cframe: 56, current: 0 },
    previous: 8,
    executable: 0,
    incomplete_frame: Some(IncompleteFrameOffsets { owner: 70, first_traceable: 176, bytecode: 192 }),
    sentinel_kind: SentinelKind::ResultSlot(ResultSlot {
        stack_top: 64,
        locals: 72,
        locals_count: 72,
        stack_size: 64,
        is_entry: None,
        delegation: Some(Delegation { behind: 2, opcodes: [123, 168] }),
    }),
    first_line: 68,
    code_size: 192,
    ascii_data: 40,
    compact_data: 56,
    str_size: 64,
    ..L311
};

const L313: Layout = Layout {
    minor: 13,
    finalizing: 608,
    frame_root: FrameRoot::Direct(72),
    incomplete_frame: Some(IncompleteFrameOffsets { owner: 70, first_traceable: 184, bytecode: 200 }),
    sentinel_kind: SentinelKind::ResultSlot(ResultSlot {
        stack_top: 64,
        locals: 72,
        locals_count: 72,
        stack_size: 64,
        is_entry: None,
        delegation: Some(Delegation { behind: 0, opcodes: [104, 208] }),
    }),
    tracing: 60,
    code_size: 200,
    debug_offsets: &[
        (32, 608),
        (184, 72),
        (232, 8),
        (240, 0),
        (248, 56),
        (264, 70),
        (280, 112),
        (288, 120),
        (296, 128),
        (304, 136),
        (312, 68),
        (344, 200),
        (360, 8),
        (520, 16),
        (528, 32),
        (544, 32),
        (552, 16),
        (560, 40),
    ],
    ..L312
};

const L314: Layout = Layout {
    minor: 14,
    finalizing: 784,
    incomplete_frame: Some(IncompleteFrameOffsets { owner: 74, first_traceable: 192, bytecode: 208 }),
    // Up to 3.14.4 the collector went by this byte.
    sentinel_kind: SentinelKind::CreationByte { offset: 75, since: 0x030e_05f0 },
    code_size: 208,
    debug_offsets: &[
        (32, 784),
        (208, 72),
        (256, 8),
        (264, 0),
        (272, 56),
        (288, 74),
        (320, 112),
        (328, 120),
        (336, 128),
        (344, 136),
        (352, 68),
        (384, 208),
        (408, 8),
        (600, 16),
        (608, 32),
        (624, 32),
        (632, 16),
        (640, 40),
    ],
    ..L313
};

const L315: Layout = Layout {
    minor: 15,
    finalizing: 912,
    tracing: 64,
    debug_offsets: &[
        (32, 912),
        (208, 72),
        (320, 8),
        (328, 0),
        (336, 56),
        (352, 74),
        (384, 112),
        (392, 120),
        (400, 128),
        (408, 136),
        (416, 68),
        (448, 208),
        (472, 8),
        (696, 16),
        (704, 32),
        (720, 32),
        (728, 16),
        (736, 40),
        (744, 56),
    ],
    ..L314
};

impl Layout {
    /// Turns a frame's position word into bytes from the start of the bytecode that it is in.
    #[inline]
    pub(super) const fn instruction(&self, position: usize, bytecode: usize) -> u32 {
        match self.position {
            Position::Index { scale, .. } => match position as u32 {
                index if index > i32::MAX as u32 => NOT_STARTED,
                index => index.wrapping_mul(scale),
            },
            Position::Pointer(_) => {
                let offset = position.wrapping_sub(bytecode);
                if offset > i32::MAX as usize { NOT_STARTED } else { offset as u32 }
            }
        }
    }

    /// As [`Layout::instruction`], of the inline bytecode of the code object at `code`.
    #[inline(always)]
    pub(super) fn inline_instruction(&self, code: usize, position: usize) -> u32 {
        let bytecode = self.incomplete_frame.map_or(0, |fields| code.wrapping_add(fields.bytecode));
        self.instruction(position, bytecode)
    }

    /// Whether a position alone leaves the code object open: an index is the same in any code object, a pointer into the
    /// code object is not. (A copy of the bytecode may be freed while its code object lives.)
    pub(super) const fn position_needs_code(&self) -> bool {
        matches!(self.position, Position::Index { .. }) || self.thread_local_bytecode.is_some()
    }
}

#[cfg(test)]
mod tests;
