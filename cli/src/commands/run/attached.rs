//! The recording of a process that was started without memtrack, or dormant: begun and ended from outside.
//!
//! Invariant: however it ends, the process has been asked to restore everything before its capture is closed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use memtrack_collector::{
    AttachStatus, Collector, Error, Follower, ProcessExit, RecordedProcess, RecordingEnd, RecordingHandle,
    RecordingOptions, RecordingSummary,
};
use memtrack_inject::Refusal;

use super::children::Children;
use super::other_root::OtherRoot;
use super::private_directory::PrivateDirectory;
use super::{CaptureMode, handed_on, open, recording_options, room, sink};
use crate::args;
use crate::capture_file::CaptureFile;
use crate::control::recordings;
use crate::message;
use crate::shim;

/// How often a call is made that met another one, and the pause between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// A recording of a running process.
pub(super) struct AttachedRecording {
    pid: i32,
    collector: Collector,
    capture: CaptureFile,
    children: Children,
    /// Children are recorded, too.
    follows: bool,
    /// Where its files are.
    root: Option<OtherRoot>,
    /// Has the collector's socket.
    _private: Arc<PrivateDirectory>,
}

/// What remains of a recording that has ended.
pub(super) struct EndedRecording {
    pub(super) capture: CaptureFile,
    pub(super) summary: Result<RecordingSummary, Error>,
    pub(super) children: Children,
    pub(super) root: Option<OtherRoot>,
    /// How it has ended in the first process.
    pub(super) end: RecordingEnd,
}

impl AttachedRecording {
    /// Begins to record the process.
    ///
    /// # Errors
    /// Why it cannot be recorded; it is as it was then, and there is no capture.
    pub(super) fn begin(options: &args::RunArgs, pid: i32) -> Result<Self> {
        // Whatever forbids it is to be known before a file is made.
        memtrack_inject::find_library(pid).map_err(|refusal| refused(pid, &refusal))?;
        let image = library()?;
        room()?;
        let private = Arc::new(handed_on::directory_for(pid)?);
        let library = handed_on::library_for(pid, &private, &image, options.follow && !options.quiet);
        let how = RecordingOptions { library, ..recording_options(options) };
        let mut made = Self::open(options, how, pid, private, None)?;
        if let Err(error) = made.attach(&image) {
            made.discard();
            return Err(error);
        }
        made.has_begun();
        made.name();
        Ok(made)
    }

    /// Opens the capture of a process, and waits for it to be given memory. In the directory there is no other recording. `follower`:
    /// what looks at the records of this process, too.
    ///
    /// # Errors
    /// There is no capture then.
    pub(super) fn open(
        options: &args::RunArgs,
        how: RecordingOptions,
        pid: i32,
        private: Arc<PrivateDirectory>,
        follower: Option<Arc<dyn Follower>>,
    ) -> Result<Self> {
        let children = Children::default();
        let (capture, file) = open(options, &children)?;
        let mode = CaptureMode::of(options);
        let unwritable = || format!("{}: the capture cannot be written", capture.path().display());
        let started = sink(mode, file, follower).with_context(unwritable).and_then(|sink| {
            Ok(if options.follow {
                Collector::start_following(private.path(), how, sink, children.opener(mode))?
            } else {
                Collector::start(private.path(), how, sink)?
            })
        });
        let collector = match started {
            Ok(collector) => collector,
            Err(error) => {
                capture.discard();
                children.put_back();
                return Err(error);
            }
        };
        if options.follow {
            crate::sys::raise_descriptor_limit();
        }
        // First: until then whatever connects may become the first process.
        collector.expect_given(pid);
        handed_on::admit_user(&private, collector.socket_path(), pid);
        let root = OtherRoot::of_process(pid);
        Ok(Self { pid, collector, capture, children, follows: options.follow, root, _private: private })
    }

