//! Reads source lines of recorded frames while the program runs, for `run --embed-sources`.
//!
//! The script is read when the process connects, other files when their first frame is recorded, because they may change
//! later. The lines of frames are stored, with their neighbours. Installed packages and the standard library have a budget
//! of their own, so that they take no room from the program's own code. Invariant: only regular text files are read, and time
//! and memory are bounded.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use memtrack_format::meta::Process;
use memtrack_format::sources::{self, FileLines};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::program::packages::is_known_by_path;
use crate::program::root_directory::RootDirectory;

/// Number of lines stored before and after the line of a frame.
const REACH: u32 = 4;
/// Maximum size of a source file.
const LARGEST_FILE: u64 = 1 << 20;
/// Bytes of a line that are stored.
const LONGEST_LINE: usize = 500;
/// Maximum number of files that are opened.
const MOST_FILES: usize = 4096;

/// The program's own code, and other code.
const OWN: Budget = Budget { read: 16 << 20, stored: 4 << 20 };
const OTHERS: Budget = Budget { read: 8 << 20, stored: 1 << 20 };

/// Remaining bytes that may be read and kept in memory, and stored in the capture.
#[derive(Clone, Copy, Debug)]
struct Budget {
    read: usize,
    stored: usize,
}

/// The files of one process's frames.
#[derive(Debug)]
pub struct SourceRecorder {
    /// The process's root directory, if it is not this process's.
    root: Option<RootDirectory>,
    directory: PathBuf,
    /// The script's path and text, until its first frame.
    script: Option<(PathBuf, SourceText)>,
    files: FxHashMap<Vec<u8>, SourceText>,
    own: Budget,
    others: Budget,
}

/// The text of a file; empty if it is not to be stored.
#[derive(Debug, Default)]
struct SourceText {
    lines: Vec<Box<[u8]>>,
    /// The lines that are stored, or will be.
    wanted: FxHashSet<u32>,
    /// Those that will be.
    pending: Vec<u32>,
}

impl Default for SourceRecorder {
    fn default() -> Self {
        Self {
            root: None,
            directory: PathBuf::new(),
            script: None,
            files: FxHashMap::default(),
            own: OWN,
            others: OTHERS,
        }
    }
}

impl SourceRecorder {
    /// Sets the process's root and working directory, which its paths are relative to, and its script.
    pub fn process(&mut self, process: &Process) {
        // Of a process that has ended it stays as it was.
        let pid = process.pid.and_then(|pid| i32::try_from(pid).ok());
        self.root = pid.and_then(RootDirectory::of_process).or(self.root.take());
        if let Some(directory) = &process.working_directory {
            self.directory = PathBuf::from(OsStr::from_bytes(directory));
        }
        if let Some(script) = &process.script {
            self.script = self.read(script).map(|text| (self.directory.join(OsStr::from_bytes(script)), text));
        }
    }

    /// A frame is in this line.
    pub fn add(&mut self, file: &[u8], line: u32) {
        if !self.files.contains_key(file) {
            let text = self.read(file).unwrap_or_default();
            self.files.insert(file.to_vec(), text);
        }
        let Some(text) = self.files.get_mut(file).filter(|text| line > 0 && (line as usize) <= text.lines.len()) else {
            return;
        };
        let last = line.saturating_add(REACH).min(u32::try_from(text.lines.len()).unwrap_or(u32::MAX));
        for line in line.saturating_sub(REACH).max(1)..=last {
            if text.wanted.insert(line) {
                text.pending.push(line);
            }
        }
    }

    /// Payloads of sources blocks with the lines added since the last call.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        let (own, others) = (&mut self.own, &mut self.others);
        let files = self.files.iter_mut().filter(|(_, text)| !text.pending.is_empty()).map(|(path, text)| {
            let budget = if is_known_by_path(path) { &mut *others } else { &mut *own };
            FileLines { path: path.clone(), lines: text.take(budget) }
        });
        sources::encode(&files.filter(|file| !file.lines.is_empty()).collect::<Vec<_>>())
    }

    fn read(&mut self, file: &[u8]) -> Option<SourceText> {
        if file.is_empty() || file.starts_with(b"<") || self.files.len() >= MOST_FILES {
            return None;
        }
        let path = self.directory.join(OsStr::from_bytes(file));
        if let Some((_, text)) = self.script.take_if(|(script, _)| *script == path) {
            return Some(text);
        }
        let budget = if is_known_by_path(file) { &mut self.others } else { &mut self.own };
        let most = LARGEST_FILE.min(budget.read as u64);
        let text = text(self.root.as_ref(), &path, most)?;
        budget.read = budget.read.saturating_sub(text.len());
        Some(SourceText { lines: lines(&text), ..SourceText::default() })
    }
}

