//! Plain reads, and the few writes, at computed addresses.
//!
//! They exist so that every place that touches the interpreter's memory looks the same. Invariant: an access never
//! panics, whatever the alignment.

/// Reads a pointer-sized word.
///
/// # Safety
/// `address` must be readable for 8 bytes.
#[inline(always)]
pub(super) unsafe fn word(address: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (address as *const usize).read_unaligned() }
}

/// Reads 32 bits.
///
/// # Safety
/// `address` must be readable for 4 bytes.
#[inline(always)]
pub(super) unsafe fn half(address: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (address as *const u32).read_unaligned() }
}

/// Reads a byte.
///
/// # Safety
/// `address` must be readable.
#[inline(always)]
pub(super) unsafe fn byte(address: usize) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { (address as *const u8).read() }
}

/// Writes a pointer-sized word.
///
/// # Safety
/// `address` must be writable for 8 bytes, which mean nothing to anybody but the writer.
#[inline(always)]
pub(super) unsafe fn set_word(address: usize, value: usize) {
    // SAFETY: the caller's promise.
    unsafe { (address as *mut usize).write_unaligned(value) };
}

/// Writes 32 bits.
///
/// # Safety
/// As of [`set_word`], for 4 bytes.
#[inline(always)]
pub(super) unsafe fn set_half(address: usize, value: u32) {
    // SAFETY: the caller's promise.
    unsafe { (address as *mut u32).write_unaligned(value) };
}

/// Writes a byte.
///
/// # Safety
/// As of [`set_word`], for one byte.
#[inline(always)]
pub(super) unsafe fn set_byte(address: usize, value: u8) {
    // SAFETY: the caller's promise.
    unsafe { (address as *mut u8).write(value) };
}

/// Bytes of the interpreter's.
///
/// # Safety
/// `address` must be readable for `length` bytes that do not change while the slice is used.
pub(super) const unsafe fn bytes<'a>(address: usize, length: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const u8, length) }
}
