//! The time of an event, on its way from the clock to the record.
//!
//! Invariant: a time that was read is never 0, so one word holds both what was read and that nothing was.

use std::num::NonZeroU64;

/// In ticks of the clock; [`EventTime::UNREAD`] before it is read, and where times are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventTime(Option<NonZeroU64>);

impl EventTime {
    /// Not read.
    pub(crate) const UNREAD: Self = Self(None);

    /// As it was read; a clock that stands at 0 has not been read yet.
    #[inline(always)]
    pub(crate) const fn read(ticks: u64) -> Self {
        Self(NonZeroU64::new(ticks))
    }

    /// Whether it still has to be read.
    #[inline(always)]
    pub(crate) const fn is_unread(self) -> bool {
        self.0.is_none()
    }

    /// What the record has of it.
    #[inline(always)]
    pub(crate) const fn recorded<const TIMED: bool>(self) -> Option<u64> {
        let ticks = match self.0 {
            Some(ticks) => ticks.get(),
            None => 0,
        };
        if TIMED { Some(ticks) } else { None }
    }
}
