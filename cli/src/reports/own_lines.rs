//! Attributes a view's memory to lines of own code: the innermost own-code line, and the function that it called.
//!
//! A row is one line of own code, with all its calls, allocators and library functions; of the functions that it
//! called, the one with the most bytes is named, if it has more than the line itself. Memory of an import is attributed
//! to the importing line, in a row of its own. Stacks without own code have a row for their innermost frame. `run`,
//! `stats`, `table` and `query` all use these rows. Invariant: the rows add up to the view's total, and the same line has
//! the same name and bytes in each of these reports.

use std::cmp::Reverse;

use memtrack_format::Allocator;
use memtrack_reader::analysis::{GroupRow, Tally};
use memtrack_reader::fold::{self, NAMELESS_IMPORT};
use memtrack_reader::frames::{Frame, NameId};
use memtrack_reader::native::is_place_in;
use memtrack_reader::origin::{Origin, Whose};
use memtrack_reader::{FrameId, StackId, ThreadId, View};
use rustc_hash::FxHashMap;

use super::NO_STACK;
use super::capture_info::Capture;
use super::display::place;
use super::frameless::FramelessMemory;
use crate::text::{Label, Style, Styled, TextTable, column, share_of};
use crate::units::plural;

/// Maximum number of own-code lines in [`top_rows`].
const NAMED: usize = 3;
/// Minimum percentage of the total for a line in [`top_rows`].
const LEAST_PERCENT: u64 = 1;

/// Minimum percentage of the total for a function that is named without own code.
const LEAST_NAMED_PERCENT: u64 = 10;

/// The identity of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnLineKey {
    /// The own-code line, or else the innermost frame; without the column, so that all calls of a line share a row.
    /// `None` for empty stacks.
    line: Option<Frame>,
    /// Whose memory it is.
    whose: Whose,
    /// Set if threads are separated.
    pub(crate) thread: Option<ThreadId>,
    /// Set if processes are separated: the frame that names the process.
    pub(crate) process: Option<FrameId>,
}

/// A row by its names, which are the same however often its captures are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedLine {
    function: String,
    file: String,
    line: u32,
    whose: Whose,
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct OwnLineRow {
    pub(crate) key: OwnLineKey,
    pub(crate) tally: Tally,
    /// Bytes by allocator.
    allocators: FxHashMap<Allocator, u64>,
    /// Functions that the line called, if any, by function and file.
    through: FxHashMap<(NameId, NameId), CalleeBytes>,
    /// Bytes that the line allocated by itself.
    direct: u64,
}

/// Bytes that the line allocated through one function.
#[derive(Clone, Copy, Debug, Default)]
struct CalleeBytes {
    bytes: u64,
    /// 0 if there are several lines.
    line: u32,
}

/// The rows of a view, largest first. The capture must be folded.
pub(crate) fn rows_by_own_line(capture: &Capture, view: View, threads: bool, processes: bool) -> Vec<OwnLineRow> {
    of_groups(capture, capture.analysis.rows(view), threads, processes)
}

/// The top rows of a view: the own-code lines with the most bytes, and the owners of the rest. Leaks exclude arenas of
/// Python's allocators.
pub(crate) fn top_rows(capture: &Capture, view: View) -> TextTable {
    top_rows_of(capture, view, true)
}

/// The same while native code has no names: all of it is one row, and Python's lines, which need none, have theirs.
pub(crate) fn top_rows_without_names(capture: &Capture, view: View) -> TextTable {
    top_rows_of(capture, view, false)
}

