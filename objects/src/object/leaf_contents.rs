//! What integers, texts and bytes have in themselves, told from what only begins like one: a structure of C whose second word is
//! the address of a type, for example, to which another one refers.
//!
//! Invariant: of what does not end as such an object ends there is nothing.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::TextLayout;

/// Bits of an integer's digit.
const DIGIT_BITS: u32 = 30;
/// Where bytes are.
const BYTES: u64 = 32;

/// The digits of an integer; the last one is not 0.
pub(crate) fn integer_digits(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<u64> {
    const ZERO: u64 = 1;
    const SIGN: u64 = 3;
    let fields = layout.fields(address);
    let word = memory.u64(fields.checked_add(16)?)?;
    let has_tag = layout.minor >= 12;
    let digits = if has_tag { word >> 3 } else { word.cast_signed().unsigned_abs() };
    let is_zero = if has_tag { word & SIGN == ZERO } else { word == 0 };
    if is_zero || digits == 0 {
        return (is_zero && digits == 0).then_some(0);
    }
    let last = fields.checked_add(20)?.checked_add(digits.checked_mul(4)?)?;
    memory.u32(last).filter(|digit| (1..1 << DIGIT_BITS).contains(digit)).map(|_| digits)
}

/// How many bytes a bytes object has; a zero is behind them.
pub(crate) fn bytes_count(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<u64> {
    let fields = layout.fields(address);
    let count = memory.u64(fields.checked_add(16)?)?;
    let end = fields.checked_add(BYTES)?.checked_add(count)?;
    (memory.u8(end)? == 0).then_some(count)
}

/// A text, which has a zero behind its characters, unless these are elsewhere.
pub(crate) fn whole_text(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<TextLayout> {
    let read = TextLayout::read(memory, layout, address)?;
    if !read.is_compact {
        return Some(read);
    }
    let is_width = matches!(read.width, 1 | 2 | 4) && (read.width == 1 || !read.is_ascii);
    let end = read.data.checked_add(read.length.checked_mul(read.width)?)?;
    (is_width && memory.u8(end)? == 0).then_some(read)
}
