//! Build-ids in hexadecimal.
//!
//! Invariant: two digits for each byte, as in file names below `.build-id`.

use std::fmt::Write;

/// The usual notation of build-ids.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
