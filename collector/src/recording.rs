//! The recording of one process: its draining thread, with the thread that feeds its sink.
//!
//! Every process has threads of its own, so that a busy one keeps no other waiting. Invariant: a recording that has
//! ended has handed over all it will.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::bounded;

use crate::bell::Bell;
use crate::collect::Collect;
use crate::event::{Event, Line};
use crate::options::Options;
use crate::output::Output;
use crate::sink::Sink;
use crate::summary::{Ended, Error, Summary};
use crate::tree::Tree;

/// Events that may wait for the draining thread.
const EVENTS: usize = 64;

/// A running recording.
#[derive(Debug)]
pub(crate) struct Recording {
    line: Line,
    thread: JoinHandle<Result<Summary, Error>>,
}

impl Recording {
    /// Starts one. With `by_itself` it ends when its process has, else when it is told to.
    pub(crate) fn start(
        options: Options,
        sink: Box<dyn Sink>,
        tree: Arc<Tree>,
        by_itself: bool,
    ) -> Result<Self, Error> {
        let (events, inbox) = bounded(EVENTS);
        let bell = Arc::new(Bell::default());
        let output = Output::start(sink).map_err(Error::Thread)?;
        let collect = Collect::new(options, inbox, Arc::clone(&bell), tree, output, by_itself);
        let thread = std::thread::Builder::new()
            .name("memtrack-drain".into())
            .spawn(move || collect.run())
            .map_err(Error::Thread)?;
        Ok(Self { line: Line::new(events, bell), thread })
    }

    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Ends it, if it has not ended by itself, and waits for it.
    pub(crate) fn finish(self, ended: Ended) -> Result<Summary, Error> {
        self.line.tell(Event::Finish(ended));
        self.thread.join().unwrap_or(Err(Error::Panicked))
    }
}
