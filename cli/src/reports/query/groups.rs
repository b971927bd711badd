//! Groups of allocations with a common attribute, with their lifetimes.
//!
//! Invariant: every allocation is in exactly one group; groups of several captures with the same name are merged.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use clap::ValueEnum;
use memtrack_format::Allocator;
use memtrack_reader::analysis::{Lifetimes, SizeHistogram, Tally};
use memtrack_reader::fold::NAMELESS_IMPORT;
use memtrack_reader::frames::NameId;
use memtrack_reader::modules::{ModuleId, ModuleTable};
use memtrack_reader::query::AllocationRecord;
use memtrack_reader::{Frames, StackId, ThreadId};
use serde_json::{Value, json};

use super::{MatchTotals, span, stack_value};
use crate::reports::NO_STACK;
use crate::reports::capture_info::Capture;
use crate::reports::lifetimes;
use crate::terminal::TextFormat;
use crate::text::{Label, TextCell, TextColumn, TextTable, column, left_out, share};
use crate::units::{count, size};

/// The attribute to group by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupBy {
    /// The innermost function
    Function,
    /// The innermost function's source file
    File,
    /// The module that the stack is attributed to
    Module,
    /// The allocating thread
    Thread,
    /// The allocating function, such as malloc
    Allocator,
    /// The size, up to the next power of two
    Size,
    /// The whole call stack
    Stack,
}

/// A group's key, with ids of one capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum QueryGroupKey {
    Names(u32, u32),
    Module(ModuleId),
    Thread(ThreadId),
    Allocator(Allocator),
    Size(u64),
    Stack(StackId),
}

/// A row for a group.
#[derive(Debug)]
struct QueryGroupRow {
    label: Label,
    key: Value,
    sums: QueryGroupSums,
}

/// Figures of a group.
#[derive(Clone, Debug, Default)]
struct QueryGroupSums {
    all: Tally,
    live: Tally,
    /// `None` for aggregated captures.
    lifetimes: Option<Lifetimes>,
}

/// Allocations in groups.
#[derive(Debug)]
pub(crate) struct QueryGroups {
    by: GroupBy,
    /// Groups of the current capture.
    open: HashMap<QueryGroupKey, QueryGroupSums>,
    /// Keys of functions and files that are own code.
    own: HashSet<QueryGroupKey>,
    modules: ModuleTable,
    rows: Vec<QueryGroupRow>,
    places: HashMap<String, usize>,
    captures: Vec<Value>,
}

impl QueryGroups {
    /// An empty set of groups.
    pub(crate) fn new(by: GroupBy) -> Self {
        Self {
            by,
            open: HashMap::new(),
            own: HashSet::new(),
            modules: ModuleTable::default(),
            rows: Vec::new(),
            places: HashMap::new(),
            captures: Vec::new(),
        }
    }

    /// Adds an allocation of the current capture.
    pub(crate) fn add(&mut self, capture: &Capture, life: &AllocationRecord) {
        let key = self.key(capture, life.stack, life.allocator, life.thread, life.size);
        let sums = self.open.entry(key).or_default();
        sums.all.add(life.size, 1);
        sums.lifetimes.get_or_insert_default().add(life);
    }

    /// Adds allocations of an aggregated capture, whose individual sizes are unknown.
    pub(crate) fn add_sum(&mut self, capture: &Capture, group: &memtrack_reader::analysis::Group) {
        let key = self.key(capture, group.stack, group.allocator, group.thread, 0);
        let sums = self.open.entry(key).or_default();
        sums.all.add(group.allocated.bytes, group.allocated.count);
        sums.live.add(group.leaked_at_exit.bytes, group.leaked_at_exit.count);
    }

    /// Ends the current capture.
    pub(crate) fn end_capture(&mut self, capture: &Capture) {
        for (key, mut sums) in std::mem::take(&mut self.open) {
            if let Some(lifetimes) = &sums.lifetimes {
                sums.live = lifetimes.live;
            }
            let (label, value) = self.shown(capture, key);
            match self.places.entry(value.to_string()) {
                Entry::Occupied(place) => self.rows[*place.get()].sums.merge(&sums),
                Entry::Vacant(place) => {
                    place.insert(self.rows.len());
                    self.rows.push(QueryGroupRow { label, key: value, sums });
                }
            }
        }
        self.modules = ModuleTable::default();
        self.own.clear();
        self.captures.push(super::capture_value(capture));
        self.rows.sort_by(|one, other| {
            let order = |row: &QueryGroupRow| (row.sums.all.bytes, row.sums.all.count);
            order(other).cmp(&order(one)).then_with(|| one.label.cmp(&other.label))
        });
        self.places = self.rows.iter().enumerate().map(|(place, row)| (row.key.to_string(), place)).collect();
    }

