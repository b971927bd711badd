//! What `pip install --target` has put into a directory, which may have own code, too: by the records of its distributions.
//!
//! Invariant: whatever the records say, what is named lies in the directory, and what is read and named is bounded.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use crate::program::process_files::ProcessFiles;

/// Maximum number of distributions in a directory whose records are read.
const MOST_DISTRIBUTIONS: usize = 512;
/// Bytes that are read of a record, and of all in a directory.
const RECORD_BYTES: u64 = 1 << 20;
const MOST_BYTES: u64 = 32 << 20;
/// Files of a distribution that are named themselves, since they are in no package.
const MOST_LONE: usize = 64;
/// Packages and files of all distributions that are named: a capture has 4096, of which each may have two paths.
const MOST_PATHS: usize = 2000;

/// Packages, by their directories, and files in none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InstalledFiles(pub(crate) BTreeSet<PathBuf>);

impl InstalledFiles {
    /// Of the directory with these entries.
    pub(crate) fn of(files: &ProcessFiles, directory: &Path, entries: &[PathBuf]) -> Self {
        let mut left = MOST_BYTES;
        let mut found = BTreeSet::new();
        for distribution in entries.iter().filter(|path| is_record(path)).take(MOST_DISTRIBUTIONS) {
            let room = MOST_PATHS - found.len();
            found.extend(of_distribution(files, directory, distribution, &mut left).into_iter().take(room));
        }
        Self(found)
    }

    /// Whether this path was installed, or lies below a package that was.
    pub(crate) fn has(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.0.contains(above))
    }

    /// Whether it was, or something below it.
    pub(crate) fn reaches(&self, path: &Path) -> bool {
        self.has(path) || self.0.range(path.to_path_buf()..).next().is_some_and(|next| next.starts_with(path))
    }
}

/// Whether this is the directory with what an installer has recorded of a distribution.
pub(crate) fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "dist-info")
}

fn of_distribution(files: &ProcessFiles, directory: &Path, record: &Path, left: &mut u64) -> Vec<PathBuf> {
    let most = RECORD_BYTES.min(*left);
    let text = beginning(files, &record.join("RECORD"), most);
    *left -= text.len() as u64;
    let mut names = of_record(&text);
    if names.is_empty() || text.len() as u64 >= most {
        // Of what is in no record, or behind what was read of it, there are the names that are imported, or its own.
        let text = beginning(files, &record.join("top_level.txt"), RECORD_BYTES.min(*left));
        *left -= text.len() as u64;
        let mut modules: Vec<_> = text.lines().map(str::trim).collect();
        let own = record.file_stem().and_then(|stem| stem.to_str()?.split('-').next());
        modules.extend(own.filter(|_| names.is_empty() && text.is_empty()));
        let may_be = modules.into_iter().take(MOST_LONE).filter(|name| is_module(name));
        let is_there = |name: &String| files.is_there(&directory.join(name));
        names.extend(may_be.flat_map(|name| [name.to_owned(), format!("{name}.py")]).filter(is_there));
    }
    names.iter().map(|name| directory.join(name)).collect()
}

fn beginning(files: &ProcessFiles, path: &Path, most: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = files.open(path) {
        // What was read before an error is used.
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes[..bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX))]).into_owned()
}

/// The outermost packages, and the files of code in none, in a `RECORD`: `six.py,sha256=…,34703`.
fn of_record(text: &str) -> BTreeSet<String> {
    let is_below = |path: &&str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let paths: Vec<&str> =
        text.lines().filter_map(path_of_line).filter(|path| is_code(path)).filter(is_below).collect();
    let mut packages = BTreeSet::new();
    for path in &paths {
        packages
            .extend(path.rsplit_once('/').filter(|(_, file)| file.starts_with("__init__.")).map(|(folder, _)| folder));
    }
    let mut found = BTreeSet::new();
    let mut lone = Vec::new();
    for path in paths {
        let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
        // Libraries that were repaired lie in a directory such as `numpy.libs`.
        let is_whole = |folder: &&str| packages.contains(folder) || !folder.split('/').all(is_module);
        match above.find(is_whole) {
            Some(folder) => _ = found.insert(folder.to_owned()),
            None => lone.push(path),
        }
    }
    let is_much = lone.len() > MOST_LONE;
    found.extend(
        lone.into_iter().map(|path| if is_much { path.split('/').next().unwrap_or(path) } else { path }.into()),
    );
    found
}

/// The path in a line, in which there are commas only between quotes.
fn path_of_line(line: &str) -> Option<&str> {
    line.strip_prefix('"').map_or_else(|| line.split(',').next(), |quoted| quoted.split('"').next())
}

fn is_code(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.ends_with(".py") || file.ends_with(".so") || file.contains(".so.")
}

fn is_module(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter == '_' || letter.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{InstalledFiles, of_record};
    use crate::program::process_files::ProcessFiles;

    #[test]
    fn a_record_names_packages_and_files_in_none() {
        let record = "six.py,sha256=x,1\nsix-1.dist-info/RECORD,,\n../../bin/tool.py,,\n/etc/x.py,,\n__pycache__/six.pyc,,\n\
            shop/__init__.py,,\nshop/api/__init__.py,,\nshop/api/deep/x.py,,\n\"odd, name/x.py\",,\nshop/data.csv,,\n\
            google/cloud/storage/__init__.py,,\ngoogle/cloud/storage/blob.py,,\nnvidia/lib/libcu.so.12,,\n\
            numpy.libs/libopenblas.so,,\nfast.cpython-312-x86_64-linux-gnu.so,,\nshop/../main.py,,\n";
        let found: Vec<_> = of_record(record).into_iter().collect();
        let expected = [
            "fast.cpython-312-x86_64-linux-gnu.so",
            "google/cloud/storage",
            "numpy.libs",
            "nvidia/lib/libcu.so.12",
            "odd, name",
            "shop",
            "six.py",
        ];
        assert_eq!(found, expected);
        let many: String = (0..100).map(|number| format!("space/part/m{number}.py,,\n")).collect();
        assert_eq!(of_record(&many).into_iter().collect::<Vec<_>>(), ["space"]);
    }

    #[test]
    fn a_distribution_without_a_record_has_its_imported_names_or_its_own() {
        let base = tempfile::tempdir().unwrap();
        for file in ["six.py", "six-1.dist-info/METADATA", "yaml/x.py", "PyYAML-6.dist-info/METADATA", "main.py"] {
            fs::create_dir_all(base.path().join(file).parent().unwrap()).unwrap();
            fs::write(base.path().join(file), "").unwrap();
        }
        fs::write(base.path().join("PyYAML-6.dist-info/top_level.txt"), "_yaml\nyaml\n../main\n").unwrap();
        let files = ProcessFiles::default();
        let found = InstalledFiles::of(&files, base.path(), &files.entries(base.path()));
        let paths: Vec<_> = found.0.iter().map(|path| path.strip_prefix(base.path()).unwrap()).collect();
        assert_eq!(paths, [Path::new("six.py"), Path::new("yaml")]);
        assert!(found.has(&base.path().join("yaml/x.py")) && !found.has(&base.path().join("main.py")));
        assert!(found.reaches(base.path()) && !found.reaches(&base.path().join("six")));
    }
}
