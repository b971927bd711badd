//! `explain`: what a capture says about its program's memory, as findings in the order of their importance.
//!
//! A finding states figures of the capture, the stack in own code that they belong to, what they mean, what may be done,
//! and the command that shows more. Invariant: each figure is that of another report of the same capture; nothing is
//! guessed from names.

mod churn;
mod copies;
mod growth;
mod held;
mod imports;
mod killed;
mod leaked;
mod native_threads;
mod not_in_memory;
mod not_seen;
mod resident;
mod rows;
mod shared;
mod tiny;
mod types;
mod write;

use std::cmp::Reverse;
use std::path::Path;

use memtrack_reader::analysis::Tally;

use self::leaked::Leaks;
use self::not_in_memory::NotInMemory;
use super::place::Place;
pub(crate) use copies::{LargeBlocks, least_copy};
pub(crate) use rows::LineRows;

use super::capture_info::{Capture, quoted_path};
use super::estimates::RangedTally;
use super::resident::ResidentReport;
use super::source::Sources;
use crate::object_growth::GrowingType;
use crate::reports::line_objects::LineObjects;
use crate::units::size_within;

/// Number of moments at which live bytes of each line are known.
pub(crate) const MOMENTS: u32 = 128;

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FindingKind {
    /// Memory that grows until the end.
    Growth,
    /// Memory that was not given back, however it grew.
    Leaked,
    /// Memory that is live at the peak.
    Held,
    /// Two blocks of like size at the peak.
    Copy,
    /// Memory that is allocated and freed again and again.
    Churn,
    /// Resident pages without a live block.
    Retained,
    /// Resident pages with few live blocks.
    Pinned,
    /// Memory that modules need when they are imported.
    Imports,
    /// Many small blocks.
    Tiny,
    /// The program was ended by SIGKILL, or allocations failed.
    Killed,
}

impl FindingKind {
    fn name(self) -> &'static str {
        match self {
            Self::Growth => "growth",
            Self::Leaked => "leaked",
            Self::Held => "held",
            Self::Copy => "copy",
            Self::Churn => "churn",
            Self::Retained => "retained",
            Self::Pinned => "pinned",
            Self::Imports => "imports",
            Self::Tiny => "tiny",
            Self::Killed => "killed",
        }
    }
}

/// Whether a finding is normal for many programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Note,
    Warning,
}

/// One finding.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    kind: FindingKind,
    severity: Severity,
    title: String,
    /// The bytes that it is about.
    bytes: u64,
    /// Its importance, for the order.
    weight: u64,
    evidence: Vec<Evidence>,
    meaning: String,
    advice: String,
    command: String,
}

/// Figures of the capture, and the place that they belong to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    text: String,
    /// Of a process: its command line, which follows the text; as text it is cut.
    command_line: Option<String>,
    /// Bytes and blocks, with how exact they are.
    tally: Tally,
    place: Option<Place>,
}

impl Evidence {
    /// So many bytes and blocks, exactly.
    fn exact(bytes: u64, count: u64) -> Tally {
        Tally { bytes, count, ..Tally::default() }
    }
}

/// The findings about a capture.
#[derive(Debug)]
pub(crate) struct Explanation {
    findings: Vec<Finding>,
    not_seen: Vec<String>,
}

