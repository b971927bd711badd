//! Finds the own code that a Python program is told of by paths: entries of `PYTHONPATH`, and the files and directories with
//! Python code that the arguments of an installed program name (`pytest DIR/test_y.py`, `uvicorn --app-dir DIR`).
//!
//! What any option means is not known here: that an argument leads to Python code that nobody installed is enough. Invariant: files
//! are those that the process sees, and what is looked at is bounded; a path within an installation is never own code.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::process_files::{ProcessFiles, without_dots};

/// Maximum number of paths of all arguments that are looked at.
const MOST_PATHS: usize = 128;
/// Maximum number of directories that arguments name.
const MOST_NAMED: usize = 16;
/// Maximum number of entries of a directory among which code is looked for, and of its directories in which it is.
const MOST_ENTRIES: usize = 4096;
const MOST_FOLDERS: usize = 64;
/// Maximum number of directories from a named path up to what its project begins in.
const MOST_PARENTS: usize = 8;
/// What a directory has in which a project begins.
const OF_PROJECT: [&str; 3] = ["pyproject.toml", "setup.py", "setup.cfg"];

/// Directories below which own code lies, and those of them or in them that it is imported from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnPaths {
    pub(crate) own: Vec<PathBuf>,
    pub(crate) roots: Vec<PathBuf>,
}

impl OwnPaths {
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

/// Of the entries of `PYTHONPATH` those with own code, and those that packages were installed to (`pip install --target`).
pub(crate) fn of_python_path(files: &ProcessFiles, entries: &[PathBuf]) -> (OwnPaths, Vec<PathBuf>) {
    let (mut found, mut installed) = (OwnPaths::default(), Vec::new());
    for entry in entries.iter().filter(|entry| files.is_directory(entry) && !is_of_system(entry)) {
        if has_installed(files, entry) {
            installed.extend(std::iter::once(entry.clone()).chain(files.resolved(entry).filter(|path| path != entry)));
        } else {
            found.add(files, entry.clone(), entry.clone());
        }
    }
    (found, installed)
}

/// Code that these arguments name, without what lies below the working directory, `directory`, which is own code anyway.
pub(crate) fn named(files: &ProcessFiles, directory: &Path, home: Option<&Path>, arguments: &[&[u8]]) -> OwnPaths {
    let mut found = OwnPaths::default();
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
        if let Some(folder) = folder_of_code(files, &path).filter(|_| found.own.len() < MOST_NAMED) {
            let root = root(files, &folder);
            found.add(files, project(files, home, &root).unwrap_or_else(|| root.clone()), root);
        }
    }
    found
}

/// What may be paths in an argument: all of it, its value (`--option=PATH`), and the parts of a list or of a path with what is
/// meant in its file (`app.py:create`, `test_y.py::test_a`).
fn paths(argument: &[u8]) -> impl Iterator<Item = &[u8]> {
    let value = match argument {
        [b'-', ..] => argument.iter().position(|&byte| byte == b'=').map(|at| &argument[at + 1..]),
        _ => Some(argument),
    };
    let parts = |value: &'_ [u8]| value.iter().any(|byte| b":,".contains(byte));
    let whole = value.into_iter();
    let split =
        value.filter(|value| parts(value)).into_iter().flat_map(|value| value.split(|byte| b":,".contains(byte)));
    whole.chain(split).filter(|path| !path.is_empty())
}

/// The directory of the Python code at this path: of a file its directory; of a directory itself, if there is code in it.
fn folder_of_code(files: &ProcessFiles, path: &Path) -> Option<PathBuf> {
    let folder = if is_source(path) && files.is_file(path) {
        path.parent()?
    } else if files.is_directory(path) && has_code(files, path) {
        path
    } else {
        return None;
    };
    (!is_of_system(folder) && !has_installed(files, folder)).then(|| folder.to_path_buf())
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

/// Whether there are Python files in the directory, or in one in it.
fn has_code(files: &ProcessFiles, directory: &Path) -> bool {
    let entries = files.first_entries(directory, MOST_ENTRIES);
    let is_hidden = |path: &PathBuf| path.file_name().is_none_or(|name| name.as_bytes().starts_with(b"."));
    let has_source = |folder: &PathBuf| files.first_entries(folder, MOST_ENTRIES).iter().any(|path| is_source(path));
    entries.iter().any(|path| is_source(path))
        || entries.iter().filter(|path| !is_hidden(path)).take(MOST_FOLDERS).any(has_source)
}

/// Whether packages were installed to this directory, as `pip install --target` does.
fn has_installed(files: &ProcessFiles, directory: &Path) -> bool {
    let entries = files.first_entries(directory, MOST_ENTRIES);
    entries.iter().any(|path| path.extension().is_some_and(|extension| extension == "dist-info"))
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
    use super::{OwnPaths, named, of_python_path, paths};
    use crate::process_files::ProcessFiles;
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
            (&["../home/tool/run.py", "../home/app.py"], &["home/tool", "home"], &["home/tool", "home"]),
            (&["here.py", ".", "../work", "", "-", "main:app", "/", "/usr", "..x"], &[], &[]),
            (&["../data", "../data/set.csv", "../none.py", "../target", "../target/six.py"], &[], &[]),
            (&["../venv/lib/python3.12/site-packages/lib/x.py", "../venv/lib/python3.12"], &[], &[]),
            (&["-x../srv", "http://../srv"], &[], &[]),
        ] {
            let bytes: Vec<_> = arguments.iter().map(|argument| argument.as_bytes()).collect();
            let found = named(&ProcessFiles::default(), &base.join("work"), Some(&home), &bytes);
            let paths = |names: &[&str]| names.iter().map(|name| base.join(name)).collect::<Vec<_>>();
            assert_eq!(found, OwnPaths { own: paths(own), roots: paths(roots) }, "{arguments:?}");
        }
    }

    #[test]
    fn the_python_path_has_own_code_where_nothing_was_installed() {
        let (_base, base) =
            files(&["app/main.py", "deps/six.py", "deps/six-1.dist-info/RECORD", "app.egg-info/PKG-INFO"]);
        let entries = ["app", "deps", "none"].map(|name| base.join(name));
        let more = ["/", "/usr/lib", "/venv/lib/python3.12/site-packages"].map(PathBuf::from);
        let (found, installed) = of_python_path(&ProcessFiles::default(), &[&entries[..], &more].concat());
        assert_eq!((found.own, installed), (vec![base.join("app")], vec![base.join("deps")]));
        // A checkout that was installed to be edited.
        let (found, _) = of_python_path(&ProcessFiles::default(), std::slice::from_ref(&base));
        assert_eq!(found.own, [base]);
    }

    #[test]
    fn an_argument_has_paths_by_its_form() {
        for (argument, expected) in [
            ("../srv", &["../srv"][..]),
            ("--dir=a", &["a"]),
            ("-k", &[]),
            ("a.py::test", &["a.py::test", "a.py", "test"]),
            ("a,b", &["a,b", "a", "b"]),
            ("", &[]),
        ] {
            let found: Vec<_> = paths(argument.as_bytes()).map(|path| str::from_utf8(path).unwrap()).collect();
            assert_eq!(found, expected, "{argument}");
        }
        assert!(!super::is_of_system(Path::new("/usr/src/app")) && super::is_of_system(Path::new("/usr/share/x")));
    }
}
