//! `flamegraph` and `diff --html`: one HTML file that shows a capture, or two, and needs nothing but a browser.
//!
//! The file is a frame of HTML, the scripts and styles under `assets/`, and the data: columns of numbers as JSON,
//! deflated and in base64. Invariant: the page makes no request (its content security policy forbids all of them), it
//! holds no source lines, and its sums are those of every other report; where small call sites were merged into their
//! callers to keep it small, the page says so.

mod columns;
mod sites;
mod time;

use std::io::{self, Write};

use memtrack_reader::View;
use memtrack_reader::analysis::CallTree;
use memtrack_reader::analysis::diff::Merged;

use super::facts::{Capture, visible};
use super::view;
use crate::units::{count, size};
use columns::Columns;
use sites::{Names, Side, Sites};

const HEAD: &str = include_str!("../../../assets/page.html");
const STYLE: &str = include_str!("../../../assets/page.css");
const SCRIPTS: [&str; 5] = [
    include_str!("../../../assets/model.js"),
    include_str!("../../../assets/graph.js"),
    include_str!("../../../assets/chart.js"),
    include_str!("../../../assets/table.js"),
    include_str!("../../../assets/page.js"),
];

/// The views of the page, in the order of its switch.
const VIEWS: [View; 5] = [View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary, View::Allocated];

/// What the page shows at first; a reader may switch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// The view.
    pub(crate) view: View,
    /// Callers above those they call.
    pub(crate) inverted: bool,
    /// A block for each thread.
    pub(crate) split_threads: bool,
    /// Numbers of allocations instead of bytes.
    pub(crate) counts: bool,
}

/// Writes the page of one capture, with a note of what the reader has to know.
///
/// # Errors
/// What the writer says.
pub(crate) fn flamegraph(capture: &Capture, start: Start, note: Option<String>, out: impl Write) -> io::Result<()> {
    let frames = &capture.frames;
    let mut tree = CallTree::default();
    let places = tree.places(frames, capture.analysis.groups.iter().map(|group| group.stack), |frame| frame.0);
    let sites = Sites::new(&tree, &[Side { capture, places }]);
    let mut data = Columns::new();
    head(&mut data, "capture", &capture.facts.title(), start)?;
    data.json("facts", &facts(capture).into())?;
    let mut notes = capture.facts.warnings();
    notes.extend(note);
    notes.extend(sites.note());
    sites.write(&mut data, &Names::of_frames(frames))?;
    notes.extend(time::write(capture, &sites, &mut data)?);
    data.json("notes", &notes.into())?;
    document(&format!("memtrack: {}", capture.facts.title()), data, out)
}

/// Writes the page of the difference between two captures.
///
/// # Errors
/// What the writer says.
pub(crate) fn difference(
    base: &Capture,
    new: &Capture,
    start: Start,
    notes: Vec<String>,
    out: impl Write,
) -> io::Result<()> {
    let mut merged = Merged::default();
    let sides = [new, base].map(|capture| {
        let stacks = capture.analysis.groups.iter().map(|group| group.stack);
        Side { capture, places: merged.places(&capture.frames, stacks) }
    });
    let sites = Sites::new(&merged.tree, &sides);
    let title = format!("{} -> {}", base.facts.file.display(), new.facts.file.display());
    let mut data = Columns::new();
    head(&mut data, "diff", &title, start)?;
    data.json("facts", &[facts(base), facts(new)].concat().into())?;
    sites.write(&mut data, &Names::of_functions(&merged.functions))?;
    data.json("notes", &notes.into_iter().chain(sites.note()).collect::<Vec<_>>().into())?;
    document(&format!("memtrack diff: {title}"), data, out)
}

fn head(data: &mut Columns, kind: &str, title: &str, start: Start) -> io::Result<()> {
    data.json("kind", &kind.into())?;
    data.json("title", &visible(title).into())?;
    data.json("views", &VIEWS.map(view::title).to_vec().into())?;
    let view = VIEWS.iter().position(|view| *view == start.view).unwrap_or(0);
    let Start { inverted, split_threads, counts, .. } = start;
    let start = serde_json::json!({"view": view, "inverted": inverted, "split": split_threads, "counts": counts});
    data.json("start", &start)
}

/// What the page says of a capture, label and text by turns.
fn facts(capture: &Capture) -> Vec<String> {
    let (facts, totals) = (&capture.facts, &capture.analysis.totals);
    let mut pairs = vec![
        ("Capture", facts.file.file_name().unwrap_or_default().to_string_lossy().into_owned()),
        ("Program", facts.title()),
        ("Python", facts.python_version().unwrap_or_default()),
        ("Started", facts.start_time().unwrap_or_default()),
        ("Duration", crate::units::duration(facts.duration_ns(&capture.analysis))),
        ("Peak", format!("{} in {} allocations", size(totals.peak.bytes), count(totals.peak.allocations))),
        ("Leaked", format!("{} in {} allocations", size(totals.leaked.bytes), count(totals.leaked.count))),
        ("Allocations", format!("{}, {}", count(totals.allocations.count), size(totals.allocations.bytes))),
        ("Temporary", format!("{}, {}", count(totals.temporary.count), size(totals.temporary.bytes))),
        ("Resident memory", format!("{} at most", size(totals.rss_peak_bytes))),
    ];
    pairs.retain(|(_, text)| !text.is_empty());
    pairs.into_iter().flat_map(|(label, text)| [label.to_owned(), visible(&text)]).collect()
}

