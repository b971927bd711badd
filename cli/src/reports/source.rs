//! Source lines of calls: recorded ones, and for other files the current ones on disk.
//!
//! Files are read on demand, and compared with the start of the recording to detect changes. Invariant: a path in a
//! capture may name anything, so only regular files of limited size are read.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memtrack_format::sources::FileLines;

use super::capture_info::CaptureInfo;

/// Maximum size of a source file.
const LARGEST: u64 = 16 << 20;

/// The files read so far.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: HashMap<String, SourceFile>,
    /// Start of the recording in nanoseconds since 1970, if known.
    start_ns: Option<u64>,
    /// Whether only recorded lines are shown, and no file is read.
    only_recorded: bool,
}

/// The environment variable that keeps reports from reading source files, by the value `recorded`: those who ask for the
/// report need not be those who may read the files that a capture names.
pub(crate) const SOURCES_VARIABLE: &str = "MEMTRACK_SOURCES";

/// A file.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Its lines by their numbers, or why there are none.
    lines: Result<BTreeMap<u32, String>, String>,
    is_recorded: bool,
    is_changed: bool,
}

impl Sources {
    /// The sources of a capture's program.
    pub(crate) fn of(info: &CaptureInfo) -> Self {
        let only_recorded = std::env::var_os(SOURCES_VARIABLE).is_some_and(|value| value == "recorded");
        let mut sources = Self { files: HashMap::new(), start_ns: info.process.start.realtime_ns, only_recorded };
        info.sources.iter().for_each(|file| sources.add(file));
        sources
    }

    /// Adds recorded lines.
    fn add(&mut self, file: &FileLines) {
        let recorded = || SourceFile { lines: Ok(BTreeMap::new()), is_recorded: true, is_changed: false };
        let known = self.files.entry(String::from_utf8_lossy(&file.path).into_owned()).or_insert_with(recorded);
        if let Ok(lines) = &mut known.lines {
            for (number, text) in &file.lines {
                lines.entry(*number).or_insert_with(|| plain(&String::from_utf8_lossy(text)));
            }
        }
    }

    /// The lines of a file; each file is read once.
    pub(crate) fn file(&mut self, path: &str) -> &SourceFile {
        let (start_ns, only_recorded) = (self.start_ns, self.only_recorded);
        self.files.entry(path.to_owned()).or_insert_with(|| match only_recorded {
            true => SourceFile { lines: Err("not recorded".into()), is_recorded: false, is_changed: false },
            false => SourceFile::read(path, start_ns),
        })
    }

    /// Number of files with recorded lines.
    pub(crate) fn recorded(&self) -> usize {
        self.files.values().filter(|source| source.is_recorded).count()
    }

    /// Number of read files that changed after the recording began.
    pub(crate) fn changed(&self) -> usize {
        self.files.values().filter(|source| source.is_changed).count()
    }
}

impl SourceFile {
    fn read(path: &str, start_ns: Option<u64>) -> Self {
        let began = start_ns.map(|ns| UNIX_EPOCH + Duration::from_nanos(ns));
        match read(path) {
            Ok((lines, modified)) => {
                let is_changed = modified.zip(began).is_some_and(|(modified, began)| modified > began);
                Self { lines: Ok(lines), is_recorded: false, is_changed }
            }
            Err(reason) => Self { lines: Err(reason), is_recorded: false, is_changed: false },
        }
    }

    /// A line, from 1.
    pub(crate) fn line(&self, line: u32) -> Option<&str> {
        self.lines.as_ref().ok()?.get(&line).map(String::as_str)
    }

    /// `rows` lines around a line, with their numbers.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(crate) fn around(&self, line: u32, rows: usize) -> Result<Vec<(u32, &str)>, &str> {
        let lines = self.lines.as_ref().map_err(String::as_str)?;
        if self.line(line).is_none() {
            return Err("line unknown, or beyond the end of the current file");
        }
        let (last, rows) = (lines.keys().next_back().copied().unwrap_or(0), u32::try_from(rows).unwrap_or(u32::MAX));
        let first = line.saturating_sub(rows / 2).min((last + 1).saturating_sub(rows)).max(1);
        let shown = lines.range(first..first.saturating_add(rows));
        Ok(shown.map(|(number, text)| (*number, text.as_str())).collect())
    }

    /// Whether the file was changed after recording began.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed
    }
}

