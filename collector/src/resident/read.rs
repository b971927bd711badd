//! Reads an account of a process's resident memory: its mappings, the pages of them that are in memory, glibc's heaps and
//! the threads' stack pointers.
//!
//! Invariant: whatever the proc file system says, an account takes bounded memory, and reading it ends.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

use memtrack_format::resident::{
    AccountMapping, AccountThread, GLIBC_HEAP_BYTES, GlibcHeap, PageRun, ResidentAccount, flag,
};

use super::chunks::{TOP_OFFSET, free_pages};
use super::huge::huge_pages;
use super::memory::ProcessMemory;
use super::pages::{PageRange, PageReader};
use crate::maps::{MappingLine, parse_all};
use crate::program::library_allocators::LibraryAllocators;
use crate::system::procfs;

/// Maximum size of the text of mappings, and of mounts.
const MOST_TEXT: u64 = 64 << 20;
const MOST_MOUNTS: u64 = 4 << 20;
/// Maximum number of threads, and of places that are checked for a heap.
const MOST_THREADS: usize = 4096;
const MOST_PLACES: usize = 1 << 16;

/// Device numbers, major and minor.
type Device = (u32, u32);

/// Reads the accounts of one process.
#[derive(Debug)]
pub(super) struct AccountReader {
    pid: i32,
    /// It is in a pid namespace of its own, where its threads have other ids than here.
    has_own_ids: bool,
    page_bytes: u64,
    /// File systems that are in memory only.
    in_memory: HashSet<Device>,
    allocators: LibraryAllocators,
}

impl AccountReader {
    pub(super) fn new(pid: i32) -> Self {
        // SAFETY: reads a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = u64::try_from(page).unwrap_or(4096);
        let has_own_ids = procfs::own_id(pid).is_some_and(|id| id != pid);
        Self { pid, has_own_ids, page_bytes, in_memory: memory_devices(pid), allocators: LibraryAllocators::of(pid) }
    }

    /// An account of now, without time and cause; with the free pages of glibc's heaps if `with_chunks`.
    pub(super) fn read(&self, with_chunks: bool) -> io::Result<ResidentAccount> {
        let mut pages = PageReader::open(self.pid, self.page_bytes)?;
        let file = if pages.needs_resident() { "smaps" } else { "maps" };
        let text = self.file(file, MOST_TEXT)?;
        let lines = parse_all(&text);
        if lines.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut account = ResidentAccount { page_bytes: self.page_bytes, ..ResidentAccount::default() };
        for line in &lines {
            let runs = self.runs(line, &mut pages)?;
            let path = path_number(&mut account.paths, &line.mapping.path);
            let MappingLine { mapping, .. } = line;
            let (start, end, flags) = (mapping.start, mapping.end, self.flags(line));
            account.mappings.push(AccountMapping { start, end, flags, path, runs });
        }
        account.threads = self.threads();
        if let Ok(memory) = ProcessMemory::of(self.pid) {
            let heaps = self.heaps(&memory, &account.mappings);
            account.heaps = heaps.iter().map(|(heap, _)| *heap).collect();
            if with_chunks {
                let free = free_pages(&memory, &account, &heaps);
                let huge = huge_pages(&memory, pages.huge(), self.page_bytes);
                if memory.is_there() {
                    (account.free, account.huge) = (free, huge);
                }
            }
        }
        Ok(account)
    }

    /// The files of code of this account that were not looked at yet for allocators of their own.
    pub(super) fn new_code(&self, account: &ResidentAccount) -> Vec<Vec<u8>> {
        let code = account.mappings.iter().filter(|mapping| mapping.flags & flag::EXECUTE != 0);
        let paths = code.map(|mapping| account.path(mapping)).filter(|path| self.allocators.is_new(path));
        paths.map(<[u8]>::to_vec).collect()
    }

    /// All libraries with an allocator of their own, if there are new ones among these.
    pub(super) fn look(&mut self, code: &[Vec<u8>], may_go_on: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        self.allocators.look(code, may_go_on)
    }

    /// The beginning of one of the process's files.
    fn file(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(format!("/proc/{}/{name}", self.pid))?.take(most).read_to_end(&mut text)?;
        Ok(text)
    }