/// The whole file.
fn document(title: &str, data: Columns, mut out: impl Write) -> io::Result<()> {
    let mut rest = HEAD;
    for (mark, fill) in [("{{TITLE}}", escaped(&visible(title))), ("{{STYLE}}", STYLE.into())] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        write!(out, "{before}{fill}")?;
        rest = after;
    }
    let (before, after) = rest.split_once("{{DATA}}").unwrap_or((rest, ""));
    out.write_all(before.as_bytes())?;
    data.finish(&mut out)?;
    let (before, after) = after.split_once("{{SCRIPT}}").unwrap_or((after, ""));
    out.write_all(before.as_bytes())?;
    SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?;
    out.write_all(after.as_bytes())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod testing {
    use std::io::Read;

    use flate2::read::DeflateDecoder;
    use serde_json::Value;

    /// What base64 and deflate made of a text.
    pub(super) fn unpacked(base64: &[u8]) -> String {
        const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digits: Vec<u32> =
            base64.iter().filter_map(|byte| DIGITS.find(char::from(*byte))).map(|digit| digit as u32).collect();
        let mut bytes = Vec::new();
        for part in digits.chunks(4) {
            let bits = part.iter().zip([18, 12, 6, 0]).fold(0, |bits, (digit, shift)| bits | digit << shift);
            bytes.extend(bits.to_be_bytes()[1..part.len()].iter());
        }
        let mut text = String::new();
        DeflateDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        text
    }

    /// The data of a page.
    pub(super) fn data(page: &[u8]) -> Value {
        let page = str::from_utf8(page).unwrap();
        let (_, after) = page.split_once("id=\"data\">\n").unwrap();
        let (data, _) = after.split_once("</script>").unwrap();
        serde_json::from_str(&unpacked(data.as_bytes())).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::{Start, VIEWS, difference, flamegraph, testing};
    use crate::reports::facts::Capture;
    use crate::reports::fixture;
    use serde_json::{Value, json};

    fn page(capture: &Capture) -> Value {
        let mut page = Vec::new();
        flamegraph(capture, Start::default(), None, &mut page).unwrap();
        testing::data(&page)
    }

    fn sum(column: &Value) -> u64 {
        column.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
    }

    #[test]
    fn sums_are_those_of_the_views() {
        let capture = fixture::capture();
        let data = page(&capture);
        for (number, view) in VIEWS.iter().enumerate() {
            let rows = capture.analysis.view(*view);
            let expected = [rows.iter().map(|row| row.bytes).sum::<u64>(), rows.iter().map(|row| row.count).sum()];
            let got = ["Bytes", "Count"].map(|what| sum(&data[format!("new{what}{number}")]));
            assert_eq!(got, expected, "{view:?}");
        }
    }

    #[test]
    fn nodes_are_in_preorder_with_the_heaviest_first() {
        let data = page(&fixture::capture());
        assert_eq!(data["nodeDepth"], json!([1, 2, 3, 1]));
        let names: Vec<_> = data["nodeFrame"]
            .as_array()
            .unwrap()
            .iter()
            .map(|frame| {
                let name = data["frameName"][frame.as_u64().unwrap() as usize].as_u64().unwrap();
                data["strings"][name as usize].as_str().unwrap()
            })
            .collect();
        assert_eq!(names, ["<module>", "work", "Reader.read", "<no stack>"]);
    }

    #[test]
    fn nothing_in_a_name_can_leave_the_data() {
        let mut capture = fixture::empty();
        capture.facts.process.command_line = vec![b"</script><b>&\"{{DATA}}".to_vec()];
        let mut page = Vec::new();
        flamegraph(&capture, Start::default(), None, &mut page).unwrap();
        let text = str::from_utf8(&page).unwrap();
        assert!(
            !text.contains("<b>") && text.contains("<title>memtrack: '&lt;/script&gt;&lt;b&gt;&amp;&quot;{{DATA}}")
        );
        assert_eq!(testing::data(&page)["title"], "'</script><b>&\"{{DATA}}'");
    }

    #[test]
    fn a_page_refers_to_nothing_outside() {
        let mut page = Vec::new();
        flamegraph(&fixture::capture(), Start::default(), None, &mut page).unwrap();
        let text = str::from_utf8(&page).unwrap();
        assert!(
            !text.contains("http:") && !text.contains("https:") && !text.contains("src=") && !text.contains("import(")
        );
        assert!(text.contains("default-src 'none'"));
    }

    #[test]
    fn a_difference_has_both_sides() {
        let (base, new) = (fixture::empty(), fixture::capture());
        let mut page = Vec::new();
        difference(&base, &new, Start::default(), vec!["a doubt".into()], &mut page).unwrap();
        let data = testing::data(&page);
        assert_eq!((sum(&data["newBytes4"]), sum(&data["baseBytes4"])), (1_505_096, 0));
        assert_eq!((&data["kind"], &data["notes"]), (&json!("diff"), &json!(["a doubt"])));
        assert_eq!(data["threads"], json!(["main", "pool-0"]));
    }
}
