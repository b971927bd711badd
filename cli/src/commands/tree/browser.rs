//! State of the interactive tree, and the actions that keys trigger. Independent of the terminal.
//!
//! Invariant: `selected` is a valid row if there is any. The selected call stays selected when rows are opened or
//! sorted or the view changes; if the view does not contain it, its nearest caller is selected.

use std::collections::HashSet;

use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use super::forest::{Forest, SiblingOrder};
use super::rows::{RowRules, TreeItem, TreeRow, figure, parted, rows};
use crate::reports::arenas;
use crate::reports::capture_info::Capture;
use crate::reports::source::Sources;
use crate::screen::NextAction;
use crate::units::{count, size};

/// Calls with at least this percentage of the total are expanded initially.
const OPEN_AT_FIRST: f64 = 10.0;

/// Initial state of the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct BrowserStart {
    pub(super) view: View,
    pub(super) inverted: bool,
    /// Calls with less than this percentage of the total are collapsed into one row.
    pub(super) least: f64,
    /// Arenas of Python's allocators, excluded from the leaks.
    pub(super) arenas: Tally,
}

impl BrowserStart {
    /// The view of leaks that goes with this view.
    pub(super) fn leaks(view: View) -> View {
        if view == View::LeaksAtExit { view } else { View::Leaks }
    }
}

/// A text search.
#[derive(Debug, Default)]
pub(super) struct TextSearch {
    pub(super) text: String,
    /// Whether the text is being typed.
    pub(super) typing: bool,
    /// For each node of the current tree, whether it matches; empty without a search.
    pub(super) matches: Vec<bool>,
    pub(super) total: Tally,
    /// The node that was selected before the search.
    from: u32,
}

/// User actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Open,
    Close,
    Toggle,
    OpenAll,
    CloseAll,
    /// Switch to a view by number.
    View(usize),
    NextView,
    Invert,
    Sort,
    AllCalls,
    Search,
    Next,
    Previous,
    Source,
    Help,
    Suspend,
    Escape,
    Quit,
}

/// The state of the interactive tree.
#[derive(Debug)]
pub(super) struct Browser<'a> {
    pub(super) forest: Forest<'a>,
    pub(super) views: [View; 4],
    /// Total of each view.
    pub(super) wholes: [Tally; 4],
    /// Arenas of Python's allocators, excluded from the leaks.
    arenas: Tally,
    pub(super) view: usize,
    pub(super) inverted: bool,
    pub(super) sort: SiblingOrder,
    pub(super) rows: Vec<TreeRow>,
    pub(super) selected: usize,
    pub(super) search: TextSearch,
    /// Whether source lines are shown.
    pub(super) source: bool,
    pub(super) sources: Sources,
    pub(super) help: bool,
    /// The capture is the state of a program that runs: its first view is what is live, and it has no other.
    pub(super) is_live: bool,
    least: f64,
    /// Whether all calls have rows, including the inner ones of library call chains.
    pub(super) all_calls: bool,
    /// Calls that have rows because a search found them, for each tree direction.
    revealed: [HashSet<u32>; 2],
    /// Expanded rows, for each tree direction.
    open: [HashSet<TreeItem>; 2],
    visited: HashSet<(View, bool)>,
    /// Rows on the screen; the distance of Page Up and Page Down.
    pub(super) page: usize,
    /// The first row on the screen.
    pub(super) top: usize,
}

impl<'a> Browser<'a> {
    pub(super) fn new(capture: &'a Capture, start: BrowserStart) -> Self {
        let BrowserStart { view, inverted, least, arenas } = start;
        // Pinned pages and objects are known where they were asked for.
        let first = if matches!(view, View::Pinned | View::Objects) { view } else { View::HighWaterMark };
        let views = [first, BrowserStart::leaks(view), View::Temporary, View::Allocated];
        let mut wholes = [Tally::default(); 4];
        for group in capture.analysis.groups.iter() {
            for (whole, view) in wholes.iter_mut().zip(views) {
                whole.add(group.sum(view).bytes, group.sum(view).count);
            }
        }
        let mut browser = Self {
            forest: Forest::new(capture, view, inverted),
            views,
            wholes,
            arenas,
            view: views.iter().position(|one| *one == view).unwrap_or(0),
            inverted,
            sort: SiblingOrder::default(),
            rows: Vec::new(),
            selected: 0,
            search: TextSearch::default(),
            source: false,
            sources: Sources::of(&capture.info),
            help: false,
            is_live: false,
            least,
            all_calls: !capture.shown.folded,
            revealed: [HashSet::new(), HashSet::new()],
            open: [HashSet::new(), HashSet::new()],
            visited: HashSet::new(),
            page: 10,
            top: 0,
        };
        browser.show_view();
        browser
    }

