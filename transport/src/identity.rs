//! What tells that a shim and a program belong together: both were built of the same version, with the same layout of the
//! shared memory. The shim exports it as the symbol [`IDENTITY_SYMBOL`], which the program reads in the library's file
//! before it loads the library into anything.
//!
//! Invariant: it has a fixed length, so that the program can read it in a file that it does not trust.

use crate::layout::LAYOUT_VERSION;

/// The name under which the shim exports its identity.
pub const IDENTITY_SYMBOL: &str = "memtrack_shim_identity";
/// Bytes of an identity.
pub const IDENTITY_LEN: usize = 32;

const PREFIX: &[u8] = b"memtrack ";
const VERSION: &[u8] = env!("CARGO_PKG_VERSION").as_bytes();

/// The identity of this build: `memtrack VERSION`, zeroes, and [`LAYOUT_VERSION`] in the last four bytes, little-endian.
pub const IDENTITY: [u8; IDENTITY_LEN] = {
    let mut bytes = [0; IDENTITY_LEN];
    let (text, layout) = bytes.split_at_mut(IDENTITY_LEN - 4);
    let (prefix, version) = text.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX);
    version.split_at_mut(VERSION.len()).0.copy_from_slice(VERSION);
    layout.copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    bytes
};

/// An identity for people: `memtrack 0.2.0, layout 8`; `None` if it is none.
#[must_use]
pub fn describe(identity: &[u8; IDENTITY_LEN]) -> Option<String> {
    let (text, layout) = identity.split_last_chunk()?;
    let text = std::str::from_utf8(text).ok()?.trim_end_matches('\0');
    let is_plain = text.as_bytes().starts_with(PREFIX) && !text.contains(char::is_control);
    is_plain.then(|| format!("{text}, layout {}", u32::from_le_bytes(*layout)))
}

#[cfg(test)]
mod tests {
    use super::{IDENTITY, IDENTITY_LEN, describe};
    use crate::layout::LAYOUT_VERSION;

    #[test]
    fn an_identity_names_version_and_layout() {
        let expected = format!("memtrack {}, layout {LAYOUT_VERSION}", env!("CARGO_PKG_VERSION"));
        assert_eq!(describe(&IDENTITY), Some(expected));
        assert_eq!(describe(&[0; IDENTITY_LEN]), None);
        assert_eq!(describe(&[0xff; IDENTITY_LEN]), None);
        let mut escape = IDENTITY;
        escape[12] = 0x1b;
        assert_eq!(describe(&escape), None, "no control characters for the terminal");
    }
}
