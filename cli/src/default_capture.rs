//! The captures that a command reads when none is named: the newest recording in the working directory.
//!
//! Invariant: the choice is printed to standard error, and only files that begin with the capture format's magic are
//! read further.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memtrack_format::header::MAGIC;
use memtrack_reader::source;

use crate::failure::Failure;
use crate::message;
use crate::units::plural;

/// The newest capture in the working directory, with those of the other processes of the same recording.
///
/// # Errors
/// A usage error if there is none.
pub(crate) fn captures() -> Result<Vec<PathBuf>, Failure> {
    let found = in_directory(Path::new("."));
    let Some((first, others)) = found.split_first() else {
        return Err(Failure::usage(
            "no capture given and none found in the working directory; record one with 'memtrack run'",
        ));
    };
    let others = match others.len() as u64 {
        0 => String::new(),
        number => format!(", with {} of its children", plural(number, "process", "processes")),
    };
    message::line(format_args!("{}: using the newest capture in the working directory{others}", first.display()));
    Ok(found)
}

/// The newest capture in a directory and those of its process tree, by their numbers in it.
fn in_directory(directory: &Path) -> Vec<PathBuf> {
    let files = files(directory);
    let Some(newest) = files.iter().find(|path| is_capture(path)) else { return Vec::new() };
    let number = |path: &PathBuf| {
        let process = source::first_process(path).unwrap_or_default();
        Some((process.tree.recording?, process.tree.number?))
    };
    let Some((tree, _)) = number(newest) else { return vec![newest.clone()] };
    let of_tree = |path: PathBuf| number(&path).filter(|(other, _)| *other == tree).map(|(_, number)| (number, path));
    let captures = files.into_iter().filter(|path| is_capture(path));
    let mut captures: Vec<_> = captures.filter_map(of_tree).collect();
    captures.sort();
    captures.into_iter().map(|(_, path)| path).collect()
}

/// Regular, non-hidden files, newest first.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<(SystemTime, PathBuf)> = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            let path = entry.path();
            Some((metadata.modified().ok()?, path.strip_prefix(".").map(Path::to_path_buf).unwrap_or(path)))
        })
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    files.into_iter().map(|(_, path)| path).collect()
}

/// Whether it is a recorded capture. Files that `merge`, `strip` and `anonymize` name by default do not count.
fn is_capture(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let derived = ["memtrack-merged-", "memtrack-stripped-", "memtrack-anonymized-"];
    let mut magic = [0; MAGIC.len()];
    let read = |mut file: File| file.read_exact(&mut magic);
    !derived.iter().any(|prefix| name.starts_with(prefix)) && File::open(path).and_then(read).is_ok() && magic == MAGIC
}
