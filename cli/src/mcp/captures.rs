//! The captures below the directory that a client may read.
//!
//! Invariant: what is opened lies below the directory when every symbolic link is resolved.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memtrack_format::header;

/// Captures that are listed at most.
const MOST: usize = 1000;
/// Files that are looked at for them.
const MOST_FILES: usize = 20_000;
/// Directories below one another.
const DEEPEST: usize = 16;

/// A directory with captures.
#[derive(Debug)]
pub(crate) struct CaptureDirectory {
    root: PathBuf,
}

/// A capture that was found.
#[derive(Debug)]
pub(super) struct FoundCapture {
    /// Its name below the directory.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Seconds since 1970.
    pub(super) modified: Option<u64>,
}

impl CaptureDirectory {
    /// Opens the directory.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let cannot = || format!("{}: expected a directory with captures", path.display());
        let root = fs::canonicalize(path).with_context(cannot)?;
        fs::read_dir(&root).with_context(cannot)?;
        Ok(Self { root })
    }

    /// The path of a capture that a client names; `all.bin#2` is the second one in `all.bin`.
    ///
    /// # Errors
    /// A text for the client: it is not there, or not below the directory.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf, String> {
        let (file, member) = match name.rsplit_once('#') {
            Some((file, member)) if member.parse::<u32>().is_ok() && !self.root.join(name).exists() => {
                (file, Some(member))
            }
            _ => (name, None),
        };
        let missing = || format!("{name}: no such capture; `captures` lists those that are there");
        let found = fs::canonicalize(self.root.join(file)).map_err(|_| missing())?;
        if !found.starts_with(&self.root) || !found.is_file() {
            return Err(missing());
        }
        match member {
            Some(member) => Ok(PathBuf::from(format!("{}#{member}", found.display()))),
            None => Ok(found),
        }
    }

    /// All captures, the newest first; and whether there are more.
    pub(super) fn list(&self) -> (Vec<FoundCapture>, bool) {
        let (mut found, mut looked) = (Vec::new(), 0);
        let mut waiting = vec![(self.root.clone(), 0)];
        while let Some((directory, depth)) = waiting.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                looked += 1;
                let (path, kind) = (entry.path(), entry.file_type());
                match kind {
                    Ok(kind) if kind.is_dir() && depth < DEEPEST => waiting.push((path, depth + 1)),
                    Ok(kind) if kind.is_file() && looked <= MOST_FILES && is_capture(&path) => {
                        found.extend(self.found(&path));
                    }
                    _ => {}
                }
            }
        }
        found.sort_by(|one, other| other.modified.cmp(&one.modified).then_with(|| one.name.cmp(&other.name)));
        let is_cut = found.len() > MOST || looked > MOST_FILES;
        found.truncate(MOST);
        (found, is_cut)
    }

    fn found(&self, path: &Path) -> Option<FoundCapture> {
        let about = fs::metadata(path).ok()?;
        let modified = about.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok();
        let name = path.strip_prefix(&self.root).ok()?.to_str()?.to_owned();
        Some(FoundCapture { name, bytes: about.len(), modified: modified.map(|time| time.as_secs()) })
    }
}

/// Whether a file begins like a capture, or like several in one.
fn is_capture(path: &Path) -> bool {
    let mut begin = [0; header::LEN];
    let read = fs::File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut begin));
    read.is_ok_and(|length| begin.get(..length).is_some_and(|begin| begin.starts_with(&header::MAGIC)))
}

#[cfg(test)]
mod tests {
    use super::CaptureDirectory;

    #[test]
    fn nothing_outside_of_the_directory_is_a_capture_in_it() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret.bin"), "x").unwrap();
        let inside = outside.path().join("inside");
        std::fs::create_dir_all(inside.join("deep")).unwrap();
        std::fs::write(inside.join("a.bin"), "x").unwrap();
        std::fs::write(inside.join("b#2"), "x").unwrap();
        std::os::unix::fs::symlink("../secret.bin", inside.join("link.bin")).unwrap();
        std::os::unix::fs::symlink("..", inside.join("deep/up")).unwrap();
        let captures = CaptureDirectory::open(&inside).unwrap();
        let root = std::fs::canonicalize(&inside).unwrap();
        assert_eq!(captures.path("a.bin").unwrap(), root.join("a.bin"));
        assert_eq!(captures.path("deep/../a.bin#3").unwrap(), root.join("a.bin#3"));
        assert_eq!(captures.path("b#2").unwrap(), root.join("b#2"));
        let secret = outside.path().join("secret.bin");
        for name in [
            "../secret.bin",
            "link.bin",
            "deep/up/../secret.bin",
            "",
            ".",
            "missing",
            "a.bin/x",
            secret.to_str().unwrap(),
        ] {
            assert!(captures.path(name).unwrap_err().contains("no such capture"), "{name}");
        }
    }
}
