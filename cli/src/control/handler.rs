//! Answers the commands of clients in a recording process.
//!
//! Invariant: it stops nothing by itself: a command that fails leaves the recording as it was.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memtrack_collector::control::protocol::{
    MarkAnswer, ProcessState, ProcessStatus, RecordingStatus, SnapshotAnswer, SpanCopyRequest, SpanRequest, StopAnswer,
};
use memtrack_collector::control::{CommandHandler, ControlServer, ControlSocket, Subscriber};
use memtrack_collector::{RecordedProcess, RecordingHandle, SnapshotCopy};
use memtrack_reader::live::LiveTotals;

use super::snapshot::CapturePaths;
use super::spans::{OpenSpans, RecordedKinds};
use crate::live_windows::engine::LiveEngine;
use crate::message;
use crate::reports::capture_info::rfc3339;

/// For how long after a question checkpoints come more often.
const FOLLOWED: Duration = Duration::from_secs(3);

/// Makes the socket before the program is started. Without one the recording goes on; with `warns` the user is told.
pub(crate) fn bind(warns: bool) -> Option<ControlSocket> {
    match ControlSocket::bind() {
        Ok(socket) => Some(socket),
        Err(reasons) => {
            if warns {
                message::warning(format_args!("'memtrack ps' and others cannot reach this recording: {reasons}"));
            }
            None
        }
    }
}

/// Makes the socket known under the pid of the program, which has just been started.
pub(crate) fn publish(mut socket: ControlSocket, pid: i32) -> Option<ControlSocket> {
    socket.publish(pid.cast_unsigned()).is_ok().then_some(socket)
}

/// A request to end the recording; with whom to tell the captures that are complete then.
#[derive(Debug, Default)]
pub(crate) struct EndRequest {
    /// Gets the answer; without one nobody waits.
    pub(crate) answer: Option<Sender<Result<Vec<PathBuf>, String>>>,
}

/// Answers clients until it is dropped.
pub(crate) struct RecordingServer {
    commands: Arc<RecordingCommands>,
    server: ControlServer,
}

impl RecordingServer {
    /// The recording is complete, and has had children with these numbers: writes the files of the spans that were not ended.
    pub(crate) fn close_spans(&self, children: &[u32]) {
        self.commands.close_spans(children);
    }

    /// The process is recorded no more: nobody is to find this recording who looks for the one of the process, which may be
    /// another by now.
    pub(crate) fn withdraw(&mut self) {
        self.server.withdraw();
    }

    /// The captures are complete: sends the last windows to viewers.
    pub(crate) fn end_views(&self) {
        self.commands.end_views();
    }

    /// The same, and closes the socket.
    pub(crate) fn end(self) {
        self.end_views();
        self.server.finish();
    }
}

/// Why `detach` is refused.
const BEGUN_BY_RUN: &str = "this recording was begun by 'memtrack run', so it ends with its program";
const BEGUN_BY_PROGRAM: &str = "the program itself began this recording, and ends it";
/// Why `stop` is refused where `detach` is not.
const BEGUN_BY_ATTACH: &str = "this recording was begun by 'memtrack attach': 'memtrack detach' ends it";

/// Executes commands on the recording of a program and its children.
pub(crate) struct RecordingCommands {
    recording: RecordingHandle,
    captures: CapturePaths,
    pid: u32,
    /// Its number among those at its socket.
    number: u32,
    spans: OpenSpans,
    engine: LiveEngine,
    /// Takes requests to detach, where that is possible.
    ends: Option<Mutex<Sender<EndRequest>>>,
    /// Why requests to detach are refused, where it is not.
    refusal: &'static str,
}

impl RecordingCommands {
    /// `pid`: the first process.
    pub(crate) fn new(recording: RecordingHandle, captures: CapturePaths, pid: i32, has: RecordedKinds) -> Self {
        let engine = LiveEngine::new(recording.clone());
        let spans = OpenSpans::new(recording.clone(), Arc::clone(&captures), has);
        let pid = pid.cast_unsigned();
        Self { recording, captures, pid, number: 1, spans, engine, ends: None, refusal: BEGUN_BY_RUN }
    }

    /// Its number among those at its socket, if it is not the only one.
    pub(crate) fn numbered(self, number: u32) -> Self {
        Self { number, ..self }
    }

    /// Passes requests to detach to the thread that began the recording.
    pub(crate) fn with_detach(self, ends: Sender<EndRequest>) -> Self {
        Self { ends: Some(Mutex::new(ends)), ..self }
    }

    /// The program itself began the recording, with a `Tracker` or by memtrack.h.
    pub(crate) fn begun_by_program(self) -> Self {
        Self { refusal: BEGUN_BY_PROGRAM, ..self }
    }

    /// Answers the clients of this socket.
    pub(crate) fn serve(self, socket: ControlSocket) -> Option<RecordingServer> {
        let (pid, commands) = (self.pid, Arc::new(self));
        let handler = Arc::clone(&commands);
        ControlServer::start(socket, pid, handler).ok().map(|server| RecordingServer { commands, server })
    }

    /// The recording is complete, and has had children with these numbers: spans that were not ended get their files.
    pub(crate) fn close_spans(&self, children: &[u32]) {
        self.spans.close(children);
    }

    /// The captures are complete: viewers get the last windows.
    fn end_views(&self) {
        self.engine.end();
    }

