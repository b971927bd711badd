//! The messages of OTLP profiles, version `v1development` of opentelemetry-proto 1.10, with the field numbers that it gives
//! them; fields that are never written are left out.
//!
//! They are derived by hand, so that no protocol buffer compiler is needed. Invariant: numbers and types are those of
//! the published definitions; entry 0 of each table of the dictionary is the empty value.

use prost::{Message, Oneof};

/// What is sent to a server.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportProfilesServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    pub(super) dictionary: Option<ProfilesDictionary>,
}

/// What a server answers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportProfilesServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<ExportProfilesPartialSuccess>,
}

/// What a server did not take.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportProfilesPartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_profiles: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// The tables that everything else refers to.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProfilesDictionary {
    #[prost(message, repeated, tag = "1")]
    pub(super) mapping_table: Vec<OtlpMapping>,
    #[prost(message, repeated, tag = "2")]
    pub(super) location_table: Vec<OtlpLocation>,
    #[prost(message, repeated, tag = "3")]
    pub(super) function_table: Vec<OtlpFunction>,
    #[prost(message, repeated, tag = "4")]
    pub(super) link_table: Vec<OtlpLink>,
    #[prost(string, repeated, tag = "5")]
    pub(super) string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attribute_table: Vec<KeyValueAndUnit>,
    #[prost(message, repeated, tag = "7")]
    pub(super) stack_table: Vec<OtlpStack>,
}

/// The profiles of one process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_profiles: Vec<ScopeProfiles>,
    #[prost(string, tag = "3")]
    pub(super) schema_url: String,
}

/// The process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpResource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// The profiles that memtrack made.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) profiles: Vec<OtlpProfile>,
}

/// What made the profiles.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// Values of one type.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpProfile {
    #[prost(message, optional, tag = "1")]
    pub(super) sample_type: Option<OtlpValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<OtlpSample>,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    pub(super) duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    pub(super) period_type: Option<OtlpValueType>,
    #[prost(int64, tag = "6")]
    pub(super) period: i64,
    #[prost(bytes = "vec", tag = "7")]
    pub(super) profile_id: Vec<u8>,
    #[prost(int32, repeated, tag = "11")]
    pub(super) attribute_indices: Vec<i32>,
}

/// A kind of value and its unit.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct OtlpValueType {
    #[prost(int32, tag = "1")]
    pub(super) type_strindex: i32,
    #[prost(int32, tag = "2")]
    pub(super) unit_strindex: i32,
}

/// A stack and its value.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpSample {
    #[prost(int32, tag = "1")]
    pub(super) stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(super) attribute_indices: Vec<i32>,
    #[prost(int64, repeated, tag = "4")]
    pub(super) values: Vec<i64>,
}

/// A binary in the process's memory; only the empty one is written.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct OtlpMapping {}

/// A trace; only the empty one is written.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct OtlpLink {}

/// Locations, innermost first.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct OtlpStack {
    #[prost(int32, repeated, tag = "1")]
    pub(super) location_indices: Vec<i32>,
}

/// A place in the program.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OtlpLocation {
    #[prost(message, repeated, tag = "3")]
    pub(super) lines: Vec<OtlpLine>,
    #[prost(int32, repeated, tag = "4")]
    pub(super) attribute_indices: Vec<i32>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct OtlpLine {
    #[prost(int32, tag = "1")]
    pub(super) function_index: i32,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
    #[prost(int64, tag = "3")]
    pub(super) column: i64,
}

/// A function and its file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct OtlpFunction {
    #[prost(int32, tag = "1")]
    pub(super) name_strindex: i32,
    #[prost(int32, tag = "3")]
    pub(super) filename_strindex: i32,
}

/// An attribute in the dictionary.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValueAndUnit {
    #[prost(int32, tag = "1")]
    pub(super) key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// An attribute of a resource.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "AttributeValue", tags = "1, 3")]
    pub(super) value: Option<AttributeValue>,
}

/// A text or a number.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub(super) enum AttributeValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}
