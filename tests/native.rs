//! Native call stacks: those that programs tell of themselves, by backtrace(), against those in their captures.

use crate::support::{Block, Dir, PairedRun, ParsedStacks, Stats};

/// The smallest block that a fixture marks; nothing else comes near.
const MARKED: u64 = 1_000_000;

/// The marked blocks, in their order.
fn marked(stacks: &ParsedStacks) -> Vec<&Block> {
    stacks.blocks.iter().filter(|block| block.size > MARKED).collect()
}

/// Runs a fixture under `--native`.
#[track_caller]
fn recorded(dir: &Dir, options: &[&str]) -> PairedRun {
    let program = dir.compile("native", "native", &[&["-pthread", "-rdynamic", "-ldl"], options].concat());
    let run = dir.run_with(&["--native"], &program, [""; 0]);
    assert_eq!(run.outcome.status, 0, "{run:?}");
    run
}

/// That each marked block has the stack that the program tells; frames of libraries are left out of both.
#[track_caller]
fn agrees(run: &PairedRun) {
    let stacks = ParsedStacks::of(&run.capture);
    let blocks = marked(&stacks);
    let told: Vec<Vec<&str>> = run.outcome.stdout.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(blocks.len(), told.len(), "{stacks:?}");
    for words in told {
        let size: u64 = words[0].parse().expect("a size");
        let functions = stacks.functions(blocks.iter().find(|block| block.size == size).expect("the block"));
        let own: Vec<&str> = functions.iter().copied().filter(|name| words.contains(name)).collect();
        assert_eq!(own, words[1..], "{functions:?}");
    }
}

#[test]
fn stacks_are_those_that_backtrace_finds() {
    let dir = Dir::new();
    let run = recorded(&dir, &["-fno-optimize-sibling-calls"]);
    agrees(&run);
    let stats = run.stats();
    assert_eq!(stats.0["capture"]["has_native_traces"], true);
    assert_eq!(stats.number("/capture/truncated_stacks"), 0);
    assert!(stats.number("/capture/native_frames/kept") > 0 && stats.number("/capture/native_frames/unwound") > 0);
}

#[test]
fn without_and_with_frame_pointers_and_optimized() {
    let kinds =
        [["-O2", "-fomit-frame-pointer"], ["-O0", "-fno-omit-frame-pointer"], ["-O2", "-fno-omit-frame-pointer"]];
    for options in kinds {
        agrees(&recorded(&Dir::new(), &options));
    }
}

#[test]
fn without_the_option_there_are_no_native_frames() {
    let dir = Dir::new();
    let run = dir.run(&dir.compile("native", "native", &["-pthread", "-rdynamic", "-ldl"]), [""; 0]);
    let stacks = ParsedStacks::of(&run.capture);
    assert!(stacks.is_empty(), "{stacks:?}");
    assert_eq!(Stats::of(&run.capture).0["capture"]["has_native_traces"], false);
}

/// The stacks of the marked blocks of a case of native_odd.c, and how many stacks count as cut.
#[track_caller]
fn odd(case: &str) -> (Vec<Vec<String>>, u64) {
    let (stacks, stats) = odd_with_stats(case);
    (stacks, stats.number("/capture/truncated_stacks"))
}

/// The same, with all that the capture tells of itself.
#[track_caller]
fn odd_with_stats(case: &str) -> (Vec<Vec<String>>, Stats) {
    let dir = Dir::new();
    let program = dir.compile("native_odd", "native_odd", &["-fno-optimize-sibling-calls"]);
    let run = dir.run_with(&["--native"], &program, [case]);
    assert_eq!(run.outcome.status, 0, "{run:?}");
    let stacks = ParsedStacks::of(&run.capture);
    let blocks = marked(&stacks);
    assert_eq!(run.outcome.stdout, format!("{}\n", blocks.len()));
    let named = |block: &&Block| stacks.functions(block).into_iter().map(str::to_owned).collect();
    (blocks.iter().map(named).collect(), run.stats())
}

#[test]
fn handlers_on_a_stack_of_their_own_lead_back_to_what_they_interrupted() {
    let (stacks, truncated) = odd("signal_stack");
    assert_eq!((stacks.len(), truncated), (3, 0));
    for stack in stacks {
        assert_eq!(stack[..2], ["mark", "on_signal"]);
        let rest = &stack[2..];
        assert!(rest.iter().any(|name| name.contains("raise")) && rest.iter().any(|name| name == "main"), "{stack:?}");
    }
}

#[test]
fn a_handler_on_a_small_stack_has_room_for_a_native_stack() {
    let (stacks, truncated) = odd("small_stack");
    assert_eq!((stacks.len(), truncated), (1, 0));
    assert!(stacks[0].iter().any(|name| name == "small_stack"), "{stacks:?}");
}

#[test]
fn coroutines_have_their_own_stacks() {
    let (stacks, truncated) = odd("coroutines");
    // Not every C library has an unwind table for the place at which a coroutine begins: that counts as a cut.
    assert!(stacks.len() == 18 && [0, 12].contains(&truncated), "{truncated}: {stacks:?}");
    for turn in stacks.chunks(3) {
        assert_eq!(turn[0][..2], ["mark", "coroutine"]);
        assert!(!turn[0].iter().any(|name| name == "main"), "{turn:?}");
        assert_eq!(turn[1][..3], ["mark", "coroutines", "main"]);
        assert_eq!(turn[2][1..8], ["recursive"; 6].into_iter().chain(["coroutine"]).collect::<Vec<_>>());
    }
}

#[test]
fn code_without_unwind_tables_cuts_a_stack_and_is_counted() {
    let (stacks, truncated) = odd("without_tables");
    assert_eq!((stacks.len(), truncated), (4, 3));
    for stack in &stacks[..3] {
        assert_eq!(stack[..], ["mark", "<unknown>"]);
    }
    assert_eq!(stacks[3][..3], ["mark", "without_tables", "main"]);
}

#[test]
fn two_thousand_frames_are_whole_and_twenty_thousand_are_cut() {
    let (stacks, truncated) = odd("2000");
    assert_eq!(truncated, 0);
    assert_eq!(stacks[0].iter().filter(|name| *name == "recursive").count(), 2001);
    let (stacks, truncated) = odd("20000");
    assert_eq!(truncated, 1);
    assert!((7000..=8000).contains(&stacks[0].len()), "{}", stacks[0].len());
    assert_eq!(stacks[0][..2], ["mark", "recursive"]);
}

/// What an event costs does not depend on how many frames are left out of its stack.
#[test]
fn of_a_stack_that_is_cut_only_the_newest_frames_are_written_anew() {
    let (stacks, stats) = odd_with_stats("in_turn");
    let [deepest, returning] = &stacks[..] else { panic!("{stacks:?}") };
    assert_eq!((&*deepest[0], &*deepest[1]), ("mark", "even"));
    assert_eq!((&*returning[0], &*returning[1]), ("mark", "odd"));
    for stack in [deepest, returning] {
        assert_eq!(stack.len(), 8000);
        // mark and 31 others are the newest; whatever is older has its own callers.
        assert!(stack[1..32].array_windows().all(|[callee, caller]| callee != caller), "{:?}", &stack[..32]);
        assert_eq!(stack[1..32].iter().filter(|name| ["even", "odd"].contains(&name.as_str())).count(), 31);
    }
    let [events, written] =
        ["stacks_changed", "written"].map(|name| stats.number(&format!("/account/native_frames/{name}")));
    assert!(events > 40_000, "{events}");
    // Once, those beyond the oldest 7,968 were, 6,000 on average.
    assert!(written < 50 * events, "{written} frames for {events} events");
}
