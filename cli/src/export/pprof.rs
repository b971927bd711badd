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
use memtrack_reader::analysis::Group;
use memtrack_reader::{FrameId, Frames, View};
use prost::Message;

use self::message::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use super::numbering::Numbering;
use super::{SumsFormat, leaf_to_root};
use crate::reports::NO_STACK;
use crate::reports::capture_info::Capture;

/// The names of the sample types; each comes as `…_objects` and `…_space`.
const VIEWS: [(&str, &str); 4] = [
    ("alloc_objects", "alloc_space"),
    ("inuse_objects", "inuse_space"),
    ("peak_objects", "peak_space"),
    ("temporary_objects", "temporary_space"),
];
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
        let views = [View::Allocated, leaks, View::HighWaterMark, View::Temporary];
        let mut writer = PprofWriter::new(&capture.frames, BufWriter::new(GzEncoder::new(out, Compression::default())));
        writer.head(capture, views.iter().position(|shown| *shown == view).unwrap_or(0))?;
        for group in capture.analysis.groups.iter() {
            writer.sample(capture, &group, views)?;
        }
        writer.tables()?;
        writer.out.into_inner().map_err(IntoInnerError::into_error)?.finish()?.flush()?;
        Ok(())
    }
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

    fn head(&mut self, capture: &Capture, shown: usize) -> io::Result<()> {
        let (info, analysis) = (&capture.info, &capture.analysis);
        let mut head = Profile {
            period_type: Some(self.value_type("space", "bytes")),
            period: 1,
            time_nanos: signed(info.process.start.realtime_ns.unwrap_or(0)),
            duration_nanos: signed(info.duration_ns(analysis)),
            default_sample_type: self.string(VIEWS[shown].1),
            comment: vec![self.string(&info.title())],
            ..Profile::default()
        };
        for (objects, space) in VIEWS {
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

    fn sample(&mut self, capture: &Capture, group: &Group, views: [View; VIEWS.len()]) -> io::Result<()> {
        let sums = views.map(|view| group.sum(view));
        let value: Vec<_> = sums.iter().flat_map(|sum| [signed(sum.count), signed(sum.bytes)]).collect();
        if value.iter().all(|value| *value == 0) {
            return Ok(());
        }
        let stack = leaf_to_root(self.frames, group.stack);
        let location_id = stack.into_iter().map(|frame| self.locations.number(frame) as u64 + 1).collect();
        let label = self.labels(capture, group);
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
            let function = Function { id: at as u64 + 1, name, system_name: name, filename, ..Function::default() };
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
    }
}
