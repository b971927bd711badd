//! Native stacks that take turns in every way: what memtrack remembers of the stacks before must never show in the next.
//!
//! Invariant: each block's stack is known from its size, and all of them are compared.

use std::collections::HashMap;

use crate::support::{Dir, Labels, ParsedStacks};

const OPTIONS: [&[&str]; 3] = [
    &["-O1", "-fno-optimize-sibling-calls"],
    &["-O2", "-fno-optimize-sibling-calls", "-fno-omit-frame-pointer"],
    &["-O2", "-fno-optimize-sibling-calls", "-fomit-frame-pointer", "-fno-ipa-icf"],
];

/// The stack of a block, innermost first, below the line that called malloc; `site` tells two lines of main apart.
fn expected(size: u64) -> Vec<&'static str> {
    let levels = |label: &'static str, level: u64| {
        let callers = std::iter::repeat_n("descend@descend", usize::try_from(level).expect("a level"));
        [label].into_iter().chain(callers).chain(["main@main-descend"]).collect()
    };
    match size {
        1001 => vec!["sites@one"],
        1002 => vec!["sites@other", "main@main-sites"],
        1003 => vec!["left@left", "main@main-left"],
        1004 => vec!["right@right", "main@main-right"],
        1005 => vec!["shared@shared", "first@first", "main@main-first"],
        1006 => vec!["shared@shared", "second@second", "main@main-second"],
        1007 => vec!["shared@shared", "second@second", "again@again", "main@main-again"],
        1008 => vec!["on_signal@on_signal", "…", "raises@raises", "main@main-raises"],
        2000..3000 => levels("descend@down", size - 2000),
        3000..4000 => levels("descend@up", size - 3000),
        _ => vec!["yields@yields", "coroutine@coroutine"],
    }
}

#[test]
fn each_block_has_its_own_stack_whatever_came_before() {
    let labels = Labels::of("turns.c");
    for options in OPTIONS {
        let dir = Dir::new();
        let program = dir.compile("turns", "turns", options);
        for timestamps in [&["--native"][..], &["--native", "--allocation-timestamps"]] {
            let run = dir.run_with(timestamps, &program, [""; 0]);
            assert_eq!(run.outcome.status, 0, "{run:?}");
            let stacks = ParsedStacks::of(&run.capture);
            let mut met: HashMap<u64, usize> = HashMap::new();
            for block in stacks.blocks.iter().filter(|block| (1001..5000).contains(&block.size)) {
                *met.entry(block.size).or_default() += 1;
                let mut told = stacks.tell(&labels, block);
                // What called main, or the coroutine.
                assert_eq!(told.pop().as_deref(), Some("…"), "{options:?}");
                if block.size == 1001 {
                    let site = told.pop().expect("main");
                    assert!(["main@main-sites", "main@main-sites-1", "main@main-sites-2"].contains(&&*site), "{site}");
                }
                let expected = [&["mark@mark"], expected(block.size).as_slice()].concat();
                assert_eq!(told, expected, "{options:?}: {:?}", stacks.frames(block));
            }
            assert_eq!(met.len(), 8 + 2 * 20 + 3, "{met:?}");
            // Only what called a coroutine is not to be told.
            let of_coroutines: usize = (4000..4003).map(|size| met[&size]).sum();
            assert_eq!(run.stats().number("/capture/truncated_stacks"), of_coroutines as u64);
        }
    }
}
