//! Directories for temporary files that only this user may enter, and those that were left behind when memtrack was killed.
//!
//! The owner of a directory has its file [`LOCK`] locked, which the kernel unlocks however it ends. An owner that ends
//! removes what it finds beside its own directory. Invariant: removed is only what this user made here and nobody uses:
//! with no other files than memtrack's, an unlocked lock, a socket at which nobody listens, and no younger than [`SETTLED`], or
//! [`KEPT`] times that with profiles that wait: these are for the next recording that sends to their server.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::sys::effective_user;

const LOCK: &str = "lock";
const PREFIX: &str = "memtrack-";
/// What follows the prefix in names of directories for pushes.
const PUSHES: &str = "push-";
/// Characters at the end of the names.
const RANDOM: usize = 6;
/// A directory that was changed more lately may be one that is being set up.
const SETTLED: Duration = Duration::from_secs(60);
/// How many times as long profiles wait for the next recording: an hour.
const KEPT: u32 = 60;
/// How often a lock is tried that somebody has who looks whether the directory was left, and the pause between.
const LOCK_TRIES: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// Most entries that are looked at, so that a large directory for temporary files keeps no program waiting.
const MOST_LOOKED_AT: usize = 10_000;

/// A directory of this process.
#[derive(Debug)]
pub(crate) struct OwnedDirectory {
    directory: TempDir,
    /// `None` where files cannot be locked: then there is no such file, and so nobody takes it for one that was left.
    _lock: Option<File>,
}

impl OwnedDirectory {
    /// Makes one for the socket of a recording.
    ///
    /// # Errors
    /// So here and below: it cannot be made.
    pub(crate) fn for_socket(parent: &Path) -> io::Result<Self> {
        Self::new_in(parent, PREFIX)
    }

    /// Makes one for profiles that wait.
    pub(crate) fn for_pushes() -> io::Result<Self> {
        Self::for_pushes_in(&std::env::temp_dir())
    }

    /// Makes one for profiles that wait below this directory.
    pub(crate) fn for_pushes_in(parent: &Path) -> io::Result<Self> {
        Self::new_in(parent, &format!("{PREFIX}{PUSHES}"))
    }

    /// Those for profiles whose owners have ended without removing them, the oldest first.
    pub(crate) fn left_pushes() -> Vec<LeftDirectory> {
        Self::left_pushes_in(&std::env::temp_dir())
    }

    /// Those below this directory.
    pub(crate) fn left_pushes_in(parent: &Path) -> Vec<LeftDirectory> {
        left_pushes(parent)
    }

    fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        let private = fs::Permissions::from_mode(0o700);
        let directory = builder.prefix(prefix).rand_bytes(RANDOM).permissions(private).tempdir_in(parent)?;
        let lock = locked(&directory.path().join(LOCK), File::try_lock);
        Ok(Self { directory, _lock: lock })
    }

    /// Lets others go through it to files whose names they are told; nobody else lists or changes it, nor has its lock.
    ///
    /// # Errors
    /// It cannot be changed.
    pub(crate) fn let_others_through(&self) -> io::Result<()> {
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        match set(&self.path().join(LOCK), 0o600) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        set(self.path(), 0o711)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Makes the file and locks it; where that cannot be, there is no file.
fn locked(path: &Path, mut try_lock: impl FnMut(&File) -> Result<(), TryLockError>) -> Option<File> {
    let made = File::create(path).ok().filter(|lock| {
        (0..LOCK_TRIES).any(|_| match try_lock(lock) {
            // Somebody looks whether the directory was left, and unlocks it at once.
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(LOCK_PAUSE);
                false
            }
            done => done.is_ok(),
        })
    });
    if made.is_none() {
        let _ = fs::remove_file(path);
    }
    made
}

/// Opens a plain file to read it, and waits for nobody.
///
/// # Errors
/// It cannot be opened, or is no plain file.
pub(crate) fn open_plain(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(ErrorKind::InvalidData, "no plain file")) }
}

/// A directory for profiles of an owner that was killed; nobody else takes it as long as this lives.
#[derive(Debug)]
pub(crate) struct LeftDirectory {
    path: PathBuf,
    _lock: File,
}

impl LeftDirectory {
    /// It, if something waits in it and nobody owns it. One without files may be one that is being set up: it is not locked.
    fn of(path: PathBuf) -> Option<Self> {
        if numbered(&path).is_empty() {
            return None;
        }
        let lock = open_plain(&path.join(LOCK)).ok().filter(|lock| lock.try_lock().is_ok())?;
        Some(Self { path, _lock: lock })
    }

