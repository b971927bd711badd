//! The payload of a resident block: which pages of a process were in memory at one moment.
//!
//! A sequence of prefix varints and byte strings:
//!
//! ```text
//! time cause page_bytes               CLOCK_MONOTONIC in nanoseconds, an AccountCause, bytes of a page
//! threads: count, (tid stack+)…       the system's ids of its threads and their stack pointers, 0 where unknown
//! heaps: count, (start+ arena top)…   glibc's heaps other than [heap]: first address, address of the arena's state, of its top
//! paths: count, (length bytes)…       names of mappings as the kernel writes them
//! mappings: count, (gap pages flags path runs: count, (gap pages state)…)…
//! free: count, (gap pages runs: count, (gap pages)…)…    glibc's heaps whose chunks were read; absent in earlier payloads
//! huge: bytes zeroes                  in huge pages, and of these in pages of zeroes; absent in earlier payloads
//! statistics: source time (figure + 1)×6    what the allocator says of itself, 0 for an unknown figure; absent where it says nothing
//! ```
//!
//! `gap` is the number of pages since the end of the previous mapping, or of the previous run of the same mapping; `+` marks a
//! wrapping difference to the previous row; `path` is 0 for none, or a row of paths plus one. A large account is divided into
//! several payloads of the same time. The collector takes a tick of that time, too, as for a mark (see [`crate::marks`]), so
//! an account has a place in the order of events.
//!
//! Invariant: `decode(encode(x))`, joined, is `x`; a decoder allocates no more rows than there are bytes; mappings of
//! what it returns ascend and do not overlap, and runs ascend and lie in their mapping.

mod allocator_statistics;

use crate::fields::{FieldReader, FieldWriter};

pub use allocator_statistics::{AllocatorFigures, AllocatorStatistics, StatisticsSource};

/// Bytes after which a payload is divided.
const PART: usize = 4 << 20;

/// Why an account was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AccountCause {
    /// Resident memory had grown.
    #[default]
    Growth = 1,
    /// The process, or its recording, was about to end.
    End = 2,
    /// The moment was named.
    Mark = 3,
    /// A snapshot was asked for.
    Snapshot = 4,
    /// The interpreter began to finalize.
    Finalizing = 5,
    /// The last one was long ago.
    Time = 6,
}

/// The state of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageState {
    /// In memory, and the process's own.
    Anonymous = 1,
    /// In memory, and of a file or of shared memory.
    File = 2,
    /// Swapped out.
    Swapped = 3,
}

/// Consecutive pages of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Of all of them.
    pub state: PageState,
}

/// A mapping, and its pages that are in memory or swapped out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountMapping {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// A sum of [`flag`]s.
    pub flags: u64,
    /// A row of [`ResidentAccount::paths`].
    pub path: Option<u32>,
    /// In ascending order.
    pub runs: Vec<PageRun>,
}

/// Values of [`AccountMapping::flags`].
pub mod flag {
    /// Readable.
    pub const READ: u64 = 1;
    /// Writable.
    pub const WRITE: u64 = 2;
    /// Executable.
    pub const EXECUTE: u64 = 4;
    /// Changes are seen by all who map it.
    pub const SHARED: u64 = 8;
    /// A file is mapped, or shared memory.
    pub const FILE: u64 = 16;
    /// The pages of that file count as shared memory: it is in memory only.
    pub const IN_MEMORY: u64 = 32;
}

/// Size and alignment of a heap of glibc's arenas other than the main one, in bytes (`HEAP_MAX_SIZE`).
pub const GLIBC_HEAP_BYTES: u64 = 64 << 20;

/// A heap of one of glibc's arenas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlibcHeap {
    /// First address.
    pub start: u64,
    /// Address of the state of its arena, which is in the arena's first heap.
    pub arena: u64,
    /// Address of the arena's top chunk; 0: unknown.
    pub top: u64,
}

/// A thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountThread {
    /// The system's id.
    pub tid: u32,
    /// Its stack pointer; 0: unknown.
    pub stack_pointer: u64,
}

/// The pages of a process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidentAccount {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// Why it was taken.
    pub cause: AccountCause,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Its threads.
    pub threads: Vec<AccountThread>,
    /// Heaps of glibc's arenas other than the main one, by address.
    pub heaps: Vec<GlibcHeap>,
    /// Names of mappings.
    pub paths: Vec<Vec<u8>>,
    /// All mappings, by address.
    pub mappings: Vec<AccountMapping>,
    /// glibc's heaps whose chunks were read, by address.
    pub free: Vec<HeapFreePages>,
    /// Anonymous memory in huge pages.
    pub huge: HugePages,
    /// What the program's allocator last said of itself, if it says anything.
    pub statistics: Option<AllocatorStatistics>,
}

