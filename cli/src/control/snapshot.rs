//! Copies captures of everything up to now out of recordings.
//!
//! Invariant: the recording process copies nothing: it says which bytes of its open file to take, and what follows them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::iter;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use memtrack_collector::control::ControlClient;
use memtrack_collector::control::protocol::{ControlCommand, ProcessState, SnapshotAnswer};
use memtrack_collector::{AskedSnapshots, RecordingHandle, SnapshotCopy, TicketSpan, capture_tail};
use memtrack_format::block::{BlockHeader, BlockKind, HEADER_LEN};
use memtrack_format::members;
use memtrack_format::meta::Process;
use memtrack_reader::rewrite::CaptureBlocks;
use memtrack_reader::source::CaptureReader;
use tempfile::NamedTempFile;

use super::recordings::RunningRecording;
use crate::load::Request;
use crate::reports::capture_info::quoted_path;

/// Where the capture of a process of the recording is, by the number of the process in the tree.
pub(crate) type CapturePaths = Arc<dyn Fn(u32) -> Option<PathBuf> + Send + Sync>;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// A capture that can be copied: the first bytes of an open file, and what follows them.
pub(crate) struct CopyableCapture {
    file: File,
    length: u64,
    tail: Vec<u8>,
}

/// What was recorded of a process so far: a copy in a file of its own, which goes with it.
///
/// # Errors
/// It cannot be copied or read.
pub(crate) fn copy_of(mut recording: RunningRecording, pid: i32) -> Result<(CaptureReader, NamedTempFile)> {
    let answer: SnapshotAnswer = recording.client.ask(ControlCommand::Snapshot { pid: u32::try_from(pid).ok() })?;
    let mut copy = NamedTempFile::with_prefix("memtrack-objects-").context("a copy of the capture cannot be made")?;
    write(&mut [CopyableCapture::open(&answer, &recording.client)?], &mut copy)?;
    let file = Request { without_columns: true, ..Request::default() }.open(copy.path())?;
    if file.aggregated() {
        bail!("it is recorded with --aggregate, which keeps no blocks");
    }
    Ok((file, copy))
}

impl CopyableCapture {
    /// Opens the file of an answer.
    ///
    /// # Errors
    /// It cannot be opened, or is none that the recording process may give away.
    pub(crate) fn open(answer: &SnapshotAnswer, from: &ControlClient) -> Result<Self> {
        let SnapshotAnswer { descriptor, length, tail, capture, .. } = answer;
        let through = PathBuf::from(format!("/proc/{}/fd/{descriptor}", from.recorder()));
        // Where the recording process is not visible, or its descriptors are not, the capture may be.
        let opened = open_of(from.other_user(), &through).or_else(|error| match capture {
            Some(path) if !tail.is_empty() => open_of(from.other_user(), path).map_err(|_| error),
            _ => Err(error),
        });
        let file =
            opened.with_context(|| format!("{}: the file of the recording cannot be opened", through.display()))?;
        Ok(Self { file, length: *length, tail: STANDARD.decode(tail).context("the end of the snapshot is damaged")? })
    }

    /// Of a recording in this process.
    fn own(copy: SnapshotCopy) -> Self {
        let SnapshotCopy { file, length, tail, .. } = copy;
        Self { file, length, tail }
    }

    /// The capture of a process whose recording is complete.
    pub(super) fn complete(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("{}: cannot be opened", path.display()))?;
        Ok(Self { length: file.metadata()?.len(), file, tail: Vec::new() })
    }

    /// The capture of a process whose recording is complete, with other metadata of the process.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn with_metadata(path: &Path, news: impl FnOnce(&Process) -> Process) -> Result<Self> {
        let known = CaptureReader::open(path)?;
        let mut tail = capture_tail(&news(known.process()), 0)?;
        if !known.complete() {
            tail.truncate(tail.len().saturating_sub(HEADER_LEN));
        }
        Ok(Self { tail, ..Self::complete(path)? })
    }

    /// Adds metadata of the process, which override what is known.
    ///
    /// # Errors
    /// There is too much of it.
    pub(super) fn add(&mut self, news: &Process) -> Result<()> {
        self.tail.extend(capture_tail(news, 0)?);
        Ok(())
    }

    /// The file that it is copied from.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    fn bytes(&self) -> u64 {
        self.length.saturating_add(self.tail.len() as u64)
    }

    fn copy(&mut self, out: &mut impl Write) -> Result<()> {
        let (mut piece, mut left) = (vec![0; PIECE], self.length);
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let read = self.file.read(&mut piece[..room]).context("the capture cannot be read")?;
            if read == 0 {
                bail!("the capture of the recording was truncated by somebody");
            }
            out.write_all(&piece[..read])?;
            left -= read as u64;
        }
        out.write_all(&self.tail)?;
        Ok(())
    }
}

