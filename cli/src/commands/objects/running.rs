//! The objects of a running program: of a copy of it at one moment, joined with what was recorded of it, if it is recorded.
//!
//! Invariant: the program goes on as it was.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Once};

use anyhow::{Context, Result, bail};
use memtrack_collector::{RootDirectory, monotonic_ns};
use memtrack_format::objects::PictureHead;
use memtrack_inject::{CopyInUse, FreezeCost, ProcessView, freeze};
use memtrack_objects::{PictureDetail, PythonRuntime, read_objects};
use memtrack_reader::source::CaptureReader;
use signal_hook::low_level::emulate_default_handler;
use tempfile::NamedTempFile;

use super::{ObjectsRead, PictureOrigin, check_found, find_paths, join, read_picture};
use crate::args::objects::ObjectsArgs;
use crate::c_holders::{self, HolderSources};
use crate::control::recordings;
use crate::control::snapshot;
use crate::load::search;
use crate::message;
use crate::object_pictures::{reading_room, recorded_blocks};
use crate::other_root::SymbolRoot;
use crate::sys::EndSignals;
use crate::units::size;

/// For how long a fork takes: 17 to 22 ms for each GB, and more on a busy machine.
const PAUSE_PER_GB_MS: u64 = 20;
/// Bytes of memory for each byte of a page table: an entry of 8 bytes for a page.
const BYTES_PER_TABLE_BYTE: u64 = 512;

/// Reads them.
///
/// # Errors
/// The process may not be read or is no Python program, there is no object that was asked for, or no place where places were.
pub(super) fn read(options: &ObjectsArgs, pid: i32) -> Result<ObjectsRead> {
    let of_process = || format!("process {pid}");
    let view = ProcessView::of_running(pid).with_context(of_process)?;
    let runtime = PythonRuntime::find(&view).with_context(of_process)?;
    let detail = options.why.as_deref().map_or(PictureDetail::References, PictureDetail::PathsTo);
    let time_ns = AtomicU64::new(0);
    let ready = |view: &ProcessView| {
        // The program stands still: everything that it has recorded was recorded before this.
        time_ns.store(monotonic_ns(), Relaxed);
        runtime.is_at_rest(view)
    };
    let work = |view: &ProcessView, cost: FreezeCost| {
        let blocks = &mut || recorded_blocks(pid, time_ns.load(Relaxed));
        (read_objects(view, &runtime, detail, blocks, reading_room(cost)), cost)
    };
    tell_cost(options, pid);
    let in_use = copy_ended_by_signals();
    let (picture, cost) = freeze(pid, options.hold, in_use, &ready, work).with_context(of_process)?;
    let pause_ns = u64::try_from(cost.pause.as_nanos()).unwrap_or(u64::MAX);
    let moment = PictureOrigin::Running { pause_ns: cost.is_copied.then_some(pause_ns) };
    let mut read = read_picture(options, &picture, moment);
    // Who is asked for a path only wants to know who allocated the blocks in which pointers lie.
    let needs_blocks = |wanted: &String| c_holders::has_blocks(&picture, &picture.find(wanted));
    let recorded =
        if options.why.as_ref().is_none_or(needs_blocks) { recorded(pid, options.asks_who_made())? } else { None };
    let head = PictureHead { time_ns: time_ns.into_inner(), ..PictureHead::default() };
    let roots = RootDirectory::of_process(pid).map(SymbolRoot);
    let search = roots.into_iter().fold(search(&[]), |search, root| search.with_root(Arc::new(root)));
    let sources = HolderSources { search: &search, recorded: recorded.as_ref().map(|(file, _copy)| (file, &head)) };
    find_paths(options, &mut read, &picture, sources)?;
    check_found(options, &read, &of_process())?;
    if let Some((file, _copy)) = recorded.as_ref().filter(|_| options.why.is_none()) {
        join(&mut read, &picture, file, &head)?;
    }
    Ok(read)
}

/// Says beforehand what a picture costs the program.
fn tell_cost(options: &ObjectsArgs, pid: i32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_ascii_whitespace().next()?.parse().ok());
    let Some(resident) = kilobytes.map(|kilobytes: u64| kilobytes << 10) else { return };
    if options.hold {
        message::note(format_args!("process {pid} has {} resident, and stands still while it is read", size(resident)));
    } else {
        message::note(format_args!(
            "process {pid} has {} resident: it stands still for a few milliseconds and some {PAUSE_PER_GB_MS} ms for each GB, and its \
             copy takes a process and {} of page tables until it has been read",
            size(resident),
            size(resident / BYTES_PER_TABLE_BYTE)
        ));
    }
}

/// The place of the copy that is read: a signal that ends memtrack ends the copy first, of which an entry in the system's table of
/// processes would be left to the program otherwise.
fn copy_ended_by_signals() -> &'static CopyInUse {
    static IN_USE: CopyInUse = CopyInUse::new();
    static SIGNALS: Once = Once::new();
    // Once, since whoever handles a signal ends memtrack: of two one would not wait for what the other one does.
    SIGNALS.call_once(|| {
        if let Ok(signals) = EndSignals::take() {
            signals.end_with(|signal| {
                let _ended = IN_USE.end();
                let _ = emulate_default_handler(signal);
            });
        }
    });
    &IN_USE
}

/// What was recorded of the process so far, if it is being recorded: a copy in a file of its own, which goes with it.
fn recorded(pid: i32, is_needed: bool) -> Result<Option<(CaptureReader, NamedTempFile)>> {
    let found = recordings::of(u32::try_from(pid).ok());
    let read = match found {
        Ok(recording) => snapshot::copy_of(recording, pid),
        Err(_) if is_needed => {
            bail!(
                "process {pid} is not being recorded, so it is not known which places made its objects: record it with \
                 'memtrack run --trace-python-allocators'"
            )
        }
        Err(_) => return Ok(None),
    };
    match read {
        Err(error) if is_needed => Err(error),
        Err(error) => {
            message::warning(format_args!("no places: what was recorded of process {pid} cannot be read: {error:#}"));
            Ok(None)
        }
        Ok(recorded) => Ok(Some(recorded)),
    }
}
