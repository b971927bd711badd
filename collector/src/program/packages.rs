//! Finds package directories: of the directories of code objects and their parents, those that have an `__init__.py`.
//!
//! Reports need them for the names of modules, and may be made where these files do not exist. Each directory is checked
//! once, when its first code object is described. Invariant: all checks together take a few milliseconds at most.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

/// Time limit of all checks together.
const MOST_TIME: Duration = Duration::from_millis(5);
/// Maximum number of directories that are checked.
const MOST_DIRECTORIES: usize = 4096;
/// Below these, packages are known by their paths.
const KNOWN_BY_PATH: [&[u8]; 3] = [b"/site-packages/", b"/dist-packages/", b"/lib/python3"];

/// The package directories found so far.
#[derive(Debug, Default)]
pub struct Packages {
    seen: FxHashSet<Vec<u8>>,
    found: Vec<Vec<u8>>,
    spent: Duration,
    has_changed: bool,
}

impl Packages {
    /// Checks the directory of a code object's file, and its parents.
    pub fn check_file(&mut self, file: &[u8]) {
        let Some(directory) = above(file).filter(|_| file.starts_with(b"/")) else { return };
        if self.seen.contains(directory) || is_known_by_path(file) {
            return;
        }
        let begun = Instant::now();
        let mut next = Some(directory);
        while let Some(directory) = next.filter(|directory| !directory.is_empty() && self.may_go_on(begun)) {
            if !self.seen.insert(directory.to_vec()) {
                break;
            }
            if Path::new(OsStr::from_bytes(directory)).join("__init__.py").exists() {
                self.found.push(directory.to_vec());
                self.has_changed = true;
            }
            next = above(directory);
        }
        self.spent += begun.elapsed();
    }

    /// All packages found so far, if any were added since the last call.
    pub fn take_changed(&mut self) -> Option<Vec<Vec<u8>>> {
        std::mem::take(&mut self.has_changed).then(|| self.found.clone())
    }

    fn may_go_on(&self, begun: Instant) -> bool {
        self.seen.len() < MOST_DIRECTORIES && self.spent + begun.elapsed() < MOST_TIME
    }
}

/// Whether a file is of the standard library or of an installed package.
pub(crate) fn is_known_by_path(file: &[u8]) -> bool {
    KNOWN_BY_PATH.iter().any(|part| file.windows(part.len()).any(|window| window == *part))
}

/// The parent directory of a path.
fn above(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&byte| byte == b'/')?;
    path.get(..end)
}

#[cfg(test)]
mod tests {
    use super::Packages;
    use std::fs;

    #[test]
    fn packages_are_found_upwards() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name).into_os_string().into_encoded_bytes();
        for folder in ["shop", "shop/api", "shop/api/v1", "lib/python3.11/json"] {
            fs::create_dir_all(base.path().join(folder)).unwrap();
        }
        for package in ["shop", "shop/api/v1", "lib/python3.11/json"] {
            fs::write(base.path().join(package).join("__init__.py"), "").unwrap();
        }
        let mut packages = Packages::default();
        assert_eq!(packages.take_changed(), None);
        for file in ["shop/api/v1/views.py", "shop/api/v1/urls.py", "shop/models.py", "lib/python3.11/json/decoder.py"]
        {
            packages.check_file(&path(file));
        }
        packages.check_file(b"<string>");
        packages.check_file(b"shop/models.py");
        assert_eq!(packages.take_changed(), Some(vec![path("shop/api/v1"), path("shop")]));
        assert_eq!(packages.take_changed(), None);
    }
}
