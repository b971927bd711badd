//! The objects of a running program: of a copy of it at one moment.
//!
//! Invariant: the program goes on as it was.

use anyhow::{Context, Result};
use memtrack_inject::{FreezeCost, ProcessView, freeze};
use memtrack_objects::{ObjectPicture, PictureDetail, PythonRuntime};

use super::{ObjectsRead, PictureOrigin, check_found, read_picture};
use crate::args::objects::ObjectsArgs;

/// Reads them.
///
/// # Errors
/// The process may not be read or is no Python program, or there is no object that was asked for.
pub(super) fn read(options: &ObjectsArgs, pid: i32) -> Result<ObjectsRead> {
    let of_process = || format!("process {pid}");
    let view = ProcessView::of_running(pid).with_context(of_process)?;
    let runtime = PythonRuntime::find(&view).with_context(of_process)?;
    let detail = options.why.as_deref().map_or(PictureDetail::References, PictureDetail::PathsTo);
    let work = |view: &ProcessView, cost: FreezeCost| {
        let pause_ns = u64::try_from(cost.pause.as_nanos()).unwrap_or(u64::MAX);
        let moment =
            PictureOrigin::Running { pause_ns: cost.is_copied.then_some(pause_ns), is_consistent: cost.was_ready };
        read_picture(options, &ObjectPicture::read(view, &runtime, detail), moment)
    };
    let read = freeze(pid, options.hold, &|view| runtime.is_at_rest(view), work).with_context(of_process)?;
    check_found(options, &read, &of_process())?;
    Ok(read)
}
