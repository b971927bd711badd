//! Memory of threads that run no Python, in recordings without native stacks.
//!
//! Invariant: it is what the end of `run` and `stats` have as of threads without Python code.

use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, size_of};
use crate::reports::frameless::FramelessMemory;
use crate::units::percent;

/// Number of threads.
const MOST: usize = 3;
/// The least that is reported, and the percentage of the peak, or of what leaked.
const LEAST: u64 = 64 << 10;
const LEAST_PERCENT: u64 = 10;

/// One finding at most.
pub(super) fn findings(rows: &LineRows<'_>) -> Vec<Finding> {
    let capture = rows.capture;
    let leaked = || capture.analysis.rows(View::Leaks).filter(|row| !row.allocator.is_python_arena());
    let of_leaks = FramelessMemory::of(capture, leaked());
    let at_peak = FramelessMemory::of(capture, capture.analysis.rows(View::HighWaterMark));
    let all_leaked: Tally = leaked().map(|row| row.tally()).sum();
    let absent = rows.rows.iter().find(|row| !row.has_line()).map(|row| row.absent).unwrap_or_default();
    let views = [
        (at_peak, rows.in_memory, None),
        (of_leaks, all_leaked.bytes, Some(format!("what was live {}", capture.info.leak_moment.when()))),
    ];
    let is_much = |(held, whole, _): &(FramelessMemory, u64, Option<String>)| {
        held.sum().bytes >= LEAST.max(whole / (100 / LEAST_PERCENT)) && held.sum().bytes_range().0 > 0
    };
    let Some((held, whole, of)) = views.into_iter().find(is_much) else { return Vec::new() };
    let sum = held.sum();
    let is_reserved = absent.is_most_of(sum.bytes);
    let share = match of {
        Some(of) => format!("{} of {of}", percent(sum.bytes, whole)),
        None if is_reserved => format!("{} of {}", percent(sum.bytes, rows.peak.bytes), rows.name_of_peak()),
        None => rows.share(sum.bytes, absent.present(sum.bytes)),
    };
    let evidence = held.threads(capture).take(MOST).map(|(name, tally)| Evidence {
        text: format!("{} of thread {name}", in_blocks(tally)),
        tally,
        ..Evidence::default()
    });
    let finding = Finding {
        kind: FindingKind::Held,
        severity: Severity::Note,
        title: format!(
            "{} of {}{}: {share}",
            size_of(sum),
            held.what(),
            held.names(capture)
        ),
        bytes: sum.bytes,
        weight: absent.present(sum.bytes),
        evidence: evidence.chain(absent.evidence()).collect(),
        meaning: "No Python frame was on the stack when this was allocated, as in thread pools of libraries. Which functions, and of which \
                  library, is not known: stacks of C, C++ and Rust were not recorded."
            .into(),
        advice: "Record with native stacks; then each report names the functions.".into(),
        command: match capture.info.process.command_line.is_empty() {
            true => command(capture, "table --threads"),
            false => format!("memtrack run --native {}", capture.info.title()),
        },
    };
    vec![if is_reserved { rows.absent.reserved(finding, capture) } else { finding }]
}
