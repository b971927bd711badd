//! `resident`: where resident memory is, and what would give it back, as text and JSON.
//!
//! Invariant: the classes add up to the resident memory that is stated.

mod advice;
mod allocator_statistics;
mod sentence;
mod text;
mod what_if;

use memtrack_format::MapClass;
use memtrack_reader::origin::Whose;
use memtrack_reader::resident::{AllocatorArena, MemoryClass, PinnedPages, PoolClass, SizeSpread, UntouchedBlocks};
use serde_json::{Value, json};

use super::capture_info::Capture;
use super::mappings::{self, MappedLine};
use super::own_lines::{NamedLine, label, line_of, whose_memory};
use super::place::Place;
pub(crate) use super::resident_moment::{ResidentMoment, ResidentPeak};
use super::source::Sources;
use crate::units::{duration, size, whole_ms};
pub(crate) use text::meaning;
pub(crate) use what_if::{SettingResult, WhatIf};

/// Bytes, and percentage of the peak, by which the peak exceeds the account of most memory where that is said.
const LEAST_MISSED: u64 = 4 << 20;
const LEAST_MISSED_PERCENT: u64 = 10;
/// The name of glibc's malloc among allocators.
const GLIBC: &str = "glibc";

/// The report.
#[derive(Debug)]
pub(crate) struct ResidentReport<'a> {
    capture: &'a Capture,
    memory: &'a ResidentMoment,
    pinned: Vec<PinnedRow>,
    untouched: Vec<UntouchedRow>,
    what_if: Option<WhatIf>,
    /// The peak of resident memory, where the moment should be that of most.
    peak: Option<ResidentPeak>,
}

/// Pages that only blocks of one stack keep.
#[derive(Debug)]
pub(crate) struct PinnedRow {
    /// `None`: the stack is empty.
    pub(crate) place: Option<Place>,
    pub(crate) pages: PinnedPages,
}

/// Blocks of one stack of which a part is not in memory.
#[derive(Debug)]
pub(crate) struct UntouchedRow {
    /// `None`: the stack is empty.
    pub(crate) place: Option<Place>,
    /// The row of `table` that they belong to.
    pub(crate) line: Option<NamedLine>,
    /// What was imported when they were allocated, and where, if something was.
    import: Option<String>,
    pub(crate) blocks: UntouchedBlocks,
}

impl UntouchedRow {
    fn of(capture: &Capture, blocks: UntouchedBlocks, sources: &mut Sources) -> Self {
        let stack = capture.stack(blocks.stack);
        let is_import = whose_memory(capture, stack) == Whose::Imports;
        Self {
            place: Place::of(capture, stack, sources),
            line: line_of(capture, stack).named(capture),
            import: is_import.then(|| label(capture, stack).whole().words()),
            blocks,
        }
    }
}

impl ResidentMoment {
    /// Arenas of glibc with resident pages.
    pub(crate) fn glibc_arenas(&self) -> usize {
        let mut states: Vec<u64> = self.arenas_of(GLIBC).map(|arena| arena.state).collect();
        states.sort_unstable();
        states.dedup();
        states.len()
    }

    fn arenas_of(&self, allocator: &str) -> impl Iterator<Item = &AllocatorArena> {
        self.breakdown.arenas.iter().filter(move |arena| arena.allocator == allocator)
    }

    /// The allocator that keeps most pages without a live block.
    fn keeper(&self) -> &'static str {
        let retained = |name: &str| self.arenas_of(name).map(|arena| arena.retained).sum::<u64>();
        let names = self.breakdown.arenas.iter().map(|arena| arena.allocator);
        names.max_by_key(|name| retained(name)).unwrap_or(GLIBC)
    }

    fn bytes(&self, class: MemoryClass) -> u64 {
        self.breakdown.bytes(class)
    }
}

impl<'a> ResidentReport<'a> {
    pub(crate) fn new(capture: &'a Capture, memory: &'a ResidentMoment) -> Self {
        let mut sources = Sources::of(&capture.info);
        let pinned = memory.breakdown.pinned.iter().map(|pages| PinnedRow {
            place: Place::of(capture, capture.stack(pages.stack), &mut sources),
            pages: *pages,
        });
        let pinned = pinned.collect();
        let untouched = memory.breakdown.untouched_blocks.iter();
        let untouched = untouched.map(|blocks| UntouchedRow::of(capture, *blocks, &mut sources)).collect();
        Self { capture, memory, pinned, untouched, what_if: None, peak: None }
    }

    /// With what other settings come to.
    pub(crate) fn with_what_if(self, what_if: Option<WhatIf>) -> Self {
        Self { what_if, ..self }
    }

    /// Of the account of most memory: with the peak, which may lie between accounts.
    pub(crate) fn with_peak(self, peak: Option<ResidentPeak>) -> Self {
        Self { peak, ..self }
    }

