//! The directory of tables: a folder for each table, in it folders for the day, the service and the host, as engines
//! read partitions.
//!
//! `events/day=2026-11-23/service=app.py/host=db1/events-0123456789abcdef.parquet`: each process has a file of its own, so
//! captures of many processes share a directory. Invariant: a process's files appear when all of them are written, and
//! nothing else in the directory is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

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
        let [service, host] = [&self.service, &self.host].map(|text| escaped(text));
        PathBuf::from(format!("day={}", self.day)).join(format!("service={service}")).join(format!("host={host}"))
    }
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

    /// Moves the files of a process into their folders.
    ///
    /// # Errors
    /// They are already there, or cannot be moved.
    pub(super) fn publish(&self, tables: &[&str], partition: &Partition, process: u64) -> Result<()> {
        let cannot = || format!("{}: cannot be written", self.path.display());
        let folder = |table: &str| self.path.join(table).join(partition.folders());
        let named = |table: &str| folder(table).join(format!("{table}-{process:016x}.parquet"));
        if let Some(known) = tables.iter().map(|table| named(table)).find(|path| !self.force && path.exists()) {
            bail!("{}: file exists; overwrite it with -f/--force, or name another directory with -o", known.display());
        }
        for table in tables {
            fs::create_dir_all(folder(table)).with_context(cannot)?;
            fs::rename(self.file(table), named(table)).with_context(cannot)?;
        }
        Ok(())
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
    use super::{Partition, escaped};

    #[test]
    fn values_become_names_of_folders() {
        assert_eq!(escaped("web/api=2"), "web%2Fapi%3D2");
        assert_eq!(escaped("../x y.é%"), "..%2Fx y.é%25");
        assert_eq!(escaped(""), "__HIVE_DEFAULT_PARTITION__");
        let partition = Partition { day: "2026-11-23".into(), service: "a.py".into(), host: "h1".into() };
        assert_eq!(partition.folders().to_str(), Some("day=2026-11-23/service=a.py/host=h1"));
    }
}
