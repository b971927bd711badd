//! Allocations in groups of what they have in common, with how long they lived.
//!
//! Invariant: every allocation is in one group; what is called the same in two captures is one group.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};

use clap::ValueEnum;
use memtrack_format::Allocator;
use memtrack_reader::analysis::{Lifetimes, SizeHistogram, Tally};
use memtrack_reader::modules::{ModuleId, ModuleTable};
use memtrack_reader::query::AllocationRecord;
use memtrack_reader::{StackId, ThreadId};
use serde_json::{Value, json};

use super::{Matched, span, stack_value};
use crate::reports::NO_STACK;
use crate::reports::facts::{Capture, visible};
use crate::reports::lifetimes;
use crate::reports::table::{TextTable, left_out};
use crate::terminal::Look;
use crate::units::{count, percent, size};

/// What allocations of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupBy {
    /// The innermost function
    Function,
    /// The innermost function's source file
    File,
    /// The module that the stack is put down to
    Module,
    /// The thread that made them
    Thread,
    /// The allocating function, such as malloc
    Allocator,
    /// The size, up to the next power of two
    Size,
    /// The whole call stack
    Stack,
}

/// A group in the numbers of one capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum QueryGroupKey {
    Names(u32, u32),
    Module(ModuleId),
    Thread(ThreadId),
    Allocator(Allocator),
    Size(u64),
    Stack(StackId),
}

/// A group, as it is shown.
#[derive(Debug)]
struct QueryGroupRow {
    text: String,
    key: Value,
    sums: QueryGroupSums,
}

/// What is known of a group.
#[derive(Clone, Debug, Default)]
struct QueryGroupSums {
    all: Tally,
    live: Tally,
    /// Not known of sums that were made while the program ran.
    lifetimes: Option<Lifetimes>,
}

/// Allocations in groups.
#[derive(Debug)]
pub(crate) struct QueryGroups {
    by: GroupBy,
    /// Those of the capture at hand.
    open: HashMap<QueryGroupKey, QueryGroupSums>,
    modules: ModuleTable,
    rows: Vec<QueryGroupRow>,
    places: HashMap<String, usize>,
    captures: Vec<Value>,
}

impl QueryGroups {
    /// No groups yet.
    pub(crate) fn new(by: GroupBy) -> Self {
        Self {
            by,
            open: HashMap::new(),
            modules: ModuleTable::default(),
            rows: Vec::new(),
            places: HashMap::new(),
            captures: Vec::new(),
        }
    }

    /// Takes an allocation of the capture at hand.
    pub(crate) fn add(&mut self, capture: &Capture, life: &AllocationRecord) {
        let key = self.key(capture, life.stack, life.allocator, life.thread, life.size);
        let sums = self.open.entry(key).or_default();
        sums.all.add(life.size, 1);
        sums.lifetimes.get_or_insert_default().add(life);
    }

    /// Takes allocations of which only sums are known; their sizes are not.
    pub(crate) fn add_sum(&mut self, capture: &Capture, group: &memtrack_reader::analysis::Group) {
        let key = self.key(capture, group.stack, group.allocator, group.thread, 0);
        let sums = self.open.entry(key).or_default();
        sums.all.add(group.allocated.bytes, group.allocated.count);
        sums.live.add(group.leaked_at_exit.bytes, group.leaked_at_exit.count);
    }

