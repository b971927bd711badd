//! Memory that stays resident although the program has freed it: what allocators keep, and pages that few blocks keep.
//!
//! Invariant: the figures are those of `resident` at the moment that the command names.

use memtrack_reader::resident::MemoryClass;

use super::{Evidence, Finding, FindingKind, Severity, command};
use crate::reports::capture_info::Capture;
use crate::reports::resident::{PinnedRow, ResidentMoment, ResidentReport};
use crate::units::{count, duration, percent, size};

/// Parts of resident memory, in percent, and bytes, from which a finding is made.
const LEAST_PERCENT: u64 = 10;
const LEAST_RETAINED: u64 = 8 << 20;
const LEAST_PINNED: u64 = 1 << 20;
/// The same for warnings, which also need that much was kept for this part of the time, in percent.
const ALARMING_PERCENT: u64 = 50;
const ALARMING: u64 = 64 << 20;
const ALARMING_TIME: u64 = 50;
/// Maximum number of pieces of evidence.
const LISTED: usize = 3;

/// Both findings; `capture` is the whole one, `report` that of the moment at which most is kept.
pub(super) fn findings(capture: &Capture, report: &ResidentReport<'_>) -> Vec<Finding> {
    retained(capture, report).into_iter().chain(pinned(capture, report)).collect()
}

fn retained(capture: &Capture, report: &ResidentReport<'_>) -> Option<Finding> {
    let memory = report.memory();
    let (found, total) = (&memory.breakdown, memory.program_bytes());
    let bytes = found.bytes(MemoryClass::Retained) + found.bytes(MemoryClass::PythonFree);
    if bytes < LEAST_RETAINED.max(total / 100 * LEAST_PERCENT) {
        return None;
    }
    let advice = memory.advice(capture.info.process.python_version.is_some());
    let advice = advice.iter().take(LISTED).map(|one| format!("{}: {}", size(one.bytes), one.text));
    let time_share = time_share(capture, total.saturating_sub(found.bytes(MemoryClass::Live)));
    let is_alarming = bytes >= ALARMING.max(total / 100 * ALARMING_PERCENT) && time_share >= ALARMING_TIME;
    // What is kept for a short time, as most is before the end of a program, matters little.
    let weight =
        if is_alarming { bytes.saturating_mul(4) } else { bytes / ALARMING_TIME * time_share.min(ALARMING_TIME) };
    let mut evidence = vec![Evidence {
        text: format!(
            "{} after the start, {} of resident memory: {}",
            duration(memory.time_ns),
            percent(bytes, total),
            report.sentence()
        ),
        tally: Evidence::exact(bytes, 0),
        ..Evidence::default()
    }];
    evidence.extend(report.pinned().first().map(|row| evidence_of(row, memory)));
    Some(Finding {
        kind: FindingKind::Retained,
        severity: if is_alarming { Severity::Warning } else { Severity::Note },
        title: format!("{} stays resident without a live block", size(bytes)),
        bytes,
        weight,
        evidence,
        meaning: "The program has freed this memory, and its allocator keeps the pages for later blocks: the process is larger than \
                  what it uses."
            .into(),
        advice: advice.collect::<Vec<_>>().join("; "),
        command: at_moment(capture, memory, ""),
    })
}

fn pinned(capture: &Capture, report: &ResidentReport<'_>) -> Option<Finding> {
    let memory = report.memory();
    let total = memory.program_bytes();
    let gain = |row: &PinnedRow| row.pages.pinned_bytes - row.pages.live_bytes;
    let first = report.pinned().first()?;
    let bytes: u64 = report.pinned().iter().map(gain).sum();
    // Pages that are mostly live are of use.
    let is_few = first.pages.live_bytes < first.pages.pinned_bytes / 4;
    if !is_few || gain(first) < LEAST_PINNED.max(total / 100 * LEAST_PERCENT) {
        return None;
    }
    let place = first.place.clone();
    Some(Finding {
        kind: FindingKind::Pinned,
        severity: Severity::Note,
        title: format!(
            "{} keeps {} resident with {} of live blocks",
            place.as_ref().map_or("code without a stack", |place| place.name()),
            size(first.pages.pinned_bytes),
            size(first.pages.live_bytes)
        ),
        bytes,
        weight: bytes.saturating_mul(3),
        evidence: report.pinned().iter().take(LISTED).map(|row| evidence_of(row, memory)).collect(),
        meaning: "A page stays as long as one block on it lives: these blocks lie scattered between others that were freed.".into(),
        advice: "Make long-lived small objects before the short-lived ones or in one go (copy them into one array or table at the \
                 end), or drop them."
            .into(),
        command: at_moment(capture, memory, " --pinned"),
    })
}

fn evidence_of(row: &PinnedRow, memory: &ResidentMoment) -> Evidence {
    let pages = row.pages;
    Evidence {
        text: format!(
            "{} of pages, {} of resident memory, with {} blocks of {} in all",
            size(pages.pinned_bytes),
            percent(pages.pinned_bytes, memory.program_bytes()),
            count(pages.blocks),
            size(pages.live_bytes)
        ),
        tally: Evidence::exact(pages.pinned_bytes, pages.blocks),
        place: row.place.clone(),
        ..Evidence::default()
    }
}

/// The command that shows the same moment.
pub(super) fn at_moment(capture: &Capture, memory: &ResidentMoment, more: &str) -> String {
    command(capture, &format!("resident --at {}ms{more}", memory.time_ns.div_ceil(1_000_000)))
}

/// For which part of the time, in percent, resident memory exceeded live blocks by almost as much as at this moment. (Code and
/// data of files do so from the beginning on, so a ratio would not tell.)
fn time_share(capture: &Capture, at_the_moment: u64) -> u64 {
    let least = at_the_moment / 4 * 3;
    let (mut large, mut whole) = (0_u64, 0_u64);
    for pair in capture.analysis.snapshots.windows(2) {
        let time = pair[1].time_ns.saturating_sub(pair[0].time_ns);
        whole += time;
        large += if pair[0].rss_bytes.saturating_sub(pair[0].heap_bytes) >= least { time } else { 0 };
    }
    large.saturating_mul(100).checked_div(whole).unwrap_or(0)
}
