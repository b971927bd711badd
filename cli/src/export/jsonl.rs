//! `transform jsonl`: all sums of a capture as JSON Lines, for programs.
//!
//! Order of records: `meta`, `string_table`, `frame_table`, `agg` (kind `frame`, then kind `stack`), `snapshot`, `end`.
//! Ids are explicit and start at 0; tables and aggregates are split into chunks of 256; a missing key means that the
//! value is unknown; line 0 means no line. `end` has the number of records before it; a file without it is truncated.
//! Invariant: a record refers only to earlier records, and `cumulative` counts a frame once in each stack.

mod windows;

use std::collections::HashSet;
use std::io::{self, Write};

use anyhow::Result;
use memtrack_reader::analysis::{GroupRow, Tally, unseen_bytes};
use memtrack_reader::{FrameId, Frames, StackId, View};
use serde_json::{Map, Value, json};

use super::numbering::Numbering;
use super::{SumsFormat, root_to_leaf};
use crate::reports::NO_STACK;
use crate::reports::capture_info::Capture;
use crate::reports::estimates::{self, RangedTally};
use crate::reports::leaked::LeakMoment;
use crate::units::whole_ms;

pub(crate) use windows::{WindowRecords, WindowTotals};

/// Version of the format; incompatible changes raise it.
const VERSION: u32 = 0;
/// Maximum number of entries in a record.
const CHUNK: usize = 256;
/// The sums of an entry, by name; the last one only where every allocation was recorded.
const SUMS: [&str; 4] = ["peak", "leaked", "allocated", "temporary"];

/// JSON lines.
#[derive(Debug)]
pub(crate) struct Jsonl;

impl SumsFormat for Jsonl {
    fn name(&self) -> &'static str {
        "jsonl"
    }

    fn suffix(&self) -> &'static str {
        "jsonl"
    }

    fn opens_in(&self) -> &'static str {
        "one JSON object a line"
    }

    fn holds_every_view(&self) -> bool {
        true
    }

    /// Writes all views; `view` only selects the moment of the leaks.
    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        let leaks = if view == View::LeaksAtExit { View::LeaksAtExit } else { View::Leaks };
        // Which allocations were temporary is not known from samples.
        let names = if capture.is_sampled() { &SUMS[..SUMS.len() - 1] } else { &SUMS };
        let views = [View::HighWaterMark, leaks, View::Allocated, View::Temporary];
        let sums = NumberedSums::named(names, capture, views, |view, sum| estimates::whole(capture, view, sum));
        let mut records = JsonLines { out, written: 0, run_id: run_id(capture) };
        records.write("meta", meta(capture, leaks))?;
        records.tables(&sums, &capture.frames)?;
        records.aggregates(&sums, &json!({"scope": "final"}))?;
        for snapshot in &capture.analysis.snapshots {
            let (time, live, rss) = (snapshot.time_ns, snapshot.heap_bytes, snapshot.rss_bytes);
            records.write("snapshot", json!({"time_ns": time, "live_bytes": live, "rss_bytes": rss}))?;
        }
        let end = json!({"records": records.written});
        records.write("end", end)?;
        Ok(())
    }
}

/// An id of the recording; the same each time it is exported.
fn run_id(capture: &Capture) -> String {
    let process = &capture.info.process;
    let number = |value: Option<u32>| value.unwrap_or(0);
    format!("{:016x}{:08x}{:08x}", process.start.realtime_ns.unwrap_or(0), number(process.pid), number(process.ppid))
}

