//! The captures of a recording's children, which lie beside that of its first process.
//!
//! Invariant: a capture of another recording is none of them, whatever it is called.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memtrack_format::meta::TreePosition;
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
    position_of(capture)?.recording
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

/// Whose captures are removed with a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildrenOf {
    /// A recording's: names may have the number of the run, as `capture.2.7-1.bin`.
    Recording,
    /// A span's. Other spans of the recording may have files of similar names.
    Span,
}

/// Removes the captures of the children of the process that has the capture `own`, which is about to be overwritten; returns their
/// number.
pub(crate) fn remove_children(own: &Path, of: ChildrenOf) -> usize {
    children_to_replace(own, of).into_iter().filter(|path| fs::remove_file(path).is_ok()).count()
}

/// The captures of the children of the process that has the capture `own`.
pub(crate) fn children_to_replace(own: &Path, of: ChildrenOf) -> Vec<PathBuf> {
    let Some(TreePosition { recording: Some(run), number, .. }) = own.is_file().then(|| position_of(own)).flatten()
    else {
        return Vec::new();
    };
    let candidate = |name: OsString| {
        let number = number_in(own, &name, of)?;
        let path = own.with_file_name(name);
        let parent = position_of(&path).filter(|place| is_place(place, run, number))?.parent?;
        Some((u64::from(number), parent, path))
    };
    let mut candidates: Vec<_> = matching(own).into_iter().filter_map(candidate).collect();
    // A parent has a lower number than its children.
    candidates.sort();
    let mut family = vec![number.unwrap_or(0)];
    let mut found = Vec::new();
    for (number, parent, path) in candidates {
        if family.contains(&parent) {
            family.push(number);
            found.push(path);
        }
    }
    found
}

/// The child's number, if the name has nothing between that of `own` and its suffix but what its children's have.
fn number_in(own: &Path, name: &OsStr, of: ChildrenOf) -> Option<u32> {
    let inner = name.as_bytes().strip_prefix(own.file_stem()?.as_bytes())?.strip_prefix(b".")?;
    let suffix = own.extension().map(|suffix| [b".", suffix.as_bytes()].concat()).unwrap_or_default();
    let inner = std::str::from_utf8(inner.strip_suffix(suffix.as_slice())?).ok()?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let inner = match inner.split_once('.') {
        // Not if there is a capture to which it would belong.
        Some((run, inner)) if of == ChildrenOf::Recording && is_number(run) => {
            Some(inner).filter(|_| !inserted(own, &format!(".{run}")).exists())?
        }
        Some(_) => return None,
        None => inner,
    };
    let (pid, number) = inner.split_once('-')?;
    if is_number(pid) && is_number(number) { number.parse().ok() } else { None }
}

/// Where a child of a span goes: no file is overwritten but a capture of this child. `run`: the id of the recording.
pub(crate) fn path_of_child(own: &Path, (pid, number): (u32, u32), run: Option<u64>) -> PathBuf {
    let is_its_own = |path: &Path| {
        let place = run.zip(position_of(path));
        place.is_some_and(|(run, place)| is_place(&place, run, number))
    };
    let free = |path: &PathBuf| is_device(own) || !path.exists() || path.is_file() && is_its_own(path);
    let first = inserted(own, &format!(".{pid}-{number}"));
    let mut others = (2_u32..).map(|turn| inserted(own, &format!(".{turn}.{pid}-{number}")));
    if free(&first) { first } else { others.find(free).unwrap_or(first) }
}

fn is_place(place: &TreePosition, run: u64, number: u32) -> bool {
    number > 0 && place.recording == Some(run) && place.number == Some(number.into())
}

/// Where the process of a capture is in its tree, if the file is one.
fn position_of(capture: &Path) -> Option<TreePosition> {
    Some(source::CaptureReader::open(capture).ok()?.process().tree)
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use memtrack_format::block::{BlockHeader, BlockKind};
    use memtrack_format::header;
    use memtrack_format::meta::{Process, TreePosition};

    use super::{ChildrenOf, path_of_child, remove_children};

    /// A capture of the process with this number, the child of `parent`, in the recording `run`.
    fn write(directory: &Path, name: &str, run: u64, (number, parent): (u64, Option<u64>)) {
        let tree = TreePosition { recording: Some(run), number: Some(number), parent };
        let payload = Process { tree, ..Process::default() }.encode();
        let length = u32::try_from(payload.len()).unwrap();
        let plain = BlockHeader::plain(BlockKind::Process);
        let crc = crc32fast::hash(&payload);
        let block = BlockHeader { raw_len: length, stored_len: length, payload_crc: crc, ..plain };
        let bytes = [header::encode().as_slice(), &block.encode(), &payload].concat();
        fs::write(directory.join(name), bytes).unwrap();
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_of_other_spans_and_processes_stay() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let own = directory.join("train.bin");
        write(directory, "train.bin", 5, (1, Some(0)));
        // Its children, and theirs.
        write(directory, "train.70-2.bin", 5, (2, Some(1)));
        write(directory, "train.71-10.bin", 5, (10, Some(2)));
        let others = [
            // Other spans of the recording, and a child of one.
            ("train.epoch-1.bin", 5, (1, Some(0))),
            ("train.2.bin", 5, (1, Some(0))),
            ("train.2.70-2.bin", 5, (2, Some(1))),
            ("train.9-1.bin", 5, (1, Some(0))),
            // A child of another process, of another recording, and one that is not the one of the name.
            ("train.72-4.bin", 5, (4, Some(0))),
            ("train.73-3.bin", 6, (3, Some(1))),
            ("train.74-3.bin", 5, (2, Some(1))),
        ];
        others.iter().for_each(|(name, run, place)| write(directory, name, *run, *place));
        fs::write(directory.join("train.75-3.bin"), b"notes").unwrap();
        assert_eq!(remove_children(&own, ChildrenOf::Span), 2);
        let mut expected: Vec<&str> = others.iter().map(|(name, ..)| *name).collect();
        expected.extend(["train.75-3.bin", "train.bin"]);
        expected.sort_unstable();
        assert_eq!(names(directory), expected);
    }

    #[test]
    fn captures_of_a_numbered_run_go_with_that_of_a_recording() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        write(directory, "a.bin", 5, (0, None));
        write(directory, "a.2.70-1.bin", 5, (1, Some(0)));
        write(directory, "a.3.bin", 5, (0, None));
        write(directory, "a.3.70-1.bin", 5, (1, Some(0)));
        assert_eq!(remove_children(&directory.join("a.bin"), ChildrenOf::Recording), 1);
        assert_eq!(names(directory), ["a.3.70-1.bin", "a.3.bin", "a.bin"]);
    }

    #[test]
    fn a_child_overwrites_its_own_capture_alone() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let own = directory.join("a.bin");
        let path = || path_of_child(&own, (70, 1), Some(5)).file_name().unwrap().to_os_string();
        assert_eq!(path(), "a.70-1.bin");
        write(directory, "a.70-1.bin", 5, (1, Some(0)));
        assert_eq!(path(), "a.70-1.bin");
        write(directory, "a.70-1.bin", 6, (1, Some(0)));
        assert_eq!(path(), "a.2.70-1.bin");
        fs::write(directory.join("a.2.70-1.bin"), b"notes").unwrap();
        assert_eq!(path(), "a.3.70-1.bin");
    }
}