fn read(path: &str) -> Result<(BTreeMap<u32, String>, Option<SystemTime>), String> {
    // Frozen and string code has a name in angle brackets.
    if path.is_empty() || path.starts_with('<') {
        return Err("no source file recorded for this call".into());
    }
    let reason = |error: std::io::Error| error.kind().to_string();
    // Checked before opening, because opening a pipe would block.
    let info = fs::metadata(Path::new(path)).map_err(reason)?;
    if !info.is_file() || info.len() > LARGEST {
        return Err("not a regular file, or too large".into());
    }
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut bytes)).map_err(reason)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(((1..).zip(text.lines().map(plain)).collect(), info.modified().ok()))
}

/// A line without control characters.
fn plain(line: &str) -> String {
    line.replace('\t', "    ").chars().filter(|char| !char.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::{CaptureInfo, FileLines, Sources};
    use memtrack_format::meta::{Process, StartTimes};
    use std::fs;

    #[test]
    fn lines_around_a_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.py");
        fs::write(&path, (1..=20).map(|line| format!("line\t{line}\n")).collect::<String>()).unwrap();
        let mut sources = Sources::default();
        let source = sources.file(path.to_str().unwrap());
        let lines = source.around(10, 5).unwrap();
        assert_eq!((lines.len(), lines[0]), (5, (8, "line    8")));
        assert_eq!(source.around(1, 5).unwrap()[0].0, 1);
        assert_eq!(source.around(20, 5).unwrap()[0].0, 16);
        assert_eq!(source.around(3, 50).unwrap().len(), 20);
        assert!(source.around(21, 5).is_err() && source.around(0, 5).is_err());
        assert_eq!((source.line(20), source.line(21), source.line(0)), (Some("line    20"), None, None));
        assert!(!source.is_changed());
    }

    #[test]
    fn a_file_that_was_changed_after_the_recording_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.py");
        fs::write(&path, "pass\n").unwrap();
        for (start, changed) in [(1, 1), (u64::MAX / 2, 0)] {
            let start = StartTimes { realtime_ns: Some(start), ..StartTimes::default() };
            let process = Process { start, ..Process::default() };
            let mut sources = Sources::of(&CaptureInfo { process, ..CaptureInfo::default() });
            assert_eq!(sources.file(path.to_str().unwrap()).is_changed(), changed == 1);
            assert_eq!(sources.changed(), changed);
        }
    }

    #[test]
    fn recorded_lines_count_and_not_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.py");
        fs::write(&path, "another\n".repeat(20)).unwrap();
        let path = path.to_str().unwrap();
        let lines = |lines: &[(u32, &str)]| FileLines {
            path: path.into(),
            lines: lines.iter().map(|(number, text)| (*number, (*text).into())).collect(),
        };
        let sources = vec![lines(&[(7, "\tkeep()\x1b[1m")]), lines(&[(8, "drop()"), (7, "later")])];
        let mut sources = Sources::of(&CaptureInfo { sources, ..CaptureInfo::default() });
        let source = sources.file(path);
        assert_eq!(source.around(7, 5).unwrap(), [(7, "    keep()[1m"), (8, "drop()")]);
        assert_eq!((source.line(1), source.is_changed()), (None, false));
        assert_eq!((sources.recorded(), sources.changed()), (1, 0));
    }

    #[test]
    fn what_is_no_source_is_not_read() {
        for path in ["", "/dev/zero", "/", "<frozen importlib._bootstrap>", "/no/such/file\0"] {
            assert!(Sources::default().file(path).around(1, 5).is_err(), "{path}");
        }
    }
}
