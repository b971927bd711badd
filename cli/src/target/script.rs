//! Resolves scripts: follows `#!` lines and wrappers step by step to a program.
//!
//! By the kernel's rules, the line has at most 255 bytes: the interpreter's path, and the rest as one argument. `env`
//! is emulated. Invariant: if a form is not understood, the file itself is executed; the program then runs normally,
//! but is not recorded.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Environment, TargetFile, lookup, python, set_variable};
use crate::failure::Failure;

/// Bytes that the kernel reads of a file to find its interpreter.
const KERNEL_BYTES: usize = 256;
/// Bytes that are read to recognize a version manager's script.
const HEAD_BYTES: u64 = 4096;
/// Maximum number of steps. The kernel follows up to four interpreters; `env` and version managers add more.
const MAX_STEPS: usize = 12;

/// Finds the program that executing `path` with `arguments` (the name first) leads to.
///
/// # Errors
/// Status 126 for an interpreter loop, 127 for a missing interpreter.
pub(super) fn resolve(
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Environment,
) -> Result<TargetFile, Failure> {
    let start = path.clone();
    let mut step = ScriptStep { path, arguments, environment };
    for _ in 0..MAX_STEPS {
        match step.next()? {
            Resolution::Step(next) => step = next,
            Resolution::Program(step) => return Ok(TargetFile::new(step.path, step.arguments, step.environment)),
        }
    }
    Err(Failure::not_executable(&format!("{}: too many nested interpreters (interpreter loop)", start.display())))
}

#[derive(Debug)]
struct ScriptStep {
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Environment,
}

enum Resolution {
    Step(ScriptStep),
    Program(ScriptStep),
}

impl ScriptStep {
    fn next(self) -> Result<Resolution, Failure> {
        let head = head(&self.path);
        if head.starts_with(b"\x7fELF") || head.is_empty() {
            return Ok(Resolution::Program(self));
        }
        if python::is_version_manager(&head)
            && let Some(wrapped) = python::wrapped_interpreter(&self.path, &self.environment)
        {
            return Ok(Resolution::Step(self.follow_wrapper(wrapped)));
        }
        if let Some(interpreter) = long_path(&head) {
            return Ok(Resolution::Step(self.interpreted(interpreter.clone(), vec![interpreter])));
        }
        match first_line(&head) {
            Some((interpreter, argument)) => self.by_line(interpreter, argument),
            // Text without `#!`: execvp and shells execute it with sh.
            None if is_text(&head) => Ok(Resolution::Step(self.interpreted("/bin/sh".into(), vec!["/bin/sh".into()]))),
            None => Ok(Resolution::Program(self)),
        }
    }

    fn follow_wrapper(mut self, wrapped: python::WrappedInterpreter) -> Self {
        self.arguments[0] = wrapped.name;
        Self { path: wrapped.path, arguments: self.arguments, environment: wrapped.environment }
    }

    /// Passes the script to its interpreter, after `words`.
    fn interpreted(mut self, interpreter: OsString, mut words: Vec<OsString>) -> Self {
        words.push(self.path.into());
        words.extend(self.arguments.drain(1..));
        Self { path: interpreter.into(), arguments: words, environment: self.environment }
    }

    fn by_line(self, interpreter: &OsStr, argument: Option<&OsStr>) -> Result<Resolution, Failure> {
        let is_env = Path::new(interpreter).file_name() == Some(OsStr::new("env"));
        if let Some(env) = argument.filter(|_| is_env).and_then(|argument| EnvCommand::parse(argument.as_bytes())) {
            return Ok(self.by_env(env));
        }
        if !Path::new(interpreter).exists() {
            let (script, shown) = (self.path.display(), Path::new(interpreter).display());
            return Err(Failure::not_found(&format!("{script}: interpreter {shown} not found")));
        }
        let words = [Some(interpreter), argument].into_iter().flatten().map(OsStr::to_owned).collect();
        let next = self.interpreted(interpreter.into(), words);
        Ok(if is_env { Resolution::Program(next) } else { Resolution::Step(next) })
    }

    /// Emulates `env`: sets variables, finds the program in PATH, and executes it.
    fn by_env(mut self, env: EnvCommand) -> Resolution {
        for (name, value) in env.variables {
            set_variable(&mut self.environment, &name, value.into());
        }
        match lookup::program(env.words[0].as_ref(), &self.environment) {
            Ok(found) => {
                let words = env.words.into_iter().map(OsString::from).collect();
                Resolution::Step(self.interpreted(found.into(), words))
            }
            // `env` itself then prints the error.
            Err(_) => Resolution::Program(self),
        }
    }
}

/// The parsed arguments of a `#!/usr/bin/env …` line.
#[derive(Debug, PartialEq, Eq)]
struct EnvCommand {
    variables: Vec<(String, String)>,
    words: Vec<String>,
}

impl EnvCommand {
    /// Parses the argument of `env`; `None` for forms that are not emulated.
    fn parse(argument: &[u8]) -> Option<Self> {
        let argument = str::from_utf8(argument).ok()?;
        let Some(split) = argument.strip_prefix("-S").or_else(|| argument.strip_prefix("--split-string=")) else {
            let plain = !argument.starts_with('-') && !argument.contains('=');
            return plain.then(|| Self { variables: Vec::new(), words: vec![argument.into()] });
        };
        if split.contains(['"', '\'', '\\', '$', '#']) {
            return None;
        }
        let mut words: Vec<String> = split.split_whitespace().map(Into::into).collect();
        let assigned = words.iter().take_while(|word| word.contains('=') && !word.starts_with('-')).count();
        let assignments = words.drain(..assigned).collect::<Vec<_>>();
        let split_once = |word: &String| word.split_once('=').map(|(name, value)| (name.into(), value.into()));
        let variables = assignments.iter().filter_map(split_once).collect();
        words.first().is_some_and(|first| !first.starts_with('-')).then_some(Self { variables, words })
    }
}

