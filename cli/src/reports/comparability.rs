//! Whether the figures of two captures can be compared: what one recording has and the other has not.
//!
//! Invariant: two recordings of the same kind give no warning.

use super::capture_info::Capture;
use super::stats;

/// Why the figures of two captures may not be comparable, one sentence each.
pub(crate) fn comparability_warnings(base: &Capture, new: &Capture) -> Vec<String> {
    let mut notes = Vec::new();
    let mut differ = |what: &str, base: bool, new: bool| {
        if base != new {
            let side = if new { "new capture" } else { "base" };
            notes.push(format!("only the {side} {what}; affected numbers are not comparable"));
        }
    };
    differ(
        "traces Python's own allocators",
        stats::traces_python_allocators(base),
        stats::traces_python_allocators(new),
    );
    let native = |capture: &Capture| capture.info.process.native_traces;
    differ("has native call stacks", native(base), native(new));
    differ("is a complete recording", base.info.complete, new.info.complete);
    differ("has damaged parts", base.info.lost_blocks > 0, new.info.lost_blocks > 0);
    let unframed = |capture: &Capture| capture.info.process.python_note.is_some();
    differ("has no Python frames", unframed(base), unframed(new));
    let intervals =
        [base, new].map(|capture| capture.info.process.snapshot_interval.map_or(0, |interval| interval.as_millis()));
    if intervals[0] != intervals[1] {
        let [base, new] = intervals;
        notes.push(format!(
            "snapshot intervals differ (base: {base} ms, new: {new} ms): resident memory is not comparable"
        ));
    }
    let versions = [base.info.python_version(), new.info.python_version()];
    if versions[0] != versions[1] {
        let [base, new] = versions.map(|version| version.unwrap_or_else(|| "none".into()));
        notes.push(format!(
            "the interpreters differ (base: {base}, new: {new}): functions of its library may not match"
        ));
    }
    let allocators = [base.info.python_allocator(), new.info.python_allocator()];
    if allocators[0] != allocators[1] {
        let [base, new] = allocators.map(|name| name.unwrap_or_else(|| "none".into()));
        notes.push(format!(
            "Python's allocators differ (base: {base}, new: {new}): sizes of objects are not comparable"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::comparability_warnings;
    use crate::reports::fixture;

    #[test]
    fn captures_that_hardly_compare_are_named() {
        let text = comparability_warnings(&fixture::empty(), &fixture::capture()).join("\n");
        assert!(text.contains("base: none, new: 3.11.7") && text.contains("new: pymalloc"), "{text}");
        let mut native = fixture::capture();
        native.info.process.native_traces = true;
        let text = comparability_warnings(&fixture::capture(), &native).join("\n");
        assert_eq!(text, "only the new capture has native call stacks; affected numbers are not comparable");
    }
}
