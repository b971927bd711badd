//! The private directory of a recording, with the socket that the shim connects to, and the environment that makes the
//! program load the shim.
//!
//! Invariant: nobody else can change what is in the directory, and it is gone when memtrack ends. Nor can anybody but root put another in
//! its place where another user's programs are told its path.

use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memtrack_collector::{DORMANT_VARIABLE, PID_DIGITS, PID_VARIABLES, PRELOAD_VARIABLE, SOCKET_VARIABLE};

use crate::owned_directory::OwnedDirectory;
use crate::shim::{NoPlace, SHIM_NAME, is_special};
use crate::sys::{check_executable_mapping, effective_user};
use crate::target::{Environment, set_variable};

const PRELOAD: &str = "LD_PRELOAD";
/// Socket paths end at 108 bytes; the directory's and the socket's own names need some of them.
const MAX_DIRECTORY_LEN: usize = 70;

/// The private directory of one recording.
#[derive(Debug)]
pub(super) struct PrivateDirectory(OwnedDirectory);

impl PrivateDirectory {
    /// Creates it in TMPDIR if that path is usable for a socket, else in another directory for temporary files.
    ///
    /// # Errors
    /// [`NoPlace`] if no directory can be created; names the reason for each.
    pub(super) fn new() -> Result<Self, NoPlace> {
        Self::new_in(parents().into_iter())
    }

    /// The same in the first of these directories where nobody but root and this user can move it, by its path without symbolic links.
    pub(super) fn guarded() -> Result<Self, NoPlace> {
        let mut parents: Vec<_> = parents().iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        parents.retain(|path| is_usable(path) && is_guarded(path));
        Self::new_in(parents.into_iter())
    }

    fn new_in(parents: impl Iterator<Item = PathBuf>) -> Result<Self, NoPlace> {
        let mut tried = Vec::new();
        for parent in parents {
            match OwnedDirectory::for_socket(&parent) {
                Ok(directory) => return Ok(Self(directory)),
                // Only the kind: the error's text contains the random name.
                Err(error) => tried.push((parent, error.kind().into())),
            }
        }
        Err(NoPlace::new("a directory for the socket cannot be made in", &tried, "set TMPDIR to a writable directory"))
    }

    /// The path of the directory.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Whether nobody but root and this user can put another directory in its place.
    pub(super) fn is_guarded(&self) -> bool {
        self.path().parent().is_some_and(is_guarded)
    }

    /// A path of the library that LD_PRELOAD can contain.
    fn loadable(&self, shim: &Path) -> Result<PathBuf> {
        if !is_special(shim) {
            return Ok(shim.into());
        }
        let link = self.path().join(SHIM_NAME);
        symlink(shim, &link)
            .with_context(|| format!("{}: cannot create a symbolic link to the library", link.display()))?;
        Ok(link)
    }

    /// Lets another user's processes connect to the socket in it, and load a copy of the library, if it has one. The directory stays
    /// this user's, and so does the library: what they can change they could make one load who has more rights than they have, as
    /// a program that changes its user now and then.
    ///
    /// # Errors
    /// So for both: the system refuses it.
    pub(super) fn admit(&self, socket: &Path, user: u32) -> io::Result<()> {
        fs::set_permissions(socket, Permissions::from_mode(0o600))?;
        lchown(socket, Some(user), None)?;
        self.0.let_others_through()
    }

    /// Writes a copy of the library into it that everybody may read who may go through the directory.
    pub(super) fn copy_library(&self, image: &[u8]) -> io::Result<PathBuf> {
        let path = self.path().join(SHIM_NAME);
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(image)?;
        check_executable_mapping(&file)?;
        file.set_permissions(Permissions::from_mode(0o444))?;
        Ok(path)
    }

    /// Adds variables to the program's environment: LD_PRELOAD for the loader, the socket's path for the shim (without one it
    /// stays dormant), and the original LD_PRELOAD, which the shim restores. Where a service manager has named memtrack as
    /// the process that it started, the shim puts the program in its place.
    ///
    /// # Errors
    /// LD_PRELOAD cannot contain the library's path, and no link to it can be created.
    pub(super) fn prepare(&self, environment: &mut Environment, shim: &Path, socket: Option<&Path>) -> Result<()> {
        let mut preload = OsString::from(self.loadable(shim)?);
        if let Some((name, old)) = environment.iter_mut().find(|(name, _)| name == PRELOAD) {
            if !old.is_empty() {
                preload.push(":");
                preload.push(&old);
            }
            // In place, so that the order of the environment is unchanged.
            *name = PRELOAD_VARIABLE.into();
        }
        set_variable(environment, PRELOAD, preload);
        let own = std::process::id();
        for (name, value) in environment.iter_mut() {
            if PID_VARIABLES.iter().any(|known| name == known) && value == &*own.to_string() {
                *value = format!("{own:0PID_DIGITS$}").into();
            }
        }
        match socket {
            Some(socket) => set_variable(environment, SOCKET_VARIABLE, socket.into()),
            None => set_variable(environment, DORMANT_VARIABLE, "1".into()),
        }
        Ok(())
    }
}

