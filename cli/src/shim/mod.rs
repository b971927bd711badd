//! Finds the library that is loaded into recorded programs, and checks that it belongs to this program.
//!
//! Releases embed the library in the program ([`embedded`]); with the feature `external-shim` a system package installs
//! it as a file. Invariant: a library of another version is refused before any program is started.

#[cfg(not(feature = "external-shim"))]
mod embedded;
mod identity;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) use identity::needed_glibc;

/// The library's file name.
pub(crate) const SHIM_NAME: &str = "libmemtrack_shim.so";
/// Variable that names a library to use instead of this program's own.
const SHIM_VARIABLE: &str = "MEMTRACK_SHIM";

/// Recording is impossible because no directory is usable; the program can still run.
#[derive(Debug)]
pub(crate) struct NoPlace(String);

impl NoPlace {
    /// Describes the failed operation, the tried paths with their errors, and the remedy.
    pub(crate) fn new(what: &str, tried: &[(PathBuf, io::Error)], remedy: &str) -> Self {
        let list: Vec<_> = tried.iter().map(|(place, error)| format!("{} ({error})", place.display())).collect();
        Self(format!("{what} {}; {remedy}", list.join(", ")))
    }
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoPlace {}

/// The path of the library to load: `$MEMTRACK_SHIM`, else this program's own.
///
/// # Errors
/// [`NoPlace`] if there is no usable directory; other errors if the library is unusable or of another version.
pub(crate) fn find() -> Result<PathBuf> {
    let Some(path) = named()? else { return own() };
    identity::check(&path)?;
    Ok(path)
}

/// Describes where the library is, for `memtrack --version`. Writes nothing.
pub(crate) fn location() -> String {
    match named() {
        Ok(Some(path)) => format!("{} (named by {SHIM_VARIABLE})", path.display()),
        Ok(None) => own_location(),
        Err(error) => format!("{error:#}"),
    }
}

fn named() -> Result<Option<PathBuf>> {
    let Some(path) = std::env::var_os(SHIM_VARIABLE).map(PathBuf::from) else { return Ok(None) };
    let found = path.canonicalize();
    found.map(Some).with_context(|| format!("{}: cannot use the library named by {SHIM_VARIABLE}", path.display()))
}

#[cfg(not(feature = "external-shim"))]
fn own() -> Result<PathBuf> {
    Ok(embedded::unpack()?)
}

#[cfg(not(feature = "external-shim"))]
fn own_location() -> String {
    embedded::location()
}

/// The installed library: in the library directory of the same prefix, or beside the program.
#[cfg(feature = "external-shim")]
fn own() -> Result<PathBuf> {
    let mut tried = Vec::new();
    let mut found = None;
    for candidate in installed()? {
        match candidate.canonicalize() {
            Ok(path) => {
                found = Some(path);
                break;
            }
            Err(error) => tried.push((candidate, error)),
        }
    }
    let Some(path) = found else {
        let remedy = format!("install memtrack again, or set {SHIM_VARIABLE} to the library's path");
        return Err(NoPlace::new("memtrack's library is not at", &tried, &remedy).into());
    };
    identity::check(&path)?;
    Ok(path)
}

#[cfg(feature = "external-shim")]
fn own_location() -> String {
    own().map_or_else(|error| format!("{error:#}"), |path| path.display().to_string())
}

#[cfg(feature = "external-shim")]
fn installed() -> Result<Vec<PathBuf>> {
    let executable = std::env::current_exe().context("cannot determine the path of the memtrack executable")?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let library = |path: &str| directory.join(path).join(SHIM_NAME);
    let multiarch = format!("../lib/{}-linux-gnu/memtrack", std::env::consts::ARCH);
    Ok(vec![library(&multiarch), library("../lib/memtrack"), library("../lib64/memtrack"), library(".")])
}

/// Whether LD_PRELOAD cannot contain the path, because of a separator or a `$` that the loader expands.
pub(crate) fn is_special(path: &Path) -> bool {
    let text: &OsStr = path.as_os_str();
    text.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$' | b'\t' | b'\n'))
}
