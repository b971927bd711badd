//! Finds a program as execvp and shells do.
//!
//! Invariant: a name with a slash is a path; any other name is searched in PATH only.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Environment, variable};
use crate::failure::Failure;

/// The path to execute for a program name.
///
/// # Errors
/// Status 127 if it is not found, 126 if it is not executable.
pub(super) fn program(name: &OsStr, environment: &Environment) -> Result<PathBuf, Failure> {
    let text = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| name.into());
    }
    if name.is_empty() {
        return Err(Failure::not_found("program name is empty"));
    }
    let mut refused = None;
    for directory in directories(environment) {
        let path = directory.join(name);
        match check(&path) {
            Ok(()) => return Ok(path),
            // As in a shell, directories are skipped, and those of PATH without search permission.
            Err(failure) if failure.is_not_executable() && path.exists() && !path.is_dir() => {
                refused = refused.or(Some(failure))
            }
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| Failure::not_found(&format!("{text}: program not found{}", hint(Path::new(name))))))
}

/// Whether the file can be executed.
pub(super) fn is_executable(path: &Path) -> bool {
    check(path).is_ok()
}

fn directories(environment: &Environment) -> impl Iterator<Item = PathBuf> {
    // The default of execvp if PATH is not set.
    let path = variable(environment, "PATH").unwrap_or(OsStr::new("/bin:/usr/bin"));
    path.as_bytes().split(|byte| *byte == b':').map(|directory| PathBuf::from(OsStr::from_bytes(directory)))
}

fn check(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(Failure::not_executable(&format!("{shown}: {error}")))
        }
        Err(_) => Err(Failure::not_found(&format!("{shown}: program not found"))),
        Ok(metadata) if metadata.is_dir() => Err(Failure::not_executable(&format!("{shown}: {DIRECTORY}"))),
        Ok(metadata) if is_read_from(&metadata) => Err(Failure::not_executable(&format!(
            "{shown}: not a program; to run the Python code that standard input has: memtrack run - <{shown}"
        ))),
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
            Err(Failure::not_executable(&format!("{shown}: not executable (no x permission)")))
        }
        Ok(_) => Ok(()),
    }
}

/// What is wrong with a directory as a program: Python would run one with a main module.
const DIRECTORY: &str = "is a directory without __main__.py, which Python would run";

/// Whether programs read it, as a pipe or a terminal, and do not execute it.
fn is_read_from(metadata: &fs::Metadata) -> bool {
    let kind = metadata.file_type();
    kind.is_fifo() || kind.is_char_device() || kind.is_socket()
}

/// A suggestion for a name that is not in PATH.
fn hint(name: &Path) -> String {
    let shown = name.display();
    if is_executable(name) {
        format!(" in PATH; to run the file in this directory, use ./{shown}")
    } else if name.is_file() {
        format!(" in PATH; to run the file of this name with Python: memtrack run python3 {shown}")
    } else if name.is_dir() {
        format!(" in PATH; {shown} {DIRECTORY}")
    } else {
        " in PATH".into()
    }
}

#[cfg(test)]
mod tests {
    use super::program;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn path_order_and_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("a"), directory.path().join("b"));
        for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("tool"), "").unwrap();
            fs::set_permissions(place.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let environment = |path: String| vec![("PATH".into(), path.into())];
        let both = environment(format!("{}:{}", first.display(), second.display()));
        assert_eq!(program("tool".as_ref(), &both).unwrap(), second.join("tool"));
        let refused = environment(first.display().to_string());
        assert_eq!(program("tool".as_ref(), &refused).unwrap_err().status(), 126);
        assert_eq!(program("no-such-tool".as_ref(), &both).unwrap_err().status(), 127);
        assert_eq!(program(second.as_os_str(), &both).unwrap_err().status(), 126);
    }
}
