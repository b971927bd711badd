//! Lists individual allocations: the largest as text, all of them as JSON.
//!
//! Invariant: memory does not grow with the number of allocations, only with that of their stacks.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::io::{self, Write};

use memtrack_reader::StackId;
use memtrack_reader::query::{AllocationOutcome, AllocationRecord};
use serde_json::{Value, json};

use super::{MatchTotals, frame_value, label, span, stack_value};
use crate::reports::capture_info::Capture;
use crate::terminal::TextFormat;
use crate::text::{Label, TextTable, column, left_out};
use crate::units::size;

/// Size, row number, figures and label.
type Ranked = (u64, Reverse<u64>, [String; 6], Label);

/// The largest allocations, as rows of text.
#[derive(Debug)]
pub(crate) struct Largest {
    limit: usize,
    /// Min-heap by size; of equal sizes the earlier row is kept.
    rows: BinaryHeap<Reverse<Ranked>>,
    seen: u64,
}

impl Largest {
    /// Keeps at most `limit` rows.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, rows: BinaryHeap::new(), seen: 0 }
    }

    /// Adds an allocation, if it is large enough.
    pub(crate) fn add(&mut self, capture: &Capture, life: &AllocationRecord) {
        self.seen += 1;
        if self.rows.len() >= self.limit {
            if self.rows.peek().is_some_and(|Reverse((least, ..))| *least >= life.size) {
                return;
            }
            self.rows.pop();
        }
        let label = label(capture, life.stack);
        self.rows.push(Reverse((life.size, Reverse(self.seen), figures(capture, life), label)));
    }

    /// Writes the rows, largest first.
    ///
    /// # Errors
    /// A write error.
    pub(crate) fn text(self, matched: &MatchTotals, format: TextFormat, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{}", format.heading(&matched.heading()))?;
        if self.rows.is_empty() {
            return Ok(());
        }
        let [size, made, lived, end, place] = ["Size", "Made after", "Lived", "End", "Place"].map(column);
        let [thread, allocator] = [column("Thread").optional(1), column("Allocator").optional(2)];
        let mut table = TextTable::new([size, made, lived, end, thread, allocator, place]);
        let (seen, shown) = (self.seen, self.rows.len() as u64);
        for Reverse((.., figures, label)) in self.rows.into_sorted_vec() {
            table.row(figures.into_iter().map(Into::into).chain([label.into()]));
        }
        table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        match seen - shown {
            0 => Ok(()),
            more => writeln!(out, "{}", left_out(more)),
        }
    }
}

fn figures(capture: &Capture, life: &AllocationRecord) -> [String; 6] {
    let tid = |id| capture.thread(id).0.map_or("?".into(), |tid| tid.to_string());
    let end = match life.fate {
        AllocationOutcome::Live => "live".into(),
        AllocationOutcome::Lost { .. } => "not seen".into(),
        AllocationOutcome::Freed { thread, .. } if thread == life.thread => "freed".into(),
        AllocationOutcome::Freed { thread, .. } => format!("freed by {}", tid(thread)),
    };
    [size(life.size), span(life.time_ns), span(life.lifetime_ns), end, tid(life.thread), life.allocator.name().into()]
}

/// Writes allocations as JSON as they are found. After the first write error it writes nothing more; reading goes on.
#[derive(Debug)]
pub(crate) struct ListingWriter<W> {
    out: W,
    written: io::Result<()>,
    rows: u64,
    /// Stacks of the current capture that rows refer to.
    stacks: BTreeSet<StackId>,
    /// Stacks of earlier captures.
    described: Vec<Value>,
    captures: Vec<Value>,
}

impl<W: Write> ListingWriter<W> {
    /// Writes the head of `memtrack-query`, version 1.
    pub(crate) fn new(query: &str, mut out: W) -> Self {
        let head = write!(
            out,
            "{{\"schema\":\"memtrack-query\",\"version\":1,\"query\":{},\"by\":null,\"rows\":[",
            Value::from(query)
        );
        Self { out, written: head, rows: 0, stacks: BTreeSet::new(), described: Vec::new(), captures: Vec::new() }
    }

    /// Writes an allocation of the current capture.
    pub(crate) fn add(&mut self, capture: &Capture, life: &AllocationRecord) {
        self.stacks.insert(life.stack);
        let comma = if self.rows > 0 { "," } else { "" };
        self.rows += 1;
        if self.written.is_ok() {
            self.written = write!(self.out, "{comma}\n{}", row(self.captures.len(), capture, life));
        }
    }

    /// Ends the current capture.
    pub(crate) fn end_capture(&mut self, capture: &Capture) {
        let number = self.captures.len();
        for stack in std::mem::take(&mut self.stacks) {
            let frames = stack_value(capture, stack);
            self.described.push(json!({"capture": number, "stack": stack.0, "frames": frames}));
        }
        self.captures.push(super::capture_value(capture));
    }

    /// Writes the stacks that rows refer to, and the totals.
    ///
    /// # Errors
    /// The first write error.
    pub(crate) fn finish(mut self, matched: &MatchTotals) -> io::Result<()> {
        self.written?;
        write!(self.out, "\n],\"stacks\":[")?;
        for (number, stack) in self.described.iter().enumerate() {
            write!(self.out, "{}\n{stack}", if number > 0 { "," } else { "" })?;
        }
        let (captures, (matched, of)) = (Value::from(self.captures), matched.json());
        writeln!(self.out, "\n],\"captures\":{captures},\"matched\":{matched},\"of\":{of}}}")
    }
}

fn row(number: usize, capture: &Capture, life: &AllocationRecord) -> Value {
    let tid = |id| capture.thread(id).0;
    let (fate, freed_by) = match life.fate {
        AllocationOutcome::Live => ("live", None),
        AllocationOutcome::Lost { .. } => ("lost", None),
        AllocationOutcome::Freed { thread, .. } => ("freed", tid(thread)),
    };
    let frame = capture.frames.node(life.stack).map(|node| node.frame);
    let mut value = frame_value(capture, frame);
    value["capture"] = number.into();
    value["stack"] = life.stack.0.into();
    value["bytes"] = life.size.into();
    value["allocator"] = life.allocator.name().into();
    value["thread"] = tid(life.thread).into();
    value["thread_name"] = capture.thread(life.thread).1.into();
    value["time_ns"] = life.time_ns.into();
    value["lifetime_ns"] = life.lifetime_ns.into();
    value["fate"] = fate.into();
    value["freed_by"] = freed_by.into();
    value["leaked"] = life.leaked.into();
    value["temporary"] = life.temporary.into();
    value["peak"] = life.peak.into();
    value
}
