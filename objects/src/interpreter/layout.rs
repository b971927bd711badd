//! Where CPython has what, by version: offsets in its runtime, interpreters, types, frames.
//!
//! They come from `offsetof` compiled with the headers of each version. From 3.13 on interpreters have a table of their own,
//! `_Py_DebugOffsets`: where their state is, which differs by how they were built, is taken from it, and the rest must agree
//! with it. Free-threaded builds have a larger head before the fields of every object, and no collector's header before it:
//! see [`ObjectLayout::fields`]. Invariant: an interpreter of a version without a table here is not read.

use crate::memory::ObjectMemory;

/// What the first word of a runtime with a table of offsets says.
pub(crate) const OFFSETS_COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

/// Where an object has its type, and a type the size of its objects.
const TYPE_OF_OBJECT: u64 = 8;
const SIZE_OF_OBJECTS: u64 = 32;
/// By how many bytes the state of a generator stands before its frame.
pub(crate) const GENERATOR_STATE: u64 = 5;

/// Offsets in bytes, of one version. Those that no version has changed are constants beside their use. Offsets in objects are
/// those of builds with a global lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectLayout {
    pub(crate) minor: u8,
    /// How much larger the head of an object is than in builds with a global lock; 0 in those.
    pub(crate) larger_head: u64,
    /// In the runtime.
    pub(crate) interpreters_head: u64,
    /// In an interpreter. Where its number is, which Python shows, is known from 3.13 on; 0: it is not.
    pub(crate) interpreter_number: u64,
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
    /// The state of a generator that has ended; in the byte [`GENERATOR_STATE`] before its frame.
    pub(crate) cleared_generator: u8,
    /// The frame within a frame object from 3.11 on; the locals before.
    pub(crate) frame_data: u64,
    /// In a frame of 3.11 or later: where its variables begin, and from 3.12 on who owns it.
    pub(crate) frame_locals: u64,
    pub(crate) frame_owner: u64,
    /// Where the items of tuples begin.
    pub(crate) tuple_items: u64,
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
    larger_head: 0,
    interpreters_head: 32,
    interpreter_number: 0,
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
    cleared_generator: 4,
    frame_data: 360,
    frame_locals: 72,
    frame_owner: 0,
    tuple_items: 24,
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
    frame_owner: 70,
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
/// `ob_tid`, locks, bits of the collector and a count before the shared count and the type.
const V3_13T: ObjectLayout = ObjectLayout { larger_head: 16, ..V3_13 };

const V3_14: ObjectLayout = ObjectLayout {
    minor: 14,
    interpreters_head: 808,
    interpreter_next: 7272,
    modules: 7688,
    generations: 7432,
    heap_type: 936,
    frame_data: 72,
    frame_locals: 80,
    frame_owner: 74,
    tuple_items: 32,
    code_extra: 200,
    ..V3_13
};
/// Besides the larger head: numbers of objects that threads count on their own, and of the thread's own code.
const V3_14T: ObjectLayout = ObjectLayout { larger_head: 16, heap_type: 944, frame_owner: 78, ..V3_14 };
const V3_15: ObjectLayout = ObjectLayout {
    minor: 15,
    cleared_generator: 5,
    interpreters_head: 936,
    interpreter_next: 7264,
    threads_head: 7336,
    modules: 7592,
    generations: 7408,
    permanent: 7480,
    collecting: 7512,
    static_type: 424,
    heap_type: 944,
    qualname: 880,
    cached_keys: 888,
    ..V3_14
};
const V3_15T: ObjectLayout = ObjectLayout { larger_head: 16, heap_type: 952, frame_owner: 78, ..V3_15 };

const ALL: [ObjectLayout; 11] = [V3_8, V3_9, V3_10, V3_11, V3_12, V3_13, V3_13T, V3_14, V3_14T, V3_15, V3_15T];

/// A field of a layout.
type LayoutField = fn(&ObjectLayout) -> u64;

/// Where an interpreter's own table has what, in bytes from the runtime's begin.
struct OwnTable {
    interpreters_head: u64,
    number: u64,
    next: u64,
    threads_head: u64,
    collector: u64,
    modules: u64,
    /// What must be as in the layout here: place in the table, and the expected offset.
    equal: &'static [(u64, LayoutField)],
}

