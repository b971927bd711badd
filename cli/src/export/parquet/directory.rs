//! The directory of tables: a folder for each table, in it folders for the day, the service and the host, as engines
//! read partitions.
//!
//! `events/day=2026-11-23/service=app.py/host=db1/events-0123456789abcdef.parquet`: each process has a file of its own, so
//! captures of many processes share a directory. Invariant: a process's files appear when all of them are written, a
//! process is there once, whatever service it is said to be of, and nothing else in the directory is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::output::refuse_too_long;
use crate::report_mark::ReportMark;
use crate::sys::EndSignals;

/// What the folders are named after.
#[derive(Debug)]
pub(crate) struct Partition {
    /// The day on which the recording began, such as 2026-11-23 (UTC).
    pub(crate) day: String,
    pub(crate) service: String,
    pub(crate) host: String,
}

impl Partition {
    /// The folders below that of a table.
    fn folders(&self) -> PathBuf {
        let service = format!("service={}", escaped(&self.service));
        PathBuf::from(self.day_folder()).join(service).join(self.host_folder())
    }

    fn day_folder(&self) -> String {
        format!("day={}", self.day)
    }

    fn host_folder(&self) -> String {
        format!("host={}", escaped(&self.host))
    }
}

fn file_name(table: &str, process: u64) -> String {
    format!("{table}-{process:016x}.parquet")
}

/// As Hive writes values into names of folders: what has a meaning in paths or patterns becomes % and two digits.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b' ' | b'@' | b'+' | 0x80.. => vec![byte],
        _ => format!("%{byte:02X}").into_bytes(),
    };
    match String::from_utf8_lossy(&text.bytes().flat_map(byte).collect::<Vec<_>>()).into_owned() {
        empty if empty.is_empty() => "__HIVE_DEFAULT_PARTITION__".into(),
        name => name,
    }
}

/// A directory of tables that is being written or added to.
#[derive(Debug)]
pub(crate) struct TableDirectory {
    path: PathBuf,
    force: bool,
    /// Beside `path`, so that files can be moved there.
    temporary: tempfile::TempDir,
}

impl TableDirectory {
    /// Prepares to write tables into the directory `path`, which is created if missing. `force`: the files of a process
    /// that are already there are replaced.
    ///
    /// # Errors
    /// It is something else, or contains something else; a directory cannot be created.
    pub(crate) fn new(path: PathBuf, force: bool) -> Result<Self> {
        refuse_too_long(&path)?;
        if path.exists() && !is_ours(&path) {
            bail!("{}: not a directory of tables; name another with -o", path.display());
        }
        let signals = EndSignals::take().context("cannot install signal handlers")?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(".memtrack-")
            .permissions(fs::Permissions::from_mode(0o777)) // less the umask
            .tempdir_in(parent);
        let temporary = temporary.with_context(|| format!("{}: cannot be created", path.display()))?;
        signals.remove(temporary.path().to_owned());
        Ok(Self { path, force, temporary })
    }

    /// Where the file of a table is written to.
    pub(super) fn file(&self, table: &str) -> PathBuf {
        self.temporary.path().join(table)
    }

