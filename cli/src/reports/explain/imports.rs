//! What imports cost.
//!
//! Invariant: the bytes are those of `table --imports`.

use memtrack_reader::origin::Whose;

use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, size_of};
use crate::reports::own_lines::rows_by_own_line;
use crate::reports::source::Sources;
use crate::units::size;
use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

/// Number of imports that are named.
const MOST: usize = 3;
/// Imports are reported from this many bytes on, and this percentage of the peak.
const LEAST: u64 = 4 << 20;
const LEAST_PERCENT: u64 = 20;

/// One finding, if imports hold a good part of the peak.
pub(super) fn findings(rows: &LineRows<'_>, sources: &mut Sources) -> Vec<Finding> {
    let capture = rows.capture;
    let mut imports: Vec<_> = rows.rows.iter().filter(|row| row.whose() == Whose::Imports).collect();
    let tally: Tally = imports.iter().map(|row| row.peak.tally).sum();
    let (whole, present) = (tally.bytes, imports.iter().map(|row| row.present()).sum());
    if present < LEAST.max(rows.in_memory / 100 * LEAST_PERCENT) {
        return Vec::new();
    }
    imports.sort_by_key(|row| std::cmp::Reverse(row.peak.tally.bytes));
    let labels = rows_by_own_line(capture, View::HighWaterMark, false, false);
    let evidence: Vec<Evidence> = imports
        .iter()
        .take(MOST)
        .flat_map(|row| {
            let tally = row.peak.tally;
            let label = labels.iter().find(|label| row.is(label.key));
            let label = label.map_or_else(|| row.name(capture), |label| label.label(capture).whole().words());
            let place = row.place(row.peak, capture, sources);
            let held = Evidence { text: format!("{}: {label}", in_blocks(tally)), tally, place, ..Evidence::default() };
            [held].into_iter().chain(row.absent.evidence())
        })
        .collect();
    vec![Finding {
        kind: FindingKind::Imports,
        severity: Severity::Note,
        title: format!(
            "Imports hold {}, {}",
            rows.share(whole, present),
            if present < whole { size(present) } else { size_of(tally) }
        ),
        bytes: whole,
        // Of like amounts, data can be changed more easily than what a program is made of.
        weight: present / 2,
        evidence,
        meaning: "Modules, their functions and tables, which stay until the process ends.".into(),
        advice:
            "Import what is rarely used where it is used, or replace a large library by a part of it; a server that \
                 forks shares this memory if it imports before it forks."
                .into(),
        command: command(capture, "table --imports"),
    }]
}

#[cfg(test)]
mod tests {
    use crate::reports::display::DisplayOptions;
    use crate::reports::explain::{Explanation, FindingKind, LargeBlocks, LineObjects};
    use crate::reports::fixture;

    /// As of a command line of a package: none of it is own code.
    #[test]
    fn the_line_that_is_named_is_the_line_that_is_shown() {
        let find = ("_find_and_load", "<frozen importlib._bootstrap>");
        let scrapy = ("<module>", "/v/site-packages/scrapy/__init__.py");
        let http = ("<module>", "/v/site-packages/scrapy/http.py");
        let load = ("load", "/v/site-packages/scrapy/loader.py");
        let tokenize = ("<module>", "/usr/lib/python3.11/tokenize.py");
        let mut capture = fixture::of_stacks(&[(&[scrapy, find, http, load, find, tokenize], 40_000_000)]);
        capture.analysis.groups.change_all(|group| group.peak = group.allocated);
        capture.show(&DisplayOptions::default()).unwrap();
        let explanation = Explanation::of(&capture, &LargeBlocks::default(), None, &[], &LineObjects::default());
        let imports = explanation.findings.iter().find(|finding| finding.kind == FindingKind::Imports).unwrap();
        let [evidence] = &imports.evidence[..] else { panic!("one import: {imports:?}") };
        let place = evidence.place.as_ref().unwrap();
        assert!(evidence.text.ends_with(place.name()), "{}: {}", place.name(), evidence.text);
        let shown = place.json();
        assert_ne!(shown["stack"][0]["function"], shown["function"], "one import lies within another one");
    }
}
