//! Writes JSON arrays item by item, where a value in memory would be too large.
//!
//! Invariant: memory does not grow with the number of items.

use std::io::{self, Write};

/// Writes a JSON array item by item.
pub(super) fn list<T>(
    out: &mut dyn Write,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut dyn Write, T) -> io::Result<()>,
) -> io::Result<()> {
    write!(out, "[")?;
    for (at, value) in items.into_iter().enumerate() {
        if at > 0 {
            write!(out, ",")?;
        }
        item(out, value)?;
    }
    write!(out, "]")
}
