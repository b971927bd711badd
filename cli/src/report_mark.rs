//! Records in an extended attribute of a report's file which captures it was made from.
//!
//! It lets memtrack overwrite its own unmodified report without `--force`, whatever the format. Invariant: a file that
//! was modified, or whose captures are unknown, is not recognized.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memtrack_reader::source;
use xattr::FileExt;

const ATTRIBUTE: &str = "user.memtrack.report";

/// Identifies the captures of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportMark(u64);

impl ReportMark {
    /// The mark for these captures; `None` if there are none, or if one does not identify its process.
    pub(crate) fn of(captures: &[PathBuf]) -> Option<Self> {
        let mut processes = Vec::new();
        for path in captures {
            for member in source::members(path).ok()?.paths {
                let process = source::first_process(member).ok()?;
                processes.push((process.start.realtime_ns?, process.start.monotonic_ns, process.pid?));
            }
        }
        let mut hasher = DefaultHasher::new();
        processes.hash(&mut hasher);
        (!processes.is_empty()).then(|| Self(hasher.finish()))
    }

    /// Marks a completed report. Has no effect on file systems without extended attributes.
    pub(crate) fn put_on(self, file: &File) {
        if let Some(mark) = file.metadata().ok().map(|metadata| self.text(&metadata)) {
            let _ = file.set_xattr(ATTRIBUTE, mark.as_bytes());
        }
    }

    /// Whether the file is an unmodified report of these captures.
    pub(crate) fn is_of(self, path: &Path) -> bool {
        let Ok(metadata) = path.metadata() else { return false };
        matches!(xattr::get_deref(path, ATTRIBUTE), Ok(Some(mark)) if mark == self.text(&metadata).as_bytes())
    }

    /// The attribute's value, with the size and time of the file to detect modifications.
    fn text(self, metadata: &std::fs::Metadata) -> String {
        format!("1 {:016x} {} {}.{:09}", self.0, metadata.len(), metadata.mtime(), metadata.mtime_nsec())
    }
}

#[cfg(test)]
mod tests {
    use super::ReportMark;
    use std::fs::{self, File};

    #[test]
    fn changed_files_are_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report");
        fs::write(&path, "text").unwrap();
        let (this, other) = (ReportMark(1), ReportMark(2));
        assert!(!this.is_of(&path));
        this.put_on(&File::open(&path).unwrap());
        assert!(this.is_of(&path) && !other.is_of(&path));
        fs::write(&path, "next").unwrap();
        assert!(!this.is_of(&path));
    }
}
