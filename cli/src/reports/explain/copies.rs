//! Copies at the peak: a large block was made while another of like size was live, and soon after that one of the two
//! ended.
//!
//! What is in the blocks is not known. That something is in memory twice is said only where a line replaced what it had made before.
//!
//! Invariant: each block is in one pair at most, and both blocks of a pair were live at the peak.

use memtrack_reader::origin::Whose;
use memtrack_reader::query::{AllocationOutcome, AllocationRecord};
use memtrack_reader::{StackId, ThreadId};

use super::{Evidence, Finding, FindingKind, LineRows, Place, Severity, command};
use crate::reports::capture_info::Capture;
use crate::reports::own_lines::whose_memory;
use crate::reports::source::Sources;
use crate::units::{duration, size};

/// Blocks from this part of the peak on, and this size, are looked at.
const LEAST_PART: u64 = 200;
const LEAST: u64 = 64 << 10;
/// A finding needs pairs that hold this percentage of the peak, counting one block of each.
const LEAST_PERCENT: u64 = 10;
/// Sizes are alike if they differ by at most this part.
const ALIKE: u64 = 8;
/// Maximum number of pairs that are listed.
const LISTED: usize = 3;

/// What is said of the pairs.
struct Words {
    title: &'static str,
    meaning: &'static str,
    advice: &'static str,
    /// Weight of four bytes.
    weighs: u64,
}

const TWICE: Words = Words {
    title: "is in memory twice",
    meaning: "A line made a block while the one that it had made before was live, and the earlier one was dropped soon after that: its \
              old and its new result were both there.",
    advice: "Work in place, convert in parts, or drop the first block before the second is made (a variable of an outer function keeps \
             it, too).",
    weighs: 12,
};
/// It goes before the line that holds one of the two blocks, and behind one that holds more than these: that is known.
const ALIKE_ONLY: Words = Words {
    title: "is in a second block of like size, perhaps a copy",
    meaning: "A block was made while another of like size was live, and one of the two was not needed for long after that: often a \
              conversion, a concatenation or a copy. Only their sizes are known, not what is in them.",
    advice: "If the second is made from the first: work in place, convert in parts, or drop the first before the second is made (a \
             variable of an outer function keeps it, too).",
    weighs: 5,
};

/// The large blocks of a capture.
#[derive(Clone, Debug, Default)]
pub(crate) struct LargeBlocks {
    /// Those that were live at the peak.
    pub(crate) at_peak: Vec<LargeBlock>,
    /// The one that was allocated last of those that were live at the end.
    pub(crate) last: Option<LargeBlock>,
    /// Whether the capture has accounts of resident memory beside them.
    pub(crate) has_accounts: bool,
}

impl LargeBlocks {
    /// Adds an allocation that was live at the peak or at the end.
    pub(crate) fn add(&mut self, capture: &Capture, record: &AllocationRecord, sources: &mut Sources) {
        // Arenas are all of one size, and what modules make when they are imported stays.
        let stack = capture.stack(record.stack);
        if record.allocator.is_python_arena() || whose_memory(capture, stack) == Whose::Imports {
            return;
        }
        let Some(block) = LargeBlock::of(capture, record, sources) else { return };
        if record.fate == AllocationOutcome::Live && self.last.as_ref().is_none_or(|last| last.order < block.order) {
            self.last = Some(block.clone());
        }
        if record.peak {
            self.at_peak.push(block);
        }
    }
}

/// A large block.
#[derive(Clone, Debug)]
pub(crate) struct LargeBlock {
    place: Place,
    bytes: u64,
    order: u64,
    time_ns: u64,
    lifetime_ns: u64,
    thread: ThreadId,
    freed: bool,
}

impl LargeBlock {
    /// An allocation of this capture; `None` if it has no stack.
    fn of(capture: &Capture, record: &AllocationRecord, sources: &mut Sources) -> Option<Self> {
        let stack: StackId = capture.stack(record.stack);
        Some(Self {
            place: Place::of(capture, stack, sources)?,
            bytes: record.size,
            order: record.order,
            time_ns: record.time_ns,
            lifetime_ns: record.lifetime_ns,
            thread: record.thread,
            freed: !record.leaked && matches!(record.fate, AllocationOutcome::Freed { .. }),
        })
    }

    /// What it was, and when, `before_ns` the end.
    pub(super) fn as_request(&self, end_ns: u64) -> Evidence {
        let before = duration(end_ns.saturating_sub(self.time_ns));
        let text = format!("last large request: {}, {before} before the end, {}", size(self.bytes), self.place.name());
        Evidence { text, tally: Evidence::exact(self.bytes, 1), place: Some(self.place.clone()), ..Evidence::default() }
    }

