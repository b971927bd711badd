//! Determines the directories of a program's own code and of its imports, since a report may be made on another
//! machine.
//!
//! Python's first import root is the directory of its script, or the working directory for `-m` and `-c`; then come
//! `PYTHONPATH` and the directories in `.pth` files, as editable installations add them. Own code lies below the first
//! root. For a script that `pip` wrote to start an installed package (it lies beside an interpreter), and for programs
//! other than Python, own code lies below the working directory; the package that such a script starts, or `-m`, is named, too.
//! It lies below entries of `PYTHONPATH`, too, and where the arguments of an installed program lead (see `own_paths`).
//!
//! Invariant: everything is read from outside the process, when it connects, and is bounded; what cannot be read is
//! left out.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use memtrack_format::meta::Process;

use crate::program::frozen;
use crate::program::installations::{editable_roots, has_module, is_archive, sites};
use crate::program::own_paths::{self, OwnPaths};
use crate::program::packages::is_known_by_path;
use crate::program::process_files::{ProcessFiles, without_dots};
use crate::program::started_package;
use crate::system::procfs;

/// Maximum number of bytes that are read of an environment.
const MOST_BYTES: u64 = 1 << 20;
/// Workers that start workers, one above the other.
const MOST_STARTERS: usize = 4;
/// Directories whose scripts were written by installers, beside those that hold an interpreter.
const INSTALLED: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/bin"];

/// The directory fields of a process with this command line.
pub(crate) fn of(pid: i32, command_line: &[Vec<u8>], executable: Option<&[u8]>) -> Process {
    let Some(directory) = procfs::working_directory(pid) else { return Process::default() };
    let mut known = Process { working_directory: Some(bytes(&directory)), ..Process::default() };
    if !executable.is_some_and(is_python) {
        known.own_directories = vec![bytes(&directory)];
        known.frozen = frozen::is_frozen(pid, &environment(pid));
        return known;
    }
    let environment = environment(pid);
    let files = ProcessFiles::of(pid);
    let prefix = prefix(&files, command_line, &environment, &directory, executable);
    let of_prefix = prefix.map(|prefix| sites(&files, &prefix)).unwrap_or_default();
    let installed = editable_roots(&files, &of_prefix);
    let home = variable(&environment, b"HOME").map(|home| PathBuf::from(OsStr::from_bytes(home)));
    let of_user = home.as_ref().map(|home| sites(&files, &home.join(".local"))).unwrap_or_default();
    let on_path = python_path(&environment, &directory);
    let (of_path, targets) = own_paths::of_python_path(&files, &on_path);
    let sites = [of_prefix, of_user, installed.clone(), targets].concat();
    let places = Places { files, sites, of_path: of_path.own, installed: of_path.installed, home };
    let start = InterpreterArguments::of(command_line, &directory, &places);
    let start = if start.is_worker { of_starter(pid, &places).unwrap_or(start) } else { start };
    known.script = start.script.as_deref().map(bytes);
    let mut own = start.own;
    own.extend(places.of_path.iter().filter(|path| !own.contains(path)).cloned().collect::<Vec<_>>());
    known.own_directories = own.iter().map(|path| bytes(path)).collect();
    known.installed_directories = places.installed.iter().chain(&start.installed).map(|path| bytes(path)).collect();
    let roots = start.roots.into_iter().chain(on_path);
    let outermost = |module: &String| started_package::outermost(&places.files, &places.sites, module).into_bytes();
    let mut packages: Vec<_> = start.modules.iter().map(outermost).collect();
    packages.dedup();
    known.started_packages = packages;
    known.import_roots = roots.chain(installed).map(|path| bytes(&path)).collect();
    known
}

/// A forked child, which executes its parent's program: what that was called with may have been overwritten by a title
/// (`gunicorn: worker`), and is relative to where the parent began.
pub(crate) fn of_forked(mut child: Process, parent: &Process) -> Process {
    let joined = |ours: &mut Vec<Vec<u8>>, theirs: &[Vec<u8>]| {
        let news: Vec<_> = theirs.iter().filter(|path| !ours.contains(path)).cloned().collect();
        ours.extend(news);
    };
    if child.command_line != parent.command_line {
        child.script.clone_from(&parent.script);
        child.started_packages.clone_from(&parent.started_packages);
        let has_own = parent.working_directory.as_ref().is_some_and(|here| parent.own_directories.contains(here));
        child.own_directories.retain(|own| has_own || child.working_directory.as_ref() != Some(own));
    }
    joined(&mut child.own_directories, &parent.own_directories);
    joined(&mut child.import_roots, &parent.import_roots);
    joined(&mut child.installed_directories, &parent.installed_directories);
    child
}

