//! `stats --json`: the schema `memtrack-stats`, version 1.
//!
//! Invariant: the fields and their meaning are stable; sizes are integers in bytes, unknown values are null.

use std::io::Write;

use memtrack_reader::analysis::{FrameRow, ModuleRow, SampleWeights, SizeBin, View};
use serde_json::{Value, json};

use super::NO_STACK;
use super::capture_info::Capture;
use super::estimates;
use super::failed;
use super::leak_parts::LeakParts;
use super::lifetimes::LifetimesReport;
use super::mappings;
use super::processes;
use super::stats::{StatsRows, allocated, freed, is_counted, leaks, traces_python_allocators};
use super::view::name;
use crate::units::whole_ms;

/// Writes the report, with at most `limit` frames and modules.
///
/// # Errors
/// A write error.
pub(crate) fn write(
    capture: &Capture,
    view: View,
    lifetimes: Option<&LifetimesReport>,
    limit: usize,
    mut out: impl Write,
) -> std::io::Result<()> {
    let mut report = value(capture, view, limit);
    if view != View::Allocated {
        report["view"] = name(view).into();
    }
    if let Some(lifetimes) = lifetimes {
        report["lifetimes"] = lifetimes.json(limit);
    }
    estimates::put_figures(&mut report, capture, leaks(view));
    serde_json::to_writer_pretty(&mut out, &report)?;
    writeln!(out)
}

fn value(capture: &Capture, view: View, limit: usize) -> Value {
    let totals = &capture.analysis.totals;
    let rows = StatsRows::new(capture, view, limit);
    let bins = totals.size_histogram.bins();
    json!({
        "schema": "memtrack-stats",
        "version": 1,
        "capture": capture_value(capture),
        "allocations": {"count": allocated(capture).count, "bytes": allocated(capture).bytes},
        "deallocations": {"count": totals.deallocations},
        "freed": {"count": freed(capture).count, "bytes": freed(capture).bytes},
        "live_at_exit": {"count": totals.leaked_at_exit.count, "bytes": totals.leaked_at_exit.bytes},
        "peak": peak(capture),
        "leaked": LeakParts::of(capture, leaks(view)).json(capture),
        "temporary": {"count": totals.temporary.count, "bytes": totals.temporary.bytes},
        "failed_allocations": failed::json(capture),
        "rss": rss(capture),
        "mappings": {
            "reserved_bytes": totals.mappings.reserved.peak_bytes,
            "file_bytes": totals.mappings.file.peak_bytes,
            "shared_bytes": totals.mappings.shared.peak_bytes,
            "lines": mappings::json(capture),
        },
        "account": capture.info.recording_cost.json(),
        "processes": processes::json(&capture.info.processes),
        "size_histogram": bins.iter().map(|bin| size_bin(capture, bin)).collect::<Value>(),
        "allocators": rows.allocators.iter().map(|row| {
            let mut value =
                json!({"allocator": row.allocator.name(), "count": row.tally.count, "bytes": row.tally.bytes});
            estimates::put_ranges(&mut value, capture, "", row.tally);
            for part in rows.domains.iter().filter(|part| part.allocator.function() == row.allocator) {
                if let Some(domain) = part.allocator.python_domain() {
                    value["domains"][domain.name()] = estimates::tally(capture, part.tally);
                }
            }
            value
        }).collect::<Value>(),
        "threads": rows.threads.iter().map(|row| {
            let (tid, name) = capture.thread(row.thread);
            let mut value = json!({"tid": tid, "name": name, "count": row.tally.count, "bytes": row.tally.bytes});
            // Everything ever allocated may be counted by thread.
            if view != View::Allocated || !is_counted(capture) {
                estimates::put_ranges(&mut value, capture, "", row.tally);
            }
            value
        }).collect::<Value>(),
        "top_by_size": frames(capture, &rows.top_by_size),
        "top_by_count": frames(capture, &rows.top_by_count),
        "modules_by_size": modules(capture, &rows.modules_by_size),
        "modules_by_count": modules(capture, &rows.modules_by_count),
    })
}

fn size_bin(capture: &Capture, bin: &SizeBin) -> Value {
    let mut value = json!({"min_bytes": bin.min_bytes, "max_bytes": bin.max_bytes, "count": bin.count});
    if let Some(bytes) = capture.sample_bytes() {
        let (low, high) = bin.count_range(SampleWeights::new(bytes));
        (value["count_low"], value["count_high"]) = (low.into(), high.into());
    }
    value
}

/// The peak; for several processes the joint peak, null if unknown.
fn peak(capture: &Capture) -> Value {
    let peak = &capture.analysis.totals.peak;
    let time_ms = whole_ms(peak.at.unwrap_or_default().time_ns);
    let mut value = json!({"bytes": peak.bytes, "allocations": peak.allocations, "time_ms": time_ms});
    if let Some(combined_peaks) = &capture.info.combined_peaks {
        if combined_peaks.no_joint_peak.is_some() {
            value = json!({"bytes": null, "allocations": null, "time_ms": null, "at_least": combined_peaks.at_least});
        }
        value["sum_of_peaks"] = combined_peaks.sum_of_peaks.into();
    }
    value
}

fn rss(capture: &Capture) -> Value {
    let totals = &capture.analysis.totals;
    let mut value = json!({"peak_bytes": totals.resident_peak(), "last_bytes": totals.resident_last()});
    if let Some(combined_peaks) = &capture.info.combined_peaks {
        value["sum_of_peaks"] = combined_peaks.rss_sum_of_peaks.into();
    }
    value
}

