//! The captures of a recording's children, which lie beside that of its first process.
//!
//! Invariant: a capture of another recording is none of them, whatever it is called.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memtrack_reader::source;

/// The capture of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildCapture {
    pub(crate) pid: u32,
    /// The child's number in the process tree.
    pub(crate) number: u32,
    pub(crate) path: PathBuf,
}

/// The captures of the children of the recording with this id, whose first process has the capture `own`, as far as their numbers
/// are wanted.
pub(crate) fn children_of(own: &Path, run: u64, is_wanted: impl Fn(u32) -> bool) -> Vec<ChildCapture> {
    let child = |name: OsString| {
        let (pid, number) = pid_and_number(&name)?;
        Some(ChildCapture { pid, number, path: own.with_file_name(name) })
    };
    let children = matching(own).into_iter().filter_map(child);
    children.filter(|child| is_wanted(child.number) && run_of(&child.path) == Some(run)).collect()
}

/// What stands before the suffix: `capture.7-1.bin` is that of process 7, which is the first child.
fn pid_and_number(name: &OsStr) -> Option<(u32, u32)> {
    let parts = name.as_bytes().rsplit(|byte| *byte == b'.').filter_map(|part| std::str::from_utf8(part).ok());
    let mut parts = parts.filter_map(|part| part.split_once('-'));
    parts.find_map(|(pid, number)| Some((pid.parse().ok()?, number.parse().ok()?)))
}

/// The recording id of a capture, if the file is one and has it.
pub(crate) fn run_of(capture: &Path) -> Option<u64> {
    source::CaptureReader::open(capture).ok()?.process().tree.recording
}

/// Files beside a main capture that match `capture.*-*.bin`, the pattern of all its runs' children.
pub(crate) fn matching(own: &Path) -> Vec<OsString> {
    let directory = own.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let suffix = own.extension().map(|suffix| [b".", suffix.as_bytes()].concat()).unwrap_or_default();
    let is_one = |name: &OsString| {
        let inner = name.as_bytes().strip_prefix(own.file_stem().unwrap_or_default().as_bytes());
        let inner = inner.and_then(|rest| rest.strip_prefix(b".")?.strip_suffix(suffix.as_slice()));
        inner.is_some_and(|inner| inner.contains(&b'-'))
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter(is_one).collect()
}

/// Removes the captures of the children of the recording whose first process has the capture `own`, which is about to be
/// overwritten; returns their number.
pub(crate) fn remove_children(own: &Path) -> usize {
    let Some(run) = own.is_file().then(|| run_of(own)).flatten() else { return 0 };
    let mut paths: Vec<_> = matching(own).into_iter().map(|name| own.with_file_name(name)).collect();
    paths.retain(|path| path != own);
    paths.into_iter().filter(|path| run_of(path) == Some(run) && fs::remove_file(path).is_ok()).count()
}

/// The name of the capture of a child: `capture.<pid>-<n>.bin` for `capture.bin`.
pub(crate) fn beside(own: &Path, pid: u32, number: u32) -> PathBuf {
    inserted(own, &format!(".{pid}-{number}"))
}

/// `path` with `insert` before its suffix; unchanged for devices.
pub(crate) fn inserted(path: &Path, insert: &str) -> PathBuf {
    if is_device(path) {
        return path.into();
    }
    let mut name = OsString::from(path.file_stem().unwrap_or_default());
    name.push(insert);
    if let Some(suffix) = path.extension() {
        name.push(".");
        name.push(suffix);
    }
    path.with_file_name(name)
}

/// Whether it is no file that can be replaced, such as /dev/null.
pub(crate) fn is_device(path: &Path) -> bool {
    path.exists() && !path.is_file()
}