impl Explanation {
    /// All findings about a capture, which must be folded; `blocks` are its large blocks, `resident`
    /// is resident memory at the moment when most of it had no live block, `types` are those that grow, `objects` those in the blocks
    /// of lines.
    pub(crate) fn of(
        capture: &Capture,
        blocks: &LargeBlocks,
        resident: Option<&ResidentReport<'_>>,
        types: &[GrowingType],
        objects: &LineObjects,
    ) -> Self {
        let rows = LineRows::of(capture, NotInMemory::of(resident));
        let mut sources = Sources::of(&capture.info);
        let growing = growth::findings(&rows, &mut sources, objects);
        let tiny = tiny::findings(&rows, &mut sources);
        let killed = killed::findings(&rows, blocks.last.as_ref(), &mut sources);
        let leaks = Leaks::of(&rows, !killed.is_empty());
        let named = [&growing[..], &tiny[..]].concat();
        let held = held::findings((&rows, leaks.as_ref()), &mut sources, objects, &named);
        let leaked = leaks.map(|leaks| leaks.findings(&mut sources, objects, &growing, &held));
        let mut findings = [
            killed,
            copies::findings(&rows, &blocks.at_peak),
            held,
            leaked.unwrap_or_default(),
            shared::findings(capture, &mut sources),
            growing,
            tiny,
            churn::findings(&rows, &mut sources),
            imports::findings(&rows, &mut sources),
            native_threads::findings(&rows),
            resident.map(|report| resident::findings(capture, report)).unwrap_or_default(),
            types::findings(capture, types),
        ]
        .concat();
        findings.sort_by_key(|finding| Reverse(finding.weight));
        Self { findings, not_seen: not_seen::texts(capture, blocks.has_accounts) }
    }
}

/// `12.4 MB`, of samples with the interval.
fn size_of(tally: Tally) -> String {
    RangedTally::from(tally).size()
}

/// `12.4 MB in 120 blocks`, of samples with the intervals.
fn in_blocks(tally: Tally) -> String {
    let count = RangedTally::from(tally).number();
    format!("{} in {count} {}", size_of(tally), if tally.count == 1 { "block" } else { "blocks" })
}

/// How many bytes more or less may be there than are known of; 0 of what is exact.
fn noise(tally: Tally) -> u64 {
    let (low, high) = tally.bytes_range();
    tally.bytes.saturating_sub(low).max(high.saturating_sub(tally.bytes))
}

/// So many bytes, give or take this many.
fn size_about(bytes: u64, noise: u64) -> String {
    size_within(bytes, (bytes.saturating_sub(noise), bytes.saturating_add(noise)))
}

/// Captures that are named in a command at most.
const MOST_NAMED: usize = 16;

/// The command of a report about this capture, or about all that it is made of.
fn command(capture: &Capture, report: &str) -> String {
    let mut files: Vec<&str> = capture.info.processes.iter().map(|process| whole_file(&process.file)).collect();
    files.dedup();
    if files.len() > MOST_NAMED {
        return format!("memtrack {report} CAPTURE…");
    }
    if files.is_empty() {
        return format!("memtrack {report} {}", quoted_path(&capture.info.file));
    }
    let named: Vec<String> = files.iter().map(|file| quoted_path(Path::new(file))).collect();
    format!("memtrack {report} {}", named.join(" "))
}

