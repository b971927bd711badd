//! The file of a capture while it is being recorded.
//!
//! Invariant: a recording that does not begin leaves what was there before.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::{NamedTempFile, PersistError};

use crate::output::{cannot_write, is_device, refuse_existing, without_path};
use crate::set_aside::SetAside;
use crate::temporary_file::hidden;

/// How much of a program's name is in that of its capture, in bytes: a file's name has at most 255.
const LONGEST_PROGRAM: usize = 200;

/// The file of a capture while it is being recorded.
#[derive(Debug)]
pub(crate) struct CaptureFile {
    path: PathBuf,
    /// The temporary file, until the process id is known, which is part of the derived name.
    unnamed: Option<NamedTempFile>,
    created: bool,
    /// What was there before, until the recording has begun.
    replaced: Option<SetAside>,
}

impl CaptureFile {
    /// Opens the named file.
    ///
    /// # Errors
    /// As [`check_writable`](crate::output::check_writable).
    pub(crate) fn named(path: &Path, force: bool) -> Result<(Self, File)> {
        if path == Path::new("-") {
            bail!("-o -: standard output is used by the recorded program; name a file");
        }
        let device = is_device(path);
        if !device {
            refuse_existing(path, force)?;
        }
        let created = !path.exists();
        let replaced = if device { None } else { SetAside::take(path) };
        let opened = OpenOptions::new().write(true).create(true).truncate(!device).open(path);
        let mut capture = Self { path: path.into(), unnamed: None, created, replaced };
        match opened.with_context(|| cannot_create(path)) {
            Ok(file) => {
                capture.replaced.iter().for_each(|replaced| replaced.lend_mode(&file));
                Ok((capture, locked(file)))
            }
            Err(error) => {
                capture.replaced.take().into_iter().for_each(SetAside::put_back);
                Err(error)
            }
        }
    }

    /// Opens an unnamed file in the working directory.
    ///
    /// # Errors
    /// A directory that is not writable.
    pub(crate) fn unnamed() -> Result<(Self, File)> {
        let directory =
            std::env::current_dir().context("the working directory no longer exists; name a file with -o")?;
        let temporary = hidden(&directory, 0o666)
            .map_err(|error| without_path(&error))
            .with_context(|| format!("{}: directory is not writable; name a file with -o", directory.display()))?;
        let file = temporary.reopen()?;
        Ok((
            Self { path: temporary.path().into(), unnamed: Some(temporary), created: true, replaced: None },
            locked(file),
        ))
    }

    /// Renames it to `memtrack-<program>.<pid>.bin`, with a number appended if that exists.
    ///
    /// # Errors
    /// Renaming fails; the file keeps its temporary name then.
    pub(crate) fn name(&mut self, program: impl FnOnce() -> String, pid: i32) -> Result<()> {
        let Some(mut temporary) = self.unnamed.take() else { return Ok(()) };
        let mut program = program();
        program.truncate(program.floor_char_boundary(LONGEST_PROGRAM));
        for number in 1.. {
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let path = PathBuf::from(format!("memtrack-{program}.{pid}{suffix}.bin"));
            match temporary.persist_noclobber(&path) {
                Ok(_) => {
                    self.path = path;
                    break;
                }
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => temporary = error.file,
                Err(error) => return self.move_to(error, path),
            }
        }
        Ok(())
    }

    /// Gives the file this name where the file system can neither rename without replacing nor link.
    fn move_to(&mut self, error: PersistError, path: PathBuf) -> Result<()> {
        let (_, kept) = error.file.keep().with_context(|| cannot_create(&path))?;
        if path.exists() || fs::rename(&kept, &path).is_err() {
            return Err(error.error).with_context(|| cannot_create(&path));
        }
        self.path = path;
        Ok(())
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The recording has begun: what was there before is gone.
    pub(crate) fn has_begun(&mut self) {
        self.replaced = None;
    }

    /// Nothing was recorded: removes the file, or puts back the one that was there before.
    pub(crate) fn discard(self) {
        if let Some(replaced) = self.replaced {
            replaced.put_back();
        } else if self.created {
            // If this fails, an empty file remains.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The file, locked while it is open: so readers know that it is still being written. Where it cannot be locked, they take
/// it for one that was cut.
fn locked(file: File) -> File {
    let _ = file.try_lock();
    file
}

fn cannot_create(path: &Path) -> String {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match directory.filter(|directory| !directory.is_dir()) {
        Some(directory) => {
            format!("{}: cannot be created: there is no directory {}", path.display(), directory.display())
        }
        None => cannot_write(path),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use super::CaptureFile;
    use crate::output::check_writable;

    #[test]
    fn missing_directories_are_named() {
        let error = format!("{:#}", CaptureFile::named(Path::new("/no/such/capture"), false).unwrap_err());
        assert!(error.contains("no directory /no/such"), "{error}");
    }

    #[test]
    fn what_a_recording_writes_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("capture");
        let (_, mut recording) = CaptureFile::named(&path, false).unwrap();
        recording.write_all(b"records").unwrap();
        let refused = [CaptureFile::named(&path, true).map(drop), check_writable(&path, true)];
        for error in refused.map(|refused| format!("{:#}", refused.unwrap_err())) {
            assert!(error.contains("a recording is writing it"), "{error}");
        }
        assert_eq!(fs::read(&path).unwrap(), b"records");
        drop(recording);
        // One that is only being read may be overwritten.
        let reader = fs::File::open(&path).unwrap();
        reader.try_lock_shared().unwrap();
        CaptureFile::named(&path, true).unwrap();
        assert!(fs::read(&path).unwrap().is_empty());
    }

    #[test]
    fn a_program_of_any_name_has_a_capture() {
        let (mut long, _) = CaptureFile::unnamed().unwrap();
        long.name(|| "é".repeat(120), 1).unwrap();
        assert!(long.path().exists() && long.path().to_str().unwrap().contains(&"é".repeat(100)));
        long.discard();
        // What cannot be renamed stays under the name that it has.
        let (mut impossible, _) = CaptureFile::unnamed().unwrap();
        let error = format!("{:#}", impossible.name(|| "no/such".into(), 1).unwrap_err());
        assert!(error.contains("no directory memtrack-no") && impossible.path().exists(), "{error}");
        impossible.discard();
    }

    #[test]
    fn a_discarded_capture_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("capture");
        CaptureFile::named(&path, false).unwrap().0.discard();
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        let (capture, mut file) = CaptureFile::named(&path, true).unwrap();
        file.write_all(b"new").unwrap();
        capture.discard();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let (mut capture, mut file) = CaptureFile::named(&path, true).unwrap();
        file.write_all(b"new").unwrap();
        capture.has_begun();
        capture.discard();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(CaptureFile::named(&path, false).is_err());
        assert!(CaptureFile::named(Path::new("-"), false).is_err());
    }
}
