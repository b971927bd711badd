//! The tables of sums, and those that say what keys refer to.
//!
//! Invariant: sums over the rows of a process are the figures of `memtrack stats`.

use std::num::NonZeroU64;

use anyhow::Result;
use memtrack_reader::View;
use memtrack_reader::analysis::{Group, SiteWindow, Tally, Variance};
use memtrack_reader::origin::whose;
use memtrack_reader::windows::complete;
use memtrack_reader::{FrameId, StackId};
use rustc_hash::FxHashSet;

use super::TableWriter;
use super::table::{ParquetCell, ParquetTable};
use crate::reports::stats::allocated;

const SITES: [(&str, &str); 24] = [
    ("process", "i64"),
    ("stack", "i64"),
    ("own_frame", "i64"),
    ("whose", "text"),
    ("allocator", "text"),
    ("tid", "i32"),
    ("allocated_bytes", "i64"),
    ("allocated_count", "i64"),
    ("peak_bytes", "i64"),
    ("peak_count", "i64"),
    ("leaked_bytes", "i64"),
    ("leaked_count", "i64"),
    ("leaked_at_exit_bytes", "i64"),
    ("leaked_at_exit_count", "i64"),
    ("temporary_bytes", "i64"),
    ("temporary_count", "i64"),
    ("allocated_bytes_variance", "f64"),
    ("allocated_count_variance", "f64"),
    ("peak_bytes_variance", "f64"),
    ("peak_count_variance", "f64"),
    ("leaked_bytes_variance", "f64"),
    ("leaked_count_variance", "f64"),
    ("leaked_at_exit_bytes_variance", "f64"),
    ("leaked_at_exit_count_variance", "f64"),
];

pub(super) const WINDOWS: [(&str, &str); 22] = [
    ("process", "i64"),
    ("window_number", "i64"),
    ("start_ns", "i64"),
    ("end_ns", "i64"),
    ("stack", "i64"),
    ("own_frame", "i64"),
    ("allocator", "text"),
    ("tid", "i32"),
    ("allocated_bytes", "i64"),
    ("allocated_count", "i64"),
    ("freed_bytes", "i64"),
    ("freed_count", "i64"),
    ("live_bytes", "i64"),
    ("live_count", "i64"),
    ("peak_bytes", "i64"),
    ("peak_count", "i64"),
    ("allocated_bytes_variance", "f64"),
    ("allocated_count_variance", "f64"),
    ("freed_bytes_variance", "f64"),
    ("freed_count_variance", "f64"),
    ("live_bytes_variance", "f64"),
    ("live_count_variance", "f64"),
];

pub(super) const SNAPSHOTS: [(&str, &str); 6] = [
    ("process", "i64"),
    ("snapshot", "i32"),
    ("time_ns", "i64"),
    ("rss_bytes", "i64"),
    ("heap_bytes", "i64"),
    ("order", "i64"),
];

const PROCESSES: [(&str, &str); 30] = [
    ("process", "i64"),
    ("pid", "i32"),
    ("parent_pid", "i32"),
    ("release", "text"),
    ("command", "text"),
    ("executable", "text"),
    ("python", "text"),
    ("start_ns", "i64"),
    ("duration_ns", "i64"),
    ("finalizing_ns", "i64"),
    ("exit_status", "i32"),
    ("end_reason", "text"),
    ("complete", "bool"),
    ("allocated_bytes", "i64"),
    ("allocated_count", "i64"),
    ("freed_count", "i64"),
    ("peak_bytes", "i64"),
    ("peak_count", "i64"),
    ("peak_time_ns", "i64"),
    ("leaked_bytes", "i64"),
    ("leaked_count", "i64"),
    ("leaked_at_exit_bytes", "i64"),
    ("leaked_at_exit_count", "i64"),
    ("peak_rss_bytes", "i64"),
    ("truncated_stacks", "i64"),
    ("lost_bytes", "i64"),
    ("time_uncertainty_ns", "i64"),
    ("sample_bytes", "i64"),
    ("alive_ns", "i64"),
    ("frees_of_earlier_blocks", "i64"),
];

/// The variances of bytes and count of a figure; null where it is exact.
fn variances<'a>(variance: Variance) -> [ParquetCell<'a>; 2] {
    let numbers = variance.numbers();
    let is_exact = numbers == [0.0; 4];
    let [bytes, _, count, _] = numbers;
    [bytes, count].map(|number| ParquetCell::Double((!is_exact).then_some(number.into())))
}

/// A number that is there.
fn number<'a>(value: u64) -> ParquetCell<'a> {
    ParquetCell::Number(Some(value))
}

