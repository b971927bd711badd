//! Loads what is used soon.
//!
//! A processor has several loads under way at once as long as none waits for another: a loop that only loads waits once where one
//! that uses each value waits for each. It is worth it where what is loaded lies anywhere. Invariant: nothing depends on what is
//! loaded.

use std::hint::black_box;

/// So many are loaded before the first of them is used.
pub(crate) const PREFETCHED: usize = 64;

/// Loads these.
pub(crate) fn prefetch(values: impl Iterator<Item = u64>) {
    black_box(values.fold(0, |all, value| all ^ value));
}
