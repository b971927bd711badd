//! One client: what it has sent and what it is to be sent.
//!
//! Invariant: it has one request in progress at the most, and while it is answered nothing is read from it. So its memory
//! is bounded by the longest request, one answer and the queue of its subscription.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::protocol::{ControlAnswer, ControlRequest, MAX_REQUEST, line, parse_request};
use super::subscriber::SubscriberQueue;

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// Requests that a client may send before it reads their answers.
const MOST_AHEAD: usize = 64;
/// Lines that are no requests.
const MOST_INVALID: u32 = 8;
/// How long a request may be incomplete.
const HALF_A_LINE: Duration = Duration::from_secs(10);
/// How long an answer may wait to be read, and a line of a subscription.
const UNREAD: Duration = Duration::from_secs(5);
const UNREAD_BY_SUBSCRIBER: Duration = Duration::from_secs(60);

/// Why a client is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// It has gone.
    Gone,
    /// It sends too much or what is no request, or does not go on.
    Unfit(&'static str),
}

/// A connected client.
#[derive(Debug)]
pub(super) struct ControlConnection {
    /// Its number, which is not used again.
    pub(super) number: u64,
    stream: UnixStream,
    input: Vec<u8>,
    /// The client sends nothing more.
    at_end: bool,
    output: VecDeque<(Arc<[u8]>, usize)>,
    /// A request is being executed.
    pub(super) is_busy: bool,
    invalid: u32,
    subscription: Option<SubscriberQueue>,
    /// When it last sent or took something.
    pub(super) moved: Instant,
}

