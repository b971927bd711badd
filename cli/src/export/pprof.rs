//! `transform pprof`: the profile format of `go tool pprof`, Pyroscope, Parca and others: gzipped protocol buffers.
//!
//! Protocol buffers allow a message to be written in pieces, whose repeated fields are concatenated: samples are
//! written one by one, and the tables that they refer to come last. Invariant: every sample has a value for each sample
//! type, and string 0 is empty.

mod message;

use std::io::{self, BufWriter, IntoInnerError, Write};

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use memtrack_reader::analysis::{Group, Tally};
use memtrack_reader::{FrameId, Frames, View};
use prost::Message;

use self::message::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use super::numbering::Numbering;
use super::{SumsFormat, leaf_to_root};
use crate::reports::NO_STACK;
use crate::reports::capture_info::Capture;
use crate::reports::estimates;

/// The names of the sample types of each view.
const ALLOCATED: [&str; 2] = ["alloc_objects", "alloc_space"];
const IN_USE: [&str; 2] = ["inuse_objects", "inuse_space"];
const PEAK: [&str; 2] = ["peak_objects", "peak_space"];
const TEMPORARY: [&str; 2] = ["temporary_objects", "temporary_space"];
/// The id of the only mapping; all locations are in it.
const MAPPING: u64 = 1;

/// The profile format of pprof.
#[derive(Debug)]
pub(crate) struct Pprof;

impl SumsFormat for Pprof {
    fn name(&self) -> &'static str {
        "pprof"
    }

    fn suffix(&self) -> &'static str {
        "pb.gz"
    }

    fn opens_in(&self) -> &'static str {
        "open it with go tool pprof -http : FILE"
    }

    /// Writes all views; `view` becomes the default sample type.
    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        let leaks = if view == View::LeaksAtExit { View::LeaksAtExit } else { View::Leaks };
        let types =
            [(ALLOCATED, View::Allocated), (IN_USE, leaks), (PEAK, View::HighWaterMark), (TEMPORARY, View::Temporary)];
        // Which allocations were temporary is not known from samples.
        let types = if capture.is_sampled() { &types[..types.len() - 1] } else { &types };
        write(
            capture,
            &ProfileContents {
                types,
                shown: types.iter().position(|(_, shown)| *shown == view).unwrap_or(0),
                time_ns: capture.info.process.start.realtime_ns.unwrap_or(0),
                duration_ns: capture.info.duration_ns(&capture.analysis),
            },
            out,
        )
    }
}

/// Writes a window of a recording: what was allocated in it, and what was in use at its end. `time_ns`: when it began, since
/// 1970; `views`: where the two sums stand.
///
/// # Errors
/// A write error.
pub(crate) fn write_window(
    capture: &Capture,
    [allocated, in_use]: [View; 2],
    (time_ns, duration_ns): (u64, u64),
    out: &mut dyn Write,
) -> Result<()> {
    let types = [(ALLOCATED, allocated), (IN_USE, in_use)];
    write(capture, &ProfileContents { types: &types, shown: 1, time_ns, duration_ns }, out)
}

/// What a profile is of.
struct ProfileContents<'a> {
    /// The names of a count and a sum of bytes, and where they come from.
    types: &'a [([&'static str; 2], View)],
    /// Which of them is shown first.
    shown: usize,
    /// When it began, since 1970.
    time_ns: u64,
    duration_ns: u64,
}

fn write(capture: &Capture, contents: &ProfileContents<'_>, out: &mut dyn Write) -> Result<()> {
    let mut writer = PprofWriter::new(&capture.frames, BufWriter::new(GzEncoder::new(out, Compression::default())));
    writer.head(capture, contents)?;
    for (number, group) in capture.analysis.groups.iter().enumerate() {
        writer.sample(capture, (number, &group), contents)?;
    }
    writer.tables()?;
    writer.out.into_inner().map_err(IntoInnerError::into_error)?.finish()?.flush()?;
    Ok(())
}