/// Where the program's files are, and its installed packages.
#[derive(Debug, Default)]
struct Places {
    files: ProcessFiles,
    sites: Vec<PathBuf>,
    /// Entries of `PYTHONPATH` with own code.
    of_path: Vec<PathBuf>,
    /// What was installed to entries of `PYTHONPATH`.
    installed: Vec<PathBuf>,
    home: Option<PathBuf>,
}

impl Places {
    /// What an installed program's arguments name: modules, as far as they can be imported, and the paths of own code.
    fn named(&self, directory: &Path, arguments: &[&[u8]], started: Option<String>) -> (Vec<String>, OwnPaths) {
        let paths = own_paths::named(&self.files, directory, self.home.as_deref(), arguments);
        let near = [&[directory.to_path_buf()][..], &self.of_path, &paths.roots].concat();
        let has = |directories: &[PathBuf], module: &str| has_module(&self.files, directories, module);
        let is_there = |module: &str| has(&near, module) || has(&self.sites, module);
        let applications = started_package::named(arguments.iter().copied(), None, is_there);
        // Of an installed application, what else is named sets it up.
        let is_installed = |module: &String| !self.has_own(&near, &paths.installed, module) && has(&self.sites, module);
        let paths = if applications.iter().any(is_installed) { OwnPaths::default() } else { paths };
        (started_package::named(arguments.iter().copied(), started, is_there), paths)
    }

    /// Whether the module is imported from where somebody has installed it.
    fn has_installed(&self, directory: &Path, module: &str) -> bool {
        !self.has_own(&[&[directory.to_path_buf()][..], &self.of_path].concat(), &[], module)
    }

    /// Whether one of these directories has the module, and nobody has installed it there.
    fn has_own(&self, directories: &[PathBuf], installed: &[PathBuf], module: &str) -> bool {
        let is_own = |directory: &&PathBuf| {
            let path = directory.join(module.replace('.', "/"));
            let is_it = |one: &PathBuf| path.starts_with(one) || path.with_extension("py") == *one;
            !self.installed.iter().chain(installed).any(is_it)
        };
        directories.iter().filter(is_own).any(|one| has_module(&self.files, std::slice::from_ref(one), module))
    }

    /// The module that an installed script starts.
    fn started_by(&self, script: &Path) -> Option<String> {
        let text = self.files.text(script, started_package::MOST_BYTES)?;
        started_package::imported(&String::from_utf8_lossy(&text))
    }

    /// Whether scripts in this directory are written by installers.
    fn hold_installed(&self, folder: &Path) -> bool {
        let is_known = INSTALLED.iter().any(|known| folder == Path::new(known)) || folder.ends_with(".local/bin");
        is_known || ["python3", "python"].iter().any(|name| self.files.is_there(&folder.join(name)))
    }
}

/// The script and directories that follow from an interpreter's arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct InterpreterArguments {
    /// The script, or the file name in frames of code that is given as text.
    script: Option<PathBuf>,
    own: Vec<PathBuf>,
    roots: Vec<PathBuf>,
    /// What was installed beside the own code that arguments name.
    installed: Vec<PathBuf>,
    /// The modules that they name as what is started.
    modules: Vec<String>,
    /// A library wrote them, to start a process of its own.
    is_worker: bool,
}

