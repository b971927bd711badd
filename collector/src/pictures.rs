//! Pictures of a process's objects, at the moments for which they were asked: its end, marks, new maxima of resident memory.
//!
//! Who reads them is passed in as a [`PictureReader`], since the collector knows no interpreter. Reading takes a while, so it
//! has a thread of its own, which is started with the first picture. At its end the process waits for it, and then for its account of
//! resident memory, which releases it; at other moments the
//! reader makes it stand still, asks for the moment's ticket, and lets it go on as soon as it can.
//!
//! Invariant: a picture has a tick that was taken while its process stood still.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use memtrack_format::objects::PictureCause;
use memtrack_format::observe::Tick;
use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::layout::account_request;
use memtrack_transport::{Area, futex};

use crate::sink::sink_queue::SinkQueue;

/// Orders that wait at most: of marks that follow one another quickly.
const MOST_ORDERS: usize = 64;
/// How long a process stands still until its moment has a ticket.
const MOMENT_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of a recording waits for pictures, and how long between looks.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(1);
/// A new maximum is this part, and these bytes, above the last one that was pictured.
const GROWTH_PART: u64 = 20;
const LEAST_GROWTH: u64 = 1 << 20;
/// Reading pictures of maxima takes at most this part of the time, and there is this much between two.
const TIME_PART: u64 = 2;
const LEAST_PAUSE_NS: u64 = 100_000_000;

/// A picture that is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureRequest {
    /// The process.
    pub pid: i32,
    /// Why.
    pub cause: PictureCause,
    /// The mark's name; empty for other causes.
    pub mark: String,
    /// Resident memory, in bytes; 0: unknown.
    pub resident: u64,
    /// Whether the thread that executes the interpreter waits, so that the process need not be made to stand still.
    pub waits: bool,
    /// Whether the process runs on afterwards.
    pub runs_on: bool,
}

/// Makes the payloads of a picture that was read.
pub type EncodePicture = Box<dyn FnOnce() -> Vec<Vec<u8>> + Send>;

/// Reads the objects of processes.
pub trait PictureReader: fmt::Debug + Send + Sync {
    /// A picture, whose payloads are made when its process runs again. `moment` is to be called while the process stands still, for the time of the picture; it is
    /// `None` where the process has ended.
    ///
    /// # Errors
    /// Why there is no picture, for the user.
    fn read(
        &self,
        request: &PictureRequest,
        moment: &mut (dyn FnMut() -> Option<u64> + Send),
    ) -> Result<EncodePicture, String>;
}

/// When pictures are taken, and by whom.
#[derive(Clone, Debug)]
pub struct PictureOptions {
    /// When the interpreter finalizes, or the process ends without that.
    pub at_end: bool,
    /// At new maxima of resident memory; the last one is kept.
    pub at_peak: bool,
    /// At marks of these names.
    pub at_marks: Vec<String>,
    /// Reads them.
    pub reader: Arc<dyn PictureReader>,
}

/// An order to the reading thread.
#[derive(Debug)]
struct PictureOrder {
    request: PictureRequest,
    /// The moment, if the process waits.
    tick: Option<Tick>,
    /// The one who has set a mark, and what it is told once the process stands still.
    marked: Option<(Sender<Option<u64>>, u64)>,
}

/// What it tells.
#[derive(Debug)]
enum PictureStep {
    /// A picture was read, or cannot be: its process need not stand still any longer.
    Read,
    Encoded(PictureAnswer),
}

/// What it has read.
#[derive(Debug)]
struct PictureAnswer {
    cause: PictureCause,
    ticket: u64,
    payloads: Result<Vec<Vec<u8>>, String>,
    cost_ns: u64,
}

/// The reading thread.
#[derive(Debug)]
struct PictureWorker {
    orders: Sender<PictureOrder>,
    steps: Receiver<PictureStep>,
    /// Its process stands still, and it wants a tick.
    moments: Receiver<Sender<Tick>>,
}