    /// Describes the view, and what is excluded from it.
    pub(super) fn about(&self) -> String {
        let (capture, view) = (self.forest.capture, self.views[self.view]);
        if self.is_live {
            let Tally { bytes, count: blocks, .. } = self.wholes[self.view];
            return format!("Live when the tree was opened: {} in {} blocks", size(bytes), count(blocks));
        }
        let (is_of_leaks, whole) = (view == BrowserStart::leaks(view), self.wholes[self.view]);
        let mut about = match view {
            View::Leaks | View::Pinned | View::Objects => capture.headline(view, whole),
            _ => format!("{}, {}", capture.headline(view, whole), capture.view_qualifier(view)),
        };
        if capture.info.narrowed {
            about.push_str("; filtered: the rest is left out");
        }
        let arenas = if is_of_leaks { arenas::note(self.arenas) } else { None };
        for more in [capture.left_out(view), arenas].into_iter().flatten() {
            about = format!("{about}; {more}");
        }
        about
    }

    /// Executes an action.
    pub(super) fn act(&mut self, action: Action) -> NextAction {
        match action {
            Action::Quit => return NextAction::Quit,
            Action::Suspend => return NextAction::Suspend,
            Action::Escape if self.help => self.help = false,
            Action::Escape if !self.search.text.is_empty() => self.find(String::new()),
            Action::Escape => return NextAction::Quit,
            Action::Help => self.help = !self.help,
            Action::Source => self.source = !self.source,
            Action::Up | Action::Down | Action::PageUp | Action::PageDown | Action::First | Action::Last => {
                self.step(action);
            }
            Action::Open => self.open_or_enter(),
            Action::Close => self.close_or_leave(),
            Action::Toggle => self.toggle(),
            Action::OpenAll => self.open_all(),
            Action::CloseAll => self.close_all(),
            Action::View(_) | Action::NextView if self.is_live => {}
            Action::View(view) => self.switch(view % self.views.len(), self.inverted),
            Action::NextView => self.switch((self.view + 1) % self.views.len(), self.inverted),
            Action::Invert => self.switch(self.view, !self.inverted),
            Action::Sort => {
                self.sort = self.sort.next();
                self.refresh();
            }
            Action::AllCalls => {
                self.all_calls = !self.all_calls;
                self.refresh();
            }
            Action::Search => {
                self.search.typing = true;
                self.search.from = self.selected_node();
            }
            Action::Next => self.next_match(true),
            Action::Previous => self.next_match(false),
        }
        NextAction::GoOn
    }

    /// Appends a character to the search text.
    pub(super) fn typed(&mut self, char: char) {
        let text = format!("{}{char}", self.search.text);
        self.find(text);
    }

    /// Deletes the last character of the search text.
    pub(super) fn erased(&mut self) {
        let mut text = std::mem::take(&mut self.search.text);
        text.pop();
        self.find(text);
    }

    /// Ends typing; keeps or cancels the search.
    pub(super) fn searched(&mut self, keep: bool) {
        self.search.typing = false;
        if !keep {
            self.find(String::new());
            self.select(self.search.from);
        }
    }

    /// The selected node; the root if there is none.
    pub(super) fn selected_node(&self) -> u32 {
        self.rows.get(self.selected).map_or(0, |row| row.item.node())
    }

    fn selected_item(&self) -> Option<TreeItem> {
        self.rows.get(self.selected).map(|row| row.item)
    }

    fn open(&mut self) -> &mut HashSet<TreeItem> {
        &mut self.open[usize::from(self.inverted)]
    }

    /// Calls with a smaller figure have no row of their own.
    fn floor(&self) -> u64 {
        (figure(self.forest.total(0), self.sort) as f64 * self.least / 100.0).ceil() as u64
    }