fn top_rows_of(capture: &Capture, view: View, has_names: bool) -> TextTable {
    let without_arenas = matches!(view, View::Leaks | View::LeaksAtExit);
    let groups = || capture.analysis.rows(view).filter(|row| !(without_arenas && row.allocator.is_python_arena()));
    let mut nameless: FxHashMap<StackId, bool> = FxHashMap::default();
    let mut is_nameless = |stack| !has_names && *nameless.entry(stack).or_insert_with(|| needs_names(capture, stack));
    let (named, unnamed): (Vec<_>, Vec<_>) = groups().partition(|row| !is_nameless(row.stack));
    let unnamed = unnamed.iter().map(GroupRow::tally).sum::<Tally>();
    let rows = of_groups(capture, named.into_iter(), false, false);
    let frameless = FramelessMemory::of(capture, groups());
    let mut sums: FxHashMap<Whose, Tally> = FxHashMap::default();
    rows.iter().for_each(|row| *sums.entry(row.key.whose).or_default() += row.tally);
    let whole = sums.values().map(|sum| sum.bytes).sum::<u64>().saturating_add(unnamed.bytes);
    let least = whole / (100 / LEAST_PERCENT);
    let mut table = TextTable::new([column(""); 3]);
    // Without stacks the owner is unknown.
    if capture.info.has_no_stacks {
        return table;
    }
    let own = || rows.iter().filter(|row| row.key.whose == Whose::Own);
    for row in own().take(NAMED).filter(|row| row.tally.bytes > least) {
        let [bytes, part] = share_of(row.tally, whole);
        table.row([bytes, part, row.label(capture).into()]);
        let rest = sums.entry(Whose::Own).or_default();
        *rest = rest.less(row.tally);
    }
    let others = own().count().saturating_sub(table.len());
    if let Some(standard) = sums.get_mut(&Whose::Standard) {
        *standard = standard.less(frameless.sum());
    }
    // Where own code does not say what it is, the function that has most of it does.
    let mut named = Vec::new();
    for whose in [Whose::Libraries, Whose::Standard] {
        let largest = rows.iter().find(|row| row.key.whose == whose && row.key.line.is_some());
        let Some(row) = largest.filter(|row| row.tally.bytes > whole / (100 / LEAST_NAMED_PERCENT)) else { continue };
        named.push(row);
        let rest = sums.entry(whose).or_default();
        *rest = rest.less(row.tally);
    }
    let mut rest: Vec<_> = sums.into_iter().map(|(whose, sum)| (Rest::Of(whose), sum)).collect();
    rest.extend([(Rest::Frameless, frameless.sum()), (Rest::Unnamed, unnamed)]);
    rest.extend(named.iter().enumerate().map(|(at, row)| (Rest::Named(at), row.tally)));
    rest.retain(|(_, sum)| sum.bytes > least);
    rest.sort_by_key(|(whose, sum)| (Reverse(sum.bytes), *whose));
    for (whose, sum) in rest {
        let [bytes, part] = share_of(sum, whole);
        let text = match whose {
            Rest::Named(at) => {
                table.row([bytes, part, named[at].label(capture).into()]);
                continue;
            }
            Rest::Of(Whose::Own) => plural(others as u64, "other line of own code", "other lines of own code"),
            Rest::Of(Whose::Libraries) => "libraries, without own code".into(),
            Rest::Of(Whose::Standard) if capture.info.runs_no_python() => "standard libraries, without own code".into(),
            Rest::Of(Whose::Standard) => "the interpreter and standard libraries, without own code".into(),
            Rest::Of(Whose::Imports) => "imports".into(),
            Rest::Frameless => format!("{}; --native shows whose{}", frameless.what(), frameless.names(capture)),
            Rest::Unnamed => "native code, not symbolized here".into(),
        };
        table.row([bytes, part, Styled::new(Style::Dim, text).into()]);
    }
    table
}

/// What has no line of own code in [`top_rows`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rest {
    /// The largest row of such memory.
    Named(usize),
    Frameless,
    Of(Whose),
    Unnamed,
}

/// Whether the row of a stack depends on the names of native code: on those of the frames from its line inwards.
fn needs_names(capture: &Capture, stack: StackId) -> bool {
    let frames = &capture.frames;
    let inwards = frames.leaf_to_root(stack).take_while(|frame| !capture.is_own(*frame));
    let own = frames.leaf_to_root(stack).find(|frame| capture.is_own(*frame));
    inwards.chain(own).any(|frame| frames.module_id(frame).is_some())
}

/// A stack as one line: own code, then the function that it called.
pub(crate) fn label(capture: &Capture, stack: StackId) -> Label {
    let path = OwnLinePath::of(capture, stack, false);
    let mut row = OwnLineRow::new(path.key(None));
    row.add_callee(capture, path.through, 0);
    row.label(capture)
}