    /// That resident memory was larger than at any account, if it was by much.
    fn missed_peak(&self) -> Option<String> {
        let at_account = self.memory.program_bytes();
        let missed = |peak: &ResidentPeak| {
            let more = peak.bytes.saturating_sub(at_account);
            more >= LEAST_MISSED && more >= peak.bytes / 100 * LEAST_MISSED_PERCENT
        };
        let ResidentPeak { bytes, time_ns } = self.peak.filter(missed)?;
        let when = time_ns.map_or_else(String::new, |time_ns| format!(", {} after the start", duration(time_ns)));
        Some(format!("resident memory was {} at most{when}: no account was taken then", size(bytes)))
    }

    /// Why resident memory is what it is, with who mapped most of the shared memory.
    pub(crate) fn sentence(&self) -> String {
        let sentence = self.memory.sentence();
        let lines = mappings::lines(self.capture, MapClass::Shared);
        let most = lines.iter().max_by_key(|line| line.bytes);
        let mapped = self.capture.analysis.totals.mappings.shared.bytes;
        let resident = (self.memory.bytes(MemoryClass::Shared), self.memory.breakdown.shared_mapped);
        let is_most = |line: &&MappedLine| is_most(resident, line.bytes, mapped);
        match most.filter(is_most) {
            Some(line) => {
                let named = format!("is shared memory, most of it mapped by {}", line.name(self.capture));
                sentence.replace("is shared memory", &named)
            }
            None => sentence,
        }
    }

    pub(crate) fn memory(&self) -> &ResidentMoment {
        self.memory
    }

    /// The stacks whose blocks alone keep pages, those that keep most first.
    pub(crate) fn pinned(&self) -> &[PinnedRow] {
        &self.pinned
    }

    /// The stacks whose blocks are not all in memory, those with most of that first.
    pub(crate) fn untouched(&self) -> &[UntouchedRow] {
        &self.untouched
    }

    /// `memtrack-resident`, version 1.
    pub(crate) fn json(&self) -> Value {
        let ResidentMoment { breakdown, .. } = self.memory;
        let class = |(name, bytes): (&str, u64)| json!({"class": name, "bytes": bytes});
        let classes = MemoryClass::ALL.iter().map(|class| (class.name(), breakdown.bytes(*class)));
        let advice = self.memory.advice(self.capture.info.process.python_version.is_some());
        let beside = [("untouched", breakdown.untouched), ("swapped", breakdown.swapped)];
        let arena = |arena: &AllocatorArena| {
            json!({
                "allocator": arena.allocator,
                "address": arena.address,
                "resident_bytes": arena.resident,
                "live_bytes": arena.live,
            })
        };
        let spread = |spread: &SizeSpread| {
            json!({
                "min_bytes": spread.sizes.0,
                "max_bytes": spread.sizes.1,
                "live_bytes": spread.live,
                "rest_bytes": spread.rest,
            })
        };
        let pool = |pool: &PoolClass| {
            json!({
                "block_bytes": pool.block_bytes,
                "pools": pool.pools,
                "blocks": pool.blocks,
                "live_bytes": pool.live,
                "resident_bytes": pool.resident,
                "excess_bytes": pool.excess(),
            })
        };
        let reserve =
            breakdown.exception_reserve.map(|(bytes, resident)| json!({"bytes": bytes, "resident_bytes": resident}));
        let what_if = self.what_if.iter().flat_map(|settings| settings.json(breakdown.rss.total()));
        json!({
            "schema": "memtrack-resident",
            "version": 1,
            "time_ms": whole_ms(self.memory.time_ns),
            "peak": self.peak.map(|ResidentPeak { bytes, time_ns }| json!({"bytes": bytes, "time_ms": time_ns.map(whole_ms)})),
            "rss": {
                "anon_bytes": breakdown.rss.anonymous,
                "file_bytes": breakdown.rss.file,
                "shared_bytes": breakdown.rss.shared,
            },
            "classes": classes.chain(beside).map(class).collect::<Vec<_>>(),
            "arenas": breakdown.arenas.iter().map(arena).collect::<Vec<_>>(),
            "untouched": self.untouched.iter().map(untouched).collect::<Vec<_>>(),
            "pinned": self.pinned.iter().map(|row| row.json(self.memory)).collect::<Vec<_>>(),
            "sizes": breakdown.sizes.iter().map(spread).collect::<Vec<_>>(),
            "pools": breakdown.pools.iter().map(pool).collect::<Vec<_>>(),
            "huge_pages": {"bytes": breakdown.huge.bytes, "zero_bytes": breakdown.huge.zeroes},
            "allocator_statistics": breakdown.statistics.as_ref().map(allocator_statistics::json),
            "exception_reserve": reserve,
            "what_if": what_if.collect::<Vec<_>>(),
            "advice": advice.iter().map(|one| json!({"bytes": one.bytes, "text": one.text})).collect::<Vec<_>>(),
        })
    }
}

