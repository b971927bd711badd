//! Fields of types of CPython that look like references and are none: C code borrows what they point to, and it may be gone, or
//! they point to what is no object.
//!
//! Invariant: a type is known by the name that its C code gave it.

use crate::interpreter::layout::ObjectLayout;

/// The type, the offset of the field in builds with a global lock, and the last version that has it.
const BORROWED: [(&str, u64, u8); 6] = [
    // The group that was made last, which holds the object itself.
    ("itertools.groupby", 56, u8::MAX),
    // The value that was asked for last: contexts hold values.
    ("_contextvars.ContextVar", 32, u8::MAX),
    ("builtins.ContextVar", 32, 9),
    // A thread's variables, which the `threading.local` holds.
    ("_thread._localdummy", 16, 12),
    // A thread has locked it: a number of one byte, in a word of which the rest is not set.
    ("_thread.lock", 32, 13),
    // What the module's C code keeps, in a structure of its own. Where it begins with two types, it looks like an object.
    ("builtins.module", 32, 14),
];

/// Where objects of the type with this name have such a field; 0: nowhere.
pub(crate) fn borrowed_field(name: &str, layout: &ObjectLayout) -> u64 {
    // Context variables of free-threaded builds keep no value.
    let is_there = |of: &str| !(layout.is_free_threaded() && of.ends_with(".ContextVar"));
    let found = BORROWED.iter().find(|(of, _, last)| *of == name && layout.minor <= *last && is_there(of));
    found.map_or(0, |(_, offset, _)| *offset)
}
