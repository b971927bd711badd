//! The directories of a program's code, which determine module names and own code.
//!
//! The collector records them ([`Process`]), since a report may be made on another machine. A file's module has the
//! name by which Python would import it: relative to the directory above its outermost package (`__init__.py` upwards),
//! if that is an import root or no root lies above; else, for namespace packages, relative to the nearest root above.
//! Captures of earlier versions have no directories; whatever is neither installed nor part of Python is own code then.
//!
//! Invariant: the result depends on the path and on the capture, never on files of this machine.

use std::borrow::Cow;
use std::sync::Arc;

use memtrack_format::meta::Process;
use rustc_hash::FxHashSet;

/// The file of functions that cloudpickle has sent to another process, as joblib and dask do: it replaces the name, and
/// sends what cannot be imported there, above all the script's own functions.
pub(crate) const SENT: &str = "<dynamic-code>";

/// The directories of one recorded process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    directory: String,
    script: String,
    executable: String,
    own: Vec<String>,
    /// Directories that packages were installed to, packages and files, besides those that their paths tell.
    installed: FxHashSet<String>,
    roots: Vec<String>,
    packages: FxHashSet<String>,
    /// The packages that its command line starts, by their dots.
    started: Vec<String>,
    /// The minor version of its Python, if it has one.
    python: Option<u8>,
    frozen: bool,
}

