//! `transform records`: one table of a capture as JSON lines, for the Python package.
//!
//! Each line is an array whose first element says what the others are. Rows come in columns, [`BATCH`] rows to a line,
//! so that Python decodes them at the speed of its JSON parser; functions, files, frames and stacks are numbered from 0 in
//! lines of their own. Hidden from help: the form may change with the package, which is of the same version.
//!
//! Invariant: a line refers only to earlier lines, and the last line is `["end"]`.

mod events;

use std::io::{self, Write};

use memtrack_format::Allocator;
use memtrack_reader::analysis::GroupRow;
use memtrack_reader::frames::NameId;
use memtrack_reader::source::ReadSummary;
use memtrack_reader::spans::{LiveRow, SpanSums};
use memtrack_reader::{FrameId, Frames, StackId, View};
use serde::Serialize;

use crate::reports::capture_info::Capture;

pub(crate) use events::EventRecords;

/// Rows in a line.
const BATCH: usize = 4096;

/// Writes the allocations of a view: a row for each stack, allocator and thread.
///
/// # Errors
/// A write error.
pub(crate) fn write_allocations(capture: &Capture, view: View, out: impl Write) -> io::Result<()> {
    let mut lines = RecordLines::new(out)?;
    let rows: Vec<_> = capture.analysis.rows(view).collect();
    for rows in rows.chunks(BATCH) {
        let stacks: Vec<_> = rows.iter().map(|row| lines.stack(row.stack, &capture.frames)).collect();
        lines.flush(&capture.frames)?;
        let threads: Vec<_> = rows.iter().map(|row| capture.thread(row.thread)).collect();
        let bytes: Vec<_> = rows.iter().map(|row| row.bytes).collect();
        let counts: Vec<_> = rows.iter().map(|row| row.count).collect();
        let allocators: Vec<_> = rows.iter().map(|row| allocator_index(Some(row.allocator))).collect();
        let tids: Vec<_> = threads.iter().map(|(tid, _)| tid.unwrap_or(0)).collect();
        let names: Vec<_> = threads.iter().map(|(_, name)| *name).collect();
        if capture.is_sampled() {
            lines.write(&("allocations", bytes, counts, allocators, tids, names, stacks, ends(rows)))?;
        } else {
            lines.write(&("allocations", bytes, counts, allocators, tids, names, stacks))?;
        }
    }
    lines.end()
}

/// The ends of the 95 % intervals of rows of samples, of bytes and of counts.
fn ends(rows: &[GroupRow]) -> [Vec<u64>; 4] {
    let of = |end: fn(&GroupRow) -> u64| rows.iter().map(end).collect();
    [
        of(|row| row.tally().bytes_range().0),
        of(|row| row.tally().bytes_range().1),
        of(|row| row.tally().count_range().0),
        of(|row| row.tally().count_range().1),
    ]
}

/// Writes the memory snapshots.
///
/// # Errors
/// A write error.
pub(crate) fn write_snapshots(capture: &Capture, out: impl Write) -> io::Result<()> {
    let mut lines = RecordLines::new(out)?;
    for rows in capture.analysis.snapshots.chunks(BATCH) {
        lines.write(&(
            "snapshots",
            rows.iter().map(|row| row.time_ns).collect::<Vec<_>>(),
            rows.iter().map(|row| row.heap_bytes).collect::<Vec<_>>(),
            rows.iter().map(|row| row.rss_bytes).collect::<Vec<_>>(),
        ))?;
    }
    lines.end()
}

/// Writes the sums of spans in which something was allocated, by their number.
///
/// # Errors
/// A write error.
pub(crate) fn write_spans(SpanSums { spans, .. }: &SpanSums, pid: Option<u32>, out: impl Write) -> io::Result<()> {
    let mut lines = RecordLines::new(out)?;
    lines.write(&("process", pid))?;
    let rows = spans.iter().enumerate().map(|(number, (_, sum))| (number, sum));
    let rows: Vec<_> = rows.filter(|(_, sum)| sum.count > 0).collect();
    for rows in rows.chunks(BATCH) {
        lines.write(&(
            "spans",
            rows.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            rows.iter().map(|(_, sum)| sum.count).collect::<Vec<_>>(),
            rows.iter().map(|(_, sum)| sum.bytes).collect::<Vec<_>>(),
            rows.iter().map(|(_, sum)| sum.peak_bytes).collect::<Vec<_>>(),
            rows.iter().map(|(_, sum)| sum.kept_bytes).collect::<Vec<_>>(),
        ))?;
    }
    lines.end()
}

