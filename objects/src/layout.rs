//! Where CPython has what, by version: offsets in its runtime, interpreters, types, frames.
//!
//! They come from `offsetof` compiled with the headers of each version; those of `_Py_DebugOffsets`, where the interpreter
//! has it, must agree. Invariant: an interpreter of a version without a table is not read.

/// Offsets in bytes, of one version. Those that no version has changed are constants beside their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectLayout {
    pub(crate) minor: u8,
    /// In the runtime.
    pub(crate) interpreters_head: u64,
    /// In an interpreter.
    pub(crate) interpreter_next: u64,
    pub(crate) threads_head: u64,
    pub(crate) modules: u64,
    /// The lists of the garbage collector: in the runtime in 3.8, in an interpreter since.
    pub(crate) generations: u64,
    pub(crate) permanent: u64,
    pub(crate) collecting: u64,
    /// Sizes of types.
    pub(crate) static_type: u64,
    pub(crate) heap_type: u64,
    pub(crate) qualname: u64,
    pub(crate) cached_keys: u64,
    /// The frame within a generator, from 3.11 on.
    pub(crate) generator_frame: u64,
    /// The frame within a frame object from 3.11 on; the locals before.
    pub(crate) frame_data: u64,
    /// Slots of a frame, in its code: of locals, and of the stack.
    pub(crate) local_slots: u64,
    pub(crate) stack_slots: u64,
    /// What a thread executes: a frame object before 3.11, a pointer to a pointer to a frame in 3.11 and 3.12.
    pub(crate) current_frame: u64,
    /// In a frame of 3.11 or later.
    pub(crate) frame_previous: u64,
    pub(crate) frame_code: u64,
    pub(crate) code_name: u64,
    pub(crate) code_file: u64,
    pub(crate) code_locals: u64,
    pub(crate) code_extra: u64,
}

const V3_8: ObjectLayout = ObjectLayout {
    minor: 8,
    interpreters_head: 32,
    interpreter_next: 0,
    threads_head: 8,
    modules: 56,
    generations: 368,
    permanent: 448,
    collecting: 544,
    static_type: 416,
    heap_type: 880,
    qualname: 864,
    cached_keys: 872,
    generator_frame: 0,
    frame_data: 360,
    local_slots: 28,
    stack_slots: 32,
    current_frame: 24,
    frame_previous: 24,
    frame_code: 32,
    code_name: 112,
    code_file: 104,
    code_locals: 72,
    code_extra: 144,
};
const V3_9: ObjectLayout = ObjectLayout {
    minor: 9,
    modules: 856,
    generations: 640,
    permanent: 720,
    collecting: 816,
    static_type: 408,
    qualname: 856,
    cached_keys: 864,
    ..V3_8
};
const V3_10: ObjectLayout =
    ObjectLayout { minor: 10, heap_type: 888, qualname: 864, cached_keys: 872, frame_data: 352, ..V3_9 };
const V3_11: ObjectLayout = ObjectLayout {
    minor: 11,
    interpreters_head: 40,
    threads_head: 16,
    modules: 888,
    generations: 672,
    permanent: 752,
    collecting: 848,
    heap_type: 904,
    generator_frame: 80,
    frame_data: 48,
    local_slots: 76,
    stack_slots: 68,
    current_frame: 56,
    frame_previous: 48,
    frame_code: 32,
    code_name: 120,
    code_file: 112,
    code_locals: 96,
    code_extra: 176,
    ..V3_10
};
const V3_12: ObjectLayout = ObjectLayout {
    minor: 12,
    threads_head: 72,
    modules: 944,
    generations: 136,
    permanent: 216,
    collecting: 312,
    static_type: 416,
    heap_type: 920,
    qualname: 872,
    cached_keys: 880,
    generator_frame: 72,
    local_slots: 72,
    stack_slots: 64,
    frame_previous: 8,
    frame_code: 0,
    code_extra: 184,
    ..V3_11
};
const V3_13: ObjectLayout = ObjectLayout {
    minor: 13,
    interpreters_head: 632,
    interpreter_next: 7264,
    threads_head: 7344,
    modules: 7656,
    generations: 7424,
    permanent: 7504,
    collecting: 7600,
    heap_type: 928,
    frame_data: 64,
    current_frame: 72,
    code_extra: 192,
    ..V3_12
};

const ALL: [ObjectLayout; 6] = [V3_8, V3_9, V3_10, V3_11, V3_12, V3_13];

impl ObjectLayout {
    /// The layout of a version 3.`minor`.
    pub(crate) fn of(minor: u8) -> Option<&'static Self> {
        ALL.iter().find(|layout| layout.minor == minor)
    }

    /// Whether the interpreter has frames that are no objects: from 3.11 on.
    pub(crate) fn has_light_frames(&self) -> bool {
        self.minor >= 11
    }
}

#[cfg(test)]
mod tests {
    use super::ObjectLayout;

    #[test]
    fn every_version_has_its_table() {
        assert!((8..=13).all(|minor| ObjectLayout::of(minor).is_some_and(|layout| layout.minor == minor)));
        assert_eq!((ObjectLayout::of(7), ObjectLayout::of(14)), (None, None));
    }
}
