//! Plain reads at computed addresses.
//!
//! They exist so that every place that reads the interpreter's memory looks the same. Invariant: a read never panics,
//! whatever the alignment.

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

/// Bytes of the interpreter's.
///
/// # Safety
/// `address` must be readable for `length` bytes that do not change while the slice is used.
pub(super) const unsafe fn bytes<'a>(address: usize, length: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address as *const u8, length) }
}
