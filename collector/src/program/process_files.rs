//! The file system as a process sees it, which may have a root directory of its own.
//!
//! Invariant: what is asked for a process in a container is answered from its root directory, never from the file of this
//! machine that has the same path.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::program::root_directory::{RootDirectory, reopened};
use crate::program::source_recorder;

/// Files by the paths that a process has for them.
#[derive(Debug, Default)]
pub(crate) struct ProcessFiles {
    /// Its root directory, if that is another than ours.
    root: Option<RootDirectory>,
}

impl ProcessFiles {
    pub(crate) fn of(pid: i32) -> Self {
        RootDirectory::of_process(pid).map_or_else(Self::default, Self::below)
    }

    fn below(root: RootDirectory) -> Self {
        Self { root: Some(root) }
    }

    fn metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        self.root.as_ref().map_or_else(|| fs::metadata(path), |root| root.metadata(path))
    }

    pub(crate) fn is_there(&self, path: &Path) -> bool {
        self.metadata(path).is_ok()
    }

    pub(crate) fn is_file(&self, path: &Path) -> bool {
        self.metadata(path).is_ok_and(|found| found.is_file())
    }

    pub(crate) fn is_directory(&self, path: &Path) -> bool {
        self.metadata(path).is_ok_and(|found| found.is_dir())
    }

    /// The file system that a directory is on.
    pub(crate) fn directory_device(&self, path: &Path) -> Option<u64> {
        self.metadata(path).ok().filter(fs::Metadata::is_dir).map(|found| found.dev())
    }

    /// The path without links.
    pub(crate) fn resolved(&self, path: &Path) -> Option<PathBuf> {
        self.root.as_ref().map_or_else(|| fs::canonicalize(path).ok(), |root| root.resolved(path))
    }

    /// Opens a regular file.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        if let Some(root) = &self.root {
            return root.open(path);
        }
        reopened(&OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?)
    }

    /// The contents of a text file of at most so many bytes.
    pub(crate) fn text(&self, path: &Path, most: u64) -> Option<Vec<u8>> {
        source_recorder::text(self.root.as_ref(), path, most)
    }

    /// The paths of what is in a directory.
    pub(crate) fn entries(&self, directory: &Path) -> Vec<PathBuf> {
        self.first_entries(directory, usize::MAX)
    }

    /// At most so many of them, of a directory of any size.
    pub(crate) fn first_entries(&self, directory: &Path, most: usize) -> Vec<PathBuf> {
        let here = || {
            let all = fs::read_dir(directory).into_iter().flatten().flatten();
            all.take(most).map(|entry| entry.file_name()).collect()
        };
        let names: Vec<_> = self.root.as_ref().map_or_else(here, |root| root.names(directory, most));
        names.iter().map(|name| directory.join(name)).collect()
    }
}

/// The path as Python makes it absolute, without looking at the files.
pub(crate) fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::ProcessFiles;
    use crate::program::root_directory::RootDirectory;

    #[test]
    fn files_of_a_container_are_those_below_its_root() {
        let base = tempfile::tempdir().unwrap();
        let (root, outside) = (base.path().join("root"), base.path().join("outside.py"));
        fs::create_dir_all(root.join("srv")).unwrap();
        fs::write(root.join("srv/app.py"), "inside").unwrap();
        fs::write(&outside, "outside").unwrap();
        let files = ProcessFiles::below(RootDirectory::at(&root).unwrap());
        let app = Path::new("/srv/app.py");
        assert_eq!(
            (files.text(app, 99), files.entries(Path::new("/srv"))),
            (Some(b"inside".to_vec()), vec![app.into()])
        );
        assert_eq!(files.resolved(Path::new("/srv/../srv/app.py")).as_deref(), Some(app));
        assert!(files.is_file(app) && files.is_directory(Path::new("/srv")) && files.open(app).is_ok());
        let here = ProcessFiles::default();
        assert!(here.is_file(&outside) && here.open(&outside).is_ok() && here.open(base.path()).is_err());
        assert!(!files.is_there(&outside) && files.open(&outside).is_err() && files.text(&outside, 99).is_none());
    }
}
