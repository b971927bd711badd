//! How much of each large block was in memory at the fullest account of its life.
//!
//! The account of one moment may be taken while a block is being filled: what it does not have in memory then is not what
//! nobody touches. Addresses that stay mapped from account to account belong to the same block.
//!
//! Invariant: of no block it is less than at the moment itself.

use memtrack_format::resident::{AccountCause, ResidentAccount};

use super::fullest_blocks::{FullestBlock, FullestBlocks};
use super::moment::LiveMoment;
use super::untouched::{LARGE, is_heap, touched};
use crate::event::Snapshot;

/// Follows, from account to account, the blocks of a moment that are not all in memory.
#[derive(Debug)]
pub struct FullestScan {
    /// The moment, in nanoseconds since recording began.
    time_ns: u64,
    blocks: Vec<BlockLife>,
    /// Python has begun to finalize: what is given back from then on has leaked all the same.
    is_over: bool,
}

/// A block of the moment.
#[derive(Debug)]
struct BlockLife {
    start: u64,
    end: u64,
    /// When it was allocated, and the first account at which it was gone.
    time_ns: (u64, u64),
    /// The most of it that an account has in memory, and what the last one has.
    touched: u64,
    at_last: u64,
    /// Resident bytes at the account that has most, of those in its life, and its time.
    most: (u64, u64),
}

impl FullestScan {
    /// The blocks of a moment, whose account this is.
    #[must_use]
    pub fn new(live: &LiveMoment, account: &ResidentAccount, time_ns: u64) -> Self {
        let large = live.extents.iter().filter(|extent| extent.bytes >= LARGE && is_heap(extent));
        let blocks = large.filter_map(|extent| {
            let (start, end) = (extent.start, extent.start.saturating_add(extent.bytes));
            let touched = touched(account, start, end);
            let time_ns = (extent.time_ns, u64::MAX);
            let life = BlockLife { start, end, time_ns, touched, at_last: touched, most: (0, 0) };
            (extent.bytes.saturating_sub(touched) >= LARGE).then_some(life)
        });
        Self { time_ns, blocks: blocks.collect(), is_over: false }
    }

    /// Whether all of them are in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The next account of the capture, by time; up to that which was taken as Python began to finalize.
    pub fn add(&mut self, account: &ResidentAccount, time_ns: u64) {
        if self.is_over && time_ns > self.time_ns {
            return;
        }
        self.is_over |= account.cause == AccountCause::Finalizing;
        let resident = account.resident_bytes();
        for block in &mut self.blocks {
            let (begun, ended) = block.time_ns;
            if !(begun..ended).contains(&time_ns) {
                continue;
            }
            if is_mapped(account, block.start, block.end) {
                block.at_last = touched(account, block.start, block.end);
                block.touched = block.touched.max(block.at_last);
                block.most = block.most.max((resident, time_ns));
            } else if time_ns > self.time_ns {
                block.time_ns.1 = time_ns;
            }
        }
    }

    /// The moment, with what its blocks had in memory at most. By as much as resident memory was larger in a block's life than at
    /// its accounts, and not by what was live besides, it may have had more. `peak`: of resident memory in all, if it is known, and of
    /// live bytes. `peak_ns`: when most was live, in nanoseconds since recording began, if that is known.
    #[must_use]
    pub fn finish(
        self,
        live: LiveMoment,
        snapshots: &[Snapshot],
        peak: Option<(u64, u64)>,
        peak_ns: Option<u64>,
    ) -> LiveMoment {
        let sampled = snapshots.iter().map(|snapshot| snapshot.rss_bytes).max().unwrap_or(0);
        // When it was is not known, if no snapshot has it.
        let elsewhen = peak.filter(|(resident, _)| resident - resident / 20 > sampled);
        let heap_about = |time_ns: u64| {
            let next = snapshots.partition_point(|snapshot| snapshot.time_ns <= time_ns);
            let about = &snapshots[next.saturating_sub(1)..snapshots.len().min(next + 1)];
            about.iter().map(|snapshot| snapshot.heap_bytes).max().unwrap_or(0)
        };
        let fullest = |block: &BlockLife| {
            let (begun, ended) = block.time_ns;
            let within = snapshots.iter().filter(|snapshot| (begun..=ended).contains(&snapshot.time_ns));
            let moments = within.map(|snapshot| (snapshot.rss_bytes, snapshot.heap_bytes)).chain(elsewhen);
            let (most, heap) = (block.most.0, heap_about(block.most.1));
            let more = moments.map(|(rss, live)| rss.saturating_sub(most).saturating_sub(live.saturating_sub(heap)));
            let unseen = more.max().unwrap_or(0);
            let BlockLife { start, end, touched, at_last, time_ns: life_ns, .. } = *block;
            ((start, end), FullestBlock { life_ns, touched, at_last, unseen })
        };
        LiveMoment { fullest: FullestBlocks::new(self.blocks.iter().map(fullest).collect()), peak_ns, ..live }
    }
}

