//! The profiles that wait to be sent, on disk, so that a server that is gone for an hour costs no memory.
//!
//! What the queue of a memtrack that was killed has for the same server is taken over. It stays in its directory until it is
//! delivered: what cannot be is there for the next recording. Once the recording has ended, its own windows go first.
//! Invariant: never more than [`MOST_BYTES`] and [`MOST_WAITING`] wait; when there are more, the oldest are given up, and
//! counted.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::request::PushRequest;
use super::stored::{self, MOST_BYTES, StoredFor};
use crate::owned_directory::{LeftDirectory, OwnedDirectory};
use crate::units::size;

/// Requests that wait: a day of windows of 15 s.
const MOST_WAITING: usize = 6_000;

/// A request that is in a file.
#[derive(Debug)]
pub(super) struct QueuedPush {
    file: PathBuf,
    bytes: u64,
    /// Made by a memtrack that was killed.
    is_taken: bool,
}

/// What became of the requests of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueCounts {
    /// How many there were.
    pub(super) made: u64,
    /// How many of these were given up, or wait.
    pub(super) lost: u64,
    /// How many wait that were taken over: they are given up only where the next recording cannot deliver them, either.
    pub(super) taken: u64,
}

/// The queue of one server.
#[derive(Debug)]
pub(super) struct PushQueue {
    /// The kind and the address of its server, and the hash of a user.
    server: String,
    state: Mutex<PushQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PushQueueState {
    /// `None`: it is removed.
    directory: Option<OwnedDirectory>,
    waiting: VecDeque<QueuedPush>,
    /// Before these, those that were taken over.
    taken: VecDeque<QueuedPush>,
    /// Where these are.
    left: Vec<LeftDirectory>,
    /// Of all that wait.
    bytes: u64,
    /// How many were put into it.
    made: u64,
    /// How many were given up.
    lost: u64,
    /// Whether one could not be written.
    has_unwritten: bool,
    /// Nothing is put into it any more; what waits is given up at this time.
    closed: Option<Instant>,
}

impl PushQueueState {
    /// How many wait.
    fn count(&self) -> usize {
        self.waiting.len() + self.taken.len()
    }

    /// Removes the next one: the oldest, but what was taken over comes last at the end.
    fn next(&mut self) -> Option<QueuedPush> {
        let own_first = self.closed.is_some() && !self.waiting.is_empty();
        let next = if own_first { None } else { self.taken.pop_front() };
        let next = next.or_else(|| self.waiting.pop_front())?;
        self.bytes -= next.bytes;
        Some(next)
    }

    /// Gives up the oldest while there are too many.
    fn shrink(&mut self) {
        while self.bytes > MOST_BYTES || self.count() > MOST_WAITING {
            let Some(oldest) = self.taken.pop_front().or_else(|| self.waiting.pop_front()) else { break };
            self.bytes -= oldest.bytes;
            self.lost += 1;
            // It is removed with the directory else.
            let _ = fs::remove_file(oldest.file);
        }
    }
}

impl Drop for PushQueue {
    fn drop(&mut self) {
        self.remove();
    }
}

impl PushQueue {
    /// A queue in a directory of its own, with what was left for this server.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new(server: String) -> io::Result<Self> {
        Ok(Self::with(server, OwnedDirectory::for_pushes()?, OwnedDirectory::left_pushes()))
    }

    fn with(server: String, directory: OwnedDirectory, left: Vec<LeftDirectory>) -> Self {
        let state = PushQueueState { directory: Some(directory), ..PushQueueState::default() };
        let queue = Self { server, state: Mutex::new(state), changed: Condvar::new() };
        left.into_iter().for_each(|left| queue.take_over(left));
        queue
    }

    /// Takes what a queue that was left has for this server. The rest waits for a recording that sends to its server.
    fn take_over(&self, left: LeftDirectory) {
        let mut state = self.lock();
        let taken_before = state.made;
        for file in left.files() {
            match stored::find(&file, &self.server) {
                StoredFor::This(bytes) => {
                    state.made += 1;
                    state.bytes += bytes;
                    state.taken.push_back(QueuedPush { file, bytes, is_taken: true });
                    state.shrink();
                }
                // memtrack was killed while it wrote it.
                StoredFor::Torn => drop(fs::remove_file(file)),
                StoredFor::Other => {}
            }
        }
        if state.made > taken_before {
            state.left.push(left);
        } else {
            left.remove_if_empty();
        }
    }

