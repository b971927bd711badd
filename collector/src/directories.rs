//! Determines the directories of a program's own code and of its imports, since a report may be made on another
//! machine.
//!
//! Python's first import root is the directory of its script, or the working directory for `-m` and `-c`; then come
//! `PYTHONPATH` and the directories in `.pth` files, as editable installations add them. Own code lies below the first
//! root. For a script that `pip` wrote to start an installed package (it lies beside an interpreter), and for programs
//! other than Python, own code lies below the working directory; the package that such a script starts, or `-m`, is named, too.
//!
//! Invariant: everything is read from outside the process, when it connects, and is bounded; what cannot be read is
//! left out.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use memtrack_format::meta::Process;

use crate::own_malloc;
use crate::procfs;
use crate::source_recorder;
use crate::started_package;

/// Maximum number of bytes that are read of an environment or of a `.pth` file.
const MOST_BYTES: u64 = 1 << 20;
/// Maximum number of `.pth` files that are read.
const MOST_FILES: usize = 64;
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
        known.frozen = is_frozen(pid, &environment(pid));
        return known;
    }
    let environment = environment(pid);
    let start = InterpreterArguments::of(command_line, &directory);
    let start = if is_worker(command_line) { of_starter(pid).unwrap_or(start) } else { start };
    known.script = start.script.as_deref().map(bytes);
    known.own_directories = start.own.iter().map(|path| bytes(path)).collect();
    let roots = start.roots.into_iter().chain(python_path(&environment, &directory));
    let prefix = prefix(command_line, &environment, &directory, executable);
    let installed = prefix.as_deref().map(editable_roots).unwrap_or_default();
    let sites: Vec<_> = prefix.iter().flat_map(|prefix| sites(prefix)).chain(installed.iter().cloned()).collect();
    let mut packages: Vec<_> =
        start.modules.iter().map(|module| started_package::outermost(&sites, module).into_bytes()).collect();
    packages.dedup();
    known.started_packages = packages;
    known.import_roots = roots.chain(installed).map(|path| bytes(&path)).collect();
    known
}

/// The script and directories that follow from an interpreter's arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct InterpreterArguments {
    /// The script, or the file name in frames of code that is given as text.
    script: Option<PathBuf>,
    own: Vec<PathBuf>,
    roots: Vec<PathBuf>,
    /// The modules that they name as what is started.
    modules: Vec<String>,
}

impl InterpreterArguments {
    fn of(command_line: &[Vec<u8>], directory: &Path) -> Self {
        let here = || vec![directory.to_path_buf()];
        let text = |name: &str| Self { script: Some(name.into()), own: here(), roots: here(), modules: Vec::new() };
        let module = |module: Option<&[u8]>, arguments: &mut dyn Iterator<Item = &Vec<u8>>| {
            let started = module.map(|module| String::from_utf8_lossy(module).into_owned());
            let modules = started_package::named(arguments.map(Vec::as_slice), started);
            Self { script: None, own: here(), roots: here(), modules }
        };
        let mut arguments = command_line.iter().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_slice() {
                b"-" => break,
                b"-c" if !arguments.next().is_some_and(|code| starts_worker(code)) => return text("<string>"),
                b"-c" => return module(None, &mut std::iter::empty()),
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
                    return Self::of_script(&script, directory, arguments.map(Vec::as_slice));
                }
            }
        }
        text("<stdin>")
    }

    fn of_script<'a>(script: &Path, directory: &Path, arguments: impl Iterator<Item = &'a [u8]>) -> Self {
        let script = &without_dots(script);
        let resolved = fs::canonicalize(script).unwrap_or_else(|_| script.clone());
        // A directory or an archive that is run is an import root itself.
        let has_modules = |path: &Path| path.is_dir() || is_archive(path);
        let folder =
            |path: &Path| if has_modules(path) { Some(path.into()) } else { path.parent().map(Path::to_path_buf) };
        let mut folders: Vec<PathBuf> = [&resolved, script].into_iter().filter_map(|path| folder(path)).collect();
        folders.dedup();
        let installed = resolved.extension().is_none() && folders.iter().any(|folder| holds_installed(folder));
        let own = if installed { vec![directory.to_path_buf()] } else { folders.clone() };
        // Such a script mostly adds the working directory, too.
        let roots = if installed { [folders, own.clone()].concat() } else { folders };
        let modules = match (installed, started_package::of_path(script)) {
            (true, _) => started_package::named(arguments, started_by(&resolved)),
            (false, of_path) => of_path.into_iter().collect(),
        };
        Self { script: Some(script.clone()), own, roots, modules }
    }
}