fn meta(capture: &Capture, leaks: View) -> Value {
    let (info, analysis) = (&capture.info, &capture.analysis);
    let known = json!({
        "exporter": concat!("memtrack@", env!("CARGO_PKG_VERSION")),
        "command_line": info.command_line(),
        "pid": info.process.pid,
        "ppid": info.process.ppid,
        "executable": info.executable(),
        "python_version": info.python_version(),
        "start_time": info.start_time(),
        "duration_ms": whole_ms(info.duration_ns(analysis)),
        "units": {"bytes": "bytes", "count": "allocations"},
        "leaked": match info.leak_moment.in_view(leaks) {
            LeakMoment::Exit => "at-exit",
            LeakMoment::Finalization => "at-finalization",
            other => other.name(),
        },
        "temporary_threshold": analysis.totals.temporary_threshold,
        "aggregated": info.aggregated,
        "sample_bytes": info.process.sample_bytes,
        "unseen_bytes": capture.sample_bytes().map(unseen_bytes),
        "has_allocation_timestamps": analysis.exact_times,
        "time_uncertainty_ns": info.time_uncertainty_ns,
        "complete": info.complete,
        "lost_blocks": info.lost_blocks,
        "lost_bytes": info.lost_bytes,
        "frees_of_earlier_blocks": Some(analysis.totals.frees_of_earlier_blocks()).filter(|number| *number > 0),
    });
    let Value::Object(fields) = known else { return known };
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into()
}

/// Self and cumulative sums of each view.
#[derive(Clone, Copy, Default)]
struct FunctionSums {
    own: [Tally; SUMS.len()],
    cumulative: [Tally; SUMS.len()],
}

/// Sums by frame and by stack, in the order of first occurrence.
struct NumberedSums {
    /// They are estimates, with intervals.
    is_sampled: bool,
    /// Names of the sums; those without a name are not written.
    names: &'static [&'static str],
    frames: Numbering<Option<FrameId>>,
    by_frame: Vec<FunctionSums>,
    stacks: Numbering<StackId>,
    by_stack: Vec<FunctionSums>,
    /// The frames of each stack by number, outermost first.
    chains: Vec<Vec<usize>>,
    totals: [RangedTally; SUMS.len()],
}

impl NumberedSums {
    /// `total`: the sum of all rows of a view with its interval.
    fn named(
        names: &'static [&'static str],
        capture: &Capture,
        views: [View; SUMS.len()],
        total: impl Fn(View, Tally) -> RangedTally,
    ) -> Self {
        let mut sums = Self {
            is_sampled: capture.is_sampled(),
            names,
            frames: Numbering::new(),
            by_frame: Vec::new(),
            stacks: Numbering::new(),
            by_stack: Vec::new(),
            chains: Vec::new(),
            totals: [Tally::default(); SUMS.len()].map(RangedTally::from),
        };
        for (at, view) in views.into_iter().enumerate() {
            let mut sum = Tally::default();
            for row in capture.analysis.rows(view) {
                sums.add(at, &row, &capture.frames);
                add(&mut sum, &row);
            }
            sums.totals[at] = total(view, sum);
        }
        sums
    }

    /// A total, with what no sample shows.
    fn total(&self, total: RangedTally) -> Value {
        let mut value = json!({"bytes": total.tally.bytes, "count": total.tally.count});
        if self.is_sampled {
            total.put(&mut value, ["bytes", "count"]);
        }
        value
    }

    /// Adds the ends of the 95 % intervals, where there are samples only.
    fn put_ranges(&self, value: &mut Value, names: [&str; 2], tally: Tally) {
        if self.is_sampled {
            RangedTally::from(tally).put(value, names);
        }
    }

    fn add(&mut self, at: usize, row: &GroupRow, frames: &Frames) {
        let stack = self.stacks.number(row.stack);
        if stack == self.chains.len() {
            let chain: Vec<_> =
                root_to_leaf(frames, row.stack).into_iter().map(|frame| self.frames.number(frame)).collect();
            self.chains.push(chain);
            self.by_stack.push(FunctionSums::default());
            self.by_frame.resize(self.frames.order().len(), FunctionSums::default());
        }
        let chain = &self.chains[stack];
        add(&mut self.by_stack[stack].own[at], row);
        chain.last().into_iter().for_each(|leaf| add(&mut self.by_frame[*leaf].own[at], row));
        for frame in chain.iter().collect::<HashSet<_>>() {
            add(&mut self.by_frame[*frame].cumulative[at], row);
        }
    }
}

