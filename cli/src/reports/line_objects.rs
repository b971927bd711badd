//! The Python objects in the blocks of lines of own code, and who holds them, as they are told.
//!
//! Invariant: a line without known objects has none here.

use rustc_hash::FxHashMap;

use super::own_lines::OwnLineKey;

/// Objects of one type that one line has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectsOfLine {
    /// Module and qualified name of the type.
    pub(crate) name: String,
    pub(crate) count: u64,
    /// The sum of their `sys.getsizeof`, and of the values of their attributes.
    pub(crate) bytes: u64,
    /// How most of their bytes are held, by the path to one of them.
    pub(crate) holder: String,
}

/// The objects of the lines that have made most.
#[derive(Debug, Default)]
pub(crate) struct LineObjects {
    pub(crate) by_line: FxHashMap<OwnLineKey, Vec<ObjectsOfLine>>,
    /// The moment of the picture, in words.
    pub(crate) when: String,
}

impl LineObjects {
    /// The objects of a line, the type with most bytes first.
    pub(crate) fn of_line(&self, line: OwnLineKey) -> &[ObjectsOfLine] {
        self.by_line.get(&line).map_or(&[], |types| types)
    }
}
