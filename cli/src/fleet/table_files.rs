//! Which files of the tables a query reads: memtrack's own that are whole.
//!
//! A file that was copied in part, or is damaged, would end every query, or give it other figures. It is left out, with all files of
//! the same process: a process that is in some tables only would count as one that holds nothing. The bytes of files are compared with
//! their checksums only where the query reads the table.
//!
//! Invariant: no file is left out that nobody is told of.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use crate::export::parquet::{VERSION_KEY, is_as_written};

/// How a Parquet file begins and ends.
const MAGIC: [u8; 4] = *b"PAR1";
/// Folders of day, service and host, and room for those of a user's own.
const DEEPEST: usize = 8;

/// How much of a file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileCheck {
    /// Its ends.
    Ends,
    /// All its bytes, if it has a checksum.
    Checksum,
    /// That, and whether its pages can be read.
    Pages,
}

/// The files of tables where some of these are not whole.
pub(crate) struct WholeFiles {
    /// By table, relative to the directory of the tables.
    files: Vec<(&'static str, Vec<PathBuf>)>,
    /// Those that are not whole, or not of memtrack, and why.
    pub(crate) broken: Vec<(PathBuf, String)>,
    /// Files of processes that have one that is not whole.
    pub(crate) beside: usize,
}

impl WholeFiles {
    /// Looks at the files of the tables, of each as much as `check` says; `None`: all of them are whole.
    pub(crate) fn find(
        directory: &Path,
        tables: &[&'static str],
        check: impl Fn(&'static str) -> FileCheck,
    ) -> Option<Self> {
        let mut files = Vec::new();
        let mut broken = Vec::new();
        for table in tables {
            let mut paths = Vec::new();
            collect(&directory.join(table), DEEPEST, &mut paths);
            paths.retain(|path| match defect(path, check(table)) {
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

/// Why a file is no whole table of memtrack.
fn defect(path: &Path, check: FileCheck) -> Option<String> {
    let find = || -> Result<Option<String>> {
        // To open a pipe would wait for its other end.
        if !fs::metadata(path)?.is_file() {
            return Ok(Some("expected a regular file".to_owned()));
        }
        let file = File::open(path)?;
        if let Some(why) = defect_of_ends(&file)? {
            return Ok(Some(why));
        }
        let Ok(footer) = ParquetMetaDataReader::new().parse_and_finish(&file) else {
            return Ok(Some("expected the footer of a Parquet file, found other bytes; it is damaged".to_owned()));
        };
        Ok(if !has_version(&footer) {
            Some(format!("expected a table of memtrack, found no {VERSION_KEY} in its metadata"))
        } else if check != FileCheck::Ends && is_by_memtrack(&footer) && !is_as_written(&file)? {
            Some("its bytes do not have the checksum that they were written with; it is damaged".to_owned())
        } else if check == FileCheck::Pages {
            read_pages(file).err().map(|error| format!("its pages cannot be read; it is damaged: {error}"))
        } else {
            None
        })
    };
    find().unwrap_or_else(|error| Some(error.to_string()))
}

fn has_version(footer: &ParquetMetaData) -> bool {
    footer.file_metadata().key_value_metadata().is_some_and(|all| all.iter().any(|entry| entry.key == VERSION_KEY))
}

/// Whether no other program has written the file anew, with the checksum of the file before in its metadata.
fn is_by_memtrack(footer: &ParquetMetaData) -> bool {
    footer.file_metadata().created_by().is_some_and(|program| program.starts_with("memtrack "))
}

/// Reads the pages of all columns.
fn read_pages(file: File) -> Result<()> {
    let reader = SerializedFileReader::new(file)?;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group)?;
        for column in 0..group.num_columns() {
            for page in group.get_column_page_reader(column)? {
                page?;
            }
        }
    }
    Ok(())
}

/// Why a file cannot be a whole Parquet file.
fn defect_of_ends(file: &File) -> std::io::Result<Option<String>> {
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
        Some(format!("expected the end of a Parquet file behind {length} bytes; it is cut off, or still being copied"))
    } else {
        None
    })
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

    use super::{FileCheck, WholeFiles};
    use crate::export::parquet::write_any_table;

    fn write(directory: &Path, name: &str, bytes: &[u8]) {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// The bytes of a whole file.
    fn whole() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("whole.parquet");
        write_any_table(&path);
        fs::read(path).unwrap()
    }

    /// The same without one of its keys, or with another program's name.
    fn without(key: &str) -> Vec<u8> {
        let mut bytes = whole();
        let at = bytes.windows(key.len()).rposition(|text| text == key.as_bytes()).unwrap();
        bytes[at] = b'x';
        bytes
    }

    /// What is said of files that are left out, with these bytes of the table of sites.
    fn told(sites: &[u8], check: FileCheck) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        for table in ["processes", "sites"] {
            let bytes = if table == "sites" { sites } else { &whole()[..] };
            write(directory.path(), &format!("{table}/{table}-00112233445566aa.parquet"), bytes);
        }
        let found = WholeFiles::find(directory.path(), &["processes", "sites"], |_| check);
        assert!(found.iter().all(|found| found.of_table("processes").is_empty() && found.beside == 1));
        found
            .into_iter()
            .flat_map(|found| found.broken)
            .map(|(path, why)| format!("{}: {why}", path.display()))
            .collect()
    }

    #[test]
    fn what_is_damaged_or_of_others_is_named() {
        let is_told = |sites: &[u8], check, why: &str| {
            let told = told(sites, check);
            assert!(
                matches!(&told[..], [one] if one.starts_with("sites/sites-") && one.contains(why)),
                "{why}: {told:?}"
            );
        };
        for check in [FileCheck::Ends, FileCheck::Checksum, FileCheck::Pages] {
            assert!(told(&whole(), check).is_empty());
            is_told(&without("memtrack.schema_version"), check, "found no memtrack.schema_version in its metadata");
            let mut footer = whole();
            let length = footer.len();
            footer[length - 100..length - 8].fill(0xff);
            is_told(&footer, check, "expected the footer");
        }
        let damaged = |mut bytes: Vec<u8>| {
            // The header of the first page.
            bytes[4] = 0xff;
            bytes
        };
        is_told(&damaged(whole()), FileCheck::Checksum, "checksum");
        assert!(told(&damaged(without("memtrack.checksum")), FileCheck::Checksum).is_empty());
        is_told(&damaged(without("memtrack.checksum")), FileCheck::Pages, "pages cannot be read");
        // Of a program that keeps the metadata of what it writes anew, as pyarrow does.
        let by_memtrack = concat!("memtrack ", env!("CARGO_PKG_VERSION"));
        assert!(told(&without(by_memtrack), FileCheck::Checksum).is_empty());
    }

    #[test]
    fn a_pipe_among_the_tables_is_named_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "sites/sites-00112233445566aa.parquet", &whole());
        let pipe = directory.path().join("sites/pipe.parquet");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let found = WholeFiles::find(directory.path(), &["sites"], |_| FileCheck::Ends).unwrap();
        assert_eq!(found.broken, [("sites/pipe.parquet".into(), "expected a regular file".to_owned())]);
        assert_eq!(found.of_table("sites").len(), 1);
    }

    #[test]
    fn a_process_of_which_a_file_is_cut_is_in_no_table() {
        let directory = tempfile::tempdir().unwrap();
        let (tables, bytes) = (["processes", "sites"], whole());
        let find = || WholeFiles::find(directory.path(), &tables, |_| FileCheck::Ends);
        for table in tables {
            for key in ["00112233445566aa", "00112233445566bb"] {
                write(directory.path(), &format!("{table}/day=1/{table}-{key}.parquet"), &bytes);
            }
            write(directory.path(), &format!("{table}/own.parquet"), &bytes);
            write(directory.path(), &format!("{table}/readme.txt"), b"");
        }
        assert!(find().is_none());
        let cut =
            [&b""[..], b"PAR1", &bytes[..bytes.len() - 1], b"PAR1\xff\xff\xff\x7fPAR1", b"<html> of a mirror </html>"];
        for bytes in cut {
            write(directory.path(), "sites/day=1/sites-00112233445566bb.parquet", bytes);
            let found = find().unwrap();
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
