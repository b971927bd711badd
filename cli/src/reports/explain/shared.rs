//! Shared mappings, which no view of the heap has: who made them.
//!
//! Invariant: bytes are those of `stats`; of what may be a file on a disk it is not said that it is memory.

use memtrack_format::MapClass;

use super::{Evidence, Finding, FindingKind, Severity, command};
use crate::reports::capture_info::Capture;
use crate::reports::mappings::{MappedLine, OF_SEVERAL, bytes, is_of_several, lines};
use crate::reports::place::Place;
use crate::reports::source::Sources;
use crate::units::{percent, plural, size};

/// The lines that mapped most of it.
pub(super) fn findings(capture: &Capture, sources: &mut Sources) -> Vec<Finding> {
    let (all, lines) = (bytes(capture, MapClass::Shared), lines(capture, MapClass::Shared));
    let Some(first) = lines.first() else { return Vec::new() };
    let evidence = |line: &MappedLine| Evidence {
        text: format!(
            "{} in {}, {} of shared mappings when they were largest: {}",
            size(line.bytes),
            plural(line.count, "mapping", "mappings"),
            percent(line.bytes, all),
            line.name(capture)
        ),
        tally: Evidence::exact(line.bytes, line.count),
        place: Place::of(capture, line.stack, sources),
        ..Evidence::default()
    };
    let title = format!("{} has {} of shared mappings, which are in no peak", first.name(capture), size(first.bytes));
    let mut all_evidence: Vec<Evidence> = lines.iter().map(evidence).collect();
    if is_of_several(capture) {
        all_evidence.push(Evidence { text: format!("of several processes: {OF_SEVERAL}"), ..Evidence::default() });
    }
    vec![Finding {
        kind: FindingKind::Held,
        severity: Severity::Note,
        title,
        bytes: first.bytes,
        weight: first.bytes,
        evidence: all_evidence,
        meaning: "Shared mappings (MAP_SHARED, as of mmap.mmap(-1, n) and of multiprocessing.shared_memory) are no heap: peak, leaks and \
                  limits do not count them. They take memory where they are touched, once for all processes that share them. Of \
                  programs with a seccomp filter, and in captures of earlier versions, files on disks that are mapped so are \
                  among them."
            .into(),
        advice: "Unmap it as soon as it is not used. If it has no file and no other process is to see it, it can be private, and counts \
                 as heap then: mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)."
            .into(),
        command: command(capture, "stats"),
    }]
}