const OWN_3_13: OwnTable = OwnTable {
    interpreters_head: 40,
    number: 56,
    next: 64,
    threads_head: 72,
    collector: 80,
    modules: 88,
    equal: &[
        (184, |own| own.current_frame),
        (232, |own| own.frame_previous),
        (240, |own| own.frame_code),
        (256, |own| own.frame_locals),
        (264, |own| own.frame_owner),
        (280, |own| own.fields(own.code_file)),
        (288, |own| own.fields(own.code_name)),
        (328, |own| own.fields(own.code_locals)),
        (360, |own| own.fields(TYPE_OF_OBJECT)),
        (408, |own| own.fields(own.tuple_items)),
    ],
};
const OWN_3_14: OwnTable = OwnTable {
    collector: 88,
    modules: 96,
    equal: &[
        (208, |own| own.current_frame),
        (280, |own| own.frame_locals),
        (288, |own| own.frame_owner),
        (320, |own| own.fields(own.code_file)),
        (328, |own| own.fields(own.code_name)),
        (368, |own| own.fields(own.code_locals)),
        (408, |own| own.fields(TYPE_OF_OBJECT)),
        (416, |own| own.fields(own.static_type)),
        (456, |own| own.fields(own.tuple_items)),
        (656, |own| own.collecting),
        (680, |own| own.fields(own.generator_frame)),
        (688, |own| own.fields(own.generator_frame - GENERATOR_STATE)),
    ],
    ..OWN_3_13
};
const OWN_3_15: OwnTable = OwnTable {
    equal: &[
        (208, |own| own.current_frame),
        (344, |own| own.frame_locals),
        (352, |own| own.frame_owner),
        (384, |own| own.fields(own.code_file)),
        (392, |own| own.fields(own.code_name)),
        (432, |own| own.fields(own.code_locals)),
        (472, |own| own.fields(TYPE_OF_OBJECT)),
        (480, |own| own.fields(own.static_type)),
        (552, |own| own.fields(own.tuple_items)),
        (760, |own| own.collecting),
        (808, |own| own.fields(own.generator_frame)),
        (816, |own| own.fields(own.generator_frame - GENERATOR_STATE)),
    ],
    ..OWN_3_14
};

impl ObjectLayout {
    /// The layout of a version 3.`minor`.
    pub(crate) fn of(minor: u8, is_free_threaded: bool) -> Option<&'static Self> {
        ALL.iter().find(|layout| layout.minor == minor && layout.is_free_threaded() == is_free_threaded)
    }

    /// Whether threads execute it without a global lock.
    pub(crate) fn is_free_threaded(&self) -> bool {
        self.larger_head != 0
    }

    /// From where the offsets in an object count, given its address; or an offset in it, given that of other builds. What
    /// stands before an object is as far from there as in other builds, too, since these have a collector's header in between.
    pub(crate) fn fields(&self, of: u64) -> u64 {
        of.wrapping_add(self.larger_head)
    }

    /// The address of an object's type.
    pub(crate) fn type_of(&self, memory: &ObjectMemory<'_>, object: u64) -> Option<u64> {
        memory.u64(self.fields(object).wrapping_add(TYPE_OF_OBJECT))
    }

    /// This layout with the offsets that the interpreter's own table has; `None`: it differs in what it must not. `word` reads
    /// at an offset from the runtime's begin.
    pub(crate) fn as_told(&self, word: impl Fn(u64) -> Option<u64>) -> Option<Self> {
        /// The largest offset that is believed.
        const MOST: u64 = 1 << 24;
        let own = match self.minor {
            ..13 => return Some(*self),
            13 => &OWN_3_13,
            14 => &OWN_3_14,
            15.. => &OWN_3_15,
        };
        let offset = |at: u64| word(at).filter(|offset| *offset < MOST);
        let collector = offset(own.collector)?;
        // The collector's state keeps its form wherever it is.
        let within = self.collector();
        let moved = |field: u64| collector + (field - within);
        let told = Self {
            interpreters_head: offset(own.interpreters_head)?,
            interpreter_number: offset(own.number)?,
            interpreter_next: offset(own.next)?,
            threads_head: offset(own.threads_head)?,
            modules: offset(own.modules)?,
            generations: moved(self.generations),
            permanent: moved(self.permanent),
            collecting: moved(self.collecting),
            ..*self
        };
        let in_collector = Self { collecting: self.collecting - within, ..*self };
        (word(0)? == OFFSETS_COOKIE && own.equal.iter().all(|(at, field)| word(*at) == Some(field(&in_collector))))
            .then_some(told)
    }

    /// Whether classes are as large as here by what the type of types says; the interpreter's own table does not say it.
    pub(crate) fn has_classes_of(&self, type_type: u64, word: impl Fn(u64) -> Option<u64>) -> bool {
        let size = || word(self.fields(type_type).wrapping_add(SIZE_OF_OBJECTS));
        self.minor < 13 || size() == Some(self.fields(self.heap_type))
    }

    /// Where the collector's state is in an interpreter, from 3.13 on: before its lists, by version.
    fn collector(&self) -> u64 {
        self.generations - if self.minor >= 15 { 8 } else { 24 }
    }

    /// The object that a word of a frame refers to: from 3.14 on the lowest bits say who counts the reference, or that it is
    /// a number.
    pub(crate) fn untagged(&self, word: u64) -> u64 {
        match word & 3 {
            1 if self.minor >= 14 => word & !1,
            _ => word,
        }
    }

    /// What a string's state says, from the width of its characters on. Before it stands whether the string is interned,
    /// which is a byte where threads change it at once.
    pub(crate) fn text_flags(&self, state: u32) -> u32 {
        state >> if self.is_free_threaded() && self.minor >= 14 { 8 } else { 2 }
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
        let has = |minor, is_free_threaded| {
            ObjectLayout::of(minor, is_free_threaded).map(|layout| layout.minor) == Some(minor)
        };
        assert!((8..=15).all(|minor| has(minor, false)) && (13..=15).all(|minor| has(minor, true)));
        assert!(!has(7, false) && !has(16, false) && !has(12, true) && !has(16, true));
    }
}