/// Orders pictures of one process image and passes them on.
#[derive(Debug)]
pub(crate) struct PictureScheduler {
    options: Option<PictureOptions>,
    pid: i32,
    area: Arc<Area>,
    thread: Option<PictureWorker>,
    outstanding: usize,
    /// Those of them that were not read yet.
    unread: usize,
    /// The process waits for one of those.
    holds: bool,
    /// That of the end was ordered.
    has_end: bool,
    /// Who waits for it, before the recording of a process ends that runs on; dropped when it was read.
    told_of_end: Option<Sender<()>>,
    /// The process has come to its end: what it frees from now on is no matter of its own.
    is_ending: bool,
    /// Resident memory at the last picture of a maximum, and that picture, until there is another.
    most: u64,
    peak: Option<(Vec<Vec<u8>>, u64)>,
    begun_ns: u64,
    last_ns: u64,
    spent_ns: u64,
    /// The marks that were set of those that are to have a picture.
    marked: Vec<String>,
    /// Why a picture is missing, of each cause once.
    errors: Vec<(PictureCause, String)>,
}

impl PictureScheduler {
    pub(crate) fn new(options: Option<PictureOptions>, pid: i32, area: &Arc<Area>, now: u64) -> Self {
        Self {
            options,
            pid,
            area: Arc::clone(area),
            thread: None,
            outstanding: 0,
            unread: 0,
            holds: false,
            has_end: false,
            told_of_end: None,
            is_ending: false,
            most: 0,
            peak: None,
            begun_ns: now,
            last_ns: now,
            spent_ns: 0,
            marked: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Whether the process waits until its objects are read.
    pub(crate) fn holds(&self) -> bool {
        self.holds
    }

    /// Whether the process has come to its end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Whether a process that has come to its end is to wait for a picture that was not ordered.
    pub(crate) fn come_first(&self) -> bool {
        let is_missing =
            |options: &PictureOptions| options.at_end && !self.has_end || options.at_peak && !self.is_ending;
        self.options.as_ref().is_some_and(is_missing)
    }

    /// Why a picture is due now.
    pub(crate) fn due(&mut self, now: u64, resident: u64) -> Option<PictureCause> {
        let options = self.options.as_ref()?;
        let request = self.area.control().account_request.load(Acquire);
        let waits = [account_request::AT_END, account_request::AT_FINALIZATION].contains(&request);
        if options.at_end && waits && !self.has_end {
            return Some(PictureCause::End);
        }
        if self.is_ending {
            return None;
        }
        self.is_ending = waits;
        let has_grown = resident > self.most.saturating_add((self.most / GROWTH_PART).max(LEAST_GROWTH));
        let is_affordable = self.spent_ns.saturating_mul(TIME_PART) <= now.saturating_sub(self.begun_ns)
            && now.saturating_sub(self.last_ns) >= LEAST_PAUSE_NS;
        // While it waits at its end, nothing is lost by another one.
        let is_peak = options.at_peak && has_grown && (waits || self.outstanding == 0 && is_affordable);
        is_peak.then_some(PictureCause::Peak)
    }

    /// Orders one for which the process waits (`tick`), or is made to stand still.
    pub(crate) fn order(&mut self, cause: PictureCause, tick: Option<Tick>, resident: u64) {
        let finalizes = self.area.control().account_request.load(Acquire) == account_request::AT_FINALIZATION;
        self.holds |= tick.is_some();
        if cause == PictureCause::End {
            self.has_end = true;
        } else {
            (self.most, self.last_ns) = (resident, monotonic_ns());
        }
        let waits = tick.is_some() && finalizes;
        let runs_on = cause != PictureCause::End;
        let request = PictureRequest { pid: self.pid, cause, mark: String::new(), resident, waits, runs_on };
        self.send(PictureOrder { request, tick, marked: None });
    }

    /// Orders one for a mark, if it has a name for which there is to be one. Whoever has set the mark is told its time as
    /// soon as the process stands still.
    pub(crate) fn mark(&mut self, name: &str, resident: u64, answer: Sender<Option<u64>>, time_ns: u64) {
        let is_wanted = self.options.as_ref().is_some_and(|options| options.at_marks.iter().any(|mark| mark == name));
        if !is_wanted {
            // The one who asked may have lost patience.
            let _ = answer.send(Some(time_ns));
            return;
        }
        if !self.marked.iter().any(|mark| mark == name) {
            self.marked.push(name.to_owned());
        }
        let (pid, cause, mark) = (self.pid, PictureCause::Mark, name.to_owned());
        let request = PictureRequest { pid, cause, mark, resident, waits: false, runs_on: true };
        self.send(PictureOrder { request, tick: None, marked: Some((answer, time_ns)) });
    }

    /// Orders that of the end, if there is to be one, although the process runs on. Who asks is told when it was read: the
    /// sender is dropped.
    pub(crate) fn end_of_recording(&mut self, resident: u64, answer: Sender<()>) {
        if self.has_end || self.options.as_ref().is_none_or(|options| !options.at_end) {
            return;
        }
        (self.has_end, self.told_of_end) = (true, Some(answer));
        let (pid, cause, mark) = (self.pid, PictureCause::End, String::new());
        let request = PictureRequest { pid, cause, mark, resident, waits: false, runs_on: true };
        self.send(PictureOrder { request, tick: None, marked: None });
    }

    fn send(&mut self, order: PictureOrder) {
        if self.thread.is_none()
            && let Some(options) = &self.options
        {
            self.thread = start(Arc::clone(&options.reader), Arc::clone(&self.area)).ok();
        }
        let cause = order.request.cause;
        if self.thread.as_ref().is_some_and(|thread| thread.orders.try_send(order).is_ok()) {
            (self.outstanding, self.unread) = (self.outstanding + 1, self.unread + 1);
        } else {
            self.fails(cause, "too many were asked for at once, or there was no thread for it".into());
            self.told_of_end.take_if(|_| cause == PictureCause::End);
            self.holds &= self.unread > 0;
        }
    }

    /// Passes pictures on that were read, and gives the moments of those that are read their ticks.
    pub(crate) fn round(&mut self, mut tick: impl FnMut() -> Tick, queue: &SinkQueue) {
        let Some(thread) = &self.thread else { return };
        while let Ok(moment) = thread.moments.try_recv() {
            // It waits for it, but not for ever.
            let _ = moment.send(tick());
        }
        let steps: Vec<PictureStep> = thread.steps.try_iter().collect();
        for step in steps {
            let PictureStep::Encoded(PictureAnswer { cause, ticket, payloads, cost_ns }) = step else {
                self.unread -= 1;
                self.holds &= self.unread > 0;
                continue;
            };
            self.outstanding -= 1;
            match payloads {
                Ok(payloads) if cause == PictureCause::Peak => {
                    self.spent_ns = self.spent_ns.saturating_add(cost_ns);
                    self.last_ns = monotonic_ns();
                    self.peak = Some((payloads, ticket));
                }
                Ok(payloads) => payloads.into_iter().for_each(|payload| queue.objects(payload, ticket)),
                Err(reason) => self.fails(cause, reason),
            }
            self.told_of_end.take_if(|_| cause == PictureCause::End);
        }
    }

    fn fails(&mut self, cause: PictureCause, reason: String) {
        self.errors.retain(|(of, _)| *of != cause);
        self.errors.push((cause, reason));
    }

    /// Waits for pictures that are outstanding, and passes on that of the last maximum.
    pub(crate) fn end(&mut self, mut tick: impl FnMut() -> Tick, queue: &SinkQueue) {
        let begun = Instant::now();
        while self.outstanding > 0 && begun.elapsed() < LAST_PATIENCE {
            self.round(&mut tick, queue);
            std::thread::sleep(LOOK);
        }
        if let Some((payloads, ticket)) = self.peak.take() {
            // An earlier try, before the interpreter was there, does not matter then.
            self.errors.retain(|(cause, _)| *cause != PictureCause::Peak);
            payloads.into_iter().for_each(|payload| queue.objects(payload, ticket));
        } else if self.options.as_ref().is_some_and(|options| options.at_peak) && self.errors.is_empty() {
            self.fails(PictureCause::Peak, "the program ended too soon".into());
        }
        if self.options.as_ref().is_some_and(|options| options.at_end) && !self.has_end {
            let reason =
                "it was killed, has a filter of system calls, or ended without an exit that memtrack could see";
            self.fails(PictureCause::End, reason.into());
        }
    }

    /// Why pictures are missing, for whoever looks for them in the capture.
    pub(crate) fn missing(&self) -> Option<String> {
        let of_error = |(cause, reason): &(PictureCause, String)| format!("{}: {reason}", when(*cause));
        let mut all: Vec<String> = self.errors.iter().map(of_error).collect();
        let marks = self.options.iter().flat_map(|options| &options.at_marks);
        all.extend(marks.filter(|mark| !self.marked.contains(*mark)).map(|mark| format!("no mark '{mark}' was set")));
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Takes out a message for the user about a picture that is missing.
    pub(crate) fn take_warning(&mut self) -> Option<String> {
        let (cause, reason) = self.errors.pop()?;
        Some(format!("process {}: its objects {} could not be read: {reason}", self.pid, when(cause)))
    }
}

fn when(cause: PictureCause) -> &'static str {
    match cause {
        PictureCause::End => "at the end",
        PictureCause::Peak => "at the peak",
        PictureCause::Mark => "at a mark",
    }
}

fn start(reader: Arc<dyn PictureReader>, area: Arc<Area>) -> io::Result<PictureWorker> {
    let (orders, inbox) = bounded::<PictureOrder>(MOST_ORDERS);
    let (tell, steps) = unbounded();
    let (ask, moments) = bounded::<Sender<Tick>>(1);
    let read = move || {
        inbox.iter().all(|order| {
            let tell = |step| {
                let is_told = tell.send(step).is_ok();
                wake(&area);
                is_told
            };
            let encoded = answer(&*reader, order, &ask, &area, || tell(PictureStep::Read));
            tell(PictureStep::Encoded(encoded))
        });
    };
    std::thread::Builder::new().name("memtrack-object".into()).spawn(read)?;
    Ok(PictureWorker { orders, steps, moments })
}

/// `tell_read` is called when the process need not stand still any longer.
fn answer(
    reader: &dyn PictureReader,
    order: PictureOrder,
    ask: &Sender<Sender<Tick>>,
    area: &Area,
    tell_read: impl FnOnce() -> bool,
) -> PictureAnswer {
    let PictureOrder { request, tick, mut marked } = order;
    let begun = monotonic_ns();
    let mut taken = tick;
    let mut moment = || {
        taken = taken.or_else(|| {
            let (answer, answered) = bounded(1);
            ask.try_send(answer).ok()?;
            wake(area);
            answered.recv_timeout(MOMENT_PATIENCE).ok()
        });
        if let Some((answer, time_ns)) = marked.take() {
            // The one who asked may have lost patience.
            let _ = answer.send(Some(time_ns));
        }
        taken.map(|tick| tick.time_ns)
    };
    let read = reader.read(&request, &mut moment);
    tell_read();
    if let Some((answer, time_ns)) = marked {
        let _ = answer.send(Some(time_ns));
    }
    let payloads = read.map(|encode| encode());
    let cost_ns = monotonic_ns().saturating_sub(begun);
    PictureAnswer { cause: request.cause, ticket: taken.map_or(0, |tick| tick.ticket), payloads, cost_ns }
}

/// Wakes the draining thread, as the process itself does.
fn wake(area: &Area) {
    let sleeping = &area.control().sleeping.0;
    if sleeping.swap(0, SeqCst) != 0 {
        futex::wake(sleeping);
    }
}