impl TableWriter<'_> {
    /// Writes the tables that every capture has.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn sums(&mut self) -> Result<()> {
        let sites = self.table("sites", &SITES)?;
        self.sites(sites)?;
        let columns = [("stack", "i64"), ("caller", "i64"), ("frame", "i64"), ("own_frame", "i64"), ("depth", "i32")];
        let stacks = self.table("stacks", &columns)?;
        self.stacks(stacks)?;
        let columns = [
            ("frame", "i64"),
            ("function", "text"),
            ("file", "text"),
            ("line", "i32"),
            ("column", "i32"),
            ("module", "text"),
        ];
        let frames = self.table("frames", &columns)?;
        self.frames(frames)?;
        let threads = self.table("threads", &[("process", "i64"), ("tid", "i32"), ("name", "text")])?;
        self.threads(threads)?;
        let processes = self.table("processes", &PROCESSES)?;
        self.process(processes)
    }

    fn sites(&self, mut table: ParquetTable) -> Result<()> {
        let whose = whose(&self.source.capture.frames);
        let analysis = &self.source.capture.analysis;
        // Samples do not show which were.
        let knows_temporary = !self.source.capture.is_sampled();
        for (at, group) in analysis.groups.iter().enumerate() {
            let Group { stack, allocator, thread, .. } = group;
            let [allocated, peak, leaked, at_exit, temporary] =
                [View::Allocated, View::HighWaterMark, View::Leaks, View::LeaksAtExit, View::Temporary]
                    .map(|view| group.sum(view).tally());
            let [of_allocated, of_peak, of_leaked, of_exit] =
                [View::Allocated, View::HighWaterMark, View::Leaks, View::LeaksAtExit]
                    .map(|view| variances(analysis.variance(at, view)));
            table.row([
                self.process_key(),
                ParquetCell::Bits(self.keys.stack(stack)),
                ParquetCell::Bits(self.keys.own_frame(stack)),
                ParquetCell::Word(whose.get(stack.0 as usize).map(|whose| whose.name())),
                ParquetCell::Word(Some(allocator.name())),
                ParquetCell::Int32(self.source.capture.thread(thread).0.map(i32::cast_unsigned)),
                number(allocated.bytes),
                number(allocated.count),
                number(peak.bytes),
                number(peak.count),
                number(leaked.bytes),
                number(leaked.count),
                number(at_exit.bytes),
                number(at_exit.count),
                ParquetCell::Number(knows_temporary.then_some(temporary.bytes)),
                ParquetCell::Number(knows_temporary.then_some(temporary.count)),
                of_allocated[0],
                of_allocated[1],
                of_peak[0],
                of_peak[1],
                of_leaked[0],
                of_leaked[1],
                of_exit[0],
                of_exit[1],
            ])?;
        }
        table.finish()
    }

    /// The windows of the allocations that are kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn windows(&self, windows: &[SiteWindow], mut table: ParquetTable) -> Result<()> {
        if !self.source.capture.info.aggregated {
            let length = self.source.labels.window_ns;
            return windows
                .iter()
                .try_for_each(|window| self.window(window.from_ns / length, window, &mut table))
                .and_then(|()| table.finish());
        }
        (0..).zip(complete(windows)).try_for_each(|(place, window)| self.window(place, &window, &mut table))?;
        table.finish()
    }

    /// The rows of the window with this number.
    fn window(&self, place: u64, window: &SiteWindow, table: &mut ParquetTable) -> Result<()> {
        for flow in &window.rows {
            if !self.source.kept.has_group(flow.stack, flow.allocator, flow.thread) {
                continue;
            }
            let [allocated, freed, live] = [flow.allocated, flow.freed, flow.live];
            let peak = flow.peak.unwrap_or(live);
            let [of_allocated, of_freed, of_live] = [allocated, freed, live].map(|tally| variances(tally.variance));
            table.row([
                self.process_key(),
                number(place),
                number(window.from_ns),
                number(window.to_ns),
                ParquetCell::Bits(self.keys.stack(flow.stack)),
                ParquetCell::Bits(self.keys.own_frame(flow.stack)),
                ParquetCell::Word(Some(flow.allocator.name())),
                ParquetCell::Int32(self.source.capture.thread(flow.thread).0.map(i32::cast_unsigned)),
                number(allocated.bytes),
                number(allocated.count),
                number(freed.bytes),
                number(freed.count),
                number(live.bytes),
                number(live.count),
                number(peak.bytes),
                number(peak.count),
                of_allocated[0],
                of_allocated[1],
                of_freed[0],
                of_freed[1],
                of_live[0],
                of_live[1],
            ])?;
        }
        Ok(())
    }

    /// The memory over time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn snapshots(&self, mut table: ParquetTable) -> Result<()> {
        for snapshot in &self.source.capture.analysis.snapshots {
            table.row([
                self.process_key(),
                ParquetCell::Int32(Some(snapshot.index)),
                number(snapshot.time_ns),
                number(snapshot.rss_bytes),
                number(snapshot.heap_bytes),
                number(snapshot.order),
            ])?;
        }
        table.finish()
    }

    fn stacks(&self, mut table: ParquetTable) -> Result<()> {
        let (mut depths, mut known) = (vec![0_u32], FxHashSet::default());
        for (stack, node) in (1..).map(StackId).zip(self.source.capture.frames.stacks()) {
            let depth = depths.get(node.parent.0 as usize).copied().unwrap_or(0).saturating_add(1);
            depths.push(depth);
            if !known.insert(self.keys.stack(stack)) {
                continue;
            }
            table.row([
                ParquetCell::Bits(self.keys.stack(stack)),
                ParquetCell::Bits(self.keys.stack(node.parent)),
                ParquetCell::Bits(Some(self.keys.frame(node.frame))),
                ParquetCell::Bits(self.keys.own_frame(stack)),
                ParquetCell::Int32(Some(depth)),
            ])?;
        }
        table.finish()
    }

    fn frames(&self, mut table: ParquetTable) -> Result<()> {
        let (frames, mut known) = (&self.source.capture.frames, FxHashSet::default());
        for (id, frame) in (0..).map(FrameId).zip(frames.frames()) {
            if !known.insert(self.keys.frame(id)) {
                continue;
            }
            table.row([
                ParquetCell::Bits(Some(self.keys.frame(id))),
                ParquetCell::Text(Some(frames.function(id))),
                ParquetCell::Text(Some(frames.file(id)).filter(|file| !file.is_empty())),
                ParquetCell::Int32(Some(frame.line).filter(|line| *line > 0)),
                ParquetCell::Int32(Some(frame.column).filter(|column| *column > 0)),
                ParquetCell::Text(self.keys.module(id)),
            ])?;
        }
        table.finish()
    }

    fn threads(&self, mut table: ParquetTable) -> Result<()> {
        for thread in &self.source.capture.threads {
            let name = Some(thread.name.as_str()).filter(|name| !name.is_empty());
            let tid = ParquetCell::Int32(Some(thread.tid.cast_unsigned()));
            table.row([self.process_key(), tid, ParquetCell::Text(name)])?;
        }
        table.finish()
    }

    fn process(&self, mut table: ParquetTable) -> Result<()> {
        let (info, totals) = (&self.source.capture.info, &self.source.capture.analysis.totals);
        let process = &info.process;
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let command = process.command_line.iter().map(text).collect::<Vec<_>>().join(" ");
        let [executable, end_reason] = [&process.executable, &process.end_reason].map(|field| field.as_ref().map(text));
        let python = process.python_version.map(|version| version.to_string());
        // Counted where the rest is estimated.
        let Tally { bytes, count, .. } = allocated(self.source.capture);
        table.row([
            self.process_key(),
            ParquetCell::Int32(process.pid),
            ParquetCell::Int32(process.ppid),
            ParquetCell::Text(self.source.labels.release),
            ParquetCell::Text(Some(&command)),
            ParquetCell::Text(executable.as_deref()),
            ParquetCell::Text(python.as_deref()),
            ParquetCell::Number(process.start.realtime_ns),
            number(self.source.capture.info.duration_ns(&self.source.capture.analysis)),
            ParquetCell::Number(totals.finalizing.map(|at| at.time_ns)),
            ParquetCell::Int32(process.exit_status.map(u32::from)),
            ParquetCell::Text(end_reason.as_deref()),
            ParquetCell::Bool(info.complete),
            number(bytes),
            number(count),
            number(totals.deallocations),
            number(totals.peak.bytes),
            number(totals.peak.allocations),
            ParquetCell::Number(totals.peak.at.map(|at| at.time_ns)),
            number(totals.leaked.bytes),
            number(totals.leaked.count),
            number(totals.leaked_at_exit.bytes),
            number(totals.leaked_at_exit.count),
            ParquetCell::Number(Some(totals.rss_peak_bytes).filter(|bytes| *bytes > 0)),
            number(totals.truncated_stacks),
            number(info.lost_bytes),
            ParquetCell::Number(info.time_uncertainty_ns),
            ParquetCell::Number(self.source.capture.sample_bytes().map(NonZeroU64::get)),
            ParquetCell::Number(process.lived_ns()),
            ParquetCell::Number(self.source.capture.frees_of_earlier_blocks()),
        ])?;
        table.finish()
    }

    fn process_key<'a>(&self) -> ParquetCell<'a> {
        ParquetCell::Bits(Some(self.process))
    }
}
