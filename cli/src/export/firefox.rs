//! `transform firefox`: the processed profile of the Firefox Profiler, at profiler.firefox.com.
//!
//! Each stack has one allocation sample, at the time of its first allocation. The memory tracks, and markers for the
//! high-water mark and each snapshot, are made from the snapshots. All samples are on the process's first thread, where
//! the viewer expects allocations. Invariant: the weights add up to the view's total.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use fxprof_processed_profile::{
    CategoryHandle, CategoryPairHandle, Frame, FrameFlags, FrameInfo, MarkerFieldFlags, MarkerFieldFormat,
    MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval, StackHandle, StaticSchemaMarker,
    StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};
use memtrack_reader::analysis::ordering::{Ordering, samples};
use memtrack_reader::{Snapshot, StackId, View};

use super::{SumsFormat, frame_text, root_to_leaf};
use crate::reports::capture_info::Capture;
use crate::units;

/// The processed profile of the Firefox Profiler.
#[derive(Debug)]
pub(crate) struct Firefox;

impl SumsFormat for Firefox {
    fn name(&self) -> &'static str {
        "firefox"
    }

    fn suffix(&self) -> &'static str {
        "firefox.json"
    }

    fn opens_in(&self) -> &'static str {
        "open it at https://profiler.firefox.com"
    }

    fn shows_times(&self) -> bool {
        true
    }

    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        let started = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(
            capture.info.process.start.realtime_ns.unwrap_or(0),
        ));
        let title = capture.info.title();
        let mut profile = Profile::new("memtrack", started, SamplingInterval::from_millis(10));
        let zero = at(0);
        let pid = capture.info.process.pid.unwrap_or(0);
        let process = profile.add_process(&title, pid, zero);
        profile.set_process_end_time(process, at(capture.info.duration_ns(&capture.analysis)));
        let thread = profile.add_thread(process, pid, zero, true);
        profile.set_thread_name(thread, capture.title(view));
        profile.set_symbolicated(true);
        add_samples(&mut profile, thread, capture, view);
        add_memory(&mut profile, process, capture);
        add_markers(&mut profile, thread, capture);
        serde_json::to_writer(&mut *out, &profile)?;
        writeln!(out)?;
        Ok(())
    }
}

fn at(ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(ns)
}

fn add_samples(profile: &mut Profile, thread: ThreadHandle, capture: &Capture, view: View) {
    for (address, sample) in (1..).zip(samples(&capture.analysis.view(view), Ordering::Exact)) {
        let stack = stack(profile, thread, capture, sample.stack);
        let bytes = i64::try_from(sample.bytes).unwrap_or(i64::MAX);
        if bytes > 0 {
            profile.add_allocation_sample(thread, at(sample.first_time_ns), stack, address, bytes);
        }
    }
}

fn stack(profile: &mut Profile, thread: ThreadHandle, capture: &Capture, stack: StackId) -> Option<StackHandle> {
    let category_pair = CategoryPairHandle::from(CategoryHandle::OTHER);
    let labels: Vec<_> = root_to_leaf(&capture.frames, stack)
        .into_iter()
        .map(|frame| Frame::Label(profile.intern_string(&frame_text(frame, &capture.frames))))
        .map(|frame| FrameInfo { frame, category_pair, flags: FrameFlags::empty() })
        .collect();
    profile.intern_stack_frames(thread, labels.into_iter())
}

/// Adds tracks of live and resident memory: counters of the category Memory, whose values are deltas.
fn add_memory(profile: &mut Profile, process: ProcessHandle, capture: &Capture) {
    add_track(profile, process, capture, "heap", |snapshot| snapshot.heap_bytes);
    add_track(profile, process, capture, "resident", |snapshot| snapshot.rss_bytes);
}

fn add_track(
    profile: &mut Profile,
    process: ProcessHandle,
    capture: &Capture,
    name: &str,
    value: impl Fn(&Snapshot) -> u64,
) {
    let counter = profile.add_counter(process, name, "Memory", "bytes at each memory snapshot");
    let mut before = 0.0;
    for snapshot in &capture.analysis.snapshots {
        let now = value(snapshot) as f64;
        profile.add_counter_sample(counter, at(snapshot.time_ns), now - before, 0);
        before = now;
    }
}

/// Adds a marker for each memory snapshot, and one for the high-water mark.
fn add_markers(profile: &mut Profile, thread: ThreadHandle, capture: &Capture) {
    let name = profile.intern_string("Memory snapshot");
    for snapshot in &capture.analysis.snapshots {
        let (heap, resident) = (units::size(snapshot.heap_bytes), units::size(snapshot.rss_bytes));
        let text = profile.intern_string(&format!("{heap} live, {resident} resident"));
        profile.add_marker(thread, MarkerTiming::Instant(at(snapshot.time_ns)), TextMarker { name, text });
    }
    let peak = &capture.analysis.totals.peak;
    let Some(moment) = peak.at else { return };
    let name = profile.intern_string("High-water mark");
    let text = profile.intern_string(&units::size(peak.bytes));
    profile.add_marker(thread, MarkerTiming::Instant(at(moment.time_ns)), TextMarker { name, text });
}

/// A marker with text.
#[derive(Debug, Clone)]
struct TextMarker {
    name: StringHandle,
    text: StringHandle,
}

impl StaticSchemaMarker for TextMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Text";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.name}: {marker.data.text}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "text",
        label: "Size",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _field_index: u32) -> StringHandle {
        self.text
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::{Firefox, SumsFormat};
    use crate::reports::fixture;
    use memtrack_reader::View;
    use serde_json::Value;

    #[test]
    fn golden() {
        let mut text = Vec::new();
        Firefox.write(&fixture::capture(), View::Allocated, &mut text).unwrap();
        fixture::compare("allocated.firefox.json", &text);
    }

    #[test]
    fn weights_add_up_and_tracks_are_there() {
        let mut text = Vec::new();
        Firefox.write(&fixture::capture(), View::Allocated, &mut text).unwrap();
        let report: Value = serde_json::from_slice(&text).unwrap();
        let allocations = &report["threads"][0]["nativeAllocations"];
        let sum: u64 = allocations["weight"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
        assert_eq!((sum, allocations["weightType"].as_str()), (1_505_096, Some("bytes")));
        assert_eq!(report["counters"][1]["samples"]["count"][0].as_f64(), Some(f64::from(9 << 20)));
        assert_eq!(report["threads"][0]["markers"]["length"].as_u64(), Some(2));
    }

    #[test]
    fn a_sum_of_peaks_has_no_marker() {
        let mut text = Vec::new();
        Firefox.write(&fixture::of_several_peaks(), View::HighWaterMark, &mut text).unwrap();
        let report: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(report["threads"][0]["markers"]["length"].as_u64(), Some(1), "the snapshot's");
    }
}
