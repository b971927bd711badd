//! `flamegraph` and `diff --html`: one HTML file that shows a capture, or two, and needs nothing but a browser.
//!
//! The file is a frame of HTML, the scripts and styles under `assets/`, and the data: columns of numbers as JSON,
//! deflated and in base64. Invariant: the page makes no request (its content security policy forbids all of them), it
//! holds no source lines unless they were asked for, and its sums are those of every other report; where small call
//! sites were merged into their callers to keep it small, the page says so.

mod columns;
mod heaviest;
mod names;
mod side;
mod sites;
mod time;

use std::io::{self, Write};

use memtrack_reader::analysis::Quiet;
use memtrack_reader::analysis::diff::{Merged, Pair};
use memtrack_reader::plumbing::Plumbing;
use memtrack_reader::{Options, View};

use super::facts::{Capture, visible};
use super::scale::ComparedMetric;
use super::shown::Wish;
use super::source::Sources;
use super::{arenas, stats, view};
use crate::units::{count, duration, size};
use columns::{Packed, PackedColumns};
use heaviest::Heaviest;
use names::KeyNames;
use side::PageSide;
use sites::Sites;

const HEAD: &str = include_str!("../../../assets/page.html");
const STYLE: &str = include_str!("../../../assets/page.css");
const SCRIPTS: [&str; 19] = [
    include_str!("../../../assets/format.js"),
    include_str!("../../../assets/frames.js"),
    include_str!("../../../assets/model.js"),
    include_str!("../../../assets/sources.js"),
    include_str!("../../../assets/layout.js"),
    include_str!("../../../assets/holders.js"),
    include_str!("../../../assets/sandwich.js"),
    include_str!("../../../assets/palette.js"),
    include_str!("../../../assets/graph.js"),
    include_str!("../../../assets/chart.js"),
    include_str!("../../../assets/table.js"),
    include_str!("../../../assets/details.js"),
    include_str!("../../../assets/tooltip.js"),
    include_str!("../../../assets/overview.js"),
    include_str!("../../../assets/difference.js"),
    include_str!("../../../assets/about.js"),
    include_str!("../../../assets/link.js"),
    include_str!("../../../assets/controls.js"),
    include_str!("../../../assets/page.js"),
];

/// A page has no more call sites, and no more entries in its table of lives, so that it stays fluid.
const MOST_SITES: usize = 250_000;
/// So many are kept in any case.
const FEWEST_SITES: usize = 10_000;
/// The data takes no more characters than this, so that a page with its scripts is below 5 MB.
const MOST_BYTES: usize = 4_800_000;

/// The views of the page, in the order of its switch.
const VIEWS: [View; 5] = [View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary, View::Allocated];

/// What the page shows at first; a reader may switch, but for functions that are skipped.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageStart {
    /// The view.
    pub(crate) view: View,
    /// Callers above those they call.
    pub(crate) inverted: bool,
    /// A block for each thread.
    pub(crate) split_threads: bool,
    /// Numbers of allocations instead of bytes.
    pub(crate) counts: bool,
    /// Frames and imports.
    pub(crate) wish: Wish,
}

impl PageStart {
    /// Which functions are skipped.
    fn plumbing(&self) -> Plumbing {
        Plumbing::with(self.wish.skip.clone())
    }
}

/// How a capture has to be read for its page.
pub(crate) fn reading(options: Options) -> Options {
    Options { moments: time::MOST_MOMENTS as u32, ..options }
}