    /// Moves the files of a process into their folders, with the mark of its capture. With `force`, or where all that the process had
    /// are unmodified reports of the same capture and service, those are gone: files of two services with the same keys would be
    /// taken for those of one process by every query.
    ///
    /// # Errors
    /// The process is already there, or its files cannot be moved.
    pub(super) fn publish(
        &self,
        tables: &[&str],
        partition: &Partition,
        (process, mark): (u64, Option<ReportMark>),
    ) -> Result<()> {
        let cannot = || format!("{}: cannot be written", self.path.display());
        let folder = |table: &str| self.path.join(table).join(partition.folders());
        let named = |table: &str| folder(table).join(file_name(table, process));
        let mut known = self.files_of(partition, process);
        let is_of_another = |file: &PathBuf| super::TABLES.iter().all(|table| named(table) != *file);
        let is_own = |file: &PathBuf| !is_of_another(file) && mark.is_some_and(|mark| mark.is_of(file));
        if let Some(file) = known.iter().find(|file| !is_own(file)).filter(|_| !self.force) {
            let is_of_another = is_of_another(file);
            let whose =
                if is_of_another { "the process is there already, as one of this service" } else { "file exists" };
            bail!("{}: {whose}; overwrite it with -f/--force, or name another directory with -o", file.display());
        }
        for table in tables {
            fs::create_dir_all(folder(table)).with_context(cannot)?;
            let written = self.file(table);
            if let Some((mark, file)) = mark.zip(fs::File::open(&written).ok()) {
                mark.put_on(&file);
            }
            fs::rename(written, named(table)).with_context(cannot)?;
            known.retain(|file| *file != named(table));
        }
        for file in known {
            fs::remove_file(&file).with_context(|| format!("{}: cannot be removed", file.display()))?;
            // The folders of host and service, if they are empty now.
            for folder in file.ancestors().skip(1).take(2) {
                let _ = fs::remove_dir(folder);
            }
        }
        Ok(())
    }

    /// The files of a process, of whatever service; its key has its host, and its begin, from which the day follows.
    fn files_of(&self, partition: &Partition, process: u64) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for table in super::TABLES {
            let day = self.path.join(table).join(partition.day_folder());
            let Ok(services) = fs::read_dir(day) else { continue };
            let inside = services
                .flatten()
                .map(|service| service.path().join(partition.host_folder()).join(file_name(table, process)));
            files.extend(inside.filter(|file| file.exists()));
        }
        files
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether it is a directory with nothing but folders of tables.
fn is_ours(path: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(path) else { return false };
    entries.all(|entry| {
        entry.is_ok_and(|entry| {
            let is_table = super::TABLES.iter().any(|table| entry.file_name() == *table);
            is_table && entry.path().is_dir()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Partition, TableDirectory, escaped};
    use std::fs;

    #[test]
    fn values_become_names_of_folders() {
        assert_eq!(escaped("web/api=2"), "web%2Fapi%3D2");
        assert_eq!(escaped("../x y.é%"), "..%2Fx y.é%25");
        assert_eq!(escaped(""), "__HIVE_DEFAULT_PARTITION__");
        let partition = Partition { day: "2026-11-23".into(), service: "a.py".into(), host: "h1".into() };
        assert_eq!(partition.folders().to_str(), Some("day=2026-11-23/service=a.py/host=h1"));
    }

    #[test]
    fn a_process_is_there_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("tables");
        let publish = |service: &str, force: bool, tables: &[&str]| {
            let directory = TableDirectory::new(path.clone(), force).unwrap();
            tables.iter().for_each(|table| fs::write(directory.file(table), service).unwrap());
            let [day, service, host] = ["2026-11-23", service, "web1"].map(str::to_owned);
            directory.publish(tables, &Partition { day, service, host }, (7, None))
        };
        let all = |table: &str| {
            let services = fs::read_dir(path.join(table).join("day=2026-11-23")).unwrap().flatten();
            services.map(|one| one.file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        publish("shop", false, &["sites", "events"]).unwrap();
        let refused = ["shop", "app.py"].map(|service| publish(service, false, &["sites"]).unwrap_err().to_string());
        assert!(refused[0].contains("file exists; overwrite it with -f/--force"), "{}", refused[0]);
        assert!(refused[1].contains("service=shop/") && refused[1].contains("there already"), "{}", refused[1]);
        assert_eq!(all("sites"), ["service=shop"]);
        publish("app.py", true, &["sites"]).unwrap();
        assert_eq!((all("sites"), all("events")), (vec!["service=app.py".to_owned()], vec![]));
        publish("app.py", true, &["sites"]).unwrap();
        assert_eq!(all("sites"), ["service=app.py"]);
    }
}