    /// The recorded process with this id; of one that was used again, the newest.
    fn number_of(&self, pid: u32) -> Result<u32, String> {
        let all = self.status().processes;
        let process = all.iter().rev().find(|process| process.pid == pid);
        Ok(process.ok_or_else(|| format!("process {pid} is not recorded"))?.number)
    }

    /// The number and the capture of a process, the first one without an id.
    fn watched(&self, pid: Option<u32>) -> Result<(u32, PathBuf), String> {
        let number = self.number_of(pid.unwrap_or(self.pid))?;
        let capture = (self.captures)(number).ok_or("the recording has no capture yet: try again in a moment")?;
        Ok((number, capture))
    }

    fn process(&self, known: RecordedProcess, totals: Option<LiveTotals>) -> Option<ProcessStatus> {
        let title = known.title();
        let RecordedProcess {
            number,
            process,
            ended,
            write_error,
            unrecorded_program,
            stop_reason,
            record_bytes,
            resident_bytes,
            ..
        } = known;
        let process = process.unwrap_or_default();
        let is_over = ended || write_error.is_some() || stop_reason.is_some();
        let pid = process.pid.or((number == 0).then_some(self.pid))?;
        Some(ProcessStatus {
            pid,
            recording: Some(self.number),
            number,
            state: if is_over { ProcessState::Ended } else { ProcessState::Recording },
            started: process.start.realtime_ns.map(rfc3339),
            started_ns: process.start.realtime_ns,
            events: totals.map(|totals| totals.events),
            live_bytes: totals.map(|totals| totals.live.bytes),
            peak_bytes: totals.map(|totals| totals.peak_bytes),
            counting: false,
            resident_bytes,
            record_bytes,
            capture: (self.captures)(number),
            write_error,
            unrecorded_program,
            stop_reason: stop_reason.filter(|_| !ended).map(Into::into),
            command_line: process.command_line.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
            title,
        })
    }
}

impl CommandHandler for RecordingCommands {
    fn status(&self) -> RecordingStatus {
        // Viewers ask once a second: until they stop, checkpoints come more often.
        self.recording.follow_for(FOLLOWED);
        let process = |known: RecordedProcess| {
            let totals = self.engine.totals(known.number);
            self.process(known, totals)
        };
        let processes = self.recording.processes().into_iter().filter_map(process).collect();
        RecordingStatus { recorder: std::process::id(), processes }
    }

    fn status_of_now(&self, within: Duration) -> RecordingStatus {
        self.recording.follow_for(FOLLOWED);
        let deadline = Instant::now() + within;
        let written = self.recording.write_out(deadline);
        let since = Instant::now();
        let process = |known: RecordedProcess| {
            let is_written = written.contains(&known.number);
            let totals = self.engine.totals_since(known.number, since, deadline).filter(|_| is_written);
            let process = self.process(known, totals)?;
            // What could not be written comes no more.
            Some(ProcessStatus { counting: !is_written && process.write_error.is_none(), ..process })
        };
        let processes = self.recording.processes().into_iter().filter_map(process).collect();
        RecordingStatus { recorder: std::process::id(), processes }
    }

    fn count(&self, pid: Option<u32>) -> Result<(), String> {
        self.engine.count(self.watched(pid)?)
    }

    fn mark(&self, name: &str) -> Result<MarkAnswer, String> {
        let (time_ns, captures) = self.recording.mark(name)?;
        Ok(MarkAnswer { time_ns, captures })
    }

    fn snapshot(&self, pid: Option<u32>) -> Result<SnapshotAnswer, String> {
        let pid = pid.unwrap_or(self.pid);
        let number = self.number_of(pid)?;
        let SnapshotCopy { descriptor, length, tail, .. } = self.recording.snapshot(number)?;
        let (tail, capture) = (STANDARD.encode(tail), (self.captures)(number));
        Ok(SnapshotAnswer { pid, descriptor, length, tail, capture })
    }

    fn begin(&self, span: SpanRequest) -> Result<(), String> {
        let number = self.number_of(span.pid.unwrap_or(self.pid))?;
        self.spans.begin(number, span).map_err(|error| format!("{error:#}"))
    }

    fn copy(&self, copy: SpanCopyRequest) -> Result<(), String> {
        self.spans.copy(&copy).map_err(|error| format!("{error:#}"))
    }

    fn end(&self, span: &Path) -> Result<(), String> {
        self.spans.end(span).map_err(|error| format!("{error:#}"))
    }

    fn live(&self, pid: Option<u32>, every: Duration, subscriber: Subscriber) -> Result<(), String> {
        self.engine.watch(self.watched(pid)?, every, subscriber)
    }

    fn stop(&self, _pid: Option<u32>) -> Result<StopAnswer, String> {
        Err(if self.ends.is_some() { BEGUN_BY_ATTACH } else { self.refusal }.into())
    }

    fn detach(&self) -> Result<StopAnswer, String> {
        let Some(ends) = &self.ends else {
            return Err(self.refusal.into());
        };
        let (answer, answered) = channel();
        let request = EndRequest { answer: Some(answer) };
        let gone = || "the recording is just ending".to_owned();
        ends.lock().unwrap_or_else(PoisonError::into_inner).send(request).map_err(|_| gone())?;
        // Reading names and packing a large capture take minutes. Whoever completes it answers, or ends.
        let captures = answered.recv().map_err(|_| gone())??;
        Ok(StopAnswer { captures })
    }
}
