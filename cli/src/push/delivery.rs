//! Sends the requests of a queue to a server, one after another.
//!
//! A request that fails is sent again, after pauses that grow to a minute, or that the server asks for; one that the server refuses
//! is given up. TLS and passwords are left to a proxy or an agent of the user's, see `docs/running-programs.md`.
//! Invariant: nothing that a server does or sends takes more than [`PATIENCE`] and [`MOST_ANSWER`] of memory for a request.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ureq::Agent;
use ureq::http::StatusCode;
use ureq::http::header::{LOCATION, RETRY_AFTER};

use super::queue::{PushQueue, QueueCounts, QueuedPush};
use super::request::PushRequest;
use super::retry_after;
use super::stored::MOST_BYTES;
use crate::args::push::{PushServer, ServerUrl};
use crate::export::otlp;
use crate::message;
use crate::text::visible;
use crate::units::{plural, size};

/// For how long a server may take over a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the one who waits for an answer looks whether the recording has ended meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of an answer that are read.
const MOST_ANSWER: u64 = 64 << 10;
/// What is said of a server that does not answer in time.
const NO_ANSWER: &str = "the server gives no answer";
/// Characters of an answer that are shown.
const MOST_SAID: usize = 200;
/// The first pause after a failure, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];

/// What became of a request.
enum Sent {
    Delivered,
    /// The server does not want it, and would not later.
    Refused(String),
    /// It may be delivered later, but not before the pause that the server asks for.
    Failed(String, Duration),
}

/// What a server says to a request.
struct PushAnswer {
    status: StatusCode,
    /// The pause that it asks for.
    asked: Duration,
    /// The address to which it sends memtrack.
    location: Option<String>,
    body: Vec<u8>,
}

/// The pauses between tries. Once the recording has ended they are short again, and grow again: a server that is gone gets a few
/// requests of each program that ends.
#[derive(Debug)]
struct PushPauses {
    next: Duration,
    is_ending: bool,
}

impl PushPauses {
    const fn new() -> Self {
        Self { next: PAUSES[0], is_ending: false }
    }

    fn delivered(&mut self) {
        self.next = PAUSES[0];
    }

    /// The pause after a failure.
    fn failed(&mut self, is_ending: bool) -> Duration {
        if is_ending && !std::mem::replace(&mut self.is_ending, true) {
            self.next = PAUSES[0];
        }
        let pause = self.next;
        self.next = (pause * 2).min(PAUSES[1]);
        pause
    }
}

/// Sends to one server.
pub(super) struct Delivery {
    queue: Arc<PushQueue>,
    url: ServerUrl,
    server: PushServer,
    agent: Agent,
    has_failed: bool,
    has_given_up: bool,
    /// A success is not said.
    quiet: bool,
}

impl Delivery {
    pub(super) fn new(queue: Arc<PushQueue>, (server, url): (PushServer, ServerUrl), quiet: bool) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("memtrack/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { queue, url, server, agent: agent.into(), has_failed: false, has_given_up: false, quiet }
    }

    /// Sends until the queue is closed, and empty or out of time.
    pub(super) fn run(&mut self) {
        let mut pauses = PushPauses::new();
        while let Some(queued) = self.queue.take() {
            match self.send(&queued) {
                Sent::Delivered => {
                    self.queue.done(&queued, true);
                    pauses.delivered();
                }
                Sent::Refused(why) => {
                    self.tell_given_up(&why);
                    self.queue.done(&queued, false);
                }
                Sent::Failed(why, asked) => {
                    let is_ending = self.queue.end().is_some();
                    let waits = || format!("; it is tried again, and up to {} of windows wait", size(MOST_BYTES));
                    self.tell(&format!("{why}{}", if is_ending { String::new() } else { waits() }));
                    self.queue.put_back(queued);
                    self.queue.pause(pauses.failed(is_ending), asked);
                }
            }
        }
        let QueueCounts { made, lost, taken } = self.queue.counts();
        let windows = plural(made, "window", "windows");
        let rest = match taken {
            0 => String::new(),
            _ => format!("; {taken} of a recording that was killed wait for the next one"),
        };
        if lost > 0 {
            message::warning(format_args!("{lost} of {windows} not delivered to {}{rest}", self.url));
        } else if !self.quiet {
            message::line(format_args!("memtrack: {windows} delivered to {}", self.url));
        }
    }

    /// The server as it was named: one may get windows by both options.
    fn named(&self) -> String {
        format!("{} {}", self.server.option(), self.url)
    }

