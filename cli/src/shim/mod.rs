//! The library that is loaded into recorded programs: which file it is, and whether it belongs to this program.
//!
//! A release carries the library in the program ([`embedded`]); with the feature `external-shim` it is a file that a system
//! package installed. Invariant: a library of another version is refused before any program is started.

#[cfg(not(feature = "external-shim"))]
mod embedded;
mod identity;
#[cfg(not(feature = "external-shim"))]
mod safe_directory;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) use identity::needed_glibc;

/// The library's file name.
pub(crate) const SHIM_NAME: &str = "libmemtrack_shim.so";
/// Names another library than the one that belongs to this executable.
const SHIM_VARIABLE: &str = "MEMTRACK_SHIM";

/// Nothing can be recorded for want of a place on the file system that is memtrack's own; the program can run all the same.
#[derive(Debug)]
pub(crate) struct NoPlace(String);

impl NoPlace {
    /// From what cannot be done, the places that were tried with what the system said of each, and what would help.
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

/// The library's file, ready to be loaded: the one that `MEMTRACK_SHIM` names, else the one that belongs to this program.
///
/// # Errors
/// [`NoPlace`] where there is no place for it; others where the named library is unusable or of another version.
pub(crate) fn find() -> Result<PathBuf> {
    let Some(path) = named()? else { return own() };
    identity::check(&path)?;
    Ok(path)
}

/// Where the library is, in words, for `memtrack --version`. Writes nothing.
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

/// The library that is installed with this program: in the library directory of the same prefix, or beside the program.
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

/// Whether LD_PRELOAD cannot carry the path: it has a separator, or something that the loader replaces.
pub(crate) fn is_special(path: &Path) -> bool {
    let text: &OsStr = path.as_os_str();
    text.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$' | b'\t' | b'\n'))
}
