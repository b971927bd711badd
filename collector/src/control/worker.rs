//! The thread that executes commands, started with the first one: the control thread goes on answering meanwhile.
//!
//! Invariant: commands are executed one after the other, at [`PACE`] or slower.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};

use super::handler::{CommandHandler, execute};
use super::protocol::{ControlAnswer, ControlCommand, ControlRequest};
use super::subscriber::{Subscriber, SubscriberQueue};
use super::wake::ControlWaker;

/// Time from the begin of one command to that of the next, when many wait.
const PACE: Duration = Duration::from_millis(1);
/// The same for those that make the collector write what it has.
const PACE_OF_SNAPSHOTS: Duration = Duration::from_millis(100);

/// An executed command.
#[derive(Debug)]
pub(super) struct Executed {
    /// The number of the client.
    pub(super) client: u64,
    pub(super) answer: ControlAnswer,
    /// For a command that subscribed its client.
    pub(super) subscription: Option<SubscriberQueue>,
}

/// Executes commands on a thread of its own.
pub(super) struct CommandWorker {
    handler: Arc<dyn CommandHandler>,
    waker: ControlWaker,
    /// `None` before the first command.
    commands: Option<Sender<(u64, ControlRequest)>>,
    executed: Arc<Mutex<Vec<Executed>>>,
    room: usize,
}

impl CommandWorker {
    /// `room`: most commands that wait at once.
    pub(super) fn new(handler: Arc<dyn CommandHandler>, waker: ControlWaker, room: usize) -> Self {
        Self { handler, waker, commands: None, executed: Arc::default(), room }
    }

    /// Queues the command of a client.
    pub(super) fn execute(&mut self, client: u64, request: ControlRequest) {
        let id = request.id;
        let sent = self.commands().and_then(|commands| {
            commands.try_send((client, request)).map_err(|_| io::Error::other("too many commands at once"))
        });
        if let Err(error) = sent {
            let error = format!("the command cannot be executed: {error}");
            let answer = ControlAnswer { id: Some(id), ok: None, error: Some(error) };
            self.put(Executed { client, answer, subscription: None });
        }
    }

    /// The commands that were executed since the last call.
    pub(super) fn take_executed(&self) -> Vec<Executed> {
        std::mem::take(&mut *self.executed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, executed: Executed) {
        self.executed.lock().unwrap_or_else(PoisonError::into_inner).push(executed);
        self.waker.wake();
    }

    fn commands(&mut self) -> io::Result<&Sender<(u64, ControlRequest)>> {
        if self.commands.is_none() {
            let (commands, inbox) = bounded::<(u64, ControlRequest)>(self.room);
            let worker = Self {
                handler: Arc::clone(&self.handler),
                waker: self.waker.clone(),
                commands: None,
                executed: Arc::clone(&self.executed),
                room: 0,
            };
            thread::Builder::new().name("memtrack-command".into()).spawn(move || {
                for (client, request) in inbox {
                    worker.run(client, request);
                }
            })?;
            self.commands = Some(commands);
        }
        self.commands.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn run(&self, client: u64, request: ControlRequest) {
        let begun = Instant::now();
        let ControlRequest { id, command } = request;
        let pace = if matches!(command, ControlCommand::Snapshot { .. }) { PACE_OF_SNAPSHOTS } else { PACE };
        let subscriber = Subscriber::new(self.waker.clone());
        let queue = matches!(command, ControlCommand::Live { .. }).then(|| subscriber.queue());
        let result = execute(self.handler.as_ref(), command, subscriber);
        let subscription = queue.filter(|_| result.is_ok());
        let (ok, error) = match result {
            Ok(value) => (Some(value), None),
            Err(text) => (None, Some(text)),
        };
        self.put(Executed { client, answer: ControlAnswer { id: Some(id), ok, error }, subscription });
        thread::sleep(pace.saturating_sub(begun.elapsed()));
    }
}
