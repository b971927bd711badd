//! A client of a recording.
//!
//! Invariant: it believes only a server of its own user, of root, or of the owner of the socket's directory; and it waits
//! no longer than a given time for an answer, unless that comes when a capture is complete.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::directory::{peer, user};
use super::protocol::{ControlAnswer, ControlCommand, ControlRequest, Greeting, PROTOCOL_VERSION, line};

/// The longest line that a server sends.
const MAX_LINE: u64 = 256 << 20;
/// How long the greeting and answers may take; those that wait for a complete capture have no limit.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a recording gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The connection failed.
    #[error("the recording process cannot be reached: {0}")]
    Io(#[from] io::Error),
    /// It ended.
    #[error("the recording has ended")]
    Ended,
    /// It speaks another language.
    #[error("the recording process uses version {0} of the control protocol, this program version {PROTOCOL_VERSION}")]
    Version(u32),
    /// What it says is not understood.
    #[error("the answer of the recording process is not understood: {0}")]
    Answer(String),
    /// It has refused.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a recording process.
#[derive(Debug)]
pub struct ControlClient {
    stream: UnixStream,
    input: LineReader,
    greeting: Greeting,
    /// The recording process, as seen from here; 0 where it is not visible.
    recorder: i32,
    /// Its user.
    user: u32,
    next: u64,
}

impl ControlClient {
    /// Connects to the recording with this socket.
    ///
    /// # Errors
    /// So for all functions: no answer, or one that is not understood.
    pub fn connect(socket: &Path) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let libc::ucred { pid: recorder, uid: user, .. } = peer(&stream)?;
        let mut input = LineReader { input: BufReader::new(stream.try_clone()?), partial: Vec::new() };
        let greeting: Greeting = message(&input.next()?)?;
        if greeting.memtrack != PROTOCOL_VERSION {
            return Err(ControlError::Version(greeting.memtrack));
        }
        Ok(Self { stream, input, greeting, recorder, user, next: 1 })
    }

    /// The first process of the recording.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.greeting.pid
    }

    /// The recording process, as seen from here.
    #[must_use]
    pub fn recorder(&self) -> i32 {
        self.recorder
    }

    /// The user of the recording process, if that is neither this process's nor root.
    #[must_use]
    pub fn other_user(&self) -> Option<u32> {
        Some(self.user).filter(|theirs| ![0, user()].contains(theirs))
    }

    /// Sends a command and waits for its answer. Lines that are pushed meanwhile are dropped.
    pub fn ask<T: DeserializeOwned>(&mut self, command: ControlCommand) -> Result<T, ControlError> {
        let id = self.next;
        self.next += 1;
        // Packing a large capture takes minutes; a recording process that ends meanwhile closes the connection.
        let limit = (!command.completes_capture()).then_some(PATIENCE);
        self.stream.write_all(&line(&ControlRequest { id, command }))?;
        self.stream.set_read_timeout(limit)?;
        let answered = self.answer(id);
        self.stream.set_read_timeout(Some(PATIENCE))?;
        answered
    }

    /// Waits for the answer to this request.
    fn answer<T: DeserializeOwned>(&mut self, id: u64) -> Result<T, ControlError> {
        loop {
            let answer: ControlAnswer = message(&self.input.next()?)?;
            match answer {
                ControlAnswer { id: None, error: Some(error), .. } => return Err(ControlError::Refused(error)),
                ControlAnswer { id: known, .. } if known != Some(id) => {}
                ControlAnswer { error: Some(error), .. } => return Err(ControlError::Refused(error)),
                ControlAnswer { ok, .. } => {
                    let answer = serde_json::from_value(ok.unwrap_or(Value::Null));
                    return answer.map_err(|error| ControlError::Answer(error.to_string()));
                }
            }
        }
    }

    /// Waits for the next line that is pushed; `None`: the recording has ended. `limit`: the longest wait, without which
    /// it is unlimited; after it [`ControlError::Io`] of the kind `WouldBlock`.
    pub fn next_line(&mut self, limit: Option<Duration>) -> Result<Option<String>, ControlError> {
        self.stream.set_read_timeout(limit)?;
        let read = self.input.next();
        self.stream.set_read_timeout(Some(PATIENCE))?;
        match read {
            Ok(line) => Ok(Some(String::from_utf8(line).map_err(|error| ControlError::Answer(error.to_string()))?)),
            Err(ControlError::Ended) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn message<T: DeserializeOwned>(line: &[u8]) -> Result<T, ControlError> {
    serde_json::from_slice(line).map_err(|error| ControlError::Answer(error.to_string()))
}

/// Reads lines; what was read of one when the time limit came stays for the next call.
#[derive(Debug)]
struct LineReader {
    input: BufReader<UnixStream>,
    partial: Vec<u8>,
}

impl LineReader {
    fn next(&mut self) -> Result<Vec<u8>, ControlError> {
        let room = MAX_LINE.saturating_sub(self.partial.len() as u64);
        match io::Read::take(&mut self.input, room).read_until(b'\n', &mut self.partial) {
            Ok(_) if self.partial.ends_with(b"\n") => Ok(std::mem::take(&mut self.partial)),
            Ok(_) if (self.partial.len() as u64) < MAX_LINE => Err(ControlError::Ended),
            Ok(_) => Err(ControlError::Answer("it is too long".into())),
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
                Err(ControlError::Ended)
            }
            Err(error) => Err(error.into()),
        }
    }
}
