//! Resolves the target of `memtrack run` to an executable file, its arguments and its environment.
//!
//! The first executed program loads the shim, so it must be the target itself: an interpreter named by `#!/usr/bin/env
//! python3` or started by a version manager's script is resolved here and executed directly. Invariant: the program
//! gets the same arguments and environment as without memtrack.

mod elf;
mod lookup;
mod python;
mod script;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::args::Arguments;
use crate::args::meant::is_meant;
use crate::failure::Failure;

/// The process's environment, in its order.
pub(crate) type Environment = Vec<(OsString, OsString)>;

/// The target as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A Python script, with its arguments.
    Script(PathBuf, Vec<OsString>),
    /// `-m module`, with its arguments.
    Module(OsString, Vec<OsString>),
    /// `-c code`, with its arguments.
    Code(OsString, Vec<OsString>),
    /// `-`, a script of Python on the standard input, with its arguments.
    StandardInput(Vec<OsString>),
    /// Any other program, with its arguments.
    Program(OsString, Vec<OsString>),
}

/// A resolved target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetFile {
    /// The file.
    pub(crate) path: PathBuf,
    /// Its arguments, its own name first.
    pub(crate) arguments: Vec<OsString>,
    /// Its environment.
    pub(crate) environment: Environment,
    /// Why it cannot be recorded, if that is known in advance.
    pub(crate) untrackable: Option<String>,
}

impl Target {
    /// Parses the target: `-m module`, `-c code`, `-`, the path of a script, or any other program.
    ///
    /// # Errors
    /// Wrong usage: an unknown option, or `-m` or `-c` without a value.
    pub(crate) fn parse(words: &[OsString]) -> Result<Self, Failure> {
        let Some((first, rest)) = words.split_first() else {
            return Err(Failure::usage("missing TARGET: expected a script, -m MODULE, -c CODE or a program"));
        };
        let text = first.to_string_lossy();
        if let Some((flag, attached)) = option(&text) {
            return Self::with_option(flag, attached, rest);
        }
        if text == "-" {
            return Ok(Self::StandardInput(rest.into()));
        }
        if text.starts_with('-') {
            return Err(Failure::usage(&unknown_option(&text)));
        }
        Ok(if is_python_script(first) {
            Self::Script(first.into(), rest.into())
        } else {
            Self::Program(first.clone(), rest.into())
        })
    }

    fn with_option(flag: char, attached: &str, rest: &[OsString]) -> Result<Self, Failure> {
        let (value, rest) = match (attached, rest.split_first()) {
            ("", Some((value, rest))) => (value.clone(), rest),
            ("", None) => return Err(Failure::usage(&format!("option '-{flag}' needs an argument"))),
            (attached, _) => (attached.into(), rest),
        };
        Ok(if flag == 'm' { Self::Module(value, rest.into()) } else { Self::Code(value, rest.into()) })
    }

    /// The name in the capture's file name.
    pub(crate) fn name(&self) -> String {
        let name = match self {
            Self::Script(path, _) => path.file_name().unwrap_or(path.as_os_str()),
            Self::Module(module, _) => module,
            Self::Code(..) => OsStr::new("string"),
            Self::StandardInput(_) => OsStr::new("stdin"),
            Self::Program(program, _) => Path::new(program).file_name().unwrap_or(program),
        };
        name.to_string_lossy().replace('/', "_")
    }

    /// Finds the file to execute.
    ///
    /// # Errors
    /// Status 127 if it is not found, 126 if it is not executable.
    pub(crate) fn resolve(&self, python: Option<&Path>, environment: Environment) -> Result<TargetFile, Failure> {
        let (options, arguments): (Vec<OsString>, _) = match self {
            Self::Program(program, arguments) => {
                let path = lookup::program(program, &environment)?;
                return script::resolve(path, words([program.clone()], arguments), environment);
            }
            Self::Script(path, arguments) => (vec![readable(path)?.into()], arguments),
            Self::Module(module, arguments) => (vec!["-m".into(), module.clone()], arguments),
            Self::Code(code, arguments) => (vec!["-c".into(), code.clone()], arguments),
            Self::StandardInput(arguments) => (vec!["-".into()], arguments),
        };
        let (path, name) = python::interpreter(python, &environment)?;
        script::resolve(path, words([name].into_iter().chain(options), arguments), environment)
    }
}

impl TargetFile {
    /// A program that is executed directly.
    fn new(path: PathBuf, arguments: Vec<OsString>, environment: Environment) -> Self {
        let untrackable = elf::untrackable(&path);
        Self { path, arguments, environment, untrackable }
    }
}

/// The value of a variable.
pub(crate) fn variable<'a>(environment: &'a Environment, name: &str) -> Option<&'a OsStr> {
    environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
}

/// Replaces a variable in place, or appends it.
pub(crate) fn set_variable(environment: &mut Environment, name: &str, value: OsString) {
    match environment.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => *old = value,
        None => environment.push((name.into(), value)),
    }
}

