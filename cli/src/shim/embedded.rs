//! The shim that is embedded in this program, written to a directory of the user, from which the loader maps it.
//!
//! Each version of the library has one copy (the directory's name is the hash of its bytes), which all later runs use.
//! Each run compares the whole copy with the embedded bytes, which takes half a millisecond, and rewrites it if they
//! differ. Invariant: the file at the returned path has exactly the embedded bytes, and no other user can change it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;

use super::{NoPlace, SHIM_NAME, is_special};
use crate::safe_directory;
use crate::sys::{check_executable_mapping, effective_user};
use crate::units;

/// In a section of its own, from which the Python package takes it.
#[expect(unsafe_code, reason = "names a section")]
// SAFETY: no other data has a section of this name.
#[unsafe(link_section = ".memtrack_shim")]
static LIBRARY: [u8; include_bytes!(env!("MEMTRACK_EMBEDDED_SHIM")).len()] =
    *include_bytes!(env!("MEMTRACK_EMBEDDED_SHIM"));
/// The name of this version's directory.
const HASH: &str = env!("MEMTRACK_EMBEDDED_SHIM_HASH");
const HASH_LEN: usize = 16;
/// After this time without a run, the copy of another version is removed.
const UNUSED: Duration = Duration::from_hours(30 * 24);
/// Precision of the recorded time of the last run.
const DAY: Duration = Duration::from_hours(24);

/// Returns the library's file, in the first directory from which the loader can map it.
///
/// # Errors
/// No directory is usable; names the reason for each.
pub(super) fn unpack() -> Result<PathBuf, NoPlace> {
    unpack_in(&places())
}

/// Where the library is, or where it would be written.
pub(super) fn location() -> String {
    let size = units::size(LIBRARY.len() as u64);
    let paths: Vec<_> = places().iter().map(|base| base.join(HASH).join(SHIM_NAME)).collect();
    match (paths.iter().find(|path| path.exists()), paths.first()) {
        (Some(path), _) => format!("embedded ({size}), unpacked as {}", path.display()),
        (None, Some(path)) => format!("embedded ({size}), to be unpacked as {}", path.display()),
        (None, None) => format!("embedded ({size})"),
    }
}

fn unpack_in(places: &[PathBuf]) -> Result<PathBuf, NoPlace> {
    let mut tried = Vec::new();
    for base in places {
        match unpack_below(base) {
            Ok(path) => return Ok(path),
            Err(error) => tried.push((base.clone(), error)),
        }
    }
    let remedy = "set XDG_CACHE_HOME to a directory of your own that is writable and not mounted noexec";
    Err(NoPlace::new("memtrack's library cannot be written to", &tried, remedy))
}

/// The directories to try, in this order. Shared ones have a subdirectory for each user.
fn places() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let own =
        [variable("XDG_CACHE_HOME"), variable("HOME").map(|home| home.join(".cache")), variable("XDG_RUNTIME_DIR")];
    let shared = [variable("TMPDIR"), Some("/tmp".into()), Some("/var/tmp".into()), Some("/dev/shm".into())];
    let for_user = format!("memtrack-{}", effective_user());
    let own = own.into_iter().flatten().map(|path| path.join("memtrack"));
    let mut places: Vec<_> = own.chain(shared.into_iter().flatten().map(|path| path.join(&for_user))).collect();
    places.dedup();
    places
}

fn unpack_below(base: &Path) -> io::Result<PathBuf> {
    let special = || io::Error::new(ErrorKind::InvalidInput, "LD_PRELOAD cannot carry a path with blanks, ':' or '$'");
    if is_special(base) {
        return Err(special());
    }
    let directory = safe_directory::prepare(base, HASH)?;
    // The base may be a link to another path.
    let unpacked = if is_special(&directory) { Err(special()) } else { unpack_into(&directory) };
    if unpacked.is_err() {
        // Fails if the directory has a copy, from a time when the file system permitted mapping it.
        let _ = fs::remove_dir(&directory);
    }
    unpacked
}

fn unpack_into(directory: &Path) -> io::Result<PathBuf> {
    let path = directory.join(SHIM_NAME);
    let file = match unchanged(&path) {
        Some(file) => file,
        None => write(directory, &path)?,
    };
    check_executable_mapping(&file).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => io::Error::new(error.kind(), "mounted noexec"),
        _ => error,
    })?;
    keep_in_use(directory);
    Ok(path)
}

