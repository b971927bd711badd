//! The directories of a program's own code and of its imports, for reports, which may be made on another machine.
//!
//! Python puts the directory of its script first among the roots of imports, the working directory for `-m` and `-c`, then
//! `PYTHONPATH` and what `.pth` files name, as editable installations do. Own code lies below that first directory; of a
//! script that `pip` wrote to start an installed package, which stands beside an interpreter, and of programs that are no
//! Python, below the working directory.
//!
//! Invariant: everything is read from outside of the process, when it connects, and bounded; what cannot be read is left
//! out.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use memtrack_format::meta::Process;

/// Most bytes that are read of an environment and of a `.pth` file.
const MOST_BYTES: u64 = 1 << 20;
/// Most `.pth` files that are read.
const MOST_FILES: usize = 64;
/// Directories whose scripts were written by installers, beside those that hold an interpreter.
const INSTALLED: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/bin"];

/// The directory fields of a process with this command line.
pub(crate) fn of(pid: i32, command_line: &[Vec<u8>], executable: Option<&[u8]>) -> Process {
    let Ok(directory) = fs::read_link(format!("/proc/{pid}/cwd")) else { return Process::default() };
    let mut known = Process { working_directory: Some(bytes(&directory)), ..Process::default() };
    if !executable.is_some_and(is_python) {
        known.own_directories = vec![bytes(&directory)];
        return known;
    }
    let environment = environment(pid);
    let start = InterpreterArguments::of(command_line, &directory);
    known.script = start.script.as_deref().map(bytes);
    known.own_directories = start.own.iter().map(|path| bytes(path)).collect();
    let roots = start.roots.into_iter().chain(python_path(&environment, &directory));
    known.import_roots = roots.chain(path_files(command_line, &environment)).map(|path| bytes(&path)).collect();
    known
}

/// The script and directories that follow from an interpreter's arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct InterpreterArguments {
    /// The script, or what frames have as their file of code that is given as text.
    script: Option<PathBuf>,
    own: Vec<PathBuf>,
    roots: Vec<PathBuf>,
}

impl InterpreterArguments {
    fn of(command_line: &[Vec<u8>], directory: &Path) -> Self {
        let here = || vec![directory.to_path_buf()];
        let text = |name: &str| Self { script: Some(name.into()), own: here(), roots: here() };
        let mut arguments = command_line.iter().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_slice() {
                b"-" => break,
                b"-c" => return text("<string>"),
                b"-m" => return Self { script: None, own: here(), roots: here() },
                b"-W" | b"-X" | b"--check-hash-based-pycs" => _ = arguments.next(),
                [b'-', b'-', ..] => {}
                // Flags in one word; -c and -m end it, and what follows in the word belongs to them.
                [b'-', flags @ ..] => match flags.iter().find(|flag| b"cmWX".contains(flag)) {
                    Some(b'c') => return text("<string>"),
                    Some(b'm') => return Self { script: None, own: here(), roots: here() },
                    Some(_) if flags.last().is_some_and(|flag| b"WX".contains(flag)) => _ = arguments.next(),
                    _ => {}
                },
                script => return Self::of_script(&directory.join(OsStr::from_bytes(script)), directory),
            }
        }
        text("<stdin>")
    }

    fn of_script(script: &Path, directory: &Path) -> Self {
        let script = &without_dots(script);
        let resolved = fs::canonicalize(script).unwrap_or_else(|_| script.clone());
        // A directory or an archive that is run has its modules in itself.
        let folder = |path: &Path| if path.is_dir() { Some(path.into()) } else { path.parent().map(Path::to_path_buf) };
        let mut folders: Vec<PathBuf> = [&resolved, script].into_iter().filter_map(|path| folder(path)).collect();
        folders.dedup();
        let installed = resolved.extension().is_none() && folders.iter().any(|folder| holds_installed(folder));
        let own = if installed { vec![directory.to_path_buf()] } else { folders.clone() };
        // Such a script is mostly told to look into the working directory, too.
        let roots = if installed { [folders, own.clone()].concat() } else { folders };
        Self { script: Some(script.clone()), own, roots }
    }
}

/// Whether scripts in this directory are what installers write.
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

/// The variables that the process was started with.
fn environment(pid: i32) -> Vec<u8> {
    let mut all = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/environ")) {
        // What was read before an error is as good as the whole.
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

/// The directories that `.pth` files of the virtual environment name.
fn path_files(command_line: &[Vec<u8>], environment: &[u8]) -> Vec<PathBuf> {
    let called = command_line.first().map(|path| Path::new(OsStr::from_bytes(path)));
    let beside = called.and_then(|path| path.parent()?.parent()).filter(|prefix| prefix.is_absolute());
    let active = variable(environment, b"VIRTUAL_ENV").map(|path| Path::new(OsStr::from_bytes(path)));
    let mut found = Vec::new();
    if let Some(prefix) = beside.or(active) {
        for version in entries(&prefix.join("lib")).filter(|path| path.to_string_lossy().contains("/python3")) {
            let files = entries(&version.join("site-packages"));
            for file in files.filter(|path| path.extension() == Some(OsStr::new("pth"))).take(MOST_FILES) {
                let mut text = String::new();
                let read = fs::File::open(&file).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
                let lines = text.lines().map(str::trim).filter(|line| line.starts_with('/'));
                found.extend(lines.filter(|_| read.is_ok()).map(PathBuf::from));
            }
        }
    }
    found
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().to_owned().into_vec()
}

#[cfg(test)]
mod tests {
    use super::{InterpreterArguments, of, python_path, variable};
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
    fn roots_are_read_from_the_environment() {
        let environment = b"A=1\0PYTHONPATH=/opt/a::b/../c\0VIRTUAL_ENV=\0";
        assert_eq!(python_path(environment, Path::new("/srv")), [Path::new("/opt/a"), Path::new("/srv/c")]);
        assert_eq!((variable(environment, b"VIRTUAL_ENV"), variable(environment, b"PYTHON")), (None, None));
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
