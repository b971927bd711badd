//! `table`: a row for each innermost frame and allocator, as text, JSON or CSV.
//!
//! Invariant: the rows add up to the view's total; only text leaves any out, and says how many.

use std::collections::HashMap;
use std::io::{self, Write};

use memtrack_format::Allocator;
use memtrack_reader::analysis::Tally;
use memtrack_reader::{FrameId, ThreadId, View};
use serde_json::{Value, json};

use super::facts::{Capture, visible};
use super::stats_json::thread;
use super::table::Table;
use super::{NO_STACK, view};
use crate::terminal::Look;
use crate::units::{count, percent, size};

/// The rows of one view, largest first.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    capture: &'a Capture,
    view: View,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    key: Key,
    tally: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    frame: Option<FrameId>,
    allocator: Allocator,
    /// Where threads are kept apart.
    thread: Option<ThreadId>,
}

impl<'a> Places<'a> {
    /// The rows of `view`, with threads apart or together.
    pub(crate) fn new(capture: &'a Capture, view: View, split_threads: bool) -> Self {
        let mut places: HashMap<Key, usize> = HashMap::new();
        let mut rows: Vec<Row> = Vec::new();
        for group in capture.analysis.view(view) {
            let frame = capture.frames.node(group.stack).map(|node| node.frame);
            let key = Key { frame, allocator: group.allocator, thread: split_threads.then_some(group.thread) };
            let place = *places.entry(key).or_insert(rows.len());
            if place == rows.len() {
                rows.push(Row { key, tally: Tally::default() });
            }
            rows[place].tally.add(group.bytes, group.count);
        }
        rows.sort_by_key(|row| std::cmp::Reverse((row.tally.bytes, row.tally.count)));
        Self { capture, view, rows }
    }

    /// Everything as `memtrack-table`, version 1.
    ///
    /// # Errors
    /// What the writer says; so below.
    pub(crate) fn json(&self, mut out: impl Write) -> io::Result<()> {
        let view = view::name(self.view);
        write!(out, "{{\"schema\":\"memtrack-table\",\"version\":1,\"view\":\"{view}\",\"rows\":[")?;
        for (number, row) in self.rows.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(out, "{comma}\n{}", self.object(row))?;
        }
        writeln!(out, "\n]}}")
    }

    /// Everything as CSV (RFC 4180), with a head.
    pub(crate) fn csv(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "function,file,line,allocator,tid,thread_name,count,bytes")?;
        for row in &self.rows {
            let (function, file, line) = self.place(row.key.frame);
            let line = line.map(|line| line.to_string()).unwrap_or_default();
            let (tid, name) = row.key.thread.map(|id| thread(self.capture, id)).unwrap_or_default();
            let tid = tid.map(|tid| tid.to_string()).unwrap_or_default();
            let allocator = row.key.allocator.name();
            let [function, file, name] = [function, file.unwrap_or_default(), name].map(csv_field);
            let Tally { bytes, count } = row.tally;
            writeln!(out, "{function},{file},{line},{allocator},{tid},{name},{count},{bytes}")?;
        }
        Ok(())
    }

    /// The first rows as text; all for a `limit` of 0.
    pub(crate) fn text(&self, limit: usize, look: Look, mut out: impl Write) -> io::Result<()> {
        let total = self.total();
        let title = format!("{}: {} in {} allocations", view::title(self.view), size(total.bytes), count(total.count));
        writeln!(out, "{}", look.heading(&title))?;
        let shown = if limit == 0 { self.rows.len() } else { limit.min(self.rows.len()) };
        if shown == 0 {
            return Ok(());
        }
        let mut table = Table::default();
        let split = self.rows.iter().any(|row| row.key.thread.is_some());
        let head = ["Size", "Part", "Count", "Allocator", "Thread", "Place"];
        table.row(head.into_iter().filter(|title| split || *title != "Thread").map(Into::into));
        self.rows[..shown].iter().for_each(|row| table.row(self.cells(row, total.bytes)));
        for (number, line) in table.lines(look.width).into_iter().enumerate() {
            writeln!(out, "{}", if number == 0 { look.heading(&line) } else { line })?;
        }
        match self.rows.len() - shown {
            0 => Ok(()),
            more => writeln!(out, "  and {} more (-n 0 shows all)", count(more as u64)),
        }
    }

    fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.rows.iter().for_each(|row| total.add(row.tally.bytes, row.tally.count));
        total
    }

    fn object(&self, row: &Row) -> Value {
        let (function, file, line) = self.place(row.key.frame);
        let Tally { bytes, count } = row.tally;
        let allocator = row.key.allocator.name();
        let mut value = json!({
            "function": function, "file": file, "line": line, "allocator": allocator, "count": count, "bytes": bytes,
        });
        if let Some(id) = row.key.thread {
            value["thread"] = thread(self.capture, id).0.into();
        }
        value
    }

    fn cells(&self, row: &Row, whole: u64) -> Vec<String> {
        let Tally { bytes, count: number } = row.tally;
        let mut cells = vec![size(bytes), percent(bytes, whole), count(number), row.key.allocator.name().into()];
        if let Some(id) = row.key.thread {
            let (tid, name) = thread(self.capture, id);
            cells.push(visible(&format!("{} {name}", tid.map_or("?".into(), |tid| tid.to_string()))));
        }
        let place = match self.place(row.key.frame) {
            (function, None, _) => function.into(),
            (function, Some(file), None) => format!("{function} at {file}"),
            (function, Some(file), Some(line)) => format!("{function} at {file}:{line}"),
        };
        cells.push(visible(&place));
        cells
    }

    fn place(&self, frame: Option<FrameId>) -> (&str, Option<&str>, Option<u32>) {
        let Some(id) = frame else { return (NO_STACK, None, None) };
        let frames = &self.capture.frames;
        let (file, line) = (frames.file(id), frames.frame(id).line);
        (frames.function(id), Some(file).filter(|file| !file.is_empty()), Some(line).filter(|line| *line > 0))
    }
}