/// Writes the page of one capture, with notes of what the reader has to know; with the source line of each call if
/// `sources` is given. Groups that the page does not tell apart are one in the capture from then on: there may have been
/// many millions, and the page is built several times.
///
/// # Errors
/// What the writer says.
pub(crate) fn flamegraph(
    capture: &mut Capture,
    start: PageStart,
    notes: Vec<String>,
    sources: Option<Sources>,
    out: impl Write,
) -> io::Result<()> {
    let (tree, PageSide { places, whose, .. }) = Heaviest::of_stacks(capture, MOST_SITES);
    let (places, whose) = side::merge(capture, &places, &whose);
    let (capture, frames) = (&*capture, &capture.frames);
    let sides = [PageSide { capture, places, whose, set_off: Vec::new() }];
    let mut names = KeyNames::of_frames(frames, start.plumbing(), sources);
    let title = capture.facts.title();
    let (held, leaked) = (capture.analysis.python_arenas(View::Leaks), capture.analysis.totals.leaked);
    let arenas = arenas::warning(held, arenas::without(leaked, held)).map(|text| format!("among the leaks: {text}"));
    let notes = [capture.facts.warnings(), notes, Vec::from_iter(arenas)].concat();
    let data = bounded(MOST_BYTES, |most| {
        let sites = Sites::new(&tree, &sides, most);
        let mut data = PackedColumns::new();
        head(&mut data, "capture", &title, &start)?;
        data.json("meanings", &VIEWS.map(|view| meaning(view, capture)).to_vec().into())?;
        data.json("facts", &facts(capture).into())?;
        data.json("peak", &peak(capture))?;
        sites.write(&mut data, &mut names)?;
        let time = time::write(capture, &sites, most, &mut data)?;
        let notes: Vec<_> = notes.iter().cloned().chain(sites.note()).chain(names.note()).chain(time).collect();
        data.json("notes", &notes.into())?;
        data.ended()
    })?;
    let title = format!("{} - memtrack", capture.facts.program());
    let heading = [capture.facts.program(), capture.facts.title()];
    document(&StaticPage { title, heading, facts: facts(capture) }, &data, out)
}

/// Writes the page of the difference between two captures; `scale` says what the base's figures were multiplied by, if
/// they were, and `notes` why the captures may not compare.
///
/// # Errors
/// What the writer says.
pub(crate) fn difference(
    base: &Capture,
    new: &Capture,
    start: PageStart,
    scale: Option<String>,
    notes: &[String],
    out: impl Write,
) -> io::Result<()> {
    let mut merged = Merged::default();
    let mut sides = [new, base].map(|capture| {
        let stacks = capture.analysis.groups.iter().map(|group| group.stack);
        PageSide::new(capture, merged.places(&capture.frames, stacks))
    });
    let (mut floors, mut vanished) = (Vec::new(), Vec::new());
    for (number, view) in VIEWS.into_iter().enumerate() {
        let rows = [base, new].map(|capture| capture.analysis.view(view));
        let own = [(base, &rows[0]), (new, &rows[1])].map(|(capture, rows)| merged.own(&capture.frames, rows));
        let [base_rows, new_rows] = rows;
        let quiet = Quiet::of((&base.frames, base_rows), (&new.frames, new_rows));
        let [of_new, of_base] = &mut sides;
        of_base.set_off(number, view, &quiet.set_off[0]);
        of_new.set_off(number, view, &quiet.set_off[1]);
        let compared = merged.compare(&own[0], &own[1]);
        floors.push(floors_of(view, &compared.whole));
        vanished.push(compared.vanished_stacks);
    }
    let tree = Heaviest::of_tree(&std::mem::take(&mut merged.tree), &mut sides, MOST_SITES);
    let title = format!("{} -> {}", base.facts.file.display(), new.facts.file.display());
    let data = bounded(MOST_BYTES, |most| {
        let sites = Sites::new(&tree, &sides, most);
        let mut data = PackedColumns::new();
        head(&mut data, "diff", &title, &start)?;
        let meanings = VIEWS.map(|view| {
            let of_any = meaning_of_any(view);
            format!("Of both captures: {}{}", of_any[..1].to_lowercase(), &of_any[1..])
        });
        data.json("meanings", &meanings.to_vec().into())?;
        data.json("facts", &[facts(base), facts(new)].concat().into())?;
        data.json("vanishedStacks", &vanished.clone().into())?;
        data.json("floors", &floors.clone().into())?;
        data.json("scale", &scale.clone().into())?;
        let mut names = KeyNames::of_functions(&merged.functions, start.plumbing(), [&base.frames, &new.frames]);
        sites.write(&mut data, &mut names)?;
        data.json("notes", &notes.iter().cloned().chain(sites.note()).collect::<Vec<_>>().into())?;
        data.ended()
    })?;
    let facts = [facts(base), facts(new)].concat();
    let heading = [format!("{}, compared", new.facts.program()), title];
    let title = format!("{} compared - memtrack", new.facts.program());
    document(&StaticPage { title, heading, facts }, &data, out)
}

/// The changes of bytes and of numbers below which nothing of a view has a colour.
fn floors_of(view: View, whole: &Pair) -> Vec<u64> {
    let floor = |counts, base: u64, new: u64| ComparedMetric { name: "", view, counts }.floor(base.max(new));
    vec![floor(false, whole.base.bytes, whole.new.bytes), floor(true, whole.base.count, whole.new.count)]
}

