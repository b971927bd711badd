//! The library that is loaded into the program, and the private directory with the socket it connects to.
//!
//! Invariant: the directory is the user's alone, and gone when memtrack ends.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use memtrack_collector::{PRELOAD_VARIABLE, SOCKET_VARIABLE};
use tempfile::TempDir;

use crate::target::{Environment, set_variable};

/// Names another library than the one that belongs to this executable.
const SHIM_VARIABLE: &str = "MEMTRACK_SHIM";
const SHIM_NAME: &str = "libmemtrack_shim.so";
const PRELOAD: &str = "LD_PRELOAD";
/// Socket paths end at 108 bytes; the directory's and the socket's own names need some of them.
const MAX_DIRECTORY_LEN: usize = 70;

/// The library, where it is to be found: the one that is named, or the one beside the executable or in `../lib/memtrack`.
///
/// # Errors
/// None of them is there.
pub(super) fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(SHIM_VARIABLE).map(PathBuf::from) {
        return path
            .canonicalize()
            .with_context(|| format!("{}: cannot use the library named by {SHIM_VARIABLE}", path.display()));
    }
    let executable = std::env::current_exe().context("cannot determine the path of the memtrack executable")?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(SHIM_NAME), directory.join("../lib/memtrack").join(SHIM_NAME)];
    for place in &places {
        if let Ok(path) = place.canonicalize() {
            return Ok(path);
        }
    }
    let [beside, library] = places.map(|place| place.display().to_string());
    bail!(
        "{SHIM_NAME} not found at {beside} or {library}; build it with 'cargo build --release', or set {SHIM_VARIABLE} to its path"
    )
}

/// The private directory of one recording.
#[derive(Debug)]
pub(super) struct Private(TempDir);

impl Private {
    /// Makes it, in TMPDIR where the path is of use for a socket, else in /tmp.
    ///
    /// # Errors
    /// What creating it says.
    pub(super) fn new() -> Result<Self> {
        let wanted = std::env::temp_dir();
        let usable =
            wanted.as_os_str().len() <= MAX_DIRECTORY_LEN && wanted.is_absolute() && !is_special(wanted.as_os_str());
        let parent = if usable { wanted } else { "/tmp".into() };
        let directory = tempfile::Builder::new()
            .prefix("memtrack-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(&parent)
            .with_context(|| {
                format!(
                    "{}: cannot create a directory for the socket; set TMPDIR to a writable directory",
                    parent.display()
                )
            })?;
        Ok(Self(directory))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The library's path in a form that LD_PRELOAD can carry.
    fn loadable(&self, shim: &Path) -> Result<PathBuf> {
        if !is_special(shim.as_os_str()) {
            return Ok(shim.into());
        }
        let link = self.path().join(SHIM_NAME);
        symlink(shim, &link)
            .with_context(|| format!("{}: cannot create a symbolic link to the library", link.display()))?;
        Ok(link)
    }

    /// Adds to the program's environment what makes the loader load the library, and what the library needs to find
    /// memtrack and to make LD_PRELOAD look as it was.
    ///
    /// # Errors
    /// The library's path cannot be carried by LD_PRELOAD and a link to it cannot be made.
    pub(super) fn prepare(&self, environment: &mut Environment, shim: &Path, socket: &Path) -> Result<()> {
        let mut preload = OsString::from(self.loadable(shim)?);
        if let Some((name, old)) = environment.iter_mut().find(|(name, _)| name == PRELOAD) {
            if !old.is_empty() {
                preload.push(":");
                preload.push(&old);
            }
            // In its place, so that the program finds its environment in the order that it would have.
            *name = PRELOAD_VARIABLE.into();
        }
        set_variable(environment, PRELOAD, preload);
        set_variable(environment, SOCKET_VARIABLE, socket.into());
        Ok(())
    }
}

/// What ends a path in LD_PRELOAD, or is replaced in it.
fn is_special(path: &OsStr) -> bool {
    path.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$' | b'\t' | b'\n'))
}

#[cfg(test)]
mod tests {
    use super::{PRELOAD_VARIABLE, Private, SOCKET_VARIABLE, is_special};
    use crate::target::{Environment, variable};
    use std::path::Path;

    fn prepared(before: &[(&str, &str)], shim: &str) -> (Private, Environment) {
        let mut environment: Environment = before.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let private = Private::new().unwrap();
        private.prepare(&mut environment, Path::new(shim), Path::new("/s")).unwrap();
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
    fn paths_that_the_loader_would_split_are_linked() {
        let (private, environment) = prepared(&[], "/with space/shim.so");
        let preload = variable(&environment, "LD_PRELOAD").unwrap();
        assert!(!is_special(preload));
        assert_eq!(std::fs::read_link(preload).unwrap(), Path::new("/with space/shim.so"));
        assert!(Path::new(preload).starts_with(private.path()));
    }
}
