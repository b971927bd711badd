//! `run --push` and `--otlp`: sends a profile of each window of time to servers while the program runs.
//!
//! One thread at the lowest priority follows the captures as they are written and makes the profiles; one for each server
//! sends them, from a queue on disk. At the end, who waits for the last profiles makes them, at its own priority; where
//! the thread has got no processor and the captures are short, by reading these from their beginning.
//!
//! Invariant: neither the recording nor the program waits for them, and memory and disk are bounded, whatever a server does.

mod delivery;
mod made;
mod queue;
mod request;
mod retry_after;
mod stored;
mod tree;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memtrack_collector::RecordingHandle;

use self::delivery::Delivery;
use self::made::{MadeWindows, UnmadeWindows, all_captures};
use self::queue::PushQueue;
use self::request::PushedWindow;
use self::tree::PushedTree;
use crate::args::RunArgs;
use crate::args::push::{PushServer, ServerUrl};
use crate::control::snapshot::CapturePaths;
use crate::message;
use crate::units::{duration, plural};

/// How often the captures are looked at; windows are no shorter than 100 ms.
const PAUSE: Duration = Duration::from_millis(200);
/// For how long checkpoints come more often.
const FOLLOWED: Duration = Duration::from_secs(3);
/// At the end of the recording, what is not delivered after this time is given up.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The part of that in which windows are made.
const MAKING_LIMIT: Duration = Duration::from_secs(4);
/// For how long the thread that made them may take to stop; then it is left behind, and what was made is sent.
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// After this time a short recording is read anew meanwhile.
const ANEW_LIMIT: Duration = Duration::from_millis(500);
/// Bytes of captures that are read anew: those of about 20 million events, which take two seconds.
const MOST_ANEW: u64 = 64 << 20;

/// The threads that send.
pub(crate) struct Pushes {
    ending: Arc<PushEnd>,
    outlets: Outlets,
    senders: Vec<JoinHandle<()>>,
    source: PushSource,
}

/// What windows are made from.
#[derive(Clone)]
struct PushSource {
    captures: CapturePaths,
    every: Duration,
    labels: Vec<(String, String)>,
    made: Arc<MadeWindows>,
}

impl PushSource {
    /// All processes from their begin. `ended`: see [`PushedTree::new`].
    fn tree(&self, ended: &Arc<OnceLock<Instant>>) -> PushedTree {
        PushedTree::new(Arc::clone(&self.captures), (self.every, self.labels.clone()), &self.made, ended)
    }

    /// Whether it does not take long to read them.
    fn is_short(&self) -> bool {
        let bytes = |path| std::fs::metadata(path).map_or(0, |file| file.len());
        all_captures(&self.captures).into_iter().map(|(_, path)| bytes(path)).sum::<u64>() <= MOST_ANEW
    }

    /// Says what is missing.
    fn end(&self, is_over: impl Fn() -> bool) -> UnmadeWindows {
        let unmade = self.made.end(&self.captures, self.every, is_over);
        if unmade.windows > 0 {
            let longest = duration(unmade.longest_ns);
            message::warning(format_args!(
                "the last windows are not sent: they could not be made of the last {longest}"
            ));
        }
        unmade
    }
}

/// The end of the recording.
#[derive(Default)]
struct PushEnd {
    /// When that was.
    at: Arc<OnceLock<Instant>>,
    maker: Mutex<Maker>,
    changed: Condvar,
}

/// What the thread that makes windows does.
#[derive(Default)]
enum Maker {
    #[default]
    Working,
    /// It has stopped: the end goes on with this.
    Stopped(Box<Making>),
    /// It has failed, or could not be started.
    Gone,
}

impl PushEnd {
    fn lock(&self) -> MutexGuard<'_, Maker> {
        self.maker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait for it.
    fn set(&self) -> Instant {
        let maker = self.lock();
        let ended = *self.at.get_or_init(Instant::now);
        drop(maker);
        self.changed.notify_all();
        ended
    }

    /// Waits for it, for so long at the most; returns whether it has come.
    fn wait(&self, pause: Duration) -> bool {
        drop(self.changed.wait_timeout_while(self.lock(), pause, |_| self.at.get().is_none()));
        self.at.get().is_some()
    }

    /// Whether the thread has stopped.
    fn has_stopped(&self) -> bool {
        !matches!(*self.lock(), Maker::Working)
    }

    fn stop(&self, maker: Maker) {
        *self.lock() = maker;
        self.changed.notify_all();
    }

