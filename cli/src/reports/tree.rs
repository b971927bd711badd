//! `tree`: who called whom, with what each call allocated with everything below it, as text.
//!
//! Invariant: each line's figure is the sum of its own allocations and those of all it called, also of what is too small
//! to be shown. Small calls are summed up in a line of their own where they are not small together. Where stacks are folded,
//! of calls that others made one from the other, and nobody else from there, the first and the last are shown.

use std::io::{self, Write};

use memtrack_reader::analysis::{CallTree, GroupRow, Tally};
use memtrack_reader::{FrameId, Frames, StackId, View};

use super::facts::Capture;
use crate::terminal::Look;
use crate::text::{Label, Style, Styled, TextCell, TextTable, column, share};
use crate::units::{count, size};

/// With less room for names there are no columns for own figures and numbers.
const ROOM: usize = 55;
/// Characters of branches before a name; even, as each branch takes two.
const MOST_BRANCHES: usize = 24;

/// A tree with its figures, ready to be printed.
#[derive(Debug)]
pub(crate) struct Calls<'a> {
    capture: &'a Capture,
    view: View,
    tree: CallTree,
    own: Vec<Tally>,
    totals: Vec<Tally>,
    inverted: bool,
}

/// A line that is to be printed.
struct TreeLine {
    node: u32,
    /// What stands before the name: the branches that lead to it.
    branches: String,
    /// Whether it is all that its caller called.
    single: bool,
    /// How many calls lie between it and the line above, which are not shown.
    skipped: usize,
    /// Bytes and number of the calls that are too small to be shown, where the line stands for those.
    rest: Option<(Tally, usize)>,
}

/// What is directly below a call.
struct Below {
    /// The calls that are shown, largest first.
    shown: Vec<u32>,
    /// How many are too small.
    small: usize,
    /// Their sum.
    rest: Tally,
    /// Whether that is large enough to be said.
    said: bool,
}

impl<'a> Calls<'a> {
    /// The tree of `view`; with callers below those they call if `inverted`.
    pub(crate) fn new(capture: &'a Capture, view: View, inverted: bool) -> Self {
        let rows = capture.analysis.view(view);
        let TreeFigures { tree, own, totals } = TreeFigures::of(&capture.frames, &rows, inverted);
        Self { capture, view, tree, own, totals, inverted }
    }

    /// Prints all calls that have at least `least` percent of the bytes.
    ///
    /// # Errors
    /// What the writer says.
    pub(crate) fn text(&self, least: f64, look: Look, mut out: impl Write) -> io::Result<()> {
        let whole = self.totals[0];
        writeln!(out, "{}", look.heading(&self.capture.headline(self.view, whole)))?;
        self.capture.say_left_out(self.view, look, &mut out)?;
        if whole.count == 0 {
            return Ok(());
        }
        let own = if self.inverted { "" } else { "Own" };
        let [total, part, call] = ["Total", "Part", "Call"].map(column);
        let [own, count] = [own, "Count"].map(|title| column(title).optional(1));
        let mut table = TextTable::new([total, part, own, count, call]).with_room(ROOM);
        self.lines(least).iter().for_each(|line| table.row(self.cells(line)));
        table.lines(look).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        if least > 0.0 {
            writeln!(out, "  without calls of less than {least} % (--least 0 shows all)")?;
        }
        Ok(())
    }