    /// All of a capture has come.
    pub(crate) fn end_capture(&mut self, capture: &Capture) {
        for (key, mut sums) in std::mem::take(&mut self.open) {
            if let Some(lifetimes) = &sums.lifetimes {
                sums.live = lifetimes.live;
            }
            let (text, value) = self.shown(capture, key);
            match self.places.entry(value.to_string()) {
                Entry::Occupied(place) => self.rows[*place.get()].sums.merge(&sums),
                Entry::Vacant(place) => {
                    place.insert(self.rows.len());
                    self.rows.push(QueryGroupRow { text, key: value, sums });
                }
            }
        }
        self.modules = ModuleTable::default();
        self.captures.push(super::capture_value(capture));
        self.rows.sort_by(|one, other| {
            let order = |row: &QueryGroupRow| (row.sums.all.bytes, row.sums.all.count);
            order(other).cmp(&order(one)).then_with(|| one.text.cmp(&other.text))
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
        let frame = || capture.frames.node(shown).map(|node| capture.frames.frame(node.frame));
        match self.by {
            GroupBy::Function => {
                frame().map_or(QueryGroupKey::Names(0, 0), |frame| QueryGroupKey::Names(frame.function.0, frame.file.0))
            }
            GroupBy::File => QueryGroupKey::Names(0, frame().map_or(0, |frame| frame.file.0)),
            GroupBy::Module => QueryGroupKey::Module(self.modules.of_stack(&capture.frames, stack)),
            GroupBy::Thread => QueryGroupKey::Thread(thread),
            GroupBy::Allocator => QueryGroupKey::Allocator(allocator),
            GroupBy::Size => QueryGroupKey::Size(SizeHistogram::bounds_of(bytes).1),
            GroupBy::Stack => QueryGroupKey::Stack(shown),
        }
    }

    /// A group as text and as an object.
    fn shown(&self, capture: &Capture, key: QueryGroupKey) -> (String, Value) {
        let names = &capture.frames;
        let name = |id| names.name(memtrack_reader::frames::NameId(id));
        let known = |text: &str| Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
        match key {
            QueryGroupKey::Names(function, file) if self.by == GroupBy::File => {
                debug_assert_eq!(function, 0);
                let text = known(&capture.path(name(file)));
                (text.unwrap_or_else(|| "<unknown>".into()), json!({"file": known(name(file))}))
            }
            QueryGroupKey::Names(function, file) => {
                let function = known(name(function)).unwrap_or_else(|| NO_STACK.into());
                let file = known(name(file));
                let path = file.as_deref().map(|file| capture.path(file));
                let text = path.map_or_else(|| function.clone(), |path| format!("{function} at {path}"));
                (text, json!({"function": function, "file": file}))
            }
            QueryGroupKey::Module(module) => {
                let module = self.modules.name(module);
                (module.into(), json!({"module": module}))
            }
            QueryGroupKey::Thread(id) => {
                let (tid, name) = capture.thread(id);
                let text = format!("{} {name}", tid.map_or("?".into(), |tid| tid.to_string()));
                (text, json!({"tid": tid, "name": name}))
            }
            QueryGroupKey::Allocator(allocator) => (allocator.name().into(), json!({"allocator": allocator.name()})),
            QueryGroupKey::Size(most) => {
                let (least, most) = SizeHistogram::bounds_of(most);
                (format!("<= {}", size(most)), json!({"min_bytes": least, "max_bytes": most}))
            }
            QueryGroupKey::Stack(stack) => {
                let frames: Vec<_> = names.leaf_to_root(stack).map(|frame| names.function(frame)).collect();
                let text = if frames.is_empty() { NO_STACK.into() } else { frames.join(" < ") };
                (text, json!({"frames": stack_value(capture, stack)}))
            }
        }
    }

    /// Writes the first rows; all for a `limit` of 0.
    ///
    /// # Errors
    /// What the writer says; so below.
    pub(crate) fn text(
        &self,
        matched: &Matched,
        limit: usize,
        histograms: bool,
        look: Look,
        mut out: impl Write,
    ) -> io::Result<()> {
        writeln!(out, "{}", look.heading(&matched.heading()))?;
        let shown = limit.min(self.rows.len());
        if shown == 0 {
            return Ok(());
        }
        let mut table = TextTable::default();
        table.row(head(self.by, histograms));
        for row in &self.rows[..shown] {
            table.row(row.cells(matched, histograms));
        }
        for (number, line) in table.lines(look.width).into_iter().enumerate() {
            writeln!(out, "{}", if number == 0 { look.heading(&line) } else { line })?;
        }
        match self.rows.len() - shown {
            0 => Ok(()),
            more => writeln!(out, "{}", left_out(more as u64)),
        }
    }

    /// Writes everything as `memtrack-query`, version 1.
    pub(crate) fn json(&self, query: &str, matched: &Matched, mut out: impl Write) -> io::Result<()> {
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
    fn cells(&self, matched: &Matched, histograms: bool) -> Vec<String> {
        let QueryGroupSums { all, live, lifetimes } = &self.sums;
        let mut cells = vec![size(all.bytes), percent(all.bytes, matched.matched.bytes), count(all.count)];
        if histograms {
            cells.remove(1);
            let bins = lifetimes.as_ref().map(lifetimes::cells);
            cells.extend(bins.unwrap_or_else(|| vec!["?".into(); lifetimes::HEAD.len()]));
        } else {
            let times = lifetimes
                .as_ref()
                .map_or(["?".into(), "?".into()], |times| [span(times.mean_ns()), span(times.longest_ns)]);
            cells.push(size(live.bytes));
            cells.extend(times);
        }
        cells.push(visible(&self.text));
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

fn head(by: GroupBy, histograms: bool) -> Vec<String> {
    let first: &[&str] = if histograms { &["Size", "Count"] } else { &["Size", "Part", "Count"] };
    let middle: &[&str] = if histograms { &lifetimes::HEAD } else { &["Live", "Lived", "At most"] };
    let title = match by {
        GroupBy::Function => "Function",
        GroupBy::File => "File",
        GroupBy::Module => "Module",
        GroupBy::Thread => "Thread",
        GroupBy::Allocator => "Allocator",
        GroupBy::Size => "Size of each",
        GroupBy::Stack => "Call stack, innermost first",
    };
    first.iter().chain(middle).chain([&title]).map(|&text| text.into()).collect()
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