fn head(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if let Ok(file) = File::open(path) {
        // A file that is executable but not readable is passed to the kernel.
        let _ = file.take(HEAD_BYTES).read_to_end(&mut head);
    }
    head
}

/// The interpreter and its argument, by the kernel's rules.
fn first_line(head: &[u8]) -> Option<(&OsStr, Option<&OsStr>)> {
    let line = head.get(..KERNEL_BYTES.min(head.len()))?.strip_prefix(b"#!")?;
    let end = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
    let line = without_blanks(&line[..end]);
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let (interpreter, argument) = (&line[..end], without_blanks(&line[end..]));
    let argument = (!argument.is_empty()).then(|| OsStr::from_bytes(argument));
    (!interpreter.is_empty()).then(|| (OsStr::from_bytes(interpreter), argument))
}

/// A carriage return is none: it belongs to the name, and there is no such interpreter.
fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn without_blanks(line: &[u8]) -> &[u8] {
    let begin = line.iter().position(|byte| !is_blank(byte)).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !is_blank(byte)).map_or(begin, |last| last + 1);
    &line[begin..end]
}

/// The interpreter of a script in the form that installers write where its path is too long for the kernel or has
/// spaces: a shell script whose second line executes it, and a Python string at the same time.
fn long_path(head: &[u8]) -> Option<OsString> {
    let text = str::from_utf8(head.strip_prefix(b"#!/bin/sh\n")?.split(|byte| *byte == b'\n').next()?).ok()?;
    let interpreter = text.strip_prefix("'''exec' ")?.strip_suffix(" \"$0\" \"$@\"")?;
    Some(interpreter.trim_matches('"').into())
}

fn is_text(head: &[u8]) -> bool {
    !head[..head.len().min(KERNEL_BYTES)].contains(&0)
}

#[cfg(test)]
mod tests {
    use super::{EnvCommand, first_line, long_path, resolve};
    use std::ffi::OsString;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn arguments(directory: &Path, text: &str) -> (PathBuf, Vec<String>) {
        let path = script(directory, "script", text);
        let environment = vec![("PATH".into(), "/usr/bin:/bin".into())];
        let program = resolve(path, vec!["typed".into(), "-x".into()], environment).unwrap();
        let text = |word: &OsString| word.to_str().unwrap().replace(directory.to_str().unwrap(), "DIR");
        (program.path.clone(), program.arguments.iter().map(text).collect())
    }

    #[test]
    fn arguments_are_those_the_kernel_gives() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        assert_eq!(arguments(directory, "#!/bin/sh\n").1, ["/bin/sh", "DIR/script", "-x"]);
        assert_eq!(arguments(directory, "#! /bin/sh -e -u \n").1, ["/bin/sh", "-e -u", "DIR/script", "-x"]);
        assert_eq!(arguments(directory, "echo text\n").1, ["/bin/sh", "DIR/script", "-x"]);
        let (path, words) = arguments(directory, "#!/usr/bin/env sh\n");
        assert_eq!(
            (path.to_str().unwrap(), words),
            ("/usr/bin/sh", vec!["sh".into(), "DIR/script".into(), "-x".into()])
        );
        assert_eq!(arguments(directory, "#!/usr/bin/env -S A=b sh -e\n").1, ["sh", "-e", "DIR/script", "-x"]);
    }

    #[test]
    fn what_only_env_understands_is_left_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let (path, words) = arguments(directory.path(), "#!/usr/bin/env -i sh\n");
        assert_eq!(path, Path::new("/usr/bin/env"));
        assert_eq!(words, ["/usr/bin/env", "-i sh", "DIR/script", "-x"]);
    }

    #[test]
    fn interpreters_that_are_scripts_and_circles() {
        let directory = tempfile::tempdir().unwrap();
        let inner = script(directory.path(), "inner", "#!/bin/sh -e\n");
        let words = arguments(directory.path(), &format!("#!{} arg\n", inner.display())).1;
        assert_eq!(words, ["/bin/sh", "-e", "DIR/inner", "arg", "DIR/script", "-x"]);
        let circle = directory.path().join("circle");
        script(directory.path(), "circle", &format!("#!{}\n", circle.display()));
        assert_eq!(resolve(circle, vec!["c".into()], vec![]).unwrap_err().status(), 126);
        let returned = script(directory.path(), "returned", "#!/bin/sh\r\n");
        assert_eq!(resolve(returned, vec!["r".into()], vec![]).unwrap_err().status(), 127);
        let gone = script(directory.path(), "gone", "#!/no/such/interpreter\n");
        assert_eq!(resolve(gone, vec!["g".into()], vec![]).unwrap_err().status(), 127);
    }

    #[test]
    fn lines() {
        assert_eq!(first_line(b"#!\n"), None);
        assert_eq!(first_line(b"# text"), None);
        assert_eq!(EnvCommand::parse(b"-S"), None);
        assert_eq!(EnvCommand::parse(b"-S \"a b\""), None);
        assert_eq!(EnvCommand::parse(b"python3").unwrap().words, ["python3"]);
        assert_eq!(long_path(b"#!/bin/sh\n'''exec' \"/a b/python3\" \"$0\" \"$@\"\n' '''\n").unwrap(), "/a b/python3");
    }
}
