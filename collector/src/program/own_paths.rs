//! Finds the own code that a Python program is told of by paths: entries of `PYTHONPATH`, and the files and directories with
//! Python code that the arguments of an installed program name (`pytest DIR/test_y.py`, `uvicorn --app-dir DIR`).
//!
//! What any option means is not known here: that an argument leads to Python code that nobody installed is enough. Invariant: files
//! are those that the process sees, and what is looked at is bounded; a path within an installation is never own code.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::program::installed_files::{InstalledFiles, is_record};
use crate::program::process_files::{ProcessFiles, without_dots};

/// Maximum number of paths of all arguments that are looked at.
const MOST_PATHS: usize = 128;
/// Maximum number of directories that arguments name.
const MOST_NAMED: usize = 16;
/// Maximum number of entries of a directory among which code is looked for, and of its directories in which it is.
const MOST_ENTRIES: usize = 4096;
const MOST_FOLDERS: usize = 64;
/// Maximum number of entries of all directories that are looked at for the arguments, or for `PYTHONPATH`, of a process.
const MOST_LOOKS: usize = 20_000;
/// Maximum number of directories from a named path up to what its project begins in.
const MOST_PARENTS: usize = 8;
/// What a directory has in which a project begins.
const OF_PROJECT: [&str; 3] = ["pyproject.toml", "setup.py", "setup.cfg"];

/// Directories below which own code lies, and those of them or in them that it is imported from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnPaths {
    pub(crate) own: Vec<PathBuf>,
    pub(crate) roots: Vec<PathBuf>,
    /// What somebody has installed beside it: directories, and files.
    pub(crate) installed: Vec<PathBuf>,
}

/// Entries of directories, of which only so many more are looked at.
#[derive(Debug)]
struct Looks<'f> {
    files: &'f ProcessFiles,
    left: Cell<usize>,
}

impl<'f> Looks<'f> {
    fn new(files: &'f ProcessFiles) -> Self {
        Self { files, left: Cell::new(MOST_LOOKS) }
    }

    fn entries(&self, directory: &Path) -> Vec<PathBuf> {
        let found = self.files.first_entries(directory, MOST_ENTRIES.min(self.left.get()));
        self.left.set(self.left.get() - found.len());
        found
    }

    fn installed(&self, directory: &Path) -> InstalledFiles {
        InstalledFiles::of(self.files, directory, &self.entries(directory))
    }
}

impl OwnPaths {
    /// What was installed to this directory; names of files in frames go by either of its paths.
    fn add_installed(&mut self, files: &ProcessFiles, directory: &Path, installed: &InstalledFiles) {
        if installed.0.is_empty() {
            return;
        }
        let other = files.resolved(directory).filter(|path| path != directory);
        for path in &installed.0 {
            let resolved = other.iter().filter_map(|other| Some(other.join(path.strip_prefix(directory).ok()?)));
            self.installed.extend(std::iter::once(path.clone()).chain(resolved));
        }
    }

    fn add(&mut self, files: &ProcessFiles, own: PathBuf, root: PathBuf) {
        // Names of files in frames go by either.
        for (list, path) in [(&mut self.own, own), (&mut self.roots, root)] {
            let resolved = files.resolved(&path);
            for path in std::iter::once(path).chain(resolved) {
                if !list.contains(&path) {
                    list.push(path);
                }
            }
        }
    }
}

/// Of the entries of `PYTHONPATH` those with own code, and those that packages were installed to (`pip install --target`), perhaps
/// beside own code.
pub(crate) fn of_python_path(files: &ProcessFiles, entries: &[PathBuf]) -> (OwnPaths, Vec<PathBuf>) {
    let (mut found, mut targets, looks) = (OwnPaths::default(), Vec::new(), Looks::new(files));
    for entry in entries.iter().filter(|entry| files.is_directory(entry) && !is_of_system(entry)) {
        let inside = looks.entries(entry);
        if !inside.iter().any(|path| is_record(path)) {
            found.add(files, entry.clone(), entry.clone());
            continue;
        }
        let both = || std::iter::once(entry.clone()).chain(files.resolved(entry).filter(|path| path != entry));
        targets.extend(both());
        let installed = InstalledFiles::of(files, entry, &inside);
        if has_code(&looks, entry, &inside, &installed) {
            found.add(files, entry.clone(), entry.clone());
            found.add_installed(files, entry, &installed);
        } else {
            found.installed.extend(both());
        }
    }
    (found, targets)
}