/// The directories in which it may be.
fn parents() -> Vec<PathBuf> {
    let mut parents = vec![std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
    parents.retain(|path| is_usable(path));
    parents.dedup();
    parents
}

/// Whether nobody but root and this user can rename what these have in the directory, or a directory on the way to it.
fn is_guarded(directory: &Path) -> bool {
    let is_safe = |path: &Path| {
        let Ok(found) = fs::symlink_metadata(path) else { return false };
        let is_owned = found.uid() == 0 || found.uid() == effective_user();
        let is_sticky = found.mode() & libc::S_ISVTX != 0;
        found.is_dir() && is_owned && (is_sticky || found.mode() & 0o022 == 0)
    };
    directory.is_absolute() && directory.ancestors().all(is_safe)
}

/// Whether the path of a socket in it is short enough, and LD_PRELOAD can contain the path of a link in it.
fn is_usable(directory: &Path) -> bool {
    directory.as_os_str().len() <= MAX_DIRECTORY_LEN && directory.is_absolute() && !is_special(directory)
}

#[cfg(test)]
mod tests {
    use super::{PRELOAD_VARIABLE, PrivateDirectory, SOCKET_VARIABLE, is_guarded};
    use crate::shim::is_special;
    use crate::target::{Environment, variable};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::Path;

    fn prepared(before: &[(&str, &str)], shim: &str) -> (PrivateDirectory, Environment) {
        let mut environment: Environment = before.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let private = PrivateDirectory::new().unwrap();
        private.prepare(&mut environment, Path::new(shim), Some(Path::new("/s"))).unwrap();
        (private, environment)
    }

    #[test]
    fn preload_is_kept() {
        let (_private, environment) = prepared(&[("LD_PRELOAD", "/a.so"), ("X", "y")], "/shim.so");
        let get = |name| variable(&environment, name).map(|value| value.to_str().unwrap());
        assert_eq!(get("LD_PRELOAD"), Some("/shim.so:/a.so"));
        assert_eq!((get(PRELOAD_VARIABLE), get(SOCKET_VARIABLE), get("X")), (Some("/a.so"), Some("/s"), Some("y")));
        let (_private, environment) = prepared(&[], "/shim.so");
        assert_eq!(variable(&environment, PRELOAD_VARIABLE), None);
        let (_private, environment) = prepared(&[("LD_PRELOAD", "")], "/shim.so");
        assert_eq!(variable(&environment, PRELOAD_VARIABLE).unwrap(), "");
        assert_eq!(variable(&environment, "LD_PRELOAD").unwrap(), "/shim.so");
    }

    #[test]
    fn there_is_room_for_the_pid_that_a_service_manager_knows() {
        let own = std::process::id().to_string();
        let (_private, environment) =
            prepared(&[("LISTEN_PID", &own), ("WATCHDOG_PID", "1"), ("PID", &own)], "/shim.so");
        let get = |name| variable(&environment, name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(get("LISTEN_PID"), Some(format!("{own:0>10}")));
        assert_eq!((get("WATCHDOG_PID"), get("PID")), (Some("1".into()), Some(own)));
    }

    #[test]
    fn paths_that_the_loader_would_split_are_linked() {
        let (private, environment) = prepared(&[], "/with space/shim.so");
        let preload = variable(&environment, "LD_PRELOAD").unwrap();
        assert!(!is_special(Path::new(preload)));
        assert_eq!(std::fs::read_link(preload).unwrap(), Path::new("/with space/shim.so"));
        assert!(Path::new(preload).starts_with(private.path()));
    }

    #[test]
    fn a_place_where_another_user_can_rename_is_not_guarded() {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        let (outer, inner) = (root.path().join("outer"), root.path().join("outer/inner"));
        std::fs::create_dir_all(&inner).unwrap();
        let mode = |mode| std::fs::set_permissions(&outer, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o755);
        assert!(is_guarded(&outer) && is_guarded(&inner) && !is_guarded(Path::new("inner")));
        for shared in [0o777, 0o775] {
            mode(shared);
            assert!(!is_guarded(&outer) && !is_guarded(&inner));
        }
        mode(0o1777);
        assert!(is_guarded(&outer) && is_guarded(&inner));
        symlink(&inner, root.path().join("link")).unwrap();
        assert!(!is_guarded(&root.path().join("link")));
        // Only root gives directories to others. That of a sticky one renames what is in it.
        if chown(&outer, Some(65534), None).is_ok() {
            assert!(!is_guarded(&outer) && !is_guarded(&inner));
        }
    }

    #[test]
    fn the_next_place_is_taken_and_all_are_named_where_none_can_be() {
        let root = tempfile::tempdir().unwrap();
        let absent = root.path().join("absent");
        let private = PrivateDirectory::new_in([absent.clone(), root.path().into()].into_iter()).unwrap();
        assert!(private.path().starts_with(root.path()));
        let error = PrivateDirectory::new_in([absent].into_iter()).unwrap_err().to_string();
        assert!(
            error.contains("/absent (entity not found)") && error.ends_with("set TMPDIR to a writable directory"),
            "{error}"
        );
    }
}
