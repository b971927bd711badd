//! What a rerun says: how much of its memory is resident.
//!
//! Invariant: each resident page is anonymous or of one file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a rerun prints, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RerunResult {
    pub(crate) resident: RerunMemory,
    /// The file that `malloc` was of.
    pub(crate) file: PathBuf,
}

/// Resident memory of a rerun, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RerunMemory {
    pub(crate) anonymous: u64,
    /// All that was resident at its most.
    pub(crate) peak: u64,
    /// Pages of files that are not private copies.
    pub(crate) files: BTreeMap<String, u64>,
}

impl RerunMemory {
    /// Reads the texts of /proc/PID/smaps and /proc/PID/status.
    pub(crate) fn of(smaps: &str, status: &str) -> Self {
        let peak = status.lines().find_map(|line| kibibytes(line, "VmHWM:")).unwrap_or(0) * 1024;
        let mut memory = Self { peak, ..Self::default() };
        let mut path = "";
        let mut rss = 0;
        for line in smaps.lines() {
            if let Some(kibibytes) = kibibytes(line, "Rss:") {
                rss = kibibytes * 1024;
            } else if let Some(kibibytes) = kibibytes(line, "Anonymous:") {
                let anonymous = kibibytes * 1024;
                memory.anonymous += anonymous;
                if path.starts_with('/') {
                    *memory.files.entry(path.into()).or_default() += rss.saturating_sub(anonymous);
                }
            } else if let Some(mapped) = path_of_mapping(line) {
                path = mapped;
            }
        }
        memory
    }

    /// Bytes without files, but for those that satisfy `counts`: at the most, or at the end.
    pub(crate) fn bytes(&self, at_peak: bool, counts: impl Fn(&str) -> bool) -> u64 {
        let files = |counts: &dyn Fn(&str) -> bool| {
            self.files.iter().filter(|(path, _)| counts(path)).map(|(_, bytes)| bytes).sum::<u64>()
        };
        let memory = if at_peak { self.peak.saturating_sub(files(&|_| true)) } else { self.anonymous };
        memory + files(&counts)
    }
}

/// The value of a line with this name.
fn kibibytes(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok()
}

/// The path in the first line of a mapping, which begins with its addresses; empty for memory without one.
fn path_of_mapping(line: &str) -> Option<&str> {
    let (range, rest) = line.split_once(' ')?;
    range.split_once('-').filter(|(start, _)| u64::from_str_radix(start, 16).is_ok())?;
    // Rights, offset, device and inode come before it.
    Some(rest.splitn(5, ' ').nth(4).unwrap_or_default().trim_start())
}

#[cfg(test)]
mod tests {
    use super::RerunMemory;

    #[test]
    fn anonymous_pages_and_those_of_files_are_told_apart() {
        let text = "55d0-55e0 r-xp 00002000 fe:01 77 /usr/lib/with space.so\nSize: 64 kB\nRss: 12 kB\nAnonymous: 4 kB\n\
                    55e0-55f0 rw-p 00000000 00:00 0 \nRss: 8 kB\nAnonymous: 8 kB\nVmFlags: rd wr\n\
                    55f0-5600 rw-p 00000000 00:00 0                          [heap]\nRss: 20 kB\nAnonymous: 16 kB\n";
        let memory = RerunMemory::of(text, "VmPeak:\t 99 kB\nVmHWM:\t  80 kB\n");
        assert_eq!(memory.anonymous, 28 << 10);
        assert_eq!(memory.bytes(true, |_| false), 72 << 10);
        assert_eq!(memory.bytes(false, |path| path.starts_with("/usr/lib")), 36 << 10);
        assert_eq!(memory.files.into_iter().collect::<Vec<_>>(), [("/usr/lib/with space.so".to_owned(), 8 << 10)]);
    }
}
