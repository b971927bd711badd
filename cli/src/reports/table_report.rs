//! `table`: a view's memory by source location and allocator, as text, JSON or CSV.
//!
//! JSON and CSV have a row for each recorded innermost frame and allocator. Text has a row for each line of own code
//! with all its allocators ([`rows_by_own_line`]); with `--all-frames` the same rows as JSON. Invariant: the rows add
//! up to the view's total; only text omits rows, and states how many.

use std::collections::HashMap;
use std::io::{self, Write};

use memtrack_format::Allocator;
use memtrack_reader::analysis::Tally;
use memtrack_reader::frames::Frame;
use memtrack_reader::{FrameId, StackId, ThreadId, View};
use serde_json::{Value, json};

use super::capture_info::Capture;
use super::own_lines::{OwnLineRow, rows_by_own_line};
use super::{NO_STACK, estimates, view};
use crate::terminal::TextFormat;
use crate::text::{Label, Styled, TextCell, TextTable, column, left_out, share_of};
use crate::units::count_within;

/// The rows of one view, largest first.
#[derive(Debug)]
pub(crate) struct TableReport<'a> {
    capture: &'a Capture,
    view: View,
    split_threads: bool,
    split_processes: bool,
    rows: Vec<TableRow>,
}

/// A row in text.
#[derive(Clone, Debug)]
struct TableTextRow {
    thread: Option<ThreadId>,
    process: Option<FrameId>,
    allocators: String,
    tally: Tally,
    place: Label,
}

/// The identity of a row in JSON and CSV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TableKey {
    /// The innermost frame; `None` for empty stacks.
    frame: Option<FrameId>,
    allocator: Allocator,
    /// Set if threads are separated.
    thread: Option<ThreadId>,
    /// Set if processes are separated: the frame that names the process.
    process: Option<FrameId>,
}

#[derive(Clone, Copy, Debug)]
struct TableRow {
    key: TableKey,
    tally: Tally,
}

impl<'a> TableReport<'a> {
    /// The rows of `view`. `split_processes`: each stack's root frame names its process.
    pub(crate) fn new(capture: &'a Capture, view: View, split_threads: bool, split_processes: bool) -> Self {
        let mut places: HashMap<TableKey, usize> = HashMap::new();
        let mut shown: HashMap<Frame, FrameId> = HashMap::new();
        let mut rows: Vec<TableRow> = Vec::new();
        for group in capture.analysis.rows(view) {
            let process = split_processes.then(|| capture.frames.leaf_to_root(group.stack).last()).flatten();
            let node =
                capture.frames.node(group.stack).filter(|node| !split_processes || node.parent != StackId::EMPTY);
            let thread = split_threads.then_some(group.thread);
            // The same function of two libraries is one row: nothing in it would tell them apart.
            let frame = node.map(|node| *shown.entry(capture.frames.frame(node.frame)).or_insert(node.frame));
            let key = TableKey { frame, allocator: group.allocator, thread, process };
            let place = *places.entry(key).or_insert(rows.len());
            if place == rows.len() {
                rows.push(TableRow { key, tally: Tally::default() });
            }
            rows[place].tally += group.tally();
        }
        rows.sort_by_key(|row| std::cmp::Reverse((row.tally.bytes, row.tally.count)));
        Self { capture, view, split_threads, split_processes, rows }
    }