/// Builds the data with fewer and fewer call sites until the page is small enough, or is small in sites at least.
fn bounded(most_bytes: usize, mut build: impl FnMut(usize) -> io::Result<Packed>) -> io::Result<Packed> {
    let mut most = MOST_SITES;
    loop {
        let data = build(most)?;
        if data.len() <= most_bytes || most <= FEWEST_SITES {
            return Ok(data);
        }
        // In proportion, and a little less, so that one more time is enough.
        most = (most as u64 * most_bytes as u64 * 9 / 10 / data.len() as u64).max(FEWEST_SITES as u64) as usize;
    }
}

fn head(data: &mut PackedColumns, kind: &str, title: &str, start: &PageStart) -> io::Result<()> {
    data.json("kind", &kind.into())?;
    data.json("title", &visible(title).into())?;
    data.json("views", &VIEWS.map(view::title).to_vec().into())?;
    let view = VIEWS.iter().position(|view| *view == start.view).unwrap_or(0);
    let PageStart { inverted, split_threads, counts, wish, .. } = start;
    let start = serde_json::json!({
        "view": view, "inverted": inverted, "split": split_threads, "counts": counts,
        "allFrames": wish.all_frames, "imports": wish.with_imports,
    });
    data.json("start", &start)
}

/// What a view is of, and of which moment, in one sentence.
fn meaning(view: View, capture: &Capture) -> String {
    let totals = &capture.analysis.totals;
    let is_python = capture.facts.process.python_version.is_some();
    match (view, totals.peak.at) {
        (View::HighWaterMark, Some(moment)) if capture.facts.others == 0 => {
            let whole = duration(capture.facts.duration_ns(&capture.analysis));
            format!("What was live when most memory was: {} after the start, of {whole}.", duration(moment.time_ns))
        }
        (View::HighWaterMark, _) if capture.facts.others > 0 => {
            "What all processes together had live when that was most.".into()
        }
        (View::Leaks | View::LeaksAtExit, _) if !is_python => "What was still live at the end of the program.".into(),
        (View::Temporary, _) if totals.temporary_threshold > 1 => format!(
            "What was freed before its thread had made {} further allocations: nothing of it stayed.",
            count(totals.temporary_threshold.into())
        ),
        _ => meaning_of_any(view).into(),
    }
}

/// The same without what only one capture can tell.
fn meaning_of_any(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "What was live when most memory was.",
        View::Leaks => "What was still live when Python began to finalize, at the end of the program.",
        View::LeaksAtExit => {
            "What was still live at the very end of the process, after Python had cleared its modules."
        }
        View::Temporary => "What was freed before its thread allocated again: nothing of it stayed.",
        View::Allocated => "Everything that was ever allocated, freed or not, over the whole run.",
    }
}

/// What the page says of a capture, label and text by turns.
fn facts(capture: &Capture) -> Vec<String> {
    let (facts, totals) = (&capture.facts, &capture.analysis.totals);
    let arenas = capture.analysis.python_arenas(View::Leaks);
    let leaked = arenas::without(totals.leaked, arenas);
    let mut pairs = vec![
        ("Capture", facts.file.file_name().unwrap_or_default().to_string_lossy().into_owned()),
        ("Program", facts.title()),
        ("Python", facts.python_version().unwrap_or_default()),
        ("Recorded", how_recorded(capture)),
        ("Started", facts.start_time().unwrap_or_default()),
        ("Duration", duration(facts.duration_ns(&capture.analysis))),
        ("Times", facts.times().unwrap_or_default()),
        ("Peak", peak_text(capture)),
        ("Leaked", format!("{} in {} allocations", size(leaked.bytes), count(leaked.count))),
        ("Apart from", arenas::note(arenas).unwrap_or_default()),
        ("Allocations", format!("{}, {}", count(totals.allocations.count), size(totals.allocations.bytes))),
        ("Temporary", format!("{}, {}", count(totals.temporary.count), size(totals.temporary.bytes))),
        (
            "Resident memory",
            totals.resident_peak().map_or("not sampled".into(), |bytes| format!("{} at most", size(bytes))),
        ),
    ];
    pairs.retain(|(_, text)| !text.is_empty());
    pairs.into_iter().flat_map(|(label, text)| [label.to_owned(), visible(&text)]).collect()
}

