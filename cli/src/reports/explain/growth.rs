//! Memory that grows until the end of the recording.
//!
//! Invariant: what is reported was live at the moment of leaks.

use memtrack_reader::analysis::UnendingGrowth;
use memtrack_reader::origin::Whose;

use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, size_about, size_of};
use crate::reports::library_allocators;
use crate::reports::line_objects::LineObjects;
use crate::reports::source::Sources;
use crate::units::duration;

/// Maximum number of lines.
const MOST: usize = 3;
/// Smallest growth that is reported, and as a part of the peak.
const LEAST: u64 = 128 << 10;
const LEAST_PART: u64 = 100;
/// Smallest steady growth that is a warning, and as a part of the peak.
const ALARMING: u64 = 1 << 20;
const ALARMING_PART: u64 = 20;
/// In recordings shorter than this, growth is a warning only for lines that keep this percentage of what they allocate: a
/// program that fills its tables or caches until its end looks the same, and frees some of it again. Of arenas of Python's
/// allocator it is not known how much was freed again in them, nor by whom: they alone say too little.
const LONG_NS: u64 = 60_000_000_000;
const KEPT_PERCENT: u64 = 50;
/// Growth of this size weighs as much as it comes to in so many seconds: a server that was recorded for a moment has imports, which
/// stay what they are.
const AHEAD_SECONDS: u64 = 60;
/// Growth for a shorter time says nothing of a minute: a table is being filled.
const LEAST_SPAN_NS: u64 = 2_000_000_000;

/// What is in the place of a line's name.
const WITHOUT_STACK: &str = "memory without a Python frame on its stack";
/// What names of functions of such allocators begin with.
const ALLOCATORS: [&str; 4] = ["_rjem_", "je_", "_mi_", "mi_"];
const THREADS: &str = "It was allocated with no Python frame on the stack, as in thread pools of libraries.";
const KEPT: &str = "What this line allocates is kept, and nothing had been dropped when the recording ended: a leak, or a collection \
                    without a limit.";
const ADVICE: &str = "Find out who keeps these blocks: a module-level collection, a cache without a size limit, registered \
                      callbacks, or native code without a free. Limit it, or drop entries when they are no longer used.";
/// Of libraries with an allocator of their own.
const POOL: &str = "what grows may be that reserve and no leak, and more than what is in use. Which blocks lie in it, and who allocated them, \
                    is not seen.";
const ADVICE_OF_POOL: &str = "Look at what the program keeps of this library's objects, and at the figures that the library has of itself; a \
                              longer recording shows whether it stops growing.";

/// The lines that grow most.
pub(super) fn findings(rows: &LineRows<'_>, sources: &mut Sources, objects: &LineObjects) -> Vec<Finding> {
    let Some(series) = &rows.series else { return Vec::new() };
    let grows = rows.rows.iter().enumerate().zip(&series.parts).filter_map(|((number, row), live)| {
        // Imports grow while a program starts, which may be all that it does.
        let growth = UnendingGrowth::of(&series.times_ns, live).filter(|_| row.whose() != Whose::Imports)?;
        let is_much = growth.bytes >= LEAST.max(rows.in_memory / LEAST_PART);
        if !is_much {
            return None;
        }
        let unsure = rows.noise_of_growth(number, growth);
        let is_seen = growth.bytes > unsure;
        // What is only reserved takes no memory, however it grows.
        let is_kept = row.absent.present_of_leaked(row.leaked.tally.bytes) >= growth.bytes / 2;
        (is_seen && is_kept).then_some((row, growth, unsure))
    });
    let mut grows: Vec<_> = grows.collect();
    grows.sort_by_key(|(_, growth, _)| std::cmp::Reverse(growth.bytes));
    grows.truncate(MOST);
    let capture = rows.capture;
    let finding = |(row, growth, unsure): (&super::rows::LineRow, UnendingGrowth, u64)| {
        let place = row.place(row.leaked, capture, sources);
        let live = row.leaked.tally;
        let is_of_arenas = row.arenas.bytes >= live.bytes / 2;
        let keeps_most = !is_of_arenas && live.bytes >= row.allocated.tally.bytes / 100 * KEPT_PERCENT;
        let keeps = keeps_most || growth.span_ns >= LONG_NS;
        let is_large = growth.bytes >= ALARMING.max(rows.in_memory / ALARMING_PART);
        let alarming = growth.is_steady && keeps && is_large;
        let goes_ahead = is_large && !is_of_arenas && growth.span_ns >= LEAST_SPAN_NS;
        let ahead = if goes_ahead { growth.bytes_per_second().saturating_mul(AHEAD_SECONDS) } else { 0 };
        let in_arenas = match is_of_arenas {
            true => {
                ", mostly arenas of Python's allocator, which have objects of other lines, too: run --trace-python-allocators says whose"
                    .to_owned()
            }
            false if row.arenas.bytes > 0 => {
                format!(", {} of it arenas of Python's allocator, which do not count as leaked", size_of(row.arenas))
            }
            false => String::new(),
        };
        let grown = Evidence {
            text: format!(
                "{} more in {}{}; {} live {}{in_arenas}",
                size_about(growth.bytes, unsure),
                duration(growth.span_ns),
                if growth.is_steady { ", at a steady rate" } else { "" },
                in_blocks(live),
                capture.info.leak_moment.when(),
            ),
            tally: live,
            place,
            ..Evidence::default()
        };
        let place = grown.place.as_ref();
        let process = &capture.info.process;
        let is_frameless = !row.has_line() && process.python_version.is_some() && !process.native_traces;
        let name = if is_frameless { WITHOUT_STACK.to_owned() } else { row.name(capture) };
        let may_be_reserve = !row.has_line() || ALLOCATORS.iter().any(|prefix| name.starts_with(prefix));
        let own_allocator = library_allocators::named(process).filter(|_| may_be_reserve);
        let reserved = row.absent.evidence().into_iter().collect();
        let shown = place.map_or_else(String::new, |place| format!("{} ", place.filters()));
        Finding {
            kind: FindingKind::Growth,
            severity: if alarming { Severity::Warning } else { Severity::Note },
            title: title(&name, growth, unsure),
            bytes: growth.bytes,
            weight: growth.bytes.saturating_mul(if alarming { 8 } else { 2 }).max(ahead),
            evidence: [vec![grown], reserved, row.objects(objects)].concat(),
            meaning: match &own_allocator {
                Some(named) => format!(
                    "{named}, which takes memory from the system in large parts and keeps them for later: {POOL}"
                ),
                None if is_frameless => format!("{THREADS} {KEPT}"),
                None => KEPT.to_owned(),
            },
            advice: if own_allocator.is_some() { ADVICE_OF_POOL } else { ADVICE }.into(),
            command: command(capture, format!("tree --text --leaks {shown}").trim_end()),
        }
    };
    grows.into_iter().map(finding).collect()
}

/// Of less than some seconds it is not said what a second brings: a list that is built in 20 ms would grow by gigabytes.
fn title(name: &str, growth: UnendingGrowth, unsure: u64) -> String {
    if growth.span_ns < LEAST_SPAN_NS {
        let (grown, span) = (size_about(growth.bytes, unsure), duration(growth.span_ns));
        return format!("{name} grew until the recording ended, by {grown} in {span}");
    }
    let unsure = (unsure as f64 * 1e9 / growth.span_ns as f64) as u64;
    format!("{name} goes on growing, by {} a second", size_about(growth.bytes_per_second(), unsure))
}
