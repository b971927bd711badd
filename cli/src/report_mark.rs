//! Records in an extended attribute of a report's file which captures it was made from, and with which options.
//!
//! It lets memtrack overwrite its own unmodified report without `--force`, whatever the format, and say so where that one
//! showed something else. Invariant: a file that was modified, or whose captures are unknown, is not recognized.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memtrack_reader::source;
use xattr::FileExt;

const ATTRIBUTE: &str = "user.memtrack.report";

/// Options that do not change what a report shows.
const WITHOUT_EFFECT: [&str; 5] = ["-f", "--force", "-q", "--quiet", "--open"];
/// Options that name its file: the next argument, if it is not in the same one.
const OUTPUT: [&str; 2] = ["-o", "--output"];

/// Identifies the captures of a report, and the options that it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportMark {
    captures: u64,
    options: u64,
}

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
        let options = shown_options(std::env::args_os().skip(1), captures);
        (!processes.is_empty()).then(|| Self { captures: hash(&processes), options: hash(&options) })
    }

    /// Marks a completed report. Has no effect on file systems without extended attributes.
    pub(crate) fn put_on(self, file: &File) {
        if let Some(mark) = file.metadata().ok().map(|metadata| self.text(&metadata)) {
            let _ = file.set_xattr(ATTRIBUTE, format!("{mark}{:016x}", self.options).as_bytes());
        }
    }

    /// Whether the file is an unmodified report of these captures.
    pub(crate) fn is_of(self, path: &Path) -> bool {
        self.options_of(path).is_some()
    }

    /// Whether the file is an unmodified report of these captures that was made with other options.
    pub(crate) fn differs_from(self, path: &Path) -> bool {
        self.options_of(path).is_some_and(|options| options != format!("{:016x}", self.options))
    }

    /// The hash of the options of an unmodified report of these captures. One of an earlier version has none: it is empty.
    fn options_of(self, path: &Path) -> Option<String> {
        let metadata = path.metadata().ok()?;
        let mark = String::from_utf8(xattr::get_deref(path, ATTRIBUTE).ok()??).ok()?;
        let text = self.text(&metadata);
        if mark == text.trim_end() { Some(String::new()) } else { mark.strip_prefix(&text).map(str::to_owned) }
    }

    /// The attribute's value before the options, with the size and time of the file to detect modifications.
    fn text(self, metadata: &std::fs::Metadata) -> String {
        format!("1 {:016x} {} {}.{:09} ", self.captures, metadata.len(), metadata.mtime(), metadata.mtime_nsec())
    }
}

/// The arguments that say what a report shows.
fn shown_options(arguments: impl Iterator<Item = OsString>, captures: &[PathBuf]) -> Vec<OsString> {
    let mut names_file = false;
    let has_effect = |word: &OsString| {
        if std::mem::replace(&mut names_file, OUTPUT.iter().any(|option| word == *option)) || names_file {
            return false;
        }
        let names_output = word.as_bytes().starts_with(b"-o") || word.as_bytes().starts_with(b"--output=");
        !names_output
            && !WITHOUT_EFFECT.iter().any(|option| word == *option)
            && !captures.iter().any(|path| path.as_os_str() == word)
    };
    arguments.filter(has_effect).collect()
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{ReportMark, shown_options};
    use std::fs::{self, File};
    use std::path::PathBuf;

    #[test]
    fn what_names_the_file_shows_nothing_else() {
        let shown = |line: &str| shown_options(line.split(' ').map(Into::into), &[PathBuf::from("a.bin")]);
        let plain = shown("flamegraph a.bin --leaks");
        assert_eq!(plain.len(), 2);
        for same in [
            "flamegraph --leaks a.bin",
            "flamegraph --leaks -f --open a.bin",
            "flamegraph -o x.html --leaks a.bin",
            "flamegraph --output x.html --leaks a.bin",
            "flamegraph --output=x.html -q --leaks a.bin",
            "flamegraph -ox.html --leaks a.bin",
        ] {
            assert_eq!(shown(same), plain, "{same}");
        }
        assert_ne!(shown("flamegraph --own a.bin --leaks"), plain);
        assert_ne!(shown("flamegraph a.bin"), plain);
    }

    #[test]
    fn changed_files_are_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report");
        fs::write(&path, "text").unwrap();
        let this = ReportMark { captures: 1, options: 1 };
        let (other, next_view) = (ReportMark { captures: 2, ..this }, ReportMark { options: 2, ..this });
        assert!(!this.is_of(&path) && !this.differs_from(&path));
        this.put_on(&File::open(&path).unwrap());
        assert!(this.is_of(&path) && !other.is_of(&path) && next_view.is_of(&path));
        assert_eq!([this, other, next_view].map(|mark| mark.differs_from(&path)), [false, false, true]);
        fs::write(&path, "next").unwrap();
        assert!(!this.is_of(&path) && !next_view.differs_from(&path));
    }
}
