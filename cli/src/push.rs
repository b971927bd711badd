//! `run --push` and `--otlp`: sends a profile of each window of time to servers while the program runs.
//!
//! One thread at the lowest priority follows the captures as they are written and makes the profiles; one for each server
//! sends them, from a queue on disk.
//!
//! Invariant: neither the recording nor the program waits for them, and memory and disk are bounded, whatever a server does.

mod delivery;
mod queue;
mod request;
mod retry_after;
mod stored;
mod tree;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memtrack_collector::RecordingHandle;

use self::delivery::Delivery;
use self::queue::PushQueue;
use self::request::PushedWindow;
use self::tree::PushedTree;
use crate::args::RunArgs;
use crate::args::push::{PushServer, ServerUrl};
use crate::control::snapshot::CapturePaths;
use crate::message;
use crate::units::plural;

/// How often the captures are looked at; windows are no shorter than 100 ms.
const PAUSE: Duration = Duration::from_millis(200);
/// For how long checkpoints come more often.
const FOLLOWED: Duration = Duration::from_secs(3);
/// At the end of the recording, what is not delivered after this time is given up.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The part of that in which windows are made.
const MAKING_LIMIT: Duration = Duration::from_secs(3);

/// The threads that send.
pub(crate) struct Pushes {
    ending: Arc<(Mutex<Option<Instant>>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

/// A server, and what waits for it.
type Outlet = (PushServer, Arc<PushQueue>);

impl Pushes {
    /// Begins to send, if there are servers.
    pub(crate) fn start(options: &RunArgs, recording: RecordingHandle, captures: CapturePaths) -> Option<Self> {
        let (options, quiet) = (&options.push, options.quiet);
        let servers = options.servers();
        if servers.is_empty() {
            return None;
        }
        let mut pushes = Self { ending: Arc::default(), threads: Vec::new() };
        let mut outlets: Vec<Outlet> = Vec::new();
        for (server, url) in servers {
            match PushQueue::new(queue_key(server, &url)) {
                Ok(queue) => {
                    say_taken(&queue, &url, quiet);
                    outlets.push((server, Arc::new(queue)));
                }
                Err(error) => {
                    message::warning(format_args!("{url}: nothing is sent: no directory for what waits: {error}"));
                    continue;
                }
            }
            if let Some((_, queue)) = outlets.last() {
                let mut delivery = Delivery::new(Arc::clone(queue), (server, url), quiet);
                pushes.spawn("memtrack-send", move || delivery.run());
            }
        }
        let ending = Arc::clone(&pushes.ending);
        let tree = PushedTree::new(captures, options.push_every, options.push_label.clone());
        pushes.spawn("memtrack-push", move || make(&ending, &recording, tree, &outlets));
        Some(pushes)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) {
        match thread::Builder::new().name(name.into()).spawn(work) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => message::warning(format_args!("no windows are sent: {error}")),
        }
    }

    /// The captures are complete: sends the last windows, for a few seconds at the most.
    pub(crate) fn end(self) {
        *self.ending.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.ending.1.notify_all();
        // One that has panicked has sent what it could.
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Whose windows a queue has: those of one user of a server are never sent as another's.
fn queue_key(server: PushServer, url: &ServerUrl) -> String {
    let user = url.user_hash().map_or_else(String::new, |hash| format!(" user {hash:016x}"));
    format!("{server:?} {url}{user}")
}

/// Says what waits already, of recordings that were killed.
fn say_taken(queue: &PushQueue, url: &ServerUrl, quiet: bool) {
    let taken = queue.counts().taken;
    if taken > 0 && !quiet {
        let windows = plural(taken, "window", "windows");
        message::note(format_args!(
            "memtrack: {windows} of a recording that was killed wait, too, to be sent to {url}"
        ));
    }
}

/// Makes windows until the recording ends.
fn make(
    (ending, changed): &(Mutex<Option<Instant>>, Condvar),
    recording: &RecordingHandle,
    mut tree: PushedTree,
    outlets: &[Outlet],
) {
    crate::sys::yield_to_others();
    let mut put = |window: &PushedWindow| {
        for (server, queue) in outlets {
            match window.request(*server) {
                Ok(request) => queue.put(&request),
                Err(error) => message::warning(format_args!("a window is not sent: {error:#}")),
            }
        }
    };
    let ended = loop {
        recording.follow_for(FOLLOWED);
        let pause = if tree.read(None, &mut put) { PAUSE } else { Duration::ZERO };
        let state = ending.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(state, pause, |ended| ended.is_none());
        if let Some(ended) = *waited.unwrap_or_else(PoisonError::into_inner).0 {
            break ended;
        }
    };
    if !tree.read(Some(ended + MAKING_LIMIT), &mut put) {
        message::warning("the last windows are not sent: the recording is not replayed yet");
    }
    outlets.iter().for_each(|(_, queue)| queue.close(ended + END_LIMIT));
}

#[cfg(test)]
mod tests {
    use super::queue_key;
    use crate::args::push::PushServer;

    #[test]
    fn each_user_of_a_server_has_a_queue() {
        let key = |url: &str| queue_key(PushServer::Otlp, &url.parse().unwrap());
        let keys = ["http://a:1", "http://tenantA:secret@a:1", "http://tenantB:secret@a:1"].map(key);
        assert_eq!(keys[0], "Otlp http://a:1");
        assert!(keys[1] != keys[2] && keys[1..].iter().all(|key| key.starts_with("Otlp http://a:1 user ")), "{keys:?}");
        assert!(keys.iter().all(|key| !key.contains("tenant") && !key.contains("secret")), "{keys:?}");
        assert_eq!(key("http://tenantA:another@a:1/"), keys[1], "a password may change");
    }
}
