//! The contents of Python's str and bytes objects.
//!
//! It exists because names must be read without the C API, which would allocate. Invariant: no more than the given
//! buffer is written, and what is returned is valid UTF-8 for every str.

use super::layout::{Layout, Objects};
use super::raw_memory::{byte, bytes, word};

/// Longest string recorded, in bytes of UTF-8; what is longer is cut.
pub(super) const LONGEST: usize = 4096;

/// Longest line table recorded; a longer one is left out.
const LONGEST_TABLE: usize = 1 << 24;

/// `Py_TPFLAGS_BYTES_SUBCLASS` and `Py_TPFLAGS_UNICODE_SUBCLASS`.
const IS_BYTES: usize = 1 << 27;
const IS_STR: usize = 1 << 28;

/// Whether an object's type, or a base of it, is the one the flag stands for.
///
/// # Safety
/// `object` must be 0 or the address of a live object.
unsafe fn is(objects: &Objects, object: usize, flag: usize) -> bool {
    if object < 4096 || object & 7 != 0 {
        return false;
    }
    // SAFETY: every object holds its type.
    let kind = unsafe { word(object.wrapping_add(objects.kind())) };
    // SAFETY: every type holds its flags.
    let flags = unsafe { word(kind.wrapping_add(objects.type_flags())) };
    flags & flag != 0
}

/// The data of a bytes object; nothing if it is none.
///
/// # Safety
/// `object` must be 0 or the address of a live object that stays alive for `'a`.
pub(super) unsafe fn data<'a>(layout: &Layout, object: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    if !unsafe { is(&layout.objects, object, IS_BYTES) } {
        return None;
    }
    // SAFETY: a field of every bytes object.
    let length = unsafe { word(object.wrapping_add(layout.objects.length())) };
    if length > LONGEST_TABLE {
        return None;
    }
    // SAFETY: a bytes object is followed by its data, which never changes.
    Some(unsafe { bytes(object.wrapping_add(layout.objects.bytes_data()), length) })
}

/// A str as UTF-8: ASCII in place, everything else by way of `buffer`. Nothing if it is no str.
///
/// # Safety
/// `object` must be 0 or the address of a live object that stays alive for `'a`.
pub(super) unsafe fn utf8<'a>(layout: &Layout, object: usize, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    if !unsafe { is(&layout.objects, object, IS_STR) } {
        return None;
    }
    // SAFETY: a field of every str.
    let state = unsafe { byte(object.wrapping_add(layout.objects.str_state)) } >> layout.objects.str_kind;
    let (width, compact, ascii) = (usize::from(state & 7), state & 8 != 0, state & 16 != 0);
    if !matches!(width, 1 | 2 | 4) {
        return None;
    }
    let address = match (compact, ascii) {
        (true, true) => object.wrapping_add(layout.ascii_data),
        (true, false) => object.wrapping_add(layout.compact_data),
        // SAFETY: a str that is not compact holds the address of its data.
        (false, _) => unsafe { word(object.wrapping_add(layout.compact_data)) },
    };
    // SAFETY: a field of every str.
    let length = unsafe { word(object.wrapping_add(layout.objects.length())) };
    if address == 0 {
        return None;
    }
    // A character takes one byte or more, so more characters than this would be cut anyway.
    // SAFETY: the data has `length` characters of `width` bytes, and never changes.
    let units = unsafe { bytes(address, length.min(LONGEST).wrapping_mul(width)) };
    Some(if ascii { units } else { convert(units, width, buffer) })
}

/// Converts Latin-1, UCS-2 or UCS-4 to UTF-8, as much as fits; lone surrogates become U+FFFD.
fn convert<'a>(units: &[u8], width: usize, buffer: &'a mut [u8]) -> &'a [u8] {
    let mut used = 0_usize;
    for unit in units.chunks_exact(width) {
        let value = unit.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        let mut encoded = [0; 4];
        let character = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut encoded);
        let Some(room) = buffer.get_mut(used..used.wrapping_add(character.len())) else { break };
        room.copy_from_slice(character.as_bytes());
        used = used.wrapping_add(character.len());
    }
    buffer.get(..used).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::convert;

    #[test]
    fn every_width_becomes_utf8() {
        let mut buffer = [0; 64];
        assert_eq!(convert(&[b'a', 0xe9], 1, &mut buffer), "aé".as_bytes());
        assert_eq!(convert(&[0x87, 0x65, b'b', 0], 2, &mut buffer), "文b".as_bytes());
        assert_eq!(convert(&[0, 0xf6, 1, 0], 4, &mut buffer), "\u{1f600}".as_bytes());
    }

    #[test]
    fn what_is_no_character_is_replaced() {
        let mut buffer = [0; 64];
        assert_eq!(convert(&[0x80, 0xdc], 2, &mut buffer), "\u{fffd}".as_bytes());
        assert_eq!(convert(&[0xff; 4], 4, &mut buffer), "\u{fffd}".as_bytes());
    }

    #[test]
    fn a_long_string_is_cut_between_characters() {
        let mut buffer = [0; 5];
        assert_eq!(convert(&[0xe9; 4], 1, &mut buffer), "éé".as_bytes());
        assert_eq!(convert(&[0xe9; 4], 1, &mut []), b"");
    }
}