    /// Waits until the thread has stopped, but not longer than until this time; returns what it has left.
    fn stopped(&self, deadline: Instant) -> Maker {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |maker| matches!(maker, Maker::Working));
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// A server, and what waits for it.
type Outlet = (PushServer, Arc<PushQueue>);
type Outlets = Arc<[Outlet]>;

/// Makes windows for the queues.
struct Making {
    tree: PushedTree,
    outlets: OpenOutlets,
}

/// Whoever makes windows has this. When it is dropped, nothing more is put into the queues: after a panic, too, and where no thread
/// could be started, so that nobody waits for more.
struct OpenOutlets {
    outlets: Outlets,
    made: Arc<MadeWindows>,
    ending: Weak<PushEnd>,
}

impl Drop for OpenOutlets {
    fn drop(&mut self) {
        let ending = self.ending.upgrade();
        let ended = ending.as_ref().and_then(|ending| ending.at.get().copied()).unwrap_or_else(Instant::now);
        self.outlets.iter().for_each(|(_, queue)| queue.close(ended + END_LIMIT));
        ending.iter().for_each(|ending| ending.stop(Maker::Gone));
    }
}

impl OpenOutlets {
    fn put(&self, window: &PushedWindow) {
        put(&self.outlets, &self.made, window);
    }
}

/// Queues a window for each server, if it is the next one of its process.
fn put(outlets: &Outlets, made: &MadeWindows, window: &PushedWindow) {
    let requests: Vec<_> = outlets.iter().map(|(server, _)| window.request(*server)).collect();
    if !made.claim(window.span) {
        return;
    }
    for ((server, queue), request) in outlets.iter().zip(requests) {
        match request {
            Ok(request) => {
                if let Some(why) = queue.put(&request) {
                    message::warning(format_args!("{}: a window was given up: {why}", server.option()));
                }
            }
            Err(error) => {
                queue.miss(1);
                message::warning(format_args!("a window is not sent: {error:#}"));
            }
        }
    }
}

impl Pushes {
    /// Begins to send, if there are servers.
    pub(crate) fn start(options: &RunArgs, recording: RecordingHandle, captures: CapturePaths) -> Option<Self> {
        let (options, quiet) = (&options.push, options.quiet);
        let servers = options.servers();
        if servers.is_empty() {
            return None;
        }
        let mut senders = Vec::new();
        let mut outlets: Vec<Outlet> = Vec::new();
        for (server, url) in servers {
            let queue = match PushQueue::new(queue_key(server, &url)) {
                Ok(queue) => Arc::new(queue),
                Err(error) => {
                    message::warning(format_args!("{url}: nothing is sent: no directory for what waits: {error}"));
                    continue;
                }
            };
            say_taken(&queue, &url, quiet);
            let mut delivery = Delivery::new(Arc::clone(&queue), (server, url), quiet);
            // Without a thread that sends, nothing is to be queued.
            if let Some(sender) = spawn("memtrack-send", move || delivery.run()) {
                senders.push(sender);
                outlets.push((server, queue));
            }
        }
        let (ending, outlets) = (Arc::<PushEnd>::default(), Outlets::from(outlets));
        let made = Arc::<MadeWindows>::default();
        let open =
            OpenOutlets { outlets: Arc::clone(&outlets), made: Arc::clone(&made), ending: Arc::downgrade(&ending) };
        let source = PushSource { captures, every: options.push_every, labels: options.push_label.clone(), made };
        let (making, stopping) = (Making { tree: source.tree(&ending.at), outlets: open }, Arc::clone(&ending));
        spawn("memtrack-push", move || make(making, &recording, &stopping));
        Some(Self { ending, outlets, senders, source })
    }