/// Whether all addresses from the first one up to the second one are mapped.
fn is_mapped(account: &ResidentAccount, start: u64, end: u64) -> bool {
    let first = account.mappings.partition_point(|mapping| mapping.end <= start);
    let mut at = start;
    for mapping in account.mappings.get(first..).unwrap_or_default() {
        if mapping.start > at || at >= end {
            break;
        }
        at = mapping.end;
    }
    at >= end
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_format::meta::Process;
    use memtrack_format::resident::{AccountMapping, PageRun, PageState, flag};

    use super::*;
    use crate::event::StackId;
    use crate::live_extent::LiveExtent;
    use crate::resident::{ProcessFacts, ResidentBreakdown};

    const MB: u64 = 1 << 20;
    const START: u64 = 0x1000_0000;
    /// When the block is allocated, and the moment.
    const BEGUN: u64 = 5;
    const MOMENT: u64 = 10;

    /// An account with a mapping of 300 MB, of which so many are in memory.
    fn account(start: u64, touched: u64) -> ResidentAccount {
        let runs = vec![PageRun { start, end: start + touched * MB, state: PageState::Anonymous }];
        let mapping = AccountMapping { start, end: start + 300 * MB, flags: flag::WRITE, runs, ..Default::default() };
        ResidentAccount { mappings: vec![mapping], page_bytes: 4096, ..ResidentAccount::default() }
    }

    /// Megabytes that are not in memory of a block, and in all, where 110 MB of it are at the moment.
    fn untouched(accounts: &[(u64, ResidentAccount)], samples: &[(u64, u64)], peak: Option<u64>) -> (u64, u64) {
        let samples: Vec<_> = samples.iter().map(|&(time_ns, rss)| (time_ns, rss, 0)).collect();
        let found = breakdown(accounts, &samples, peak);
        (found.untouched_blocks.iter().map(|row| row.untouched / MB).sum(), found.never_touched / MB)
    }

    /// The same with live bytes at each sample.
    fn breakdown(
        accounts: &[(u64, ResidentAccount)],
        samples: &[(u64, u64, u64)],
        peak: Option<u64>,
    ) -> ResidentBreakdown {
        let now = account(START, 110);
        let block = LiveExtent { start: START, bytes: 300 * MB, time_ns: BEGUN, group: 0, mapped: None };
        let groups = vec![(StackId(1), Allocator::Malloc)];
        let live = LiveMoment { extents: vec![block], groups, ..LiveMoment::default() };
        let mut scan = FullestScan::new(&live, &now, MOMENT);
        assert!(!scan.is_empty());
        for (time_ns, account) in accounts.iter().chain([&(MOMENT, now.clone())]) {
            scan.add(account, *time_ns);
        }
        let snapshot = |&(time_ns, rss, heap): &(u64, u64, u64)| Snapshot {
            time_ns,
            rss_bytes: rss * MB,
            heap_bytes: heap * MB,
            ..Snapshot::default()
        };
        let snapshots: Vec<Snapshot> = samples.iter().map(snapshot).collect();
        let live = scan.finish(live, &snapshots, peak.map(|peak| (peak * MB, 0)), None);
        ResidentBreakdown::of(&now, &live, ProcessFacts::of(&Process::default()))
    }

    /// As of an allocator that reserves several.
    #[test]
    fn what_resident_memory_had_more_was_in_all_blocks_together() {
        let now = ResidentAccount { page_bytes: 4096, ..ResidentAccount::default() };
        let block = |number: u64| LiveExtent {
            start: START + number * 300 * MB,
            bytes: 300 * MB,
            time_ns: BEGUN,
            group: 0,
            mapped: None,
        };
        let groups = vec![(StackId(1), Allocator::Malloc)];
        let live = LiveMoment { extents: (0..4).map(block).collect(), groups, ..LiveMoment::default() };
        let mut scan = FullestScan::new(&live, &now, MOMENT);
        let mappings = (0..4).map(|number| account(block(number).start, 0).mappings.remove(0)).collect();
        scan.add(&ResidentAccount { mappings, ..now.clone() }, MOMENT);
        let live = scan.finish(live, &[], Some((150 * MB, 0)), None);
        let found = ResidentBreakdown::of(&now, &live, ProcessFacts::of(&Process::default()));
        assert_eq!((found.untouched_blocks[0].untouched / MB, found.never_touched / MB), (1050, 1050));
    }

    #[test]
    fn a_block_that_was_being_filled_is_judged_by_its_fullest_account() {
        assert_eq!(untouched(&[], &[], None), (190, 190));
        assert_eq!(untouched(&[(MOMENT + 5, account(START, 300))], &[], None), (0, 0));
        assert_eq!(
            untouched(&[(MOMENT + 5, account(START, 200)), (MOMENT + 6, account(START, 50))], &[], None),
            (100, 100)
        );
        // Given back: it had been in memory.
        assert_eq!(untouched(&[(MOMENT - 1, account(START, 250))], &[], None), (50, 50));
    }

    #[test]
    fn what_is_said_of_the_moment_is_what_is_not_in_memory_then() {
        let found = breakdown(&[(MOMENT + 5, account(START, 300))], &[], None);
        assert_eq!((found.untouched / MB, found.never_touched), (190, 0));
        // Of what leaked, the last account counts.
        let [row] = breakdown(&[(MOMENT - 1, account(START, 250))], &[], None).untouched_blocks[..] else { panic!() };
        assert_eq!((row.untouched / MB, row.at_last / MB), (50, 190));
    }

    #[test]
    fn what_was_live_besides_when_resident_memory_was_larger_explains_it() {
        let of = |samples: &[(u64, u64, u64)]| {
            let found = breakdown(&[], samples, None);
            found.untouched_blocks.iter().map(|row| (row.untouched / MB, row.unseen / MB)).collect::<Vec<_>>()
        };
        // As of an array of 150 MB between two accounts.
        assert_eq!(of(&[(MOMENT, 110, 300), (MOMENT + 1, 110, 300), (MOMENT + 2, 260, 450)]), [(190, 0)]);
        assert_eq!(of(&[(MOMENT, 110, 300), (MOMENT + 1, 110, 300), (MOMENT + 2, 260, 350)]), [(90, 100)]);
    }

    #[test]
    fn accounts_of_other_blocks_at_its_addresses_do_not_count() {
        assert_eq!(untouched(&[(BEGUN - 1, account(START, 300))], &[], None), (190, 190));
        let gone = account(START + 400 * MB, 10);
        assert_eq!(untouched(&[(MOMENT + 1, gone), (MOMENT + 2, account(START, 300))], &[], None), (190, 190));
    }

    #[test]
    fn what_resident_memory_had_more_than_its_accounts_may_be_the_block() {
        assert_eq!(untouched(&[], &[(MOMENT, 110), (MOMENT + 1, 305)], None), (0, 0));
        assert_eq!(untouched(&[], &[(MOMENT, 110), (MOMENT + 1, 140)], None), (160, 160));
        // Before its life, and where an account has it all.
        assert_eq!(untouched(&[], &[(BEGUN - 1, 305), (MOMENT, 110)], None), (190, 190));
        assert_eq!(untouched(&[], &[(MOMENT, 110)], Some(112)), (190, 190));
        // When it was is not known.
        assert_eq!(untouched(&[], &[(MOMENT, 110)], Some(310)), (0, 0));
    }
}
