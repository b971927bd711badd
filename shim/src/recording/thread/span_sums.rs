//! Sums of the blocks in spans of one thread's records, as the reader has them of the same spans (`SpanSums` there).
//!
//! Invariant: frees of blocks that were not allocated in the present span change nothing.

use memtrack_format::record::Record;

use super::live_sizes::LiveSizes;

/// Spans: before, in and after the run of a test.
pub(crate) const SPANS: usize = 3;

/// What was allocated in a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedSum {
    /// The number of allocations.
    pub(crate) count: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// The most of them that was live at one moment of the span.
    pub(crate) peak_bytes: u64,
    /// What was live at its end.
    pub(crate) kept_bytes: u64,
}

/// Sums up the spans before, between and after two moments.
pub(super) struct RecordedSpans<'a> {
    sums: [RecordedSum; SPANS],
    live: &'a mut LiveSizes,
    live_bytes: u64,
    /// The present span, and when it began.
    at: usize,
    from: u64,
    /// The moments that are still to come.
    moments: &'a [u64],
}

impl<'a> RecordedSpans<'a> {
    /// The moments are in order, in ticks of the stamping clock.
    pub(super) fn new(moments: &'a [u64; SPANS - 1], live: &'a mut LiveSizes) -> Self {
        live.clear();
        Self { sums: [RecordedSum::default(); SPANS], live, live_bytes: 0, at: 0, from: 0, moments }
    }

    /// The next record; `None`: the sums of spans with such a record are not known here.
    pub(super) fn add(&mut self, record: &Record<'_>) -> Option<()> {
        match *record {
            Record::Alloc { address, size, time, .. } => self.allocated(address, size, time?),
            Record::Free { address, time } => {
                self.advance(time?);
                self.ended(address);
                Some(())
            }
            // Of frames, names and order; and calls that have allocated nothing.
            Record::Push(_)
            | Record::Pop { .. }
            | Record::Move { .. }
            | Record::DefineTop { .. }
            | Record::ReplaceTop { .. }
            | Record::Truncated(_)
            | Record::Code(_)
            | Record::CodeLines { .. }
            | Record::Located { .. }
            | Record::Module(_)
            | Record::ThreadName { .. }
            | Record::PythonName { .. }
            | Record::Switch { .. }
            | Record::Clock { .. }
            | Record::FailedAlloc { .. } => Some(()),
            _ => None,
        }
    }

    /// The sums, at the end of the records.
    pub(super) fn finish(mut self) -> [RecordedSum; SPANS] {
        self.end_span();
        self.sums
    }

    fn allocated(&mut self, address: u64, size: u64, time: u64) -> Option<()> {
        self.advance(time);
        // Its free was not recorded.
        self.ended(address);
        if time < self.from {
            return Some(());
        }
        self.live.insert(address, size)?;
        self.live_bytes = self.live_bytes.saturating_add(size);
        let sum = self.sums.get_mut(self.at)?;
        sum.count = sum.count.saturating_add(1);
        sum.bytes = sum.bytes.saturating_add(size);
        sum.peak_bytes = sum.peak_bytes.max(self.live_bytes);
        Some(())
    }

    fn ended(&mut self, address: u64) {
        let size = self.live.remove(address).unwrap_or(0);
        self.live_bytes = self.live_bytes.saturating_sub(size);
    }

    fn advance(&mut self, time: u64) {
        while let Some((&moment, later)) = self.moments.split_first().filter(|(moment, _)| **moment <= time) {
            self.end_span();
            self.live.clear();
            (self.at, self.from, self.moments) = (self.at.wrapping_add(1), moment, later);
        }
    }

    fn end_span(&mut self) {
        if let Some(sum) = self.sums.get_mut(self.at) {
            sum.kept_bytes = std::mem::take(&mut self.live_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_format::record::Record;

    use super::super::live_sizes::LiveSizes;
    use super::{RecordedSpans, RecordedSum};

    fn alloc(time: u64, address: u64, size: u64) -> Record<'static> {
        Record::Alloc { allocator: Allocator::Malloc, address, size, time: Some(time) }
    }

    fn free(time: u64, address: u64) -> Record<'static> {
        Record::Free { address, time: Some(time) }
    }

    /// The sums of the records before, in and after 10..20.
    fn sums(records: &[Record<'_>]) -> Option<[RecordedSum; 3]> {
        let mut live = LiveSizes::new();
        let mut sums = RecordedSpans::new(&[10, 20], &mut live);
        records.iter().try_for_each(|record| sums.add(record))?;
        Some(sums.finish())
    }

    fn sum(count: u64, bytes: u64, peak_bytes: u64, kept_bytes: u64) -> RecordedSum {
        RecordedSum { count, bytes, peak_bytes, kept_bytes }
    }

    #[test]
    fn each_span_has_its_own_blocks() {
        let records = [
            alloc(5, 0x10, 100),
            alloc(10, 0x20, 1000),
            free(11, 0x10),
            alloc(12, 0x30, 500),
            free(13, 0x20),
            alloc(19, 0x40, 300),
            free(20, 0x30),
            alloc(21, 0x50, 7),
            free(22, 0x50),
        ];
        assert_eq!(sums(&records), Some([sum(1, 100, 100, 100), sum(3, 1800, 1500, 800), sum(1, 7, 7, 0)]));
    }

    #[test]
    fn a_span_without_records_has_nothing() {
        assert_eq!(sums(&[]), Some([RecordedSum::default(); 3]));
        assert_eq!(sums(&[alloc(30, 0x10, 5)]), Some([sum(0, 0, 0, 0), sum(0, 0, 0, 0), sum(1, 5, 5, 5)]));
    }

    #[test]
    fn a_block_at_the_place_of_another_has_ended_it() {
        assert_eq!(sums(&[alloc(10, 0x10, 5), alloc(11, 0x10, 3)]).map(|sums| sums[1]), Some(sum(2, 8, 5, 3)));
    }

    #[test]
    fn other_records_are_not_summed_up_here() {
        assert_eq!(sums(&[alloc(1, 0x10, 5), Record::FreeUndo]), None);
        assert_eq!(sums(&[Record::Free { address: 0x10, time: None }]), None);
    }
}
