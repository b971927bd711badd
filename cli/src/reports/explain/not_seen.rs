//! What a capture does not have, and so no finding can be about.
//!
//! Invariant: each text says what would show it.

use crate::reports::capture_info::Capture;

/// Windows from which on growth can be told: the last three quarters of them make eight slices.
const FEW_WINDOWS: usize = 12;

/// One sentence each.
pub(super) fn texts(capture: &Capture, has_accounts: bool) -> Vec<String> {
    let info = &capture.info;
    let process = &info.process;
    let is_python = process.python_version.is_some();
    let mut texts = info.warnings();
    let mut say = |is: bool, text: &str| texts.extend(is.then(|| text.to_owned()));
    say(info.growing, "what comes after this moment: the recording goes on");
    say(process.snapshot, "what came after the snapshot");
    say(process.began_late, "what was allocated before the recording began");
    let windows = capture.analysis.windows.len();
    let has_windows = windows > 0;
    let (is_sampled, is_of_windows) = (capture.is_sampled(), info.aggregated && has_windows);
    say(is_sampled && !is_of_windows, "copies, and what is too small for samples; record without --sample");
    say(
        is_sampled && is_of_windows,
        "copies, and what is too small for samples; record without --sample, --window and --aggregate",
    );
    say(
        (1..FEW_WINDOWS).contains(&windows),
        "growth over time: there are too few windows to tell it; record for longer, or with a shorter --window",
    );
    say(
        is_of_windows && !is_sampled,
        "copies: sums have no single allocations; record without --window and --aggregate",
    );
    say(
        info.aggregated && !has_windows,
        "growth over time and copies: sums have no single allocations; record with --window, or without --aggregate",
    );
    say(!info.processes.is_empty(), "growth and copies of several processes: explain one capture at a time");
    say(
        is_python && !process.traces_python_allocators,
        "single Python objects: only the arenas they lie in; record with --trace-python-allocators",
    );
    say(is_python && !process.native_traces, "functions of C, C++ and Rust; record with --native");
    say(info.has_no_stacks, "call stacks: record with --native");
    let is_part = info.narrowed || !info.processes.is_empty();
    say(
        is_part && !has_accounts,
        "which of it is not in memory, and pages that the allocator keeps after frees: explain a whole capture of one process",
    );
    say(
        !is_part && !has_accounts,
        "pages that the allocator keeps after frees: figures are of what the program asked for",
    );
    texts
}
