//! What large mappings do not have in memory, and do not get there either: their untouched ranges, account by account.
//!
//! An account that is taken while a block is being filled has much that is untouched for a moment only. It is known from the
//! accounts after it: as long as the addresses stay mapped, what one of them has in memory was merely not touched yet.
//!
//! Invariant: ranges ascend, and no two overlap.

use memtrack_format::resident::{AccountMapping, PageRun, ResidentAccount, flag};

use super::widest::AccountOutline;

/// Bytes of a mapping from which its pages count before it is known what lies on them. Stacks of threads are smaller.
const LARGE_MAPPING: u64 = 32 << 20;
/// Ranges of all accounts that are kept; of accounts beyond it, those from these bytes on.
const MOST_RANGES: usize = 1 << 20;
const LARGE_RANGE: u64 = 1 << 20;

/// From an address up to another one.
type AddressSpan = (u64, u64);

/// The outlines of all accounts of a capture, which are added by time.
#[derive(Debug, Default)]
pub struct AccountOutlines {
    outlines: Vec<AccountOutline>,
    large: Vec<LargeMappings>,
    ranges: usize,
    /// Resident bytes at the account that has most.
    most: u64,
}

/// The large private mappings of an account.
#[derive(Debug, Default)]
struct LargeMappings {
    mapped: Vec<AddressSpan>,
    untouched: Vec<AddressSpan>,
}

impl AccountOutlines {
    /// Adds the next account, taken so many nanoseconds after recording began.
    pub fn add(&mut self, account: &ResidentAccount, time_ns: u64) {
        let large = LargeMappings::of(account, if self.ranges > MOST_RANGES { LARGE_RANGE } else { 0 });
        self.ranges += large.untouched.len();
        self.most = self.most.max(account.resident_bytes());
        self.outlines.push(AccountOutline::of(account, time_ns));
        self.large.push(large);
    }

    /// All outlines; what is untouched in them stays so. `peak`: of resident memory, if it is known. By as much as it exceeds that of
    /// all accounts, memory may have been touched in between.
    #[must_use]
    pub fn finish(self, peak: Option<u64>) -> Vec<AccountOutline> {
        let Self { mut outlines, mut large, most, .. } = self;
        let unseen = peak.unwrap_or(0).saturating_sub(most);
        for index in (0..large.len()).rev() {
            let (before, after) = large.split_at_mut(index + 1);
            let this = &mut before[index];
            if let Some(next) = after.first() {
                let touched = minus(&next.mapped, &next.untouched);
                this.untouched = minus(&this.untouched, &touched);
            }
            let bytes: u64 = this.untouched.iter().map(|(start, end)| end - start).sum();
            outlines[index].untouched = bytes.saturating_sub(unseen);
        }
        outlines
    }
}

impl LargeMappings {
    /// Those of this account, with untouched ranges from so many bytes on.
    fn of(account: &ResidentAccount, least: u64) -> Self {
        let mut large = Self::default();
        let is_private = |mapping: &&AccountMapping| {
            mapping.has(flag::WRITE) && !mapping.has(flag::SHARED) && !mapping.has(flag::FILE)
        };
        let is_large = |mapping: &&AccountMapping| mapping.end - mapping.start >= LARGE_MAPPING;
        for mapping in account.mappings.iter().filter(is_private).filter(is_large) {
            large.mapped.push((mapping.start, mapping.end));
            let runs = mapping.runs.iter().map(|PageRun { start, end, .. }| (*start, *end));
            let untouched = minus(&[(mapping.start, mapping.end)], &runs.collect::<Vec<_>>());
            large.untouched.extend(untouched.into_iter().filter(|(start, end)| end - start >= least));
        }
        large
    }
}

/// What is in the first ranges and not in the second ones.
fn minus(from: &[AddressSpan], what: &[AddressSpan]) -> Vec<AddressSpan> {
    let (mut rest, mut next) = (Vec::with_capacity(from.len()), 0);
    for &(start, end) in from {
        let mut at = start;
        while what.get(next).is_some_and(|range| range.1 <= at) {
            next += 1;
        }
        for &(from, to) in what[next..].iter().take_while(|range| range.0 < end) {
            if from > at {
                rest.push((at, from));
            }
            at = at.max(to);
        }
        if at < end {
            rest.push((at, end));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use memtrack_format::resident::PageState;

    use super::*;

    const MB: u64 = 1 << 20;

    /// An account with a mapping of 100 MB at this address, of which so much is in memory.
    fn account(start: u64, touched: u64) -> ResidentAccount {
        let runs = vec![PageRun { start, end: start + touched, state: PageState::Anonymous }];
        let mapping = AccountMapping { start, end: start + 100 * MB, flags: flag::WRITE, runs, ..Default::default() };
        ResidentAccount { mappings: vec![mapping], page_bytes: 4096, ..ResidentAccount::default() }
    }

    fn untouched(accounts: &[ResidentAccount], peak: Option<u64>) -> Vec<u64> {
        let mut outlines = AccountOutlines::default();
        accounts.iter().zip(0..).for_each(|(account, time_ns)| outlines.add(account, time_ns));
        outlines.finish(peak).iter().map(|outline| outline.untouched / MB).collect()
    }

    #[test]
    fn what_is_filled_later_was_not_touched_yet_and_what_is_not_mapped_any_more_never_was() {
        let start = 0x1000_0000;
        assert_eq!(
            untouched(&[account(start, 10 * MB), account(start, 70 * MB), account(start, 40 * MB)], None),
            [30, 30, 60]
        );
        // Other addresses: the block has ended.
        assert_eq!(untouched(&[account(start, 10 * MB), account(2 * start, 70 * MB)], None), [90, 30]);
    }

    #[test]
    fn a_peak_that_no_account_has_may_have_touched_it() {
        assert_eq!(untouched(&[account(0x1000_0000, 10 * MB)], Some(95 * MB)), [5]);
        assert_eq!(untouched(&[account(0x1000_0000, 10 * MB)], Some(12 * MB)), [88]);
    }

    #[test]
    fn ranges_are_subtracted() {
        assert_eq!(minus(&[(0, 10), (20, 30)], &[(2, 3), (5, 22), (29, 40)]), [(0, 2), (3, 5), (22, 29)]);
        assert_eq!((minus(&[(0, 10)], &[]), minus(&[], &[(0, 1)])), (vec![(0, 10)], Vec::new()));
        assert_eq!(minus(&[(0, 4), (6, 8)], &[(0, 8)]), []);
    }
}
