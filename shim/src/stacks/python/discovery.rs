//! Finds the interpreter in this process and decides whether its structures are known.
//!
//! Invariant: an interpreter is published only after every check; all of this runs outside of hooks.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use super::current_state::CurrentThreadState;
use super::interpreter::{self, Interpreter};
use super::layout::Build;
use super::symbols::{OnLibrary, Symbols};
use super::unsupported::Unsupported;
use super::{frame_sentinels, layout_check, thread_specific};
use crate::platform::dladdr::function_at;

/// Set while one thread looks; cleared again if it finds nothing.
static LOOKING: AtomicBool = AtomicBool::new(false);
/// The verdict on what was found, as a number of [`Unsupported`]; 0 for none.
static REASON: AtomicU8 = AtomicU8::new(0);
static VERSION: AtomicU32 = AtomicU32::new(0);
/// The interpreter's version as `PY_VERSION_HEX`, whether or not its frames are read; 0 when none was found.
pub(crate) fn version_hex() -> u32 {
    VERSION.load(Ordering::Relaxed)
}

/// Why there are no Python frames although there is an interpreter, as a sentence.
pub(crate) fn reason() -> Option<&'static str> {
    let reason = REASON.load(Ordering::Relaxed);
    Unsupported::ALL.into_iter().find(|candidate| *candidate as u8 == reason).map(Unsupported::text)
}

/// Looks for an interpreter among the loaded objects, unless one was found when the process was recorded before. Call
/// it outside of hooks, when recording begins.
pub(crate) fn start(found: OnLibrary) {
    if let Some(python) = interpreter::interpreter() {
        return python.watch_deaths();
    }
    if version_hex() != 0 {
        return;
    }
    if !look(|| Symbols::find(found)) {
        REASON.store(Unsupported::without_interpreter().map_or(0, |reason| reason as u8), Ordering::Relaxed);
    }
}

/// Takes out of the interpreter what was put there; recording is off.
pub(crate) fn stop() {
    if let Some(python) = interpreter::interpreter() {
        python.unwatch_deaths();
    }
}

/// Looks again after a dlopen, unless an interpreter was found before. Call it outside of hooks.
///
/// `true`: one was found just now. Asks only libraries with an interpreter's name, which costs less than asking all.
pub(crate) fn after_dlopen(found: OnLibrary) -> bool {
    look(|| Symbols::of_local_libraries(found))
}

fn look(find: impl FnOnce() -> Option<Symbols>) -> bool {
    if LOOKING.swap(true, Ordering::AcqRel) {
        return false;
    }
    let found = find();
    if let Some(symbols) = &found {
        decide(symbols);
    }
    LOOKING.store(found.is_some(), Ordering::Release);
    found.is_some()
}

/// Publishes the interpreter or the reason against it.
fn decide(symbols: &Symbols) {
    let version = symbols.version();
    VERSION.store(version, Ordering::Relaxed);
    match known(symbols, version) {
        Ok((build, thread_state)) => {
            REASON.store(0, Ordering::Relaxed);
            publish(symbols, build, thread_state);
        }
        Err(reason) => REASON.store(reason as u8, Ordering::Relaxed),
    }
}

/// The build of an interpreter that passes every check.
fn known(symbols: &Symbols, version: u32) -> Result<(Build, thread_specific::SlotGetter), Unsupported> {
    const RELEASE_CANDIDATE: u32 = 0xc;
    let [major, minor, _, level] = version.to_be_bytes();
    // SAFETY: the runtime of that version.
    let is_free_threaded = unsafe { layout_check::is_free_threaded(minor, symbols.runtime) };
    let build =
        Build::find(minor, is_free_threaded).filter(|_| major == 3 && u32::from(level >> 4) >= RELEASE_CANDIDATE);
    let build = build.ok_or(Unsupported::Version)?;
    let Symbols { runtime, code_type, type_type, str_type, bytes_type, frame_type, .. } = *symbols;
    let all_there = ![runtime, code_type, type_type, str_type, bytes_type, frame_type].contains(&0);
    let thread_state = symbols.thread_state.filter(|_| all_there).ok_or(Unsupported::MissingSymbol)?;
    // SAFETY: the symbols were found under CPython's names, in one object or scope.
    unsafe { layout_check::check(build.layout(), symbols, version) }?;
    Ok((build, thread_state))
}

fn publish(symbols: &Symbols, build: Build, thread_state: thread_specific::SlotGetter) {
    let Symbols { code_type, str_type, frame_type, runtime, current, .. } = *symbols;
    let layout = build.layout();
    // SAFETY: the runtime and the function of a version that was checked.
    let current = unsafe { CurrentThreadState::new(layout.minor, runtime, frame_type, current) };
    let evaluation = function_at(symbols.evaluation);
    let found = Interpreter { layout, build, code_type, str_type, evaluation, thread_state, current };
    found.watch_deaths();
    if !layout.sentinel_kind.holds_for(symbols.version()) {
        frame_sentinels::forbid();
    }
    let finalizing = symbols.runtime.wrapping_add(layout.finalizing) as *mut AtomicUsize;
    interpreter::publish(found, finalizing);
}