    fn rules(&self) -> RowRules<'_> {
        let revealed = (!self.all_calls).then(|| &self.revealed[usize::from(self.inverted)]);
        RowRules { forest: &self.forest, sort: self.sort, floor: self.floor(), revealed }
    }

    fn step(&mut self, action: Action) {
        let last = self.rows.len().saturating_sub(1);
        let page = self.page.saturating_sub(1).max(1);
        self.selected = match action {
            Action::Up => self.selected.saturating_sub(1),
            Action::PageUp => self.selected.saturating_sub(page),
            Action::PageDown => (self.selected + page).min(last),
            Action::First => 0,
            Action::Last => last,
            _ => (self.selected + 1).min(last),
        };
    }

    fn toggle(&mut self) {
        match self.rows.get(self.selected).map(|row| row.is_open) {
            Some(true) => self.close_or_leave(),
            _ => self.open_or_enter(),
        }
    }

    /// Expands the selected row and its chain of single callees; if already expanded, moves to the row below.
    fn open_or_enter(&mut self) {
        let Some(row) = self.rows.get(self.selected) else { return };
        if !row.has_more {
            return;
        }
        if row.is_open {
            return self.step(Action::Down);
        }
        let mut item = row.item;
        self.open().insert(item);
        while let TreeItem::Call(_) = item {
            let Some(only) = self.rules().below(item).only() else { break };
            item = TreeItem::Call(only);
            self.open().insert(item);
        }
        self.refresh();
    }

    /// Collapses the selected row; if already collapsed, moves to its caller.
    fn close_or_leave(&mut self) {
        let Some(row) = self.rows.get(self.selected) else { return };
        let item = row.item;
        if row.is_open && row.has_more {
            self.open().remove(&item);
            return self.refresh();
        }
        let rows = &self.rows[..self.selected];
        let row_of = |item| rows.iter().rposition(|row| row.item == item);
        let mut node = item.node();
        loop {
            let above = if item == TreeItem::Rest(node) { node } else { self.forest.parent(node) };
            if let Some(at) = row_of(TreeItem::Rest(above)).max(row_of(TreeItem::Call(above))) {
                self.selected = at;
                return;
            }
            if above == 0 || above == node {
                return;
            }
            node = above;
        }
    }

    fn open_all(&mut self) {
        let Some(item) = self.selected_item() else { return };
        let mut todo = vec![item];
        while let Some(item) = todo.pop() {
            self.open().insert(item);
            let (large, small) = parted(&self.forest, item.node(), self.sort, self.floor());
            match item {
                TreeItem::Call(node) if !small.is_empty() => todo.push(TreeItem::Rest(node)),
                TreeItem::Rest(_) => todo.extend(small.into_iter().map(TreeItem::Call)),
                TreeItem::Call(_) => {}
            }
            if matches!(item, TreeItem::Call(_)) {
                todo.extend(large.into_iter().map(TreeItem::Call));
            }
        }
        self.refresh();
    }

    fn close_all(&mut self) {
        let Some(item) = self.selected_item() else { return };
        let mut inside = vec![false; self.forest.len()];
        for node in 0..inside.len() {
            inside[node] = node as u32 == item.node() || inside[self.forest.parent(node as u32) as usize];
        }
        self.open().retain(|item| !inside[item.node() as usize]);
        self.refresh();
    }

    fn switch(&mut self, view: usize, inverted: bool) {
        let turned = inverted != self.inverted;
        (self.view, self.inverted) = (view, inverted);
        self.show_view();
        if turned {
            (self.selected, self.top) = (0, 0);
        }
        if !self.search.text.is_empty() {
            self.search.matches = self.forest.matching(&self.search.text);
            self.search.total = self.forest.matched(&self.search.matches);
        }
    }

    /// Shows the current view. On the first visit, its large calls are expanded.
    fn show_view(&mut self) {
        let view = self.views[self.view];
        let item = self.selected_item();
        self.forest.select(view, self.inverted);
        if self.visited.insert((view, self.inverted)) {
            let whole = self.forest.total(0).bytes as f64;
            let large = |node: &u32| self.forest.total(*node).bytes as f64 * 100.0 >= whole * OPEN_AT_FIRST;
            let nodes = u32::try_from(self.forest.len()).unwrap_or(u32::MAX);
            let open: Vec<TreeItem> = (1..nodes).filter(large).map(TreeItem::Call).collect();
            self.open().extend(open);
        }
        self.make_rows();
        self.reselect(item);
    }

    /// Rebuilds the rows and keeps the selection.
    fn refresh(&mut self) {
        let item = self.selected_item();
        self.make_rows();
        self.reselect(item);
    }

    fn make_rows(&mut self) {
        self.rows = rows(&self.rules(), &self.open[usize::from(self.inverted)]);
    }

    /// Selects the row of this item, or of its nearest caller that has one.
    fn reselect(&mut self, item: Option<TreeItem>) {
        let mut wanted = item;
        while let Some(item) = wanted {
            if let Some(at) = self.rows.iter().position(|row| row.item == item) {
                self.selected = at;
                return;
            }
            wanted = match item {
                TreeItem::Rest(node) => Some(TreeItem::Call(node)),
                TreeItem::Call(0) => None,
                TreeItem::Call(node) => Some(TreeItem::Call(self.forest.parent(node))),
            };
        }
        self.selected = self.selected.min(self.rows.len().saturating_sub(1));
    }

    /// Expands all callers of a node, and selects it.
    fn select(&mut self, node: u32) {
        let mut at = node;
        if !self.all_calls {
            self.reveal(node);
        }
        while at != 0 {
            let above = self.forest.parent(at);
            let (_, small) = parted(&self.forest, above, self.sort, self.floor());
            if self.all_calls && small.contains(&at) {
                self.open().insert(TreeItem::Rest(above));
            }
            if above != 0 {
                self.open().insert(TreeItem::Call(above));
            }
            at = above;
        }
        self.make_rows();
        self.reselect(Some(TreeItem::Call(node)));
    }

    /// Gives a node and its callers rows, however small they are.
    fn reveal(&mut self, node: u32) {
        let (floor, sort) = (self.floor(), self.sort);
        let revealed = &mut self.revealed[usize::from(self.inverted)];
        let mut at = node;
        while at != 0 && (at == node || figure(self.forest.total(at), sort) < floor) {
            revealed.insert(at);
            at = self.forest.parent(at);
        }
    }

    /// Searches for this text, starting at the node where the search began.
    fn find(&mut self, text: String) {
        self.search.text = text;
        if self.search.text.is_empty() {
            (self.search.matches, self.search.total) = (Vec::new(), Tally::default());
            if self.search.typing {
                self.select(self.search.from);
            }
            return;
        }
        self.search.matches = self.forest.matching(&self.search.text);
        self.search.total = self.forest.matched(&self.search.matches);
        let from = self.search.from;
        let found = if self.is_match(from) { Some(from) } else { self.match_after(from, true) };
        self.select(found.unwrap_or(from));
    }

    /// Whether a node is in the view and matches.
    pub(super) fn is_match(&self, node: u32) -> bool {
        self.search.matches.get(node as usize).is_some_and(|hit| *hit)
    }

    fn next_match(&mut self, forward: bool) {
        if let Some(node) = self.match_after(self.selected_node(), forward) {
            self.select(node);
        }
    }

    /// The next or previous match in row order, whether or not it has a row yet; wraps around.
    fn match_after(&self, node: u32, forward: bool) -> Option<u32> {
        let order = self.in_order();
        let at = order.iter().position(|one| *one == node).unwrap_or(0);
        let hit = |node: &&u32| self.is_match(**node);
        if forward {
            order[at..].iter().skip(1).chain(&order[..at]).find(hit).copied()
        } else {
            order[..at].iter().rev().chain(order[at..].iter().rev()).find(hit).copied()
        }
    }

    /// All nodes of the view in row order, the root first.
    fn in_order(&self) -> Vec<u32> {
        let mut order = Vec::new();
        let mut todo = vec![0];
        while let Some(node) = todo.pop() {
            order.push(node);
            let (mut below, small) = parted(&self.forest, node, self.sort, self.floor());
            below.extend(small);
            todo.extend(below.into_iter().rev());
        }
        order
    }
}