/// What is in transparent huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// All of it.
    pub bytes: u64,
    /// Bytes of the pages of usual size in it that hold zeroes only: most were never written.
    pub zeroes: u64,
}

/// The pages of a heap of glibc's that have no chunk in use, nor the links of a free one: what malloc_trim gives back, and
/// the end of arenas other than the main one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapFreePages {
    /// First address of the heap.
    pub start: u64,
    /// Address behind its last page.
    pub end: u64,
    /// First address and address behind the last of each run, in ascending order.
    pub runs: Vec<(u64, u64)>,
}

impl ResidentAccount {
    /// The payloads, at least one.
    #[must_use]
    pub fn encode(&self) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        let mut rest = &self.mappings[..];
        loop {
            let taken = self.part_of(rest);
            let (part, after) = rest.split_at(taken);
            parts.push(self.encode_part(part, parts.is_empty()));
            rest = after;
            if rest.is_empty() {
                return parts;
            }
        }
    }

    /// How many of these mappings fit into one payload, at least one.
    fn part_of(&self, mappings: &[AccountMapping]) -> usize {
        let mut room = PART;
        let fits = mappings.iter().take_while(|mapping| {
            let bytes = 32 + mapping.runs.len() * 8;
            let before = room;
            room = room.saturating_sub(bytes);
            before > 0
        });
        fits.count()
    }

    fn encode_part(&self, mappings: &[AccountMapping], is_first: bool) -> Vec<u8> {
        let page = self.page_bytes.max(1);
        let mut out = FieldWriter::default();
        out.numbers(&[self.time_ns, self.cause as u64, page]);
        let mut last = 0;
        out.rows(if is_first { &self.threads } else { &[] }, |out, thread| {
            out.numbers(&[thread.tid.into(), thread.stack_pointer.wrapping_sub(last)]);
            last = thread.stack_pointer;
        });
        let mut last = 0;
        out.rows(if is_first { &self.heaps } else { &[] }, |out, heap| {
            out.numbers(&[heap.start.wrapping_sub(last), heap.arena, heap.top]);
            last = heap.start;
        });
        out.rows(if is_first { &self.paths } else { &[] }, |out, path| out.bytes(path));
        let mut end = 0;
        out.rows(mappings, |out, mapping| {
            let pages = (mapping.end - mapping.start) / page;
            out.numbers(&[(mapping.start - end) / page, pages, mapping.flags]);
            out.number(mapping.path.map_or(0, |path| u64::from(path) + 1));
            end = mapping.end;
            let mut at = mapping.start;
            out.rows(&mapping.runs, |out, run| {
                out.numbers(&[(run.start - at) / page, (run.end - run.start) / page, run.state as u64]);
                at = run.end;
            });
        });
        let mut end = 0;
        out.rows(if is_first { &self.free } else { &[] }, |out, heap| {
            out.numbers(&[(heap.start - end) / page, (heap.end - heap.start) / page]);
            end = heap.end;
            let mut at = heap.start;
            out.rows(&heap.runs, |out, (start, run_end)| {
                out.numbers(&[(start - at) / page, (run_end - start) / page]);
                at = *run_end;
            });
        });
        out.numbers(&if is_first { [self.huge.bytes, self.huge.zeroes] } else { [0, 0] });
        self.statistics.iter().filter(|_| is_first).for_each(|statistics| statistics.write(&mut out));
        out.into_bytes()
    }

    /// Takes a payload apart; `None` when it is not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = FieldReader::new(bytes);
        let (time_ns, cause, page_bytes) = (input.number()?, AccountCause::of(input.number()?), input.number()?);
        if !page_bytes.is_power_of_two() || page_bytes > 1 << 30 {
            return None;
        }
        let mut last = 0_u64;
        let threads = input.rows(|input| {
            let tid = input.small()?;
            last = last.wrapping_add(input.number()?);
            Some(AccountThread { tid, stack_pointer: last })
        })?;
        let mut last = 0_u64;
        let heaps = input.rows(|input| {
            last = last.wrapping_add(input.number()?);
            Some(GlibcHeap { start: last, arena: input.number()?, top: input.number()? })
        })?;
        let paths = input.rows(|input| Some(input.bytes()?.to_vec()))?;
        let mut end = 0_u64;
        let mappings = input.rows(|input| {
            let mapping = read_mapping(input, end, page_bytes)?;
            end = mapping.end;
            Some(mapping)
        })?;
        let mut end = 0_u64;
        let mut next = |input: &mut FieldReader<'_>| {
            let heap = read_free_pages(input, end, page_bytes)?;
            end = heap.end;
            Some(heap)
        };
        let free = if input.is_at_end() { Vec::new() } else { input.rows(&mut next)? };
        let huge = if input.is_at_end() {
            HugePages::default()
        } else {
            HugePages { bytes: input.number()?, zeroes: input.number()? }
        };
        let statistics = if input.is_at_end() { None } else { Some(AllocatorStatistics::read(&mut input)?) };
        let account = Self { time_ns, cause, page_bytes, threads, heaps, paths, mappings, free, huge, statistics };
        input.is_at_end().then_some(account)
    }

    /// Adds the next payload of the same account; `false`: it is of another one.
    pub fn extend(&mut self, next: Self) -> bool {
        let ends = self.mappings.last().map_or(0, |last| last.end);
        let continues = next.mappings.first().is_none_or(|first| first.start >= ends);
        let is_same = next.time_ns == self.time_ns && next.page_bytes == self.page_bytes && continues;
        if is_same {
            self.mappings.extend(next.mappings);
        }
        is_same
    }

    /// The name of a mapping, as the kernel writes it; empty for one without.
    #[must_use]
    pub fn path(&self, mapping: &AccountMapping) -> &[u8] {
        mapping.path.and_then(|path| self.paths.get(path as usize)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Resident bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let runs = self.mappings.iter().flat_map(|mapping| &mapping.runs);
        runs.filter(|run| run.state != PageState::Swapped).map(PageRun::bytes).sum()
    }
}

