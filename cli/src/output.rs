//! Output of reports and of captures that are made of others: standard output, a named file, or a file with a derived name.
//!
//! Invariant: an existing file is never overwritten without `--force`, unless it is an unmodified report of the same
//! captures; and a report's file appears complete or not at all.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use tempfile::NamedTempFile;

use crate::message;
use crate::report_mark::ReportMark;
use crate::sys::EndSignals;
use crate::temporary_file::{TemporaryFile, hidden};

/// The requested output of a report, and its captures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    /// The named file.
    pub(crate) named: Option<&'a Path>,
    /// Overwrite an existing file.
    pub(crate) force: bool,
    /// The captures of the report. The first one determines the derived name.
    pub(crate) captures: &'a [PathBuf],
}

impl Destination<'_> {
    /// The path of the report's file: the named one, or `memtrack-<report>-<capture stem>.<suffix>` beside the capture.
    pub(crate) fn file(&self, report: &str, suffix: &str) -> PathBuf {
        let first = self.captures.first().map_or(Path::new("capture"), PathBuf::as_path);
        self.named.map_or_else(|| derived(first, report, suffix), Path::to_path_buf)
    }

    /// Refuses to overwrite a file other than an unmodified report of the same captures, and a capture by its own report even
    /// with `force`.
    ///
    /// # Errors
    /// Another file exists, and `force` is not set; one of the captures.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        if self.captures.iter().any(|capture| is_same_file(capture, path)) {
            bail!(
                "{}: exists, and is the capture that is being read, which --force does not overwrite either; name another \
                 file with -o",
                path.display()
            );
        }
        let may_be_report = !self.force && path.is_file();
        let mark = ReportMark::of(self.captures).filter(|_| may_be_report);
        refuse_existing(path, self.force || mark.is_some_and(|mark| mark.is_of(path)))
    }
}

/// The open output of a report.
#[derive(Debug)]
pub(crate) enum ReportOutput {
    /// Standard output.
    Stdout(BufWriter<StdoutLock<'static>>),
    /// A temporary file, renamed to the path at the end and marked with its captures.
    File(BufWriter<TemporaryFile>, PathBuf, Option<ReportMark>),
    /// A file that is not regular, such as a pipe or a device.
    Device(BufWriter<File>, PathBuf),
}

impl ReportOutput {
    /// Opens the output of a report that is printed unless a file is named.
    ///
    /// # Errors
    /// An existing file that must not be overwritten; a missing or unwritable directory.
    pub(crate) fn printed(to: Destination<'_>) -> Result<Self> {
        match to.named {
            None => Ok(Self::stdout()),
            Some(path) => Self::at(path, to),
        }
    }

    /// Opens the file of a report, see [`Destination::file`].
    ///
    /// # Errors
    /// As [`ReportOutput::printed`].
    pub(crate) fn file(to: Destination<'_>, report: &str, suffix: &str) -> Result<Self> {
        Self::at(&to.file(report, suffix), to)
    }

    /// Opens a capture derived from the capture `from`: the named path or `memtrack-<how>-<capture stem>.bin`. Captures
    /// are overwritten only with `force`.
    ///
    /// # Errors
    /// As [`ReportOutput::printed`].
    pub(crate) fn capture(named: Option<&Path>, force: bool, from: &Path, how: &str) -> Result<Self> {
        let path = named.map_or_else(|| derived(from, how, "bin"), Path::to_path_buf);
        Self::at(&path, Destination { named, force, captures: &[] })
    }

    /// Opens a new file in a process that handles signals by itself.
    ///
    /// # Errors
    /// A directory that is not writable.
    pub(crate) fn unwatched(path: &Path) -> Result<Self> {
        Ok(Self::File(BufWriter::with_capacity(1 << 16, temporary_beside(path, 0o666)?), path.into(), None))
    }

    fn stdout() -> Self {
        Self::Stdout(BufWriter::new(io::stdout().lock()))
    }

