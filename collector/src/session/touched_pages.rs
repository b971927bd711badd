//! Which pages of a slot's segments the target has touched: what the shared memory adds to its resident memory.
//!
//! Invariant: a page that the target has touched since it was last given back is in a segment's range, or is its first.

use std::ops::Range;

use memtrack_transport::layout::{PAGE, SEGMENT_HEADER, SEGMENTS_PER_SLOT};

/// The touched pages of one slot.
#[derive(Debug, Default)]
pub(crate) struct TouchedPages([Range<u16>; SEGMENTS_PER_SLOT]);

impl TouchedPages {
    /// Notes that the records `start..end` of a segment were written; returns the number of newly touched pages.
    pub(crate) fn note(&mut self, segment: u32, start: u32, end: u32) -> u64 {
        let Some(known) = self.0.get_mut(segment as usize) else { return 0 };
        let from = (SEGMENT_HEADER + start as usize) / PAGE;
        let to = (SEGMENT_HEADER + end as usize).div_ceil(PAGE).max(from + 1);
        let before = count(known);
        if before == 0 {
            *known = from as u16..to as u16;
        } else {
            *known = known.start.min(from as u16)..known.end.max(to as u16);
        }
        count(known).saturating_sub(before)
    }

    /// Notes that all pages of a segment were given back; returns how many had been touched.
    pub(crate) fn forget(&mut self, segment: u32) -> u64 {
        self.0.get_mut(segment as usize).map_or(0, |known| count(&std::mem::take(known)))
    }

    /// The touched pages of a segment that is still written which hold nothing but records before this one, and not the
    /// header.
    pub(crate) fn before(&self, segment: u32, record: u32) -> Range<usize> {
        let Some(known) = self.0.get(segment as usize) else { return 0..0 };
        usize::from(known.start.max(1))..(SEGMENT_HEADER + record as usize) / PAGE
    }

    /// Notes that these pages were given back; returns their number.
    pub(crate) fn forget_before(&mut self, segment: u32, pages: &Range<usize>) -> u64 {
        let Some(known) = self.0.get_mut(segment as usize) else { return 0 };
        let before = count(known);
        known.start = pages.end as u16;
        before.saturating_sub(count(known))
    }
}

/// With the page of the header.
fn count(pages: &Range<u16>) -> u64 {
    pages.len() as u64 + u64::from(!pages.is_empty() && pages.start > 0)
}

#[cfg(test)]
mod tests {
    use super::TouchedPages;

    #[test]
    fn pages_are_counted_once_until_they_are_given_back() {
        let mut pages = TouchedPages::default();
        assert_eq!((pages.note(3, 0, 1), pages.note(3, 0, 100), pages.note(3, 0, 4096)), (1, 0, 1));
        assert_eq!(pages.note(3, 0, 40_000), 8);
        assert_eq!(pages.before(3, 40_000), 1..9);
        assert_eq!(pages.forget_before(3, &(1..9)), 8);
        assert_eq!((pages.note(3, 0, 40_001), pages.before(3, 40_001)), (8, 1..9));
        assert_eq!((pages.forget(3), pages.forget(3)), (10, 0));
        // The end of a segment, and its header.
        assert_eq!((pages.note(2, 100_000, 100_001), pages.note(2, 100_000, 131_008)), (2, 7));
        assert_eq!((pages.note(99, 0, 1), pages.forget(99), pages.before(99, 1)), (0, 0, 0..0));
    }
}
