//! Lines with much of what was never given back, however it grew: all at once, or little by little.
//!
//! Invariant: bytes and shares are those of `table --leaks`.

use memtrack_reader::analysis::Tally;
use memtrack_reader::origin::Whose;

use super::rows::LineRow;
use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, size_of};
use crate::reports::leaked::LeakMoment;
use crate::reports::line_objects::LineObjects;
use crate::reports::source::Sources;
use crate::units::percent;

/// Number of lines.
const MOST: usize = 3;
/// A line is named from these bytes on, this percentage of what leaked, and this one of the peak.
const LEAST: u64 = 1 << 20;
const LEAST_PERCENT: u64 = 20;
const LEAST_PERCENT_OF_PEAK: u64 = 5;

/// One finding, if lines have much of what leaked that no other finding says to grow.
pub(super) fn findings(
    rows: &LineRows<'_>,
    sources: &mut Sources,
    objects: &LineObjects,
    growing: &[Finding],
) -> Vec<Finding> {
    let capture = rows.capture;
    let when = capture.info.leak_moment;
    // While a program runs, what is live may yet be given back.
    if matches!(when, LeakMoment::Snapshot | LeakMoment::SoFar) {
        return Vec::new();
    }
    // Imports stay, and what lies in arenas is not known.
    let counted = || rows.rows.iter().filter(|row| row.whose() != Whose::Imports);
    let whole: Tally = counted().map(LineRow::leaked).sum();
    let of_leaked = whole.bytes / (100 / LEAST_PERCENT);
    let least = LEAST.max(of_leaked).max(rows.peak.bytes / (100 / LEAST_PERCENT_OF_PEAK));
    let is_much = |row: &&LineRow| {
        let leaked = row.leaked();
        row.has_line() && leaked.bytes >= least && leaked.bytes_range().0 > 0 && !row.is_named_by(capture, growing)
    };
    let mut lines: Vec<&LineRow> = counted().filter(is_much).collect();
    lines.sort_by_key(|row| std::cmp::Reverse((row.whose() == Whose::Own, row.leaked().bytes)));
    lines.truncate(MOST);
    let Some(first) = lines.first() else { return Vec::new() };
    let tally = first.leaked();
    let mut filters = String::new();
    let mut evidence = Vec::new();
    for row in &lines {
        let place = row.place(row.leaked, capture, sources);
        if evidence.is_empty() {
            filters = place.as_ref().map_or_else(String::new, |place| format!(" {}", place.filters()));
        }
        let leaked = row.leaked();
        let share = percent(leaked.bytes, whole.bytes);
        let text = format!("{}, {share} of what leaked: {}", in_blocks(leaked), row.name(capture));
        evidence.push(Evidence { text, tally: leaked, place, ..Evidence::default() });
        evidence.extend(row.objects(objects));
    }
    vec![Finding {
        kind: FindingKind::Leaked,
        severity: Severity::Note,
        title: format!(
            "{} has {} of what leaked, {} live {}",
            first.name(capture),
            percent(tally.bytes, whole.bytes),
            size_of(tally),
            when.when()
        ),
        bytes: tally.bytes,
        weight: tally.bytes,
        evidence,
        meaning: "It was not given back until then: a leak, or data that the program uses to its end.".into(),
        advice: "If it was not needed any more, find out who keeps it: a module-level collection, a cache without a size limit, \
                 registered callbacks, pending tasks, or native code without a free."
            .into(),
        command: command(capture, &format!("tree --text --leaks{filters}")),
    }]
}

#[cfg(test)]
mod tests {
    use crate::reports::capture_info::Capture;
    use crate::reports::display::DisplayOptions;
    use crate::reports::explain::{Explanation, FindingKind, LargeBlocks, LineObjects};
    use crate::reports::fixture::of_stacks;
    use crate::reports::leaked::LeakMoment;

    const MAIN: (&str, &str) = ("<module>", "/srv/main.py");
    const KEEP: (&str, &str) = ("remember", "/srv/keep.py");
    const FIND: (&str, &str) = ("_find_and_load", "<frozen importlib._bootstrap>");
    const PANDAS: (&str, &str) = ("<module>", "/v/site-packages/pandas/__init__.py");

    /// Title, and text of the evidence, of what leaked: of two lines and an import so much, with this peak.
    fn told(bytes: [u64; 3], peak: u64, change: impl Fn(&mut Capture)) -> Vec<String> {
        let mut capture =
            of_stacks(&[(&[MAIN, KEEP], bytes[0]), (&[MAIN], bytes[1]), (&[MAIN, FIND, PANDAS], bytes[2])]);
        capture.analysis.groups.change(0, |group| group.peak.bytes = peak);
        capture.analysis.totals.peak.bytes = peak;
        change(&mut capture);
        capture.show(&DisplayOptions::default()).unwrap();
        let found = Explanation::of(&capture, &LargeBlocks::default(), None, &[], &LineObjects::default());
        let leaked = found.findings.iter().filter(|finding| finding.kind == FindingKind::Leaked);
        let texts = leaked.flat_map(|finding| {
            [finding.title.clone()].into_iter().chain(finding.evidence.iter().map(|evidence| evidence.text.clone()))
        });
        texts.collect()
    }

    #[test]
    fn the_lines_with_much_of_what_leaked_are_named_however_it_grew() {
        let [title, first, second] = &told([30_000_000, 10_000_000, 90_000_000], 75_000_000, |_| ())[..] else {
            panic!("two lines")
        };
        assert_eq!(title, "remember at /srv/keep.py:7 has 75.0 % of what leaked, 30.0 MB live at exit");
        assert_eq!(first, "30.0 MB in 1 block, 75.0 % of what leaked: remember at /srv/keep.py:7");
        assert_eq!(second, "10.0 MB in 1 block, 25.0 % of what leaked: <module> at /srv/main.py:7");
    }

    #[test]
    fn little_is_not_named_nor_what_may_yet_be_given_back() {
        let few = [500_000, 400_000, 0];
        assert_eq!(told(few, 500_000, |_| ()), Vec::<String>::new());
        assert_eq!(told([30_000_000, 0, 0], 900_000_000, |_| ()), Vec::<String>::new(), "of the peak");
        let running = |capture: &mut Capture| capture.info.leak_moment = LeakMoment::Snapshot;
        assert_eq!(told([30_000_000, 0, 0], 40_000_000, running), Vec::<String>::new());
    }
}