    fn at(path: &Path, to: Destination<'_>) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::stdout());
        }
        if is_device(path) {
            let file = OpenOptions::new().write(true).open(path).with_context(|| cannot_write(path))?;
            return Ok(Self::Device(BufWriter::new(file), path.into()));
        }
        to.check(path)?;
        let mark = ReportMark::of(to.captures);
        if !to.force && mark.is_some_and(|mark| mark.differs_from(path)) {
            message::note(format_args!(
                "{}: the report that was made with other options is replaced; name another file with -o to keep both",
                path.display()
            ));
        }
        // What has no name is gone by itself when a signal ends memtrack.
        let mut signals = None;
        let take = || signals = Some(EndSignals::take());
        let file = TemporaryFile::create(directory_of(&behind_links(path))?, 0o666, take)
            .map_err(|error| cannot_create(path, &error))?;
        if let (Some(hidden), Some(signals)) = (file.path(), signals) {
            signals.context("cannot install signal handlers")?.remove(hidden.to_owned());
        }
        Ok(Self::File(BufWriter::with_capacity(1 << 16, file), path.into(), mark))
    }

    /// Completes the report; returns the path of its file, if it has one.
    ///
    /// # Errors
    /// Writing the rest or renaming fails.
    pub(crate) fn finish(self) -> Result<Option<PathBuf>> {
        match self {
            Self::Stdout(mut stdout) => {
                stdout.flush().context("standard output: cannot be written")?;
                Ok(None)
            }
            Self::Device(mut file, path) => {
                file.flush().with_context(|| cannot_write(&path))?;
                Ok(Some(path))
            }
            Self::File(mut file, path, mark) => {
                file.flush().map_err(|error| without_path(&error)).with_context(|| cannot_write(&path))?;
                let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                if let Some(mark) = mark {
                    mark.put_on(file.as_file());
                }
                file.persist(&behind_links(&path)).with_context(|| cannot_write(&path))?;
                Ok(Some(path))
            }
        }
    }
}

impl Write for ReportOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes).map_err(|error| explained("standard output", &error)),
            Self::File(file, path, _) => file.write(bytes).map_err(|error| explained(path.display(), &error)),
            Self::Device(file, path) => file.write(bytes).map_err(|error| explained(path.display(), &error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::File(file, ..) => file.flush(),
            Self::Device(file, _) => file.flush(),
        }
    }
}

/// Adds the path to a write error, keeping its kind.
fn explained(what: impl fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: cannot be written: {}", without_path(error)))
}

/// The error without the path of the temporary file, which `tempfile` adds to the text.
pub(crate) fn without_path(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// `memtrack-<report>-<capture stem>.<suffix>` beside the capture; a `memtrack-` prefix of the capture's name is
/// dropped.
pub(crate) fn derived(capture: &Path, report: &str, suffix: &str) -> PathBuf {
    let stem = capture.file_stem().unwrap_or(OsStr::new("capture")).to_string_lossy();
    let stem = stem.strip_prefix("memtrack-").unwrap_or(&stem);
    capture.with_file_name(format!("memtrack-{report}-{stem}.{suffix}"))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let number = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    number(one).is_some_and(|one| number(other) == Some(one))
}

/// Whether it is no file that can be replaced, such as a pipe.
pub(crate) fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Refuses a name that no file can have: a derived one is longer than the capture's.
///
/// # Errors
/// It is one.
pub(crate) fn refuse_too_long(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => {
            bail!("{}: the name is too long for a file; name another with -o", path.display())
        }
        _ => Ok(()),
    }
}

/// Refuses a path at which there is something.
///
/// # Errors
/// A file, if `force` is not set; a directory; a file that a recording is writing; a name that no file can have.
pub(crate) fn refuse_existing(path: &Path, force: bool) -> Result<()> {
    refuse_too_long(path)?;
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => bail!("{}: is a directory; name a file with -o", path.display()),
        Ok(_) if !force => {
            bail!("{}: file exists; overwrite it with -f/--force, or name another with -o", path.display())
        }
        Ok(metadata) if metadata.is_file() && is_being_recorded(path) => {
            bail!("{}: a recording is writing it, so that it cannot be overwritten; name another file", path.display())
        }
        _ => Ok(()),
    }
}

