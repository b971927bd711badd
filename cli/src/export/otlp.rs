//! Profiles of the OpenTelemetry protocol: a window of a recording as the request that is sent to a collector.
//!
//! The schema is in development and has changed incompatibly before, so it is pinned: see [`message`]. A profile has one
//! type of value; a window has four. Invariant: every sample has one value above 0, and every index is one of its table.

mod message;

use memtrack_reader::analysis::{Group, Tally, unseen_bytes};
use memtrack_reader::{FrameId, Frames, View};
use prost::Message;

use self::message::{
    AnyValue, AttributeValue, ExportProfilesServiceRequest, ExportProfilesServiceResponse, InstrumentationScope,
    KeyValue, KeyValueAndUnit, OtlpFunction, OtlpLine, OtlpLink, OtlpLocation, OtlpMapping, OtlpProfile, OtlpResource,
    OtlpSample, OtlpStack, OtlpValueType, ProfilesDictionary, ResourceProfiles, ScopeProfiles,
};
use super::leaf_to_root;
use super::numbering::Numbering;
use crate::reports::NO_STACK;
use crate::reports::capture_info::Capture;
use crate::reports::estimates::RangedTally;

/// Where a server takes profiles, below its root.
pub(crate) const PATH: &str = "/v1development/profiles";
/// The semantic conventions of the attributes.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";
/// The types of values: name, unit, and whether a value is bytes.
const TYPES: [(&str, &str, bool); 4] = [
    ("alloc_objects", "count", false),
    ("alloc_space", "bytes", true),
    ("inuse_objects", "count", false),
    ("inuse_space", "bytes", true),
];

/// A window as a request. `views`: where the sums of what was allocated in it, and of what was in use at its end, stand;
/// `time_ns`: when it began, since 1970; `id`: a number that no other window has.
pub(crate) fn window(
    capture: &Capture,
    [allocated, in_use]: [View; 2],
    (time_ns, duration_ns): (u64, u64),
    labels: &[(String, String)],
    id: u64,
) -> Vec<u8> {
    let mut writer = DictionaryWriter::new(&capture.frames);
    let mut profiles = TYPES.map(|(kind, unit, _)| {
        let sample_type = Some(writer.value_type(kind, unit));
        OtlpProfile {
            sample_type,
            time_unix_nano: time_ns,
            duration_nano: duration_ns,
            period_type: Some(writer.value_type("space", "bytes")),
            period: capture.sample_bytes().map_or(1, |bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX)),
            ..OtlpProfile::default()
        }
    });
    for (number, profile) in profiles.iter_mut().enumerate() {
        profile.profile_id = [id.to_be_bytes(), (number as u64 + 1).to_be_bytes()].concat();
    }
    if let Some(bytes) = capture.sample_bytes() {
        let views = [allocated, allocated, in_use, in_use];
        for ((profile, (_, _, is_bytes)), view) in profiles.iter_mut().zip(TYPES).zip(views) {
            let distance = [("memtrack.sample_bytes", bytes.get()), ("memtrack.unseen_bytes", unseen_bytes(bytes))];
            let sum: Tally = capture.analysis.rows(view).map(|row| row.tally()).sum();
            let attributes = distance.into_iter().chain(ends(RangedTally::from(sum).with_unseen(capture), is_bytes));
            profile.attribute_indices = attributes.map(|(key, value)| writer.number(key, value)).collect();
        }
    }
    for (number, group) in capture.analysis.groups.iter().enumerate() {
        let sums = [allocated, allocated, in_use, in_use]
            .map(|view| Tally { variance: capture.analysis.variance(number, view), ..group.sum(view).tally() });
        let mut sample = None;
        for ((profile, (_, _, is_bytes)), sum) in profiles.iter_mut().zip(TYPES).zip(sums) {
            let value = if is_bytes { sum.bytes } else { sum.count };
            if value > 0 {
                let sample = sample.get_or_insert_with(|| writer.sample(capture, &group));
                let values = vec![i64::try_from(value).unwrap_or(i64::MAX)];
                let mut sample = OtlpSample { values, ..sample.clone() };
                if capture.is_sampled() {
                    let ends = ends(sum.into(), is_bytes);
                    sample.attribute_indices.extend(ends.map(|(key, value)| writer.number(key, value)));
                }
                profile.samples.push(sample);
            }
        }
    }
    let request = ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(OtlpResource { attributes: labels.iter().map(attribute).collect() }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(InstrumentationScope {
                    name: "memtrack".into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                }),
                profiles: profiles.into(),
            }],
            schema_url: SCHEMA_URL.into(),
        }],
        dictionary: Some(writer.finish()),
    };
    request.encode_to_vec()
}

