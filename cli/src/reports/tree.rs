//! `tree` as text: the call tree with the total of each call.
//!
//! Small calls are summed up in one line, if their sum is not small. If stacks are folded, a chain of single library
//! callees is one line with its first and last call. Invariant: a line's total includes all callees, also those that
//! are too small to be shown.

use std::io::{self, Write};

use memtrack_reader::analysis::{CallTree, GroupRow, Tally};
use memtrack_reader::{FrameId, Frames, StackId, View};

use super::capture_info::Capture;
use crate::terminal::TextFormat;
use crate::text::{Label, Style, Styled, TextCell, TextTable, column, share_of, sized};
use crate::units::{count, count_within};

/// Minimum width for names; below it the columns for self figures and counts are omitted.
const ROOM: usize = 55;
/// From this width of branches on, single callees are not indented further.
const MOST_BRANCHES: usize = 60;

/// A call tree with its figures, for printing.
#[derive(Debug)]
pub(crate) struct TextTree<'a> {
    capture: &'a Capture,
    view: View,
    tree: CallTree,
    own: Vec<Tally>,
    totals: Vec<Tally>,
    inverted: bool,
}

/// A printed line: a call, or a chain of single callees.
#[derive(Default)]
struct TreeLine {
    first: u32,
    last: u32,
    /// Number of calls in the chain.
    calls: usize,
    /// Branches before the name.
    branches: String,
    /// Prefix of the branches of the lines below.
    below: String,
    /// Total and number of the small calls, if the line represents those.
    rest: Option<(Tally, usize)>,
}

/// The callees of a call.
struct VisibleCallees {
    /// Shown callees, largest first.
    shown: Vec<u32>,
    /// Number of small callees.
    small: usize,
    /// Sum of the small callees.
    rest: Tally,
    /// Whether that sum is large enough for a line.
    said: bool,
}

impl<'a> TextTree<'a> {
    /// The tree of `view`; if `inverted`, callers are below their callees.
    pub(crate) fn new(capture: &'a Capture, view: View, inverted: bool) -> Self {
        let rows = capture.analysis.view(view);
        let TreeFigures { tree, own, totals } = TreeFigures::of(&capture.frames, &rows, inverted);
        Self { capture, view, tree, own, totals, inverted }
    }

    /// Prints all calls with at least `least` percent of the bytes.
    ///
    /// # Errors
    /// A write error.
    pub(crate) fn text(&self, least: f64, format: TextFormat, mut out: impl Write) -> io::Result<()> {
        let whole = self.totals[0];
        writeln!(out, "{}", format.heading(&self.capture.headline(self.view, whole)))?;
        self.capture.write_left_out(self.view, format, &mut out)?;
        if whole.count == 0 {
            return Ok(());
        }
        let own = if self.inverted { "" } else { "Self" };
        let [total, part, call] = ["Total", "Part", "Call"].map(column);
        let [own, count] = [own, "Count"].map(|title| column(title).optional(1));
        let mut table = TextTable::new([total, part, own, count, call]).with_room(ROOM);
        let most_branches = format.width.map_or(MOST_BRANCHES, |width| (width / 4).min(MOST_BRANCHES));
        self.lines(least, most_branches).iter().for_each(|line| table.row(self.cells(line)));
        table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        if least > 0.0 {
            writeln!(out, "  calls below {least} % omitted (--least 0 shows all)")?;
        }
        Ok(())
    }

