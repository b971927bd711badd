//! Loads memtrack's library into a process and calls it.
//!
//! The library comes through a memory file that is made in the target and filled from outside, and so does the memory that
//! both share. Invariant: when a function returns, no descriptor that it made is open in the target.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::address_space::Needed;
use crate::filter::{self, Permission, Purpose};
use crate::library_image;
use crate::maps::Mappings;
use crate::object::RemoteObject;
use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;
use crate::remote_call::RemoteThread;
use crate::stop::stop_safely;
use crate::target::{LoaderFunctions, TargetProcess};

/// How the thread that traces is called, and how long one of another memtrack is waited for.
const TRACER: &str = "memtrack-inject";
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);
/// How the files are called in /proc/PID/maps.
const LIBRARY_NAME: &[u8] = b"libmemtrack_shim.so\0";
const MEMORY_NAME: &[u8] = b"memtrack\0";
/// What the paths of the library contain.
const LIBRARY_PART: &[u8] = b"libmemtrack";
/// What the loader says where the process may have no more address space.
const NO_SPACE: [&str; 2] = ["failed to map segment", "cannot allocate memory"];
/// The longest text of the loader that is shown.
const MOST_TEXT: usize = 512;
/// A memory file that may be executed, for kernels that ask for this.
const MFD_EXEC: u64 = 0x10;

/// The memory file that the target shares with memtrack.
#[derive(Debug)]
pub struct SharedFile {
    /// The file, open for both.
    pub file: File,
    /// How often the function was called before, and refused the memory.
    pub attempt: usize,
}

/// The library in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoadedLibrary {
    attach: u64,
    detach: u64,
    /// Libraries of earlier versions have none of these.
    detach_abandoned: Option<u64>,
    restrict: Option<u64>,
}

/// Loads the library if it is not there, and calls `memtrack_attach` in it with shared memory that `share` prepares: it
/// returns the number of slots, or `None` to give up. It is called again with new memory as long as `retry` is true of the
/// function's result, which is to mean that the function left nothing in the process: where no further memory is prepared, a
/// library that was loaded for this is unloaded. Returns the last result.
///
/// # Errors
/// Why it was not done. If `share` was called, nobody uses its memory.
pub fn attach(
    pid: i32,
    image: &[u8],
    retry: &(dyn Fn(i32) -> bool + Sync),
    share: &mut (dyn FnMut(SharedFile) -> io::Result<Option<u32>> + Send),
) -> Result<i32, Refusal> {
    on_own_thread(|| {
        let target = inspect_untraced(pid)?;
        let mappings = target.mappings()?;
        let loader = target.loader_functions(&mappings).map_err(|refusal| target.unless_gone(refusal))?;
        let loaded = find(&target, &mappings)?;
        if loaded.is_none() && !target.has_path("/proc/self") {
            return Err(Refusal::NoProc);
        }
        let needed = if loaded.is_some() { Needed::to_call() } else { Needed::to_load(target.threads().len()) };
        needed.check(pid)?;
        with_thread(&target, Purpose::Begin, |thread, permission| {
            let (library, new) = match loaded {
                Some(library) => (library, None),
                None => load(&target, thread, loader, image).map(|(library, handle)| (library, Some(handle)))?,
            };
            if let Permission::Restricted(calls) = permission {
                let restrict = library.restrict.ok_or(Refusal::OtherVersion)?;
                thread.call("memtrack_restrict", restrict, [calls.into(), 0])?;
            }
            let (mut attempt, mut last) = (0, None);
            loop {
                match call_attach(&target, thread, library, attempt, share)? {
                    Some(result) if retry(result) => last = Some(result),
                    Some(result) => return Ok(result),
                    None => {
                        unload(thread, loader, new)?;
                        return last.ok_or_else(no_memory);
                    }
                }
                attempt += 1;
            }
        })
    })
}

fn no_memory() -> Refusal {
    Refusal::Own { what: "shared memory cannot be created", error: io::ErrorKind::OutOfMemory.into() }
}

/// Calls `memtrack_detach` in a process, and returns its result.
///
/// # Errors
/// Why it was not called.
pub fn detach(pid: i32) -> Result<i32, Refusal> {
    call_detach(pid, |library| library.detach)
}

