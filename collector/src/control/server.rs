//! The control thread: accepts clients, reads their requests and writes their answers.
//!
//! Invariant: it waits for no client and no command. At most [`MOST_CLIENTS`] are connected; for another one, the one that
//! has been still for the longest time goes.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::budget::ProcessorBudget;
use super::connection::{ControlConnection, Dropped};
use super::directory::{ControlSocket, SocketFile, THREAD_NAME, peer};
use super::handler::CommandHandler;
use super::protocol::{Greeting, PROTOCOL_VERSION, line};
use super::wake::{self, ControlWaker, WakeReceiver};
use super::worker::CommandWorker;

/// Clients at once.
const MOST_CLIENTS: usize = 64;
/// Clients that are accepted between two looks at the others.
const ACCEPTED_AT_ONCE: usize = 8;
/// How long clients may take to read what waits for them at the end, and how long commands that are being executed then.
const LAST_WORDS: Duration = Duration::from_millis(500);
const LAST_COMMANDS: Duration = Duration::from_secs(10);
/// How often times are checked while clients are connected, in milliseconds.
const LOOK_MS: i32 = 500;

/// A running control server. Its socket goes with it.
#[derive(Debug)]
pub struct ControlServer {
    waker: ControlWaker,
    thread: Option<JoinHandle<()>>,
    /// Until it is withdrawn.
    file: Option<SocketFile>,
}

impl ControlServer {
    /// Answers the clients of this socket, which has been published for `pid`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(socket: ControlSocket, pid: u32, handler: Arc<dyn CommandHandler>) -> io::Result<Self> {
        let (listener, file, waiting) = socket.into_parts();
        let (waker, woken) = wake::pair()?;
        let greeting = line(&Greeting { memtrack: PROTOCOL_VERSION, version: env!("CARGO_PKG_VERSION").into(), pid });
        let worker = CommandWorker::new(handler, waker.clone(), MOST_CLIENTS);
        let (clients, accepted, settling) = (Vec::new(), 0, (0, Instant::now()));
        let control =
            ControlThread { listener, woken, worker, waker: waker.clone(), greeting, clients, accepted, settling };
        let answer = move || control.run();
        let thread = match waiting {
            Some(thread) => thread.execute(answer),
            None => thread::Builder::new().name(THREAD_NAME.into()).spawn(answer)?,
        };
        Ok(Self { waker, thread: Some(thread), file: Some(file) })
    }
}

impl ControlServer {
    /// Removes the socket's name: no client finds it any more, and those that are connected are answered as before.
    pub fn withdraw(&mut self) {
        self.file = None;
    }

