//! Reads which pages of a process are in memory, from `/proc/PID/pagemap`.
//!
//! Linux 6.7 and later answer with whole ranges (`PAGEMAP_SCAN`). Earlier ones have a word for each page; there a page of
//! zeroes that was only read, which does not count as resident, looks like one that is shared with another process, and the
//! mapping's `Rss` of `/proc/PID/smaps` tells which it is. The process is not stopped; its memory map is locked for a
//! bounded number of pages at a time.
//!
//! Invariant: runs ascend, lie in the range that was asked for, and are at most [`MOST_RUNS`] in all.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use memtrack_format::resident::{PageRun, PageState};

/// Maximum number of runs of one account: what 16 GB have in which every other page is resident.
const MOST_RUNS: usize = 2 << 20;
/// Ranges that one call returns.
const REGIONS: usize = 2048;
/// Pages that one call visits.
const A_CALL: u64 = 1 << 16;
/// Words of pagemap that are read at a time.
const WORDS: usize = 1 << 14;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZEROES: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;
/// Since Linux 6.15; such pages look swapped.
const IS_GUARD: u64 = 1 << 8;

/// Bits of the words of pagemap.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
const MAPPED_ONCE: u64 = 1 << 56;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// How the system tells about pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanSupport {
    /// By ranges, with these categories.
    Ranges(u64),
    /// By a word for each page.
    Words,
}

/// Reads the pages of one process.
#[derive(Debug)]
pub(super) struct PageReader {
    pagemap: File,
    page_bytes: u64,
    support: ScanSupport,
    regions: Vec<PageRegion>,
    runs: usize,
    /// Anonymous memory in huge pages, by address; empty where the system does not tell.
    huge: Vec<(u64, u64)>,
}

/// What is asked about.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRange {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Anonymous pages may be in it.
    pub(super) may_be_anonymous: bool,
    /// Its resident bytes, if the system has told.
    pub(super) resident: Option<u64>,
}

