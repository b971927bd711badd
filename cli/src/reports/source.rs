//! Source lines of calls, read from the disk when they are asked for.
//!
//! A capture holds no source; what is shown is the file as it is now, and whether it was changed since the recording can
//! be asked. Invariant: a path in a capture may name anything, so only regular files of a sensible size are read.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A larger file is hardly source.
const LARGEST: u64 = 16 << 20;

/// The files that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: HashMap<String, Source>,
    /// When recording began, in nanoseconds since 1970, if that is known.
    start_ns: Option<u64>,
}

/// A file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its lines, or why there are none.
    lines: Result<Vec<String>, String>,
    is_changed: bool,
}

impl Sources {
    /// The sources of a program whose recording began at this time.
    pub(crate) fn new(start_ns: Option<u64>) -> Self {
        Self { files: HashMap::new(), start_ns }
    }

    /// A file, which is read once.
    pub(crate) fn file(&mut self, path: &str) -> &Source {
        let start_ns = self.start_ns;
        self.files.entry(path.to_owned()).or_insert_with(|| Source::read(path, start_ns))
    }

    /// How many of the files that were read were changed after recording began.
    pub(crate) fn changed(&self) -> usize {
        self.files.values().filter(|source| source.is_changed).count()
    }
}

impl Source {
    fn read(path: &str, start_ns: Option<u64>) -> Self {
        let began = start_ns.map(|ns| UNIX_EPOCH + Duration::from_nanos(ns));
        match read(path) {
            Ok((lines, modified)) => {
                let is_changed = modified.zip(began).is_some_and(|(modified, began)| modified > began);
                Self { lines: Ok(lines), is_changed }
            }
            Err(reason) => Self { lines: Err(reason), is_changed: false },
        }
    }

    /// A line, from 1.
    pub(crate) fn line(&self, line: u32) -> Option<&str> {
        let at = (line as usize).checked_sub(1)?;
        self.lines.as_ref().ok()?.get(at).map(String::as_str)
    }

    /// The lines around one, such that it stands in the middle of `rows`, and the number of the first of them.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub(crate) fn around(&self, line: u32, rows: usize) -> Result<(usize, &[String]), &str> {
        let lines = self.lines.as_deref().map_err(String::as_str)?;
        let at = (line as usize).saturating_sub(1);
        if line == 0 || at >= lines.len() {
            return Err("the line is not known, or the file has no such line any more");
        }
        let first = at.saturating_sub(rows / 2).min(lines.len().saturating_sub(rows));
        Ok((first + 1, &lines[first..lines.len().min(first + rows)]))
    }

    /// Whether the file was changed after recording began.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed
    }
}

fn read(path: &str) -> Result<(Vec<String>, Option<SystemTime>), String> {
    // What is compiled into the interpreter, or comes from a string, has a name in angle brackets.
    if path.is_empty() || path.starts_with('<') {
        return Err("no source file is known of this call".into());
    }
    let reason = |error: std::io::Error| error.kind().to_string();
    // Looked at before it is opened: to open a pipe would wait for its writer.
    let facts = fs::metadata(Path::new(path)).map_err(reason)?;
    if !facts.is_file() || facts.len() > LARGEST {
        return Err("no source file, or too large for one".into());
    }
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut bytes)).map_err(reason)?;
    let text = String::from_utf8_lossy(&bytes);
    let plain = |line: &str| line.replace('\t', "    ").chars().filter(|char| !char.is_control()).collect();
    Ok((text.lines().map(plain).collect(), facts.modified().ok()))
}

#[cfg(test)]
mod tests {
    use super::Sources;
    use std::fs;

    #[test]
    fn lines_around_a_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.py");
        fs::write(&path, (1..=20).map(|line| format!("line\t{line}\n")).collect::<String>()).unwrap();
        let mut sources = Sources::new(None);
        let source = sources.file(path.to_str().unwrap());
        let (first, lines) = source.around(10, 5).unwrap();
        assert_eq!((first, lines.len(), lines[0].as_str()), (8, 5, "line    8"));
        assert_eq!(source.around(1, 5).unwrap().0, 1);
        assert_eq!(source.around(20, 5).unwrap().0, 16);
        assert_eq!(source.around(3, 50).unwrap().1.len(), 20);
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
            let mut sources = Sources::new(Some(start));
            assert_eq!(sources.file(path.to_str().unwrap()).is_changed(), changed == 1);
            assert_eq!(sources.changed(), changed);
        }
    }

    #[test]
    fn what_is_no_source_is_not_read() {
        for path in ["", "/dev/zero", "/", "<frozen importlib._bootstrap>", "/no/such/file\0"] {
            assert!(Sources::default().file(path).around(1, 5).is_err(), "{path}");
        }
    }
}
