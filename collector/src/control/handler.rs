//! What the commands of clients do: implemented by the recording process.
//!
//! Invariant: it is called from one thread, for one command after the other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::protocol::{
    ControlCommand, MarkAnswer, RecordingStatus, SnapshotAnswer, SpanCopyRequest, SpanRequest, StartAnswer, StopAnswer,
};
use super::subscriber::Subscriber;

/// Executes commands. An error is a text for the user.
pub trait CommandHandler: Send + Sync {
    /// Which processes are recorded.
    fn status(&self) -> RecordingStatus;

    /// The same; first writes out what was recorded until now, for at most this long.
    fn status_of_now(&self, within: Duration) -> RecordingStatus {
        let _ = within;
        self.status()
    }

    /// Counts from now on what a process holds.
    ///
    /// # Errors
    /// So here and below: a text for the user.
    fn count(&self, pid: Option<u32>) -> Result<(), String> {
        let _ = pid;
        Err("this recording does not count what its processes hold".into())
    }

    /// Names the present moment.
    fn mark(&self, name: &str) -> Result<MarkAnswer, String>;

    /// Makes everything up to now readable.
    fn snapshot(&self, pid: Option<u32>) -> Result<SnapshotAnswer, String>;

    /// Begins to record a dormant process, the first one without an id; `sample`: the value of `--sample`, if the recording is to have
    /// samples.
    fn start(
        &self,
        pid: Option<u32>,
        output: Option<PathBuf>,
        force: bool,
        sample: Option<String>,
    ) -> Result<StartAnswer, String> {
        let _ = (pid, output, force, sample);
        Err("this process is being recorded already: only a program that was started by 'memtrack run --dormant' waits \
             for 'start'"
            .into())
    }

    /// Completes the capture and leaves the process dormant.
    fn stop(&self, pid: Option<u32>) -> Result<StopAnswer, String> {
        let _ = pid;
        Err("this recording was not started dormant, so it ends with its program".into())
    }

    /// Completes the capture and leaves the process alone.
    fn detach(&self) -> Result<StopAnswer, String> {
        Err("this recording was not begun by 'memtrack attach', so it ends with its program".into())
    }

    /// Begins a span.
    fn begin(&self, span: SpanRequest) -> Result<(), String> {
        let _ = span;
        Err(NO_SPANS.into())
    }

    /// Writes what belongs to a span so far.
    fn copy(&self, copy: SpanCopyRequest) -> Result<(), String> {
        let _ = copy;
        Err(NO_SPANS.into())
    }

    /// Ends the span with this file.
    fn end(&self, span: &Path) -> Result<(), String> {
        let _ = span;
        Err(NO_SPANS.into())
    }

    /// Pushes a line for each window of the process to the subscriber, from a thread of its own, until
    /// [`Subscriber::push`] says that the client has gone.
    fn live(&self, pid: Option<u32>, every: Duration, subscriber: Subscriber) -> Result<(), String> {
        let _ = (pid, every, subscriber);
        Err("this version of memtrack has no live view of this recording".into())
    }
}

/// How long other clients may have to wait for one that wants to know what was recorded until now.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

const NO_SPANS: &str = "this version of memtrack has no spans of this recording";

/// Executes a command. `subscriber`: pushes lines to the client.
pub(super) fn execute(
    handler: &dyn CommandHandler,
    command: ControlCommand,
    subscriber: Subscriber,
) -> Result<Value, String> {
    match command {
        ControlCommand::Status { within_ms: None } => value(&handler.status()),
        ControlCommand::Status { within_ms: Some(within_ms) } => {
            value(&handler.status_of_now(Duration::from_millis(within_ms).min(LONGEST_WAIT)))
        }
        ControlCommand::Count { pid } => handler.count(pid).map(nothing),
        ControlCommand::Mark { name } => {
            super::protocol::check_mark_name(&name)?;
            value(&handler.mark(&name)?)
        }
        ControlCommand::Snapshot { pid } => value(&handler.snapshot(pid)?),
        ControlCommand::Start { pid, output, force, sample } => value(&handler.start(pid, output, force, sample)?),
        ControlCommand::Stop { pid } => value(&handler.stop(pid)?),
        ControlCommand::Detach => value(&handler.detach()?),
        ControlCommand::Begin(span) => handler.begin(span).map(nothing),
        ControlCommand::Copy(copy) => handler.copy(copy).map(nothing),
        ControlCommand::End { span } => handler.end(&span).map(nothing),
        ControlCommand::Live { every_ms, pid } => {
            handler.live(pid, Duration::from_millis(every_ms), subscriber).map(nothing)
        }
    }
}

/// The answer that says nothing.
fn nothing((): ()) -> Value {
    Value::Object(serde_json::Map::new())
}

fn value(answer: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(answer).map_err(|error| format!("internal error: {error}"))
}
