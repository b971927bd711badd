//! A directory as the root of a file system: that of a process in a container, or a copy of it.
//!
//! Who owns it may be hostile: the kernel resolves each path within it (`openat2`), and only a file that is known to be a regular
//! one is opened for reading. Invariant: no link leads out of the directory, and what is opened is no pipe, socket or device; a
//! file system that a program serves (FUSE) may still keep who reads waiting.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The directory, open without rights to read it.
#[derive(Debug)]
pub struct RootDirectory(File);

impl RootDirectory {
    /// The directory at this path.
    ///
    /// # Errors
    /// There is none, or it may not be opened.
    pub fn at(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path).map(Self)
    }

    /// The root directory of a process, which stays open when it ends; `None`: it is the same as that of this process, with the
    /// same mounts, or may not be opened.
    #[must_use]
    pub fn of_process(pid: i32) -> Option<Self> {
        let root = Self::at(Path::new(&format!("/proc/{pid}/root"))).ok()?;
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let is_same = identity(root.0.metadata().ok()?) == identity(fs::metadata("/").ok()?)
            && mounts(&pid.to_string()) == mounts("self");
        (!is_same).then_some(root)
    }

    /// Finds what is at the path, and opens it without rights.
    fn find(&self, path: &Path) -> io::Result<File> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: plain numbers, for which zeroes are valid.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
        let (root, size) = (self.0.as_raw_fd(), size_of::<libc::open_how>());
        // SAFETY: a text that ends, and a live structure of this size; neither is written to.
        let found = unsafe { libc::syscall(libc::SYS_openat2, root, path.as_ptr(), &raw const how, size) };
        let found = i32::try_from(found).ok().filter(|found| *found >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: it was just opened, and nobody else knows it.
        Ok(unsafe { File::from_raw_fd(found) })
    }

    /// Opens the regular file at this path, with links as the process that has this root sees them.
    ///
    /// # Errors
    /// There is none, it cannot be opened, or the kernel is older than Linux 5.6.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        reopened(&self.find(path)?)
    }

    /// What the system knows of the file or directory at this path.
    pub(crate) fn metadata(&self, path: &Path) -> io::Result<fs::Metadata> {
        self.find(path)?.metadata()
    }

    /// The path without links, from this root on.
    pub(crate) fn resolved(&self, path: &Path) -> Option<PathBuf> {
        let found = fs::read_link(handle(&self.find(path).ok()?)).ok()?;
        let root = fs::read_link(handle(&self.0)).ok()?;
        Some(Path::new("/").join(found.strip_prefix(root).ok()?))
    }

    /// The first names in a directory.
    pub(crate) fn names(&self, directory: &Path, most: usize) -> Vec<std::ffi::OsString> {
        let found = self.find(directory).and_then(|found| fs::read_dir(handle(&found)));
        found.into_iter().flatten().flatten().take(most).map(|entry| entry.file_name()).collect()
    }
}

/// Opens what was opened without rights for reading, if it is a regular file.
pub(crate) fn reopened(found: &File) -> io::Result<File> {
    if !found.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(handle(found))
}

/// A path to what is open.
fn handle(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::RootDirectory;

    #[test]
    fn links_lead_to_what_they_name_within_the_root_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::write(dir.path().join("outside"), "outside").unwrap();
        fs::write(root.join("usr/bin/program"), "inside").unwrap();
        fs::write(root.join("outside"), "inside, too").unwrap();
        symlink("/usr/bin", root.join("bin")).unwrap();
        symlink("../../../../../outside", root.join("usr/up")).unwrap();
        symlink(dir.path().join("outside"), root.join("absolute")).unwrap();
        let opened = RootDirectory::at(&root).unwrap();
        let read = |path: &str| {
            let mut text = String::new();
            opened.open(Path::new(path)).and_then(|mut file| file.read_to_string(&mut text)).map(|_| text).ok()
        };
        assert_eq!(read("/bin/program").as_deref(), Some("inside"));
        assert_eq!(read("/../outside").as_deref(), Some("inside, too"));
        assert_eq!(read("/usr/up").as_deref(), Some("inside, too"));
        assert_eq!(read("/absolute"), None);
        assert_eq!(read("/usr/bin"), None);
        assert_eq!(opened.resolved(Path::new("/bin/program")).as_deref(), Some(Path::new("/usr/bin/program")));
        assert_eq!(opened.resolved(Path::new("/")).as_deref(), Some(Path::new("/")));
        assert_eq!(opened.names(Path::new("/bin"), 9), ["program"]);
        assert!(
            opened.resolved(Path::new("/absolute")).is_none() && opened.names(Path::new("/absolute"), 9).is_empty()
        );
    }

    #[test]
    fn what_would_block_or_act_is_not_opened() {
        let root = RootDirectory::at(Path::new("/")).unwrap();
        assert!(root.open(Path::new("/dev/null")).is_err());
        // A link of the kernel's, which leads anywhere.
        assert!(root.open(Path::new("/proc/self/exe")).is_err());
    }

    #[test]
    fn a_process_with_the_same_root_has_no_other() {
        assert!(RootDirectory::of_process(std::process::id().cast_signed()).is_none());
        assert!(RootDirectory::of_process(i32::MAX).is_none());
    }
}