/// Code that these arguments name, without what lies below the working directory, `directory`, which is own code anyway.
pub(crate) fn named(files: &ProcessFiles, directory: &Path, home: Option<&Path>, arguments: &[&[u8]]) -> OwnPaths {
    let (mut found, looks) = (OwnPaths::default(), Looks::new(files));
    for path in arguments.iter().flat_map(|argument| paths(argument)).take(MOST_PATHS) {
        let path = without_dots(&directory.join(OsStr::from_bytes(path)));
        // Some leave out the end of a file's name: `../srv/main:app`.
        let file = PathBuf::from([path.as_os_str(), OsStr::new(".py")].into_iter().collect::<OsString>());
        let path = if files.is_there(&path) { path } else { file };
        let Some(resolved) = files.resolved(&path) else { continue };
        let is_here = |path: &PathBuf| path.starts_with(directory) && directory.parent().is_some();
        if (is_here(&path) && is_here(&resolved)) || [&path, &resolved].iter().any(|path| is_of_system(path)) {
            continue;
        }
        if found.own.len() >= MOST_NAMED {
            break;
        }
        let Some((root, installed)) = root_of_code(&looks, &path) else { continue };
        let own = project(files, home, &root).unwrap_or_else(|| root.clone());
        if is_of_users(&own, home) {
            continue;
        }
        if own != root {
            found.add_installed(files, &own, &looks.installed(&own));
        }
        found.add_installed(files, &root, &installed);
        found.add(files, own, root);
    }
    found
}

/// Whether it has all that users have, not only a project.
fn is_of_users(path: &Path, home: Option<&Path>) -> bool {
    Some(path) == home || [Path::new("/home"), Path::new("/root")].contains(&path)
}

/// What may be paths in an argument: all of it, its value (`--option=PATH`), and the parts of a list or of a path with what is
/// meant in its file (`app.py:create`, `test_y.py::test_a`). Addresses (`http://app:8000`) are none.
fn paths(argument: &[u8]) -> impl Iterator<Item = &[u8]> {
    let value = match argument {
        [b'-', ..] => argument.iter().position(|&byte| byte == b'=').map(|at| &argument[at + 1..]),
        _ => Some(argument),
    };
    let is_address = |part: &&[u8]| part.windows(3).any(|three| three == b"://");
    let parts = |value: &'_ [u8]| value.iter().any(|byte| b":,".contains(byte));
    let whole = value.into_iter().filter(move |value| !is_address(value));
    let listed = value.filter(|value| parts(value)).into_iter().flat_map(|value| value.split(|&byte| byte == b','));
    let split = listed.filter(move |part| !is_address(part)).flat_map(|part| part.split(|&byte| byte == b':'));
    whole.chain(split).filter(|path| !path.is_empty())
}

/// The directory that the Python code at this path is imported from, of a file or of a directory with code in it, and what was
/// installed there.
fn root_of_code(looks: &Looks<'_>, path: &Path) -> Option<(PathBuf, InstalledFiles)> {
    let is_file = is_source(path) && looks.files.is_file(path);
    let folder = if is_file { path.parent()? } else { path };
    if is_of_system(folder) || !(is_file || looks.files.is_directory(path)) {
        return None;
    }
    let root = root(looks.files, folder);
    let entries = looks.entries(&root);
    let installed = InstalledFiles::of(looks.files, &root, &entries);
    let inside = if root == path { entries } else { Vec::new() };
    let inside = if is_file || root == path { inside } else { looks.entries(path) };
    let is_own = !installed.has(path) && (is_file || has_code(looks, path, &inside, &installed));
    is_own.then_some((root, installed))
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

/// Whether there are Python files among the entries of a directory, or in a directory of them, that nobody installed.
fn has_code(looks: &Looks<'_>, directory: &Path, entries: &[PathBuf], installed: &InstalledFiles) -> bool {
    if entries.iter().any(|path| is_source(path) && !installed.has(path)) {
        return true;
    }
    // Another file system may be large, and far away.
    let device = looks.files.directory_device(directory);
    let may_have = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default();
        let is_imported =
            !name.as_bytes().contains(&b'.') && !["__pycache__", "bin"].iter().any(|other| name == *other);
        is_imported
            && !installed.reaches(path)
            && looks.files.directory_device(path).is_some_and(|of| Some(of) == device)
    };
    let has_source = |folder: &PathBuf| looks.entries(folder).iter().any(|path| is_source(path));
    entries.iter().filter(may_have).take(MOST_FOLDERS).any(has_source)
}