    /// The lines in order, built without recursion, because stacks can be deep.
    fn lines(&self, least: f64, most_branches: usize) -> Vec<TreeLine> {
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.tree.nodes().len()];
        for (index, node) in (0u32..).zip(self.tree.nodes()).skip(1) {
            children[node.parent as usize].push(index);
        }
        let mut lines = Vec::new();
        let root = TreeLine::default();
        let mut open = self.below(&root, &children, least, most_branches);
        open.reverse();
        while let Some(line) = open.pop() {
            let mut below = match line.rest {
                Some(_) => Vec::new(),
                None => self.below(&line, &children, least, most_branches),
            };
            below.reverse();
            lines.push(line);
            open.append(&mut below);
        }
        lines
    }

    /// The lines directly below another. Callees of one caller have the same indentation; if there is no room for more
    /// branches, a single callee is not indented.
    fn below(&self, caller: &TreeLine, children: &[Vec<u32>], least: f64, most_branches: usize) -> Vec<TreeLine> {
        let VisibleCallees { shown: kept, small, rest, said } = self.kept_below(caller.last, children, least);
        let lines = kept.len() + usize::from(said);
        let outer = &caller.below;
        let stays = lines == 1 && outer.chars().count() >= most_branches;
        let branches = |number: usize| match number + 1 == lines {
            _ if caller.last == 0 => [String::new(), String::new()],
            _ if stays => [format!("{outer}↓ "), outer.clone()],
            true => [format!("{outer}└─ "), format!("{outer}   ")],
            false => [format!("{outer}├─ "), format!("{outer}│  ")],
        };
        let mut below: Vec<_> = (0..)
            .zip(&kept)
            .map(|(number, &first)| {
                let (last, calls) = self.end_of_row(first, children, least);
                let [branches, below] = branches(number);
                TreeLine { first, last, calls, branches, below, rest: None }
            })
            .collect();
        if said {
            let [branches, _] = branches(kept.len());
            below.push(TreeLine { branches, rest: Some((rest, small)), ..TreeLine::default() });
        }
        below
    }

    /// The callees of a node, largest first; allocations without a stack last.
    fn kept_below(&self, node: u32, children: &[Vec<u32>], least: f64) -> VisibleCallees {
        let floor = self.totals[0].bytes as f64 * least / 100.0;
        let mut kept = children[node as usize].clone();
        kept.sort_by_key(|child| std::cmp::Reverse((self.total(*child).bytes, self.total(*child).count)));
        let shown = kept.partition_point(|child| self.total(*child).bytes as f64 >= floor);
        let small = kept.split_off(shown);
        // Allocations without a stack are last, however large.
        kept.sort_by_key(|child| self.tree.nodes()[*child as usize].key == CallTree::NO_FRAME);
        let rest = small.iter().fold(Tally::default(), |mut rest, child| {
            rest += self.total(*child);
            rest
        });
        let said = !small.is_empty() && rest.bytes as f64 >= floor;
        VisibleCallees { shown: kept, small: small.len(), rest, said }
    }

    /// The last call of the chain that is printed in one line with `first`, and its length: single callees that are all
    /// library code, or recursive own code, or own code without lines.
    fn end_of_row(&self, first: u32, children: &[Vec<u32>], least: f64) -> (u32, usize) {
        let (mut last, mut calls) = (first, 1);
        while self.capture.shown.folded && self.own[last as usize].bytes == 0 {
            match self.kept_below(last, children, least) {
                VisibleCallees { shown, said: false, .. } if shown.len() == 1 && self.is_row(last, shown[0]) => {
                    (last, calls) = (shown[0], calls + 1);
                }
                _ => break,
            }
        }
        (last, calls)
    }

    fn is_row(&self, caller: u32, call: u32) -> bool {
        let frame = |node: u32| self.capture.frames.frame(FrameId(self.tree.nodes()[node as usize].key));
        let (line, function) = (|node| frame(node).line, |node| (frame(node).function, frame(node).file));
        match [caller, call].map(|node| self.is_own(node)) {
            [false, false] => true,
            // Own code without line numbers is shortened too.
            [true, true] => {
                function(caller) == function(call) || [caller, call].into_iter().all(|node| line(node) == 0)
            }
            _ => false,
        }
    }

    /// Whether a call is own code.
    fn is_own(&self, node: u32) -> bool {
        self.capture.is_own(FrameId(self.tree.nodes()[node as usize].key))
    }

    fn total(&self, node: u32) -> Tally {
        self.totals[node as usize]
    }

    fn cells(&self, line: &TreeLine) -> [TextCell; 5] {
        let (total, own, name) = match line.rest {
            Some((rest, calls)) => {
                let smaller = format!("{}({} smaller)", line.branches, count(calls as u64));
                (rest, String::new(), Styled::new(Style::Dim, smaller).into())
            }
            // In the inverted tree all memory is the self figure of the nodes below the root.
            None if self.inverted => (self.total(line.first), String::new(), self.name(line).into()),
            None => (self.total(line.first), sized(self.own[line.last as usize]), self.name(line).into()),
        };
        let [bytes, part] = share_of(total, self.totals[0].bytes);
        [bytes, part, own.into(), count_within(total.count, total.count_range()).into(), name]
    }

    fn name(&self, line: &TreeLine) -> Label {
        let key = |node: u32| self.tree.nodes()[node as usize].key;
        let first = self.capture.label(key(line.first)).behind(&line.branches);
        let Some(between) = line.calls.checked_sub(2) else { return first };
        let (function, place) = self.capture.described(key(line.last));
        first.then(between, function, place)
    }
}

/// A call tree, with self and total figures by node.
#[derive(Debug)]
pub(crate) struct TreeFigures {
    pub(crate) tree: CallTree,
    pub(crate) own: Vec<Tally>,
    pub(crate) totals: Vec<Tally>,
}

impl TreeFigures {
    /// The tree of these rows' stacks; see [`places`].
    pub(crate) fn of(frames: &Frames, rows: &[GroupRow], inverted: bool) -> Self {
        let mut tree = CallTree::default();
        let places = places(&mut tree, frames, rows.iter().map(|row| row.stack), inverted);
        let mut own = vec![Tally::default(); tree.nodes().len()];
        for (row, place) in rows.iter().zip(places) {
            own[place as usize] += row.tally();
        }
        let totals = tree.totals(&own);
        Self { tree, own, totals }
    }
}