/// The file in which a capture of a merged one is, as `all.bin` of `all.bin#2`; any other as it is.
fn whole_file(file: &str) -> &str {
    match file.rsplit_once('#') {
        Some((whole, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) && !Path::new(file).exists() => whole,
        _ => file,
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::resident::AccountCause;
    use memtrack_reader::analysis::{Sum, Tally};
    use memtrack_reader::resident::{ResidentBreakdown, UntouchedBlocks};

    use super::{Explanation, Finding, FindingKind, LargeBlocks, LineObjects, ResidentReport};
    use crate::reports::capture_info::Capture;
    use crate::reports::display::DisplayOptions;
    use crate::reports::fixture;
    use crate::reports::resident_moment::ResidentMoment;
    use crate::terminal::TextFormat;

    const WIDE: TextFormat = TextFormat { width: Some(100), color: false };

    fn explained() -> Explanation {
        let mut capture = fixture::leaking();
        capture.show(&DisplayOptions::default()).unwrap();
        Explanation::of(&capture, &LargeBlocks::default(), None, &[], &LineObjects::default())
    }

    #[test]
    fn text_and_json_are_as_the_golden_files() {
        let mut text = Vec::new();
        explained().text(4000, WIDE, &mut text).unwrap();
        fixture::compare("explain.txt", &text);
        fixture::compare("explain.json", format!("{:#}\n", explained().json(100_000)).as_bytes());
    }

    #[test]
    fn a_budget_leaves_out_whole_findings_and_says_so() {
        let mut text = Vec::new();
        explained().text(1, WIDE, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("1. ") && !text.contains("\n2. "), "{text}");
        assert!(text.contains("further finding left out") && text.contains("Not seen"), "{text}");
        let json = explained().json(1);
        assert_eq!((json["findings"].as_array().map(Vec::len), json["left_out"].as_u64()), (Some(1), Some(1)));
    }

    #[test]
    fn nothing_but_a_command_is_wider_than_the_terminal() {
        let mut text = Vec::new();
        explained().text(4000, TextFormat { width: Some(60), ..WIDE }, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 60).collect();
        assert!(wide.iter().all(|line| line.starts_with("   more   memtrack ")), "{wide:?}");
        let second = text.lines().nth(1).unwrap_or_default();
        assert!(second.starts_with("   ") && !second.starts_with("   - "), "the title is wrapped: {text}");
    }

    #[test]
    fn nothing_to_say_is_said() {
        let mut text = Vec::new();
        Explanation::of(&fixture::empty(), &LargeBlocks::default(), None, &[], &LineObjects::default())
            .text(4000, WIDE, &mut text)
            .unwrap();
        assert!(text.starts_with(b"Nothing stands out."));
    }

    fn findings_of(mut capture: Capture, kind: FindingKind, resident: Option<&ResidentReport<'_>>) -> Vec<Finding> {
        capture.show(&DisplayOptions::default()).unwrap();
        let explanation = Explanation::of(&capture, &LargeBlocks::default(), resident, &[], &LineObjects::default());
        explanation.findings.into_iter().filter(|finding| finding.kind == kind).collect()
    }

    #[test]
    fn what_native_threads_hold_is_not_put_down_to_anybody() {
        let found = |bytes: u64| {
            let mut capture = fixture::capture();
            capture.analysis.groups.change(2, |group| group.peak.bytes = bytes);
            let held = findings_of(capture, FindingKind::Held, None);
            held.into_iter().find(|finding| finding.title.contains("without Python frames"))
        };
        let finding = found(3_000_000).unwrap();
        assert_eq!(finding.title, "3.00 MB of native code, without Python frames (pool-0): 66.7 % of the peak");
        assert_eq!(finding.evidence[0].text, "3.00 MB in 1 block of thread pool-0 (107)");
        assert!(finding.command.starts_with("memtrack run --native "), "{}", finding.command);
        assert!(found(60_000).is_none());
    }

    #[test]
    fn a_line_that_holds_much_and_allocates_many_times_that_is_not_said_to_hold_little() {
        let churning = |held: u64| {
            let mut capture = fixture::capture();
            let allocated = Sum { bytes: 2_000_000_000, count: 4_000, ..Sum::default() };
            let peak = Sum { bytes: held, count: 3, ..Sum::default() };
            capture.analysis.groups.change(0, |group| (group.allocated, group.peak) = (allocated, peak));
            capture.analysis.totals.allocations = Tally { bytes: 2_000_000_000, count: 4_100, ..Tally::default() };
            let [found] = &findings_of(capture, FindingKind::Churn, None)[..] else { panic!("one line churns") };
            found.meaning.clone()
        };
        assert!(churning(1_500_000).starts_with("Apart from what it holds, allocating and freeing takes time"));
        assert!(churning(1_000).starts_with("It holds little memory, but allocating and freeing takes time"));
    }

    /// As of an allocator that reserves a gigabyte, of which little was touched.
    #[test]
    fn what_is_reserved_and_not_in_memory_is_no_culprit() {
        let (reserved, kept) = (1_200_000_000, 400_000_000);
        let capture = || {
            let mut capture = fixture::capture();
            for (group, bytes) in [(0, reserved), (1, kept)] {
                capture.analysis.groups.change(group, |group| group.peak.bytes = bytes);
            }
            capture
        };
        let held = |untouched: u64| {
            let mut tables = capture();
            tables.fold_beside(&DisplayOptions::default()).unwrap();
            let stack = tables.analysis.groups.iter().next().unwrap().stack;
            let blocks =
                UntouchedBlocks { stack, blocks: 1, bytes: reserved, untouched, unseen: 0, at_last: untouched };
            let mut breakdown = ResidentBreakdown::default();
            breakdown.untouched_blocks.push(blocks);
            let (time_ns, cause) = (51_000_000, AccountCause::Growth);
            let moment = ResidentMoment { time_ns, cause, breakdown, threads: 1, knows_all: true };
            findings_of(capture(), FindingKind::Held, Some(&ResidentReport::new(&tables, &moment)))
        };
        let [culprit, other] = &held(1_100_000_000)[..] else { panic!("two findings") };
        assert!(culprit.title.starts_with("work at ") && culprit.advice.contains("in parts"), "{culprit:?}");
        assert!(other.title.starts_with("Reader.read at ") && other.title.ends_with(", most of it not in memory"));
        assert!(!other.advice.contains("in parts") && other.command == "memtrack resident --at 51ms capture.bin");
        let told = &other.evidence[1].text;
        assert_eq!(told, "1.10 GB of a block of 1.20 GB was in memory at no account: never touched, or given back");
        assert!(other.meaning.ends_with("where it was touched."), "{}", other.meaning);
        // Where most of it is in memory, it is the culprit, and what is not is told.
        let [culprit] = &held(200_000_000)[..] else { panic!("one finding") };
        assert!(culprit.title.starts_with("Reader.read at ") && culprit.title.ends_with("after 3.00 s"), "{culprit:?}");
        assert!(culprit.evidence[1].text.contains("200 MB of a block"), "{culprit:?}");
    }

    /// A gigabyte that a line reserves, beside what another one holds; `at` is what is reserved, `unseen` what may be in memory of it.
    fn beside_a_reserve(capture: &Capture, (at, unseen): (usize, u64), blocks: &LargeBlocks) -> Vec<Finding> {
        let group = capture.analysis.groups.iter().nth(at).unwrap();
        let (bytes, absent) = (group.peak.bytes, group.peak.bytes - unseen);
        let mut breakdown = ResidentBreakdown::default();
        breakdown.untouched_blocks.push(UntouchedBlocks {
            stack: group.stack,
            blocks: 1,
            bytes,
            untouched: absent,
            unseen,
            at_last: bytes,
        });
        let (time_ns, cause) = (51_000_000, AccountCause::Growth);
        let moment = ResidentMoment { time_ns, cause, breakdown, threads: 1, knows_all: true };
        let report = ResidentReport::new(capture, &moment);
        Explanation::of(capture, blocks, Some(&report), &[], &LineObjects::default()).findings
    }

    #[test]
    fn lines_are_judged_by_what_is_in_memory() {
        let (reserve, many, import) = (("reserve", "/srv/a.py"), ("index", "/srv/b.py"), ("load", "/srv/c.py"));
        let find = ("_find_and_load", "<frozen importlib._bootstrap>");
        let numpy = ("<module>", "/v/site-packages/numpy/__init__.py");
        let mut capture = fixture::of_stacks(&[
            (&[reserve], 1_000_000_000),
            (&[many], 16_000_000),
            (&[import, find, numpy], 24_000_000),
        ]);
        capture.analysis.groups.change(1, |group| group.allocated.count = 200_000);
        capture.analysis.groups.change_all(|group| group.peak = group.allocated);
        capture.show(&DisplayOptions::default()).unwrap();
        let titles = |unseen| {
            let found = beside_a_reserve(&capture, (0, unseen), &LargeBlocks::default());
            found.into_iter().map(|finding| finding.title).collect::<Vec<_>>()
        };
        let told = titles(0);
        let has = |told: &[String], title: &str| told.iter().any(|one| one.contains(title));
        assert!(has(&told, "index at /srv/b.py:7 holds 200,000 small blocks"), "{told:?}");
        assert!(has(&told, "Imports hold 60.0 % of what is in memory of the peak"), "{told:?}");
        assert!(has(&told, "reserve at /srv/a.py:7 holds 96.2 % of the peak of 1.04 GB"), "{told:?}");
        // What may be in memory of it counts as such.
        assert!(!has(&titles(400_000_000), "small blocks"));
        let at_least = beside_a_reserve(&capture, (0, 400_000_000), &LargeBlocks::default());
        let texts = at_least.iter().flat_map(|finding| &finding.evidence).map(|evidence| &evidence.text);
        let text = "at least 600 MB of a block of 1.00 GB was in memory at no account: never touched, or given back";
        assert!(texts.clone().any(|one| one == text), "{:?}", texts.collect::<Vec<_>>());
    }

    /// As of a library's thread that maps buffers and does not touch them.
    #[test]
    fn what_native_threads_only_reserve_is_no_culprit() {
        let mut capture = fixture::capture();
        capture.analysis.groups.change(2, |group| group.peak.bytes = 500_000_000);
        capture.show(&DisplayOptions::default()).unwrap();
        let found = beside_a_reserve(&capture, (2, 0), &LargeBlocks::default());
        let is_of_thread = |finding: &&Finding| finding.title.contains("(pool-0)");
        let thread = found.iter().find(is_of_thread).unwrap();
        assert!(thread.title.ends_with(" of the peak, most of it not in memory"), "{}", thread.title);
        assert_eq!((thread.weight, thread.command.as_str()), (0, "memtrack resident --at 51ms capture.bin"));
        assert!(!found.first().is_some_and(|first| is_of_thread(&first)), "{found:?}");
    }

    #[test]
    fn pages_that_the_allocator_keeps_are_not_seen_only_without_accounts() {
        let not_seen = |has_accounts| {
            let blocks = LargeBlocks { has_accounts, ..LargeBlocks::default() };
            let found = Explanation::of(&fixture::leaking(), &blocks, None, &[], &LineObjects::default());
            found.not_seen.iter().any(|text| text.starts_with("pages that the allocator keeps"))
        };
        assert_eq!([false, true].map(not_seen), [true, false]);
    }

    /// As of a line that imports numpy, whose library reserves buffers, and fills an array.
    #[test]
    fn what_a_line_imports_is_not_what_it_allocates() {
        let find = ("_find_and_load", "<frozen importlib._bootstrap>");
        let line = ("table", "/srv/lazy.py");
        let numpy = ("<module>", "/v/site-packages/numpy/__init__.py");
        let mut capture = fixture::of_stacks(&[(&[line], 40_000_000), (&[line, find, numpy], 87_000_000)]);
        capture.analysis.groups.change_all(|group| group.peak = group.allocated);
        capture.show(&DisplayOptions::default()).unwrap();
        let stack = capture.analysis.groups.iter().nth(1).unwrap().stack;
        let mut breakdown = ResidentBreakdown::default();
        breakdown.untouched_blocks.push(UntouchedBlocks {
            stack,
            blocks: 2,
            bytes: 67_000_000,
            untouched: 67_000_000,
            unseen: 0,
            at_last: 67_000_000,
        });
        let (time_ns, cause) = (51_000_000, AccountCause::Growth);
        let moment = ResidentMoment { time_ns, cause, breakdown, threads: 1, knows_all: true };
        let report = ResidentReport::new(&capture, &moment);
        let explanation =
            Explanation::of(&capture, &LargeBlocks::default(), Some(&report), &[], &LineObjects::default());
        let of = |kind| explanation.findings.iter().find(|finding| finding.kind == kind).unwrap();
        let (held, imports) = (of(FindingKind::Held), of(FindingKind::Imports));
        assert!(held.title.starts_with("table at ") && !held.title.contains("not in memory"), "{}", held.title);
        assert!(held.evidence.iter().all(|evidence| !evidence.text.contains("not in memory")), "{held:?}");
        assert!(imports.evidence[1].text.contains("67.0 MB of 2 blocks of 67.0 MB in all"), "{imports:?}");
    }
}
