//! Files that get their name when they are complete.
//!
//! Invariant: where the file system has files without a name, one that is never completed leaves nothing, however this process
//! ends; elsewhere a killed process leaves a hidden file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::sys::link_to;

const PREFIX: &str = ".memtrack-";

/// A file that is being written.
#[derive(Debug)]
pub(crate) enum TemporaryFile {
    /// It has no name, and gets one in this directory.
    Nameless(File, PathBuf),
    Named(NamedTempFile),
}

impl TemporaryFile {
    /// Creates it in a directory. `before_named` is called before one with a name is made.
    ///
    /// # Errors
    /// The directory is missing or unwritable.
    pub(crate) fn create(directory: &Path, mode: u32, before_named: impl FnOnce()) -> io::Result<Self> {
        let nameless =
            OpenOptions::new().read(true).write(true).mode(mode).custom_flags(libc::O_TMPFILE).open(directory);
        match nameless {
            Ok(file) if Path::new("/proc/self/fd").exists() => Ok(Self::Nameless(file, directory.into())),
            _ => {
                before_named();
                hidden(directory, mode).map(Self::Named)
            }
        }
    }

    /// Its open file.
    pub(crate) fn as_file(&self) -> &File {
        match self {
            Self::Nameless(file, _) => file,
            Self::Named(file) => file.as_file(),
        }
    }

    /// The path under which it is meanwhile.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Nameless(..) => None,
            Self::Named(file) => Some(file.path()),
        }
    }

    /// Gives it this name, in place of what has it.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub(crate) fn persist(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Named(file) => file.persist(path).map(drop).map_err(|error| error.error),
            Self::Nameless(file, directory) => {
                let linked =
                    tempfile::Builder::new().prefix(PREFIX).make_in(&directory, |hidden| link_to(&file, hidden));
                match linked {
                    Ok(linked) => linked.into_temp_path().persist(path).map_err(|error| error.error),
                    // Where no links are permitted.
                    Err(_) => copied(file, &directory)?.persist(path).map(drop).map_err(|error| error.error),
                }
            }
        }
    }
}

/// A copy that has a name.
fn copied(mut file: File, directory: &Path) -> io::Result<NamedTempFile> {
    let mut named = hidden(directory, file.metadata()?.permissions().mode())?;
    file.rewind()?;
    io::copy(&mut file, named.as_file_mut())?;
    named.as_file().set_permissions(file.metadata()?.permissions())?;
    Ok(named)
}

impl Write for TemporaryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.as_file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A hidden file in this directory, removed on drop unless it is persisted.
///
/// # Errors
/// The directory is missing or unwritable.
pub(crate) fn hidden(directory: &Path, mode: u32) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(PREFIX).permissions(fs::Permissions::from_mode(mode)).tempfile_in(directory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::TemporaryFile;

    #[test]
    fn it_has_a_name_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report");
        fs::write(&path, "old").unwrap();
        let names = || fs::read_dir(directory.path()).unwrap().count();
        let named = || TemporaryFile::Named(super::hidden(directory.path(), 0o666).unwrap());
        let nameless = || TemporaryFile::create(directory.path(), 0o666, || ()).unwrap();
        for (make, meanwhile) in [(&nameless as &dyn Fn() -> TemporaryFile, 1), (&named, 2)] {
            let mut file = make();
            file.write_all(b"new").unwrap();
            // A file system without files that have no name has only the other.
            assert_eq!(names(), if file.path().is_none() { meanwhile } else { 2 });
            drop(file);
            assert_eq!((names(), fs::read(&path).unwrap()), (1, b"old".to_vec()));
        }
        let copy = || {
            let mut file = nameless().as_file().try_clone().unwrap();
            file.write_all(b"new").unwrap();
            TemporaryFile::Named(super::copied(file, directory.path()).unwrap())
        };
        copy().persist(&path).unwrap();
        assert_eq!((names(), fs::read(&path).unwrap()), (1, b"new".to_vec()));
        for make in [&nameless as &dyn Fn() -> TemporaryFile, &named] {
            fs::write(&path, "old").unwrap();
            let mut file = make();
            file.write_all(b"new").unwrap();
            file.persist(&path).unwrap();
            assert_eq!((names(), fs::read(&path).unwrap()), (1, b"new".to_vec()));
        }
    }
}
