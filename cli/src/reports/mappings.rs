//! Who made the mappings that are no heap, and so stand in no view: shared memory, mappings of files, reserved address space.
//!
//! Invariant: bytes are those at the moment when the mappings of their class were largest, and add up to what `stats` says of it.

use std::cmp::Reverse;

use memtrack_format::MapClass;
use memtrack_reader::StackId;
use memtrack_reader::origin::Whose;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::capture_info::Capture;
use super::own_lines::{OwnLineKey, label, line_of};
use crate::units::size;

/// A class is told of from these bytes and this percentage of the heap's peak on.
const LEAST: u64 = 1_000_000;
const LEAST_PERCENT: u64 = 10;
/// Number of lines that are named, and the percentage of their class that each has at least.
const MOST: usize = 3;

/// What is said of sums over processes.
pub(crate) const OF_SEVERAL: &str = "sum of each process's mappings; what they share is in memory once";

/// The classes, with what they are called.
const CLASSES: [(MapClass, &str); 3] =
    [(MapClass::Shared, "shared"), (MapClass::File, "file-backed"), (MapClass::Reserved, "reserved")];

/// What a line of code has mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedLine {
    key: OwnLineKey,
    /// The stack that mapped most.
    pub(crate) stack: StackId,
    heaviest: u64,
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

/// The lines that mapped most of a class, own code first; none where the class is not worth it, or a part of the capture is
/// selected.
pub(crate) fn lines(capture: &Capture, class: MapClass) -> Vec<MappedLine> {
    let all = bytes(capture, class);
    if capture.info.narrowed || all < LEAST.max(capture.analysis.totals.peak.bytes / (100 / LEAST_PERCENT)) {
        return Vec::new();
    }
    let mut sums: FxHashMap<OwnLineKey, MappedLine> = FxHashMap::default();
    for group in capture.analysis.mapped.of_class(class) {
        let key = line_of(capture, group.stack);
        let new = MappedLine { key, stack: group.stack, heaviest: 0, bytes: 0, count: 0 };
        let line = sums.entry(key).or_insert(new);
        (line.bytes, line.count) = (line.bytes.saturating_add(group.bytes), line.count.saturating_add(group.count));
        if group.bytes > line.heaviest {
            (line.heaviest, line.stack) = (group.bytes, group.stack);
        }
    }
    let mut lines: Vec<MappedLine> = sums.into_values().collect();
    lines.retain(|line| line.key.line().is_some() && line.bytes >= all / (100 / LEAST_PERCENT));
    lines.sort_by_key(|line| (Reverse((line.is_own(), line.bytes)), line.stack));
    lines.truncate(MOST);
    lines
}

/// The most bytes that the mappings of a class had at one moment.
pub(crate) fn bytes(capture: &Capture, class: MapClass) -> u64 {
    let mappings = &capture.analysis.totals.mappings;
    match class {
        MapClass::Heap | MapClass::Inherited => mappings.heap.peak_bytes,
        MapClass::Reserved => mappings.reserved.peak_bytes,
        MapClass::File => mappings.file.peak_bytes,
        MapClass::Shared => mappings.shared.peak_bytes,
    }
}

impl MappedLine {
    fn is_own(&self) -> bool {
        self.key.whose() == Whose::Own
    }

    /// The line as text.
    pub(crate) fn name(&self, capture: &Capture) -> String {
        label(capture, self.stack).whole().words()
    }

    fn json(&self, capture: &Capture, class: MapClass) -> Value {
        let frame = self.key.line();
        let name = |name| Some(capture.frames.name(name)).filter(|name| !name.is_empty());
        json!({
            "class": class.name(),
            "function": frame.and_then(|frame| name(frame.function)),
            "file": frame.and_then(|frame| name(frame.file)),
            "line": frame.map(|frame| frame.line).filter(|line| *line > 0),
            "bytes": self.bytes,
            "count": self.count,
        })
    }
}