impl InterpreterArguments {
    fn of(command_line: &[Vec<u8>], directory: &Path, places: &Places) -> Self {
        let here = || vec![directory.to_path_buf()];
        let text = |name: &str| Self { script: Some(name.into()), own: here(), roots: here(), ..Self::default() };
        let worker = || Self { own: here(), roots: here(), is_worker: true, ..Self::default() };
        let module = |module: Option<&[u8]>, arguments: &mut dyn Iterator<Item = &Vec<u8>>| {
            let started = module.map(|module| String::from_utf8_lossy(module).into_owned());
            if started.as_deref().is_some_and(started_package::is_of_workers) {
                return worker();
            }
            let arguments: Vec<_> = arguments.map(Vec::as_slice).collect();
            let is_installed = started.as_deref().is_some_and(|module| places.has_installed(directory, module));
            let (modules, paths) = places.named(directory, &arguments, started);
            let start = Self { own: here(), roots: here(), modules, ..Self::default() };
            if is_installed { start.with(paths) } else { start }
        };
        let mut arguments = command_line.iter().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_slice() {
                b"-" => break,
                b"-c" if !arguments.next().is_some_and(|code| started_package::is_of_worker(code)) => {
                    return text("<string>");
                }
                b"-c" => return worker(),
                b"-m" => return module(arguments.next().map(Vec::as_slice), &mut arguments),
                b"-W" | b"-X" | b"--check-hash-based-pycs" => _ = arguments.next(),
                [b'-', b'-', ..] => {}
                // Flags may be joined; -c and -m end them, and the rest of the argument belongs to these.
                [b'-', flags @ ..] => match flags.iter().position(|flag| b"cmWX".contains(flag)) {
                    Some(at) if flags[at] == b'c' => return text("<string>"),
                    Some(at) if flags[at] == b'm' => {
                        let joined = Some(&flags[at + 1..]).filter(|name| !name.is_empty());
                        return module(joined.or_else(|| Some(arguments.next()?)), &mut arguments);
                    }
                    Some(_) if flags.last().is_some_and(|flag| b"WX".contains(flag)) => _ = arguments.next(),
                    _ => {}
                },
                script => {
                    let script = directory.join(OsStr::from_bytes(script));
                    let arguments: Vec<_> = arguments.map(Vec::as_slice).collect();
                    return Self::of_script(&script, directory, places, &arguments);
                }
            }
        }
        text("<stdin>")
    }

    fn of_script(script: &Path, directory: &Path, places: &Places, arguments: &[&[u8]]) -> Self {
        let script = &without_dots(script);
        let files = &places.files;
        let resolved = files.resolved(script).unwrap_or_else(|| script.clone());
        // A directory or an archive that is run is an import root itself.
        let has_modules = |path: &Path| files.is_directory(path) || is_archive(files, path);
        let folder =
            |path: &Path| if has_modules(path) { Some(path.into()) } else { path.parent().map(Path::to_path_buf) };
        let mut folders: Vec<PathBuf> = [&resolved, script].into_iter().filter_map(|path| folder(path)).collect();
        folders.dedup();
        let installed = resolved.extension().is_none() && folders.iter().any(|folder| places.hold_installed(folder));
        let of_path = started_package::of_path(script);
        let is_worker = of_path.as_deref().is_some_and(started_package::is_of_workers);
        let own = if installed || is_worker { vec![directory.to_path_buf()] } else { folders.clone() };
        // Such a script mostly adds the working directory, too.
        let roots = if installed || is_worker { [folders, own.clone()].concat() } else { folders };
        let (modules, paths) = match (installed, of_path) {
            _ if is_worker => Default::default(),
            (true, _) => places.named(directory, arguments, places.started_by(&resolved)),
            (false, Some(module)) => (vec![module.clone()], places.named(directory, arguments, None).1),
            (false, None) => Default::default(),
        };
        Self { script: Some(script.clone()), own, roots, modules, is_worker, ..Self::default() }.with(paths)
    }

    /// The same with code that arguments name.
    fn with(mut self, paths: OwnPaths) -> Self {
        let lists =
            [(&mut self.own, paths.own), (&mut self.roots, paths.roots), (&mut self.installed, paths.installed)];
        for (list, more) in lists {
            let news: Vec<_> = more.into_iter().filter(|path| !list.contains(path)).collect();
            list.extend(news);
        }
        self
    }
}

/// The directories of the program that started this worker, perhaps through others: it has the same import roots.
fn of_starter(worker: i32, places: &Places) -> Option<InterpreterArguments> {
    let parents = std::iter::successors(procfs::parent(worker), |pid| procfs::parent(*pid)).take(MOST_STARTERS);
    // Libraries have their own programs between them, as ray does.
    let is_librarys =
        |pid: &i32| procfs::executable(*pid).is_some_and(|path| is_known_by_path(&path) && !is_python(&path));
    for pid in parents.filter(|pid| !is_librarys(pid)) {
        let directory = procfs::executable(pid).filter(|executable| is_python(executable));
        let directory = directory.and_then(|_| procfs::working_directory(pid))?;
        let start = InterpreterArguments::of(&procfs::command_line(pid), &directory, places);
        if !start.is_worker {
            // Workers execute that of their program, too, and an installed one is no own code there, either.
            let is_installed =
                |path: &PathBuf| path.parent().is_some_and(|folder| !start.own.iter().any(|own| own == folder));
            let script = start.script.clone().filter(|path| path.is_absolute() && is_installed(path));
            return Some(InterpreterArguments { script, ..start });
        }
    }
    None
}

/// Whether this is the path of a Python interpreter.
fn is_python(executable: &[u8]) -> bool {
    let name = executable.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"python")
}

/// The variables that the process was started with.
fn environment(pid: i32) -> Vec<u8> {
    let mut all = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/environ")) {
        // What was read before an error is used.
        let _ = file.take(MOST_BYTES).read_to_end(&mut all);
    }
    all
}

