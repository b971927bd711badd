//! Checks a layout against the interpreter it is for.
//!
//! A wrong offset would mean wrong stacks or a crash. Invariant: only static data that is valid before the interpreter
//! is initialised is read.

use super::layout::Layout;
use super::raw_memory::{bytes, word};
use super::symbols::Symbols;
use super::unsupported::Unsupported;

/// The first version whose runtime begins with a table of its own offsets.
const FIRST_WITH_TABLE: u8 = 13;

/// Where the table of offsets keeps the version and whether the build is free-threaded.
const TABLE_VERSION: usize = 8;
const TABLE_FREE_THREADED: usize = 16;

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
    if unsafe { bytes(runtime, TABLE_VERSION) } != b"xdebugpy" {
        return Err(Unsupported::Contradiction);
    }
    // SAFETY: within the table.
    let same_version = unsafe { word(runtime.wrapping_add(TABLE_VERSION)) } == version as usize;
    let same_offsets = layout.debug_offsets.iter().all(|(position, value)| {
        // SAFETY: within the table; its length is fixed by the minor version.
        unsafe { word(runtime.wrapping_add(*position)) == *value }
    });
    if same_version && same_offsets { Ok(()) } else { Err(Unsupported::Contradiction) }
}

/// Whether the interpreter was built without the GIL; that of a version before 3.13 never is.
///
/// # Safety
/// `runtime` must be the address of `_PyRuntime` of 3.`minor`, or 0.
pub(super) unsafe fn is_free_threaded(minor: u8, runtime: usize) -> bool {
    // SAFETY: within the table, which is the first member of the runtime in each of these versions.
    minor >= FIRST_WITH_TABLE && runtime != 0 && unsafe { word(runtime.wrapping_add(TABLE_FREE_THREADED)) } != 0
}

/// Compares the sizes of the objects that are read, which static type objects hold.
///
/// # Safety
/// The symbols must be those of a loaded CPython.
unsafe fn check_types(layout: &Layout, symbols: &Symbols) -> Result<(), Unsupported> {
    let expected = [
        Some((symbols.code_type, layout.code_size)),
        Some((symbols.str_type, layout.str_size)),
        // `sizeof(PyBytesObject)`: its data, and the byte that ends it.
        Some((symbols.bytes_type, layout.objects.bytes_data().wrapping_add(1))),
        layout.frame_size.map(|size| (symbols.frame_type, size)),
    ];
    // SAFETY: every type object starts with its count and its own type, which for static types is `type`.
    let same_header = unsafe { word(symbols.code_type.wrapping_add(layout.objects.kind())) } == symbols.type_type;
    let same_sizes = expected.iter().flatten().all(|(address, size)| {
        // SAFETY: a field of a type object.
        unsafe { word(address.wrapping_add(layout.objects.basic_size())) == *size }
    });
    if same_header && same_sizes { Ok(()) } else { Err(Unsupported::Contradiction) }
}
