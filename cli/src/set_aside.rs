//! A file that a recording is to replace, set aside until the recording has begun: one that is refused, or interrupted before, puts it
//! back.
//!
//! Invariant: what was there is under its name, or beside it under another, whole, until it is let go by a drop.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::output::hidden_beside;

/// A file that is set aside.
#[derive(Debug)]
pub(crate) struct SetAside {
    path: PathBuf,
    aside: TempPath,
}

impl SetAside {
    /// Moves a regular file aside, or that which a link leads to. `None`: there is none, or it cannot be moved.
    pub(crate) fn take(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok().filter(|path| path.is_file())?;
        let aside = hidden_beside(&path, 0o600).ok()?.into_temp_path();
        fs::rename(&path, &aside).ok()?;
        Some(Self { path, aside })
    }

    /// Gives the file in its place the same mode and, where that is permitted, owner.
    pub(crate) fn lend_mode(&self, file: &File) {
        let Ok(known) = fs::metadata(&self.aside) else { return };
        // The recording is worth more than either.
        let _ = fchown(file, Some(known.uid()), Some(known.gid()));
        let _ = file.set_permissions(known.permissions());
    }

    /// Puts it back, in place of what has its name by now.
    pub(crate) fn put_back(self) {
        if let Err(error) = self.aside.persist(&self.path) {
            // Better under another name than not at all.
            let _ = error.path.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SetAside;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_set_aside_comes_back_or_goes() {
        let directory = tempfile::tempdir().unwrap();
        let [path, link] = ["old.bin", "link.bin"].map(|name| directory.path().join(name));
        fs::write(&path, "old").unwrap();
        symlink(&path, &link).unwrap();
        for name in [&path, &link] {
            let aside = SetAside::take(name).unwrap();
            assert!(!path.exists());
            fs::write(name, "new").unwrap();
            aside.put_back();
            assert_eq!(fs::read_to_string(name).unwrap(), "old");
        }
        assert!(link.is_symlink());
        drop(SetAside::take(&link).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(SetAside::take(&path).is_none() && SetAside::take(directory.path()).is_none());
    }

    #[test]
    fn the_new_file_has_the_mode_of_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old.bin");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        let aside = SetAside::take(&path).unwrap();
        let file = fs::File::create(&path).unwrap();
        aside.lend_mode(&file);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o604);
    }
}