    /// The captures are complete: sends the last windows, for a few seconds at the most.
    pub(crate) fn end(self) {
        let Self { ending, outlets, senders, source } = self;
        let ended = ending.set();
        // As long as there is the one who made the windows, the queues are open.
        let _maker = make_last(&ending, &outlets, &source);
        let unmade = source.end(|| Instant::now() >= ended + END_LIMIT);
        outlets.iter().for_each(|(_, queue)| queue.miss(unmade.windows));
        outlets.iter().for_each(|(_, queue)| queue.close(ended + END_LIMIT));
        senders.into_iter().for_each(|sender| drop(sender.join()));
        // The thread that makes windows may have been left behind, and still has the queues.
        outlets.iter().for_each(|(_, queue)| queue.remove());
    }
}

/// Makes the last windows of a recording that has ended; returns what the thread that made the others has left.
fn make_last(ending: &PushEnd, outlets: &Outlets, source: &PushSource) -> Maker {
    let ended = ending.set();
    let is_over = || Instant::now() >= ended + MAKING_LIMIT;
    let mut maker = ending.stopped(ended + ANEW_LIMIT);
    // It looks up names in files, which cannot be interrupted, or has no processor.
    if matches!(maker, Maker::Working) && source.is_short() {
        let begun = OnceLock::from(Instant::now());
        let mut anew = source.tree(&Arc::new(begun));
        // Not all may be made then: of an aggregated capture, or of a tree with many processes, the thread makes the rest.
        anew.finish(|| is_over() || ending.has_stopped(), |window| put(outlets, &source.made, window));
    }
    if matches!(maker, Maker::Working) {
        maker = ending.stopped(ended + STOP_LIMIT);
    }
    if let Maker::Stopped(making) = &mut maker {
        let Making { tree, outlets } = &mut **making;
        tree.finish(is_over, |window| outlets.put(window));
    }
    maker
}

/// Starts a thread; without it nothing is sent.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.inspect_err(|error| message::warning(format_args!("no windows are sent: {error}"))).ok()
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
fn make(mut making: Making, recording: &RecordingHandle, ending: &PushEnd) {
    crate::sys::yield_to_others();
    let is_over = || ending.at.get().is_some();
    loop {
        recording.follow_for(FOLLOWED);
        let Making { tree, outlets } = &mut making;
        let pause = if tree.read(is_over, |window| outlets.put(window)) { PAUSE } else { Duration::ZERO };
        if ending.wait(pause) {
            return ending.stop(Maker::Stopped(Box::new(making)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::queue::PushQueue;
    use super::{END_LIMIT, MOST_ANEW, Maker, OpenOutlets, Outlets, PushEnd, PushSource, Pushes, queue_key};
    use crate::args::push::PushServer;

    fn open_outlets() -> (Arc<PushQueue>, Arc<PushEnd>, OpenOutlets) {
        let queue = Arc::new(PushQueue::new("Otlp http://a:1".into()).unwrap());
        let outlets: Outlets = [(PushServer::Otlp, Arc::clone(&queue))].into();
        let ending = Arc::<PushEnd>::default();
        (queue, Arc::clone(&ending), OpenOutlets { outlets, made: Arc::default(), ending: Arc::downgrade(&ending) })
    }

    /// Else who sends would wait for ever, and the end of the recording for them.
    #[test]
    fn queues_are_closed_however_making_windows_ends() {
        for panics in [false, true] {
            let (queue, ending, open) = open_outlets();
            let maker = thread::spawn(move || {
                let _open = open;
                assert!(!panics, "windows cannot be made");
            });
            assert!(queue.take().is_none());
            assert_eq!(maker.join().is_err(), panics);
            assert!(matches!(ending.stopped(Instant::now()), Maker::Gone));
        }
    }

    #[test]
    fn what_is_made_in_time_has_the_rest_of_the_time_to_be_sent() {
        let (queue, ending, open) = open_outlets();
        let ended = ending.set();
        assert!(matches!(ending.stopped(ended), Maker::Working));
        drop(open);
        assert_eq!(queue.end(), Some(ended + END_LIMIT));
    }

    /// The end of a recording whose thread that makes windows gets no processor; returns how many windows are said to have been
    /// there, and how many of them are to be sent. The capture has at least so many bytes.
    fn ended_without_maker(length: u64) -> (u64, u64) {
        let (queue, ending, open) = open_outlets();
        let file = tempfile::NamedTempFile::new().unwrap();
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../reader/tests/fixtures/v5.bin");
        let bytes = std::fs::copy(fixture, file.path()).unwrap();
        file.as_file().set_len(bytes.max(length)).unwrap();
        let path = file.path().to_owned();
        let captures = Arc::new(move |number| (number == 0).then(|| path.clone()));
        let every = Duration::from_secs(3600);
        let source = PushSource { captures, every, labels: Vec::new(), made: Arc::clone(&open.made) };
        Pushes { ending, outlets: Arc::clone(&open.outlets), senders: Vec::new(), source }.end();
        let sent = std::iter::from_fn(|| queue.take()).count();
        (queue.counts().made, sent as u64)
    }

    #[test]
    fn windows_are_made_at_the_end_without_the_thread_that_made_them() {
        assert_eq!(ended_without_maker(0), (1, 1));
    }

    /// The server, or who reads what is said at the end, cannot know of them else.
    #[test]
    fn windows_that_were_not_made_count_as_not_delivered() {
        assert_eq!(ended_without_maker(MOST_ANEW + 1), (1, 0));
    }

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