impl PageRun {
    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

impl AccountMapping {
    /// Whether it has all of these flags.
    #[must_use]
    pub const fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

impl AccountCause {
    /// The cause with this number; growth, if this version does not know it.
    #[must_use]
    pub fn of(number: u64) -> Self {
        let all = [Self::Growth, Self::End, Self::Mark, Self::Snapshot, Self::Finalizing, Self::Time];
        all.into_iter().find(|cause| *cause as u64 == number).unwrap_or_default()
    }
}

fn read_mapping(input: &mut FieldReader<'_>, before: u64, page: u64) -> Option<AccountMapping> {
    let (start, end) = read_range(input, before, page)?;
    let flags = input.number()?;
    let path = input.small()?.checked_sub(1);
    let mut at = start;
    let runs = input.rows(|input| {
        let (start, run_end) = read_range(input, at, page)?;
        at = run_end;
        let state = PageState::of(input.number()?)?;
        (run_end <= end).then_some(PageRun { start, end: run_end, state })
    })?;
    Some(AccountMapping { start, end, flags, path, runs })
}

fn read_free_pages(input: &mut FieldReader<'_>, before: u64, page: u64) -> Option<HeapFreePages> {
    let (start, end) = read_range(input, before, page)?;
    let mut at = start;
    let runs = input.rows(|input| {
        let run = read_range(input, at, page)?;
        at = run.1;
        (at <= end).then_some(run)
    })?;
    Some(HeapFreePages { start, end, runs })
}

/// A range of pages, by the gap behind `before` and its length.
fn read_range(input: &mut FieldReader<'_>, before: u64, page: u64) -> Option<(u64, u64)> {
    let start = before.checked_add(input.number()?.checked_mul(page)?)?;
    let end = start.checked_add(input.number()?.checked_mul(page)?)?;
    Some((start, end))
}

impl PageState {
    fn of(number: u64) -> Option<Self> {
        [Self::Anonymous, Self::File, Self::Swapped].into_iter().find(|state| *state as u64 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        AccountCause, AccountMapping, AccountThread, AllocatorFigures, AllocatorStatistics, GlibcHeap, HeapFreePages,
        HugePages, PageRun, PageState, ResidentAccount, StatisticsSource, flag,
    };
    use proptest::prelude::*;

    fn run(start: u64, end: u64, state: PageState) -> PageRun {
        PageRun { start: start << 12, end: end << 12, state }
    }

    fn example() -> ResidentAccount {
        let first = AccountMapping {
            start: 1 << 40,
            end: (1 << 40) + (64 << 12),
            flags: flag::READ | flag::WRITE,
            path: Some(0),
            runs: vec![
                run((1 << 28) + 1, (1 << 28) + 3, PageState::Anonymous),
                run((1 << 28) + 3, (1 << 28) + 4, PageState::Swapped),
            ],
        };
        let second = AccountMapping { start: (1 << 40) + (64 << 12), end: 1 << 41, ..AccountMapping::default() };
        ResidentAccount {
            time_ns: 1 << 50,
            cause: AccountCause::End,
            page_bytes: 4096,
            threads: vec![
                AccountThread { tid: 7, stack_pointer: u64::MAX },
                AccountThread { tid: 8, stack_pointer: 0 },
            ],
            heaps: vec![GlibcHeap { start: 1 << 40, arena: (1 << 40) + 32, top: (1 << 40) + 9000 }],
            paths: vec![b"[heap]".to_vec()],
            mappings: vec![first, second],
            free: vec![HeapFreePages {
                start: 1 << 40,
                end: (1 << 40) + (64 << 12),
                runs: vec![
                    ((1 << 40) + (3 << 12), (1 << 40) + (9 << 12)),
                    ((1 << 40) + (60 << 12), (1 << 40) + (64 << 12)),
                ],
            }],
            huge: HugePages { bytes: 4 << 20, zeroes: 5 << 12 },
            statistics: Some(AllocatorStatistics {
                source: StatisticsSource::Tcmalloc,
                time_ns: (1 << 50) - 7,
                figures: AllocatorFigures { allocated: Some(9), cached: Some(0), ..AllocatorFigures::default() },
            }),
        }
    }

    #[test]
    fn a_payload_without_huge_or_free_pages_is_an_earlier_one() {
        let account = ResidentAccount { free: Vec::new(), huge: HugePages::default(), statistics: None, ..example() };
        let mut payload = account.encode().remove(0);
        payload.truncate(payload.len() - 2);
        assert_eq!(ResidentAccount::decode(&payload).as_ref(), Some(&account));
        payload.pop();
        assert_eq!(ResidentAccount::decode(&payload), Some(account));
    }

    #[test]
    fn round_trip() {
        let [payload] = &example().encode()[..] else { unreachable!("a small account has one payload") };
        assert_eq!(ResidentAccount::decode(payload), Some(example()));
        assert_eq!(example().resident_bytes(), 2 << 12);
        assert_eq!(example().path(&example().mappings[0]), b"[heap]");
    }

    #[test]
    fn a_large_account_is_divided_and_joined_again() {
        let mapping = |number: u64| AccountMapping {
            start: number << 32,
            end: (number << 32) + (1 << 31),
            runs: (0..200_000)
                .map(|at| run((number << 20) + at * 2, (number << 20) + at * 2 + 1, PageState::Anonymous))
                .collect(),
            ..AccountMapping::default()
        };
        let large = ResidentAccount { mappings: (1..12).map(mapping).collect(), ..example() };
        let parts = large.encode();
        assert!(parts.len() > 2 && parts.iter().all(|part| part.len() < 16 << 20), "{}", parts.len());
        let mut joined = ResidentAccount::decode(&parts[0]).unwrap();
        for part in &parts[1..] {
            assert!(joined.extend(ResidentAccount::decode(part).unwrap()));
        }
        assert!(joined == large);
        let again = ResidentAccount::decode(&parts[0]).unwrap();
        assert!(!joined.extend(again), "what overlaps is of another account");
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..200, with: u8, cut in 0usize..200) {
            let bytes = crate::fields::damaged(example().encode().remove(0), at, with, cut);
            if let Some(account) = ResidentAccount::decode(&bytes) {
                let mut end = 0;
                for mapping in &account.mappings {
                    prop_assert!(end <= mapping.start && mapping.start <= mapping.end);
                    end = mapping.end;
                    prop_assert!(mapping.runs.iter().all(|run| mapping.start <= run.start && run.start <= run.end && run.end <= mapping.end));
                }
                prop_assert!(account.mappings.len() + account.threads.len() <= bytes.len());
                for heap in &account.free {
                    prop_assert!(heap.runs.iter().all(|run| heap.start <= run.0 && run.0 <= run.1 && run.1 <= heap.end));
                }
            }
        }
    }
}
