//! Opens the file of a mapping, even if another file is at its path now.
//!
//! There are two ways: `/proc/PID/map_files`, which is that very file but needs privileges, and its path below
//! `/proc/PID/root`, where another file may be. A deleted file, or one that never had a path, may still be among the
//! process's open files.
//!
//! Invariant: a returned file is the mapped one: it has the device and inode number that the kernel writes into maps.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::parse::FileMapping;
use super::read;

/// Maximum number of open files that are examined.
const MOST_OPEN: usize = 4096;

/// The file of a mapping.
#[derive(Debug)]
pub(super) struct OpenedFile {
    /// Its path in the process; with the kernel's mark if it was deleted.
    pub(super) path: Vec<u8>,
    /// `None`: it could not be opened.
    pub(super) file: Option<File>,
}

/// Finds the file that this process has mapped there.
pub(super) fn find(pid: i32, mapping: &FileMapping) -> OpenedFile {
    let direct = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end));
    // Reading the link needs no privilege, and no line feed is escaped in it.
    let told = fs::read_link(&direct).ok().map(|path| path.into_os_string().into_vec());
    let spellings = match &told {
        Some(path) => FileMapping { path: path.clone(), ..mapping.clone() }.spellings(),
        None => mapping.spellings(),
    };
    for path in spellings {
        if let Some(file) = at_path(pid, mapping, &path) {
            return OpenedFile { path, file: Some(file) };
        }
    }
    let file = regular(&direct, mapping).or_else(|| among_open(pid, mapping));
    OpenedFile { path: told.unwrap_or_else(|| mapping.path.clone()), file }
}

/// The file at this path of the process, if it is the mapped one.
fn at_path(pid: i32, mapping: &FileMapping, path: &[u8]) -> Option<File> {
    let mut whole = format!("/proc/{pid}/root").into_bytes();
    whole.extend_from_slice(path);
    regular(Path::new(OsStr::from_bytes(&whole)), mapping)
}

/// The mapped file among those that the process has open.
fn among_open(pid: i32, mapping: &FileMapping) -> Option<File> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let paths = open.take(MOST_OPEN).filter_map(|entry| Some(entry.ok()?.path()));
    // Compare the inode number first, which needs no open.
    let mut alike = paths.filter(|path| fs::metadata(path).is_ok_and(|found| found.ino() == mapping.inode));
    alike.find_map(|path| regular(&path, mapping))
}

/// The regular file at this path, if it is the mapped one. Other files are not opened, since that may block or have an
/// effect.
fn regular(path: &Path, mapping: &FileMapping) -> Option<File> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let is_it = metadata.is_file() && (agrees(&metadata, mapping) || is_alike(&file, mapping).unwrap_or(false));
    is_it.then_some(file)
}

fn agrees(metadata: &Metadata, mapping: &FileMapping) -> bool {
    let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    (device, metadata.ino()) == (mapping.device, mapping.inode)
}

/// Whether the file, mapped by this process, has the same device and inode number in maps: overlays and subvolumes show
/// another device for a file than for its mappings.
fn is_alike(file: &File, mapping: &FileMapping) -> io::Result<bool> {
    let here = MappedPage::map(file)?;
    let maps = super::parse(&read(std::process::id().cast_signed())?);
    let found = maps.at(here.0.addr() as u64);
    Ok(found.is_some_and(|found| (found.device, found.inode) == (mapping.device, mapping.inode)))
}

/// The first page of a file, mapped and never read.
struct MappedPage(*mut libc::c_void);

const HERE_BYTES: usize = 4096;

impl MappedPage {
    fn map(file: &File) -> io::Result<Self> {
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let at = unsafe { libc::mmap(null, HERE_BYTES, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(at)) }
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and nobody refers to what is in it.
        unsafe { libc::munmap(self.0, HERE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::super::parse::{FileMapping, Maps, parse};
    use super::{MappedPage, find, is_alike, regular};

    fn pid() -> i32 {
        std::process::id().cast_signed()
    }

    /// The file, mapped, and the line that the system has for it.
    fn mapped(file: &File) -> (MappedPage, FileMapping) {
        let here = MappedPage::map(file).unwrap();
        let maps: Maps = parse(&fs::read("/proc/self/maps").unwrap());
        let mapping = maps.at(here.0.addr() as u64).unwrap().clone();
        (here, mapping)
    }

    fn write(path: &Path, text: &str) -> File {
        fs::write(path, text).unwrap();
        File::open(path).unwrap()
    }

    /// The path that is found, and the file's contents.
    fn found(mapping: &FileMapping) -> (Vec<u8>, Option<String>) {
        let found = find(pid(), mapping);
        (found.path, found.file.map(|file| std::io::read_to_string(file).unwrap()))
    }

    #[test]
    fn files_are_found_whatever_they_are_called() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["plain", "a b", "line\nfeed", "back\\012slash", "x (deleted)", " "] {
            let path = dir.path().join(name);
            let file = write(&path, name);
            let (_here, mapping) = mapped(&file);
            assert_eq!(found(&mapping), (path.as_os_str().as_bytes().to_vec(), Some(name.to_owned())));
        }
    }

    #[test]
    fn another_file_at_the_path_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        for marked in ["lib.so", "lib.so (deleted)"] {
            let path = dir.path().join("lib.so");
            let file = write(&path, "old");
            let (_here, mapping) = mapped(&file);
            fs::remove_file(&path).unwrap();
            write(&dir.path().join(marked), "new");
            let told = [path.as_os_str().as_bytes(), b" (deleted)"].concat();
            // The deleted file is still open here.
            assert_eq!(found(&mapping), (told.clone(), Some("old".to_owned())));
            drop(file);
            let (path, text) = found(&mapping);
            assert!(path == told && text.is_none_or(|text| text == "old"));
        }
    }

    #[test]
    fn a_file_without_a_path_is_found_among_those_that_are_open() {
        // SAFETY: a name that ends; the result is checked.
        let fd = unsafe { libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: a new descriptor that nobody else owns.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(b"memory").unwrap();
        let (_here, mapping) = mapped(&file);
        assert_eq!(found(&mapping), (b"/memfd:code (deleted)".to_vec(), Some("memory".to_owned())));
    }

    #[test]
    fn where_devices_differ_the_file_is_compared_as_it_is_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (write(&dir.path().join("a"), "a"), write(&dir.path().join("b"), "b"));
        let (_here, mapping) = mapped(&file);
        assert!(is_alike(&file, &mapping).unwrap() && !is_alike(&other, &mapping).unwrap());
        assert!(regular(&dir.path().join("a"), &mapping).is_some_and(|found| found.as_raw_fd() != file.as_raw_fd()));
        assert!(regular(dir.path(), &mapping).is_none() && regular(Path::new("/dev/null"), &mapping).is_none());
        assert!(regular(&dir.path().join("none"), &mapping).is_none());
    }
}