/// The ends of a value's 95 % interval, as attributes.
fn ends(figure: RangedTally, is_bytes: bool) -> [(&'static str, u64); 2] {
    let (low, high) = if is_bytes { figure.bytes } else { figure.count };
    [("memtrack.value_low", low), ("memtrack.value_high", high)]
}

/// What a server's answer says of profiles that it did not take; `None`: it took all.
pub(crate) fn rejection(answer: &[u8]) -> Option<String> {
    let answer = ExportProfilesServiceResponse::decode(answer).ok()?.partial_success?;
    let number = answer.rejected_profiles;
    (number > 0).then(|| format!("{number} profiles of a window were rejected: {}", answer.error_message))
}

/// A text attribute, or a number where its name says so.
fn attribute((key, text): &(String, String)) -> KeyValue {
    let number = (key == "process.pid").then(|| text.parse().ok()).flatten();
    let value = number.map_or_else(|| AttributeValue::Text(text.clone()), AttributeValue::Number);
    KeyValue { key: key.clone(), value: Some(AnyValue { value: Some(value) }) }
}

/// Numbers what samples refer to. Number 0 of each table is the empty value.
struct DictionaryWriter<'a> {
    frames: &'a Frames,
    strings: Numbering<String>,
    stacks: Numbering<OtlpStack>,
    locations: Numbering<Option<FrameId>>,
    functions: Numbering<OtlpFunction>,
    attributes: Numbering<Option<(&'static str, AttributeValue)>>,
}

impl<'a> DictionaryWriter<'a> {
    fn new(frames: &'a Frames) -> Self {
        let (mut strings, mut stacks, mut functions) = (Numbering::new(), Numbering::new(), Numbering::new());
        let mut attributes = Numbering::new();
        strings.number(String::new());
        stacks.number(OtlpStack::default());
        functions.number(OtlpFunction::default());
        attributes.number(None);
        Self { frames, strings, stacks, locations: Numbering::new(), functions, attributes }
    }

    fn string(&mut self, text: &str) -> i32 {
        index(self.strings.number(text.into()))
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> OtlpValueType {
        OtlpValueType { type_strindex: self.string(kind), unit_strindex: self.string(unit) }
    }

    fn attribute(&mut self, key: &'static str, value: AttributeValue) -> i32 {
        index(self.attributes.number(Some((key, value))))
    }

    /// An attribute with a number.
    fn number(&mut self, key: &'static str, value: u64) -> i32 {
        self.attribute(key, AttributeValue::Number(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    /// The stack and the attributes of a group, without a value.
    fn sample(&mut self, capture: &Capture, group: &Group) -> OtlpSample {
        let stack = leaf_to_root(self.frames, group.stack);
        let location_indices = stack.into_iter().map(|frame| index(self.locations.number(frame) + 1)).collect();
        let stack_index = index(self.stacks.number(OtlpStack { location_indices }));
        let allocator = AttributeValue::Text(group.allocator.name().into());
        let mut attribute_indices = vec![self.attribute("memtrack.allocator", allocator)];
        let (tid, name) = capture.thread(group.thread);
        if let Some(tid) = tid {
            attribute_indices.push(self.attribute("thread.id", AttributeValue::Number(tid.into())));
        }
        if !name.is_empty() {
            attribute_indices.push(self.attribute("thread.name", AttributeValue::Text(name.into())));
        }
        OtlpSample { stack_index, attribute_indices, values: Vec::new() }
    }

    fn location(&mut self, frame: Option<FrameId>) -> OtlpLocation {
        let frames = self.frames;
        let (name, file) = frame.map_or((NO_STACK, ""), |id| (frames.function(id), frames.file(id)));
        let (line, column) = frame.map_or((0, 0), |id| (frames.frame(id).line, frames.frame(id).column));
        let is_native = frame.is_some_and(|frame| self.frames.module(frame).is_some());
        let function = OtlpFunction { name_strindex: self.string(name), filename_strindex: self.string(file) };
        let function_index = index(self.functions.number(function));
        let line = OtlpLine { function_index, line: line.into(), column: column.into() };
        let kind = if is_native { "native" } else { "cpython" };
        let attribute_indices = match frame {
            Some(_) => vec![self.attribute("profile.frame.type", AttributeValue::Text(kind.into()))],
            None => Vec::new(),
        };
        OtlpLocation { lines: vec![line], attribute_indices }
    }

    fn finish(mut self) -> ProfilesDictionary {
        let frames = self.locations.order().to_vec();
        let mut location_table = vec![OtlpLocation::default()];
        location_table.extend(frames.into_iter().map(|frame| self.location(frame)));
        let attributes = self.attributes.order().to_vec();
        let attribute_table = attributes.into_iter().map(|attribute| {
            attribute.map_or_else(KeyValueAndUnit::default, |(key, value)| KeyValueAndUnit {
                key_strindex: self.string(key),
                value: Some(AnyValue { value: Some(value) }),
            })
        });
        ProfilesDictionary {
            attribute_table: attribute_table.collect(),
            mapping_table: vec![OtlpMapping::default()],
            location_table,
            function_table: self.functions.order().to_vec(),
            link_table: vec![OtlpLink::default()],
            stack_table: self.stacks.order().to_vec(),
            string_table: self.strings.order().to_vec(),
        }
    }
}

/// The format has signed numbers; a window that exceeds them would exceed every limit of a message before.
fn index(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(0)
}