/// The copy, if it belongs to this user and has exactly the embedded bytes.
fn unchanged(path: &Path) -> Option<File> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let is_own = metadata.is_file() && metadata.uid() == effective_user() && metadata.mode() & 0o022 == 0;
    (is_own && metadata.len() == LIBRARY.len() as u64 && has_bytes(&mut file, &LIBRARY).ok()?).then_some(file)
}

fn has_bytes(file: &mut File, bytes: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; 1 << 16];
    for expected in bytes.chunks(buffer.len()) {
        let read = &mut buffer[..expected.len()];
        file.read_exact(read)?;
        if read != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes a new copy, replacing any file of that name.
fn write(directory: &Path, path: &Path) -> io::Result<File> {
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(&LIBRARY)?;
    let file = file.persist(path).map_err(|error| error.error)?;
    remove_unused(directory);
    Ok(file)
}

/// Updates the time of the last run, at most once a day, so that this version is not removed as unused.
fn keep_in_use(directory: &Path) {
    let age = directory.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
    if age.is_some_and(|age| age > DAY) {
        let _ = File::open(directory).and_then(|directory| directory.set_modified(SystemTime::now()));
    }
}

/// Removes copies of other versions that were not used for a month; errors are ignored.
fn remove_unused(directory: &Path) {
    let Some(entries) = directory.parent().and_then(|base| fs::read_dir(base).ok()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_version = name.len() == HASH_LEN && name.to_string_lossy().bytes().all(|byte| byte.is_ascii_hexdigit());
        let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let is_unused = modified.and_then(|time| time.elapsed().ok()).is_some_and(|age| age > UNUSED);
        if is_version && is_unused && entry.path() != directory {
            let _ = fs::remove_file(entry.path().join(SHIM_NAME));
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HASH, LIBRARY, SHIM_NAME, unpack_below, unpack_in};
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use std::time::SystemTime;

    fn bytes_of(path: &Path) -> Vec<u8> {
        fs::read(path).unwrap()
    }

    #[test]
    fn the_copy_is_written_once() {
        let root = tempfile::tempdir().unwrap();
        let path = unpack_below(root.path()).unwrap();
        assert_eq!(path, root.path().canonicalize().unwrap().join(HASH).join(SHIM_NAME));
        assert!(bytes_of(&path) == LIBRARY);
        let inode = fs::metadata(&path).unwrap().ino();
        assert_eq!(unpack_below(root.path()).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    }

    #[test]
    fn an_altered_copy_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = unpack_below(root.path()).unwrap();
        let mut altered = LIBRARY.to_vec();
        altered[LIBRARY.len() / 2] ^= 1;
        fs::write(&path, &altered).unwrap();
        assert!(bytes_of(&unpack_below(root.path()).unwrap()) == LIBRARY);
        fs::write(&path, &LIBRARY[..1000]).unwrap();
        assert!(bytes_of(&unpack_below(root.path()).unwrap()) == LIBRARY);
        // A symbolic link to an equal file could be redirected later.
        let elsewhere = root.path().join("elsewhere.so");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(fs::symlink_metadata(unpack_below(root.path()).unwrap()).unwrap().is_file());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(fs::metadata(unpack_below(root.path()).unwrap()).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn unusable_places_are_passed_over_and_named_at_last() {
        let root = tempfile::tempdir().unwrap();
        let (file, blank, good) = (root.path().join("file"), root.path().join("a b"), root.path().join("good"));
        fs::write(&file, "").unwrap();
        let path = unpack_in(&[file.join("memtrack"), blank.clone(), good.clone()]).unwrap();
        assert!(path.starts_with(good.canonicalize().unwrap()));
        let error = unpack_in(&[file.join("memtrack"), blank]).unwrap_err().to_string();
        for part in ["file/memtrack (Not a directory", "a b (LD_PRELOAD cannot carry", "XDG_CACHE_HOME"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_unused_versions_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let version = |name: &str, used: SystemTime| {
            let directory = root.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join(SHIM_NAME), "").unwrap();
            File::open(&directory).unwrap().set_modified(used).unwrap();
            directory
        };
        let now = SystemTime::now();
        let unused = version("0000000000000001", now - 2 * super::UNUSED);
        let used = version("0000000000000002", now - super::DAY);
        let other = version("something-else", now - 2 * super::UNUSED);
        unpack_below(root.path()).unwrap();
        assert_eq!((unused.exists(), used.exists(), other.exists()), (false, true, true));
    }
}
