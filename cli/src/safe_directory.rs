//! Directories in which no other user can put or replace a file.
//!
//! Invariant: a returned path has no symbolic links, and every directory on it belongs to this user, to root or to the
//! owner of `/`, and is not writable by others unless it has the sticky bit.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::sys::effective_user;

const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const PRIVATE: u32 = 0o700;

/// Creates `base` and `base/name` (mode 0700) if they do not exist, and checks the whole path of the latter.
///
/// # Errors
/// An error of the system, or `PermissionDenied` if another user could change the contents.
pub(crate) fn prepare(base: &Path, name: &str) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(PRIVATE).create(base)?;
    let user = effective_user();
    // Another user could have made a link in /tmp to any directory of this user.
    if fs::symlink_metadata(base)?.uid() != user {
        return Err(denied(base, "belongs to another user"));
    }
    let directory = base.canonicalize()?.join(name);
    match DirBuilder::new().mode(PRIVATE).create(&directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(&directory)?;
    if !metadata.is_dir() || metadata.uid() != user {
        return Err(denied(&directory, "is not a directory of this user"));
    }
    if metadata.mode() & 0o777 != PRIVATE {
        fs::set_permissions(&directory, Permissions::from_mode(PRIVATE))?;
    }
    check_ancestors(&directory, user)?;
    Ok(directory)
}

fn check_ancestors(directory: &Path, user: u32) -> io::Result<()> {
    // Not always root: in a user namespace it may be the overflow uid of unmapped users.
    let owner_of_all = fs::metadata("/")?.uid();
    let is_safe = |metadata: &Metadata| {
        let is_trusted = [user, 0, owner_of_all].contains(&metadata.uid());
        is_trusted && (metadata.mode() & WRITABLE_BY_OTHERS == 0 || metadata.mode() & STICKY != 0)
    };
    for ancestor in directory.ancestors().skip(1) {
        if !is_safe(&fs::symlink_metadata(ancestor)?) {
            return Err(denied(ancestor, "can be written by other users"));
        }
    }
    Ok(())
}

fn denied(path: &Path, why: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("{} {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::prepare;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn directories_are_made_private_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().join("a/b");
        let directory = prepare(&base, "hash").unwrap();
        assert_eq!(directory, base.canonicalize().unwrap().join("hash"));
        assert_eq!(fs::metadata(&base).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(prepare(&base, "hash").unwrap(), directory);
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_that_others_may_write_on_the_way_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let error = prepare(&open.join("memtrack"), "hash").unwrap_err();
        assert!(error.to_string().contains("can be written by other users"), "{error}");
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
        prepare(&open.join("memtrack"), "hash").unwrap();
    }

    #[test]
    fn a_link_or_a_file_in_place_of_the_directory_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let other = root.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(&other, root.path().join("hash")).unwrap();
        let error = prepare(root.path(), "hash").unwrap_err();
        assert!(error.to_string().contains("is not a directory of this user"), "{error}");
        fs::write(root.path().join("file"), "").unwrap();
        prepare(root.path(), "file").unwrap_err();
    }
}