    fn end_ns(&self) -> u64 {
        self.time_ns.saturating_add(self.lifetime_ns)
    }

    /// Whether this one, the later, looks like a copy of an earlier one, or the earlier one like what it was made from.
    fn is_copy_of(&self, earlier: &Self) -> bool {
        let (small, large) = (self.bytes.min(earlier.bytes), self.bytes.max(earlier.bytes));
        // How long both were live, against the whole time of the pair.
        let together = self.end_ns().min(earlier.end_ns()).saturating_sub(self.time_ns);
        let whole = self.end_ns().max(earlier.end_ns()).saturating_sub(earlier.time_ns);
        large - small <= large / ALIKE
            && (self.freed || earlier.freed)
            && together <= whole - whole / 3
            && whole > 0
            && self.place.shares_function(&earlier.place)
    }

    /// Whether it, the later of a pair, took the place of the earlier one: the same line, called in the same way in the same thread,
    /// made both, and the earlier one ended first.
    fn replaced(&self, earlier: &Self) -> bool {
        self.thread == earlier.thread
            && earlier.freed
            && earlier.end_ns() < self.end_ns()
            && self.place.has_path_of(&earlier.place)
    }
}

/// The size from which blocks are looked at, of a peak of so many bytes.
pub(crate) fn least_copy(peak: u64) -> u64 {
    LEAST.max(peak / LEAST_PART)
}

/// A pair of blocks, the earlier first.
type Pair<'a> = (&'a LargeBlock, &'a LargeBlock);

/// One finding of blocks that were replaced, and one of others, each if it has a good part of the peak.
pub(super) fn findings(rows: &LineRows<'_>, blocks: &[LargeBlock]) -> Vec<Finding> {
    let least = least_copy(rows.in_memory);
    // A block that is larger than what is in memory of its line is not.
    let reserving = rows.rows.iter().filter(|row| row.is_mostly_absent());
    let reserving: Vec<_> = reserving.map(|row| (row.name(rows.capture), row.present())).collect();
    let is_reserve =
        |block: &LargeBlock, (name, present): &(String, u64)| name == block.place.name() && block.bytes > *present;
    let is_present = |block: &&LargeBlock| !reserving.iter().any(|row| is_reserve(block, row));
    let blocks: Vec<&LargeBlock> = blocks.iter().filter(|block| block.bytes >= least).filter(is_present).collect();
    let mut pairs = pairs(&blocks);
    pairs.sort_by_key(|(earlier, _)| std::cmp::Reverse(earlier.bytes));
    let (twice, alike): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(earlier, later)| later.replaced(earlier));
    [(twice, &TWICE), (alike, &ALIKE_ONLY)]
        .into_iter()
        .filter_map(|(pairs, words)| finding(rows, &pairs, words))
        .collect()
}

/// Of these pairs, the largest first.
fn finding(rows: &LineRows<'_>, pairs: &[Pair<'_>], words: &Words) -> Option<Finding> {
    let bytes: u64 = pairs.iter().map(|(earlier, later)| earlier.bytes.min(later.bytes)).sum();
    let (_, copy) = pairs.first().filter(|_| bytes >= rows.in_memory / (100 / LEAST_PERCENT))?;
    let evidence = pairs.iter().take(LISTED).flat_map(|(earlier, later)| {
        let then = later.time_ns.saturating_sub(earlier.time_ns);
        let [first, second] = [earlier, later].map(|block| {
            let end = if block.freed { format!(", lived {}", duration(block.lifetime_ns)) } else { String::new() };
            format!("{} in {}{end}", size(block.bytes), block.place.name())
        });
        [
            Evidence {
                text: first,
                tally: Evidence::exact(earlier.bytes, 1),
                place: Some(earlier.place.clone()),
                ..Evidence::default()
            },
            Evidence {
                text: format!("{} later: {second}", duration(then)),
                tally: Evidence::exact(later.bytes, 1),
                place: Some(later.place.clone()),
                ..Evidence::default()
            },
        ]
    });
    Some(Finding {
        kind: FindingKind::Copy,
        severity: Severity::Note,
        title: format!(
            "At the peak {} {}, {}, made in {}",
            size(bytes),
            words.title,
            rows.share(bytes, bytes),
            copy.place.name()
        ),
        bytes,
        weight: bytes.saturating_mul(words.weighs) / 4,
        evidence: evidence.collect(),
        meaning: words.meaning.into(),
        advice: words.advice.into(),
        command: command(rows.capture, &format!("query 'peak and bytes >= {}'", least_copy(rows.in_memory))),
    })
}