    fn lock(&self) -> MutexGuard<'_, PushQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request; one that cannot be written is given up. Returns why, of the first one.
    pub(super) fn put(&self, request: &PushRequest) -> Option<String> {
        let mut state = self.lock();
        let name = state.made.to_string();
        state.made += 1;
        let Some(file) = state.directory.as_ref().map(|directory| directory.path().join(name)) else {
            state.lost += 1;
            return None;
        };
        let bytes = match self.write(&file, request) {
            Ok(bytes) => bytes,
            Err(why) => {
                state.lost += 1;
                let is_first = !std::mem::replace(&mut state.has_unwritten, true);
                return is_first.then_some(why);
            }
        };
        state.bytes += bytes;
        state.waiting.push_back(QueuedPush { file, bytes, is_taken: false });
        state.shrink();
        drop(state);
        self.changed.notify_all();
        None
    }

    /// So many were not made, or cannot be sent: they count as given up.
    pub(super) fn miss(&self, number: u64) {
        let mut state = self.lock();
        state.made += number;
        state.lost += number;
    }

    /// Writes a request into its file; returns the bytes. If that fails, there is no file.
    fn write(&self, file: &Path, request: &PushRequest) -> Result<u64, String> {
        let why = match stored::write(file, &self.server, request) {
            Ok(bytes) if bytes <= MOST_BYTES => return Ok(bytes),
            Ok(bytes) => format!("it has {}, and {} may wait at the most", size(bytes), size(MOST_BYTES)),
            Err(error) => {
                let directory = file.parent().and_then(Path::parent).unwrap_or(file).display();
                format!("it cannot be kept in {directory}: {error}; set TMPDIR to another directory")
            }
        };
        let _ = fs::remove_file(file);
        Err(why)
    }