fn peak_text(capture: &Capture) -> String {
    let peak = &capture.analysis.totals.peak;
    let text = format!("{} in {} allocations", size(peak.bytes), count(peak.allocations));
    match &capture.facts.several {
        None => text,
        Some(several) if several.apart.is_some() => format!("{text}, each process's own added up"),
        Some(several) => {
            let sum = several.sum_of_peaks.map(|bytes| format!("; sum of peaks: {}", size(bytes)));
            format!("{text}, in all processes together{}", sum.unwrap_or_default())
        }
    }
}

/// When the high-water mark was, in microseconds, and its bytes: nothing where several processes had one each.
fn peak(capture: &Capture) -> serde_json::Value {
    let peak = &capture.analysis.totals.peak;
    let at = peak.at.filter(|_| !capture.has_several_peaks() && !capture.analysis.snapshots.is_empty());
    at.map_or(serde_json::Value::Null, |at| serde_json::json!({"time": at.time_ns / 1000, "bytes": peak.bytes}))
}

/// With which of those options that figures depend on.
fn how_recorded(capture: &Capture) -> String {
    let process = &capture.facts.process;
    let options = [
        (process.native_traces, "native call stacks"),
        (stats::traces_python_allocators(capture), "every Python object"),
        (capture.analysis.exact_times, "exact times"),
        (capture.facts.aggregated, "sums instead of events"),
    ];
    options.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

/// What the page shows before its script has run, or without it.
struct StaticPage {
    title: String,
    /// The program, and what there is to say of it in smaller letters.
    heading: [String; 2],
    /// Label and text by turns.
    facts: Vec<String>,
}

/// The whole file.
fn document(frame: &StaticPage, data: &Packed, mut out: impl Write) -> io::Result<()> {
    let facts = frame.facts.chunks(2).map(|pair| pair.iter().map(|text| escaped(text)).collect::<Vec<_>>());
    let facts: String =
        facts.map(|pair| format!("      <dt>{}</dt><dd>{}</dd>\n", pair[0], pair[1..].concat())).collect();
    let [program, rest] = frame.heading.each_ref().map(|text| escaped(&visible(text)));
    let (title, heading) = (escaped(&visible(&frame.title)), format!("{program} <span>{rest}</span>"));
    let mut rest = HEAD;
    for (mark, fill) in
        [("{{TITLE}}", title), ("{{STYLE}}", STYLE.into()), ("{{HEADING}}", heading), ("{{FACTS}}", facts)]
    {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        write!(out, "{before}{fill}")?;
        rest = after;
    }
    let (before, after) = rest.split_once("{{DATA}}").unwrap_or((rest, ""));
    out.write_all(before.as_bytes())?;
    data.write(&mut out)?;
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
    use super::columns::PackedColumns;
    use super::{FEWEST_SITES, MOST_SITES, PageStart, Sources, VIEWS};
    use super::{bounded, difference, flamegraph, testing};
    use crate::reports::facts::Capture;
    use crate::reports::fixture;
    use serde_json::{Value, json};

    fn page(capture: &mut Capture) -> Value {
        let mut page = Vec::new();
        flamegraph(capture, PageStart::default(), Vec::new(), None, &mut page).unwrap();
        testing::data(&page)
    }

    fn sum(column: &Value) -> u64 {
        column.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
    }

    #[test]
    fn sums_are_those_of_the_views() {
        let mut capture = fixture::capture();
        let data = page(&mut capture);
        for (number, view) in VIEWS.iter().enumerate() {
            let rows = capture.analysis.view(*view);
            let expected = [rows.iter().map(|row| row.bytes).sum::<u64>(), rows.iter().map(|row| row.count).sum()];
            let got = ["Bytes", "Count"].map(|what| sum(&data[format!("new{what}{number}")]));
            assert_eq!(got, expected, "{view:?}");
        }
    }

    #[test]
    fn nodes_are_in_preorder_with_the_heaviest_first() {
        let data = page(&mut fixture::capture());
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
    fn a_page_that_would_be_too_large_gets_fewer_sites() {
        let mut tried = Vec::new();
        let of_random_digits = |most: usize| {
            let mut data = PackedColumns::new();
            let random = |at: u64| at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) ^ at;
            data.column("a", (0..most as u64 / 20).map(random)).unwrap();
            data.ended()
        };
        let packed = bounded(100_000, |most| {
            tried.push(most);
            of_random_digits(most)
        });
        assert!(packed.unwrap().len() <= 100_000);
        assert!(tried.len() == 2 && tried[0] == MOST_SITES && tried[1] > FEWEST_SITES, "{tried:?}");
        let mut least = 0;
        bounded(100_000, |most| {
            least = most;
            of_random_digits(MOST_SITES)
        })
        .unwrap();
        assert!(least >= FEWEST_SITES, "it comes to an end: {least}");
    }

    #[test]
    fn source_lines_are_there_only_if_they_were_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.py");
        std::fs::write(&path, "first\n    kept.append(secret)\n").unwrap();
        let mut capture = fixture::capture();
        let (name, file) =
            (capture.frames.name_id("work").unwrap(), capture.frames.name_id(path.to_str().unwrap()).unwrap());
        let frame = capture.frames.frame_id(name, file, 2).unwrap();
        let stack = capture.frames.stack_of(&[frame]).unwrap();
        capture.analysis.groups.change(0, |group| group.stack = stack);
        let mut strings = |sources| {
            let mut page = Vec::new();
            flamegraph(&mut capture, PageStart::default(), Vec::new(), sources, &mut page).unwrap();
            testing::data(&page)["strings"].to_string()
        };
        assert!(!strings(None).contains("secret"));
        assert!(strings(Some(Sources::default())).contains("kept.append(secret)\""));
    }

    #[test]
    fn native_frames_are_told_from_python_and_from_the_interpreter() {
        let mut capture = fixture::capture();
        let mut native = |name: &str, module: &str| {
            let (name, file) = (capture.frames.name_id(name).unwrap(), capture.frames.name_id("").unwrap());
            let id = capture.frames.frame_id(name, file, 0).unwrap();
            capture.frames.set_module(id, module).unwrap();
            id
        };
        let ids = [native("PyObject_Malloc", "/usr/lib/libpython3.11.so.1.0"), native("parse", "/srv/libfast.so")];
        let stack = capture.frames.stack_of(&ids).unwrap();
        capture.analysis.groups.change(0, |group| group.stack = stack);
        let told = |data: Value| {
            let text = |column: &str, at: usize| data["strings"][data[column][at].as_u64().unwrap() as usize].clone();
            let native = data["frameNative"].as_array().unwrap().iter().enumerate().filter(|(_, native)| **native == 1);
            let mut told: Vec<_> = native
                .map(|(at, _)| {
                    format!("{} {} {}", text("frameName", at), text("frameModule", at), data["frameOrigin"][at])
                })
                .collect();
            told.sort();
            told
        };
        let expected = [r#""PyObject_Malloc" "libpython3.11.so.1.0" 4"#, r#""parse" "libfast.so" 0"#];
        assert_eq!(told(page(&mut capture)), expected);
        let mut text = Vec::new();
        difference(&fixture::empty(), &capture, PageStart::default(), None, &[], &mut text).unwrap();
        assert_eq!(told(testing::data(&text)), expected, "in a difference, too");
    }

    #[test]
    fn nothing_in_a_name_can_leave_the_data() {
        let mut capture = fixture::empty();
        capture.facts.process.command_line = vec![b"</script><b>&\"{{DATA}}".to_vec()];
        let mut page = Vec::new();
        flamegraph(&mut capture, PageStart::default(), Vec::new(), None, &mut page).unwrap();
        let text = str::from_utf8(&page).unwrap();
        assert!(!text.contains("<b>") && text.contains("<title>script&gt;&lt;b&gt;&amp;&quot;{{DATA}} - memtrack"));
        assert_eq!(testing::data(&page)["title"], "'</script><b>&\"{{DATA}}'");
    }

    #[test]
    fn a_page_refers_to_nothing_outside() {
        let mut page = Vec::new();
        flamegraph(&mut fixture::capture(), PageStart::default(), Vec::new(), None, &mut page).unwrap();
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
        difference(&base, &new, PageStart::default(), Some("doubled".into()), &["a doubt".into()], &mut page).unwrap();
        let data = testing::data(&page);
        assert_eq!((sum(&data["newBytes4"]), sum(&data["baseBytes4"])), (1_505_096, 0));
        assert_eq!((&data["kind"], &data["notes"]), (&json!("diff"), &json!(["a doubt"])));
        assert_eq!((&data["scale"], &data["vanishedStacks"]), (&json!("doubled"), &json!([0, 0, 0, 0, 0])));
        assert_eq!(data["threads"], json!(["main", "pool-0"]));
    }
}