    /// Writes all rows as `memtrack-table`, version 1.
    ///
    /// # Errors
    /// A write error; likewise below.
    pub(crate) fn json(&self, mut out: impl Write) -> io::Result<()> {
        let view = view::name(self.view);
        write!(out, "{{\"schema\":\"memtrack-table\",\"version\":1,\"view\":\"{view}\",\"rows\":[")?;
        for (number, row) in self.rows.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(out, "{comma}\n{}", self.object(row))?;
        }
        writeln!(out, "\n]}}")
    }

    /// Writes all rows as CSV (RFC 4180), with a header.
    pub(crate) fn csv(&self, mut out: impl Write) -> io::Result<()> {
        let processes = self.rows.iter().any(|row| row.key.process.is_some());
        let columns = self.rows.iter().any(|row| self.column(row).is_some());
        let more = |wanted, text| if wanted { text } else { "" };
        let (more_column, more_process) = (more(columns, ",column"), more(processes, ",process"));
        writeln!(out, "function,file,line,allocator,tid,thread_name,count,bytes{more_column}{more_process}")?;
        for row in &self.rows {
            let (function, file, line) = self.place(row.key.frame);
            let line = line.map(|line| line.to_string()).unwrap_or_default();
            let (tid, name) = row.key.thread.map(|id| self.capture.thread(id)).unwrap_or_default();
            let tid = tid.map(|tid| tid.to_string()).unwrap_or_default();
            let allocator = row.key.allocator.name();
            let [function, file, name] = [function, file.unwrap_or_default(), name].map(csv_field);
            let Tally { bytes, count, .. } = row.tally;
            let process = row.key.process.map(|id| format!(",{}", csv_field(self.capture.frames.function(id))));
            let process = process.unwrap_or_default();
            let column = self.column(row).map(|column| column.to_string()).unwrap_or_default();
            let column = if columns { format!(",{column}") } else { column };
            writeln!(out, "{function},{file},{line},{allocator},{tid},{name},{count},{bytes}{column}{process}")?;
        }
        Ok(())
    }

    /// Writes the first `limit` rows as text.
    pub(crate) fn text(&self, limit: usize, format: TextFormat, mut out: impl Write) -> io::Result<()> {
        let total = self.total();
        writeln!(out, "{}", format.heading(&self.capture.headline(self.view, total)))?;
        self.capture.write_left_out(self.view, format, &mut out)?;
        let rows = self.text_rows();
        let shown = limit.min(rows.len());
        if shown == 0 {
            return Ok(());
        }
        let threads = rows.iter().any(|row| row.thread.is_some());
        let processes = rows.iter().any(|row| row.process.is_some());
        let figures = ["Size", "Part", "Count"].map(column);
        let allocator = column("Allocator").optional(1);
        let process = processes.then_some(column("Process").cut());
        let thread = threads.then_some(column("Thread").cut());
        let columns = figures.into_iter().chain([allocator]).chain(process).chain(thread).chain([column("Place")]);
        let mut table = TextTable::new(columns);
        rows[..shown].iter().for_each(|row| table.row(self.cells(row, total.bytes)));
        table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        match rows.len() - shown {
            0 => Ok(()),
            more => writeln!(out, "{}", left_out(more as u64)),
        }
    }

    fn text_rows(&self) -> Vec<TableTextRow> {
        if self.capture.shown.folded {
            let rows = rows_by_own_line(self.capture, self.view, self.split_threads, self.split_processes);
            return rows.iter().map(|row| self.of_holder(row)).collect();
        }
        self.rows.iter().map(|row| self.as_recorded(row)).collect()
    }

    fn of_holder(&self, row: &OwnLineRow) -> TableTextRow {
        TableTextRow {
            thread: row.key.thread,
            process: row.key.process,
            allocators: row.allocators(),
            tally: row.tally,
            place: row.label(self.capture),
        }
    }

    fn as_recorded(&self, row: &TableRow) -> TableTextRow {
        TableTextRow {
            thread: row.key.thread,
            process: row.key.process,
            allocators: row.key.allocator.name().into(),
            tally: row.tally,
            place: self.capture.frame_label(row.key.frame),
        }
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.rows.iter().for_each(|row| total += row.tally);
        total
    }

    fn object(&self, row: &TableRow) -> Value {
        let (function, file, line) = self.place(row.key.frame);
        let Tally { bytes, count, .. } = row.tally;
        let allocator = row.key.allocator.name();
        let mut value = json!({
            "function": function, "file": file, "line": line, "allocator": allocator, "count": count, "bytes": bytes,
        });
        estimates::put_ranges(&mut value, self.capture, "", row.tally);
        if let Some(column) = self.column(row) {
            value["column"] = column.into();
        }
        if let Some(id) = row.key.process {
            value["process"] = self.capture.frames.function(id).into();
        }
        if let Some(id) = row.key.thread {
            value["thread"] = self.capture.thread(id).0.into();
        }
        value
    }

    fn cells(&self, row: &TableTextRow, whole: u64) -> Vec<TextCell> {
        let mut cells = Vec::from(share_of(row.tally, whole));
        cells.extend([count_within(row.tally.count, row.tally.count_range()).into(), (&row.allocators).into()]);
        if let Some(id) = row.process {
            let name = self.capture.frames.function(id);
            cells.push(Styled::from(name.strip_prefix("process ").unwrap_or(name)).cut(Some(LONGEST_NAME)).into());
        }
        if let Some(id) = row.thread {
            let (tid, name) = self.capture.thread(id);
            let thread = format!("{} {name}", tid.map_or("?".into(), |tid| tid.to_string()));
            cells.push(Styled::from(thread).cut(Some(LONGEST_NAME)).into());
        }
        cells.push(row.place.clone().into());
        cells
    }

    /// The column of a call, if its line has several calls.
    fn column(&self, row: &TableRow) -> Option<u32> {
        row.key.frame.map(|id| self.capture.frames.frame(id).column).filter(|column| *column > 0)
    }

    fn place(&self, frame: Option<FrameId>) -> (&str, Option<&str>, Option<u32>) {
        let Some(id) = frame else { return (NO_STACK, None, None) };
        let frames = &self.capture.frames;
        let (file, line) = (frames.file(id), frames.frame(id).line);
        (frames.function(id), Some(file).filter(|file| !file.is_empty()), Some(line).filter(|line| *line > 0))
    }
}

/// Maximum width of process and thread names: id and the beginning of the name.
const LONGEST_NAME: usize = 24;