fn of_groups(
    capture: &Capture,
    groups: impl Iterator<Item = GroupRow>,
    threads: bool,
    processes: bool,
) -> Vec<OwnLineRow> {
    let mut places: FxHashMap<OwnLineKey, usize> = FxHashMap::default();
    let mut paths: FxHashMap<StackId, OwnLinePath> = FxHashMap::default();
    let mut rows: Vec<OwnLineRow> = Vec::new();
    for group in groups {
        let path = *paths.entry(group.stack).or_insert_with(|| OwnLinePath::of(capture, group.stack, processes));
        let key = path.key(threads.then_some(group.thread));
        let place = *places.entry(key).or_insert(rows.len());
        if place == rows.len() {
            rows.push(OwnLineRow::new(key));
        }
        rows[place].add(&group);
        rows[place].add_callee(capture, path.through, group.bytes);
    }
    rows.sort_by_key(|row| Reverse((row.tally.bytes, row.tally.count)));
    rows
}

/// The row of each group, as an index into the rows' keys.
pub(crate) fn rows_of_groups(capture: &Capture) -> (Vec<OwnLineKey>, Vec<u32>) {
    let mut places: FxHashMap<OwnLineKey, u32> = FxHashMap::default();
    let mut keys = Vec::new();
    let mut of_stack: FxHashMap<StackId, u32> = FxHashMap::default();
    let of_group = capture.analysis.groups.iter().map(|group| {
        *of_stack.entry(group.stack).or_insert_with(|| {
            let key = line_of(capture, group.stack);
            *places.entry(key).or_insert_with(|| {
                keys.push(key);
                keys.len() as u32 - 1
            })
        })
    });
    let of_group = of_group.collect();
    (keys, of_group)
}

/// The row in which the memory of a stack stands, threads and processes together.
pub(crate) fn line_of(capture: &Capture, stack: StackId) -> OwnLineKey {
    OwnLinePath::of(capture, stack, false).key(None)
}

/// Whose memory a stack holds.
pub(crate) fn whose_memory(capture: &Capture, stack: StackId) -> Whose {
    OwnLinePath::of(capture, stack, false).whose
}

impl OwnLineKey {
    /// The line; `None` for empty stacks.
    pub(crate) fn line(&self) -> Option<Frame> {
        self.line
    }

    /// Whose memory it is.
    pub(crate) fn whose(&self) -> Whose {
        self.whose
    }

    /// The row by its names; `None` for empty stacks.
    pub(crate) fn named(&self, capture: &Capture) -> Option<NamedLine> {
        let Frame { function, file, line, .. } = self.line?;
        let [function, file] = [function, file].map(|name| capture.frames.name(name).to_owned());
        Some(NamedLine { function, file, line, whose: self.whose })
    }
}

impl OwnLineRow {
    fn new(key: OwnLineKey) -> Self {
        let (allocators, through) = (FxHashMap::default(), FxHashMap::default());
        Self { key, tally: Tally::default(), allocators, through, direct: 0 }
    }

    fn add(&mut self, group: &GroupRow) {
        self.tally += group.tally();
        let bytes = self.allocators.entry(group.allocator).or_default();
        *bytes = bytes.saturating_add(group.bytes);
    }

    fn add_callee(&mut self, capture: &Capture, through: Option<FrameId>, bytes: u64) {
        let Some(frame) = through.map(|id| capture.frames.frame(id)) else {
            self.direct = self.direct.saturating_add(bytes);
            return;
        };
        let new = CalleeBytes { bytes: 0, line: frame.line };
        let known = self.through.entry((frame.function, frame.file)).or_insert(new);
        known.bytes = known.bytes.saturating_add(bytes);
        if known.line != frame.line {
            known.line = 0;
        }
    }

    /// The functions that the line called, by function and file; those of a library without names are one, without function.
    fn callees(&self, capture: &Capture) -> FxHashMap<(Option<NameId>, NameId), CalleeBytes> {
        let mut callees: FxHashMap<(Option<NameId>, NameId), CalleeBytes> = FxHashMap::default();
        for (&(function, file), through) in &self.through {
            let is_nameless = is_place_in(capture.frames.name(function), capture.frames.name(file));
            let known = callees.entry(((!is_nameless).then_some(function), file));
            let known = known.or_insert(CalleeBytes { bytes: 0, ..*through });
            known.bytes = known.bytes.saturating_add(through.bytes);
        }
        callees
    }

