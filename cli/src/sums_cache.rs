//! Files in the user's cache directory with sums of captures that were read before.
//!
//! A file is a hash of its payload, the payload's length, each in eight bytes, and the payload, compressed. Those that
//! were not used for longest are removed when all take more than [`MOST`]. Invariant: what is found is what was put
//! there under that name; a failure to keep something is nobody's concern.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::NamedTempFile;
use twox_hash::XxHash64;

use crate::safe_directory;

/// Variable that turns it off with the value `none`.
const VARIABLE: &str = "MEMTRACK_CACHE";
/// The directory's name.
const NAME: &str = "sums";
/// Bytes of all files.
const MOST: u64 = 256 << 20;
/// Bytes of one file, and of its payload.
const MOST_OF_FILE: u64 = MOST / 8;
const MOST_OF_PAYLOAD: usize = 512 << 20;
/// Hash and length.
const HEAD: usize = 16;
/// Zstandard's fastest level.
const LEVEL: i32 = 1;

/// The directory.
pub(crate) struct SumsCache(PathBuf);

impl SumsCache {
    /// This user's; `None` where it is turned off or there can be none.
    pub(crate) fn of_user() -> Option<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if variable(VARIABLE).is_some_and(|value| value == "none") {
            return None;
        }
        let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let base = variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
        base.is_absolute().then(|| Self::below(&base.join("memtrack")).ok())?
    }

    fn below(base: &Path) -> io::Result<Self> {
        safe_directory::prepare(base, NAME).map(Self)
    }

    /// What was put here under this name.
    pub(crate) fn find(&self, name: &str) -> Option<Vec<u8>> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(self.0.join(name)).ok()?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(MOST_OF_FILE + 1).read_to_end(&mut bytes).ok()?;
        let payload = unpacked(&bytes)?;
        // For the choice of what is removed.
        let _ = file.set_modified(SystemTime::now());
        Some(payload)
    }

    /// Whether there is something under this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    /// Puts it here, if it takes at most so many bytes; whether it is here.
    pub(crate) fn put(&self, name: &str, payload: &[u8], most: u64) -> bool {
        let packed = packed(payload).filter(|bytes| bytes.len() as u64 <= most.min(MOST_OF_FILE));
        packed.is_some_and(|packed| self.write(name, &packed).and_then(|()| self.shrink(MOST)).is_ok())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = NamedTempFile::new_in(&self.0)?;
        file.write_all(bytes)?;
        file.persist(self.0.join(name)).map(drop).map_err(|error| error.error)
    }

    /// Removes the files that were not used for longest until all take at most so many bytes.
    fn shrink(&self, most: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0)?.flatten() {
            if let Ok(metadata) = entry.metadata() {
                files.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        files.sort();
        let mut all: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in &files {
            if all <= most {
                break;
            }
            fs::remove_file(path)?;
            all -= bytes;
        }
        Ok(())
    }
}

fn packed(payload: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = XxHash64::oneshot(0, payload).to_le_bytes().to_vec();
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(zstd::bulk::compress(payload, LEVEL).ok()?);
    (payload.len() <= MOST_OF_PAYLOAD).then_some(bytes)
}

fn unpacked(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, stored) = bytes.split_at_checked(HEAD)?;
    let (hash, length) = head.split_at(HEAD / 2);
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let payload = zstd::bulk::decompress(stored, length.min(MOST_OF_PAYLOAD)).ok()?;
    (payload.len() == length && XxHash64::oneshot(0, &payload).to_le_bytes() == hash).then_some(payload)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, SystemTime};

    use super::{HEAD, SumsCache};

    #[test]
    fn what_was_put_is_found_and_nothing_that_was_changed() {
        let root = tempfile::tempdir().unwrap();
        let cache = SumsCache::below(root.path()).unwrap();
        let payload = b"sums, sums, sums".repeat(100);
        assert_eq!(cache.find("a"), None);
        cache.put("a", &payload, 10);
        assert_eq!(cache.find("a"), None, "it is too large");
        cache.put("a", &payload, u64::MAX);
        assert_eq!(cache.find("a"), Some(payload.clone()));
        let whole = fs::read(cache.0.join("a")).unwrap();
        for at in [0, HEAD / 2, HEAD / 2 + 7, HEAD, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(cache.0.join("a"), &changed).unwrap();
            assert_eq!(cache.find("a"), None, "{at}");
            fs::write(cache.0.join("a"), &whole[..at]).unwrap();
            assert_eq!(cache.find("a"), None, "cut at {at}");
        }
    }

    #[test]
    fn what_was_not_used_for_longest_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let cache = SumsCache::below(root.path()).unwrap();
        let now = SystemTime::now();
        for (name, age) in [("old", 30), ("used", 40), ("new", 10)] {
            cache.put(name, b"sums", u64::MAX);
            File::open(cache.0.join(name)).unwrap().set_modified(now - Duration::from_secs(age)).unwrap();
        }
        assert!(cache.find("used").is_some());
        let one = fs::metadata(cache.0.join("new")).unwrap().len();
        cache.shrink(2 * one).unwrap();
        assert_eq!(["old", "used", "new"].map(|name| cache.find(name).is_some()), [false, true, true]);
        cache.shrink(2 * one - 1).unwrap();
        assert_eq!(["used", "new"].map(|name| cache.find(name).is_some()).iter().filter(|is| **is).count(), 1);
    }
}