struct PprofWriter<'a, W: Write> {
    out: W,
    frames: &'a Frames,
    strings: Numbering<String>,
    locations: Numbering<Option<FrameId>>,
    functions: Numbering<(String, String)>,
}

impl<'a, W: Write> PprofWriter<'a, W> {
    fn new(frames: &'a Frames, out: W) -> Self {
        let mut strings = Numbering::new();
        strings.number(String::new());
        Self { out, frames, strings, locations: Numbering::new(), functions: Numbering::new() }
    }

    /// Writes a piece of the profile.
    fn piece(&mut self, piece: &Profile) -> io::Result<()> {
        self.out.write_all(&piece.encode_to_vec())
    }

    fn string(&mut self, text: &str) -> i64 {
        signed(self.strings.number(text.into()) as u64)
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.string(kind), unit: self.string(unit) }
    }

    fn head(&mut self, capture: &Capture, contents: &ProfileContents<'_>) -> io::Result<()> {
        let info = &capture.info;
        let &ProfileContents { types, shown, time_ns, duration_ns } = contents;
        let notes = std::iter::once(info.title()).chain(estimates::notes(capture));
        let mut head = Profile {
            period_type: Some(self.value_type("space", "bytes")),
            // What samples are apart, as in other profiles of samples; values are whole estimates.
            period: capture.sample_bytes().map_or(1, |bytes| signed(bytes.get())),
            time_nanos: signed(time_ns),
            duration_nanos: signed(duration_ns),
            default_sample_type: types.get(shown).map_or(0, |([_, space], _)| self.string(space)),
            comment: notes.map(|note| self.string(&note)).collect(),
            ..Profile::default()
        };
        for ([objects, space], _) in types {
            let types = [self.value_type(objects, "count"), self.value_type(space, "bytes")];
            head.sample_type.extend(types);
        }
        let filename = self.string(&info.executable().unwrap_or_default());
        let (has_functions, has_filenames, has_line_numbers) = (true, true, true);
        head.mapping = vec![Mapping {
            id: MAPPING,
            filename,
            has_functions,
            has_filenames,
            has_line_numbers,
            ..Mapping::default()
        }];
        self.piece(&head)
    }

    fn sample(
        &mut self,
        capture: &Capture,
        (number, group): (usize, &Group),
        contents: &ProfileContents<'_>,
    ) -> io::Result<()> {
        let sums = contents.types.iter().map(|(_, view)| group.sum(*view));
        let value: Vec<_> = sums.flat_map(|sum| [signed(sum.count), signed(sum.bytes)]).collect();
        if value.iter().all(|value| *value == 0) {
            return Ok(());
        }
        let stack = leaf_to_root(self.frames, group.stack);
        let location_id = stack.into_iter().map(|frame| self.locations.number(frame) as u64 + 1).collect();
        let mut label = self.labels(capture, group);
        if capture.is_sampled() {
            label.extend(self.intervals(capture, (number, group), contents));
        }
        self.piece(&Profile { sample: vec![Sample { location_id, value, label }], ..Profile::default() })
    }

    fn labels(&mut self, capture: &Capture, group: &Group) -> Vec<Label> {
        let mut labels = vec![self.text_label("allocator", group.allocator.name())];
        let (tid, name) = capture.thread(group.thread);
        if let Some(tid) = tid {
            labels.push(Label { key: self.string("thread_id"), num: tid.into(), ..Label::default() });
        }
        if !name.is_empty() {
            labels.push(self.text_label("thread", name));
        }
        labels
    }

    /// The ends of the 95 % intervals of the values.
    fn intervals(
        &mut self,
        capture: &Capture,
        (number, group): (usize, &Group),
        contents: &ProfileContents<'_>,
    ) -> Vec<Label> {
        let mut labels = Vec::new();
        for ([objects, space], view) in contents.types {
            let sum = group.sum(*view);
            let tally = Tally { variance: capture.analysis.variance(number, *view), ..sum.tally() };
            let (count, bytes) = (tally.count_range(), tally.bytes_range());
            for (name, unit, value, (low, high)) in
                [(objects, "count", sum.count, count), (space, "bytes", sum.bytes, bytes)]
            {
                if value > 0 {
                    for (end, number) in [("low", low), ("high", high)] {
                        let key = self.string(&format!("{name}_{end}"));
                        labels.push(Label {
                            key,
                            num: signed(number),
                            num_unit: self.string(unit),
                            ..Label::default()
                        });
                    }
                }
            }
        }
        labels
    }

    fn text_label(&mut self, key: &str, text: &str) -> Label {
        Label { key: self.string(key), str: self.string(text), ..Label::default() }
    }

    fn tables(&mut self) -> io::Result<()> {
        for at in 0..self.locations.order().len() {
            let frame = self.locations.order()[at];
            let line = self.line(frame);
            let location = Location { id: at as u64 + 1, mapping_id: MAPPING, line: vec![line], ..Location::default() };
            self.piece(&Profile { location: vec![location], ..Profile::default() })?;
        }
        for at in 0..self.functions.order().len() {
            let (name, filename) = self.functions.order()[at].clone();
            let (name, filename) = (self.string(&name), self.string(&filename));
            // Names are readable already. With a system name that is the same, pprof demangles them, and cuts off what
            // stands in angle brackets: `<module>`, `<lambda>`, the types of Rust's methods.
            let function = Function { id: at as u64 + 1, name, system_name: 0, filename, ..Function::default() };
            self.piece(&Profile { function: vec![function], ..Profile::default() })?;
        }
        for at in 0..self.strings.order().len() {
            let string_table = vec![self.strings.order()[at].clone()];
            self.piece(&Profile { string_table, ..Profile::default() })?;
        }
        Ok(())
    }

    fn line(&mut self, frame: Option<FrameId>) -> Line {
        let place = |id| (self.frames.function(id), self.frames.file(id), self.frames.frame(id).line);
        let (name, file, line) = frame.map_or((NO_STACK, "", 0), place);
        Line { function_id: self.functions.number((name.into(), file.into())) as u64 + 1, line: line.into() }
    }
}