    /// Ends when commands are answered that were asked before, and the clients have taken what waits for them, or a little later.
    pub fn finish(self) {
        let begun = Instant::now();
        let look = self.waker.ask_to_settle();
        while !self.waker.has_settled(look) && begun.elapsed() < LAST_COMMANDS {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.waker.stop();
        // It does not panic, and nothing depends on it any more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct ControlThread {
    listener: UnixListener,
    woken: WakeReceiver,
    waker: ControlWaker,
    worker: CommandWorker,
    greeting: Vec<u8>,
    clients: Vec<ControlConnection>,
    /// Clients so far.
    accepted: u64,
    /// The newest question whether all clients are told everything, and when it was seen.
    settling: (u32, Instant),
}

impl ControlThread {
    fn run(mut self) {
        let mut budget = ProcessorBudget::new();
        loop {
            let ready = self.wait();
            if ready.woken && !self.woken.take() {
                return;
            }
            let now = Instant::now();
            let settling = self.waker.settling();
            if settling != self.settling.0 {
                self.settling = (settling, now);
            }
            self.take_answers();
            self.serve(&ready.clients, now);
            let is_late = now.saturating_duration_since(self.settling.1) > LAST_WORDS;
            let is_still = |client: &ControlConnection| is_late && client.is_still(LAST_WORDS, now);
            if self.clients.iter().all(|client| client.is_told() || is_still(client)) {
                self.waker.settle(settling);
            }
            if ready.connects {
                (0..ACCEPTED_AT_ONCE).take_while(|_| self.accept(now)).for_each(drop);
            }
            if let Some(pause) = budget.pause() {
                thread::sleep(pause);
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) -> Ready {
        let watch = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut watched =
            vec![watch(self.listener.as_raw_fd(), libc::POLLIN), watch(self.woken.descriptor(), libc::POLLIN)];
        watched.extend(self.clients.iter().map(|client| match client.interest() {
            Some((fd, reads, writes)) => {
                let events = if reads { libc::POLLIN } else { 0 } | if writes { libc::POLLOUT } else { 0 };
                watch(fd, events)
            }
            // A negative descriptor is not watched.
            None => watch(-1, 0),
        }));
        let timeout = if self.clients.is_empty() { -1 } else { LOOK_MS };
        let count = watched.len() as libc::nfds_t;
        // SAFETY: the array is ours and its length is given.
        let found = unsafe { libc::poll(watched.as_mut_ptr(), count, timeout) };
        if found < 0 {
            // Interrupted, or out of memory: the clients are looked at, and the next poll may succeed.
            thread::sleep(Duration::from_millis(1));
        }
        let mut is_ready = watched.iter().map(|watched| found > 0 && watched.revents != 0);
        let (connects, woken) = (is_ready.next() == Some(true), is_ready.next() == Some(true));
        Ready { connects, woken, clients: is_ready.collect() }
    }

    /// Gives the answers of executed commands to their clients.
    fn take_answers(&mut self) {
        for executed in self.worker.take_executed() {
            // A subscriber whose client has gone is told so when its queue is dropped.
            match self.clients.iter_mut().find(|client| client.number == executed.client) {
                Some(client) => {
                    client.is_busy = false;
                    client.send(&executed.answer, Instant::now());
                    executed.subscription.into_iter().for_each(|queue| client.subscribe(queue));
                }
                None => executed.subscription.iter().for_each(super::subscriber::SubscriberQueue::leave),
            }
        }
    }

    /// Serves each client once; drops those that are unfit.
    fn serve(&mut self, ready: &[bool], now: Instant) {
        let clients = std::mem::take(&mut self.clients);
        for (place, mut client) in clients.into_iter().enumerate() {
            let is_ready = ready.get(place).copied().unwrap_or(false);
            match Self::serve_one(&mut client, &mut self.worker, is_ready, now) {
                Ok(()) => self.clients.push(client),
                Err(why) => client.bid_farewell(why),
            }
        }
    }

    fn serve_one(
        client: &mut ControlConnection,
        worker: &mut CommandWorker,
        is_ready: bool,
        now: Instant,
    ) -> Result<(), Dropped> {
        client.check_time(now)?;
        match client.interest().filter(|_| is_ready) {
            Some((_, true, _)) => client.read(now)?,
            // Not asked for, so it has hung up.
            Some((_, false, false)) => return Err(Dropped::Gone),
            _ => {}
        }
        client.write(now)?;
        if let Some(request) = client.next_request(now)? {
            worker.execute(client.number, request);
        }
        client.write(now)
    }

    /// Accepts the next client; `false`: none waits.
    fn accept(&mut self, now: Instant) -> bool {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => {
                // No descriptor is left, for instance.
                thread::sleep(Duration::from_millis(20));
                return false;
            }
        };
        if is_permitted(&stream) {
            self.make_room();
            self.accepted += 1;
            self.clients.extend(ControlConnection::new(self.accepted, stream, &self.greeting, now));
            // The greeting is written at the next look.
            self.waker.wake();
        }
        true
    }

    fn make_room(&mut self) {
        if self.clients.len() < MOST_CLIENTS {
            return;
        }
        let still = self
            .clients
            .iter()
            .enumerate()
            .min_by_key(|(_, client)| (client.is_subscriber(), client.is_busy, client.moved));
        if let Some((place, _)) = still {
            self.clients.remove(place).bid_farewell(Dropped::Unfit("too many clients"));
        }
    }
}

/// What a poll has found.
struct Ready {
    connects: bool,
    woken: bool,
    /// For each client.
    clients: Vec<bool>,
}

/// Only the user of the recording process, and root.
fn is_permitted(stream: &UnixStream) -> bool {
    // SAFETY: no arguments, cannot fail.
    let own = unsafe { libc::geteuid() };
    peer(stream).is_ok_and(|peer| peer.uid == own || peer.uid == 0)
}