/// The same by `memtrack_detach_abandoned`, so that a recording whose collector answers goes on.
///
/// # Errors
/// Why it was not called.
pub fn detach_abandoned(pid: i32) -> Result<i32, Refusal> {
    call_detach(pid, |library| library.detach_abandoned.unwrap_or(library.detach))
}

fn call_detach(pid: i32, function: fn(LoadedLibrary) -> u64) -> Result<i32, Refusal> {
    on_own_thread(|| {
        let target = inspect_untraced(pid)?;
        let library = find(&target, &target.mappings()?)?.ok_or(Refusal::NoLibrary)?;
        with_thread(&target, Purpose::End, |thread, _| {
            Ok(thread.call("memtrack_detach", function(library), [0, 0])? as i32)
        })
    })
}

/// Whether memtrack's library is loaded in the process.
///
/// # Errors
/// The process cannot be looked at.
pub fn find_library(pid: i32) -> Result<bool, Refusal> {
    let target = TargetProcess::inspect(pid)?;
    Ok(find(&target, &target.mappings()?)?.is_some())
}

/// The kernel lets go of everything that is traced when the tracing thread ends, however that happens.
pub(crate) fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T, Refusal> + Send) -> Result<T, Refusal> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(TRACER.into()).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| Refusal::Own { what: "a thread cannot be started", error })?;
        let panicked = || Refusal::Own { what: "internal error", error: io::ErrorKind::Other.into() };
        thread.join().unwrap_or_else(|_| Err(panicked()))
    })
}

