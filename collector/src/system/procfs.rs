//! Facts about a process from the proc file system.
//!
//! Invariant: every answer is optional: at any moment the process may have ended, run another program, or be hidden.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use memtrack_transport::layout::PAGE;

use crate::system::process_stat::ProcessStat;

/// Longest part of a command line that is read, in bytes.
const MAX_COMMAND_LINE: u64 = 1 << 20;

/// Reads the resident memory of a process, repeatedly.
#[derive(Debug)]
pub(crate) struct ResidentMemory {
    statm: Option<File>,
    pub(crate) pid: i32,
    page: u64,
    /// Resident bytes when this was created.
    pub(crate) first: Option<u64>,
    /// Resident bytes of memtrack's library in the process, as far as they were looked at.
    pub(crate) library: u64,
}

impl ResidentMemory {
    /// For a running process; reads its resident memory at once, since the process may end before the next read.
    pub(crate) fn of(pid: i32) -> Self {
        // SAFETY: reads a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let statm = File::open(format!("/proc/{pid}/statm")).ok();
        let mut made = Self { statm, pid, page: u64::try_from(page).unwrap_or(4096), first: None, library: 0 };
        made.first = made.bytes();
        made
    }

    /// Of a process that has said what it had when it connected, and may have ended: then its process id may be another's.
    pub(crate) fn said(self, first: u64, has_ended: bool) -> Self {
        let statm = self.statm.filter(|_| !has_ended);
        Self { statm, first: Some(first).filter(|bytes| *bytes > 0), ..self }
    }

    /// Resident bytes now; `None` if unknown, or if the process has released its memory.
    pub(crate) fn bytes(&self) -> Option<u64> {
        Some(resident_pages(self.statm.as_ref()?)?.0.saturating_mul(self.page))
    }

    /// How much of it is neither shared nor a file's: none of memtrack's.
    pub(crate) fn private_bytes(&self) -> Option<u64> {
        Some(resident_pages(self.statm.as_ref()?)?.1.saturating_mul(self.page))
    }

    /// Reads how much of it belongs to memtrack's library; skipped for large processes, where that is slow.
    pub(crate) fn read_library_memory(&mut self, pid: i32) {
        if self.bytes().is_some_and(|bytes| bytes < LITTLE) {
            self.library = self.library.max(library_bytes(pid).unwrap_or(0));
        }
    }
}

/// Resident pages of a process, and those among them that are neither shared nor a file's; `None`: it has none any more.
fn resident_pages(statm: &File) -> Option<(u64, u64)> {
    let mut text = [0; 128];
    let len = statm.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    let mut words = text.split_ascii_whitespace().skip(1);
    let mut next = || words.next()?.parse::<u64>().ok();
    let (all, shared) = (next()?, next()?);
    (all > 0).then_some((all, all.saturating_sub(shared)))
}

/// Resident bytes up to which all mappings can be read in a fraction of a millisecond.
const LITTLE: u64 = 32 << 20;
/// The names of the files of memtrack's library, wherever it is installed.
const LIBRARY: &str = "libmemtrack";

/// Pages of a mapping of the library that are looked at, at most.
const MOST_PAGES: u64 = 1 << 14;
/// Of the words of pagemap: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// Resident bytes of memtrack's library. The sums that the kernel has of each mapping (smaps) would cost a walk over all.
fn library_bytes(pid: i32) -> Option<u64> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let is_library = |line: &str| line.rsplit_once('/').is_some_and(|(_, name)| name.starts_with(LIBRARY));
    let mut bytes = 0_u64;
    for line in BufReader::new(File::open(format!("/proc/{pid}/maps")).ok()?).split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        if is_library(&line) {
            let (begin, end) = line.split(' ').next()?.split_once('-')?;
            let address = |text: &str| u64::from_str_radix(text, 16).ok();
            bytes = bytes.saturating_add(present_bytes(&pagemap, address(begin)?, address(end)?)?);
        }
    }
    Some(bytes)
}

/// Bytes of the pages between two addresses that are in memory.
fn present_bytes(pagemap: &File, begin: u64, end: u64) -> Option<u64> {
    let page = PAGE as u64;
    let pages = (end.saturating_sub(begin) / page).min(MOST_PAGES);
    let mut words = vec![0; usize::try_from(pages).ok()? * size_of::<u64>()];
    pagemap.read_exact_at(&mut words, begin / page * size_of::<u64>() as u64).ok()?;
    let words = words.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    Some(words.filter(|word| word & PRESENT != 0).count() as u64 * page)
}