impl SourceText {
    /// The lines that are not yet stored, up to the budget.
    fn take(&mut self, budget: &mut Budget) -> Vec<(u32, Vec<u8>)> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_unstable();
        let line = |number: u32| {
            let text = self.lines.get((number as usize).checked_sub(1)?)?;
            budget.stored = budget.stored.checked_sub(text.len())?;
            Some((number, text.to_vec()))
        };
        pending.into_iter().filter_map(line).collect()
    }
}

/// The contents of a text file; `None` for anything else. Opening a pipe does not block.
pub(crate) fn text(root: Option<&RootDirectory>, path: &Path, most: u64) -> Option<Vec<u8>> {
    let open_here = || OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file: File = root.map_or_else(open_here, |root| root.open(path)).ok()?;
    let facts = file.metadata().ok()?;
    if !facts.is_file() || facts.len() > most {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).ok()?;
    (!bytes.contains(&0)).then_some(bytes)
}

fn lines(text: &[u8]) -> Vec<Box<[u8]>> {
    let mut lines: Vec<Box<[u8]>> = text.split(|&byte| byte == b'\n').map(shortened).collect();
    lines.pop_if(|last| last.is_empty());
    lines
}

/// A line without its end, cut if very long.
fn shortened(line: &[u8]) -> Box<[u8]> {
    let line = line.trim_ascii_end();
    let text = line.get(..LONGEST_LINE).map_or(line, |start| {
        // Do not cut within a character.
        let end = start.iter().rposition(|byte| byte & 0xc0 != 0x80).unwrap_or(0);
        start.get(..end).unwrap_or_default()
    });
    text.into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use memtrack_format::sources::{FileLines, decode};

    use super::{Budget, LARGEST_FILE, SourceRecorder};

    fn taken(recorder: &mut SourceRecorder) -> Vec<FileLines> {
        recorder.take().iter().flat_map(|payload| decode(payload).unwrap()).collect()
    }

    fn bytes(path: &Path) -> &[u8] {
        path.as_os_str().as_encoded_bytes()
    }

    #[test]
    fn lines_are_as_they_were_and_stored_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.py");
        fs::write(&path, (1..=30).map(|line| format!("line {line}\r\n")).collect::<String>()).unwrap();
        let mut recorder = SourceRecorder::default();
        recorder.add(bytes(&path), 20);
        fs::remove_file(&path).unwrap();
        let numbers = |files: &[FileLines]| files[0].lines.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        let first = taken(&mut recorder);
        assert_eq!((&*first[0].path, numbers(&first)), (bytes(&path), (16..=24).collect()));
        assert_eq!(first[0].lines[4].1, b"line 20");
        for line in [20, 27, 2, 0, 31, u32::MAX] {
            recorder.add(bytes(&path), line);
        }
        assert_eq!(numbers(&taken(&mut recorder)), (1..=6).chain(25..=30).collect::<Vec<_>>());
        assert!(taken(&mut recorder).is_empty());
    }

    #[test]
    fn what_is_no_source_is_not_stored() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("binary"), b"\x7fELF\0\0\n").unwrap();
        fs::write(path("huge"), vec![b'\n'; LARGEST_FILE as usize + 1]).unwrap();
        let pipe = std::ffi::CString::new(bytes(&path("pipe"))).unwrap();
        // SAFETY: the path is a C string; nothing else is handed over.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        let mut recorder = SourceRecorder::default();
        for name in ["binary", "huge", "pipe", "missing", ""] {
            recorder.add(bytes(&path(name)), 1);
        }
        for file in ["", "<string>", "/dev/zero", "/dev/tty", "/proc/kmsg"] {
            recorder.add(file.as_bytes(), 1);
        }
        assert!(taken(&mut recorder).is_empty());
    }

    #[test]
    fn lines_and_all_of_them_together_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wide.py");
        fs::write(&path, "é".repeat(400) + "\n" + &"x".repeat(300) + "\n" + &"y".repeat(300)).unwrap();
        let budget = Budget { read: 1 << 20, stored: 900 };
        let mut recorder = SourceRecorder { own: budget, ..SourceRecorder::default() };
        recorder.add(bytes(&path), 1);
        let lines = taken(&mut recorder).remove(0).lines;
        let lengths: Vec<_> = lines.iter().map(|(number, text)| (*number, text.len())).collect();
        assert_eq!(lengths, [(1, 498), (2, 300)]);
        assert!(std::str::from_utf8(&lines[0].1).is_ok());
    }

    #[test]
    fn relative_paths_are_below_the_working_directory() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("app.py"), "pass\n").unwrap();
        let mut recorder = SourceRecorder::default();
        recorder.process(&memtrack_format::meta::Process {
            pid: Some(std::process::id()),
            working_directory: Some(bytes(directory.path()).to_vec()),
            ..Default::default()
        });
        recorder.add(b"app.py", 1);
        let expected = FileLines { path: b"app.py".to_vec(), lines: vec![(1, b"pass".to_vec())] };
        assert_eq!(taken(&mut recorder), [expected]);
    }
}