    /// Gives the process memory in a file that it shares; returns the number of slots. `None`: there is no further
    /// number to try. `ready` is called with that number as soon as the process may use it.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(super) fn give(&self, file: &File, attempt: usize, ready: &mut dyn FnMut(u32)) -> io::Result<Option<u32>> {
        self.collector.give(self.pid, file.as_fd(), attempt, ready)
    }

    /// The process records: what its captures replace is gone.
    pub(super) fn has_begun(&mut self) {
        self.capture.has_begun();
        self.children.has_begun();
    }

    /// The process does not record: removes the capture, or puts back what it was to replace.
    pub(super) fn discard(self) {
        let _ = self.collector.finish(RecordingEnd::Detached);
        self.capture.discard();
        self.children.put_back();
    }

    /// Gives the captures their names, if none was chosen.
    pub(super) fn name(&mut self) {
        let named = self.capture.name(|| program_name(self.pid), self.pid);
        if self.follows {
            self.children.name(self.capture.path());
        } else {
            self.children.name_alone(self.capture.path());
        }
        if let Err(error) = named {
            message::error(format_args!("{error:#}; the capture is {}", self.capture.path().display()));
        }
    }

    fn attach(&self, image: &[u8]) -> Result<()> {
        let other_slots = |number| {
            let status = AttachStatus::from_number(number);
            matches!(status, Some(AttachStatus::NotMapped | AttachStatus::OtherSlotCount))
        };
        let mut was_put_back = false;
        for _ in 0..TRIES {
            let give = &mut |shared: memtrack_inject::SharedFile| self.give(&shared.file, shared.attempt, &mut |_| ());
            let number = memtrack_inject::attach(self.pid, image, &other_slots, give);
            match AttachStatus::from_number(number.map_err(|refusal| refused(self.pid, &refusal))?) {
                Some(AttachStatus::Done) => return Ok(()),
                Some(AttachStatus::Busy) => std::thread::sleep(PAUSE),
                Some(AttachStatus::AlreadyRecorded) if !was_put_back && self.put_back() => was_put_back = true,
                Some(AttachStatus::AlreadyRecorded) if recordings::of(Some(self.pid.cast_unsigned())).is_err() => {
                    bail!(recorded_by_others(self.pid))
                }
                Some(AttachStatus::AlreadyRecorded) => bail!(
                    "process {} is already being recorded: 'memtrack ps' shows it. 'memtrack detach' ends what 'memtrack attach' \
                     began, and 'memtrack stop' what 'memtrack start' did; a recording of 'memtrack run' ends with its program",
                    self.pid
                ),
                status => bail!("process {} cannot be recorded: {}", self.pid, text(status)),
            }
        }
        bail!("process {} cannot be recorded: {}", self.pid, AttachStatus::Busy.text())
    }

    /// Puts the process back, if the recorder of an earlier recording of it was killed; returns whether it did.
    fn put_back(&self) -> bool {
        let is_known = recordings::of(u32::try_from(self.pid).ok()).is_ok();
        !is_known && restore(self.pid).unwrap_or(false)
    }

    /// Its path.
    pub(super) fn capture(&self) -> &Path {
        self.capture.path()
    }

    /// The captures of all its processes.
    pub(super) fn children(&self) -> &Children {
        &self.children
    }

    /// Access for the control socket.
    pub(super) fn handle(&self) -> RecordingHandle {
        self.collector.handle()
    }

    /// The process has ended and was waited for.
    pub(super) fn child_exited(&self, exited: ProcessExit) {
        self.collector.child_exited(exited);
    }

    /// Whether the first process has ended. One that has become a program that cannot be recorded has not: it may have children
    /// that are.
    pub(super) fn has_ended(&self) -> bool {
        let RecordedProcess { ended, unrecorded_program, .. } = self.first();
        ended && unrecorded_program.is_none()
    }

    /// What is known of the first process.
    pub(super) fn first(&self) -> RecordedProcess {
        self.handle().first()
    }

    /// Ends it: the processes are put back as they were, and the captures are completed.
    pub(super) fn end(mut self) -> EndedRecording {
        self.handle().take_pictures_of_end();
        // First, so that it starts no more recorded children.
        let first = self.detach_first();
        let mut ends = HashMap::new();
        self.detach_children(&mut ends);
        // Some may have connected, and not been admitted yet: forked children do not wait for that.
        self.collector.stop_admitting();
        self.detach_children(&mut ends);
        let first = first.or_else(|| self.detach_first()).unwrap_or(RecordingEnd::Stopped);
        let of_child = |number| ends.get(&number).copied().unwrap_or(RecordingEnd::Detached);
        self.completed(first, |collector| collector.finish_each(first, of_child))
    }

    /// Puts back the first process; how its recording has ended. `None`: it has nothing of memtrack's, since it has become a program that
    /// cannot load the library.
    fn detach_first(&self) -> Option<RecordingEnd> {
        self.first().unrecorded_program.is_none().then(|| detached(self.pid))
    }

    /// Puts back all recorded children: those, too, that others of them start meanwhile. Adds how the recording of each has ended,
    /// by its number.
    fn detach_children(&self, ends: &mut HashMap<u32, RecordingEnd>) {
        loop {
            let processes = self.handle().processes();
            let is_new = |process: &&RecordedProcess| {
                process.number > 0 && !process.ended && !ends.contains_key(&process.number)
            };
            let new: Vec<_> = processes.iter().filter(is_new).collect();
            if new.is_empty() {
                return;
            }
            for process in new {
                let end = process.pid.map_or(RecordingEnd::Detached, detached);
                ends.insert(process.number, end);
            }
        }
    }

    /// Completes the captures of processes that record no more.
    pub(super) fn complete(self, end: RecordingEnd) -> EndedRecording {
        self.completed(end, |collector| collector.finish(end))
    }

    fn completed(
        self,
        end: RecordingEnd,
        finish: impl FnOnce(Collector) -> Result<RecordingSummary, Error>,
    ) -> EndedRecording {
        let Self { collector, capture, children, root, .. } = self;
        EndedRecording { capture, summary: finish(collector), children, root, end }
    }
}