impl Program {
    /// The directories in a capture.
    #[must_use]
    pub fn of(process: &Process) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let one = |field: &Option<Vec<u8>>| field.as_deref().map(text).unwrap_or_default();
        let directories = |list: &[Vec<u8>]| list.iter().map(|path| without_slash(&text(path)).to_owned()).collect();
        let mut roots: Vec<String> = directories(&process.import_roots);
        // The nearest root is the longest.
        roots.sort_by_key(|root| std::cmp::Reverse(root.len()));
        Self {
            directory: without_slash(&one(&process.working_directory)).to_owned(),
            script: one(&process.script),
            executable: one(&process.executable),
            own: directories(&process.own_directories),
            installed: directories(&process.installed_directories).into_iter().collect(),
            roots,
            packages: process.packages.iter().map(|path| without_slash(&text(path)).to_owned()).collect(),
            python: process.python_version.map(|version| version.hex.to_be_bytes()[1]),
            frozen: process.frozen && process.python_version.is_some(),
            started: process.started_packages.iter().map(|name| text(name)).collect(),
        }
    }

    /// Whether the capture has the directories of own code.
    #[must_use]
    pub fn knows_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// Whether a file that is neither installed nor a standard library's is the program's own.
    pub(crate) fn is_own(&self, path: &str) -> bool {
        if is_cell(path) || path == SENT {
            return true;
        }
        if path.starts_with('<') {
            // Of code given as text, -c or standard input, the script is what its frames have as their file.
            return path == self.script;
        }
        let Some(path) = self.whole(path) else { return false };
        // Scripts that `pip` wrote to start a package lie beside the interpreter.
        let starts_package = path == self.script && !self.own.iter().any(|own| Some(&**own) == above(&path));
        // Below the root directory, which containers begin in, lies the system's code, too.
        let is_below = |own: &&String| below(own, &path).is_some() && !(own.is_empty() && is_system(&path));
        // The nearest directory tells.
        let own = self.own.iter().filter(is_below).map(String::len).max().filter(|_| !starts_package);
        // A script that a record names is what the user starts, nevertheless.
        !self.knows_own() || own.is_some() && (path == self.script || own >= self.installed_above(&path))
    }

    /// The length of the path of the nearest installed directory or package that this lies below, or of the file, if it is one.
    fn installed_above(&self, path: &str) -> Option<usize> {
        let mut paths = std::iter::successors(Some(path), |path| above(path));
        paths.find(|path| self.installed.contains(*path)).map(str::len)
    }

    /// The path of a file of an installed package relative to the import root in which that is installed: of `pip install --target`, or
    /// of a wheel. `None` where own code has a package of the same name.
    pub(crate) fn below_installed_root<'p>(&self, path: &'p str) -> Option<&'p str> {
        let installed = self.installed_above(path)?;
        // The nearest root is the longest.
        let rest = self.roots.iter().filter(|root| root.len() <= installed).find_map(|root| below(root, path))?;
        let package = rest.split('/').next().unwrap_or(rest);
        let is_own = |own: &String| self.packages.contains(&format!("{own}/{package}"));
        (!self.own.iter().any(is_own)).then_some(rest)
    }

    /// The packages that the command line starts, by their dots.
    pub(crate) fn started_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.started.iter().map(String::as_str)
    }

    /// Whether somebody else's program executes the code: an installed package, or a native program that embeds Python.
    pub(crate) fn is_started_by_others(&self) -> bool {
        let embeds = || !self.executable.is_empty() && !is_interpreter_name(&self.executable);
        !self.started.is_empty() || (self.has_python() && !self.frozen && embeds())
    }

    /// Whether somebody else's program may execute this file of Python code, which is in no `site-packages`, for the user: it lies in
    /// no other installation, either.
    pub(crate) fn may_be_told_of(&self, path: &str) -> bool {
        let Some(path) = self.whole(path).filter(|path| path.starts_with('/') && *path != self.script) else {
            return false;
        };
        let is_installed = self.installed_above(&path).is_some();
        self.is_started_by_others() && !is_system(&path) && !path.starts_with("/etc/") && !is_installed
    }

    /// The minor version of Python 3 whose standard library lies in the program's archive, if it has one.
    pub(crate) fn archived(&self) -> Option<u8> {
        self.python.filter(|_| self.frozen)
    }

    /// Whether the process runs Python.
    #[must_use]
    pub fn has_python(&self) -> bool {
        self.python.is_some()
    }

    /// Whether the object is a library that belongs to this frozen program: it was unpacked, or lies below the executable's
    /// directory, where no other of these programs has own code nearer to it.
    pub(crate) fn has_unpacked(&self, object: &str, programs: &[Arc<Self>]) -> bool {
        let Some(folder) = above(&self.executable).filter(|_| self.frozen) else { return false };
        if object.split('/').any(|part| part.starts_with("_MEI")) {
            return true;
        }
        let Some(rest) = below(folder, object) else { return false };
        let is_nearer = |other: &Self| {
            !other.frozen && other.own.iter().any(|own| own.len() >= folder.len() && below(own, object).is_some())
        };
        rest.starts_with("_internal/") || !programs.iter().any(|other| is_nearer(other))
    }

    /// Whether this is the process's executable.
    pub(crate) fn is_executable(&self, path: &str) -> bool {
        !path.is_empty() && path == self.executable
    }

    /// The path relative to the own-code directory that contains it.
    pub(crate) fn below_own<'p>(&self, path: &'p str) -> Option<&'p str> {
        self.own.iter().filter_map(|own| below(own, path)).min_by_key(|rest| rest.len())
    }

    /// The dotted name of a file's module; `None` if the capture does not have enough.
    pub(crate) fn module(&self, path: &str) -> Option<String> {
        if !self.knows_own() {
            return None;
        }
        let whole = self.whole(path)?;
        if whole == self.script {
            return None;
        }
        let directory = above(&whole)?;
        let mut base = directory;
        while self.packages.contains(base) {
            base = above(base)?;
        }
        let top = self.root_above(base, base != directory).unwrap_or(base);
        named(below(top, &whole)?).or_else(|| named(below(base, &whole)?))
    }

    /// The import root of a package, or of a file without one; `None` if it is the directory that contains it.
    fn root_above(&self, base: &str, is_package: bool) -> Option<&str> {
        let root = self.roots.iter().find(|root| *root == base || below(root, base).is_some())?;
        // A package in a directory that is no package, such as `src`: the directory is an import root that was not
        // recorded, unless a package lies above.
        let mut between = std::iter::successors(Some(base), |path| above(path)).take_while(|path| path != root);
        (!is_package || between.any(|path| self.packages.contains(path))).then_some(root)
    }

    /// The path from the root directory on.
    fn whole(&self, path: &str) -> Option<String> {
        match path {
            "" => None,
            _ if path.starts_with('/') => Some(without_dots(path).into_owned()),
            _ if path.starts_with('<') || self.directory.is_empty() => (!self.knows_own()).then(|| path.to_owned()),
            _ => Some(without_dots(&format!("{}/{path}", self.directory)).into_owned()),
        }
    }
}