    /// The files that wait, in the order in which they were made.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        numbered(&self.path)
    }

    /// Removes it, if nothing waits in it any more.
    pub(crate) fn remove_if_empty(self) {
        if self.files().is_empty() {
            let _ = fs::remove_file(self.path.join(LOCK)).and_then(|()| fs::remove_dir(&self.path));
        }
    }
}

/// The files whose names are numbers, in their order.
fn numbered(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(MOST_LOOKED_AT);
    let number = |entry: fs::DirEntry| Some((entry.file_name().to_str()?.parse::<u64>().ok()?, entry.path()));
    let mut files: Vec<_> = entries.filter_map(number).collect();
    files.sort_unstable();
    files.into_iter().map(|(_, path)| path).collect()
}

fn left_pushes(parent: &Path) -> Vec<LeftDirectory> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten().take(MOST_LOOKED_AT);
    let entries = entries.filter(|entry| is_named_here(&entry.file_name()) && is_for_pushes(&entry.file_name()));
    let directories = entries.map(|entry| entry.path()).filter(|path| is_private(path, Duration::ZERO));
    let mut left: Vec<_> = directories.filter_map(LeftDirectory::of).collect();
    left.sort_by_key(|left| fs::metadata(&left.path).and_then(|found| found.modified()).ok());
    left
}

impl Drop for OwnedDirectory {
    fn drop(&mut self) {
        self.path().parent().into_iter().for_each(|parent| remove_left(parent, SETTLED));
    }
}

/// Removes the directories of owners that were killed.
fn remove_left(parent: &Path, settled: Duration) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten().take(MOST_LOOKED_AT);
    for entry in entries.filter(|entry| is_named_here(&entry.file_name())) {
        let directory = entry.path();
        let waits = is_for_pushes(&entry.file_name()) && directory.read_dir().is_ok_and(|files| files.count() > 1);
        let settled = if waits { settled * KEPT } else { settled };
        if let Some(files) = is_private(&directory, settled).then(|| files_left(&directory)).flatten() {
            // The lock is the last one: what is left without it is removed by nobody.
            let (lock, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| file.ends_with(LOCK));
            let mut files = others.into_iter().chain(lock);
            let _ = files.try_for_each(fs::remove_file).and_then(|()| fs::remove_dir(&directory));
        }
    }
}

/// Digits alone are a user's id: the name of the directory for control sockets.
fn is_named_here(name: &OsStr) -> bool {
    let name = name.as_bytes().strip_prefix(PREFIX.as_bytes()).unwrap_or_default();
    let random = name.strip_prefix(PUSHES.as_bytes()).unwrap_or(name);
    random.len() == RANDOM
        && random.iter().all(u8::is_ascii_alphanumeric)
        && random.iter().any(|byte| !byte.is_ascii_digit())
}

fn is_for_pushes(name: &OsStr) -> bool {
    name.as_bytes().starts_with(format!("{PREFIX}{PUSHES}").as_bytes())
}

/// Whether it is this user's alone, and was not changed lately.
fn is_private(directory: &Path, settled: Duration) -> bool {
    let Ok(found) = fs::symlink_metadata(directory) else { return false };
    let age = found.modified().ok().and_then(|changed| changed.elapsed().ok());
    found.is_dir()
        && found.uid() == effective_user()
        && found.mode() & 0o7777 == 0o700
        && age.is_some_and(|age| age >= settled)
}

/// The files in a directory that nobody uses; `None`: somebody may. An empty one is not known to be memtrack's, nor is one with
/// numbers that has no lock known to be left. A link to the library stays, since programs may be told to load it.
fn files_left(directory: &Path) -> Option<Vec<PathBuf>> {
    let files = fs::read_dir(directory).ok()?.map(|entry| Some(entry.ok()?.path())).collect::<Option<Vec<_>>>()?;
    let has_lock = files.contains(&directory.join(LOCK));
    let is_known = has_lock || !files.is_empty() && numbered(directory).is_empty();
    (is_known && files.iter().all(|file| is_left(file))).then_some(files)
}

fn is_left(file: &Path) -> bool {
    let Ok(kind) = fs::symlink_metadata(file).map(|found| found.file_type()) else { return false };
    let name = file.file_name().unwrap_or_default();
    if kind.is_socket() {
        UnixStream::connect(file).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    } else if name == LOCK && kind.is_file() {
        File::open(file).is_ok_and(|lock| lock.try_lock().is_ok())
    } else {
        kind.is_file() && name.as_bytes().iter().all(u8::is_ascii_digit)
    }
}