fn add(tally: &mut Tally, row: &GroupRow) {
    tally.bytes = tally.bytes.saturating_add(row.bytes);
    tally.count = tally.count.saturating_add(row.count);
    tally.variance += row.variance;
}

/// Writes and counts records.
struct JsonLines<'a> {
    out: &'a mut dyn Write,
    written: u64,
    run_id: String,
}

impl JsonLines<'_> {
    /// Writes a record: its type, version and run, and then its fields.
    fn write(&mut self, kind: &str, fields: Value) -> io::Result<()> {
        write!(self.out, "{{\"type\":\"{kind}\",\"v\":{VERSION},\"run_id\":\"{}\"", self.run_id)?;
        for (key, value) in fields.as_object().into_iter().flatten() {
            write!(self.out, ",\"{key}\":{value}")?;
        }
        self.written += 1;
        writeln!(self.out, "}}")
    }

    fn tables(&mut self, sums: &NumberedSums, frames: &Frames) -> io::Result<()> {
        let mut strings = Numbering::new();
        let places: Vec<_> =
            sums.frames.order().iter().map(|frame| place(*frame, frames, |name| strings.number(name))).collect();
        let entries = strings.order().iter().enumerate().map(|(id, value)| json!({"str_id": id, "value": value}));
        self.chunks("string_table", &json!({}), "strings", entries)?;
        let entries = places.into_iter().enumerate().map(|(id, mut place)| {
            place["frame_id"] = id.into();
            place
        });
        self.chunks("frame_table", &json!({}), "frames", entries)
    }

    /// `scope`: the fields that tell which span of time the sums are of.
    fn aggregates(&mut self, sums: &NumberedSums, scope: &Value) -> io::Result<()> {
        let totals: Map<_, _> =
            sums.names.iter().zip(sums.totals).map(|(name, total)| ((*name).into(), sums.total(total))).collect();
        let head = |kind: &str| {
            let mut head = json!({"kind": kind});
            for (key, value) in scope.as_object().into_iter().flatten() {
                head[key] = value.clone();
            }
            head["totals"] = totals.clone().into();
            head
        };
        let entries = sums.by_frame.iter().enumerate().map(|(id, entry)| frame_entry(sums, id, entry));
        self.chunks("agg", &head("frame"), "entries", entries)?;
        let stacks = sums.by_stack.iter().zip(&sums.chains).enumerate();
        let entries = stacks.map(|(id, (entry, chain))| stack_entry(sums, id, entry, chain));
        self.chunks("agg", &head("stack"), "entries", entries)
    }

    /// Records of at most [`CHUNK`] entries; of aggregates, which have the totals, at least one.
    fn chunks(&mut self, kind: &str, head: &Value, key: &str, entries: impl Iterator<Item = Value>) -> io::Result<()> {
        let mut entries = entries.peekable();
        let mut is_wanted = kind == "agg";
        while std::mem::take(&mut is_wanted) || entries.peek().is_some() {
            let mut fields = head.clone();
            fields[key] = entries.by_ref().take(CHUNK).collect();
            self.write(kind, fields)?;
        }
        Ok(())
    }
}

/// The fields of a frame, with names as ids.
fn place<'a>(frame: Option<FrameId>, frames: &'a Frames, mut number: impl FnMut(&'a str) -> usize) -> Value {
    let Some(id) = frame else { return json!({"func_str_id": number(NO_STACK), "line": 0}) };
    let mut place = json!({"func_str_id": number(frames.function(id)), "line": frames.frame(id).line});
    if !frames.file(id).is_empty() {
        place["path_str_id"] = number(frames.file(id)).into();
    }
    place
}

