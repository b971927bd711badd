//! What CPython's allocator of small objects (pymalloc) divides memory into: pools of blocks of one size, as `Objects/obmalloc.c` has
//! it. The reader and `objects` both find pools, one by recorded blocks and the other in memory.
//!
//! Invariant: the same in all 64-bit builds of a version.

/// The step between sizes of blocks, in bytes.
pub const BLOCK_STEP: u64 = 16;
/// The largest block, in bytes.
pub const LARGEST_BLOCK: u64 = 512;
/// Bytes at the start of a pool that hold its state (`struct pool_header`, rounded up to the step).
pub const POOL_HEADER: u64 = 48;
/// The minor version from which on pools are larger.
const LARGE_SINCE: u8 = 10;

/// Bytes of a pool in CPython 3.`minor`.
#[must_use]
pub const fn pool_bytes(minor: u8) -> u64 {
    if minor < LARGE_SINCE { 4 << 10 } else { 16 << 10 }
}

#[cfg(test)]
mod tests {
    use super::pool_bytes;

    #[test]
    fn pools_were_pages_before_3_10() {
        assert_eq!([9, 10].map(pool_bytes), [4096, 16384]);
    }
}