/// Quotes a field if necessary.
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::{TableReport, csv_field};
    use crate::reports::fixture;
    use crate::terminal::TextFormat;
    use memtrack_reader::analysis::Group;
    use memtrack_reader::frames::Frame;
    use memtrack_reader::{StackId, View};
    use serde_json::Value;

    fn golden(name: &str, split: bool, write: impl Fn(&TableReport<'_>, &mut Vec<u8>) -> std::io::Result<()>) {
        let capture = fixture::capture();
        let mut text = Vec::new();
        write(&TableReport::new(&capture, View::Allocated, split, false), &mut text).unwrap();
        fixture::compare(name, &text);
    }

    #[test]
    fn golden_files() {
        let format = TextFormat { width: Some(80), color: false };
        golden("table.txt", false, |places, out| places.text(3, format, out));
        golden("table-threads.txt", true, |places, out| places.text(usize::MAX, format, out));
        golden("table.csv", true, |places, out| places.csv(out));
        golden("table.json", false, |places, out| places.json(out));
    }

    #[test]
    fn a_function_of_two_libraries_is_one_row() {
        let mut capture = fixture::of_stacks(&[(&[("make", "pool.h")], 5), (&[("other", "pool.h")], 7)]);
        let stacks: Vec<_> = capture.analysis.groups.iter().map(|group| group.stack).collect();
        let make = capture.frames.frame(capture.frames.node(stacks[0]).unwrap().frame);
        let group = capture.analysis.groups.iter().next().unwrap();
        for path in ["liba.so", "libb.so"] {
            let path = capture.frames.name_id(path).unwrap();
            let frame = capture.frames.id_in_module(make, path).unwrap();
            let stack = capture.frames.stack_id(StackId::EMPTY, frame).unwrap();
            capture.analysis.groups.push(&Group { stack, ..group });
        }
        let mut text = Vec::new();
        TableReport::new(&capture, View::Leaks, false, false).json(&mut text).unwrap();
        let rows: Value = serde_json::from_slice(&text).unwrap();
        let rows = rows["rows"].as_array().unwrap().iter().map(|row| (row["function"].as_str(), row["bytes"].as_u64()));
        assert_eq!(rows.collect::<Vec<_>>(), [(Some("make"), Some(15)), (Some("other"), Some(7))]);
    }

    #[test]
    fn json_rows_have_a_thread_only_where_threads_are_apart() {
        let capture = fixture::capture();
        for (split, keys) in [
            (false, "allocator bytes count file function line"),
            (true, "allocator bytes count file function line thread"),
        ] {
            let mut text = Vec::new();
            TableReport::new(&capture, View::Allocated, split, false).json(&mut text).unwrap();
            let value: Value = serde_json::from_slice(&text).unwrap();
            let row = value["rows"][0].as_object().unwrap();
            assert_eq!(row.keys().cloned().collect::<Vec<_>>().join(" "), keys);
        }
    }

    #[test]
    fn a_column_is_shown_where_a_line_holds_several_calls() {
        let mut capture = fixture::capture();
        let name = capture.frames.name_id("work").unwrap();
        let file = capture.frames.name_id("app.py").unwrap();
        for (group, column) in [(0, 5), (1, 21)] {
            let id = capture.frames.id_of(Frame { function: name, file, line: 7, column }).unwrap();
            let stack = capture.frames.stack_of(&[id]).unwrap();
            capture.analysis.groups.change(group, |group| group.stack = stack);
        }
        let places = TableReport::new(&capture, View::Allocated, false, false);
        let mut texts = [Vec::new(), Vec::new(), Vec::new()];
        let [text, json, csv] = &mut texts;
        places.text(usize::MAX, TextFormat { width: None, color: false }, text).unwrap();
        places.json(json).unwrap();
        places.csv(csv).unwrap();
        let [text, json, csv] = texts.map(|text| String::from_utf8(text).unwrap());
        assert!(text.contains("work at app.py:7:5\n") && text.contains("work at app.py:7:21\n"), "{text}");
        assert!(json.contains("\"column\":21") && json.contains("\"function\":\"<no stack>\""), "{json}");
        assert!(csv.starts_with("function,file,line,allocator,tid,thread_name,count,bytes,column\n"), "{csv}");
        assert!(csv.lines().any(|line| line.starts_with("work,app.py,7,") && line.ends_with(",21")), "{csv}");
    }

    #[test]
    fn csv_fields_with_commas_are_quoted() {
        assert_eq!(csv_field("<listcomp>"), "<listcomp>");
        assert_eq!(csv_field("f(int, \"x\")"), "\"f(int, \"\"x\"\")\"");
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let (capture, mut text) = (fixture::empty(), Vec::new());
        let format = TextFormat { width: None, color: false };
        TableReport::new(&capture, View::Leaks, false, false).text(5, format, &mut text).unwrap();
        assert_eq!(text, b"Leaks: 0 B in 0 allocations, live at exit\n");
    }
}