    /// Waits for the next request, and takes it; `None`: the queue is closed, and empty or out of time.
    pub(super) fn take(&self) -> Option<QueuedPush> {
        let mut state = self.lock();
        loop {
            if state.closed.is_some_and(|end| Instant::now() >= end) {
                return None;
            }
            if let Some(next) = state.next() {
                return Some(next);
            }
            if state.closed.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The request with its body.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub(super) fn whole(queued: &QueuedPush) -> io::Result<PushRequest> {
        stored::read(&queued.file)
    }

    /// Puts a request back that was not delivered: it is the next one again.
    pub(super) fn put_back(&self, queued: QueuedPush) {
        let mut state = self.lock();
        state.bytes += queued.bytes;
        let queue = if queued.is_taken { &mut state.taken } else { &mut state.waiting };
        queue.push_front(queued);
        state.shrink();
    }

    /// A request that was taken is done with.
    pub(super) fn done(&self, queued: &QueuedPush, is_delivered: bool) {
        let _ = fs::remove_file(&queued.file);
        self.lock().lost += u64::from(!is_delivered);
    }

    /// Waits this long before the next try, and not less than the server has asked for. The end of the recording cuts a longer
    /// pause short; then nothing is tried any more where the server has asked for more time than is left.
    pub(super) fn pause(&self, time: Duration, asked: Duration) {
        let begun = Instant::now();
        let mut state = self.lock();
        let was_closed = state.closed.is_some();
        loop {
            let now = Instant::now();
            let pause = if state.closed.is_some() && !was_closed { asked } else { time.max(asked) };
            if let Some(end) = state.closed
                && begun + asked > end
            {
                state.closed = Some(now.min(end));
                return;
            }
            let until = begun + pause;
            let left = state.closed.map_or(until, |end| until.min(end)).saturating_duration_since(now);
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Nothing more comes; what waits at this time is given up. Of several the first one counts.
    pub(super) fn close(&self, end: Instant) {
        self.lock().closed.get_or_insert(end);
        self.changed.notify_all();
    }

    /// Removes its directory: nothing is put into it any more. What waits in those that were taken over is for the next recording.
    pub(super) fn remove(&self) {
        let mut state = self.lock();
        state.directory = None;
        state.left.drain(..).for_each(LeftDirectory::remove_if_empty);
    }

    /// When what waits is given up, if the queue is closed.
    pub(super) fn end(&self) -> Option<Instant> {
        self.lock().closed
    }

    /// What became of the requests until now.
    pub(super) fn counts(&self) -> QueueCounts {
        let state = self.lock();
        let lost = state.lost + state.count() as u64;
        QueueCounts { made: state.made, lost, taken: state.taken.len() as u64 }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use super::{PushQueue, QueueCounts};
    use crate::owned_directory::OwnedDirectory;
    use crate::push::request::PushRequest;
    use crate::push::stored;

    const SERVER: &str = "Otlp http://a:1";

    fn request(name: &str) -> PushRequest {
        let (path, content_type) = ("/ingest".into(), "text/plain".into());
        PushRequest { path, query: Vec::new(), content_type, gzip: false, body: name.into() }
    }

    /// A queue in this directory as that of a recording, which takes over what lies there.
    fn queue(parent: &Path, server: &str) -> PushQueue {
        let left = OwnedDirectory::left_pushes_in(parent);
        PushQueue::with(server.into(), OwnedDirectory::for_pushes_in(parent).unwrap(), left)
    }

    /// A directory with two requests of a memtrack that was killed.
    fn killed(parent: &Path) -> PathBuf {
        let directory = OwnedDirectory::for_pushes_in(parent).unwrap();
        let path = parent.join("memtrack-push-killed");
        fs::rename(directory.path(), &path).unwrap();
        for name in ["1", "2"] {
            stored::write(&path.join(name), SERVER, &request(name)).unwrap();
        }
        path
    }

    fn next(queue: &PushQueue) -> Option<String> {
        let queued = queue.take()?;
        let body = PushQueue::whole(&queued).unwrap().body;
        queue.done(&queued, true);
        Some(String::from_utf8(body).unwrap())
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn what_was_taken_over_and_not_delivered_stays_for_the_next_recording() {
        let parent = tempfile::tempdir().unwrap();
        let left = killed(parent.path());
        let first = queue(parent.path(), SERVER);
        assert!(OwnedDirectory::left_pushes_in(parent.path()).is_empty(), "it is this recording's now");
        assert!(first.put(&request("own")).is_none());
        let failed = first.take().unwrap();
        first.put_back(failed);
        first.close(Instant::now());
        assert!(first.take().is_none());
        assert_eq!(first.counts(), QueueCounts { made: 3, lost: 3, taken: 2 });
        drop(first);
        assert!(left.join("1").exists() && left.join("2").exists());
        let second = queue(parent.path(), SERVER);
        assert_eq!(next(&second).as_deref(), Some("1"));
        second.close(later());
        assert_eq!([next(&second), next(&second)], [Some("2".into()), None]);
        drop(second);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn own_windows_go_first_at_the_end_and_the_oldest_before() {
        let parent = tempfile::tempdir().unwrap();
        killed(parent.path());
        let queue = queue(parent.path(), SERVER);
        assert!(queue.put(&request("own")).is_none());
        assert_eq!(next(&queue).as_deref(), Some("1"));
        queue.close(later());
        assert_eq!([next(&queue), next(&queue), next(&queue)], [Some("own".into()), Some("2".into()), None]);
    }

    #[test]
    fn the_first_end_counts() {
        let parent = tempfile::tempdir().unwrap();
        let queue = queue(parent.path(), SERVER);
        assert!(queue.put(&request("own")).is_none());
        let end = Instant::now();
        queue.close(end);
        queue.close(later());
        assert_eq!((queue.end(), next(&queue)), (Some(end), None));
    }

    #[test]
    fn nothing_is_left_by_one_who_still_has_the_queue_at_the_end() {
        let parent = tempfile::tempdir().unwrap();
        let queue = queue(parent.path(), SERVER);
        assert!(queue.put(&request("own")).is_none());
        queue.close(Instant::now());
        queue.remove();
        assert!(queue.put(&request("late")).is_none());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        assert_eq!(queue.counts(), QueueCounts { made: 2, lost: 2, taken: 0 });
    }

    #[test]
    fn what_cannot_be_written_is_told_once() {
        let parent = tempfile::tempdir().unwrap();
        let queue = queue(parent.path(), SERVER);
        for of in queue.lock().directory.iter() {
            (0..2).for_each(|number| fs::create_dir(of.path().join(number.to_string())).unwrap());
        }
        let told = queue.put(&request("1")).unwrap();
        assert!(told.contains("cannot be kept in") && told.contains("TMPDIR"), "{told}");
        assert!(queue.put(&request("2")).is_none() && queue.put(&request("3")).is_none());
        assert_eq!(queue.counts(), QueueCounts { made: 3, lost: 3, taken: 0 });
        assert_eq!(next(&queue).as_deref(), Some("3"));
    }

    #[test]
    fn what_no_server_can_get_goes_and_its_directory_with_it() {
        let parent = tempfile::tempdir().unwrap();
        let left = killed(parent.path());
        let whole = fs::read(left.join("2")).unwrap();
        fs::write(left.join("1"), b"").unwrap();
        fs::write(left.join("2"), &whole[..20]).unwrap();
        let owner = fs::File::open(left.join("lock")).unwrap();
        owner.try_lock().unwrap();
        let other = "Otlp http://a:2";
        drop(queue(parent.path(), other));
        assert!(left.join("1").exists() && left.join("2").exists(), "its owner is just writing them");
        drop(owner);
        drop(queue(parent.path(), other));
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_of_another_server_stays_and_what_is_torn_goes() {
        let parent = tempfile::tempdir().unwrap();
        let left = killed(parent.path());
        drop(queue(parent.path(), "Otlp http://a:1 user 0"));
        assert!(left.join("1").exists());
        let whole = fs::read(left.join("2")).unwrap();
        fs::write(left.join("1"), &whole[..whole.len() - 1]).unwrap();
        let queue = queue(parent.path(), SERVER);
        queue.close(later());
        assert_eq!([next(&queue), next(&queue)], [Some("2".into()), None]);
        drop(queue);
        assert!(!left.exists());
    }
}
