//! Frames, nodes of the stack tree, and their ids in [`Frames`](crate::Frames).
//!
//! Invariant: an id is valid only with the tables that returned it.

use crate::event::StackId;

/// An interned string: a function's or a file's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(pub u32);

/// An interned frame: unique by function, file, line and column, and of native code by its module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// A frame: function and source position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function's (qualified) name.
    pub function: NameId,
    /// The source file; [`NameId`] 0, the empty name, when unknown.
    pub file: NameId,
    /// The line, from 1; 0 when unknown.
    pub line: u32,
    /// The column where the call begins, from 1, in bytes of UTF-8; 0 if unknown, or if the line has no other call.
    pub column: u32,
}

/// A node of the stack tree: `frame` called from the stack `parent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackNode {
    /// The stack of the caller.
    pub parent: StackId,
    /// The innermost frame.
    pub frame: FrameId,
}