/// Writes what is live at the ends of spans: a row for each span, stack, allocator and thread.
///
/// # Errors
/// A write error.
pub(crate) fn write_live(rows: &[LiveRow], read: &ReadSummary, pid: Option<u32>, out: impl Write) -> io::Result<()> {
    let mut lines = RecordLines::new(out)?;
    lines.write(&("process", pid))?;
    for rows in rows.chunks(BATCH) {
        let stacks: Vec<_> = rows.iter().map(|row| lines.stack(row.group.stack, &read.frames)).collect();
        lines.flush(&read.frames)?;
        let threads: Vec<_> = rows.iter().map(|row| read.threads.get(row.group.thread.0 as usize)).collect();
        lines.write(&(
            "live",
            rows.iter().map(|row| row.span).collect::<Vec<_>>(),
            rows.iter().map(|row| row.live.bytes).collect::<Vec<_>>(),
            rows.iter().map(|row| row.live.count).collect::<Vec<_>>(),
            rows.iter().map(|row| allocator_index(Some(row.group.allocator))).collect::<Vec<_>>(),
            threads.iter().map(|thread| thread.map_or(0, |thread| thread.tid)).collect::<Vec<_>>(),
            threads.iter().map(|thread| thread.map_or("", |thread| &thread.name)).collect::<Vec<_>>(),
            stacks,
        ))?;
    }
    lines.end()
}

/// The index of an allocator in the line `allocators`; the last entry there is null.
fn allocator_index(allocator: Option<Allocator>) -> usize {
    let name = allocator.map(Allocator::name);
    let known = |other: &Allocator| Some(other.name()) == name;
    Allocator::ALL.iter().position(known).unwrap_or(Allocator::ALL.len())
}

/// Writes lines, and numbers what they refer to.
#[derive(Debug)]
struct RecordLines<W> {
    out: W,
    names: NewNumbers,
    frames: NewNumbers,
    /// Stack 0 has no frame, and is known from the beginning.
    stacks: NewNumbers,
}

impl<W: Write> RecordLines<W> {
    /// Begins with the names of allocators.
    fn new(out: W) -> io::Result<Self> {
        let mut stacks = NewNumbers::default();
        stacks.number(StackId::EMPTY.0);
        stacks.new.clear();
        let mut lines = Self { out, names: NewNumbers::default(), frames: NewNumbers::default(), stacks };
        let names: Vec<_> = Allocator::ALL.iter().map(|allocator| Some(allocator.name())).chain([None]).collect();
        lines.write(&("allocators", names))?;
        Ok(lines)
    }

    /// The number of a stack. What is new has to be written by [`RecordLines::flush`] before it is referred to.
    fn stack(&mut self, stack: StackId, frames: &Frames) -> u32 {
        let mut unknown = Vec::new();
        let mut outer = stack;
        while self.stacks.known(outer.0).is_none() {
            let Some(node) = frames.node(outer) else { break };
            unknown.push(outer);
            outer = node.parent;
        }
        for stack in unknown.into_iter().rev() {
            self.stacks.number(stack.0);
        }
        self.stacks.known(stack.0).unwrap_or(0)
    }

    /// Writes the new names, frames and stacks.
    fn flush(&mut self, frames: &Frames) -> io::Result<()> {
        let mut places = Vec::new();
        let mut nodes = Vec::new();
        for stack in std::mem::take(&mut self.stacks.new) {
            let Some(node) = frames.node(StackId(stack)) else { continue };
            let caller = self.stacks.known(node.parent.0).unwrap_or(0);
            nodes.push((caller, self.frames.number(node.frame.0)));
        }
        for frame in std::mem::take(&mut self.frames.new) {
            let frame = frames.frame(FrameId(frame));
            let [function, file] = [frame.function, frame.file].map(|name| self.names.number(name.0));
            places.push((function, file, frame.line, frame.column));
        }
        let names: Vec<_> =
            std::mem::take(&mut self.names.new).into_iter().map(|name| frames.name(NameId(name))).collect();
        if !names.is_empty() {
            self.write(&("names", names))?;
        }
        if !places.is_empty() {
            self.write(&("frames", places))?;
        }
        if !nodes.is_empty() {
            self.write(&("stacks", nodes))?;
        }
        Ok(())
    }

    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, line).map_err(io::Error::from)?;
        writeln!(self.out)
    }

    fn end(mut self) -> io::Result<()> {
        self.write(&("end",))
    }
}

/// Dense numbers for ids of the reader's tables, in the order of their first use.
#[derive(Debug, Default)]
struct NewNumbers {
    /// By id: its number plus 1; 0 for ids without one.
    numbers: Vec<u32>,
    given: u32,
    /// Ids that have got a number and were not written yet.
    new: Vec<u32>,
}

impl NewNumbers {
    fn known(&self, id: u32) -> Option<u32> {
        self.numbers.get(id as usize)?.checked_sub(1)
    }

    fn number(&mut self, id: u32) -> u32 {
        if let Some(known) = self.known(id) {
            return known;
        }
        let index = id as usize;
        if index >= self.numbers.len() {
            self.numbers.resize(index + 1, 0);
        }
        let number = self.given;
        self.given += 1;
        self.numbers[index] = self.given;
        self.new.push(id);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::{write_allocations, write_snapshots};
    use crate::reports::fixture;
    use memtrack_reader::View;

    #[test]
    fn allocations() {
        let mut text = Vec::new();
        write_allocations(&fixture::capture(), View::Allocated, &mut text).unwrap();
        fixture::compare("allocations.records.jsonl", &text);
    }

    #[test]
    fn snapshots() {
        let mut text = Vec::new();
        write_snapshots(&fixture::capture(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines, [r#"["snapshots",[1500000000],[1000],[9437184]]"#, r#"["end"]"#]);
    }
}