    fn key(
        &mut self,
        capture: &Capture,
        stack: StackId,
        allocator: Allocator,
        thread: ThreadId,
        bytes: u64,
    ) -> QueryGroupKey {
        let shown = capture.stack(stack);
        let innermost = capture.frames.node(shown).map(|node| node.frame);
        let key = match self.by {
            GroupBy::Function => {
                let (function, file) = names_of(&capture.frames, shown);
                QueryGroupKey::Names(function.0, file.0)
            }
            GroupBy::File => QueryGroupKey::Names(0, names_of(&capture.frames, shown).1.0),
            GroupBy::Module => QueryGroupKey::Module(self.modules.of_stack(&capture.frames, stack)),
            GroupBy::Thread => QueryGroupKey::Thread(thread),
            GroupBy::Allocator => QueryGroupKey::Allocator(allocator),
            GroupBy::Size => QueryGroupKey::Size(SizeHistogram::bounds_of(bytes).1),
            GroupBy::Stack => QueryGroupKey::Stack(shown),
        };
        if innermost.is_some_and(|id| capture.is_own(id)) {
            self.own.insert(key);
        }
        key
    }

    /// A group as label and as JSON.
    fn shown(&self, capture: &Capture, key: QueryGroupKey) -> (Label, Value) {
        let names = &capture.frames;
        let name = |id| names.name(NameId(id));
        let known = |text: &str| Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
        let plain = |text: &str| Label::new(text, "", false);
        let is_own = self.own.contains(&key);
        match key {
            QueryGroupKey::Names(function, file) if self.by == GroupBy::File => {
                debug_assert_eq!(function, 0);
                let text = known(&capture.path(name(file)));
                (Label::new(text.unwrap_or_else(|| "<unknown>".into()), "", is_own), json!({"file": known(name(file))}))
            }
            QueryGroupKey::Names(function, file) => {
                let function = known(name(function)).unwrap_or_else(|| NO_STACK.into());
                let file = known(name(file));
                let path = file.as_deref().map(|file| capture.path(file));
                let label = Label::new(&function, path.unwrap_or_default(), is_own);
                (label, json!({"function": function, "file": file}))
            }
            QueryGroupKey::Module(module) => {
                let module = self.modules.name(module);
                (plain(module), json!({"module": module}))
            }
            QueryGroupKey::Thread(id) => {
                let (tid, name) = capture.thread(id);
                let text = format!("{} {name}", tid.map_or("?".into(), |tid| tid.to_string()));
                (plain(&text), json!({"tid": tid, "name": name}))
            }
            QueryGroupKey::Allocator(allocator) => (plain(allocator.name()), json!({"allocator": allocator.name()})),
            QueryGroupKey::Size(most) => {
                let (least, most) = SizeHistogram::bounds_of(most);
                (plain(&format!("<= {}", size(most))), json!({"min_bytes": least, "max_bytes": most}))
            }
            QueryGroupKey::Stack(stack) => {
                // Lines are included, so that stacks that differ only in lines have different labels.
                let named = |frame| match names.frame(frame).line {
                    0 => names.function(frame).to_owned(),
                    line => format!("{}:{line}", names.function(frame)),
                };
                let frames: Vec<_> = names.leaf_to_root(stack).map(named).collect();
                let text = if frames.is_empty() { NO_STACK.into() } else { frames.join(" < ") };
                (plain(&text), json!({"frames": stack_value(capture, stack)}))
            }
        }
    }

    /// Writes the first `limit` rows.
    ///
    /// # Errors
    /// A write error; likewise below.
    pub(crate) fn text(
        &self,
        matched: &MatchTotals,
        limit: usize,
        histograms: bool,
        format: TextFormat,
        mut out: impl Write,
    ) -> io::Result<()> {
        writeln!(out, "{}", format.heading(&matched.heading()))?;
        let shown = limit.min(self.rows.len());
        if shown == 0 {
            return Ok(());
        }
        let mut table = TextTable::new(columns(self.by, histograms));
        for row in &self.rows[..shown] {
            table.row(row.cells(matched, histograms));
        }
        table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        match self.rows.len() - shown {
            0 => Ok(()),
            more => writeln!(out, "{}", left_out(more as u64)),
        }
    }