impl PageReader {
    pub(super) fn open(pid: i32, page_bytes: u64) -> io::Result<Self> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let support = ScanSupport::Ranges(IS_FILE | IS_PRESENT | IS_SWAPPED | IS_ZEROES | IS_HUGE | IS_GUARD);
        let regions = vec![PageRegion::default(); REGIONS];
        let mut reader = Self { pagemap, page_bytes, support, regions, runs: 0, huge: Vec::new() };
        reader.find_support();
        Ok(reader)
    }

    /// Whether ranges need [`PageRange::resident`], and the system is asked about each of their pages, mapped or not.
    pub(super) fn needs_resident(&self) -> bool {
        self.support == ScanSupport::Words
    }

    /// One that asks about each page.
    #[cfg(test)]
    pub(super) fn by_pages(pid: i32, page_bytes: u64) -> io::Result<Self> {
        Ok(Self { support: ScanSupport::Words, ..Self::open(pid, page_bytes)? })
    }

    /// Anonymous memory in huge pages, of all ranges so far.
    pub(super) fn huge(&self) -> &[(u64, u64)] {
        &self.huge
    }

    /// Asks about an empty range.
    fn find_support(&mut self) {
        while let ScanSupport::Ranges(categories) = self.support {
            match self.scan((0, self.page_bytes), categories) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && categories & IS_GUARD != 0 => {
                    self.support = ScanSupport::Ranges(categories & !IS_GUARD);
                }
                Err(_) => self.support = ScanSupport::Words,
                Ok(_) => break,
            }
        }
    }

    /// The runs of a range.
    pub(super) fn runs(&mut self, range: PageRange) -> io::Result<Vec<PageRun>> {
        let runs = match self.support {
            ScanSupport::Ranges(categories) => self.by_ranges(range, categories),
            ScanSupport::Words => self.by_words(range),
        }?;
        self.runs += runs.len();
        if self.runs > MOST_RUNS {
            return Err(io::Error::other("its memory is in too many pieces"));
        }
        Ok(runs)
    }

    /// How much of a private range is in memory, as far as that is certain.
    pub(super) fn anonymous_bytes(&mut self, Range { start, end }: Range<u64>) -> io::Result<u64> {
        self.runs = 0;
        let runs = self.runs(PageRange { start, end, may_be_anonymous: true, resident: None })?;
        let anonymous = runs.iter().filter(|run| run.state == PageState::Anonymous);
        Ok(anonymous.map(|run| run.end - run.start).sum())
    }

    fn by_ranges(&mut self, range: PageRange, categories: u64) -> io::Result<Vec<PageRun>> {
        let (mut runs, mut at) = (Vec::new(), range.start);
        while at < range.end && self.runs + runs.len() <= MOST_RUNS {
            let (found, walked) = self.scan((at, range.end), categories)?;
            let mut seen = at;
            for region in self.regions.iter().take(found) {
                let is_huge = region.categories & IS_HUGE != 0;
                let state = match region.categories {
                    guard if guard & IS_GUARD != 0 => None,
                    swapped if swapped & IS_SWAPPED != 0 => Some(PageState::Swapped),
                    zeroes if zeroes & IS_ZEROES != 0 => None,
                    file if file & IS_FILE != 0 => Some(PageState::File),
                    _ => range.may_be_anonymous.then_some(PageState::Anonymous),
                };
                let (start, end) = (region.start.max(seen), region.end.min(range.end));
                if let Some(state) = state.filter(|_| start < end) {
                    if state == PageState::Anonymous && is_huge {
                        self.huge.push((start, end));
                    }
                    add(&mut runs, PageRun { start, end, state });
                }
                seen = seen.max(end);
            }
            // The system may say that it has looked less far than the pages that it tells of, as at the end of a range.
            let next = walked.max(seen);
            if next <= at {
                break;
            }
            at = next;
        }
        Ok(runs)
    }

    /// One call: the number of regions, and up to where it looked.
    fn scan(&mut self, (start, end): (u64, u64), categories: u64) -> io::Result<(usize, u64)> {
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            start,
            end,
            regions: self.regions.as_mut_ptr() as u64,
            regions_len: self.regions.len() as u64,
            max_pages: A_CALL,
            any_of: IS_PRESENT | IS_SWAPPED,
            returned: categories,
            ..ScanArguments::default()
        };
        // SAFETY: the arguments are of the size that they name, and point to as many regions as they say, which live on.
        let found = unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        match usize::try_from(found) {
            Ok(found) => Ok((found.min(self.regions.len()), arguments.walk_end)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    fn by_words(&self, range: PageRange) -> io::Result<Vec<PageRun>> {
        let (mut runs, mut unclear, mut resident) = (Vec::new(), Vec::new(), 0_u64);
        let mut bytes = vec![0; WORDS * 8];
        let mut at = range.start;
        while at < range.end && self.runs + runs.len() + unclear.len() <= MOST_RUNS {
            let wanted = ((range.end - at) / self.page_bytes).min(WORDS as u64) as usize * 8;
            let buffer = bytes.get_mut(..wanted).unwrap_or_default();
            let len = self.pagemap.read_at(buffer, at / self.page_bytes * 8)?;
            if len < 8 {
                break;
            }
            for word in buffer.get(..len).unwrap_or_default().chunks_exact(8) {
                let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
                let run = |state| PageRun { start: at, end: at + self.page_bytes, state };
                if word & SWAPPED != 0 {
                    add(&mut runs, run(PageState::Swapped));
                } else if word & (PRESENT | OF_FILE) == PRESENT | OF_FILE {
                    add(&mut runs, run(PageState::File));
                    resident += self.page_bytes;
                } else if word & (PRESENT | MAPPED_ONCE) == PRESENT | MAPPED_ONCE && range.may_be_anonymous {
                    add(&mut runs, run(PageState::Anonymous));
                    resident += self.page_bytes;
                } else if word & PRESENT != 0 && range.may_be_anonymous {
                    unclear.push(run(PageState::Anonymous));
                }
                at += self.page_bytes;
            }
        }
        // What the system counts beyond the pages that are certain are pages that a fork has shared; the rest are zeroes.
        let shared = range.resident.unwrap_or(0).saturating_sub(resident) / self.page_bytes;
        runs.extend(unclear.into_iter().take(usize::try_from(shared).unwrap_or(usize::MAX)));
        runs.sort_by_key(|run| run.start);
        Ok(joined(runs))
    }
}

/// Adds a run behind all others.
fn add(runs: &mut Vec<PageRun>, run: PageRun) {
    match runs.last_mut() {
        Some(last) if last.end == run.start && last.state == run.state => last.end = run.end,
        _ => runs.push(run),
    }
}

fn joined(runs: Vec<PageRun>) -> Vec<PageRun> {
    let mut all = Vec::with_capacity(runs.len());
    runs.into_iter().for_each(|run| add(&mut all, run));
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{PageRange, PageReader, ScanSupport};
    use memtrack_format::resident::{PageRun, PageState};

    const PAGE: usize = 4096;

    /// A new mapping, without huge pages.
    fn map(pages: usize, flags: libc::c_int) -> *mut u8 {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, flags | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the new mapping.
        unsafe { libc::madvise(start, pages * PAGE, libc::MADV_NOHUGEPAGE) };
        start.cast()
    }

    fn touch(start: *mut u8, page: usize) {
        // SAFETY: a page of the mapping.
        unsafe { start.wrapping_add(page * PAGE).write_volatile(1) };
    }

    fn runs(start: *mut u8, pages: usize, words: bool) -> Vec<(usize, usize, PageState)> {
        let mut reader = PageReader::open(std::process::id().cast_signed(), PAGE as u64).unwrap();
        if words {
            reader.support = ScanSupport::Words;
        }
        let (start, resident) = (start as u64, Some(2 * PAGE as u64));
        let range = PageRange { start, end: start + (pages * PAGE) as u64, may_be_anonymous: true, resident };
        let page = |address: u64| ((address - start) / PAGE as u64) as usize;
        let tell = |run: &PageRun| (page(run.start), page(run.end), run.state);
        reader.runs(range).unwrap().iter().map(tell).collect()
    }

    #[test]
    fn touched_pages_are_found_and_pages_of_zeroes_are_not_resident() {
        let start = map(8, libc::MAP_PRIVATE);
        for page in [1, 2] {
            touch(start, page);
        }
        // SAFETY: a page of the mapping.
        assert_eq!(unsafe { start.wrapping_add(5 * PAGE).read_volatile() }, 0);
        for words in [false, true] {
            assert_eq!(runs(start, 8, words), [(1, 3, PageState::Anonymous)], "{words}");
        }
    }

    /// They take many calls, each of which has room for a part of them.
    #[test]
    fn many_runs_ascend_to_the_end() {
        const PAGES: usize = 1 << 16;
        let start = map(PAGES, libc::MAP_PRIVATE);
        (0..PAGES).step_by(2).for_each(|page| touch(start, page));
        let found = runs(start, PAGES, false);
        // SAFETY: the mapping, which nothing uses any more.
        unsafe { libc::munmap(start.cast(), PAGES * PAGE) };
        assert_eq!(found.len(), PAGES / 2);
        assert!(found.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", found.last());
    }

    #[test]
    fn shared_memory_is_not_anonymous() {
        let start = map(4, libc::MAP_SHARED);
        touch(start, 3);
        for words in [false, true] {
            assert_eq!(runs(start, 4, words), [(3, 4, PageState::File)], "{words}");
        }
    }
}