/// The node of each stack in the tree; in an inverted tree, callers are below their callees.
pub(crate) fn places(
    tree: &mut CallTree,
    frames: &Frames,
    stacks: impl IntoIterator<Item = StackId>,
    inverted: bool,
) -> Vec<u32> {
    if !inverted {
        return tree.places(frames, stacks, |frame| frame.0);
    }
    let mut place = |stack| match frames.leaf_to_root(stack).fold(0, |node, id| tree.child(node, id.0)) {
        0 => tree.child(0, CallTree::NO_FRAME),
        node => node,
    };
    stacks.into_iter().map(&mut place).collect()
}

#[cfg(test)]
mod tests {
    use super::TextTree;
    use crate::reports::display::DisplayOptions;
    use crate::reports::fixture;
    use crate::terminal::TextFormat;
    use memtrack_reader::View;

    const FORMAT: TextFormat = TextFormat { width: Some(80), color: false };

    #[test]
    fn golden_files() {
        for (name, inverted) in [("tree.txt", false), ("tree-inverted.txt", true)] {
            let (capture, mut text) = (fixture::capture(), Vec::new());
            TextTree::new(&capture, View::Allocated, inverted).text(0.0, FORMAT, &mut text).unwrap();
            fixture::compare(name, &text);
        }
    }

    #[test]
    fn small_calls_are_summed_up_where_they_are_not_small_together() {
        let (mut capture, mut text) = (fixture::capture(), Vec::new());
        capture.analysis.groups.change(2, |group| group.allocated.bytes = 1_600_000);
        TextTree::new(&capture, View::Allocated, false).text(50.5, FORMAT, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("  1.60 MB  51.6 %  1.60 MB      1  <no stack>\n") && !text.contains("smaller"),
            "{text}"
        );
        let mut text = Vec::new();
        TextTree::new(&capture, View::Allocated, false).text(40.0, FORMAT, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("  1.50 MB  48.4 %     └─ Reader.read at "), "{text}");
    }

    #[test]
    fn siblings_stand_in_one_column_and_rows_of_others_in_one_line() {
        let library = |function| (function, "/v/site-packages/json/decoder.py");
        let own = |function| (function, "/srv/app.py");
        let [main, walk, work] = ["main", "walk", "work"].map(own);
        let [loads, decode, scan] = ["loads", "decode", "scan"].map(library);
        let mut capture = fixture::of_stacks(&[
            (&[main, work, loads, decode, scan], 500),
            (&[main, walk, walk, walk, walk], 300),
            (&[main], 200),
        ]);
        capture.fold(&DisplayOptions::default()).unwrap();
        let text = |format| {
            let mut text = Vec::new();
            TextTree::new(&capture, View::Leaks, false).text(1.0, format, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let expected = "  1.00 kB   100 %  main at /srv/app.py:7
    500 B  50.0 %  ├─ work at /srv/app.py:7
    500 B  50.0 %  │  └─ loads at json/decoder.py:7 → 1 call → scan
    300 B  30.0 %  └─ walk at /srv/app.py:7 → 2 calls → walk at /srv/app.py:7
";
        let narrow = text(TextFormat { width: Some(77), color: false });
        assert!(narrow.contains(expected), "{narrow}");
        let colored = text(TextFormat { width: Some(77), color: true });
        let [own, dim, end] = ["\x1b[1;36m", "\x1b[2m", "\x1b[0m"];
        let line = format!("{dim}├─ {end}{own}work{end}{dim} at /srv/app.py:7{end}\n");
        assert!(colored.contains(&line), "{colored:?}");
        let line = format!("{dim}│  └─ {end}loads{dim} at json/decoder.py:7{end}{dim} → 1 call → {end}scan\n");
        assert!(colored.contains(&line), "{colored:?}");
    }

    #[test]
    fn deep_calls_stay_in_their_callers_column() {
        let all: Vec<(String, &str)> = (0..40).map(|number| (format!("f{number}"), "/srv/app.py")).collect();
        let stack: Vec<(&str, &str)> = all.iter().map(|(function, file)| (function.as_str(), *file)).collect();
        let (capture, mut text) = (fixture::of_stacks(&[(&stack, 500)]), Vec::new());
        TextTree::new(&capture, View::Leaks, false).text(1.0, FORMAT, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let last = format!("  {}↓ f39 at /srv/app.py:7\n", " ".repeat(21));
        assert!(text.contains(&last) && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let (capture, mut text) = (fixture::empty(), Vec::new());
        TextTree::new(&capture, View::Leaks, false).text(1.0, FORMAT, &mut text).unwrap();
        assert_eq!(text, b"Leaks: 0 B in 0 allocations, live at exit\n");
    }
}