    fn runs(&self, line: &MappingLine, pages: &mut PageReader) -> io::Result<Vec<PageRun>> {
        let mapping = &line.mapping;
        // Pages of a device, and of huge page files, are not counted as resident; nor are those of the kernel's variables.
        let path = mapping.path.as_slice();
        let is_device = path.starts_with(b"/dev/") && !self.in_memory.contains(&mapping.device);
        let is_huge = path.starts_with(b"/anon_hugepage") || path.starts_with(b"/dev/hugepages");
        let is_empty = pages.needs_resident() && line.resident == Some(0) && !line.writable;
        if is_huge || is_empty || path.starts_with(b"[vvar") || path.starts_with(b"[vsyscall") {
            return Ok(Vec::new());
        }
        let may_be_anonymous = !line.shared && !is_device;
        let (start, end, resident) = (mapping.start, mapping.end, line.resident);
        pages.runs(PageRange { start, end, may_be_anonymous, resident })
    }

    fn flags(&self, line: &MappingLine) -> u64 {
        let mapping = &line.mapping;
        let is_file = mapping.inode != 0;
        let in_memory = is_file && self.in_memory.contains(&mapping.device);
        let all = [
            (line.readable, flag::READ),
            (line.writable, flag::WRITE),
            (mapping.executable, flag::EXECUTE),
            (line.shared, flag::SHARED),
            (is_file, flag::FILE),
            (in_memory, flag::IN_MEMORY),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum()
    }

    /// The heaps of glibc's arenas with their ends, recognized by their alignment and by what stands at their start.
    fn heaps(&self, memory: &ProcessMemory, mappings: &[AccountMapping]) -> Vec<(GlibcHeap, u64)> {
        let is_anonymous = |mapping: &&AccountMapping| {
            mapping.path.is_none() && mapping.has(flag::READ | flag::WRITE) && !mapping.has(flag::SHARED)
        };
        let places = mappings.iter().filter(is_anonymous).flat_map(|mapping| {
            let first = mapping.start.next_multiple_of(GLIBC_HEAP_BYTES);
            let aligned = (first..mapping.end).step_by(GLIBC_HEAP_BYTES as usize);
            // Reading a page that is not in memory would bring it there.
            aligned.filter(|place| mapping.runs.iter().any(|run| (run.start..run.end).contains(place)))
        });
        let found: Vec<(GlibcHeap, u64)> =
            places.take(MOST_PLACES).filter_map(|place| heap_at(memory, place)).collect();
        let starts: HashSet<u64> = found.iter().map(|(heap, _)| heap.start).collect();
        // The state of an arena stands in its first heap.
        found.into_iter().filter(|(heap, _)| starts.contains(&(heap.arena & !(GLIBC_HEAP_BYTES - 1)))).collect()
    }

    fn threads(&self) -> Vec<AccountThread> {
        let tids = procfs::threads(self.pid).into_iter().take(MOST_THREADS);
        let thread = |tid: i32| {
            let own = if self.has_own_ids { procfs::own_id(tid)? } else { tid };
            Some(AccountThread { tid: own.cast_unsigned(), stack_pointer: self.stack_pointer(tid).unwrap_or(0) })
        };
        tids.filter_map(thread).collect()
    }

    /// Of a thread that is in a system call.
    fn stack_pointer(&self, tid: i32) -> Option<u64> {
        let text = self.file(&format!("task/{tid}/syscall"), 4096).ok()?;
        let fields: Vec<&str> = std::str::from_utf8(&text).ok()?.split_ascii_whitespace().collect();
        let [.., pointer, _] = fields[..] else { return None };
        u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
    }
}

/// The heap that begins at this place, if one does, and its end.
fn heap_at(memory: &ProcessMemory, place: u64) -> Option<(GlibcHeap, u64)> {
    let words: [u64; 4] = memory.words(place)?;
    let [arena, _previous, size, writable] = words;
    let is_state = (32..=64).contains(&(arena & (GLIBC_HEAP_BYTES - 1)));
    let is_size = |size: u64| (1..=GLIBC_HEAP_BYTES).contains(&size) && size.is_multiple_of(4096);
    if !is_state || !is_size(size) || !is_size(writable) || size > writable {
        return None;
    }
    let top = memory.words::<1>(arena.checked_add(TOP_OFFSET)?).map_or(0, |[top]| top);
    let is_top = top.is_multiple_of(16) && top > GLIBC_HEAP_BYTES;
    Some((GlibcHeap { start: place, arena, top: if is_top { top } else { 0 } }, place + size))
}

/// The row of a path, which is added if it is new. Neighbours have the same one.
fn path_number(paths: &mut Vec<Vec<u8>>, path: &[u8]) -> Option<u32> {
    if path.is_empty() {
        return None;
    }
    let last = paths.len().checked_sub(1).filter(|last| paths.get(*last).is_some_and(|known| known == path));
    let number = last.unwrap_or_else(|| {
        paths.push(path.to_vec());
        paths.len() - 1
    });
    u32::try_from(number).ok()
}

/// The file systems of a process that are in memory only, and the system's own for memory files and shared mappings.
fn memory_devices(pid: i32) -> HashSet<Device> {
    let mut devices: HashSet<Device> = memory_file_device().into_iter().collect();
    let mut text = Vec::new();
    let read =
        File::open(format!("/proc/{pid}/mountinfo")).and_then(|file| file.take(MOST_MOUNTS).read_to_end(&mut text));
    if read.is_ok() {
        devices.extend(String::from_utf8_lossy(&text).lines().filter_map(memory_mount));
    }
    devices
}

/// The device of a mount that is in memory only.
fn memory_mount(line: &str) -> Option<Device> {
    let (mount, system) = line.split_once(" - ")?;
    let kind = system.split(' ').next()?;
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    ["tmpfs", "devtmpfs", "ramfs"].contains(&kind).then_some(device)
}

/// The device of memory files.
fn memory_file_device() -> Option<Device> {
    // SAFETY: a name that ends in a zero, and no further pointers.
    let descriptor = unsafe { libc::syscall(libc::SYS_memfd_create, c"memtrack-device".as_ptr(), libc::MFD_CLOEXEC) };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: a new descriptor that nobody else owns.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let device = std::os::unix::fs::MetadataExt::dev(&file.metadata().ok()?);
    Some((libc::major(device), libc::minor(device)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{AccountReader, memory_mount};
    use memtrack_format::resident::{PageRun, PageState, flag};
    use std::io::{Read, Write};

    fn kilobytes(pid: u32, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Starts a program that waits for input and touches no new page until it is given some: it has answered twice,
    /// so that the whole of its loop has run.
    fn waiting_program() -> std::process::Child {
        let (input, output) = (std::process::Stdio::piped(), std::process::Stdio::piped());
        let mut child = std::process::Command::new("cat").stdin(input).stdout(output).spawn().unwrap();
        for _ in 0..2 {
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        }
        child
    }

    #[test]
    fn an_account_of_a_waiting_process_is_what_the_system_counts() {
        let mut child = waiting_program();
        let account = AccountReader::new(child.id().cast_signed()).read(true).unwrap();
        let of = |state| {
            let runs = account.mappings.iter().flat_map(|mapping| &mapping.runs).filter(|run| run.state == state);
            runs.map(PageRun::bytes).sum::<u64>()
        };
        assert_eq!(of(PageState::Anonymous), kilobytes(child.id(), "Anonymous:") << 10);
        assert_eq!(account.resident_bytes(), kilobytes(child.id(), "Rss:") << 10);
        let heap = account.mappings.iter().find(|mapping| account.path(mapping) == b"[heap]").unwrap();
        assert!(heap.has(flag::READ | flag::WRITE) && !heap.has(flag::FILE));
        assert_eq!(account.threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [child.id()]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    /// The test's threads have allocated.
    #[test]
    fn arenas_of_threads_are_found() {
        let thread = std::thread::spawn(|| {
            let block = vec![1_u8; 1000];
            let account = AccountReader::new(std::process::id().cast_signed()).read(true).unwrap();
            (block.as_ptr() as u64, account)
        });
        let (address, account) = thread.join().unwrap();
        let of_block = account.heaps.iter().find(|heap| heap.start == address & !((64 << 20) - 1));
        // Some systems have another allocator, or only one arena.
        if let Some(heap) = of_block {
            assert!(heap.top > heap.start && heap.arena > heap.start, "{heap:x?}");
        } else {
            assert!(
                account.heaps.is_empty() || account.mappings.iter().any(|mapping| account.path(mapping) == b"[heap]")
            );
        }
    }

    #[test]
    fn file_systems_in_memory_are_known_by_their_kind() {
        let line = "36 35 0:26 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=1k";
        assert_eq!(memory_mount(line), Some((0, 26)));
        assert_eq!(memory_mount("36 35 8:1 / / rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(memory_mount("36 35"), None);
    }
}