/// The format has signed numbers; only forged captures exceed them.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Pprof, Profile, SumsFormat};
    use crate::reports::fixture;
    use flate2::read::GzDecoder;
    use memtrack_reader::View;
    use prost::Message;
    use std::io::Read;

    fn profile(view: View) -> Profile {
        let mut bytes = Vec::new();
        Pprof.write(&fixture::capture(), view, &mut bytes).unwrap();
        let mut plain = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        Profile::decode(&plain[..]).unwrap()
    }

    fn text(profile: &Profile, index: i64) -> &str {
        &profile.string_table[usize::try_from(index).unwrap()]
    }

    #[test]
    fn golden() {
        fixture::compare("capture.pprof.txt", format!("{:#?}\n", profile(View::HighWaterMark)).as_bytes());
    }

    #[test]
    fn sample_types_and_totals() {
        let profile = profile(View::Leaks);
        let types: Vec<_> = profile.sample_type.iter().map(|kind| text(&profile, kind.r#type)).collect();
        assert_eq!(types[..4], ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
        assert_eq!(text(&profile, profile.default_sample_type), "inuse_space");
        let total = |at: usize| profile.sample.iter().map(|sample| sample.value[at]).sum::<i64>();
        assert_eq!((total(0), total(1), total(4), total(5)), (96, 1_505_096, 96, 1_505_096));
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let profile = profile(View::HighWaterMark);
        assert_eq!(profile.string_table[0], "");
        let ids = |len: usize| 1..=len as u64;
        let locations = profile.sample.iter().flat_map(|sample| &sample.location_id);
        assert!(locations.clone().all(|id| ids(profile.location.len()).contains(id)));
        assert!(profile.location.iter().all(|at| ids(profile.function.len()).contains(&at.line[0].function_id)));
        assert!(profile.function.iter().all(|function| !text(&profile, function.name).is_empty()));
        assert!(profile.function.iter().all(|function| function.system_name == 0), "pprof would demangle the names");
    }
}