/// Opens a file that a recording process has named. If that is of another user the file must be that user's own: who asks may
/// read more than that user, and writes what he reads where others can read it.
fn open_of(other_user: Option<u32>, path: &Path) -> io::Result<File> {
    let is_permitted = |found: &Metadata| other_user.is_none_or(|user| found.is_file() && found.uid() == user);
    let denied = || io::Error::new(io::ErrorKind::PermissionDenied, "it is no file of the user who records");
    // Before it is opened: that alone has an effect on some devices.
    if !is_permitted(&fs::metadata(path)?) {
        return Err(denied());
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if is_permitted(&file.metadata()?) { Ok(file) } else { Err(denied()) }
}

/// That the capture of a process could not be written any more, for the user.
pub(crate) fn cut_off(capture: Option<&Path>, reason: &str) -> String {
    let has = capture.map(|path| format!("; {} has what came before", quoted_path(path))).unwrap_or_default();
    format!("the recording has ended: its capture could not be written any more: {reason}{has}")
}

/// Takes a snapshot of the process with this pid; of the first process of a recording one of all that it has, each at its own moment.
///
/// # Errors
/// The recording refuses it, or has ended.
pub(crate) fn take(recording: &mut RunningRecording, pid: Option<u32>) -> Result<Vec<CopyableCapture>> {
    let wanted = pid.unwrap_or(recording.client.pid());
    let is_first = |number: u32| number == 0;
    let RunningRecording { client, status } = recording;
    let found = status.process(wanted).context("the process has not begun to record yet")?;
    if let Some(reason) = &found.write_error {
        bail!(cut_off(found.capture.as_deref(), reason));
    }
    let is_of_all = is_first(found.number) && found.state != ProcessState::Dormant;
    let of_recording = is_of_all.then(|| status.of_recording(found.recording));
    let mut captures = Vec::new();
    for process in of_recording.into_iter().flatten().chain(iter::once(found).filter(|_| !is_of_all)) {
        let answer = client.ask::<SnapshotAnswer>(ControlCommand::Snapshot { pid: Some(process.pid) });
        let opened = match answer {
            Ok(answer) => CopyableCapture::open(&answer, client),
            // It may have ended since.
            Err(_) if process.state == ProcessState::Ended || !is_first(process.number) => match &process.capture {
                Some(path) => CopyableCapture::complete(path),
                None => continue,
            },
            Err(error) => return Err(error.into()),
        };
        captures.push(opened?);
    }
    Ok(captures)
}

/// A snapshot of all processes of a recording in this process, which were asked for it at once.
pub(crate) struct OwnSnapshot {
    asked: AskedSnapshots,
    paths: CapturePaths,
    /// By the numbers of the processes.
    taken: BTreeMap<u32, CopyableCapture>,
    /// Why the first process, or one that has ended, cannot be copied.
    failed: Option<anyhow::Error>,
}

impl OwnSnapshot {
    /// Asks for it.
    pub(crate) fn ask(recording: &RecordingHandle, paths: &CapturePaths) -> Self {
        let asked = recording.ask_for_snapshots();
        Self { asked, paths: Arc::clone(paths), taken: BTreeMap::new(), failed: None }
    }

    /// Waits for the answers, until the deadline; whether more may come.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> bool {
        while let Some((number, answer)) = self.asked.next_until(deadline) {
            self.take(number, answer);
        }
        !self.asked.is_complete() && Instant::now() < self.asked.patience()
    }

    /// Waits for all answers, but not for ever.
    ///
    /// # Errors
    /// The first process cannot be copied, or the capture of one that has ended cannot be opened.
    pub(crate) fn finish(mut self) -> Result<Vec<CopyableCapture>> {
        self.wait_until(self.asked.patience());
        for (number, why) in self.asked.take_unanswered() {
            self.take(number, Err(why));
        }
        self.failed.map_or_else(|| Ok(self.taken.into_values().collect()), Err)
    }

    fn take(&mut self, number: u32, answer: Result<SnapshotCopy, String>) {
        let opened = match answer {
            Ok(copy) => Ok(CopyableCapture::own(copy)),
            Err(why) if number == 0 => Err(anyhow::Error::msg(why)),
            Err(_) => match (self.paths)(number) {
                Some(path) => CopyableCapture::complete(&path),
                None => return,
            },
        };
        match opened {
            Ok(capture) => _ = self.taken.insert(number, capture),
            Err(error) => self.failed = Some(error),
        }
    }
}

