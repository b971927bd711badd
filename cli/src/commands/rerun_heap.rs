//! `memtrack rerun-heap`: makes the calls of malloc, realloc and free that standard input holds, and says how much memory this
//! process then has.
//!
//! Each recorded thread is a thread here, since allocators keep caches and arenas by thread; they take turns, in the recorded
//! order. Invariant: only the thread whose turn it is makes calls, and nothing else allocates meanwhile, but for starting
//! threads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memtrack_reader::resident::HeapCall;

use crate::sys::{HeapBlocks, file_of_malloc};
use crate::what_if::result::{RerunMemory, RerunResult};
use crate::what_if::step::{STEP_BYTES, decode};

/// Stack of a thread: it calls the allocator only.
const STACK: usize = 256 << 10;
/// The turn when all calls were made.
const OVER: u32 = u32::MAX;

/// Makes the calls; prints what is resident then, and the file of the allocator.
///
/// # Errors
/// Memory or threads run out, or standard input holds something else.
pub(crate) fn run() -> Result<u8> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let state = State {
        blocks: HeapBlocks::new()?,
        steps: Steps { input, buffer: [0; 4096 * STEP_BYTES], read: 0, taken: 0 },
        begun: Instant::now(),
        workers: vec![Some(Worker { thread: thread::current(), handle: None })],
        ended: None,
        result: None,
    };
    let rerun = Arc::new(HeapRerun { state: Mutex::new(state), turn: AtomicU32::new(0) });
    work(&rerun, 0);
    let resident = rerun.with(|state| state.result.take()).context("the rerun has no result")??;
    let file = file_of_malloc().context("malloc is of no file")?;
    serde_json::to_writer(io::stdout(), &RerunResult { resident, file })?;
    Ok(0)
}

/// What the threads share.
struct HeapRerun {
    state: Mutex<State>,
    /// The thread that makes the calls.
    turn: AtomicU32,
}

struct State {
    blocks: HeapBlocks,
    steps: Steps,
    begun: Instant,
    workers: Vec<Option<Worker>>,
    /// A thread that is ending.
    ended: Option<JoinHandle<()>>,
    /// What is resident when all calls were made.
    result: Option<Result<RerunMemory>>,
}

struct Worker {
    thread: Thread,
    /// `None`: the main thread.
    handle: Option<JoinHandle<()>>,
}

/// What a thread does when its calls were made.
enum Next {
    /// Another one makes calls; this one may have ended.
    Turn {
        to: u32,
        has_ended: bool,
    },
    Over,
}

impl HeapRerun {
    fn with<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        access(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets another thread make calls.
    fn pass_to(self: &Arc<Self>, number: u32) -> Result<()> {
        let thread = self.with(|state| {
            let index = number as usize;
            if index >= state.workers.len() {
                state.workers.resize_with(index + 1, || None);
            }
            if let Some(worker) = &state.workers[index] {
                return Ok(worker.thread.clone());
            }
            let rerun = Arc::clone(self);
            let handle = thread::Builder::new().stack_size(STACK).spawn(move || work(&rerun, number))?;
            let thread = handle.thread().clone();
            state.workers[index] = Some(Worker { thread: thread.clone(), handle: Some(handle) });
            io::Result::Ok(thread)
        })?;
        self.turn.store(number, Release);
        thread.unpark();
        Ok(())
    }

    /// All calls were made, or could not be.
    fn end(&self, result: Result<RerunMemory>) {
        self.with(|state| {
            state.result = Some(result);
            self.turn.store(OVER, Release);
            state.workers.iter().flatten().for_each(|worker| worker.thread.unpark());
        });
    }
}

/// A thread: makes calls when it is its turn.
fn work(rerun: &Arc<HeapRerun>, me: u32) {
    loop {
        match rerun.turn.load(Acquire) {
            OVER => return,
            turn if turn != me => {
                thread::park();
                continue;
            }
            _ => {}
        }
        let next = rerun.with(|state| state.make_calls(me));
        let passed = match next {
            Ok(Next::Over) => return rerun.end(resident_memory()),
            Ok(Next::Turn { to, has_ended }) => rerun.pass_to(to).map(|()| has_ended),
            Err(error) => Err(error),
        };
        match passed {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => rerun.end(Err(error)),
        }
    }
}

impl State {
    /// Makes the calls up to those of another thread.
    fn make_calls(&mut self, me: u32) -> Result<Next> {
        if let Some(ended) = self.ended.take() {
            // Its caches are given back before the next call.
            drop(ended.join());
        }
        let mut has_ended = false;
        while let Some(call) = self.steps.next()? {
            match call {
                HeapCall::Allocate(block, bytes, function) => self.blocks.allocate(block, bytes, function)?,
                HeapCall::Reallocate(block, bytes) => self.blocks.reallocate(block, bytes)?,
                HeapCall::Free(block) => self.blocks.free(block)?,
                HeapCall::Thread(thread) if thread.0 == me => {}
                HeapCall::Thread(thread) => return Ok(Next::Turn { to: thread.0, has_ended }),
                HeapCall::ThreadEnd if me != 0 => {
                    self.ended = self.workers.get_mut(me as usize).and_then(Option::take).and_then(|one| one.handle);
                    has_ended = true;
                }
                HeapCall::ThreadEnd => {}
                HeapCall::Time(time_ns) => {
                    thread::sleep(Duration::from_nanos(time_ns).saturating_sub(self.begun.elapsed()));
                }
            }
        }
        Ok(Next::Over)
    }
}

/// The calls as they are read.
struct Steps {
    input: File,
    buffer: [u8; 4096 * STEP_BYTES],
    read: usize,
    taken: usize,
}

impl Steps {
    fn next(&mut self) -> Result<Option<HeapCall>> {
        while self.read - self.taken < STEP_BYTES {
            self.buffer.copy_within(self.taken..self.read, 0);
            (self.read, self.taken) = (self.read - self.taken, 0);
            match self.input.read(&mut self.buffer[self.read..]) {
                Ok(0) if self.read == 0 => return Ok(None),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => self.read += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let step = self.buffer[self.taken..].first_chunk().context("no step")?;
        self.taken += STEP_BYTES;
        decode(*step).context("not a step of a rerun").map(Some)
    }
}

/// What is resident of this process, and was at its most.
fn resident_memory() -> Result<RerunMemory> {
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    Ok(RerunMemory::of(&read("/proc/self/smaps")?, &read("/proc/self/status")?))
}