/// Whether the directory belongs to an interpreter, to a distribution or to what these install.
fn is_of_system(path: &Path) -> bool {
    let is_library = |part: &OsStr| part == "site-packages" || part == "dist-packages";
    if path.components().any(|part| is_library(part.as_os_str())) || is_of_interpreter(path) {
        return true;
    }
    let prefix = ["/usr/local", "/usr", "/"].iter().find(|prefix| path.starts_with(prefix));
    let below = prefix.and_then(|prefix| path.strip_prefix(prefix).ok());
    below.is_some_and(|below| {
        let first = below.components().next().map(|part| part.as_os_str().as_bytes().to_vec());
        first.is_none_or(|first| {
            [&b"lib"[..], b"lib64", b"share", b"bin", b"sbin", b"etc", b"proc", b"sys", b"dev"].contains(&&*first)
        })
    })
}

/// Whether it is a standard library, or below one.
fn is_of_interpreter(path: &Path) -> bool {
    let names: Vec<_> = path.components().map(|part| part.as_os_str().as_bytes()).collect();
    names.windows(2).any(|pair| [&b"lib"[..], b"lib64"].contains(&pair[0]) && pair[1].starts_with(b"python3"))
}

/// The directory that the package in this one is imported from; the directory itself where it is none of a package.
fn root(files: &ProcessFiles, folder: &Path) -> PathBuf {
    let is_package = |path: &Path| files.is_file(&path.join("__init__.py"));
    let mut above = folder.ancestors();
    let outside = above.find(|path| !is_package(path)).filter(|path| path.parent().is_some());
    outside.unwrap_or(folder).to_path_buf()
}

