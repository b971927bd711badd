//! `resident` as text: the sentence first, then classes, arenas, stacks that keep pages, and what would help.
//!
//! Invariant: nothing is left out without its number.

use std::cmp::Reverse;
use std::io::{self, Write};

use memtrack_reader::resident::{AllocatorArena, MemoryClass, PoolClass, SizeSpread};

use super::{GLIBC, PinnedRow, ResidentMoment, ResidentReport, UntouchedRow, allocator_statistics};
use crate::reports::NO_STACK;
use crate::reports::place::Place;
use crate::terminal::TextFormat;
use crate::text::{Style, Styled, TextTable, column, entry, left_out, paragraph, share};
use crate::units::{count, duration, plural, size};

/// Stacks that are listed whose blocks are not all in memory.
const FEW_UNTOUCHED: usize = 3;
/// Stacks that are listed without `--pinned`.
const FEW_PINNED: usize = 3;
/// Bytes between blocks of one size from which they are shown.
const LEAST_REST: u64 = 256 << 10;

impl ResidentReport<'_> {
    /// Writes the report; `rows` limits each list, `pinned` asks for all stacks that keep pages.
    pub(crate) fn text(
        &self,
        (rows, pinned): (usize, bool),
        when: &str,
        format: TextFormat,
        mut out: impl Write,
    ) -> io::Result<()> {
        let mut lines = vec![format.heading(&capitalized(&self.sentence()))];
        lines.extend(paragraph(&self.when(when), format));
        lines.extend(self.missed_peak().iter().flat_map(|text| paragraph(text, format)));
        lines.push(String::new());
        lines.extend(self.classes().lines(format));
        lines.extend(self.beside(format));
        self.section("Allocators", &self.arenas(rows), format, &mut lines);
        let statistics = self.memory.breakdown.statistics.as_ref();
        lines.extend(
            statistics.iter().flat_map(|statistics| paragraph(&allocator_statistics::text(statistics), format)),
        );
        self.section("Fragmentation by size of blocks", &self.sizes(rows), format, &mut lines);
        self.section("Pools of Python's allocator by size of blocks", &self.pools(rows), format, &mut lines);
        self.section("Live and not in memory", &self.untouched_table(rows.min(FEW_UNTOUCHED)), format, &mut lines);
        let shown = if pinned { rows } else { rows.min(FEW_PINNED) };
        self.section("Pages that only one stack's blocks keep", &self.pinned_table(shown), format, &mut lines);
        if !pinned && self.pinned.len() > shown {
            lines.push(format!("  {} more: --pinned", count((self.pinned.len() - shown) as u64)));
        } else if self.pinned.len() > shown {
            lines.push(left_out((self.pinned.len() - shown) as u64));
        }
        if let Some(what_if) = &self.what_if {
            lines.extend([String::new(), format.heading("What if")]);
            lines.extend(what_if.lines(self.memory.breakdown.rss.total(), format));
        }
        lines.extend([String::new(), format.heading("What would help")]);
        let advice = self.memory.advice(self.capture.info.process.python_version.is_some());
        if advice.is_empty() {
            lines.push("  Nothing of weight: resident memory is what the program uses.".into());
        }
        for one in &advice {
            lines.extend(entry(&format!("  {:>8}  ", size(one.bytes)), 12, &one.text, format));
        }
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    fn section(&self, title: &str, table: &TextTable, format: TextFormat, lines: &mut Vec<String>) {
        if !table.is_empty() {
            lines.extend([String::new(), format.heading(title)]);
            lines.extend(table.lines(format));
        }
    }

    /// Which moment it is, and what the process's own figures are.
    fn when(&self, when: &str) -> String {
        let ResidentMoment { time_ns, breakdown, .. } = self.memory;
        let rss = breakdown.rss;
        format!(
            "{}: {when}, {} after the start; anonymous {}, files {}, shared {}",
            self.capture.info.title(),
            duration(*time_ns),
            size(rss.anonymous),
            size(rss.file),
            size(rss.shared)
        )
    }

    fn classes(&self) -> TextTable {
        let total = self.memory.breakdown.rss.total();
        let mut table = TextTable::new([column("bytes"), column("share"), column("class")]);
        for class in MemoryClass::ALL {
            let bytes = self.memory.breakdown.bytes(class);
            if bytes > 0 {
                let [bytes, share] = share(bytes, total);
                let name = Styled::new(Style::Plain, format!("{:<12}", class.name()));
                table.row([bytes, share, name.and(Style::Dim, meaning(class)).into()]);
            }
        }
        table
    }

    /// What is not resident, and what is not known of what is.
    fn beside(&self, format: TextFormat) -> Vec<String> {
        let found = &self.memory.breakdown;
        let mut texts = Vec::new();
        if found.untouched > 0 {
            texts.push(format!(
                "{} of live blocks is not in memory: it was never touched, or has been given back",
                size(found.untouched)
            ));
        }
        if found.swapped > 0 {
            texts.push(format!("{} is swapped out", size(found.swapped)));
        }
        if let Some((bytes, resident)) = found.exception_reserve {
            texts.push(format!(
                "{} of live is the reserve of libstdc++ for exceptions ({} of it resident); from GCC 13 on GLIBCXX_TUNABLES=\
                 glibcxx.eh_pool.obj_count=0 does without it",
                size(bytes),
                size(resident)
            ));
        }
        if found.huge.bytes > 0 {
            texts.push(format!(
                "{} is in huge pages; {} of that holds zeroes only",
                size(found.huge.bytes),
                size(found.huge.zeroes)
            ));
        }
        if found.python_arenas > 0 {
            texts.push(format!(
                "{} of live is arenas of Python's allocator: what is free in them shows with --trace-python-allocators",
                size(found.python_arenas)
            ));
        }
        texts.iter().flat_map(|text| paragraph(text, format)).collect()
    }

    /// Allocators with their arenas, largest first; heaps of one arena are one row.
    fn arenas(&self, rows: usize) -> TextTable {
        let mut arenas: Vec<(AllocatorArena, usize)> = Vec::new();
        for arena in &self.memory.breakdown.arenas {
            let same = |other: &&mut (AllocatorArena, usize)| {
                other.0.allocator == arena.allocator && (arena.allocator != GLIBC || other.0.state == arena.state)
            };
            match arenas.iter_mut().find(same) {
                Some((sum, number)) => {
                    sum.resident += arena.resident;
                    sum.live += arena.live;
                    sum.retained += arena.retained;
                    *number += 1;
                }
                None => arenas.push((*arena, 1)),
            }
        }
        arenas.sort_by_key(|(arena, _)| Reverse(arena.resident));
        let mut table =
            TextTable::new([column("resident"), column("live"), column("without a block"), column("where")]);
        for (arena, number) in &arenas {
            let name = match (arena.allocator, arena.state) {
                (GLIBC, 0) => "glibc, main arena".to_owned(),
                (GLIBC, _) => format!("glibc, arena at {:#x}", arena.address),
                ("other", _) => format!("an allocator in {}", plural(*number as u64, "mapping", "mappings")),
                (name, _) => format!("{name}, {}", plural(*number as u64, "mapping", "mappings")),
            };
            let free = if arena.allocator == "pymalloc" { arena.resident - arena.live } else { arena.retained };
            let cells = [arena.resident, arena.live, free].map(|bytes| size(bytes).into());
            table.row(cells.into_iter().chain([Styled::from(name).into()]));
        }
        table.first(rows)
    }

    /// Sizes of blocks by the rest of the pages on which these are, the largest first.
    fn sizes(&self, rows: usize) -> TextTable {
        let mut sizes: Vec<SizeSpread> = self.memory.breakdown.sizes.clone();
        sizes.retain(|spread| spread.rest >= LEAST_REST);
        sizes.sort_by_key(|spread| Reverse(spread.rest));
        let mut table = TextTable::new([column("live"), column("rest of pages"), column("blocks")]);
        for SizeSpread { sizes: (least, most), live, rest } in sizes {
            let name = Styled::from(format!("{} to {} bytes", count(least), count(most)));
            table.row([size(live).into(), size(rest).into(), name.into()]);
        }
        table.first(rows)
    }

    /// Size classes of pymalloc by the memory of their pools that no object uses, the largest first.
    fn pools(&self, rows: usize) -> TextTable {
        let free = |pool: &PoolClass| pool.resident.saturating_sub(pool.live);
        let mut pools: Vec<&PoolClass> = self.memory.breakdown.pools.iter().collect();
        pools.retain(|pool| free(pool) >= LEAST_REST);
        pools.sort_by_key(|pool| Reverse(free(pool)));
        let mut table = TextTable::new([column("live"), column("rest of pools"), column("pools"), column("blocks")]);
        for pool in pools {
            let least = count(pool.block_bytes.saturating_sub(15));
            let name = Styled::from(format!("{} of {least} to {} bytes", count(pool.blocks), count(pool.block_bytes)));
            table.row([size(pool.live).into(), size(free(pool)).into(), count(pool.pools).into(), name.into()]);
        }
        table.first(rows)
    }

    fn untouched_table(&self, rows: usize) -> TextTable {
        let mut table = TextTable::new([column("not in memory"), column("of"), column("blocks"), column("function")]);
        for UntouchedRow { place, import, blocks, .. } in self.untouched.iter().take(rows) {
            let [untouched, of] = [blocks.untouched, blocks.bytes].map(size);
            let name = import.as_ref().map_or_else(|| named(place.as_ref()), |import| Styled::from(import.clone()));
            table.row([untouched.into(), of.into(), count(blocks.blocks).into(), name.into()]);
        }
        table
    }

    fn pinned_table(&self, rows: usize) -> TextTable {
        let mut table =
            TextTable::new([column("keeps"), column("live"), column("blocks"), column("age"), column("function")]);
        for row in self.pinned.iter().take(rows) {
            let PinnedRow { place, pages } = row;
            let (youngest, oldest) = row.ages_ns(self.memory);
            let [youngest, oldest] = [youngest, oldest].map(duration);
            let age = if youngest == oldest { oldest } else { format!("{youngest} to {oldest}") };
            let name = named(place.as_ref());
            let [kept, live] = [pages.pinned_bytes, pages.live_bytes].map(size);
            table.row([kept.into(), live.into(), count(pages.blocks).into(), age.into(), name.into()]);
        }
        table
    }
}

/// The function that has allocated, and its caller.
fn named(place: Option<&Place>) -> Styled {
    let name = Styled::from(place.map_or(NO_STACK, Place::name).to_owned());
    let caller = place.and_then(|place| place.callers().first());
    caller.iter().fold(name, |name, caller| name.and(Style::Dim, format!(", called by {caller}")))
}

pub(crate) fn meaning(class: MemoryClass) -> &'static str {
    match class {
        MemoryClass::Live => "bytes of live blocks",
        MemoryClass::Slack => "the rest of their pages, and what threads cache",
        MemoryClass::Retained => "pages without a live block that an allocator keeps",
        MemoryClass::PythonFree => "free pools of Python's allocator",
        MemoryClass::Stacks => "stacks of threads",
        MemoryClass::File => "code, libraries, mapped files, their data",
        MemoryClass::Shared => "shared memory",
        MemoryClass::Memtrack => "memtrack's own, not there without it",
        MemoryClass::Unexplained => "pages of no recorded block",
    }
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