    fn tell(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_failed, true) {
            message::warning(format_args!("{}: a window was not delivered: {why}", self.named()));
        }
    }

    /// Of what is given up the first is said in any case: what has failed before may only have waited.
    fn tell_given_up(&mut self, why: &str) {
        let has_waited = std::mem::replace(&mut self.has_failed, true);
        if std::mem::replace(&mut self.has_given_up, true) {
            return;
        }
        let what = if has_waited { "was given up, and is not sent again" } else { "was not delivered" };
        message::warning(format_args!("{}: a window {what}: {why}", self.named()));
    }

    fn send(&self, queued: &QueuedPush) -> Sent {
        let request = match PushQueue::whole(queued) {
            Ok(request) => request,
            Err(error) => return Sent::Refused(format!("it cannot be read again: {error}")),
        };
        let left = self.queue.end().map(|end| end.saturating_duration_since(Instant::now()));
        let limit = left.map_or(PATIENCE, |left| left.min(PATIENCE)).max(Duration::from_millis(1));
        match self.answer(request, limit) {
            Ok(answer) => self.judge(&answer),
            Err(why) => Sent::Failed(why, Duration::ZERO),
        }
    }

    /// The server's answer. It is waited for on a thread of its own, which is left behind where the recording ends meanwhile
    /// and the time for that is over.
    fn answer(&self, request: PushRequest, limit: Duration) -> Result<PushAnswer, String> {
        let (answer, answered) = channel();
        let (agent, url) = (self.agent.clone(), self.url.clone());
        let post = move || {
            // Nobody may wait for it any more.
            let _ = answer.send(post(&agent, &url, &request, limit));
        };
        let started = thread::Builder::new().name("memtrack-post".into()).spawn(post);
        started.map_err(|error| format!("no thread can be started: {error}"))?;
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(Err(ureq::Error::Timeout(_))) => return Err(NO_ANSWER.into()),
                Ok(answer) => return answer.map_err(|error| error.to_string()),
                Err(RecvTimeoutError::Timeout) if self.queue.end().is_none_or(|end| Instant::now() < end) => {}
                Err(_) => return Err(NO_ANSWER.into()),
            }
        }
    }

    fn judge(&self, answer: &PushAnswer) -> Sent {
        let PushAnswer { status, asked, location, body } = answer;
        if status.is_success() {
            let rejection = if self.server == PushServer::Otlp { otlp::rejection(body) } else { None };
            return rejection.map_or(Sent::Delivered, Sent::Refused);
        }
        let shown = |text: &str| visible(text.trim()).chars().take(MOST_SAID).collect::<String>();
        let said = match location {
            Some(location) => format!(", {}; {}", shown(location), where_to(location)),
            None => Some(shown(&String::from_utf8_lossy(body)))
                .filter(|said| !said.is_empty())
                .map_or_else(String::new, |said| format!(": {said}")),
        };
        let why = format!("the server answers {status}{said}");
        let is_passing = status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED
            || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(status);
        if is_passing { Sent::Failed(why, *asked) } else { Sent::Refused(why) }
    }
}

/// What to do where the server sends memtrack to another address.
fn where_to(location: &str) -> &'static str {
    if location.trim().starts_with("https:") {
        "memtrack sends by http only: name an agent or a proxy that sends by https"
    } else {
        "memtrack follows no redirection: name the address itself"
    }
}

fn post(agent: &Agent, url: &ServerUrl, request: &PushRequest, limit: Duration) -> Result<PushAnswer, ureq::Error> {
    let path = format!("{}{}", url.root(), request.path);
    let mut post = agent.post(&path).content_type(&request.content_type);
    if request.gzip {
        post = post.header("Content-Encoding", "gzip");
    }
    if let Some(credentials) = url.authorization() {
        post = post.header("Authorization", credentials);
    }
    let post = post.query_pairs(request.query.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut answer = post.config().timeout_global(Some(limit)).build().send(&request.body)?;
    let body = answer.body_mut().with_config().limit(MOST_ANSWER).read_to_vec();
    let asked = answer.headers().get(RETRY_AFTER).and_then(|asked| asked.to_str().ok());
    let asked = asked.and_then(|asked| retry_after::pause(asked, SystemTime::now())).unwrap_or_default();
    let is_elsewhere = answer.status().is_redirection();
    let location = answer.headers().get(LOCATION).filter(|_| is_elsewhere).and_then(|to| to.to_str().ok());
    let location = location.map(str::to_owned);
    // What it says beyond its status is of use only for a message.
    Ok(PushAnswer { status: answer.status(), asked, location, body: body.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::PushPauses;

    #[test]
    fn pauses_grow_and_begin_anew_once_at_the_end() {
        let mut pauses = PushPauses::new();
        let mut failed = |is_ending| pauses.failed(is_ending).as_millis();
        assert_eq!([false; 9].map(&mut failed), [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!([true; 4].map(&mut failed), [500, 1000, 2000, 4000]);
    }
}
