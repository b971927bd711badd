//! How many references an interpreter counts for an object.
//!
//! Invariant: an object that never ends has no count, whatever stands there.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;

/// Counts of references from this on are none: those of objects that never end are below.
pub(crate) const MOST_REFERENCES: u64 = 1 << 33;
/// The own count of what never ends, in a free-threaded build.
pub(crate) const IMMORTAL: u32 = u32::MAX;
/// The sign of the count of what never ends, from 3.12 on in builds with a global lock; references to it may have been counted.
const NEVER_ENDS: u64 = 1 << 31;
const FIRST_WITH_IMMORTALS: u8 = 12;
/// What the objects of frozen modules begin with in 3.11, about which references come and go.
const FROZEN: u64 = 999_999_999;
const FROZEN_COUNTS: std::ops::Range<u64> = FROZEN / 2..FROZEN / 2 * 3;
/// What is added to the shared count of an object whose references are counted late.
const COUNTED_LATE: i64 = i64::MAX / 8;

/// In an object of a free-threaded build: the counts of its own thread and of all others.
pub(crate) const LOCAL_COUNT: u64 = 12;
const SHARED_COUNT: u64 = 16;
const COUNT: u64 = (1 << 48) - 1;
const FIRST_WITH_FLAGS: u8 = 14;
const FLAG_BITS_END: u32 = 56;

/// The references of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceCount {
    /// So many.
    Counted(u64),
    /// The object never ends.
    Immortal,
}

impl ReferenceCount {
    /// That of the object at this address; `None`: it makes no sense.
    pub(crate) fn read(memory: &ObjectMemory<'_>, layout: &ObjectLayout, object: u64) -> Option<Self> {
        if layout.is_free_threaded() {
            let local = memory.u32(object.wrapping_add(LOCAL_COUNT))?;
            return Self::of_two(local, memory.u64(object.wrapping_add(SHARED_COUNT))?);
        }
        Some(Self::of_word(memory.u64(object)?, layout.minor))
    }

    /// From the word in which builds with a global lock have the count: above it are flags from 3.14 on, of one byte.
    pub(crate) fn of_word(word: u64, minor: u8) -> Self {
        let has_flags = minor >= FIRST_WITH_FLAGS && word >> FLAG_BITS_END == 0;
        Self::of_one(if has_flags { word & COUNT } else { word }, minor)
    }

    /// From the one count of builds with a global lock, version 3.`minor`.
    pub(crate) fn of_one(count: u64, minor: u8) -> Self {
        let is_immortal = match minor {
            FIRST_WITH_IMMORTALS.. => count & NEVER_ENDS != 0 && count < MOST_REFERENCES,
            11 => FROZEN_COUNTS.contains(&count),
            _ => false,
        };
        if is_immortal { Self::Immortal } else { Self::Counted(count) }
    }

    /// From the count of an object's own thread, and that of all others, which has two flags below; `None`: they make no sense.
    pub(crate) fn of_two(local: u32, shared: u64) -> Option<Self> {
        if local == IMMORTAL {
            return Some(Self::Immortal);
        }
        let shared = shared.cast_signed() >> 2;
        if shared.abs_diff(COUNTED_LATE) < MOST_REFERENCES {
            // References of frames are not counted, so there may be none.
            let counted = (i64::from(local) + (shared - COUNTED_LATE)).max(1);
            return Some(Self::Counted(counted.cast_unsigned()));
        }
        u64::try_from(i64::from(local) + shared).ok().map(Self::Counted)
    }

    /// As it is stored: 0 for what never ends.
    pub(crate) fn stored(self) -> u32 {
        match self {
            Self::Counted(count) => u32::try_from(count).unwrap_or(u32::MAX),
            Self::Immortal => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ReferenceCount::{Counted, Immortal};
    use super::{COUNTED_LATE, ReferenceCount};

    #[test]
    fn counts_of_all_builds() {
        assert_eq!(ReferenceCount::of_one(1 << 31, 11), Counted(1 << 31));
        assert_eq!(ReferenceCount::of_one(1_000_000_004, 11), Immortal);
        assert_eq!(ReferenceCount::of_one(999_999_999, 10), Counted(999_999_999));
        let immortal = [u64::from(u32::MAX), 3 << 30, (3 << 30) + 7].map(|count| ReferenceCount::of_one(count, 14));
        assert_eq!(immortal, [Immortal; 3]);
        assert_eq!(ReferenceCount::of_one(0xcdcd_cdcd_cdcd, 12), Counted(0xcdcd_cdcd_cdcd));
        // Above the count are the numbers of attribute values in 3.11 and 3.12, and flags from 3.14 on.
        let values = 0x0802_0100_0000_0000;
        let counts = [11, 12, 14].map(|minor| ReferenceCount::of_word(values, minor));
        assert_eq!(counts, [Counted(values); 3]);
        assert_eq!(ReferenceCount::of_word(5 << 48 | 7, 14), Counted(7));
        assert_eq!(ReferenceCount::of_two(2, 3 << 2 | 1), Some(Counted(5)));
        assert_eq!(ReferenceCount::of_two(2, (-1_i64 << 2).cast_unsigned()), Some(Counted(1)));
        assert_eq!(ReferenceCount::of_two(1, (-3_i64 << 2).cast_unsigned()), None);
        assert_eq!(ReferenceCount::of_two(1, ((COUNTED_LATE + 4) << 2).cast_unsigned()), Some(Counted(5)));
        assert_eq!(ReferenceCount::of_two(u32::MAX, 0), Some(Immortal));
    }
}
