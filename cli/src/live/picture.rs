//! The state of a followed capture as a [`Capture`], the input of all reports; so what is live is named and attributed as in
//! every other report.
//!
//! The sums stand in place of those of a whole recording: what is live in that of the peak, what was allocated in the window
//! in that of temporary allocations, what was freed in it in that of leaks, and what was live at the mark in that of all
//! allocations. Invariant: a picture is not changed by what comes after it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use memtrack_format::header;
use memtrack_format::meta::Process;
use memtrack_format::sources::FileLines;
use memtrack_format::symbols::ModuleSymbols;
use memtrack_reader::analysis::{GroupFlow, Peak, Tally};
use memtrack_reader::live::{LiveFollower, LiveTotals};
use memtrack_reader::program::Program;
use memtrack_reader::symbols::{Symbolizer, apply};
use memtrack_reader::{Analysis, Frames, Thread};

pub(crate) use crate::live_windows::message::{ALLOCATED, AT_MARK, FREED, LIVE};
use crate::live_windows::message::{WindowMessage, WindowSums};
use crate::reports::capture_info::{Capture, CaptureInfo};
use crate::reports::presentation::Presentation;

/// What is copied from the follower, so that names are looked up on another thread.
#[derive(Debug)]
pub(crate) struct LivePicture {
    info: CaptureInfo,
    sums: WindowSums,
    frames: Frames,
    threads: Vec<Thread>,
    totals: LiveTotals,
    symbols: Vec<ModuleSymbols>,
}

impl LivePicture {
    /// A picture of these groups, each with what it had live at the mark.
    pub(crate) fn of(
        follower: &LiveFollower,
        groups: impl Iterator<Item = (GroupFlow, Tally)>,
        totals: LiveTotals,
    ) -> Self {
        let process = follower.process();
        let mut frames = follower.frames().clone();
        frames.add_program(Arc::new(Program::of(process)));
        Self {
            info: CaptureInfo {
                file: follower.path().into(),
                format_version: header::VERSION,
                process: process.clone(),
                sources: sources(follower.sources()),
                complete: follower.has_ended(),
                growing: !follower.has_ended(),
                aggregated: follower.aggregated(),
                lost_blocks: follower.lost().blocks,
                lost_bytes: follower.lost().bytes,
                ..CaptureInfo::default()
            },
            sums: WindowSums::of(groups, process.sample_bytes.is_some()),
            frames,
            threads: follower.threads().to_vec(),
            totals,
            symbols: follower.symbols().to_vec(),
        }
    }

    /// A picture of these groups of a window, each with what it had live at the mark in place of what was allocated in all.
    pub(crate) fn received(
        (file, process): (PathBuf, Process),
        (sums, frames, threads): (WindowSums, &Frames, Vec<Thread>),
        message: &WindowMessage,
    ) -> Self {
        let mut frames = frames.clone();
        frames.add_program(Arc::new(Program::of(&process)));
        let &WindowMessage { last: complete, aggregated, .. } = message;
        let (format_version, growing) = (header::VERSION, !complete);
        let info =
            CaptureInfo { file, format_version, process, aggregated, complete, growing, ..CaptureInfo::default() };
        Self { info, sums, frames, threads, totals: message.totals(), symbols: Vec::new() }
    }

    /// The capture, with names of native code.
    ///
    /// # Errors
    /// More names than this version can number.
    pub(crate) fn capture(self, symbolizer: &mut Symbolizer) -> Result<Capture> {
        let Self { info, sums: WindowSums { groups, variances }, mut frames, threads, totals, symbols } = self;
        let exact_times = info.process.timestamps && !info.aggregated;
        let mut analysis = Analysis { groups, variances, exact_times, ..Analysis::default() };
        symbolizer.know(&symbols);
        apply(symbolizer, &mut frames, &mut analysis)?;
        // Names come with frames of their own.
        frames.add_program(Arc::new(Program::of(&info.process)));
        let known = &mut analysis.totals;
        known.peak = Peak { bytes: totals.live.bytes, allocations: totals.live.count, at: None };
        known.events = totals.events;
        known.end_time_ns = totals.time_ns;
        (known.rss_last_bytes, known.rss_peak_bytes) = (totals.rss_bytes, totals.rss_peak_bytes);
        Ok(Capture { info, analysis, frames, threads, shown: Presentation::default() })
    }
}

fn sources(sources: &[FileLines]) -> Vec<FileLines> {
    sources.to_vec()
}

#[cfg(test)]
mod tests {
    use super::{ALLOCATED, AT_MARK, FREED, LIVE};
    use crate::live_windows::message::group;
    use memtrack_format::Allocator;
    use memtrack_reader::analysis::{GroupFlow, Tally};
    use memtrack_reader::{StackId, ThreadId};

    #[test]
    fn each_sum_is_in_its_view() {
        let tally = |bytes| Tally { bytes, count: 1, ..Tally::default() };
        let (stack, thread, allocator) = (StackId(1), ThreadId(0), Allocator::Malloc);
        let flow =
            GroupFlow { stack, thread, allocator, allocated: tally(1), freed: tally(2), live: tally(3), peak: None };
        let group = group(&flow, tally(4));
        let shown = [ALLOCATED, FREED, LIVE, AT_MARK].map(|view| group.sum(view).bytes);
        assert_eq!(shown, [1, 2, 3, 4]);
    }
}