/// Whether more than half of the resident shared memory is certainly of a line that had so many bytes mapped at one moment. `all`, and
/// what of it is in mappings that were recorded; `mapped`: all that was ever mapped. What of this is not resident, since it was unmapped or not touched, may all be the line's.
fn is_most((all, recorded): (u64, u64), line: u64, mapped: u64) -> bool {
    recorded.saturating_add(line).saturating_sub(mapped) > all / 2
}

/// Blocks and mappings of which a part is not in memory.
fn untouched(UntouchedRow { place, blocks, .. }: &UntouchedRow) -> Value {
    let mut value = place_json(place.as_ref());
    value["blocks"] = blocks.blocks.into();
    value["bytes"] = blocks.bytes.into();
    value["untouched_bytes"] = blocks.untouched.into();
    value
}

/// Where a stack has allocated: its innermost frame of interest, and the whole stack.
fn place_json(place: Option<&Place>) -> Value {
    let known = place.map(Place::json).unwrap_or_default();
    let of = |name: &str| known.get(name).cloned().unwrap_or_default();
    let stack = if place.is_some() { of("stack") } else { json!([]) };
    json!({"function": of("function"), "file": of("file"), "line": of("line"), "stack": stack})
}

impl PinnedRow {
    /// How long before the moment its blocks were allocated, in nanoseconds: the last one, and the first.
    fn ages_ns(&self, memory: &ResidentMoment) -> (u64, u64) {
        let (first, last) = self.pages.allocated_ns;
        (memory.time_ns.saturating_sub(last), memory.time_ns.saturating_sub(first))
    }

    fn json(&self, memory: &ResidentMoment) -> Value {
        let (youngest, oldest) = self.ages_ns(memory);
        let mut value = place_json(self.place.as_ref());
        for (name, number) in [
            ("blocks", self.pages.blocks),
            ("live_bytes", self.pages.live_bytes),
            ("pinned_bytes", self.pages.pinned_bytes),
            ("youngest_ms", whole_ms(youngest)),
            ("oldest_ms", whole_ms(oldest)),
        ] {
            value[name] = number.into();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::resident::AccountCause;
    use memtrack_reader::resident::{MemoryClass, ResidentBreakdown};

    use super::{ResidentMoment, ResidentPeak, ResidentReport, is_most};
    use crate::reports::fixture;
    use crate::terminal::TextFormat;

    #[test]
    fn a_peak_without_an_account_is_told() {
        let capture = fixture::empty();
        let mut classes = [0; MemoryClass::ALL.len()];
        classes[MemoryClass::Memtrack as usize] = 2_000_000;
        let numbers = [122_000_000, 0, 0].into_iter().chain(classes).chain(std::iter::repeat(0));
        let breakdown = ResidentBreakdown::from_numbers(&mut { numbers }).unwrap();
        let moment = ResidentMoment {
            time_ns: 318_000_000,
            cause: AccountCause::Growth,
            breakdown,
            threads: 1,
            knows_all: true,
        };
        let told = |sampled, known| {
            let report = ResidentReport::new(&capture, &moment).with_peak(ResidentPeak::of(sampled, known));
            let mut text = Vec::new();
            report
                .text((10, false), "at the account of most", TextFormat { width: None, color: false }, &mut text)
                .unwrap();
            let text = String::from_utf8(text).unwrap();
            let line = text.lines().nth(2).unwrap_or_default().to_owned();
            (line, report.json()["peak"].clone())
        };
        let at = Some((347_000_000, 730_000_000));
        let line = "resident memory was 347 MB at most, 730 ms after the start: no account was taken then";
        assert_eq!(told(at, Some(349_000_000)).0, line.replace("347", "349"));
        assert_eq!(told(at, None), (line.into(), serde_json::json!({"bytes": 347_000_000, "time_ms": 730})));
        // Between two snapshots it is not known when.
        let line = "resident memory was 900 MB at most: no account was taken then";
        assert_eq!(told(at, Some(900_000_000)).0, line);
        // The account is of about as much; and where no peak is known.
        assert_eq!((told(Some((128_000_000, 5)), None).0, told(None, None).0), (String::new(), String::new()));
    }

    #[test]
    fn a_line_has_most_of_the_shared_memory_only_where_it_cannot_be_of_others() {
        // All that was mapped is resident, or all but a little.
        assert!(is_most((100, 100), 60, 100) && is_most((90, 90), 60, 100));
        // It may have unmapped what it had, or not touched it, and another one have the rest.
        assert!(!is_most((100, 100), 500, 600) && !is_most((0, 0), 60, 60));
        // Most is of before the recording.
        assert!(!is_most((200, 60), 60, 60));
    }
}