/// Ends the recording in a process; returns how it has ended. Warns where it was not put back.
fn detached(pid: i32) -> RecordingEnd {
    match detach(pid) {
        Ok(true) => RecordingEnd::Stopped,
        Ok(false) => RecordingEnd::Exited,
        Err(error) => {
            message::warning(format_args!("{error:#}"));
            RecordingEnd::Detached
        }
    }
}

/// Ends the recording in a process; `false`: the process has ended.
///
/// # Errors
/// Why it was not done. The process does not record any more, at the latest when its memory is closed.
fn detach(pid: i32) -> Result<bool> {
    end_recording(pid, memtrack_inject::detach)
}

/// Puts a process back in which the library is active although its recorder has ended; `false`: the process has ended.
///
/// # Errors
/// So for [`detach`]; or the recorder answers the library, and the recording goes on.
pub(super) fn restore(pid: i32) -> Result<bool> {
    end_recording(pid, memtrack_inject::detach_abandoned)
}

fn end_recording(pid: i32, detach: impl Fn(i32) -> Result<i32, Refusal>) -> Result<bool> {
    for _ in 0..TRIES {
        match detach(pid) {
            Err(Refusal::NoProcess | Refusal::Zombie | Refusal::Gone) => return Ok(false),
            Err(Refusal::NoLibrary) => return Ok(true),
            Err(refusal) => bail!(
                "memtrack's library stays active in process {pid}, without recording: {refusal}; after that 'memtrack detach {pid}' puts \
                 the process back"
            ),
            Ok(number) => match AttachStatus::from_number(number) {
                Some(AttachStatus::Done | AttachStatus::NotRecorded) => return Ok(true),
                Some(AttachStatus::Busy) => std::thread::sleep(PAUSE),
                Some(AttachStatus::AlreadyRecorded) => bail!(recorded_by_others(pid)),
                status => bail!("process {pid} stopped recording, but was not put back wholly: {}", text(status)),
            },
        }
    }
    bail!("process {pid} stopped recording, but was not put back wholly: {}", AttachStatus::Busy.text())
}

fn recorded_by_others(pid: i32) -> String {
    format!(
        "process {pid} is being recorded, but 'memtrack ps' does not find its recorder: nothing was changed; does another user \
         record it, one outside of this container, or one with another XDG_RUNTIME_DIR?"
    )
}

fn text(status: Option<AttachStatus>) -> &'static str {
    status.map_or("memtrack's library in it is of another version", AttachStatus::text)
}

fn refused(pid: i32, refusal: &Refusal) -> anyhow::Error {
    anyhow::anyhow!("process {pid} cannot be recorded: {refusal}")
}

/// The bytes of the library.
fn library() -> Result<Vec<u8>> {
    let path = shim::find()?;
    fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))
}

/// The name of the program for its capture: that of a script, a module, or the executable.
fn program_name(pid: i32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let executable = fs::read_link(format!("/proc/{pid}/exe")).map(PathBuf::into_os_string).unwrap_or_default();
    name_of(executable.as_bytes(), &words).unwrap_or_else(|| "program".into())
}

fn name_of(executable: &[u8], words: &[&[u8]]) -> Option<String> {
    let base = |path: &[u8]| {
        let name = path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())?;
        Some(String::from_utf8_lossy(name).replace(" (deleted)", ""))
    };
    let name = base(executable).or_else(|| base(words.first()?))?;
    if !name.starts_with("python") {
        return Some(name);
    }
    let mut arguments = words.iter().skip(1);
    let mut first = None;
    while let Some(word) = arguments.next() {
        match *word {
            b"-X" | b"-W" => drop(arguments.next()),
            option if option.starts_with(b"-") && !matches!(option, b"-m" | b"-c") => {}
            _ => {
                first = Some(word);
                break;
            }
        }
    }
    match first {
        Some(&b"-m") => arguments.next().and_then(|module| base(module)).or(Some(name)),
        Some(&b"-c") | None => Some(name),
        Some(script) => base(script).or(Some(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn programs_have_the_names_that_users_know() {
        let name = |executable: &str, words: &str| {
            let words: Vec<_> = words.split(' ').map(str::as_bytes).collect();
            name_of(executable.as_bytes(), &words)
        };
        assert_eq!(name("/usr/bin/redis-server", "redis-server *:6379").as_deref(), Some("redis-server"));
        assert_eq!(name("/usr/bin/python3.12", "python3 -X dev /srv/app.py -v").as_deref(), Some("app.py"));
        assert_eq!(name("/usr/bin/python3.12", "python3 -u /srv/app.py -v").as_deref(), Some("app.py"));
        assert_eq!(name("/usr/bin/python3.12", "python3 -m http.server").as_deref(), Some("http.server"));
        assert_eq!(name("/usr/bin/python3.12", "python3 -c pass").as_deref(), Some("python3.12"));
        assert_eq!(name("/bin/x (deleted)", "x").as_deref(), Some("x"));
        assert_eq!(name("", "/opt/y").as_deref(), Some("y"));
    }
}