fn variable<'e>(environment: &'e [u8], name: &[u8]) -> Option<&'e [u8]> {
    let mut all = environment.split(|&byte| byte == 0);
    all.find_map(|one| one.strip_prefix(name)?.strip_prefix(b"=")).filter(|value| !value.is_empty())
}

fn python_path(environment: &[u8], directory: &Path) -> Vec<PathBuf> {
    let paths = variable(environment, b"PYTHONPATH").unwrap_or_default().split(|&byte| byte == b':');
    paths.filter(|path| !path.is_empty()).map(|path| without_dots(&directory.join(OsStr::from_bytes(path)))).collect()
}

/// The directory that the interpreter's `lib/python3.X/site-packages` lies in: as it was called, which in a virtual
/// environment is a link to another interpreter, else by the environment.
fn prefix(
    files: &ProcessFiles,
    command_line: &[Vec<u8>],
    environment: &[u8],
    directory: &Path,
    executable: Option<&[u8]>,
) -> Option<PathBuf> {
    let of_interpreter = |path: &Path| path.parent()?.parent().map(Path::to_path_buf);
    let path = |bytes| Path::new(OsStr::from_bytes(bytes));
    let called = command_line.first().map(|called| path(called)).filter(|called| !called.as_os_str().is_empty())?;
    if called.components().count() > 1 {
        return of_interpreter(&without_dots(&directory.join(called)));
    }
    if let Some(active) = variable(environment, b"VIRTUAL_ENV") {
        return Some(path(active).to_path_buf());
    }
    let places = variable(environment, b"PATH").unwrap_or_default().split(|&byte| byte == b':');
    let found = places.map(|place| directory.join(path(place)).join(called)).find(|file| files.is_file(file));
    // A version manager's script stands for another file.
    let is_executable = |file: &PathBuf| files.resolved(file).as_deref() == executable.map(path);
    found.filter(is_executable).as_deref().or(executable.map(path)).and_then(of_interpreter)
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().to_owned().into_vec()
}

#[cfg(test)]
mod tests {
    use super::{InterpreterArguments, Places, of, of_forked, prefix, python_path, variable};
    use crate::program::process_files::ProcessFiles;
    use memtrack_format::meta::Process;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn start(words: &[&str], directory: &Path) -> InterpreterArguments {
        let words: Vec<_> = ["python3"].iter().chain(words).map(|word| word.as_bytes().to_vec()).collect();
        let sites = vec![directory.join("venv/lib/python3.12/site-packages")];
        InterpreterArguments::of(&words, directory, &Places { sites, ..Places::default() })
    }