fn frame_entry(sums: &NumberedSums, id: usize, entry: &FunctionSums) -> Value {
    let mut value = json!({"frame_id": id});
    for (at, name) in sums.names.iter().enumerate() {
        let (own, cumulative) = (entry.own[at], entry.cumulative[at]);
        value[name] = json!({
            "self_bytes": own.bytes,
            "cumulative_bytes": cumulative.bytes,
            "self_count": own.count,
            "cumulative_count": cumulative.count,
        });
        sums.put_ranges(&mut value[name], ["self_bytes", "self_count"], own);
        sums.put_ranges(&mut value[name], ["cumulative_bytes", "cumulative_count"], cumulative);
    }
    value
}

fn stack_entry(sums: &NumberedSums, id: usize, entry: &FunctionSums, chain: &[usize]) -> Value {
    let mut value = json!({"stack_id": id, "frame_ids": chain});
    for (name, own) in sums.names.iter().zip(entry.own) {
        value[name] = json!({"self_bytes": own.bytes, "self_count": own.count});
        sums.put_ranges(&mut value[name], ["self_bytes", "self_count"], own);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Jsonl, SumsFormat};
    use crate::reports::capture_info::Capture;
    use crate::reports::fixture;
    use memtrack_format::Allocator;
    use memtrack_reader::View;
    use memtrack_reader::analysis::{Group, Sum};
    use serde_json::{Value, json};

    fn records(capture: &Capture) -> Vec<Value> {
        let mut text = Vec::new();
        Jsonl.write(capture, View::HighWaterMark, &mut text).unwrap();
        str::from_utf8(&text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn kinds(records: &[Value]) -> Vec<&str> {
        records.iter().map(|record| record["type"].as_str().unwrap()).collect()
    }

    #[test]
    fn golden() {
        let mut text = Vec::new();
        Jsonl.write(&fixture::capture(), View::HighWaterMark, &mut text).unwrap();
        fixture::compare("capture.jsonl", &text);
    }

    #[test]
    fn records_come_in_their_order_and_end_counts_them() {
        let records = records(&fixture::capture());
        assert_eq!(kinds(&records), ["meta", "string_table", "frame_table", "agg", "agg", "snapshot", "end"]);
        assert_eq!(records.last().unwrap()["records"], json!(records.len() - 1));
        assert!(records.iter().all(|record| record["v"] == 0 && record["run_id"] == records[0]["run_id"]));
    }

    #[test]
    fn own_sums_are_whole() {
        let records = records(&fixture::capture());
        for aggregate in records.iter().filter(|record| record["type"] == "agg") {
            let entries = aggregate["entries"].as_array().unwrap();
            let own: u64 = entries.iter().filter_map(|entry| entry["peak"]["self_bytes"].as_u64()).sum();
            assert_eq!(aggregate["totals"]["peak"]["bytes"], json!(own));
        }
    }

    /// A recursive function is counted once per stack, and chunks have at most CHUNK entries.
    #[test]
    fn recursion_and_chunks() {
        let mut capture = fixture::empty();
        let function = capture.frames.name_id("again").unwrap();
        for line in 0..u32::try_from(CHUNK).unwrap() + 1 {
            let frame = capture.frames.frame_id(function, function, line).unwrap();
            let stack = capture.frames.stack_of(&[frame, frame, frame]).unwrap();
            let sum = Sum { bytes: 10, count: 1, ..Sum::default() };
            let thread = memtrack_reader::ThreadId(0);
            capture.analysis.groups.push(&Group { allocated: sum, ..Group::new(stack, Allocator::Malloc, thread) });
        }
        let records = records(&capture);
        assert_eq!(
            kinds(&records),
            ["meta", "string_table", "frame_table", "frame_table", "agg", "agg", "agg", "agg", "end"]
        );
        let expected = json!({"self_bytes": 10, "cumulative_bytes": 10, "self_count": 1, "cumulative_count": 1});
        assert_eq!(records[4]["entries"][7]["allocated"], expected);
        assert_eq!(records[4]["entries"].as_array().unwrap().len(), CHUNK);
        assert_eq!(records[7]["entries"][0]["frame_ids"], json!([256, 256, 256]));
    }
}