fn capture_value(capture: &Capture) -> Value {
    let (info, totals) = (&capture.info, &capture.analysis.totals);
    json!({
        "file": info.file.to_string_lossy(),
        "format_version": info.format_version,
        "recorder": info.recorder(),
        "command_line": info.command_line(),
        "pid": info.process.pid,
        "ppid": info.process.ppid,
        "executable": info.executable(),
        "python_version": info.python_version(),
        "python_allocator": info.python_allocator(),
        "start_time": info.start_time(),
        "clock_uncertainty_ns": info.process.start.uncertainty_ns,
        "duration_ms": whole_ms(info.duration_ns(&capture.analysis)),
        "exit_status": info.process.exit_status,
        "end_reason": info.end_reason(),
        "stop_reason": info.stop_reason(),
        "has_allocation_timestamps": capture.analysis.exact_times,
        "time_uncertainty_ns": info.time_uncertainty_ns,
        "has_native_traces": info.process.native_traces,
        "native_frames": info.process.stacks.native_kept.map(|kept| {
            json!({"kept": kept, "unwound": info.process.stacks.native_unwound})
        }),
        "traces_python_allocators": traces_python_allocators(capture),
        "marks": info.marks().map(|(time_ns, name)| json!({"name": name, "time_ms": whole_ms(time_ns)})).collect::<Value>(),
        "aggregated": info.aggregated,
        "complete": info.complete,
        "snapshot": info.process.snapshot,
        "still_recording": info.growing,
        "lost_blocks": info.lost_blocks,
        "lost_bytes": info.lost_bytes,
        "unmatched_frees": totals.unmatched_frees,
        "forked": info.process.fork_ticket.is_some(),
        "inherited_frees": totals.inherited_frees,
        "began_late": info.process.began_late,
        "frees_of_earlier_blocks": capture.frees_of_earlier_blocks(),
        "truncated_stacks": totals.truncated_stacks,
        "stripped": info.process.stripped.count.map(|number| {
            json!({"count": number, "bytes": info.process.stripped.bytes})
        }),
        "anonymized": info.process.anonymized,
    })
}

fn frames(capture: &Capture, rows: &[FrameRow]) -> Value {
    rows.iter()
        .map(|row| {
            let tally = &row.tally;
            let Some(id) = row.frame else {
                let mut value =
                    json!({"function": NO_STACK, "file": null, "line": null, "count": tally.count, "bytes": tally.bytes});
                estimates::put_ranges(&mut value, capture, "", *tally);
                return value;
            };
            let frames = &capture.frames;
            let (function, file, line) = (frames.function(id), frames.file(id), frames.frame(id).line);
            let (file, line) = (Some(file).filter(|file| !file.is_empty()), Some(line).filter(|line| *line > 0));
            let mut value =
                json!({"function": function, "file": file, "line": line, "count": tally.count, "bytes": tally.bytes});
            estimates::put_ranges(&mut value, capture, "", *tally);
            // Only for lines with several calls.
            if let column @ 1.. = frames.frame(id).column {
                value["column"] = column.into();
            }
            value
        })
        .collect()
}

fn modules(capture: &Capture, rows: &[ModuleRow]) -> Value {
    let module = |row: &ModuleRow| {
        let mut value = json!({"module": row.module, "count": row.tally.count, "bytes": row.tally.bytes});
        estimates::put_ranges(&mut value, capture, "", row.tally);
        if let Some(source) = row.source {
            value["source"] = source.name().into();
        }
        value
    };
    rows.iter().map(module).collect()
}

#[cfg(test)]
mod tests {
    use super::{View, value, write};
    use crate::reports::fixture;
    use serde_json::{Value, json};

    #[test]
    fn golden() {
        let mut text = Vec::new();
        write(&fixture::leaking(), View::Allocated, None, 5, &mut text).unwrap();
        fixture::compare("stats.json", &text);
    }

    /// The fields are exactly those of the schema.
    #[test]
    fn fields_are_those_of_the_schema() {
        let report = value(&fixture::capture(), View::Allocated, 5);
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys(&report),
            "account allocations allocators capture deallocations failed_allocations freed leaked live_at_exit mappings modules_by_count modules_by_size peak processes \
             rss schema size_histogram temporary threads top_by_count top_by_size version"
        );
        assert_eq!(
            keys(&report["capture"]),
            "aggregated anonymized began_late clock_uncertainty_ns command_line complete duration_ms end_reason executable exit_status file forked \
             format_version frees_of_earlier_blocks has_allocation_timestamps has_native_traces inherited_frees lost_blocks lost_bytes marks \
             native_frames pid ppid python_allocator python_version recorder snapshot start_time still_recording stop_reason stripped time_uncertainty_ns traces_python_allocators \
             truncated_stacks \
             unmatched_frees"
        );
        assert_eq!(keys(&report["top_by_size"][0]), "bytes count file function line");
        assert_eq!(keys(&report["threads"][0]), "bytes count name tid");
    }

    #[test]
    fn an_empty_capture_has_every_field() {
        let report = value(&fixture::empty(), View::Allocated, 5);
        assert_eq!(report["peak"], json!({"bytes": 0, "allocations": 0, "time_ms": 0}));
        assert_eq!(report["top_by_size"], json!([]));
        assert_eq!(report["capture"]["pid"], Value::Null);
    }

    #[test]
    fn rows_are_limited() {
        let report = value(&fixture::capture(), View::Allocated, 1);
        assert_eq!(report["top_by_size"].as_array().unwrap().len(), 1);
        assert_eq!(report["top_by_count"][0]["function"], "work");
    }
}