/// The process, once no thread of it is traced. Waits for another memtrack, which traces it for a moment.
pub(crate) fn inspect_untraced(pid: i32) -> Result<TargetProcess, Refusal> {
    let begun = Instant::now();
    loop {
        let target = TargetProcess::inspect(pid).and_then(|target| check_threads(&target).map(|()| target));
        match target {
            Err(Refusal::Traced { name, .. }) if name == TRACER && begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// Refuses a process one of whose threads is traced.
fn check_threads(target: &TargetProcess) -> Result<(), Refusal> {
    for tid in target.threads() {
        if let Some((pid, name)) = ProcessFacts::read(tid).and_then(|facts| facts.tracer()) {
            return Err(Refusal::Traced { pid, name });
        }
    }
    Ok(())
}

fn with_thread<T>(
    target: &TargetProcess,
    purpose: Purpose,
    work: impl FnOnce(&mut RemoteThread<'_>, Permission) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let (stopped, late) = stop_safely(target)?;
    let permission = match filter::check(target, &stopped.tracee, purpose) {
        Ok(permission) => permission,
        Err(refusal) => {
            stopped.release();
            return Err(refusal);
        }
    };
    let mut thread = RemoteThread::begin(target, stopped, late)?;
    let result = work(&mut thread, permission);
    // What was called is done, whether the process has ended since or not.
    let restored = thread.finish();
    let result = result?;
    restored.map(|()| result)
}

/// The library in the process, if it is there.
fn find(target: &TargetProcess, mappings: &Mappings) -> Result<Option<LoadedLibrary>, Refusal> {
    let is_library = |path: &[u8]| path.windows(LIBRARY_PART.len()).any(|part| part == LIBRARY_PART);
    let Some(base) = mappings.iter().find(|mapping| mapping.offset == 0 && is_library(&mapping.path)) else {
        return Ok(None);
    };
    functions_at(target, base.start).map(Some)
}

fn functions_at(target: &TargetProcess, base: u64) -> Result<LoadedLibrary, Refusal> {
    let missing = || target.unless_gone(Refusal::OtherVersion);
    let object = RemoteObject::read(&target.memory, base).ok_or_else(missing)?;
    let exports = object.exports(&target.memory);
    let attach = exports.find(b"memtrack_attach").ok_or_else(missing)?;
    let detach = exports.find(b"memtrack_detach").ok_or_else(missing)?;
    let [detach_abandoned, restrict] =
        [&b"memtrack_detach_abandoned"[..], b"memtrack_restrict"].map(|name| exports.find(name));
    Ok(LoadedLibrary { attach, detach, detach_abandoned, restrict })
}

/// Loads the library; returns it with the loader's handle.
fn load(
    target: &TargetProcess,
    thread: &mut RemoteThread<'_>,
    loader: LoaderFunctions,
    image: &[u8],
) -> Result<(LoadedLibrary, u64), Refusal> {
    let descriptor = memory_file(thread, LIBRARY_NAME)?;
    let loaded = load_from(target, thread, loader, image, descriptor);
    close(thread, descriptor);
    loaded
}

fn load_from(
    target: &TargetProcess,
    thread: &mut RemoteThread<'_>,
    loader: LoaderFunctions,
    image: &[u8],
    descriptor: u64,
) -> Result<(LoadedLibrary, u64), Refusal> {
    let image = if loader.in_libc { Cow::Owned(library_image::without_libdl(image)) } else { Cow::Borrowed(image) };
    let written = open(target, descriptor).and_then(|mut file| file.write_all(&image));
    written.map_err(|error| Refusal::Own { what: "memtrack's library cannot be written", error })?;
    // Not the path that the program itself would use: the loader compares paths with those of loaded libraries.
    let path = thread.argument(format!("/proc/./self/fd/{descriptor}\0").as_bytes())?;
    let handle = thread.call("dlopen", loader.open, [path, loader.mode])?;
    if handle == 0 {
        let text = match loader.error {
            Some(function) => target.memory.text(thread.call("dlerror", function, [0, 0])?, MOST_TEXT),
            None => "it gave no reason".into(),
        };
        let is_full = NO_SPACE.iter().any(|part| text.contains(part));
        let full = is_full.then(|| Needed::to_load(target.threads().len()).check(target.pid).err()).flatten();
        return Err(full.unwrap_or(Refusal::NotLoaded(text)));
    }
    let library = find(target, &target.mappings()?)?.ok_or(Refusal::NoLibrary)?;
    Ok((library, handle))
}

/// Unloads the library again, if it was loaded for this.
fn unload(thread: &mut RemoteThread<'_>, loader: LoaderFunctions, handle: Option<u64>) -> Result<(), Refusal> {
    if let Some((close, handle)) = loader.close.zip(handle) {
        thread.call("dlclose", close, [handle, 0])?;
    }
    Ok(())
}

fn call_attach(
    target: &TargetProcess,
    thread: &mut RemoteThread<'_>,
    library: LoadedLibrary,
    attempt: usize,
    share: &mut (dyn FnMut(SharedFile) -> io::Result<Option<u32>> + Send),
) -> Result<Option<i32>, Refusal> {
    let descriptor = memory_file(thread, MEMORY_NAME)?;
    let failed = |error| Refusal::Own { what: "shared memory cannot be created", error };
    let slots = open(target, descriptor).and_then(|file| share(SharedFile { file, attempt })).map_err(failed);
    let result = match slots {
        Ok(Some(slots)) => thread.call("memtrack_attach", library.attach, [descriptor, slots.into()]).map(Some),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    close(thread, descriptor);
    Ok(result?.map(|result| result as i32))
}

/// Makes a memory file in the target.
fn memory_file(thread: &mut RemoteThread<'_>, name: &[u8]) -> Result<u64, Refusal> {
    let name = thread.argument(name)?;
    let mut make = |flags| thread.system_call("memfd_create", libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]);
    let flags = u64::from(libc::MFD_CLOEXEC);
    let made = match make(flags | MFD_EXEC) {
        // Older kernels do not know the flag.
        Err(Refusal::InTarget { error, .. }) if error.raw_os_error() == Some(libc::EINVAL) => make(flags),
        result => result,
    };
    made.map_err(|refusal| match refusal {
        Refusal::InTarget { error, .. } if error.raw_os_error() == Some(libc::EMFILE) => {
            Refusal::NoDescriptor(thread.pid())
        }
        refusal => refusal,
    })
}

/// Opens a descriptor of the target here.
fn open(target: &TargetProcess, descriptor: u64) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/{}/fd/{descriptor}", target.pid))
}

fn close(thread: &mut RemoteThread<'_>, descriptor: u64) {
    // It fails only if the process has ended.
    let _ = thread.system_call("close", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
}