/// The module that an installed script starts.
fn started_by(script: &Path) -> Option<String> {
    let text = source_recorder::text(None, script, started_package::MOST_BYTES)?;
    started_package::imported(&String::from_utf8_lossy(&text))
}

/// Whether an interpreter was started with such code.
fn is_worker(command_line: &[Vec<u8>]) -> bool {
    let code = command_line.iter().skip_while(|argument| *argument != b"-c").nth(1);
    code.is_some_and(|code| starts_worker(code))
}

/// The directories of the program that started this worker, perhaps through others: it has the same import roots.
fn of_starter(worker: i32) -> Option<InterpreterArguments> {
    let parents = std::iter::successors(procfs::parent(worker), |pid| procfs::parent(*pid));
    let mut started = parents.take(MOST_STARTERS).map(|pid| (pid, procfs::command_line(pid)));
    let (pid, command_line) = started.find(|(_, command_line)| !is_worker(command_line))?;
    let is_program = procfs::executable(pid).is_some_and(|executable| is_python(&executable));
    let directory = procfs::working_directory(pid).filter(|_| is_program)?;
    Some(InterpreterArguments { script: None, ..InterpreterArguments::of(&command_line, &directory) })
}

/// Whether a library wrote this code, which `-c` gives, to start a process of its own: no line of it is the user's.
fn starts_worker(code: &[u8]) -> bool {
    let of: [&[u8]; 3] = [b"from multiprocessing.", b"from billiard.", b"from joblib.externals.loky."];
    of.iter().any(|import| code.starts_with(import))
}

/// Whether scripts in this directory are written by installers.
fn holds_installed(folder: &Path) -> bool {
    let is_known = INSTALLED.iter().any(|known| folder == Path::new(known)) || folder.ends_with(".local/bin");
    is_known || folder.join("python3").exists() || folder.join("python").exists()
}

/// The path as Python makes it absolute, without looking at the files.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain
}

/// Whether this is the path of a Python interpreter.
fn is_python(executable: &[u8]) -> bool {
    let name = executable.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"python")
}

/// Whether a program that is no interpreter has one in it (Nuitka), or was started by what unpacks one (PyInstaller, which
/// starts it a second time, with variables).
fn is_frozen(pid: i32, environment: &[u8]) -> bool {
    let is_unpacked = |one: &[u8]| one.starts_with(b"_PYI_") || one.starts_with(b"_MEIPASS2=");
    environment.split(|&byte| byte == 0).any(is_unpacked)
        || own_malloc::defines(Path::new(&format!("/proc/{pid}/exe")), b"Py_Initialize").unwrap_or(false)
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
    let found = places.map(|place| directory.join(path(place)).join(called)).find(|file| file.is_file());
    // A version manager's script stands for another file.
    let is_executable = |file: &PathBuf| fs::canonicalize(file).ok().as_deref() == executable.map(path);
    found.filter(is_executable).as_deref().or(executable.map(path)).and_then(of_interpreter)
}

/// Where packages are installed below a prefix.
fn sites(prefix: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let versions = entries(&prefix.join("lib")).filter(|path| path.to_string_lossy().contains("/python3"));
    versions.map(|version| version.join("site-packages"))
}

/// The roots that editable installations add: lines of `.pth` files, and what setuptools' finders map.
fn editable_roots(prefix: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for site in sites(prefix) {
        let is_finder = |path: &Path| {
            let name = path.file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"__editable__") && name.ends_with(b"_finder.py")
        };
        let is_one = |path: &PathBuf| path.extension() == Some(OsStr::new("pth")) || is_finder(path);
        for file in entries(&site).filter(is_one).take(MOST_FILES) {
            let mut text = String::new();
            let read = fs::File::open(&file).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
            if read.is_err() {
                continue;
            }
            if is_finder(&file) {
                found.extend(mapped_roots(&text));
            } else {
                // Paths are relative to where the file is.
                let is_path =
                    |line: &&str| !line.is_empty() && !line.starts_with(['#', '_']) && !line.starts_with("import");
                let paths = text.lines().map(str::trim).filter(is_path).map(|line| without_dots(&site.join(line)));
                found.extend(paths.filter(|path| path.is_dir() || is_archive(path)));
            }
        }
    }
    found
}

