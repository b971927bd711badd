//! The stacks of a capture, from `memtrack parse`.
//!
//! Invariant: a stack is told whole: what is not of the test's own sources is not left out, but stands as `…`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use super::{Outcome, memtrack};

/// What stands for a run of frames of other people's code.
const ELSEWHERE: &str = "…";

/// A frame.
#[derive(Debug)]
pub(crate) struct ParsedFrame {
    /// Its function, as memtrack names it.
    pub(crate) function: String,
    /// Its source, or its module where no source is known.
    pub(crate) file: String,
    /// 0 where it is not known.
    pub(crate) line: u64,
}

/// An allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) size: u64,
    pub(crate) allocator: String,
    stack: u64,
}

/// What `memtrack parse` tells of stacks.
#[derive(Debug, Default)]
pub(crate) struct ParsedStacks {
    frames: HashMap<u64, ParsedFrame>,
    nodes: HashMap<u64, (u64, u64)>,
    /// All allocations, in their order.
    pub(crate) blocks: Vec<Block>,
}

/// The lines of a source that have a label: `/* @label */` or `// @label`.
#[derive(Debug)]
pub(crate) struct Labels {
    file: String,
    lines: HashMap<u64, String>,
}

impl ParsedStacks {
    /// Those of a capture.
    pub(crate) fn of(capture: &Path) -> Self {
        Self::with(&[], capture)
    }

    /// The same with these options of `memtrack parse`.
    pub(crate) fn with(options: &[&OsStr], capture: &Path) -> Self {
        let mut stacks = Self::default();
        let text = Outcome::of(memtrack().arg("parse").args(options).arg(capture)).success();
        text.lines().for_each(|line| stacks.take(line));
        stacks
    }

    fn take(&mut self, line: &str) {
        let number = |key: &str| field(line, key).parse::<u64>().expect("a number");
        if line.starts_with("FRAME ") {
            let [function, file] = ["function", "file"].map(|key| field(line, key).to_owned());
            self.frames.insert(number("frame"), ParsedFrame { function, file, line: number("line") });
        } else if line.starts_with("STACK ") {
            self.nodes.insert(number("stack"), (number("frame"), number("caller")));
        } else if line.starts_with("ALLOC ") {
            let allocator = field(line, "allocator").to_owned();
            self.blocks.push(Block { size: number("size"), allocator, stack: number("stack") });
        }
    }

    /// Whether no allocation has any frame.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The frames of a block, innermost first.
    pub(crate) fn frames(&self, block: &Block) -> Vec<&ParsedFrame> {
        let mut stack = block.stack;
        let frames = std::iter::from_fn(|| {
            let (frame, caller) = self.nodes.get(&stack)?;
            stack = *caller;
            Some(&self.frames[frame])
        });
        frames.collect()
    }

    /// The functions of a block, innermost first.
    pub(crate) fn functions(&self, block: &Block) -> Vec<&str> {
        self.frames(block).into_iter().map(|frame| frame.function.as_str()).collect()
    }

    /// The only block of this size.
    #[track_caller]
    pub(crate) fn block(&self, size: u64) -> &Block {
        let found: Vec<&Block> = self.blocks.iter().filter(|block| block.size == size).collect();
        let [block] = found.as_slice() else { panic!("{} blocks of {size} bytes: {:?}", found.len(), self.blocks) };
        block
    }

    /// The stack of the only block of this size, innermost first: `function@label` for each frame of the labelled source
    /// (`function:line` where the line has no label), and `…` for each run of others.
    #[track_caller]
    pub(crate) fn told(&self, labels: &Labels, size: u64) -> Vec<String> {
        self.tell(labels, self.block(size))
    }

    /// The same of any block.
    pub(crate) fn tell(&self, labels: &Labels, block: &Block) -> Vec<String> {
        let names = self.frames(block).into_iter().map(|frame| labels.name(frame));
        let mut told: Vec<String> = names.collect();
        told.dedup_by(|next, previous| next == ELSEWHERE && previous == ELSEWHERE);
        told
    }
}

/// The value of a key in a line; values with spaces stand in quotes.
fn field<'a>(line: &'a str, key: &str) -> &'a str {
    let start = line.find(&format!(" {key}=")).unwrap_or_else(|| panic!("no {key} in {line}")) + key.len() + 2;
    let value = &line[start..];
    match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split(' ').next(),
    }
    .expect("a value")
}

impl Labels {
    /// The labels of a fixture's source.
    pub(crate) fn of(fixture: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture);
        let text = std::fs::read_to_string(&path).expect("a fixture");
        let label = |line: &str| Some(line.rsplit_once('@')?.1.split(' ').next()?.to_owned());
        let lines = (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, label(line)?)));
        Self { file: path.to_str().expect("UTF-8").to_owned(), lines: lines.collect() }
    }

    fn name(&self, frame: &ParsedFrame) -> String {
        let ParsedFrame { function, file, line } = frame;
        if *file != self.file {
            return ELSEWHERE.to_owned();
        }
        match self.lines.get(line) {
            Some(label) => format!("{function}@{label}"),
            None => format!("{function}:{line}"),
        }
    }
}