/// Whether a recorder has the file locked; those who read it share a lock.
fn is_being_recorded(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Whether a file can be written there later, by renaming another one.
///
/// # Errors
/// An existing file, if `force` is not set; one that a recording is writing; no regular file; a missing or unwritable
/// directory.
pub(crate) fn check_writable(path: &Path, force: bool) -> Result<()> {
    if is_device(path) {
        bail!("{}: is no regular file; name another", path.display());
    }
    refuse_existing(path, force)?;
    temporary_beside(path, 0o666).map(drop)
}

/// A temporary file in the same directory.
///
/// # Errors
/// A missing or unwritable directory.
pub(crate) fn temporary_beside(path: &Path, mode: u32) -> Result<TemporaryFile> {
    TemporaryFile::create(directory_of(path)?, mode, || ()).map_err(|error| cannot_create(path, &error))
}

/// A hidden file in the same directory, removed on drop unless it is persisted.
///
/// # Errors
/// A missing or unwritable directory.
pub(crate) fn hidden_beside(path: &Path, mode: u32) -> Result<NamedTempFile> {
    hidden(directory_of(path)?, mode).map_err(|error| cannot_create(path, &error))
}

/// The file to which a symbolic link leads: it is replaced, and the link stays.
fn behind_links(path: &Path) -> PathBuf {
    if path.is_symlink() { path.canonicalize().unwrap_or_else(|_| path.into()) } else { path.into() }
}

fn directory_of(path: &Path) -> Result<&Path> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.is_dir() {
        bail!("{}: cannot be created: there is no directory {}", path.display(), directory.display());
    }
    Ok(directory)
}

fn cannot_create(path: &Path, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        // Of the directory that is there: /proc and others are no place for files.
        io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            anyhow!(
                "{}: cannot be created: {} takes no files; name another with -o",
                path.display(),
                directory.display()
            )
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            let why = without_path(error);
            anyhow!("{}: {why}; name a file in another directory with -o", cannot_write(path))
        }
        _ => anyhow::Error::from(without_path(error)).context(cannot_write(path)),
    }
}

/// What is said of a path that cannot be written.
pub(crate) fn cannot_write(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

#[cfg(test)]
mod tests {
    use super::{Destination, ReportOutput, derived};
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    fn named(path: &Path, force: bool) -> Destination<'_> {
        Destination { named: Some(path), force, captures: &[] }
    }

    #[test]
    fn derived_names() {
        let name = |capture: &str| derived(Path::new(capture), "speedscope", "speedscope.json");
        assert_eq!(name("d/memtrack-app.py.7.bin"), Path::new("d/memtrack-speedscope-app.py.7.speedscope.json"));
        assert_eq!(name("capture"), Path::new("memtrack-speedscope-capture.speedscope.json"));
    }

    #[test]
    fn existing_files_need_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report");
        fs::write(&path, "old").unwrap();
        let refused = ReportOutput::printed(named(&path, false)).unwrap_err().to_string();
        assert!(refused.contains("--force"), "{refused}");
        let mut report = ReportOutput::printed(named(&path, true)).unwrap();
        report.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(report.finish().unwrap().unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_a_link_leads_to_is_replaced() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (link, path) = (here.path().join("latest"), there.path().join("report"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut report = ReportOutput::printed(named(&link, true)).unwrap();
        report.write_all(b"new").unwrap();
        assert_eq!(report.finish().unwrap().unwrap(), link);
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_report_never_replaces_its_own_capture() {
        let dir = tempfile::tempdir().unwrap();
        let [capture, link] = ["app.bin", "link.bin"].map(|name| dir.path().join(name));
        fs::write(&capture, "records").unwrap();
        fs::hard_link(&capture, &link).unwrap();
        for path in [&capture, &link] {
            let to = Destination { named: Some(path), force: true, captures: std::slice::from_ref(&capture) };
            let error = ReportOutput::printed(to).unwrap_err().to_string();
            assert!(
                error.contains("is the capture that is being read, which --force does not overwrite either"),
                "{error}"
            );
        }
        assert_eq!(fs::read(&capture).unwrap(), b"records");
    }

    #[test]
    fn a_failed_report_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut report = ReportOutput::printed(named(&directory.path().join("report"), false)).unwrap();
        report.write_all(b"half").unwrap();
        drop(report);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn missing_directories_are_named() {
        let error = format!("{:#}", ReportOutput::printed(named(Path::new("/no/such/report"), false)).unwrap_err());
        assert!(error.contains("no directory /no/such"), "{error}");
    }

    #[test]
    fn names_and_places_that_cannot_be_are_refused_with_what_to_do() {
        let refused = |path: &str| {
            let error = ReportOutput::printed(named(Path::new(path), false)).unwrap_err();
            format!("{error:#}")
        };
        assert_eq!(
            refused("/proc/x.out"),
            "/proc/x.out: cannot be created: /proc takes no files; name another with -o"
        );
        let long = format!("/tmp/{}", "a".repeat(300));
        assert_eq!(refused(&long), format!("{long}: the name is too long for a file; name another with -o"));
    }
}