    /// The lines in order, made from the root down without recursion, since stacks may be deep.
    fn lines(&self, least: f64) -> Vec<TreeLine> {
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); self.tree.nodes().len()];
        for (index, node) in (0u32..).zip(self.tree.nodes()).skip(1) {
            children[node.parent as usize].push(index);
        }
        let mut lines = Vec::new();
        let root = TreeLine { node: 0, branches: String::new(), single: false, skipped: 0, rest: None };
        let mut open = self.below(&root, &children, least);
        open.reverse();
        while let Some(line) = open.pop() {
            let mut below = match line.rest {
                Some(_) => Vec::new(),
                None => self.below(&line, &children, least),
            };
            below.reverse();
            lines.push(line);
            open.append(&mut below);
        }
        lines
    }

    /// The lines directly below another. Calls in single file stay in one column, so that deep stacks stay readable: two
    /// └ below each other are a call and its caller, never siblings.
    fn below(&self, caller: &TreeLine, children: &[Vec<u32>], least: f64) -> Vec<TreeLine> {
        let Below { shown: kept, small, rest, said } = self.kept_below(caller.node, children, least);
        let shown = kept.len();
        let single = shown == 1 && !said;
        let inner = caller.branches.replace("├ ", "│ ").replace("└ ", "  ");
        let lines = shown + usize::from(said);
        let branch = |number: usize| match number + 1 == lines {
            _ if caller.node == 0 => String::new(),
            true if single && caller.single => caller.branches.clone(),
            true => format!("{inner}└ "),
            false => format!("{inner}├ "),
        };
        let mut below: Vec<_> = (0..)
            .zip(&kept)
            .map(|(number, child)| {
                let skips = single && caller.node != 0 && !self.is_own(caller.node);
                let (node, skipped) = if skips { self.last_of_others(*child, children, least) } else { (*child, 0) };
                TreeLine { node, branches: branch(number), single, skipped, rest: None }
            })
            .collect();
        if said {
            below.push(TreeLine {
                node: caller.node,
                branches: branch(shown),
                single: false,
                skipped: 0,
                rest: Some((rest, small)),
            });
        }
        below
    }

    /// The calls directly below a node, largest first.
    fn kept_below(&self, node: u32, children: &[Vec<u32>], least: f64) -> Below {
        let floor = self.totals[0].bytes as f64 * least / 100.0;
        let mut kept = children[node as usize].clone();
        kept.sort_by_key(|child| std::cmp::Reverse((self.total(*child).bytes, self.total(*child).count)));
        let shown = kept.partition_point(|child| self.total(*child).bytes as f64 >= floor);
        let small = kept.split_off(shown);
        let rest = small.iter().fold(Tally::default(), |mut rest, child| {
            rest.add(self.total(*child).bytes, self.total(*child).count);
            rest
        });
        let said = !small.is_empty() && rest.bytes as f64 >= floor;
        Below { shown: kept, small: small.len(), rest, said }
    }

    /// The last of the calls that follow each other from this one on in code of others, each all that is below the one
    /// before, and how many come before it.
    fn last_of_others(&self, first: u32, children: &[Vec<u32>], least: f64) -> (u32, usize) {
        let (mut last, mut skipped) = (first, 0);
        while self.capture.shown.folded && !self.is_own(last) && self.own[last as usize].bytes == 0 {
            match self.kept_below(last, children, least) {
                Below { shown, said: false, .. } if shown.len() == 1 && !self.is_own(shown[0]) => {
                    (last, skipped) = (shown[0], skipped + 1);
                }
                _ => break,
            }
        }
        (last, skipped)
    }

    /// Whether a call is of own code.
    fn is_own(&self, node: u32) -> bool {
        self.capture.is_own(FrameId(self.tree.nodes()[node as usize].key))
    }

    fn total(&self, node: u32) -> Tally {
        self.totals[node as usize]
    }

    fn cells(&self, line: &TreeLine) -> [TextCell; 5] {
        let branches = short(&line.branches);
        let (total, own, name) = match line.rest {
            Some((rest, calls)) => {
                let smaller = format!("{branches}({} smaller)", count(calls as u64));
                (rest, String::new(), Styled::new(Style::Dim, smaller).into())
            }
            // In the inverted tree all is the own of the calls it begins with.
            None if self.inverted => (self.total(line.node), String::new(), self.name(line, &branches).into()),
            None => {
                let own = size(self.own[line.node as usize].bytes);
                (self.total(line.node), own, self.name(line, &branches).into())
            }
        };
        let [bytes, part] = share(total.bytes, self.totals[0].bytes);
        [bytes, part, own.into(), count(total.count).into(), name]
    }

    fn name(&self, line: &TreeLine, branches: &str) -> Label {
        let skipped = match line.skipped {
            0 => String::new(),
            1 => "… 1 call, then ".into(),
            more => format!("… {} calls, then ", count(more as u64)),
        };
        self.capture.label(self.tree.nodes()[line.node as usize].key).behind(format!("{branches}{skipped}"))
    }
}

/// A tree, and by its nodes what is their own and what is theirs with everything below them.
#[derive(Debug)]
pub(crate) struct TreeFigures {
    pub(crate) tree: CallTree,
    pub(crate) own: Vec<Tally>,
    pub(crate) totals: Vec<Tally>,
}

impl TreeFigures {
    /// Of these rows' stacks; see [`places`].
    pub(crate) fn of(frames: &Frames, rows: &[GroupRow], inverted: bool) -> Self {
        let mut tree = CallTree::default();
        let places = places(&mut tree, frames, rows.iter().map(|row| row.stack), inverted);
        let mut own = vec![Tally::default(); tree.nodes().len()];
        for (row, place) in rows.iter().zip(places) {
            own[place as usize].add(row.bytes, row.count);
        }
        let totals = tree.totals(&own);
        Self { tree, own, totals }
    }
}

/// The node of each stack in a tree of callers and callees; in an inverted one callers stand below those they call.
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

/// Branches without their outer part where there are so many that names would have no room.
fn short(branches: &str) -> String {
    let len = branches.chars().count();
    if len <= MOST_BRANCHES {
        return branches.into();
    }
    let tail = branches.chars().skip(len - MOST_BRANCHES + 2);
    ['…', ' '].into_iter().chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::{Calls, short};
    use crate::reports::fixture;
    use crate::terminal::Look;
    use memtrack_reader::View;

    const LOOK: Look = Look { width: Some(80), color: false };

    #[test]
    fn golden_files() {
        for (name, inverted) in [("tree.txt", false), ("tree-inverted.txt", true)] {
            let (capture, mut text) = (fixture::capture(), Vec::new());
            Calls::new(&capture, View::Allocated, inverted).text(0.0, LOOK, &mut text).unwrap();
            fixture::compare(name, &text);
        }
    }

    #[test]
    fn small_calls_are_summed_up_where_they_are_not_small_together() {
        let (mut capture, mut text) = (fixture::capture(), Vec::new());
        capture.analysis.groups.change(2, |group| group.allocated.bytes = 1_600_000);
        Calls::new(&capture, View::Allocated, false).text(50.5, LOOK, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("  1.60 MB  51.6 %  1.60 MB      1  <no stack>\n") && !text.contains("smaller"),
            "{text}"
        );
        let mut text = Vec::new();
        Calls::new(&capture, View::Allocated, false).text(40.0, LOOK, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("  1.50 MB  48.4 %  └ Reader.read at "), "{text}");
    }

    #[test]
    fn deep_branches_leave_room_for_names() {
        assert_eq!(short("│ └ "), "│ └ ");
        let deep = "│ ".repeat(20) + "└ ";
        assert_eq!((short(&deep).chars().count(), short(&deep).ends_with("│ └ ")), (24, true));
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let (capture, mut text) = (fixture::empty(), Vec::new());
        Calls::new(&capture, View::Leaks, false).text(1.0, LOOK, &mut text).unwrap();
        assert_eq!(text, b"Leaks: 0 B in 0 allocations, live at exit\n");
    }
}
