//! What resident memory would be with another allocator, or with other settings of it: the calls of the capture are made
//! again, by a process that does nothing else, with the allocator of the recording and with the other one.
//!
//! Invariant: a figure is the difference of two processes that made the same calls in the same order, so that what a rerun
//! does not know (which pages were never written to, what Python maps itself) is in none.

pub(crate) mod result;
mod setting;
pub(crate) mod step;

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use memtrack_collector::control_groups::memory_left;
use memtrack_format::resident::ResidentAccount;
use memtrack_reader::resident::{HeapCall, HeapCalls, ThreadEnds, allocator_file};
use memtrack_reader::source::{CaptureReader, Consumer, ReadSummary};
use memtrack_reader::{Thread, ThreadId};

use crate::reports::resident::{SettingResult, WhatIf};
use crate::terminal::Progress;
use crate::units::size;
use result::RerunResult;
use setting::Pace;
pub(crate) use setting::Setting;

/// Parts of the memory that is left which a rerun may take.
const MOST_MEMORY_PERCENT: u64 = 80;

/// Makes the calls again with each setting: up to the moment of the account, or all of them, of which the most that is resident
/// counts. `live`: the bytes that are live at once.
///
/// # Errors
/// A capture of samples, too little memory, an allocator that is not there, or a rerun that fails.
pub(crate) fn measure(
    file: &CaptureReader,
    account: &ResidentAccount,
    at_peak: bool,
    live: u64,
    settings: &[Setting],
) -> Result<WhatIf> {
    ensure!(file.sample_bytes().is_none(), "--what-if needs every allocation: this capture has samples of them");
    check_memory(live)?;
    let mut ends = ThreadEnds::default();
    let read = read(file, &mut ends)?;
    let alive = account.threads.iter().map(|thread| thread.tid).collect();
    let ends = ends.without(&read.threads, &alive);
    let until_ns = if at_peak { u64::MAX } else { file.account_ns(account) };
    let pace = Pace::of(if at_peak { ends.last_ns() } else { until_ns });
    let main = main_thread(&read.threads, file);
    let source = RerunSource { file, until_ns, ends, main, pace };
    let own = allocator_file(account).map(|path| OsStr::from_bytes(path).to_owned());
    let as_recorded = source.rerun(&Setting::of_recording(own))?.resident;
    // What the program has loaded is resident anyhow, as is what each rerun has.
    let is_known =
        |path: &str| as_recorded.files.contains_key(path) || account.paths.iter().any(|known| known == path.as_bytes());
    let mut results = Vec::new();
    for setting in settings {
        let RerunResult { resident, file } = source.rerun(setting)?;
        let bytes = resident.bytes(at_peak, |path| !is_known(path));
        let library = Some(file).filter(|file| !is_c_library(file));
        results.push(SettingResult { setting: setting.to_string(), library, bytes });
    }
    Ok(WhatIf { as_recorded: as_recorded.bytes(at_peak, |_| false), results })
}

fn read(file: &CaptureReader, consumer: &mut impl Consumer) -> Result<ReadSummary> {
    let mut progress = Progress::new(file.total_record_bytes(), "running again");
    Ok(file.read(consumer, |bytes| progress.add(bytes))?)
}

/// Refuses a rerun that would take the memory of other processes.
fn check_memory(live: u64) -> Result<()> {
    let available = memory_left();
    if live > available / 100 * MOST_MEMORY_PERCENT {
        bail!(
            "--what-if allocates what the program did, {} at once, and there is room for {}: use a machine with more memory",
            size(live),
            size(available)
        );
    }
    Ok(())
}

/// The thread in which the process began.
fn main_thread(threads: &[Thread], file: &CaptureReader) -> Option<ThreadId> {
    let pid = file.process().pid?;
    (0..).zip(threads).find(|(_, thread)| i64::from(thread.tid) == i64::from(pid)).map(|(number, _)| ThreadId(number))
}

/// What is rerun.
struct RerunSource<'a> {
    file: &'a CaptureReader,
    until_ns: u64,
    ends: ThreadEnds,
    main: Option<ThreadId>,
    pace: Pace,
}

impl RerunSource<'_> {
    /// What is resident after a rerun.
    fn rerun(&self, setting: &Setting) -> Result<RerunResult> {
        let mut unavailable = None;
        for library in setting.libraries() {
            match self.rerun_with(setting, library.as_deref())? {
                Ok(result) => return Ok(result),
                Err(text) => unavailable = unavailable.or(Some(text)),
            }
        }
        bail!("--what-if {setting}: {}", unavailable.unwrap_or_else(|| "no such allocator".into()))
    }

    /// The same with one library; the inner error says that it is not there.
    fn rerun_with(&self, setting: &Setting, library: Option<&OsStr>) -> Result<Result<RerunResult, String>> {
        let program = std::env::current_exe().context("cannot determine the path of the memtrack executable")?;
        let mut command = Command::new(program);
        command.arg("rerun-heap").env_remove("LD_PRELOAD").envs(self.pace.environment());
        command.envs(setting.environment().map(|(name, value)| (name, self.pace.with(name, value))));
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.context("cannot start the rerun")?;
        let input = child.stdin.take().context("the rerun has no input")?;
        let sent = self.send(input, library.is_some().then_some(self.pace));
        let output = child.wait_with_output().context("cannot wait for the rerun")?;
        let messages = String::from_utf8_lossy(&output.stderr);
        // The dynamic loader says what it cannot load, and goes on without.
        if let Some((_, reason)) = messages.split_once("cannot be preloaded (") {
            let reason = reason.split_once(')').map_or(reason, |(reason, _)| reason);
            return Ok(Err(format!("{} cannot be loaded: {reason}", library.unwrap_or_default().display())));
        }
        let Ok(result) = serde_json::from_slice::<RerunResult>(&output.stdout) else {
            sent?;
            bail!("the rerun with {setting} has failed ({}): {}", output.status, messages.trim());
        };
        if library.is_some() && is_c_library(&result.file) {
            return Ok(Err(format!("{} has no malloc", library.unwrap_or_default().display())));
        }
        Ok(Ok(result))
    }

    /// Sends the calls to a rerun, which has ended by itself where that fails.
    fn send(&self, input: impl Write, pace: Option<Pace>) -> Result<()> {
        let mut out = BufWriter::with_capacity(1 << 16, input);
        let mut sent = Ok(());
        let main = self.main;
        let sink = |call| {
            let call = match call {
                HeapCall::Thread(thread) => HeapCall::Thread(turn(thread, main)),
                HeapCall::Time(time_ns) => match pace {
                    Some(pace) => HeapCall::Time(pace.scaled(time_ns)),
                    None => return,
                },
                call => call,
            };
            if sent.is_ok() {
                sent = out.write_all(&step::encode(call));
            }
        };
        let mut calls = HeapCalls::new(self.until_ns, self.ends.clone(), sink);
        read(self.file, &mut calls)?;
        let _ = calls.finish();
        sent.and_then(|()| out.flush()).context("the rerun has ended early")
    }
}

/// The number of a thread in the rerun, where the main thread is 0.
fn turn(thread: ThreadId, main: Option<ThreadId>) -> ThreadId {
    match main {
        Some(main) if thread == main => ThreadId(0),
        Some(main) if thread < main => ThreadId(thread.0 + 1),
        Some(_) => thread,
        None => ThreadId(thread.0 + 1),
    }
}

/// Whether a file is the C library.
fn is_c_library(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"libc.so") || name.starts_with(b"libc-")
}
