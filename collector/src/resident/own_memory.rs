//! How much of memtrack's own private memory is resident in the target, which says where it is.
//!
//! Pages are counted when something may have changed, and in a fiftieth of the time at most, or a fifth where resident memory
//! has changed by much beside it, as where many threads begin; anew where the high-water mark has risen, and at the end. In between, what was counted is taken to grow with what is in
//! use. Invariant: where pages cannot be seen, none are counted.

use std::ops::Range;

use memtrack_format::resident::ResidentAccount;
use memtrack_transport::Area;
use memtrack_transport::clock::monotonic_ns;
use std::sync::atomic::Ordering::Relaxed;

use super::pages::PageReader;
use crate::system::procfs::thread_processor_ns;

/// Counting takes at most one part in so many of the time; the same where resident memory has changed by more than an eighth of
/// the last count.
const PART: u64 = 50;
const PART_OF_CHANGE: u64 = 5;
const PART_OF_MOMENT: u64 = 1;
/// Addresses that are looked at where each page of them has to be asked about, in bytes: 64 calls. Where there are more, nothing is
/// counted.
const MOST_BY_PAGES: u64 = 4 << 30;
/// The name that the mappings have in accounts; `reader` knows it.
const NAME: &[u8] = b"[anon:memtrack]";

/// Counts it.
#[derive(Debug, Default)]
pub(crate) struct OwnMemory {
    pid: i32,
    pages: Option<PageReader>,
    is_hidden: bool,
    /// The count, and what was in use then.
    counted: u64,
    counted_of: u64,
    /// All resident memory of the target then.
    counted_at: u64,
    /// When it ended, and the processor time that it took.
    ended_ns: u64,
    cost_ns: u64,
    /// The least that was counted since [`OwnMemory::take_least`] was last called, and the last count before.
    least: u64,
}

impl OwnMemory {
    pub(crate) fn of(pid: i32) -> Self {
        Self { pid, ..Self::default() }
    }

    /// Resident bytes of it, while all resident memory of the target is so much.
    pub(crate) fn bytes(&mut self, area: &Area, resident: u64) -> u64 {
        let in_use = area.control().own_bytes.load(Relaxed);
        if in_use == 0 {
            return 0;
        }
        let changes = self.counted_at.abs_diff(resident) > self.counted / 8;
        self.count_in(if changes { PART_OF_CHANGE } else { PART }, area, resident);
        part(self.counted, in_use.max(self.counted_of), self.counted_of)
    }

    /// Counts it, unless that was done just now: what is about to be noted is final.
    pub(crate) fn count_now(&mut self, area: &Area, resident: u64) {
        self.count_in(PART_OF_MOMENT, area, resident);
    }

    /// Counts it if something may have changed, in at most one part in so many of the time.
    fn count_in(&mut self, part: u64, area: &Area, resident: u64) {
        let in_use = area.control().own_bytes.load(Relaxed);
        let has_changed = (in_use, resident) != (self.counted_of, self.counted_at);
        if has_changed && monotonic_ns() >= self.ended_ns.saturating_add(self.cost_ns.saturating_mul(part)) {
            let begun = thread_processor_ns();
            if self.count(area, page_bytes()) {
                (self.counted_of, self.counted_at) = (in_use, resident);
            }
            self.ended_ns = monotonic_ns();
            self.cost_ns = thread_processor_ns().saturating_sub(begun);
        }
    }

    /// What it surely was all the time since the last call of this.
    pub(crate) fn take_least(&mut self) -> u64 {
        std::mem::replace(&mut self.least, self.counted)
    }

    /// `false`: it could not be counted, and is what it was before.
    fn count(&mut self, area: &Area, page_bytes: u64) -> bool {
        if self.pages.is_none() && !self.is_hidden {
            self.pages = PageReader::open(self.pid, page_bytes).ok();
            self.is_hidden = self.pages.is_none();
        }
        let Some(pages) = &mut self.pages else { return false };
        let ranges = ranges(area);
        // The ranges stand in memory that the target writes.
        let all = ranges.iter().fold(0, |all: u64, range| all.saturating_add(range.end - range.start));
        if pages.needs_resident() && all > MOST_BY_PAGES {
            return false;
        }
        let counted: Option<u64> = ranges.into_iter().map(|range| pages.anonymous_bytes(range).ok()).sum();
        // A process that has ended has none.
        let counted = counted.filter(|counted| *counted > 0);
        if let Some(counted) = counted {
            self.counted = counted;
            self.least = self.least.min(counted);
        }
        counted.is_some()
    }
}

