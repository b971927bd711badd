//! Where the garbage collector has an object.
//!
//! Invariant: the number of a list never changes.

/// The list of the garbage collector that an object is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CollectorList {
    /// None: it cannot be part of a cycle, or is not looked at.
    #[default]
    Unlisted = 0,
    /// That of the youngest objects, which no collection has seen yet.
    Youngest = 1,
    /// That of objects which one collection has seen; with an incremental collector the first of two old lists.
    Middle = 2,
    /// That of objects which several collections have seen; with an incremental collector the second of two old lists.
    Oldest = 3,
    /// What `gc.freeze` has set aside.
    Frozen = 4,
    /// One of the first three, or the collector of a free-threaded build, which has no generations.
    Listed = 5,
}

impl CollectorList {
    pub(super) fn of(number: u64) -> Option<Self> {
        let all = [Self::Unlisted, Self::Youngest, Self::Middle, Self::Oldest, Self::Frozen, Self::Listed];
        all.into_iter().find(|list| *list as u64 == number)
    }

    /// The list of a generation, which has a number from 0 to 2; a higher one: what `gc.freeze` has set aside.
    #[must_use]
    pub const fn of_generation(number: usize) -> Self {
        match number {
            0 => Self::Youngest,
            1 => Self::Middle,
            2 => Self::Oldest,
            _ => Self::Frozen,
        }
    }

    /// Whether `gc.get_objects()` has what is in it.
    #[must_use]
    pub const fn is_tracked(self) -> bool {
        !matches!(self, Self::Unlisted | Self::Frozen)
    }
}
