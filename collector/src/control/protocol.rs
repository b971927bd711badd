//! The messages of the control protocol, version 1: JSON, one message a line. `docs/control-protocol.md` is its schema.
//!
//! ```text
//! server  {"memtrack":1,"version":"0.2.0","pid":4711}                      the greeting
//! client  {"id":1,"command":"mark","name":"after warm-up"}                a request
//! server  {"id":1,"ok":{"time_ns":1234}}  or  {"id":1,"error":"text"}     its answer
//! server  {"window":{...}}                                                after "live": a line for each window
//! ```
//!
//! Invariant: a member of a message, once released, keeps its meaning; receivers ignore members that they do not know.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the protocol.
pub const PROTOCOL_VERSION: u32 = 1;
/// The longest request, in bytes, with its newline.
pub const MAX_REQUEST: usize = 64 << 10;
/// The longest name of a mark, in bytes.
pub const MAX_MARK_NAME: usize = 200;

/// The first line of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The version of the protocol.
    pub memtrack: u32,
    /// The version of memtrack that records.
    pub version: String,
    /// The recorded program's first process.
    pub pid: u32,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRequest {
    /// Chosen by the client; the answer has the same.
    pub id: u64,
    /// What to do.
    #[serde(flatten)]
    pub command: ControlCommand,
}

/// A command to a recording process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum ControlCommand {
    /// Which processes are recorded: answered by [`RecordingStatus`].
    Status {
        /// First writes out what was recorded until now, for at most so long: figures and captures have all of it then. Without it
        /// they may be behind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within_ms: Option<u64>,
    },
    /// Counts from now on what a process holds, for [`RecordingStatus`]: answered by an empty object.
    Count {
        /// The recorded process; without it the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// Names the present moment in the capture of each recorded process: answered by [`MarkAnswer`].
    Mark {
        /// Its name.
        name: String,
    },
    /// Makes everything up to now readable: answered by [`SnapshotAnswer`].
    Snapshot {
        /// The recorded process; without it the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// Begins to record a process that is dormant: answered by [`StartAnswer`].
    Start {
        /// The process; without it the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// The capture; without it its name is derived.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<PathBuf>,
        /// Whether to overwrite an existing file.
        #[serde(default)]
        force: bool,
        /// Samples instead of all allocations, as `--sample` takes it; without it as the process was started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample: Option<String>,
    },
    /// Completes the capture and leaves the process dormant: answered by [`StopAnswer`].
    Stop {
        /// The process; without it the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// Completes the capture and leaves the process alone: answered by [`StopAnswer`].
    Detach,
    /// Begins a span of a process's recording, which gets a file of its own; answered by an empty object.
    Begin(SpanRequest),
    /// Writes what belongs to a span so far into another file; answered by an empty object.
    Copy(SpanCopyRequest),
    /// Ends a span, and writes its file; answered by an empty object.
    End {
        /// Its file.
        span: PathBuf,
    },
    /// Sends windows from now on: answered by an empty object, then a line for each window.
    Live {
        /// The time of a window in milliseconds.
        #[serde(default = "second")]
        every_ms: u64,
        /// The recorded process; without it the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
}

impl ControlCommand {
    /// Whether its answer comes when a capture is complete, which may take as long as that is large.
    pub(super) fn completes_capture(&self) -> bool {
        matches!(self, Self::Stop { .. } | Self::Detach | Self::End { .. })
    }
}

/// A span that begins: the part of the recording from now to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanRequest {
    /// The recorded process; without it the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its file, by which it is named until it ends.
    pub output: PathBuf,
    /// Whether to overwrite an existing file.
    #[serde(default)]
    pub force: bool,
    /// What the recording must have, as options of `memtrack run` without their hyphens: it is refused otherwise.
    #[serde(default)]
    pub needs: Vec<String>,
    /// A value of `--sample`, for a recording that would begin here. The span has what its recording has; it is refused where the
    /// value is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
}

/// A file that is to have what belongs to a span so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanCopyRequest {
    /// The span's own file.
    pub span: PathBuf,
    /// The file to write.
    pub output: PathBuf,
    /// Whether to overwrite an existing file.
    #[serde(default)]
    pub force: bool,
}

fn second() -> u64 {
    1000
}

/// The answer to [`ControlCommand::Status`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordingStatus {
    /// The recording process.
    pub recorder: u32,
    /// The recorded processes, the first one first.
    pub processes: Vec<ProcessStatus>,
}