/// `bytes` times `number` by `of`.
fn part(bytes: u64, number: u64, of: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(number) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

fn page_bytes() -> u64 {
    // SAFETY: reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).unwrap_or(4096)
}

/// Where it is, by address.
fn ranges(area: &Area) -> Vec<Range<u64>> {
    let mut all: Vec<_> =
        area.control().own_ranges.iter().filter_map(memtrack_transport::layout::OwnRange::get).collect();
    all.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in all {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Gives the mappings of an account their name that are memtrack's own.
pub(super) fn name_own_memory(account: &mut ResidentAccount, area: &Area) {
    let ranges = ranges(area);
    let is_own = |start: u64, end: u64| ranges.iter().any(|range| range.start <= start && end <= range.end);
    let name = u32::try_from(account.paths.len()).ok();
    let mut is_used = false;
    for mapping in &mut account.mappings {
        if mapping.path.is_none() && is_own(mapping.start, mapping.end) {
            (mapping.path, is_used) = (name, true);
        }
    }
    if is_used {
        account.paths.push(NAME.to_vec());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{NAME, OwnMemory, PageReader, name_own_memory, page_bytes};
    use memtrack_format::resident::{AccountMapping, ResidentAccount};
    use memtrack_transport::Area;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn touched_pages_of_the_ranges_are_counted_and_their_mappings_have_a_name() {
        const PAGES: u64 = 64;
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let page = page_bytes();
        let (kind, bytes) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, (PAGES * page) as usize);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the new mapping.
        unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
        let touch = |number: u64| {
            // SAFETY: a page of the mapping.
            unsafe { start.cast::<u8>().wrapping_add((number * page) as usize).write_volatile(1) };
        };
        let mut own = OwnMemory::of(std::process::id().cast_signed());
        assert_eq!(own.bytes(&area, page), 0);
        let address = start as u64;
        area.control().own_ranges[3].tell(address, PAGES * page / 2);
        area.control().own_ranges[0].tell(address + PAGES * page / 2, PAGES * page / 2);
        area.control().own_bytes.store(10 * page, Relaxed);
        [0, 7, 63].into_iter().for_each(touch);
        let all = 100 * page;
        assert_eq!(own.bytes(&area, all), 3 * page);
        // Counted again only when it is time.
        touch(8);
        own.ended_ns = u64::MAX;
        assert_eq!(own.bytes(&area, all + page), 3 * page);
        area.control().own_bytes.store(20 * page, Relaxed);
        assert_eq!(own.bytes(&area, all), 6 * page, "twice as much is in use");
        own.ended_ns = 0;
        assert_eq!((own.bytes(&area, all), own.take_least(), own.take_least()), (4 * page, 0, 4 * page));
        [20, 21].into_iter().for_each(touch);
        own.ended_ns = 0;
        assert_eq!((own.bytes(&area, all + page), own.take_least(), own.take_least()), (6 * page, 4 * page, 6 * page));
        let mapping = |start, end| AccountMapping { start, end, ..AccountMapping::default() };
        let mappings = vec![mapping(address - page, address), mapping(address, address + PAGES * page)];
        let mut account = ResidentAccount { mappings, ..ResidentAccount::default() };
        name_own_memory(&mut account, &area);
        let paths = account.mappings.iter().map(|mapping| account.path(mapping));
        assert_eq!(paths.collect::<Vec<_>>(), [&b""[..], NAME]);
    }

    #[test]
    fn more_addresses_than_can_be_looked_at_are_not_counted_where_each_page_has_to_be_asked_about() {
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let (page, pid) = (page_bytes(), std::process::id().cast_signed());
        let own_page = (&raw const area).addr() as u64 / page * page;
        area.control().own_bytes.store(page, Relaxed);
        for (length, is_counted) in [(page, true), (1 << 47, false)] {
            let mut own = OwnMemory { pages: Some(PageReader::by_pages(pid, page).unwrap()), ..OwnMemory::of(pid) };
            area.control().own_ranges[0].tell(own_page, length);
            assert_eq!((own.count(&area, page), own.counted > 0), (is_counted, is_counted));
        }
    }
}