/// The kernel's high-water mark of resident memory (`VmHWM`) of a process's current image, in bytes; `None` if it has ended.
#[must_use]
pub fn resident_peak(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"))?;
    Some(line.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

/// Processor time of a process in nanoseconds; available until the process is waited for.
#[must_use]
pub fn processor_ns(pid: i32) -> Option<u64> {
    let mut clock = 0;
    // SAFETY: writes to a live local.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    clock_ns(clock)
}

/// Processor time of the calling thread, in nanoseconds.
#[must_use]
pub fn thread_processor_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// The clock of the calling thread's processor time, which other threads can read while it lives.
pub(crate) fn thread_clock() -> libc::clockid_t {
    let mut clock = 0;
    // SAFETY: no arguments, cannot fail.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread lives; writes to a live local.
    let found = unsafe { libc::pthread_getcpuclockid(own, &raw mut clock) };
    if found == 0 { clock } else { libc::CLOCK_THREAD_CPUTIME_ID }
}

/// The time of a clock in nanoseconds.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a live local of the type that the function expects.
    let got = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
    (got == 0).then(|| seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// Processor time of a process up to a moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTimes {
    /// Its own.
    pub own_ns: u64,
    /// CPU time of its reaped descendants; in steps of a hundredth of a second.
    pub children_ns: u64,
}

impl ProcessorTimes {
    /// Those of a running process; 0 where unknown.
    pub(crate) fn of(pid: i32) -> Self {
        Self { own_ns: processor_ns(pid).unwrap_or(0), children_ns: children_ns(pid).unwrap_or(0) }
    }
}

fn children_ns(pid: i32) -> Option<u64> {
    const USER: usize = 16;
    const SYSTEM: usize = 17;
    let stat = ProcessStat::of(pid)?;
    Some(stat.nanoseconds(USER)?.saturating_add(stat.nanoseconds(SYSTEM)?))
}

/// Whether a process runs Python or a program that is linked with libpython; `None` if unknown. A libpython that is loaded
/// later is not seen.
pub(crate) fn runs_python(pid: i32) -> Option<bool> {
    let path = executable(pid)?;
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if name.starts_with(b"python") {
        return Some(true);
    }
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    Some(maps.windows(LIBPYTHON.len()).any(|bytes| bytes == LIBPYTHON))
}

/// Whether a process runs the same file as this one.
pub(crate) fn runs_memtrack(pid: i32) -> bool {
    let file =
        |process: &str| std::fs::metadata(format!("/proc/{process}/exe")).ok().map(|file| (file.dev(), file.ino()));
    file("self").is_some_and(|own| file(&pid.to_string()) == Some(own))
}

const LIBPYTHON: &[u8] = b"/libpython";

/// The state of a thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ThreadStatus {
    /// It is alive and has this name.
    Named(String),
    /// It has ended.
    Gone,
    /// The proc file system does not show it.
    Unknown,
}

impl ThreadStatus {
    /// Its name, where it has one.
    pub(crate) fn name(self) -> Option<String> {
        if let Self::Named(name) = self { Some(name) } else { None }
    }
}

/// Reads the state of a thread.
pub(crate) fn thread(pid: i32, tid: i32) -> ThreadStatus {
    match std::fs::read(format!("/proc/{pid}/task/{tid}/comm")) {
        Ok(name) => ThreadStatus::Named(String::from_utf8_lossy(name.trim_ascii_end()).into_owned()),
        // If the process's own directory is missing, too, there may be no proc file system.
        Err(error) if is_gone(&error) && std::fs::exists(format!("/proc/{pid}/task")).unwrap_or(false) => {
            ThreadStatus::Gone
        }
        Err(_) => ThreadStatus::Unknown,
    }
}

/// The system's name of a process's first thread, which is there until the process is waited for.
#[must_use]
pub fn last_name(pid: i32) -> Option<String> {
    thread(pid, pid).name()
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

pub(crate) fn exists(pid: i32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let sent = unsafe { libc::kill(pid, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// The id that a process or thread has in its own, innermost namespace.
pub(crate) fn own_id(pid: i32) -> Option<i32> {
    status_line(pid, "NSpid:")?.split_ascii_whitespace().next_back()?.parse().ok()
}

/// The threads of a process; none where they cannot be seen.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The parent of a process.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    status_line(pid, "PPid:")?.trim().parse().ok()
}

/// The value of a line of its status.
fn status_line(pid: i32, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned)
}

/// Zeros at the end of a command line up to which they count as those of empty arguments; more are taken for the rest of a title's
/// room.
const MOST_EMPTY: usize = 3;

/// Its arguments, the program first.
pub(crate) fn command_line(pid: i32) -> Vec<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read =
        File::open(format!("/proc/{pid}/cmdline")).and_then(|file| file.take(MAX_COMMAND_LINE).read_to_end(&mut bytes));
    if read.is_err() || bytes.is_empty() {
        return Vec::new();
    }
    arguments(&bytes)
}

/// The arguments that stand one after the other, each with a zero at its end. A program that shows a title in their place fills
/// the rest with zeros, which are no arguments.
fn arguments(bytes: &[u8]) -> Vec<Vec<u8>> {
    let text = bytes.iter().rposition(|&byte| byte != 0).map_or(&[][..], |last| &bytes[..=last]);
    let zeros = bytes.len() - text.len();
    let whole = if zeros > MOST_EMPTY { text } else { bytes.strip_suffix(b"\0").unwrap_or(bytes) };
    whole.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
}

/// Path of its executable.
pub(crate) fn executable(pid: i32) -> Option<Vec<u8>> {
    as_seen_by(pid, "exe").map(|path| path.into_os_string().into_vec())
}

/// Its working directory.
pub(crate) fn working_directory(pid: i32) -> Option<PathBuf> {
    as_seen_by(pid, "cwd")
}

/// Where a link in its directory leads, as the process itself sees it: from its own root directory on.
fn as_seen_by(pid: i32, link: &str) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/{pid}/{link}")).ok()?;
    let root = std::fs::read_link(format!("/proc/{pid}/root")).ok();
    let below = root.and_then(|root| path.strip_prefix(root).ok().map(|below| Path::new("/").join(below)));
    Some(below.unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::{
        ResidentMemory, ThreadStatus, arguments, command_line, executable, exists, library_bytes, resident_peak, thread,
    };
    use std::os::fd::AsRawFd;

    #[test]
    fn a_title_in_place_of_the_arguments_has_no_empty_ones() {
        assert_eq!(arguments(b"app\0-x\0\0"), [&b"app"[..], b"-x", b""]);
        assert_eq!(arguments(b"server: worker\0\0\0\0\0\0\0"), [b"server: worker"]);
        assert_eq!(arguments(b"server: worker"), [b"server: worker"]);
        assert_eq!(arguments(b"\0\0\0\0\0\0"), [b""]);
    }

    #[test]
    fn this_process_is_described() {
        let pid = std::process::id().cast_signed();
        let (resident, peak) = (ResidentMemory::of(pid), resident_peak(pid).unwrap());
        assert!(resident.first.is_some_and(|bytes| bytes > 100_000) && resident.bytes() > Some(100_000));
        // Rounded to whole batches of pages for each processor by some systems.
        assert!(peak + (8 << 20) > resident.bytes().unwrap(), "{peak}");
        assert_eq!(command_line(pid).len(), std::env::args_os().count());
        let path = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        assert_eq!(executable(pid), Some(path));
        assert!(exists(pid));
        assert_eq!(ResidentMemory::of(pid).said(7, false).first, Some(7));
        assert_eq!(ResidentMemory::of(pid).said(0, true).bytes(), None);
    }

    #[test]
    fn the_librarys_resident_pages_are_told_from_others() {
        let pid = std::process::id().cast_signed();
        let directory = tempfile::tempdir().unwrap();
        let before = library_bytes(pid).unwrap();
        let map = |name: &str| {
            let file = std::fs::File::create_new(directory.path().join(name)).unwrap();
            file.set_len(1 << 20).unwrap();
            let (flags, protection) = (libc::MAP_SHARED | libc::MAP_POPULATE, libc::PROT_READ);
            let file = std::fs::OpenOptions::new().read(true).open(directory.path().join(name)).unwrap();
            // SAFETY: a new mapping of a file of that length, which nobody writes.
            let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 1 << 20, protection, flags, file.as_raw_fd(), 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
        };
        map("other.so");
        assert_eq!(library_bytes(pid), Some(before));
        map("libmemtrack_shim.so");
        assert_eq!(library_bytes(pid), Some(before + (1 << 20)));
        let mut resident = ResidentMemory::of(pid);
        resident.read_library_memory(pid);
        assert!(resident.library >= 1 << 20 || resident.bytes() >= Some(super::LITTLE));
    }

    #[test]
    fn ended_threads_and_processes_are_told_from_unknown_ones() {
        let pid = std::process::id().cast_signed();
        assert!(matches!(thread(pid, pid), ThreadStatus::Named(_)));
        assert_eq!(thread(pid, i32::MAX), ThreadStatus::Gone);
        assert_eq!(thread(i32::MAX, i32::MAX), ThreadStatus::Unknown);
        assert!(!exists(i32::MAX));
        assert_eq!((ResidentMemory::of(i32::MAX).first, resident_peak(i32::MAX)), (None, None));
    }
}