/// The directory that the project begins in to which this one belongs.
fn project(files: &ProcessFiles, home: Option<&Path>, folder: &Path) -> Option<PathBuf> {
    let may_be = |path: &&Path| path.parent().is_some() && Some(*path) != home;
    let begins = |path: &&Path| OF_PROJECT.iter().any(|name| files.is_file(&path.join(name)));
    folder.ancestors().take(MOST_PARENTS).take_while(may_be).find(begins).map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::{named, of_python_path, paths};
    use crate::program::process_files::ProcessFiles;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Directories with these files.
    fn files(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(base.path()).unwrap();
        for name in names {
            let file = path.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        (base, path)
    }

    #[test]
    fn code_that_arguments_name_is_own() {
        let (_base, base) = files(&[
            "work/here.py",
            "srv/main.py",
            "srv/test_y.py",
            "shop/src/shop/__init__.py",
            "shop/src/shop/api/__init__.py",
            "shop/src/shop/api/views.py",
            "shop/tests/test_api.py",
            "shop/pyproject.toml",
            "name/space/tool.py",
            "data/set.csv",
            "data/deep/in/it.py",
            "target/six.py",
            "target/six-1.dist-info/RECORD",
            "mixed/main.py",
            "mixed/six.py",
            "mixed/pack/__init__.py",
            "mixed/pack/x.py",
            "mixed/six-1.dist-info/METADATA",
            "mixed/pack-1.dist-info/METADATA",
            "venv/lib/python3.12/site-packages/lib/x.py",
            "home/app.py",
            "home/setup.py",
            "home/tool/run.py",
        ]);
        std::os::unix::fs::symlink(base.join("srv"), base.join("work/link")).unwrap();
        let home = base.join("home");
        for (arguments, own, roots) in [
            (&["--app-dir", "../srv", "main:app"][..], &["srv"][..], &["srv"][..]),
            (&["--app-dir=../srv"], &["srv"], &["srv"]),
            (&["../srv/main:app"], &["srv"], &["srv"]),
            (&["--pythonpath", "../srv,../name"], &["srv", "name"], &["srv", "name"]),
            (&["-q", "../srv/test_y.py::Test::test_a[x:y]", "../srv/main.py:create()"], &["srv"], &["srv"]),
            (&["../shop/src/shop/api/views.py"], &["shop"], &["shop/src"]),
            (&["../shop/tests"], &["shop"], &["shop/tests"]),
            (&["../name"], &["name"], &["name"]),
            (&["link/main.py"], &["work/link", "srv"], &["work/link", "srv"]),
            (&["../home/tool/run.py", "../home/app.py"], &["home/tool"], &["home/tool"]),
            (&["--app-dir", "../mixed", "../mixed/six.py"], &["mixed"], &["mixed"]),
            (&["../mixed/main.py"], &["mixed"], &["mixed"]),
            (&["../mixed/six.py", "../mixed/pack/x.py", "../mixed/pack"], &[], &[]),
            (&["here.py", ".", "../work", "", "-", "main:app", "/", "/usr", "..x"], &[], &[]),
            (&["../data", "../data/set.csv", "../none.py", "../target", "../target/six.py"], &[], &[]),
            (&["../venv/lib/python3.12/site-packages/lib/x.py", "../venv/lib/python3.12"], &[], &[]),
            (&["-x../srv", "http://../srv", "--broker=redis:/../srv://x", "a://../srv:1,b"], &[], &[]),
        ] {
            let bytes: Vec<_> = arguments.iter().map(|argument| argument.as_bytes()).collect();
            let found = named(&ProcessFiles::default(), &base.join("work"), Some(&home), &bytes);
            let paths = |names: &[&str]| names.iter().map(|name| base.join(name)).collect::<Vec<_>>();
            assert_eq!((found.own, found.roots), (paths(own), paths(roots)), "{arguments:?}");
        }
    }

    #[test]
    fn the_python_path_has_own_code_where_nothing_was_installed() {
        let (_base, base) =
            files(&["app/main.py", "deps/six.py", "deps/six-1.dist-info/RECORD", "app.egg-info/PKG-INFO"]);
        let entries = ["app", "deps", "none"].map(|name| base.join(name));
        let more = ["/", "/usr/lib", "/venv/lib/python3.12/site-packages"].map(PathBuf::from);
        let (found, targets) = of_python_path(&ProcessFiles::default(), &[&entries[..], &more].concat());
        assert_eq!((found.own, &found.installed), (vec![base.join("app")], &targets));
        assert_eq!(targets, [base.join("deps")]);
        // A checkout that was installed to be edited.
        let (found, _) = of_python_path(&ProcessFiles::default(), std::slice::from_ref(&base));
        assert_eq!(found.own, [base]);
    }

    /// As `pip install --target .` and images of containers leave it.
    #[test]
    fn own_code_beside_what_was_installed_stays_own() {
        let (_base, base) = files(&["app/main.py", "app/six.py", "app/six-1.dist-info/RECORD", "app/pack/__init__.py"]);
        fs::write(base.join("app/six-1.dist-info/RECORD"), "six.py,,\npack/__init__.py,,\nsix-1.dist-info/RECORD,,\n")
            .unwrap();
        std::os::unix::fs::symlink(base.join("app"), base.join("link")).unwrap();
        let (found, targets) = of_python_path(&ProcessFiles::default(), &[base.join("link")]);
        let paths = |names: &[&str]| names.iter().map(|name| base.join(name)).collect::<Vec<_>>();
        assert_eq!((found.own, targets), (paths(&["link", "app"]), paths(&["link", "app"])));
        assert_eq!(found.installed, paths(&["link/pack", "app/pack", "link/six.py", "app/six.py"]));
        let found = named(&ProcessFiles::default(), &base.join("x"), None, &[b"../app".as_slice()]);
        assert_eq!((found.own, found.installed), (paths(&["app"]), paths(&["app/pack", "app/six.py"])));
    }

    /// A directory with much else, and what would be too much for all arguments.
    #[test]
    fn data_beside_code_does_not_hide_it_and_looks_are_bounded() {
        let names: Vec<_> = (0..200).map(|number| format!("much/a{number}.csv")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).chain(["much/src/x.py"]).collect();
        let (_base, base) = files(&names);
        let here = ProcessFiles::default();
        let looks = super::Looks::new(&here);
        assert!(super::root_of_code(&looks, &base.join("much")).is_some());
        assert_eq!(looks.left.get(), super::MOST_LOOKS - 202);
        looks.left.set(2);
        assert_eq!((looks.entries(&base.join("much")).len(), looks.entries(&base).len()), (2, 0));
    }

    #[test]
    fn an_argument_has_paths_by_its_form() {
        for (argument, expected) in [
            ("../srv", &["../srv"][..]),
            ("--dir=a", &["a"]),
            ("-k", &[]),
            ("a.py::test", &["a.py::test", "a.py", "test"]),
            ("a,b", &["a,b", "a", "b"]),
            ("http://app:8000", &[]),
            ("--url=http://app:8000,b:c", &["b", "c"]),
            ("", &[]),
        ] {
            let found: Vec<_> = paths(argument.as_bytes()).map(|path| str::from_utf8(path).unwrap()).collect();
            assert_eq!(found, expected, "{argument}");
        }
        assert!(!super::is_of_system(Path::new("/usr/src/app")) && super::is_of_system(Path::new("/usr/share/x")));
    }
}
