//! Reads pictures of objects for recordings (`run --objects-at`): what the collector asks for, by what knows interpreters.
//!
//! Invariant: the moment of a picture is taken while its process stands still.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use memtrack_collector::control_groups::memory_left;
use memtrack_collector::{EncodePicture, PictureOptions, PictureReader, PictureRequest};
use memtrack_format::objects::{PictureHead, StoredPicture};
use memtrack_inject::{CopyInUse, FreezeCost, ProcessView, Refusal, freeze};
use memtrack_objects::{PictureDetail, PythonRuntime, ReadingRoom, encode_picture, read_objects};

use crate::control::{recordings, snapshot};
use crate::idle_processors::idle_among;
use crate::load::objects::blocks_at;
use crate::objects_moment::ObjectsMoment;
use crate::sys::{ResourceLimits, yield_in_part};

/// Threads that read objects side by side at most: one thread gives all of them their numbers.
const MOST_THREADS: usize = 4;

/// Of the memory that is left, one part in so many is kept of a process at most while its objects are read.
const KEPT_PARTS: u64 = 4;

/// When a recording takes pictures; `None`: never.
pub(crate) fn picture_options(moments: &[ObjectsMoment]) -> Option<PictureOptions> {
    let mark = |moment: &ObjectsMoment| match moment {
        ObjectsMoment::Mark(name) => Some(name.clone()),
        ObjectsMoment::End | ObjectsMoment::Peak => None,
    };
    (!moments.is_empty()).then(|| PictureOptions {
        at_end: moments.contains(&ObjectsMoment::End),
        at_peak: moments.contains(&ObjectsMoment::Peak),
        at_marks: moments.iter().filter_map(mark).collect(),
        reader: std::sync::Arc::new(CPythonPictures),
    })
}

/// Reads pictures of CPython processes.
#[derive(Debug)]
struct CPythonPictures;

type TakeMoment<'a> = &'a mut (dyn FnMut() -> Option<u64> + Send);

impl PictureReader for CPythonPictures {
    fn read(&self, request: &PictureRequest, moment: TakeMoment<'_>) -> Result<EncodePicture, String> {
        let view = ProcessView::of_running(request.pid).map_err(|error| error.to_string())?;
        let runtime = PythonRuntime::find(&view).map_err(|error| error.to_string())?;
        let picture = if request.waits {
            Ok(waiting(request.pid, &view, &runtime, moment))
        } else {
            stopped(request, &runtime, moment).map_err(|error| error.to_string())
        };
        let stored = picture?.ok_or("the process has ended")?;
        let head = PictureHead { time_ns: stored.head.time_ns, cause: request.cause, mark: request.mark.clone() };
        let stored = StoredPicture { head, resident: request.resident, ..stored };
        // Once it has ended, the program leaves its processors to what is left of its recording.
        let threads = if request.runs_on { 1 } else { idle_room().threads };
        Ok(Box::new(move || encode_picture(&stored, threads)))
    }
}

/// Of a process whose interpreter waits: it finalizes.
fn waiting(pid: i32, view: &ProcessView, runtime: &PythonRuntime, moment: TakeMoment<'_>) -> Option<StoredPicture> {
    let begun = Instant::now();
    let time_ns = moment()?;
    let blocks = &mut || recorded_blocks(pid, time_ns);
    let picture = read_objects(view, runtime, PictureDetail::Paths, blocks, idle_room()).into_stored();
    Some(stored(picture, time_ns, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)))
}

/// Of a process that runs: of a copy of it, or at its end of itself.
fn stopped(
    request: &PictureRequest,
    runtime: &PythonRuntime,
    moment: TakeMoment<'_>,
) -> Result<Option<StoredPicture>, Refusal> {
    let (moment, time_ns) = (Mutex::new(moment), Mutex::new(None));
    let note = || {
        let mut time_ns = time_ns.lock().unwrap_or_else(PoisonError::into_inner);
        if time_ns.is_none() {
            *time_ns = (moment.lock().unwrap_or_else(PoisonError::into_inner))();
        }
        *time_ns
    };
    let ready = |view: &ProcessView| {
        let is_ready = runtime.is_at_rest(view);
        if is_ready {
            note();
        }
        is_ready
    };
    let read = |view: &ProcessView, cost: FreezeCost| {
        let time_ns = note()?;
        let begun = Instant::now();
        let blocks = &mut || recorded_blocks(request.pid, time_ns);
        let picture = read_objects(view, runtime, PictureDetail::Paths, blocks, reading_room(cost)).into_stored();
        // Without a copy it stands still until it is read.
        let pause = if cost.is_copied { cost.pause } else { cost.pause + begun.elapsed() };
        Some(stored(picture, time_ns, u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX)))
    };
    let hold = !request.runs_on;
    // Signals end the recorded program, and memtrack after it.
    let in_use = CopyInUse::default();
    match freeze(request.pid, hold, &in_use, &ready, read) {
        // Where it may not start a process, it stands still for as long as it is read.
        Err(Refusal::Seccomp(..)) if !hold => freeze(request.pid, true, &in_use, &ready, read),
        done => done,
    }
}

/// What reading objects may take: of a copy, whose program runs beside it, the processors that have nothing to do. What begins to
/// run later has precedence over the threads that only read.
pub(crate) fn reading_room(cost: FreezeCost) -> ReadingRoom {
    let room = idle_room();
    if !cost.is_copied {
        return room;
    }
    let all = processors();
    let idle = idle_among(all);
    // One thread more gives objects their rows.
    let reading = if idle == all { idle } else { idle.saturating_sub(1).max(1) };
    ReadingRoom { threads: reading.min(room.threads), begin: yield_in_part, ..room }
}

/// What a program leaves to others while it stands still. Where address space or data are limited, nothing may be left for more
/// than what is needed.
fn idle_room() -> ReadingRoom {
    let limits = ResourceLimits::of(0);
    let is_limited = limits.address_space.is_some() || limits.data.is_some();
    let most_kept = if is_limited { 0 } else { memory_left() / KEPT_PARTS };
    // Where the address space is limited, a thread may have no room for its stack.
    let threads = if limits.address_space.is_some() { 1 } else { processors().min(MOST_THREADS) };
    ReadingRoom { threads, most_kept, begin: || {} }
}

/// Processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn stored(picture: StoredPicture, time_ns: u64, pause_ns: u64) -> StoredPicture {
    let head = PictureHead { time_ns, ..picture.head };
    StoredPicture { head, pause_ns, ..picture }
}

/// The blocks in use at a moment, by the recording that goes on; none where it does not know them.
pub(crate) fn recorded_blocks(pid: i32, time_ns: u64) -> Vec<(u64, u64)> {
    let head = PictureHead { time_ns, ..PictureHead::default() };
    let copied = recordings::of(u32::try_from(pid).ok()).and_then(|recording| snapshot::copy_of(recording, pid));
    let blocks = copied.and_then(|(file, _copy)| Ok(blocks_at(&file, &head)?.1.all().collect()));
    blocks.unwrap_or_default()
}