#[cfg(test)]
mod tests {
    use super::{LOCK, LeftDirectory, OwnedDirectory, PREFIX, left_pushes, locked, remove_left};
    use std::fs::{self, File, TryLockError};
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    /// A directory as one of memtrack, with these files.
    fn made(parent: &Path, name: &str, mode: u32, files: &[&str]) -> PathBuf {
        let directory = parent.join(format!("{PREFIX}{name}"));
        fs::create_dir(&directory).unwrap();
        files.iter().for_each(|file| drop(File::create(directory.join(file)).unwrap()));
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        directory
    }

    #[test]
    fn what_a_killed_owner_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let left = [
            made(parent, "aaaaa1", 0o700, &[LOCK]),
            made(parent, "push-aaaaa2", 0o700, &[LOCK, "0", "17"]),
            made(parent, "aaaaa3", 0o700, &[]),
        ];
        drop(UnixListener::bind(left[2].join("socket")).unwrap());
        let others = [
            made(parent, "100000", 0o700, &[LOCK]),
            made(parent, "backup", 0o700, &[]),
            made(parent, "aaaaa4", 0o700, &[LOCK, "letter.txt"]),
            made(parent, "aaaaa5", 0o755, &[LOCK]),
            made(parent, "aaaaa6", 0o700, &[]),
            made(parent, "longer7", 0o700, &[LOCK]),
            made(parent, "push-aaaaa8", 0o700, &["0", "17"]),
        ];
        let _listens = UnixListener::bind(others[4].join("socket")).unwrap();
        let own = OwnedDirectory::new_in(parent, PREFIX).unwrap();
        remove_left(parent, Duration::from_secs(60));
        assert!(left.iter().all(|directory| directory.exists()), "one may be being set up");
        remove_left(parent, Duration::ZERO);
        assert!(left.iter().all(|directory| !directory.exists()), "{left:?}");
        assert!(others.iter().all(|directory| directory.exists()) && own.path().exists(), "{others:?}");
        let path = own.path().to_owned();
        drop(own);
        assert!(!path.exists());
    }

    #[test]
    fn profiles_of_a_killed_owner_are_for_the_next_one() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let left = made(parent, "push-aaaaa1", 0o700, &[LOCK, "2", "10", "9"]);
        for (name, mode, files) in [
            ("push-aaaaa2", 0o700, &[LOCK][..]),
            ("push-aaaaa3", 0o755, &[LOCK, "1"]),
            ("push-aaaaa4", 0o700, &["1"]),
            ("aaaaa5", 0o700, &[LOCK, "1"]),
            ("push-aaaaa6", 0o700, &[LOCK, "1"]),
        ] {
            made(parent, name, mode, files);
        }
        let owned = File::open(parent.join("memtrack-push-aaaaa6").join(LOCK)).unwrap();
        owned.try_lock().unwrap();
        let mut found = left_pushes(parent);
        assert!(left_pushes(parent).is_empty(), "the first one has it");
        let first = found.pop().unwrap();
        assert!(found.is_empty());
        let files = first.files();
        assert_eq!(files, ["2", "9", "10"].map(|name| left.join(name)));
        files[1..].iter().for_each(|file| fs::remove_file(file).unwrap());
        first.remove_if_empty();
        assert!(left.join("2").exists());
        // Its owner removes it as soon as nothing waits.
        let again = LeftDirectory::of(left.clone()).unwrap();
        fs::remove_file(left.join("2")).unwrap();
        again.remove_if_empty();
        assert!(!left.exists());
    }

    #[test]
    fn an_owner_locks_its_directory_while_others_look_or_is_not_taken_for_gone() {
        let parent = tempfile::tempdir().unwrap();
        let lock = parent.path().join(LOCK);
        let mut looks = 3;
        let owned = locked(&lock, |file| {
            if looks > 0 {
                looks -= 1;
                return Err(TryLockError::WouldBlock);
            }
            file.try_lock()
        });
        assert!(owned.is_some() && File::open(&lock).unwrap().try_lock().is_err());
        let refuse = |_: &File| Err(TryLockError::Error(ErrorKind::Unsupported.into()));
        assert!(locked(&lock, refuse).is_none() && !lock.exists());
        assert!(locked(&lock, |_| Err(TryLockError::WouldBlock)).is_none() && !lock.exists());
    }
}
