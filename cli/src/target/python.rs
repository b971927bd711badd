//! Finds the Python interpreter for a script, resolving pyenv and asdf wrapper scripts.
//!
//! `python3` is often a shell script (such as pyenv's) that sets variables and executes the interpreter of the selected
//! version. memtrack executes it once with a few lines of Python that print the interpreter's path and environment; the
//! recording then starts that interpreter directly. Invariant: the program sees the same arguments and environment as
//! through the script.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Environment, lookup, variable};
use crate::failure::Failure;

/// Prints the interpreter's first argument, its file and its environment, each prefixed with its length. Runs isolated
/// and without site, to be quick.
const QUESTION: &str = "import os,sys
for part in (open('/proc/self/cmdline','rb').read().split(b'\\0')[0], os.fsencode(os.readlink('/proc/self/exe')), \
open('/proc/self/environ','rb').read()): os.write(1, b'%d:' % len(part) + part)";

/// The interpreter for scripts, modules and code, and the name that it is called by: `--python`, else the virtual environment's, else
/// `python3` in PATH.
///
/// # Errors
/// Status 127 if it is not found, 126 if it is not executable.
pub(super) fn interpreter(chosen: Option<&Path>, environment: &Environment) -> Result<(PathBuf, OsString), Failure> {
    if let Some(chosen) = chosen {
        return Ok((lookup::program(chosen.as_os_str(), environment)?, chosen.into()));
    }
    if let Some(directory) = variable(environment, "VIRTUAL_ENV").filter(|directory| !directory.is_empty()) {
        let path = Path::new(directory).join("bin/python3");
        if lookup::is_executable(&path) {
            return Ok((path.clone(), path.into()));
        }
    }
    let name = OsString::from("python3");
    Ok((lookup::program(&name, environment)?, name))
}

/// Whether a script belongs to a version manager: it executes `pyenv exec` or similar with all arguments.
pub(super) fn is_version_manager(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.lines().any(|line| {
        line.starts_with("exec ")
            && (line.contains("pyenv") || line.contains("asdf"))
            && line.contains(" exec ")
            && line.trim_end().ends_with("\"$@\"")
    })
}

/// The program that a version manager's script executes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WrappedInterpreter {
    /// The program.
    pub(super) path: PathBuf,
    /// The name that it is called by.
    pub(super) name: OsString,
    /// Its environment.
    pub(super) environment: Environment,
}

/// Determines what a version manager's script at `path` would execute; `None` if its output is not as expected (the
/// script is then executed itself).
pub(super) fn wrapped_interpreter(path: &Path, environment: &Environment) -> Option<WrappedInterpreter> {
    let name = path.file_name()?;
    let is_python = name.as_bytes().starts_with(b"python");
    // Other programs of the version manager are searched in the PATH that it sets for its Python.
    let python = if is_python { path.to_path_buf() } else { path.with_file_name("python3") };
    let mut command = Command::new(python);
    // `Command` sorts an explicit environment; an inherited one keeps its order, which the program may observe.
    if !environment.iter().cloned().eq(std::env::vars_os()) {
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    }
    let answer = command.args(["-I", "-S", "-c", QUESTION]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let wrapped = parse(&answer.stdout)?;
    if is_python {
        return Some(wrapped);
    }
    let found = lookup::program(name, &wrapped.environment).ok().filter(|found| found != path)?;
    Some(WrappedInterpreter { name: found.clone().into(), path: found, environment: wrapped.environment })
}

fn parse(answer: &[u8]) -> Option<WrappedInterpreter> {
    let (name, rest) = part(answer)?;
    let (file, rest) = part(rest)?;
    let (environment, _) = part(rest)?;
    let path = if name.contains(&b'/') { name } else { file };
    Some(WrappedInterpreter {
        path: OsStr::from_bytes(path).into(),
        name: OsStr::from_bytes(name).into(),
        environment: environment.split(|byte| *byte == 0).filter_map(assignment).collect(),
    })
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = bytes.iter().take(20).position(|byte| *byte == b':')?;
    let len: usize = str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
    bytes[colon + 1..].split_at_checked(len)
}

fn assignment(text: &[u8]) -> Option<(OsString, OsString)> {
    let equals = text.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(&text[..equals]).into(), OsStr::from_bytes(&text[equals + 1..]).into()))
}

#[cfg(test)]
mod tests {
    use super::{is_version_manager, parse};

    #[test]
    fn version_managers_are_known_by_their_last_line() {
        assert!(is_version_manager(
            b"#!/usr/bin/env bash\nset -e\nexec \"/x/libexec/pyenv\" exec \"$program\" \"$@\"\n"
        ));
        assert!(is_version_manager(b"#!/usr/bin/env bash\nexec /x/asdf exec \"python3\" \"$@\" \n"));
        assert!(!is_version_manager(b"#!/bin/sh\n# pyenv exec\nexec ./server \"$@\"\n"));
    }

    #[test]
    fn answers() {
        let wrapped = parse(b"6:/v/py313:/v/python3.127:A=b\0C=d").unwrap();
        assert_eq!(wrapped.path, std::path::Path::new("/v/py3"));
        assert_eq!(wrapped.environment, [("A".into(), "b".into()), ("C".into(), "d".into())]);
        assert_eq!(parse(b"7:python313:/v/python3.120:").unwrap().path, std::path::Path::new("/v/python3.12"));
        assert!(parse(b"99999:short").is_none());
        assert!(parse(b"").is_none());
    }
}