/// Pairs of blocks, the earlier first: each with the one before it that is most like it in size.
fn pairs<'a>(blocks: &[&'a LargeBlock]) -> Vec<Pair<'a>> {
    let mut sorted: Vec<&LargeBlock> = blocks.iter().filter(|block| !is_one_of_many(block, blocks)).copied().collect();
    sorted.sort_by_key(|block| block.order);
    let mut is_used = vec![false; sorted.len()];
    let mut pairs = Vec::new();
    for later in 0..sorted.len() {
        let alike = (0..later).rev().filter(|at| !is_used[*at] && sorted[later].is_copy_of(sorted[*at]));
        if let Some(earlier) = alike.min_by_key(|at| sorted[*at].bytes.abs_diff(sorted[later].bytes)) {
            (is_used[earlier], is_used[later]) = (true, true);
            pairs.push((sorted[earlier], sorted[later]));
        }
    }
    pairs
}

/// Whether its line has more such blocks than a block and its copy: a collection, each part of which is of use.
fn is_one_of_many(block: &LargeBlock, blocks: &[&LargeBlock]) -> bool {
    let is_alike = |other: &&&LargeBlock| block.bytes.abs_diff(other.bytes) <= block.bytes.max(other.bytes) / ALIKE;
    blocks.iter().filter(is_alike).filter(|other| other.place.is_line_of(&block.place)).nth(2).is_some()
}

#[cfg(test)]
mod tests {
    use memtrack_reader::query::{AllocationOutcome, AllocationRecord};

    use super::{LargeBlocks, findings};
    use crate::reports::capture_info::Capture;
    use crate::reports::display::DisplayOptions;
    use crate::reports::explain::{Finding, LineRows, NotInMemory};
    use crate::reports::fixture;
    use crate::reports::source::Sources;

    const MB: u64 = 1_000_000;

    /// What is found of two blocks, of these stacks, the first of which ends soon after the second was made.
    fn found(stacks: [&[(&str, &str)]; 2]) -> Vec<Finding> {
        let mut capture: Capture = fixture::of_stacks(&stacks.map(|stack| (stack, 40 * MB)));
        capture.analysis.groups.change_all(|group| group.peak = group.allocated);
        capture.show(&DisplayOptions::default()).unwrap();
        let (mut blocks, mut sources) = (LargeBlocks::default(), Sources::of(&capture.info));
        for (order, group) in (0..).zip(capture.analysis.groups.iter()) {
            let record = AllocationRecord {
                stack: group.stack,
                allocator: group.allocator,
                thread: group.thread,
                size: 40 * MB,
                order,
                time_ns: order * 1_000 * MB,
                lifetime_ns: 1_100 * MB,
                fate: AllocationOutcome::Freed { thread: group.thread, order: order + 2 },
                leaked: false,
                temporary: false,
                peak: true,
            };
            blocks.add(&capture, &record, &mut sources);
        }
        findings(&LineRows::of(&capture, NotInMemory::default()), &blocks.at_peak)
    }

    #[test]
    fn like_sizes_are_no_more_than_perhaps_a_copy() {
        let main = ("<module>", "/srv/main.py");
        let [alike] = &found([&[main, ("load", "/srv/a.py")], &[main, ("sort", "/srv/b.py")]])[..] else { panic!() };
        assert!(alike.title.contains("40.0 MB is in a second block of like size, perhaps a copy, "), "{}", alike.title);
        assert!(alike.meaning.ends_with("Only their sizes are known, not what is in them."));
        assert!(alike.weight < alike.bytes / 2 * 3, "it goes behind a line that holds much more: {alike:?}");
    }

    #[test]
    fn what_a_line_replaces_is_in_memory_twice() {
        let (main, step) = (("<module>", "/srv/main.py"), ("step", "/srv/a.py"));
        let [twice] = &found([&[main, step], &[main, step]])[..] else { panic!() };
        assert!(twice.title.contains("At the peak 40.0 MB is in memory twice, "), "{}", twice.title);
        assert!(twice.weight > twice.bytes * 2, "{twice:?}");
        let other = ("<module>", "/srv/other.py");
        let [alike] = &found([&[main, step], &[other, step]])[..] else { panic!() };
        assert!(alike.title.contains("perhaps a copy"), "another caller may make another thing: {}", alike.title);
    }
}