/// A field in quotation marks where it needs them.
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::{Places, csv_field};
    use crate::reports::fixture;
    use crate::terminal::Look;
    use memtrack_reader::View;
    use serde_json::Value;

    fn golden(name: &str, split: bool, write: impl Fn(&Places<'_>, &mut Vec<u8>) -> std::io::Result<()>) {
        let capture = fixture::capture();
        let mut text = Vec::new();
        write(&Places::new(&capture, View::Allocated, split), &mut text).unwrap();
        fixture::compare(name, &text);
    }

    #[test]
    fn golden_files() {
        let look = Look { width: Some(80), color: false };
        golden("table.txt", false, |places, out| places.text(3, look, out));
        golden("table-threads.txt", true, |places, out| places.text(0, look, out));
        golden("table.csv", true, |places, out| places.csv(out));
        golden("table.json", false, |places, out| places.json(out));
    }

    #[test]
    fn json_rows_have_a_thread_only_where_threads_are_apart() {
        let capture = fixture::capture();
        for (split, keys) in [
            (false, "allocator bytes count file function line"),
            (true, "allocator bytes count file function line thread"),
        ] {
            let mut text = Vec::new();
            Places::new(&capture, View::Allocated, split).json(&mut text).unwrap();
            let value: Value = serde_json::from_slice(&text).unwrap();
            let row = value["rows"][0].as_object().unwrap();
            assert_eq!(row.keys().cloned().collect::<Vec<_>>().join(" "), keys);
        }
    }

    #[test]
    fn csv_fields_with_commas_are_quoted() {
        assert_eq!(csv_field("<listcomp>"), "<listcomp>");
        assert_eq!(csv_field("f(int, \"x\")"), "\"f(int, \"\"x\"\")\"");
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let (capture, mut text) = (fixture::empty(), Vec::new());
        let look = Look { width: None, color: false };
        Places::new(&capture, View::Leaks, false).text(5, look, &mut text).unwrap();
        assert_eq!(text, b"Leaks: 0 B in 0 allocations\n");
    }
}