/// For `stats`: who mapped what, by class.
pub(crate) fn texts(capture: &Capture) -> Vec<(&'static str, String)> {
    let text = |(class, name)| Some((name, named(capture, &lines(capture, class))?));
    CLASSES.into_iter().filter_map(text).collect()
}

/// For the end of `run`: what own code mapped, which is in none of the figures above. Address space that is only reserved is no memory.
pub(crate) fn note(capture: &Capture) -> Option<String> {
    let text = |(class, what): (MapClass, &str)| {
        let lines = lines(capture, class);
        let is_told = lines.first().is_some_and(MappedLine::is_own);
        let named = named(capture, &lines).filter(|_| is_told)?;
        Some(format!("{} of {what}, not counted above: {named}", size(bytes(capture, class))))
    };
    let told = [(MapClass::Shared, "shared mappings"), (MapClass::File, "mappings of files")];
    let texts: Vec<String> = told.into_iter().filter_map(text).collect();
    let several = if is_of_several(capture) { format!(" ({OF_SEVERAL})") } else { String::new() };
    (!texts.is_empty()).then(|| texts.join("; ") + &several)
}

/// Whether the figures are sums of those of several processes.
pub(crate) fn is_of_several(capture: &Capture) -> bool {
    capture.info.combined_peaks.is_some()
}

/// `80.0 MB by load at app.py:3, 20.0 MB by main at app.py:9`.
fn named(capture: &Capture, lines: &[MappedLine]) -> Option<String> {
    let texts: Vec<String> =
        lines.iter().map(|line| format!("{} by {}", size(line.bytes), line.name(capture))).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// The lines of all classes.
pub(crate) fn json(capture: &Capture) -> Value {
    let of_class = |(class, _)| lines(capture, class).into_iter().map(move |line| line.json(capture, class));
    CLASSES.into_iter().flat_map(of_class).collect()
}

#[cfg(test)]
mod tests {
    use memtrack_format::{Allocator, MapClass};
    use memtrack_reader::analysis::{ClassTotals, MappedGroup};
    use memtrack_reader::{StackId, ThreadId};

    use super::{json, lines, note, texts};
    use crate::reports::capture_info::Capture;
    use crate::reports::display::DisplayOptions;
    use crate::reports::fixture;

    /// Shared mappings of all stacks of the fixture, each larger than the one before.
    fn with_shared(unit: u64) -> Capture {
        let mut capture = fixture::capture();
        let stacks: Vec<StackId> = capture.analysis.groups.iter().map(|group| group.stack).collect();
        let (class, allocator, thread) = (MapClass::Shared, Allocator::Mmap, ThreadId(0));
        let group = |(number, stack)| MappedGroup { class, stack, allocator, thread, bytes: number * unit, count: 1 };
        capture.analysis.mapped = (1..).zip(stacks).map(group).collect();
        let bytes = capture.analysis.mapped.iter().map(|group| group.bytes).sum();
        capture.analysis.totals.mappings.shared = ClassTotals { peak_bytes: bytes, ..ClassTotals::default() };
        capture.show(&DisplayOptions::default()).unwrap();
        capture
    }

    #[test]
    fn lines_of_own_code_come_first_and_small_classes_are_not_told_of() {
        let capture = with_shared(40_000_000);
        let found = lines(&capture, MapClass::Shared);
        assert!(found[0].is_own() && found.iter().skip(1).all(|line| !line.is_own() || line.bytes <= found[0].bytes));
        let (note, texts) = (note(&capture).unwrap(), texts(&capture));
        assert!(note.contains("of shared mappings, not counted above: ") && note.contains(&found[0].name(&capture)));
        assert!(texts.len() == 1 && texts[0].0 == "shared" && note.ends_with(&texts[0].1), "{texts:?}");
        assert_eq!(json(&capture)[0]["bytes"], found[0].bytes);
        let small = with_shared(1000);
        assert!(lines(&small, MapClass::Shared).is_empty() && super::note(&small).is_none());
    }
}