impl RecordingStatus {
    /// The process with this id. Of one that was used again it is the newest, and one that has not ended goes before.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<&ProcessStatus> {
        let of_pid = self.processes.iter().filter(|process| process.pid == pid);
        of_pid.max_by_key(|process| process.state != ProcessState::Ended)
    }

    /// The processes of one of the recordings at this socket.
    pub fn of_recording(&self, recording: Option<u32>) -> impl Iterator<Item = &ProcessStatus> {
        let is_recorded = |process: &&ProcessStatus| process.state != ProcessState::Dormant;
        self.processes.iter().filter(is_recorded).filter(move |process| process.recording == recording)
    }
}

/// A recorded process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its process id, as the recording process sees it.
    pub pid: u32,
    /// Which recording of this socket it belongs to, from 1 on: each [`ControlCommand::Start`] begins one with a process tree of its
    /// own. `None`: it waits.
    #[serde(default)]
    pub recording: Option<u32>,
    /// Its number in the process tree of its recording; the first process has 0.
    pub number: u32,
    /// What is done with it.
    pub state: ProcessState,
    /// When its recording began, as RFC 3339.
    pub started: Option<String>,
    /// The same in nanoseconds since 1970.
    pub started_ns: Option<u64>,
    /// Allocations and deallocations so far, if they were counted.
    pub events: Option<u64>,
    /// Bytes of live blocks, if they were counted.
    pub live_bytes: Option<u64>,
    /// The most that they were.
    pub peak_bytes: Option<u64>,
    /// More was recorded than could be counted in time, so these figures are not there: they can be asked for again.
    #[serde(default)]
    pub counting: bool,
    /// Resident memory in bytes when it was last sampled, without memtrack's own.
    pub resident_bytes: Option<u64>,
    /// Bytes of records so far, before compression.
    pub record_bytes: u64,
    /// Its capture.
    pub capture: Option<PathBuf>,
    /// Why its capture could not be written any more, as on a full disk: it has ended with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_error: Option<String>,
    /// The program that it has become by `exec` and that cannot load memtrack's library: it runs on, and its recording has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded_program: Option<String>,
    /// Why the library in it has stopped recording, as for want of memory: it runs on, and its recording has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Its arguments, the program first.
    pub command_line: Vec<String>,
    /// What it shows in their place now, as workers of a server do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl ProcessStatus {
    /// A process of which nothing else is known.
    #[must_use]
    pub fn new(pid: u32, number: u32, state: ProcessState) -> Self {
        Self {
            pid,
            recording: None,
            number,
            state,
            started: None,
            started_ns: None,
            events: None,
            live_bytes: None,
            peak_bytes: None,
            counting: false,
            resident_bytes: None,
            record_bytes: 0,
            capture: None,
            write_error: None,
            unrecorded_program: None,
            stop_reason: None,
            command_line: Vec::new(),
            title: None,
        }
    }
}

/// What is done with a recorded process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It is recorded.
    Recording,
    /// It waits for [`ControlCommand::Start`].
    Dormant,
    /// It has ended, or is not recorded any more.
    Ended,
}

impl ProcessState {
    /// As in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::Dormant => "dormant",
            Self::Ended => "ended",
        }
    }
}

/// The answer to [`ControlCommand::Mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkAnswer {
    /// When it was set in the first process, in nanoseconds since its recording began.
    pub time_ns: u64,
    /// Number of captures that have it.
    pub captures: u64,
}

/// The answer to [`ControlCommand::Snapshot`]: a capture is the first `length` bytes of
/// `/proc/<recorder>/fd/<descriptor>`, followed by `tail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotAnswer {
    /// The process that it is of.
    pub pid: u32,
    /// A descriptor of the recording process.
    pub descriptor: i32,
    /// Bytes to copy.
    pub length: u64,
    /// Bytes to append, in base64.
    pub tail: String,
    /// The capture that is being written.
    pub capture: Option<PathBuf>,
}

/// The answer to [`ControlCommand::Start`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartAnswer {
    /// The capture that is being written.
    pub capture: PathBuf,
}

/// The answer to [`ControlCommand::Stop`] and [`ControlCommand::Detach`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAnswer {
    /// The captures that are complete now.
    pub captures: Vec<PathBuf>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControlAnswer {
    /// That of the request; absent if that had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// Why there is none, for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A line that is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidRequest {
    /// Its id, if it has one.
    pub(crate) id: Option<u64>,
    /// What is wrong.
    pub(crate) reason: String,
}

