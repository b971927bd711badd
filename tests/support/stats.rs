//! The figures of a capture, from `memtrack stats --json`.
//!
//! Invariant: a field that is not there fails the test; only a row of a table that is not there is taken for 0.

use std::path::Path;

use serde_json::Value;

use super::{Outcome, memtrack};

/// A report.
#[derive(Debug)]
pub(crate) struct Stats(pub(crate) Value);

/// Bytes and number of allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReportedTally {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Stats {
    /// The report on a capture.
    #[track_caller]
    pub(crate) fn of(capture: &Path) -> Self {
        let outcome = Outcome::of(memtrack().args(["stats", "--json"]).arg(capture));
        assert_eq!(outcome.status, 0, "{outcome:?}");
        Self(serde_json::from_str(&outcome.stdout).expect("JSON"))
    }

    /// The number at a JSON pointer.
    #[track_caller]
    pub(crate) fn number(&self, pointer: &str) -> u64 {
        let value = self.0.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {}", self.0));
        value.as_u64().unwrap_or_else(|| panic!("{pointer} is {value}"))
    }

    /// That nothing was lost, that the recording came to its end, and that it has no contradictions.
    #[track_caller]
    pub(crate) fn is_whole(&self) {
        assert_eq!(self.0.pointer("/capture/complete"), Some(&Value::Bool(true)), "{}", self.0);
        for field in ["lost_blocks", "lost_bytes", "unmatched_frees"] {
            assert_eq!(self.number(&format!("/capture/{field}")), 0, "{field}: {}", self.0);
        }
    }

    /// Everything ever allocated.
    #[track_caller]
    pub(crate) fn allocated(&self) -> ReportedTally {
        ReportedTally { count: self.number("/allocations/count"), bytes: self.number("/allocations/bytes") }
    }

    /// The high-water mark.
    #[track_caller]
    pub(crate) fn peak(&self) -> ReportedTally {
        ReportedTally { count: self.number("/peak/allocations"), bytes: self.number("/peak/bytes") }
    }

    /// What was not freed.
    #[track_caller]
    pub(crate) fn leaked(&self) -> ReportedTally {
        ReportedTally { count: self.number("/leaked/allocations"), bytes: self.number("/leaked/bytes") }
    }

    /// What a function of the allocator interface allocated.
    #[track_caller]
    pub(crate) fn allocator(&self, name: &str) -> ReportedTally {
        self.row("allocators", "allocator", name)
    }

    /// All allocators by name.
    #[track_caller]
    pub(crate) fn allocators(&self) -> Vec<(String, ReportedTally)> {
        self.rows("allocators").iter().map(|row| (text(row, "allocator"), tally(row))).collect()
    }

    /// What the thread of this name allocated.
    #[track_caller]
    pub(crate) fn thread(&self, name: &str) -> ReportedTally {
        self.row("threads", "name", name)
    }

    fn row(&self, table: &str, key: &str, name: &str) -> ReportedTally {
        let rows: Vec<_> = self.rows(table).iter().filter(|row| row[key] == name).map(tally).collect();
        assert!(rows.len() <= 1, "{name} stands in {table} more than once: {}", self.0);
        rows.first().copied().unwrap_or_default()
    }

    fn rows(&self, table: &str) -> &[Value] {
        self.0[table].as_array().unwrap_or_else(|| panic!("no {table} in {}", self.0))
    }
}

impl ReportedTally {
    /// `count` allocations of `bytes` in all.
    pub(crate) fn new(count: u64, bytes: u64) -> Self {
        Self { count, bytes }
    }

    /// With one more block of this size.
    pub(crate) fn with(self, size: u64) -> Self {
        Self::new(self.count + 1, self.bytes + size)
    }
}

impl From<(u64, u64)> for ReportedTally {
    fn from((count, bytes): (u64, u64)) -> Self {
        Self { count, bytes }
    }
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().expect("a text").to_owned()
}

fn tally(row: &Value) -> ReportedTally {
    ReportedTally::new(row["count"].as_u64().expect("a count"), row["bytes"].as_u64().expect("bytes"))
}