/// The directories that the packages of a finder's `MAPPING` are imported from: of `{'a.b': '/srv/src/a/b'}` it is `/srv/src`.
/// A package that lies in a directory of another name has none.
fn mapped_roots(finder: &str) -> Vec<PathBuf> {
    let Some(line) = finder.lines().find(|line| line.starts_with("MAPPING")) else { return Vec::new() };
    let literals: Vec<&str> = line.split('\'').skip(1).step_by(2).collect();
    let (pairs, _) = literals.as_chunks::<2>();
    let root = |[name, path]: &[&str; 2]| {
        let mut root = Path::new(path);
        for part in name.rsplit('.') {
            let file = root.file_stem().filter(|stem| *stem == OsStr::new(part));
            root = file.and(root.parent())?;
        }
        root.is_absolute().then(|| root.to_path_buf())
    };
    pairs.iter().filter_map(root).collect()
}

/// Whether this is a file that Python imports modules from: a zip archive, with or without a line of a script before it.
fn is_archive(path: &Path) -> bool {
    const END: &[u8] = b"PK\x05\x06";
    const LAST: u64 = 1024;
    let last = || -> std::io::Result<Vec<u8>> {
        let mut last = Vec::new();
        let metadata = fs::metadata(path)?;
        if metadata.is_file() {
            let mut file = fs::File::open(path)?;
            file.seek(SeekFrom::Start(metadata.len().saturating_sub(LAST)))?;
            file.take(LAST).read_to_end(&mut last)?;
        }
        Ok(last)
    };
    last().is_ok_and(|last| last.windows(END.len()).any(|bytes| bytes == END))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().to_owned().into_vec()
}

#[cfg(test)]
mod tests {
    use super::{InterpreterArguments, editable_roots, mapped_roots, of, prefix, python_path, variable};
    use std::fs;
    use std::path::{Path, PathBuf};

    fn start(words: &[&str], directory: &Path) -> InterpreterArguments {
        let words: Vec<_> = ["python3"].iter().chain(words).map(|word| word.as_bytes().to_vec()).collect();
        InterpreterArguments::of(&words, directory)
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
        fs::write(base.join("run.py"), "from other import main\nmain()\n").unwrap();
        for (words, modules) in [
            (&["venv/bin/serve", "shop.wsgi:app"][..], &["shop.wsgi", "server.cli"][..]),
            (&["-m", "shop.tool", "-x"], &["shop.tool"]),
            (&["-Bmshop"], &["shop"]),
            (&["-Bm", "server", "shop:app"], &["shop", "server"]),
            (&["run.py", "a:b"], &[]),
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
    fn editable_installations_add_roots() {
        let base = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(base.path()).unwrap();
        let site = base.join("venv/lib/python3.11/site-packages");
        fs::create_dir_all(&site).unwrap();
        fs::create_dir_all(base.join("src")).unwrap();
        let src = base.join("src");
        fs::write(site.join("a.pth"), format!("# comment\nimport x; x.y()\n{}\n../nothing\n", src.display())).unwrap();
        let mapping =
            "MAPPING: dict[str, str] = {'shop': '/srv/lib/shop', 'tool': '/opt/tool.py', 'other': '/opt/code'}\n";
        fs::write(site.join("__editable___shop_1_finder.py"), mapping).unwrap();
        let mut roots = editable_roots(&base.join("venv"));
        roots.sort();
        let mut expected = [Path::new("/srv/lib"), Path::new("/opt"), &src];
        expected.sort();
        assert_eq!(roots, expected);
        assert_eq!(mapped_roots("MAPPING = {'acme.one': '/srv/acme/one', 'acme.two'}"), [Path::new("/srv")]);
        assert!(mapped_roots("NAMESPACES = {'a': '/b'}").is_empty());
    }

    #[test]
    fn the_prefix_is_where_the_interpreter_was_called() {
        let (base, here) = (Path::new("/srv/venv"), Path::new("/srv/app"));
        let called = |name: &str, environment: &[u8], executable: &str| {
            prefix(&[name.as_bytes().to_vec()], environment, here, Some(executable.as_bytes()))
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
    fn a_native_program_has_its_working_directory() {
        let pid = std::process::id().cast_signed();
        let known = of(pid, &[], Some(b"/srv/server"));
        let here = std::env::current_dir().unwrap().into_os_string().into_encoded_bytes();
        assert_eq!((known.own_directories, known.script), (vec![here], None));
        assert_eq!(of(-1, &[], None), memtrack_format::meta::Process::default());
    }
}
