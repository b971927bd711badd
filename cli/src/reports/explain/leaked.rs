//! Lines with much of what was never given back, however it grew: all at once, or little by little.
//!
//! Invariant: bytes are those of `table --leaks`; shares leave out what is not in memory.

use memtrack_reader::origin::Whose;

use super::not_in_memory::LEAST_BESIDE;
use super::rows::LineRow;
use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, size_of};
use crate::reports::leaked::LeakMoment;
use crate::reports::line_objects::LineObjects;
use crate::reports::source::Sources;
use crate::units::{percent, size};

/// Number of lines.
const MOST: usize = 3;
/// A line is named from these bytes on, this percentage of what leaked, and this one of the peak.
const LEAST: u64 = 1 << 20;
const LEAST_PERCENT: u64 = 20;
const LEAST_PERCENT_OF_PEAK: u64 = 5;

/// What leaked, and by what of it lines are judged.
pub(super) struct Leaks<'a> {
    rows: &'a LineRows<'a>,
    /// Bytes of all that leaked, without what is not in memory.
    whole: u64,
}

impl<'a> Leaks<'a> {
    /// `None` where it is not known what leaked: while a program runs, what is live may yet be given back, and what it had when it was
    /// killed may have been of use.
    pub(super) fn of(rows: &'a LineRows<'a>, is_killed: bool) -> Option<Self> {
        let is_over = match rows.capture.info.leak_moment {
            LeakMoment::Snapshot
            | LeakMoment::RecordingEnd
            | LeakMoment::SoFar
            | LeakMoment::Several
            | LeakMoment::LastSeen => false,
            LeakMoment::Exit | LeakMoment::Finalization | LeakMoment::Either => !is_killed,
        };
        // What lies in arenas is not known. Beside a gigabyte that was only reserved, no line would have much of what leaked.
        is_over.then(|| Self { rows, whole: counted(rows).map(present).sum() })
    }