    /// Writes all groups as `memtrack-query`, version 1.
    pub(crate) fn json(&self, query: &str, matched: &MatchTotals, mut out: impl Write) -> io::Result<()> {
        let (query, by) = (Value::from(query), Value::from(name(self.by)));
        write!(out, "{{\"schema\":\"memtrack-query\",\"version\":1,\"query\":{query},\"by\":{by},\"rows\":[")?;
        for (number, row) in self.rows.iter().enumerate() {
            write!(out, "{}\n{}", if number > 0 { "," } else { "" }, row.value())?;
        }
        let bounds = Value::from(memtrack_reader::analysis::LIFETIME_BOUNDS_NS.to_vec());
        let (captures, (matched, of)) = (Value::from(self.captures.clone()), matched.json());
        writeln!(out, "\n],\"lifetime_bounds_ns\":{bounds},\"captures\":{captures},\"matched\":{matched},\"of\":{of}}}")
    }
}

impl QueryGroupSums {
    fn merge(&mut self, other: &Self) {
        self.all.add(other.all.bytes, other.all.count);
        self.live.add(other.live.bytes, other.live.count);
        match (&mut self.lifetimes, &other.lifetimes) {
            (Some(lifetimes), Some(others)) => lifetimes.merge(others),
            (lifetimes, _) => *lifetimes = None,
        }
    }
}

impl QueryGroupRow {
    fn cells(&self, matched: &MatchTotals, histograms: bool) -> Vec<TextCell> {
        let QueryGroupSums { all, live, lifetimes } = &self.sums;
        let mut cells = Vec::from(share(all.bytes, matched.matched.bytes));
        cells.push(count(all.count).into());
        if histograms {
            cells.remove(1);
            let bins = lifetimes.as_ref().map(lifetimes::cells);
            cells.extend(bins.unwrap_or_else(|| vec!["?".into(); lifetimes::HEAD.len()]));
        } else {
            let times = lifetimes
                .as_ref()
                .map_or(["?".into(), "?".into()], |times| [span(times.mean_ns()), span(times.longest_ns)]);
            cells.push(size(live.bytes).into());
            cells.extend(times.map(Into::into));
        }
        cells.push(self.label.clone().into());
        cells
    }

    fn value(&self) -> Value {
        let QueryGroupSums { all, live, lifetimes } = &self.sums;
        let mut value = self.key.clone();
        value["count"] = all.count.into();
        value["bytes"] = all.bytes.into();
        value["live"] = json!({"count": live.count, "bytes": live.bytes});
        value["lifetimes"] = lifetimes.as_ref().map_or(Value::Null, lifetimes::value);
        value
    }
}

/// The innermost function of a stack, and its file. A folded import without a known module has no file; it takes that
/// of the importing code.
fn names_of(frames: &Frames, stack: StackId) -> (NameId, NameId) {
    let Some(node) = frames.node(stack) else { return (NameId(0), NameId(0)) };
    let frame = frames.frame(node.frame);
    let file = match frames.node(node.parent) {
        Some(caller) if frames.name(frame.function) == NAMELESS_IMPORT => frames.frame(caller.frame).file,
        _ => frame.file,
    };
    (frame.function, file)
}

fn columns(by: GroupBy, histograms: bool) -> Vec<TextColumn> {
    let (first, middle) = if histograms {
        (vec![column("Size").optional(1), column("Count").optional(2)], lifetimes::HEAD.map(column).to_vec())
    } else {
        let middle = [column("At exit"), column("Lived").optional(1), column("At most").optional(2)];
        (["Size", "Part", "Count"].map(column).to_vec(), middle.to_vec())
    };
    let title = match by {
        GroupBy::Function => "Function",
        GroupBy::File => "File",
        GroupBy::Module => "Module",
        GroupBy::Thread => "Thread",
        GroupBy::Allocator => "Allocator",
        GroupBy::Size => "Size of each",
        GroupBy::Stack => "Call stack, innermost first",
    };
    [first, middle, vec![column(title)]].concat()
}

fn name(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Function => "function",
        GroupBy::File => "file",
        GroupBy::Module => "module",
        GroupBy::Thread => "thread",
        GroupBy::Allocator => "allocator",
        GroupBy::Size => "size",
        GroupBy::Stack => "stack",
    }
}
