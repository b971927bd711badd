//! The forked children of a span: each has a capture beside that of the span, as it has beside that of a recording.
//!
//! A child belongs to a span if it was forked in it, by the process of the span or by another of its children. A child that executes a
//! program ends there, as under a `Tracker` in a program that was started plainly, so that a figure does not depend on who records.
//! Invariant: what a child recorded before the end of the span is in its capture.

use std::path::{Path, PathBuf};

use anyhow::Result;
use memtrack_collector::{RecordedProcess, RecordingHandle, RecordingMoment, TicketSpan};
use memtrack_format::meta::Process;
use memtrack_reader::source::{CaptureReader, first_process};

use super::snapshot::{self, CapturePaths, CopyableCapture};
use crate::child_captures::path_of_child;

/// The capture of a child of a span.
pub(super) struct SpanChild {
    pub(super) pid: u32,
    /// Its number in the tree.
    pub(super) number: u32,
    /// The id of its recording.
    pub(super) run: Option<u64>,
    pub(super) capture: CopyableCapture,
}

/// The span whose children are wanted: the number of its process in the tree, and when it began and ended.
#[derive(Clone, Copy)]
pub(super) struct Forking {
    pub(super) number: u32,
    pub(super) begin: RecordingMoment,
    /// `None`: it goes on, or ends with its process.
    pub(super) end: Option<RecordingMoment>,
}

impl Forking {
    /// The captures of the children, in the order in which they were begun.
    ///
    /// # Errors
    /// One cannot be read.
    pub(super) fn children(&self, recording: &RecordingHandle, captures: &CapturePaths) -> Result<Vec<SpanChild>> {
        let mut all: Vec<RecordedProcess> = recording.processes();
        all.retain(|process| process.number > 0 && self.may_have_begun(process));
        // A parent has a lower number than its children.
        all.sort_by_key(|process| process.number);
        let mut children: Vec<SpanChild> = Vec::new();
        for process in all {
            // Where the recording is ending, it may have been moved.
            let Some(path) = captures(process.number).filter(|path| path.is_file()) else { continue };
            let first = first_of(&path, recording, process.number)?;
            if let Some(pid) = self.pid_of_child(&first, &children) {
                let run = first.tree.recording;
                let snapshot = snapshot::take_span(recording, process.number, TicketSpan::default());
                let capture = snapshot.or_else(|_| CopyableCapture::complete(&path))?;
                children.push(SpanChild { pid, number: process.number, run, capture: up_to_exec(capture, &path)? });
            }
        }
        Ok(children)
    }

    /// The captures of the children of a recording that is complete, which has had processes with these numbers, in their order.
    ///
    /// # Errors
    /// One cannot be read.
    pub(super) fn complete_children(&self, numbers: &[u32], captures: &CapturePaths) -> Result<Vec<SpanChild>> {
        let mut children: Vec<SpanChild> = Vec::new();
        for &number in numbers {
            let Some(path) = captures(number).filter(|path| path.is_file()) else { continue };
            let first = first_process(&path)?;
            if let Some(pid) = self.pid_of_child(&first, &children) {
                let capture = up_to_exec(CopyableCapture::complete(&path)?, &path)?;
                children.push(SpanChild { pid, number, run: first.tree.recording, capture });
            }
        }
        Ok(children)
    }

    /// The id of a process with this metadata at its begin, if it is a child of the span. `known`: those that began before it.
    fn pid_of_child(&self, first: &Process, known: &[SpanChild]) -> Option<u32> {
        let (ticket, parent) = (first.fork_ticket?, u32::try_from(first.tree.parent?).ok()?);
        let is_ours = match parent == self.number {
            true => self.has(ticket),
            false => known.iter().any(|known| known.number == parent),
        };
        first.pid.filter(|_| is_ours)
    }

    /// Whether the process began in the span, or executed a program in it.
    fn may_have_begun(&self, process: &RecordedProcess) -> bool {
        let start = process.process.as_ref().and_then(|process| process.start.monotonic_ns);
        start.is_some_and(|start| start >= self.begin.monotonic_ns)
    }

    /// Whether the process of the span forked in it. `ticket`: one of its own at the fork.
    fn has(&self, ticket: u64) -> bool {
        ticket >= self.begin.ticket && self.end.is_none_or(|end| ticket <= end.ticket)
    }
}

/// The metadata of a process at its begin.
fn first_of(path: &Path, recording: &RecordingHandle, number: u32) -> Result<Process> {
    let first = first_process(path)?;
    if first.pid.is_some() {
        return Ok(first);
    }
    // It has just begun, and is written now; or it has ended, and was.
    let _ = snapshot::take_span(recording, number, TicketSpan::default());
    Ok(first_process(path)?)
}

/// The capture up to the moment at which the process executed a program, if it did.
fn up_to_exec(mut capture: CopyableCapture, path: &Path) -> Result<CopyableCapture> {
    if let Some(first) = CaptureReader::open(path)?.images().first() {
        capture.add(&Process { snapshot_ticket: Some(first.saturating_sub(1)), ..Process::default() })?;
    }
    Ok(capture)
}

/// Where the captures of the children of a span go.
pub(super) fn paths(span: &Path, children: &[SpanChild]) -> Vec<PathBuf> {
    children.iter().map(|child| path_of_child(span, (child.pid, child.number), child.run)).collect()
}