    /// One finding, if lines have much of what leaked that are not told to grow, nor told of at the peak.
    pub(super) fn findings(
        &self,
        sources: &mut Sources,
        objects: &LineObjects,
        growing: &[Finding],
        held: &[Finding],
    ) -> Vec<Finding> {
        let (rows, capture) = (self.rows, self.rows.capture);
        let least = LEAST.max(self.whole / (100 / LEAST_PERCENT)).max(rows.in_memory / (100 / LEAST_PERCENT_OF_PEAK));
        let is_much = |row: &&LineRow| {
            row.has_line()
                && present(row) >= if is_known(row) { least } else { least.max(row.absent.at_last / LEAST_BESIDE) }
                && row.leaked().bytes_range().0 > 0
                && !row.is_named_by(capture, growing)
                && !(row.is_evidence_of(capture, held) && self.evidence(row).is_some())
        };
        let mut lines: Vec<&LineRow> = counted(rows).filter(is_much).collect();
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
            let text = format!("{}{}, {}: {}", in_blocks(leaked), in_memory(row), self.share(row), row.name(capture));
            evidence.push(Evidence { text, tally: leaked, place, ..Evidence::default() });
            evidence.extend(row.objects(objects));
        }
        vec![Finding {
            kind: FindingKind::Leaked,
            severity: Severity::Note,
            title: format!(
                "{} has {}, {}{} live {}",
                first.name(capture),
                self.share(first),
                size_of(tally),
                in_memory(first),
                capture.info.leak_moment.when()
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

    /// What leaked of a line that holds much at the peak, as evidence; `None`: that is less than half of it, or not known.
    pub(super) fn evidence(&self, row: &LineRow) -> Option<Evidence> {
        let (leaked, when) = (row.leaked(), self.rows.capture.info.leak_moment);
        let is_most = is_known(row) && leaked.bytes >= row.peak.tally.bytes / 2;
        is_most.then(|| {
            let text = format!("not given back: {} live {}, {}", in_blocks(leaked), when.when(), self.share(row));
            Evidence { text, tally: leaked, ..Evidence::default() }
        })
    }

    /// `75.0 % of what leaked`.
    fn share(&self, row: &LineRow) -> String {
        let selected = if self.rows.capture.info.narrowed { "what is selected of " } else { "" };
        let has_absent = counted(self.rows).any(|row| present(row) < row.leaked().bytes);
        let in_memory = if has_absent { " and is in memory" } else { "" };
        format!("{} of {selected}what leaked{in_memory}", percent(present(row), self.whole))
    }
}

/// Whether something of a line has leaked for certain, and is in memory.
fn is_known(row: &LineRow) -> bool {
    let leaked = row.leaked();
    leaked.bytes_range().0 > 0 && !row.absent.is_most_of_leaked(leaked.bytes)
}

/// `, 12.4 MB of it in memory,` of what leaked of a line that mostly reserves.
fn in_memory(row: &LineRow) -> String {
    if is_known(row) { String::new() } else { format!(", {} of it in memory,", size(present(row))) }
}

/// Bytes of what leaked of a line, without what is not in memory.
fn present(row: &LineRow) -> u64 {
    row.absent.present_of_leaked(row.leaked().bytes)
}

/// The rows of what counts as leaked: imports stay.
fn counted<'a>(rows: &'a LineRows<'_>) -> impl Iterator<Item = &'a LineRow> {
    rows.rows.iter().filter(|row| row.whose() != Whose::Imports)
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
    const REPORT: (&str, &str) = ("report", "/srv/report.py");
    const FIND: (&str, &str) = ("_find_and_load", "<frozen importlib._bootstrap>");
    const PANDAS: (&str, &str) = ("<module>", "/v/site-packages/pandas/__init__.py");

    /// Title, and text of the evidence, of what leaked: of two lines and an import so much. Another line has had this peak.
    fn told(bytes: [u64; 3], peak: u64, change: impl Fn(&mut Capture)) -> Vec<String> {
        let mut capture = of_stacks(&[
            (&[MAIN, KEEP], bytes[0]),
            (&[MAIN], bytes[1]),
            (&[MAIN, FIND, PANDAS], bytes[2]),
            (&[MAIN, REPORT], 0),
        ]);
        capture.analysis.groups.change(3, |group| group.peak.bytes = peak);
        capture.analysis.totals.peak.bytes = peak;
        change(&mut capture);
        capture.show(&DisplayOptions::default()).unwrap();
        texts(&capture, FindingKind::Leaked)
    }

    fn texts(capture: &Capture, kind: FindingKind) -> Vec<String> {
        let found = Explanation::of(capture, &LargeBlocks::default(), None, &[], &LineObjects::default());
        let of_kind = found.findings.iter().filter(|finding| finding.kind == kind);
        let texts = of_kind.flat_map(|finding| {
            [finding.title.clone()].into_iter().chain(finding.evidence.iter().map(|evidence| evidence.text.clone()))
        });
        texts.collect()
    }

    #[test]
    fn what_leaked_of_a_line_that_holds_the_peak_is_told_there() {
        let told = |leaked: u64, status: Option<u8>| {
            let mut capture = of_stacks(&[(&[MAIN, KEEP], leaked)]);
            capture.analysis.groups.change(0, |group| group.peak.bytes = 30_000_000);
            capture.analysis.totals.peak.bytes = 30_000_000;
            capture.info.process.exit_status = status;
            capture.show(&DisplayOptions::default()).unwrap();
            [FindingKind::Held, FindingKind::Leaked].map(|kind| texts(&capture, kind))
        };
        let [held, leaked] = told(29_000_000, None);
        let expected = "not given back: 29.0 MB in 1 block live at exit, 100 % of what leaked";
        assert_eq!((held.last().map(String::as_str), leaked.len()), (Some(expected), 0));
        // The line had more than twice as much at the peak.
        let [held, leaked] = told(12_000_000, None);
        assert!(!held.iter().any(|text| text.contains("not given back")), "{held:?}");
        assert_eq!(leaked[0], "remember at /srv/keep.py:7 has 100 % of what leaked, 12.0 MB live at exit");
        let [held, leaked] = told(29_000_000, Some(137));
        assert!(!held.iter().any(|text| text.contains("not given back")) && leaked.is_empty(), "{held:?}");
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
        for moment in [LeakMoment::Snapshot, LeakMoment::RecordingEnd, LeakMoment::Several, LeakMoment::LastSeen] {
            let running = |capture: &mut Capture| capture.info.leak_moment = moment;
            assert_eq!(told([30_000_000, 0, 0], 40_000_000, running), Vec::<String>::new());
        }
        let killed = |capture: &mut Capture| capture.info.process.exit_status = Some(137);
        assert_eq!(told([30_000_000, 0, 0], 40_000_000, killed), Vec::<String>::new());
    }
}