/// The path without `.` and `..`, as the directories in captures are. Python leaves them in the file names of a script that
/// is run as `./tools/app.py`, and of everything in an archive that is.
pub(crate) fn without_dots(path: &str) -> Cow<'_, str> {
    let is_dots = |part: &str| matches!(part, "." | "..");
    if path.starts_with('<') || !path.split('/').any(is_dots) {
        return Cow::Borrowed(path);
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match (part, parts.last()) {
            (".", _) | ("..", Some(&"")) => {}
            ("..", Some(&last)) if last != ".." => _ = parts.pop(),
            _ => parts.push(part),
        }
    }
    parts.join("/").into()
}

/// Whether the path lies where a distribution installs.
fn is_system(path: &str) -> bool {
    let path = ["/usr/local/", "/usr/", "/"].iter().find_map(|prefix| path.strip_prefix(prefix)).unwrap_or(path);
    ["lib/", "lib64/", "share/", "bin/", "sbin/"].iter().any(|folder| path.starts_with(folder))
}

/// Whether the executable is an interpreter: `/usr/bin/python3.12`.
fn is_interpreter_name(executable: &str) -> bool {
    executable.rsplit('/').next().is_some_and(|name| name.starts_with("python"))
}

/// Whether the path is what IPython or its kernel call a cell: `<ipython-input-3-…>` or `/tmp/ipykernel_71/2846.py`.
fn is_cell(path: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = path.rsplit('/');
    let file = parts.next().unwrap_or(path);
    let mut of_kernel = || parts.next().and_then(|folder| folder.strip_prefix("ipykernel_")).is_some_and(is_number);
    file.starts_with("<ipython-input-") || file.strip_suffix(".py").is_some_and(is_number) && of_kernel()
}

/// The dotted name of a path below a root; `None` where a part of it cannot be in a name.
fn named(path: &str) -> Option<String> {
    let (folders, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.split('.').next().unwrap_or(file);
    let stem = Some(stem).filter(|stem| !matches!(*stem, "__init__" | "__main__"));
    let parts: Vec<_> = folders.split('/').chain(stem).filter(|part| !part.is_empty()).collect();
    (!parts.is_empty() && parts.iter().all(|part| is_identifier(part))).then(|| parts.join("."))
}

pub(crate) fn is_identifier(part: &str) -> bool {
    let mut letters = part.chars();
    letters.next().is_some_and(|first| first == '_' || first.is_alphabetic())
        && letters.all(|letter| letter == '_' || letter.is_alphanumeric())
}

/// What follows this directory in a path.
fn below<'p>(directory: &str, path: &'p str) -> Option<&'p str> {
    path.strip_prefix(directory)?.strip_prefix('/').filter(|rest| !rest.is_empty())
}

/// The directory that a path lies in.
fn above(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(directory, _)| directory)
}

fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Program, without_dots};
    use memtrack_format::meta::Process;

    /// A program whose own code lies in `/srv`, with these roots of imports and packages.
    pub(crate) fn program(roots: &[&str], packages: &[&str]) -> Program {
        let list = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        Program::of(&Process {
            working_directory: Some(b"/srv".to_vec()),
            script: Some(b"/srv/manage.py".to_vec()),
            own_directories: vec![b"/srv".to_vec()],
            import_roots: list(roots),
            packages: list(packages),
            ..Process::default()
        })
    }

    #[test]
    fn cells_of_notebooks_and_functions_that_were_sent_are_own_code() {
        let program = program(&[], &[]);
        for path in ["/tmp/ipykernel_71/2846394.py", "<ipython-input-3-0b1c>", "<dynamic-code>"] {
            assert!(program.is_own(path), "{path}");
        }
        for path in ["/tmp/ipykernel_71/tool.py", "/tmp/ipykernel/1.py", "/tmp/ipykernel_x/1.py", "<string>"] {
            assert!(!program.is_own(path), "{path}");
        }
    }

    #[test]
    fn a_module_is_named_as_it_is_imported() {
        let packages = ["/srv/shop", "/srv/src/lexer", "/srv/space/part", "/srv/shop/plugins/one"];
        let program = program(&["/srv", "/opt/lib/"], &packages);
        for (path, name) in [
            ("/srv/shop/__init__.py", Some("shop")),
            ("/srv/shop/models.py", Some("shop.models")),
            // No __init__.py: a namespace package in a package, below a root, and a package below a namespace package.
            ("/srv/shop/api/views.py", Some("shop.api.views")),
            ("/srv/shop/plugins/one/run.py", Some("shop.plugins.one.run")),
            ("/srv/space/tool.py", Some("space.tool")),
            // A root that nobody noted.
            ("/srv/src/lexer/tokens.py", Some("lexer.tokens")),
            ("/opt/lib/tools/x.py", Some("tools.x")),
            ("/else/where/x.py", Some("x")),
            ("/srv/my-scripts/x.py", Some("x")),
            ("shop/models.py", Some("shop.models")),
            ("/srv/fast.cpython-311-x86_64-linux-gnu.so", Some("fast")),
            ("/srv/manage.py", None),
            ("<string>", None),
        ] {
            assert_eq!(program.module(path).as_deref(), name, "{path}");
        }
        assert_eq!(Program::default().module("/srv/shop/models.py"), None);
    }

    #[test]
    fn own_code_lies_below_its_directories() {
        let program = program(&[], &[]);
        for (path, own) in [("/srv/a.py", true), ("a.py", true), ("/srv2/a.py", false), ("/srv", false)] {
            assert_eq!(
                (program.is_own(path), program.below_own(path)),
                (own, (own && path != "a.py").then_some("a.py"))
            );
        }
        assert!(Program::default().is_own("/anywhere/a.py"));
        let text = Program::of(&Process { script: Some(b"<string>".to_vec()), ..Process::default() });
        assert_eq!([text.is_own("<string>"), program.is_own("<string>")], [true, false]);
    }

    #[test]
    fn what_was_installed_to_a_directory_of_own_code_is_not_own() {
        let list = |paths: &[&str]| paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let program = Program::of(&Process {
            script: Some(b"/task/start.py".to_vec()),
            own_directories: list(&["/app", "/srv/all", "/srv/all/lib/mine", "/task"]),
            installed_directories: list(&[
                "/app/deps",
                "/srv/all",
                "/srv/all/lib",
                "/task/six.py",
                "/task/shop",
                "/task/start.py",
            ]),
            ..Process::default()
        });
        for (path, own) in [
            ("/app/main.py", true),
            ("/app/deps/six.py", false),
            // All of it was installed to the directory of the script.
            ("/srv/all/main.py", true),
            ("/srv/all/lib/six.py", false),
            ("/srv/all/lib/mine/a.py", true),
            // Beside own code.
            ("/task/main.py", true),
            ("/task/start.py", true),
            ("/task/six.py", false),
            ("/task/shop/api.py", false),
            ("/task/shopping.py", true),
        ] {
            assert_eq!(program.is_own(path), own, "{path}");
        }
    }

    #[test]
    fn not_everything_below_the_root_directory_is_own() {
        let program = Program::of(&Process { own_directories: vec![b"/".to_vec()], ..Process::default() });
        for (path, own) in [
            ("/app/a.py", true),
            ("/usr/src/a.py", true),
            ("/usr/lib/libopenblas.so.0", false),
            ("/lib/libx.so", false),
        ] {
            assert_eq!(program.is_own(path), own, "{path}");
        }
    }

    #[test]
    fn dots_in_a_path_lead_where_they_lead_in_files() {
        let program = program(&["/srv"], &["/srv/shop"]);
        for path in ["/srv/./shop/api.py", "/srv/tools/../shop/api.py", "./shop/api.py", "/../srv/shop/./x/../api.py"] {
            assert_eq!((program.is_own(path), program.module(path).as_deref()), (true, Some("shop.api")), "{path}");
        }
        // The script itself has no module's name.
        assert_eq!((program.is_own("/srv/./manage.py"), program.module("/srv/./manage.py")), (true, None));
        assert!(!program.is_own("/srv/../opt/api.py") && !program.is_own("../opt/api.py"));
        for (path, plain) in [("../../a.c", "../../a.c"), ("a/../../b.c", "../b.c"), ("<a/./b>", "<a/./b>"), ("", "")] {
            assert_eq!(without_dots(path), plain);
        }
    }

    #[test]
    fn what_starts_an_installed_package_is_not_own() {
        let gunicorn = Program::of(&Process {
            script: Some(b"/srv/venv/bin/gunicorn".to_vec()),
            own_directories: vec![b"/srv".to_vec()],
            ..Process::default()
        });
        assert!(!gunicorn.is_own("/srv/venv/bin/gunicorn") && gunicorn.is_own("/srv/app.py"));
    }
}
