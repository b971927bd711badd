//! Which files of the tables a query reads: those that are whole.
//!
//! A file that was copied in part, or damaged at its ends, would end every query. It is left out, with all files of the same process:
//! a process that is in some tables only would count as one that holds nothing.
//!
//! Invariant: no file is left out that nobody is told of.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// How a Parquet file begins and ends.
const MAGIC: [u8; 4] = *b"PAR1";
/// Folders of day, service and host, and room for those of a user's own.
const DEEPEST: usize = 8;

/// The files of tables where some of these are not whole.
pub(crate) struct WholeFiles {
    /// By table, relative to the directory of the tables.
    files: Vec<(&'static str, Vec<PathBuf>)>,
    /// Those that are not whole, and why.
    pub(crate) broken: Vec<(PathBuf, String)>,
    /// Files of processes that have one that is not whole.
    pub(crate) beside: usize,
}

impl WholeFiles {
    /// Looks at the files of the tables; `None`: all of them are whole.
    pub(crate) fn find(directory: &Path, tables: &[&'static str]) -> Option<Self> {
        let mut files = Vec::new();
        let mut broken = Vec::new();
        for table in tables {
            let mut paths = Vec::new();
            collect(&directory.join(table), DEEPEST, &mut paths);
            paths.retain(|path| match defect(path) {
                None => true,
                Some(why) => {
                    broken.push((relative(directory, path), why));
                    false
                }
            });
            files.push((*table, paths.iter().map(|path| relative(directory, path)).collect::<Vec<_>>()));
        }
        if broken.is_empty() {
            return None;
        }
        let processes: BTreeSet<String> = broken.iter().filter_map(|(path, _)| process(path)).collect();
        let is_of_one = |path: &Path| process(path).is_some_and(|process| processes.contains(&process));
        let mut beside = 0;
        for (_, paths) in &mut files {
            let all = paths.len();
            paths.retain(|path| !is_of_one(path));
            beside += all - paths.len();
        }
        broken.sort();
        Some(Self { files, broken, beside })
    }

    /// Those of a table that are whole.
    pub(crate) fn of_table(&self, table: &str) -> &[PathBuf] {
        self.files.iter().find(|(name, _)| *name == table).map_or(&[], |(_, paths)| paths)
    }
}

/// Adds the Parquet files of a directory and of those in it.
fn collect(directory: &Path, deepest: usize, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(directory).into_iter().flatten().flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && deepest > 0 => collect(&path, deepest - 1, into),
            Ok(kind) if !kind.is_dir() && path.extension() == Some(OsStr::new("parquet")) => into.push(path),
            _ => {}
        }
    }
}

/// Why a file is no whole Parquet file.
fn defect(path: &Path) -> Option<String> {
    let read = || -> std::io::Result<Option<String>> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut ends = [[0; 4]; 3];
        let least = 3 * MAGIC.len() as u64;
        if length < least {
            return Ok(Some(format!("expected a Parquet file, found {length} bytes")));
        }
        let [begin, footer, end] = &mut ends;
        file.read_exact_at(begin, 0)?;
        file.read_exact_at(footer, length - 8)?;
        file.read_exact_at(end, length - 4)?;
        let footer = u64::from(u32::from_le_bytes(*footer));
        Ok(if *begin != MAGIC {
            Some("expected a Parquet file, found other bytes at its begin".to_owned())
        } else if *end != MAGIC || footer > length - least {
            Some(format!(
                "expected the end of a Parquet file behind {length} bytes; it is cut off, or still being copied"
            ))
        } else {
            None
        })
    };
    read().unwrap_or_else(|error| Some(error.to_string()))
}

/// The key of the process in the name of a file of `transform parquet`, `TABLE-KEY.parquet`.
fn process(path: &Path) -> Option<String> {
    let (_, key) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    (key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| key.to_owned())
}

fn relative(directory: &Path, path: &Path) -> PathBuf {
    path.strip_prefix(directory).unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::WholeFiles;

    fn write(directory: &Path, name: &str, bytes: &[u8]) {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    const WHOLE: &[u8] = b"PAR1rows and footer\x06\0\0\0PAR1";

    #[test]
    fn a_process_of_which_a_file_is_cut_is_in_no_table() {
        let directory = tempfile::tempdir().unwrap();
        let tables = ["processes", "sites"];
        for table in tables {
            for key in ["00112233445566aa", "00112233445566bb"] {
                write(directory.path(), &format!("{table}/day=1/{table}-{key}.parquet"), WHOLE);
            }
            write(directory.path(), &format!("{table}/own.parquet"), WHOLE);
            write(directory.path(), &format!("{table}/readme.txt"), b"");
        }
        assert!(WholeFiles::find(directory.path(), &tables).is_none());
        let cut =
            [&b""[..], b"PAR1", &WHOLE[..WHOLE.len() - 1], b"PAR1\xff\xff\xff\x7fPAR1", b"<html> of a mirror </html>"];
        for bytes in cut {
            write(directory.path(), "sites/day=1/sites-00112233445566bb.parquet", bytes);
            let found = WholeFiles::find(directory.path(), &tables).unwrap();
            let names =
                |table: &str| found.of_table(table).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
            assert_eq!(
                names("processes"),
                ["processes/day=1/processes-00112233445566aa.parquet", "processes/own.parquet"]
            );
            assert_eq!(names("sites"), ["sites/day=1/sites-00112233445566aa.parquet", "sites/own.parquet"]);
            assert_eq!((found.broken.len(), found.beside), (1, 1), "{bytes:?}");
            assert!(found.broken[0].0.ends_with("sites-00112233445566bb.parquet"));
        }
    }
}
