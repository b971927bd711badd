//! Checks a layout against the interpreter it is for.
//!
//! It exists because a wrong offset would mean wrong stacks or a crash. Invariant: only static data that is valid before
//! the interpreter is initialised is read.

use super::find::{Symbols, Unsupported};
use super::layout::{Layout, OB_TYPE, TP_BASICSIZE};
use super::memory::{bytes, word};

/// The first version whose runtime begins with a table of its own offsets.
const FIRST_WITH_TABLE: u8 = 13;

/// `sizeof(PyBytesObject)`.
const BYTES_SIZE: usize = 33;

/// Where the table of offsets keeps the version and whether the build is free-threaded.
const TABLE_VERSION: usize = 8;
const TABLE_FREE_THREADED: usize = 16;
/// Where it keeps the place of the runtime's word that says who finalizes.
const TABLE_FINALIZING: usize = 32;

/// Refuses an interpreter that is not what the layout describes.
///
/// # Safety
/// The symbols must be those of a loaded CPython.
pub(super) unsafe fn check(layout: &Layout, symbols: &Symbols, version: u32) -> Result<(), Unsupported> {
    if layout.minor >= FIRST_WITH_TABLE {
        // SAFETY: the caller's promise.
        unsafe { check_table(layout, symbols.runtime, version) }?;
    }
    if symbols.is_debug_build {
        return Err(Unsupported::DebugBuild);
    }
    // SAFETY: the caller's promise.
    unsafe { check_types(layout, symbols) }
}

/// Compares every offset that is used with the interpreter's own table.
///
/// # Safety
/// `runtime` must be the address of `_PyRuntime` of 3.13 or later.
unsafe fn check_table(layout: &Layout, runtime: usize, version: u32) -> Result<(), Unsupported> {
    // SAFETY: the table is the first member of the runtime, some hundred bytes long.
    if unsafe { bytes(runtime, 8) } != b"xdebugpy" {
        return Err(Unsupported::Contradiction);
    }
    // SAFETY: within the table.
    let free_threaded = unsafe { word(runtime.wrapping_add(TABLE_FREE_THREADED)) };
    if free_threaded != 0 {
        return Err(Unsupported::FreeThreaded);
    }
    // SAFETY: within the table.
    let same_version = unsafe { word(runtime.wrapping_add(TABLE_VERSION)) } == version as usize;
    let same_offsets = layout.debug_offsets.iter().all(|(position, value)| {
        // SAFETY: within the table; its length is fixed by the minor version.
        unsafe { word(runtime.wrapping_add(*position)) == *value }
    });
    if same_version && same_offsets { Ok(()) } else { Err(Unsupported::Contradiction) }
}

/// The address of the word that says who finalizes, as the interpreter's own table has it.
///
/// # Safety
/// `runtime` must be the address of `_PyRuntime` with a table that was recognized.
pub(super) unsafe fn finalizing_by_table(runtime: usize) -> usize {
    // SAFETY: within the table.
    runtime.wrapping_add(unsafe { word(runtime.wrapping_add(TABLE_FINALIZING)) })
}

/// Compares the sizes of the objects that are read, which static type objects hold.
///
/// # Safety
/// The symbols must be those of a loaded CPython.
unsafe fn check_types(layout: &Layout, symbols: &Symbols) -> Result<(), Unsupported> {
    let expected = [
        Some((symbols.code_type, layout.code_size)),
        Some((symbols.str_type, layout.str_size)),
        Some((symbols.bytes_type, BYTES_SIZE)),
        layout.frame_size.map(|size| (symbols.frame_type, size)),
    ];
    // SAFETY: every type object starts with its count and its own type, which for static types is `type`.
    let same_header = unsafe { word(symbols.code_type.wrapping_add(OB_TYPE)) } == symbols.type_type;
    let same_sizes = expected.iter().flatten().all(|(address, size)| {
        // SAFETY: a field of a type object.
        unsafe { word(address.wrapping_add(TP_BASICSIZE)) == *size }
    });
    if same_header && same_sizes { Ok(()) } else { Err(Unsupported::Contradiction) }
}