/// Takes a snapshot of all processes of a recording in this process.
///
/// # Errors
/// The first process, or one that has ended, cannot be copied.
pub(crate) fn take_own(recording: &RecordingHandle, captures: &CapturePaths) -> Result<Vec<CopyableCapture>> {
    OwnSnapshot::ask(recording, captures).finish()
}

/// Takes a span of a process of a recording in this process, by its number in the tree.
///
/// # Errors
/// It cannot be copied.
pub(crate) fn take_span(recording: &RecordingHandle, number: u32, span: TicketSpan) -> Result<CopyableCapture> {
    Ok(CopyableCapture::own(recording.span(number, span).map_err(anyhow::Error::msg)?))
}

/// Writes the captures as one file; returns its length.
///
/// # Errors
/// A capture cannot be read, or the output cannot be written.
pub(crate) fn write(captures: &mut [CopyableCapture], out: &mut impl Write) -> Result<u64> {
    if captures.len() > 1 {
        let lengths: Vec<u64> = captures.iter().map(CopyableCapture::bytes).collect();
        let mut blocks = CaptureBlocks::new(&mut *out)?;
        blocks.block(BlockHeader::plain(BlockKind::Members), &members::encode(&lengths))?;
        blocks.finish(false)?;
    }
    captures.iter_mut().try_for_each(|capture| capture.copy(out))?;
    Ok(captures.iter().map(CopyableCapture::bytes).sum())
}

/// The name of a new snapshot in this directory, after that of the capture: `memtrack-app.py.4711.snapshot1.bin`. It has no
/// hyphen behind the name of the capture, by which the captures of children are found. Its number is above that of `last`.
pub(crate) fn new_name(directory: &Path, capture: Option<&Path>, pid: u32, last: Option<&PathBuf>) -> PathBuf {
    // A descriptor's path has no name to derive one from.
    let capture = capture.filter(|path| !path.starts_with("/proc"));
    let stem = capture.and_then(Path::file_stem).map_or_else(|| format!("memtrack-{pid}").into(), OsStr::to_os_string);
    let name = |number: u32| {
        let mut name = stem.clone();
        name.push(format!(".snapshot{number}.bin"));
        directory.join(name)
    };
    let number_of = |path: &PathBuf| {
        let stem = path.file_stem()?.to_str()?;
        stem.rsplit_once("snapshot")?.1.parse::<u32>().ok()
    };
    let first = last.and_then(number_of).unwrap_or(0).saturating_add(1);
    (first..u32::MAX).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::{new_name, open_of};

    #[test]
    fn another_users_recording_gives_away_only_files_of_that_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.bin");
        std::fs::write(&path, "").unwrap();
        let own = std::fs::metadata(&path).unwrap().uid();
        assert!(open_of(None, &path).is_ok() && open_of(Some(own), &path).is_ok());
        let denied = |user, path: &Path| open_of(Some(user), path).unwrap_err().kind();
        assert_eq!(denied(own + 1, &path), ErrorKind::PermissionDenied);
        assert_eq!(denied(own, directory.path()), ErrorKind::PermissionDenied, "no regular file");
    }

    #[test]
    fn snapshots_are_numbered() {
        let directory = tempfile::tempdir().unwrap();
        let name = |capture: Option<&str>| {
            let path = new_name(directory.path(), capture.map(Path::new), 7, None);
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(name(Some("/d/memtrack-app.py.7.bin")), "memtrack-app.py.7.snapshot1.bin");
        assert_eq!(name(None), "memtrack-7.snapshot1.bin");
        std::fs::write(directory.path().join("memtrack-app.py.7.snapshot1.bin"), "").unwrap();
        assert_eq!(name(Some("memtrack-app.py.7.bin")), "memtrack-app.py.7.snapshot2.bin");
        let after = new_name(Path::new("d"), None, 7, Some(&"d/memtrack-7.snapshot8.bin".into()));
        assert_eq!(after, Path::new("d/memtrack-7.snapshot9.bin"));
    }
}