    /// Whose memory it is.
    pub(crate) fn whose(&self) -> Whose {
        self.key.whose
    }

    /// The allocator with the most bytes, and the number of others.
    pub(crate) fn allocators(&self) -> String {
        let most = self.allocators.iter().max_by_key(|(allocator, bytes)| (**bytes, Reverse(allocator.name())));
        match (most, self.allocators.len()) {
            (None, _) => String::new(),
            (Some((allocator, _)), 1) => allocator.name().into(),
            (Some((allocator, _)), all) => format!("{} +{}", allocator.name(), all - 1),
        }
    }

    /// The row's label: own code, then the function that it called; for imports, what the line imports.
    pub(crate) fn label(&self, capture: &Capture) -> Label {
        let Some(line) = self.key.line else { return Label::new(NO_STACK, "", false) };
        let named = |frame: Frame| {
            let path = capture.path(capture.frames.name(frame.file));
            (capture.frames.name(frame.function), place(frame, &path))
        };
        let (function, at) = named(line);
        let mut callees = self.callees(capture);
        // What finds and loads modules is no module: where others are named, they say more.
        let is_nameless = |name: Option<NameId>| name.is_some_and(|name| capture.frames.name(name) == NAMELESS_IMPORT);
        if callees.keys().any(|names| !is_nameless(names.0)) && self.key.whose == Whose::Imports {
            callees.retain(|names, _| !is_nameless(names.0));
        }
        let most = callees.iter().max_by_key(|(names, through)| (through.bytes, Reverse(**names)));
        // What the line allocates by itself must not be put down to a function that allocates less.
        let most = most.filter(|(_, through)| self.direct == 0 || through.bytes > self.direct);
        let Some((&(through, file), &CalleeBytes { line, .. })) = most else {
            return Label::new(function, at, self.key.whose == Whose::Own);
        };
        let more = match callees.len() {
            1 => String::new(),
            all => format!(" and {} more", all - 1),
        };
        let Some(through) = through else {
            return Label::new(function, at, true).via(capture.path(capture.frames.name(file)), "", more);
        };
        let (through, place) = named(Frame { function: through, file, line, column: 0 });
        match self.key.whose {
            Whose::Imports => Label::new(format!("{through}{more}"), at, false),
            _ => Label::new(function, at, true).via(through, place, more),
        }
    }
}

/// The row of one stack.
#[derive(Clone, Copy, Debug, Default)]
struct OwnLinePath {
    line: Option<Frame>,
    whose: Whose,
    through: Option<FrameId>,
    process: Option<FrameId>,
}

impl OwnLinePath {
    fn of(capture: &Capture, stack: StackId, processes: bool) -> Self {
        let mut frames: Vec<_> = capture.frames.leaf_to_root(stack).collect();
        let process = if processes { frames.pop() } else { None };
        let line = |id: FrameId| Frame { column: 0, ..capture.frames.frame(id) };
        let is_import = |id: &FrameId| is_import(capture, *id);
        let first = frames.first().copied();
        let Some(own) = frames.iter().position(|frame| capture.is_own(*frame)) else {
            // Imports without own code on the stack are named after the interpreter's import.
            let import = frames.iter().rev().copied().find(is_import).filter(|_| first.as_ref().is_some_and(is_import));
            let whose = if frames.iter().any(is_import) {
                Whose::Imports
            } else if frames.iter().any(|frame| capture.origin(*frame) == Some(Origin::Library)) {
                Whose::Libraries
            } else {
                Whose::Standard
            };
            return Self { line: import.or(first).map(line), whose, through: None, process };
        };
        let (below, from) = frames.split_at(own);
        let import = below.iter().rev().copied().find(is_import);
        let whose = if import.is_some() { Whose::Imports } else { Whose::Own };
        let through = import.or_else(|| below.first().copied());
        Self { line: from.first().copied().map(line), whose, through, process }
    }

    fn key(self, thread: Option<ThreadId>) -> OwnLineKey {
        OwnLineKey { line: self.line, whose: self.whose, thread, process: self.process }
    }
}

/// Whether the frame is a folded import.
fn is_import(capture: &Capture, frame: FrameId) -> bool {
    fold::is_import(capture.frames.function(frame))
}

#[cfg(test)]
mod tests;