/// The error for an unknown option of `memtrack run`, with a suggestion.
fn unknown_option(text: &str) -> String {
    let typed = text.split('=').next().unwrap_or(text);
    let is_begin_of = |option: &String| option.strip_prefix(typed).is_some_and(|rest| rest.starts_with('-'));
    if let Some(option) = run_options().into_iter().find(is_begin_of) {
        return format!("unexpected argument '{text}'; did you mean '{option}'?");
    }
    if long_options("flamegraph").iter().any(|option| option == typed) {
        return format!(
            "unexpected argument '{text}': an option of 'memtrack flamegraph', which makes the page of a capture; run without it"
        );
    }
    let likeness = |option: &String| strsim::jaro(option, typed);
    let nearest = run_options().into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|option| is_meant(option, typed)) {
        Some(option) => format!("unexpected argument '{text}'; did you mean '{option}'?"),
        None => format!("unexpected argument '{text}'; see 'memtrack run --help'"),
    }
}

/// A note about options of memtrack after the program, which were passed to the program.
pub(crate) fn misplaced_options(target: &Target) -> Option<String> {
    let (Target::Script(_, words) | Target::Module(_, words)) = target else { return None };
    let known = run_options();
    let is_ours = |word: &&str| known.iter().any(|option| option == word) && !COMMON.contains(word);
    let behind: Vec<&str> = words.iter().filter_map(|word| word.to_str()).filter(is_ours).collect();
    (!behind.is_empty())
        .then(|| format!("{} passed to the program; put memtrack options before the program", behind.join(" ")))
}

/// Options that many programs have; no note about these.
const COMMON: [&str; 4] = ["--help", "--quiet", "--force", "--live"];

/// The long options of `memtrack run`, and `-o`.
fn run_options() -> Vec<String> {
    long_options("run").into_iter().chain(["-o".to_owned()]).collect()
}

/// The long options of a command.
fn long_options(name: &str) -> Vec<String> {
    let command = Arguments::command();
    let arguments = command.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    let long = arguments.flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default());
    long.map(|name| format!("--{name}")).collect()
}

fn option(text: &str) -> Option<(char, &str)> {
    let mut chars = text.strip_prefix('-')?.chars();
    let flag = chars.next().filter(|flag| matches!(flag, 'm' | 'c'))?;
    Some((flag, chars.as_str()))
}

fn words(first: impl IntoIterator<Item = OsString>, rest: &[OsString]) -> Vec<OsString> {
    first.into_iter().chain(rest.iter().cloned()).collect()
}

/// Whether Python runs this path: a Python suffix, or a directory with a main module.
fn is_python_script(target: &OsStr) -> bool {
    let path = Path::new(target);
    let suffix = path.extension().and_then(OsStr::to_str);
    matches!(suffix, Some("py" | "pyw" | "pyc" | "pyz")) || path.join("__main__.py").is_file()
}

fn readable(path: &Path) -> Result<&Path, Failure> {
    match std::fs::File::open(path) {
        Ok(_) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::not_found(&format!("{}: script not found", path.display())))
        }
        Err(error) => Err(Failure::not_executable(&format!("{}: cannot be read: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::Target;
    use std::ffi::OsString;

    fn parse(words: &[&str]) -> Result<Target, String> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        Target::parse(&words).map_err(|failure| failure.to_string())
    }

    #[test]
    fn forms() {
        assert_eq!(parse(&["a/b.py", "-o", "x"]), Ok(Target::Script("a/b.py".into(), vec!["-o".into(), "x".into()])));
        assert_eq!(parse(&["-m", "json.tool", "-h"]), Ok(Target::Module("json.tool".into(), vec!["-h".into()])));
        assert_eq!(parse(&["-mjson"]), Ok(Target::Module("json".into(), vec![])));
        assert_eq!(parse(&["-c", "-x"]), Ok(Target::Code("-x".into(), vec![])));
        assert_eq!(parse(&["-", "-x"]), Ok(Target::StandardInput(vec!["-x".into()])));
        assert_eq!(parse(&["python3.12", "a.py"]), Ok(Target::Program("python3.12".into(), vec!["a.py".into()])));
    }

    #[test]
    fn wrong_forms() {
        assert!(parse(&[]).is_err());
        assert!(parse(&["-m"]).unwrap_err().contains("'-m' needs an argument"));
        let told = |option: &str| parse(&[option]).unwrap_err();
        assert_eq!(told("--nativ"), "unexpected argument '--nativ'; did you mean '--native'?");
        assert!(told("--allocation-timestamp").contains("did you mean '--allocation-timestamps'"));
        assert!(told("--own").contains("an option of 'memtrack flamegraph'"));
        assert_eq!(told("--objects"), "unexpected argument '--objects'; did you mean '--objects-at'?");
        assert!(told("--xyzzy").contains("see 'memtrack run --help'"));
    }

    #[test]
    fn options_behind_the_program_are_told() {
        let behind = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            super::misplaced_options(&Target::parse(&words).unwrap())
        };
        assert!(
            behind(&["app.py", "-o", "x.bin", "--native"]).unwrap().starts_with("-o --native passed to the program")
        );
        assert_eq!(behind(&["app.py", "--help", "-q", "x"]), None);
        assert_eq!(behind(&["g++", "-o", "x"]), None);
    }

    #[test]
    fn names() {
        assert_eq!(parse(&["dir/app.py"]).unwrap().name(), "app.py");
        assert_eq!(parse(&["-m", "json.tool"]).unwrap().name(), "json.tool");
        assert_eq!(parse(&["-c", "pass"]).unwrap().name(), "string");
        assert_eq!(parse(&["./bin/server"]).unwrap().name(), "server");
    }
}