impl ControlConnection {
    /// A new client, which is greeted.
    pub(super) fn new(number: u64, stream: UnixStream, greeting: &[u8], now: Instant) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (output, subscription) = (VecDeque::from([(Arc::from(greeting), 0)]), None);
        let (input, at_end, is_busy, invalid) = (Vec::new(), false, false, 0);
        Ok(Self { number, stream, input, at_end, output, is_busy, invalid, subscription, moved: now })
    }

    /// What to wait for: the descriptor, whether to read, whether to write; `None` while a request is executed.
    pub(super) fn interest(&self) -> Option<(RawFd, bool, bool)> {
        let writes = !self.output.is_empty();
        (!self.is_busy).then(|| (self.stream.as_raw_fd(), !writes && !self.at_end, writes))
    }

    /// Whether something is pushed to it.
    pub(super) fn is_subscriber(&self) -> bool {
        self.subscription.is_some()
    }

    /// Whether nothing waits to be sent to it.
    pub(super) fn is_told(&self) -> bool {
        self.output.is_empty() && !self.is_busy && self.subscription.as_ref().is_none_or(SubscriberQueue::is_empty)
    }

    /// Whether it has not taken what waits for it for so long.
    pub(super) fn is_still(&self, time: Duration, now: Instant) -> bool {
        !self.is_busy && now.saturating_duration_since(self.moved) > time
    }

    /// Reads what is there, once.
    pub(super) fn read(&mut self, now: Instant) -> Result<(), Dropped> {
        let mut piece = [0; PIECE];
        match self.stream.read(&mut piece) {
            Ok(0) => self.at_end = true,
            Ok(len) => {
                // The time of a half line counts from its first byte.
                if self.input.is_empty() {
                    self.moved = now;
                }
                self.input.extend_from_slice(piece.get(..len).unwrap_or_default());
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Err(Dropped::Gone),
        }
        let lines = self.input.iter().filter(|byte| **byte == b'\n').count();
        match () {
            () if lines > MOST_AHEAD => Err(Dropped::Unfit("too many requests before their answers were read")),
            () if lines == 0 && self.input.len() > MAX_REQUEST => Err(Dropped::Unfit("the request is too long")),
            () => Ok(()),
        }
    }

    /// The next request, if it is time for one; what is no request is answered at once.
    pub(super) fn next_request(&mut self, now: Instant) -> Result<Option<ControlRequest>, Dropped> {
        while !self.is_busy && self.output.is_empty() {
            let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
                let is_over = self.at_end && self.subscription.is_none();
                return if is_over { Err(Dropped::Gone) } else { Ok(None) };
            };
            let request: Vec<u8> = self.input.drain(..=end).collect();
            self.moved = now;
            if request.trim_ascii().is_empty() {
                continue;
            }
            match parse_request(&request) {
                Ok(request) => {
                    self.is_busy = true;
                    return Ok(Some(request));
                }
                Err(_) if self.invalid >= MOST_INVALID => return Err(Dropped::Unfit("too many lines are no requests")),
                Err(invalid) => {
                    self.invalid += 1;
                    self.send(&ControlAnswer { id: invalid.id, ok: None, error: Some(invalid.reason) }, now);
                }
            }
        }
        Ok(None)
    }

    /// Sends an answer, which the client has time to read from now on, however long it took.
    pub(super) fn send(&mut self, answer: &ControlAnswer, now: Instant) {
        self.moved = now;
        self.output.push_back((line(answer).into(), 0));
    }

    /// Sends what is pushed from now on, after what is being sent. An earlier subscription ends.
    pub(super) fn subscribe(&mut self, queue: SubscriberQueue) {
        if let Some(earlier) = self.subscription.replace(queue) {
            earlier.leave();
        }
    }

    /// Writes as much as the client takes.
    pub(super) fn write(&mut self, now: Instant) -> Result<(), Dropped> {
        loop {
            if self.output.is_empty() {
                self.take_pushed();
            }
            let Some((bytes, at)) = self.output.front_mut() else { return Ok(()) };
            match self.stream.write(bytes.get(*at..).unwrap_or_default()) {
                Ok(len) => {
                    *at += len;
                    self.moved = now;
                    if *at >= bytes.len() {
                        self.output.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Dropped::Gone),
            }
        }
    }

    /// Whether the client has waited too long with something.
    pub(super) fn check_time(&self, now: Instant) -> Result<(), Dropped> {
        let still = now.saturating_duration_since(self.moved);
        let unread = if self.is_subscriber() { UNREAD_BY_SUBSCRIBER } else { UNREAD };
        if !self.output.is_empty() && still > unread {
            return Err(Dropped::Unfit("it does not read its answers"));
        }
        let is_half = !self.is_busy && self.output.is_empty() && !self.input.is_empty();
        if is_half && still > HALF_A_LINE { Err(Dropped::Unfit("its request has no end")) } else { Ok(()) }
    }

    /// Says why the client is dropped, if it can be told at once.
    pub(super) fn bid_farewell(mut self, why: Dropped) {
        if let Dropped::Unfit(reason) = why {
            let said = ControlAnswer { id: None, ok: None, error: Some(format!("connection closed: {reason}")) };
            if self.output.is_empty() {
                let _ = self.stream.write(&line(&said));
            }
        }
    }

    fn take_pushed(&mut self) {
        let Some(queue) = &self.subscription else { return };
        match queue.take() {
            Some((0, line)) => self.output.push_back((line, 0)),
            Some((skipped, line)) => {
                // In place of the line's opening brace.
                self.output.push_back((format!("{{\"skipped\":{skipped},").into_bytes().into(), 0));
                self.output.push_back((line, 1));
            }
            None if queue.is_over() => self.subscription = None,
            None => {}
        }
    }
}

impl Drop for ControlConnection {
    fn drop(&mut self) {
        self.subscription.iter().for_each(SubscriberQueue::leave);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::{ControlAnswer, ControlConnection};

    #[test]
    fn a_client_may_read_the_answer_of_a_command_that_took_long() {
        let (stream, mut client) = UnixStream::pair().unwrap();
        let asked = Instant::now();
        let mut connection = ControlConnection::new(1, stream, b"", asked).unwrap();
        connection.write(asked).unwrap();
        client.write_all(b"{\"id\": 1, \"command\": \"status\"}\n").unwrap();
        connection.read(asked).unwrap();
        assert!(connection.next_request(asked).unwrap().is_some());
        let answered = asked + Duration::from_secs(60);
        connection.is_busy = false;
        connection.send(&ControlAnswer { id: Some(1), ok: None, error: None }, answered);
        assert!(connection.check_time(answered).is_ok());
        assert!(connection.check_time(answered + Duration::from_secs(60)).is_err());
    }
}
