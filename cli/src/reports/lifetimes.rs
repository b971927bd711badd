//! Lifetimes of allocations by function, and frees by other threads: a part of `stats`.
//!
//! Invariant: the figures of text and JSON are the same.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use memtrack_reader::analysis::{Handovers, LIFETIME_BOUNDS_NS, Lifetimes, Tally};
use memtrack_reader::query::AllocationRecord;
use serde_json::{Value, json};

use super::NO_STACK;
use super::capture_info::Capture;
use crate::terminal::TextFormat;
use crate::text::{Label, TextCell, TextTable, column};
use crate::units::{count, size};

/// The column headers of [`cells`].
pub(super) const HEAD: [&str; 6] = ["<10 µs", "<1 ms", "<100 ms", "<10 s", "longer", "live"];
/// The histogram bins of each column; text has fewer columns than JSON has bins.
const BINS: [std::ops::Range<usize>; 5] = [0..1, 1..3, 3..5, 5..7, 7..8];

/// A thread: its number and its name.
type ThreadName = (Option<i32>, String);

/// Lifetimes in one or several captures.
#[derive(Debug, Default)]
pub(crate) struct LifetimesReport {
    open: HashMap<(u32, u32), Lifetimes>,
    /// Those of own code.
    open_own: HashSet<(u32, u32)>,
    open_pairs: Handovers,
    functions: HashMap<(String, String), Lifetimes>,
    /// Those of own code.
    own: HashSet<(String, String)>,
    pairs: Vec<(ThreadName, ThreadName, Tally)>,
    whole: Lifetimes,
}

impl LifetimesReport {
    /// Adds an allocation of the current capture.
    pub(crate) fn add(&mut self, capture: &Capture, life: &AllocationRecord) {
        let stack = capture.stack(life.stack);
        let innermost = capture.frames.node(stack).map(|node| node.frame);
        let frame = innermost.map(|id| capture.frames.frame(id)).unwrap_or_default();
        if innermost.is_some_and(|id| capture.is_own(id)) {
            self.open_own.insert((frame.function.0, frame.file.0));
        }
        self.open.entry((frame.function.0, frame.file.0)).or_default().add(life);
        self.open_pairs.add(life);
    }

    /// Ends the current capture.
    pub(crate) fn end_capture(&mut self, capture: &Capture) {
        let name = |id| capture.frames.name(memtrack_reader::frames::NameId(id)).to_owned();
        for ((function, file), lifetimes) in std::mem::take(&mut self.open) {
            self.whole.merge(&lifetimes);
            let is_own = self.open_own.contains(&(function, file));
            let known = (name(function), capture.path(&name(file)).into_owned());
            if is_own {
                self.own.insert(known.clone());
            }
            self.functions.entry(known).or_default().merge(&lifetimes);
        }
        self.open_own.clear();
        let named = |id| {
            let (tid, name) = capture.thread(id);
            (tid, name.to_owned())
        };
        let pairs = std::mem::take(&mut self.open_pairs).rows().into_iter();
        self.pairs.extend(pairs.map(|(made, freed, tally)| (named(made), named(freed), tally)));
        self.pairs.sort_by_key(|(.., tally)| std::cmp::Reverse((tally.bytes, tally.count)));
    }

    /// The functions with the most allocations.
    fn rows(&self, limit: usize) -> Vec<(&(String, String), &Lifetimes)> {
        let mut rows: Vec<_> = self.functions.iter().collect();
        rows.sort_by(|one, other| {
            let most = |lifetimes: &Lifetimes| (lifetimes.all().count, lifetimes.all().bytes);
            most(other.1).cmp(&most(one.1)).then_with(|| one.0.cmp(other.0))
        });
        rows.truncate(limit);
        rows
    }

    /// The part of `stats --json`, with at most `limit` functions.
    pub(crate) fn json(&self, limit: usize) -> Value {
        let threads = |(tid, name): &ThreadName| json!({"tid": tid, "name": name});
        let function = |((function, file), lifetimes): &(&(String, String), &Lifetimes)| {
            let mut value = value(lifetimes);
            value["function"] = if function.is_empty() { NO_STACK } else { function }.into();
            value["file"] = Some(&**file).filter(|file| !file.is_empty()).into();
            value
        };
        json!({
            "bounds_ns": LIFETIME_BOUNDS_NS,
            "whole": value(&self.whole),
            "functions": self.rows(limit).iter().map(function).collect::<Value>(),
            "threads": self.pairs.iter().map(|(made, freed, tally)| {
                json!({
                    "allocated_by": threads(made),
                    "freed_by": threads(freed),
                    "count": tally.count,
                    "bytes": tally.bytes,
                })
            }).collect::<Value>(),
        })
    }

    /// The part of `stats` as text, with at most `limit` functions and pairs of threads.
    ///
    /// # Errors
    /// A write error.
    pub(crate) fn text(&self, limit: usize, format: TextFormat, mut out: impl Write) -> io::Result<()> {
        let mut table = TextTable::new(HEAD.into_iter().chain(["Lifetimes, by number"]).map(column));
        table.row(cells(&self.whole).into_iter().chain(["everything".into()]));
        for ((function, file), lifetimes) in self.rows(limit) {
            let label = match &**function {
                "" => Label::new(NO_STACK, "", false),
                function => Label::new(function, file, self.own.contains(&(function.into(), file.clone()))),
            };
            table.row(cells(lifetimes).into_iter().chain([label.into()]));
        }
        section("Lifetimes", &table, format, &mut out)?;
        let other: Vec<_> = self.pairs.iter().filter(|(made, freed, _)| made != freed).collect();
        if other.is_empty() {
            return Ok(());
        }
        let mut table = TextTable::new([column(""); 3]);
        let shown = limit.min(other.len());
        for (made, freed, tally) in &other[..shown] {
            let name = |(tid, name): &ThreadName| format!("{} {name}", tid.map_or("?".into(), |tid| tid.to_string()));
            let pair = format!("{} -> {}", name(made), name(freed));
            table.row([size(tally.bytes), count(tally.count), pair].map(Into::into));
        }
        section("Freed by another thread", &table, format, &mut out)?;
        match other.len() - shown {
            0 => Ok(()),
            more => writeln!(out, "  and {} more pairs", count(more as u64)),
        }
    }
}

fn section(title: &str, table: &TextTable, format: TextFormat, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}", format.heading(title))?;
    table.lines(format).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The lifetime histogram as text.
pub(super) fn cells(lifetimes: &Lifetimes) -> Vec<TextCell> {
    let freed = BINS.map(|bins| lifetimes.freed[bins].iter().map(|bin| bin.count).sum());
    let shown = |number: u64| if number == 0 { "-".into() } else { count(number) };
    freed.into_iter().chain([lifetimes.live.count]).map(|number| shown(number).into()).collect()
}

/// The lifetime histogram as JSON.
pub(super) fn value(lifetimes: &Lifetimes) -> Value {
    let tally = |tally: &Tally| json!({"count": tally.count, "bytes": tally.bytes});
    json!({
        "freed": lifetimes.freed.iter().map(tally).collect::<Value>(),
        "live": tally(&lifetimes.live),
        "lost": tally(&lifetimes.lost),
        "cross_thread": tally(&lifetimes.cross_thread),
        "mean_ns": lifetimes.mean_ns(),
        "longest_ns": lifetimes.longest_ns,
    })
}