    #[test]
    fn own_code_is_where_the_arguments_say() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        let path = |name: &str| base.join(name);
        for folder in ["tools", "venv/bin", "work"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        for file in ["tools/run.py", "venv/bin/gunicorn", "venv/bin/python3"] {
            fs::write(path(file), "").unwrap();
        }
        let work = path("work");
        let script = |script: &str, own: &Path| (Some(PathBuf::from(script)), vec![own.to_path_buf()]);
        for (words, expected) in [
            (&["-m", "pytest"][..], (None, vec![work.clone()])),
            (&["-Bm", "pytest"], (None, vec![work.clone()])),
            (&["-X", "dev", "-W", "error", "-c", "pass"], script("<string>", &work)),
            (&["-B", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(3)"], (None, vec![work.clone()])),
            (&["-"], script("<stdin>", &work)),
            (&[], script("<stdin>", &work)),
            (
                &["-uW", "error", "../tools/run.py", "-m"],
                script(path("tools/run.py").to_str().unwrap(), &path("tools")),
            ),
            (&["../venv/bin/gunicorn", "app:app"], script(path("venv/bin/gunicorn").to_str().unwrap(), &work)),
        ] {
            let found = start(words, &work);
            assert_eq!((found.script, found.own), expected, "{words:?}");
            assert!(found.roots.contains(&if words.contains(&"-m") && words.len() > 3 {
                path("tools")
            } else {
                expected.1[0].clone()
            }));
        }
    }

    #[test]
    fn a_start_names_the_package_that_it_starts() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        fs::create_dir_all(base.join("venv/bin")).unwrap();
        fs::write(base.join("venv/bin/python3"), "").unwrap();
        fs::write(base.join("venv/bin/serve"), "import sys\nfrom server.cli import main\nsys.exit(main())\n").unwrap();
        fs::create_dir_all(base.join("venv/lib/python3.12/site-packages/shop")).unwrap();
        fs::write(base.join("venv/lib/python3.12/site-packages/shop/wsgi.py"), "").unwrap();
        fs::write(base.join("run.py"), "from other import main\nmain()\n").unwrap();
        for (words, modules) in [
            (&["venv/bin/serve", "shop.wsgi:app"][..], &["shop.wsgi", "server.cli"][..]),
            (&["-m", "shop.tool", "-x"], &["shop.tool"]),
            (&["-Bmshop"], &["shop"]),
            (&["-Bm", "server", "shop:app"], &["shop", "server"]),
            (&["venv/bin/serve", "redis:latest"], &["server.cli"]),
            (&["run.py", "a:b"], &[]),
            (&["-m", "joblib.externals.loky.backend.popen_loky_posix", "--process-name", "shop:x"], &[]),
            (&["venv/lib/python3.12/site-packages/ray/_private/workers/default_worker.py", "shop:x"], &[]),
            (&["venv/lib/python3.12/site-packages/shop/main.py"], &["shop.main"]),
            (&["-c", "pass", "a:b"], &[]),
            (&["-m"], &[]),
        ] {
            assert_eq!(start(words, &base).modules, modules, "{words:?}");
        }
    }

    #[test]
    fn roots_are_read_from_the_environment() {
        let environment = b"A=1\0PYTHONPATH=/opt/a::b/../c\0VIRTUAL_ENV=\0";
        assert_eq!(python_path(environment, Path::new("/srv")), [Path::new("/opt/a"), Path::new("/srv/c")]);
        assert_eq!((variable(environment, b"VIRTUAL_ENV"), variable(environment, b"PYTHON")), (None, None));
    }

    #[test]
    fn the_prefix_is_where_the_interpreter_was_called() {
        let (base, here) = (Path::new("/srv/venv"), Path::new("/srv/app"));
        let called = |name: &str, environment: &[u8], executable: &str| {
            prefix(
                &ProcessFiles::default(),
                &[name.as_bytes().to_vec()],
                environment,
                here,
                Some(executable.as_bytes()),
            )
        };
        assert_eq!(called("../venv/bin/python", b"", "/usr/bin/python3").as_deref(), Some(base));
        assert_eq!(called("/srv/venv/bin/python", b"", "/usr/bin/python3").as_deref(), Some(base));
        assert_eq!(called("python", b"VIRTUAL_ENV=/srv/venv", "/usr/bin/python3").as_deref(), Some(base));
        assert_eq!(called("python", b"PATH=/nowhere", "/usr/bin/python3").as_deref(), Some(Path::new("/usr")));
    }

    #[test]
    fn an_archive_has_its_modules_in_itself() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        let archive = base.join("app.pyz");
        fs::write(&archive, [b"#!/usr/bin/python3\nPK\x05\x06".as_slice(), &[0; 18]].concat()).unwrap();
        fs::write(base.join("app.py"), "pass").unwrap();
        assert_eq!(start(&["app.pyz"], &base).own, [archive]);
        assert_eq!(start(&["app.py"], &base).own, [base]);
    }

    #[test]
    fn a_forked_child_has_its_parents_code_whatever_its_title() {
        let list = |paths: &[&str]| -> Vec<Vec<u8>> { paths.iter().map(|path| path.as_bytes().to_vec()).collect() };
        let process = |line: &[&str], here: &str, own: &[&str]| Process {
            command_line: list(line),
            working_directory: Some(here.into()),
            script: Some(line.concat().into()),
            own_directories: list(own),
            started_packages: list(&line[..1]),
            ..Process::default()
        };
        let serve = ["serve", "-d", "../app"];
        for (parent, child, own) in [
            // A server, whose working directory is its own code; it changes it before it forks.
            (
                process(&serve, "/srv", &["/srv", "/app"]),
                process(&["title"], "/data", &["/data"]),
                &["/data", "/srv", "/app"][..],
            ),
            // A script.
            (process(&serve, "/srv", &["/app"]), process(&["title"], "/srv", &["/srv"]), &["/app"]),
            (process(&serve, "/srv", &["/srv"]), process(&serve, "/", &["/"]), &["/", "/srv"]),
        ] {
            let known = of_forked(child, &parent);
            assert_eq!((known.own_directories, known.script), (list(own), parent.script));
            assert_eq!(known.started_packages, list(&["serve"]));
        }
    }

    #[test]
    fn a_native_program_has_its_working_directory() {
        let pid = std::process::id().cast_signed();
        let known = of(pid, &[], Some(b"/srv/server"));
        let here = std::env::current_dir().unwrap().into_os_string().into_encoded_bytes();
        assert_eq!((known.own_directories, known.script), (vec![here], None));
        assert_eq!(of(-1, &[], None), Process::default());
    }
}