/// Reads a request.
pub(crate) fn parse_request(line: &[u8]) -> Result<ControlRequest, InvalidRequest> {
    let invalid = |id, reason: &dyn std::fmt::Display| InvalidRequest { id, reason: format!("no request: {reason}") };
    let value: Value = serde_json::from_slice(line).map_err(|error| invalid(None, &error))?;
    let id = value.get("id").and_then(Value::as_u64);
    serde_json::from_value(value).map_err(|error| invalid(id, &error))
}

/// Checks the name of a mark: it stands in reports, and on command lines.
///
/// # Errors
/// What is wrong with it, for the user.
pub fn check_mark_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_MARK_NAME {
        return Err(format!("the name of a mark has 1 to {MAX_MARK_NAME} bytes, this one has {}", name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err("the name of a mark has no line breaks and other control characters".into());
    }
    Ok(())
}

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    // Serialization of these types cannot fail: their maps have text keys.
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        ControlCommand, ControlRequest, InvalidRequest, MAX_MARK_NAME, SpanCopyRequest, SpanRequest, check_mark_name,
        line, parse_request,
    };

    #[test]
    fn requests_are_read_as_they_are_documented() {
        let parsed = |text: &str| parse_request(text.as_bytes());
        let ok = |id, command| Ok(ControlRequest { id, command });
        assert_eq!(parsed(r#"{"id":1,"command":"status"}"#), ok(1, ControlCommand::Status { within_ms: None }));
        let waits = ControlCommand::Status { within_ms: Some(500) };
        assert_eq!(parsed(r#"{"id":1,"command":"status","within_ms":500}"#), ok(1, waits));
        let mark = ControlCommand::Mark { name: "ä b".into() };
        assert_eq!(parsed(r#"{"command":"mark","later":[1],"name":"ä b","id":2}"#), ok(2, mark));
        assert_eq!(parsed(r#"{"id":3,"command":"live"}"#), ok(3, ControlCommand::Live { every_ms: 1000, pid: None }));
        assert_eq!(parsed(r#"{"id":3,"command":"snapshot"}"#), ok(3, ControlCommand::Snapshot { pid: None }));
        let span = SpanRequest { output: "/a".into(), needs: vec!["native".into()], ..SpanRequest::default() };
        let begin = r#"{"id":4,"command":"begin","output":"/a","needs":["native"]}"#;
        assert_eq!(parsed(begin), ok(4, ControlCommand::Begin(span)));
        let copy = SpanCopyRequest { span: "/a".into(), output: "/b".into(), force: true };
        let request = r#"{"id":5,"command":"copy","span":"/a","output":"/b","force":true}"#;
        assert_eq!(parsed(request), ok(5, ControlCommand::Copy(copy)));
        assert_eq!(parsed(r#"{"id":6,"command":"end","span":"/a"}"#), ok(6, ControlCommand::End { span: "/a".into() }));
    }

    #[test]
    fn what_is_wrong_is_said_with_the_id() {
        let InvalidRequest { id, reason } = parse_request(br#"{"id":7,"command":"fly"}"#).unwrap_err();
        assert_eq!(id, Some(7));
        assert!(reason.contains("fly") && reason.contains("snapshot"), "{reason}");
        for text in ["", "[]", "7", "{}", r#"{"id":-1,"command":"status"}"#, r#"{"id":1,"command":"mark"}"#, "{\"id\":"]
        {
            assert!(parse_request(text.as_bytes()).is_err(), "{text}");
        }
        let deep = [&b"["[..]; 20_000].concat();
        assert!(parse_request(&deep).is_err());
    }

    #[test]
    fn names_of_marks() {
        assert!(check_mark_name("after warm-up, día 2").is_ok());
        for name in ["", "a\nb", "\u{1b}[31m", &"x".repeat(MAX_MARK_NAME + 1)] {
            assert!(check_mark_name(name).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_request(&bytes);
        }

        #[test]
        fn what_is_written_is_read(id in any::<u64>(), name in ".{0,40}", every_ms in any::<u64>(), pid in any::<Option<u32>>()) {
            let commands = [
                ControlCommand::Mark { name },
                ControlCommand::Live { every_ms, pid: None },
                ControlCommand::Snapshot { pid },
                ControlCommand::Count { pid },
            ];
            for command in commands {
                let request = ControlRequest { id, command };
                let bytes = line(&request);
                prop_assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1);
                prop_assert_eq!(parse_request(&bytes), Ok(request));
            }
        }
    }
}
