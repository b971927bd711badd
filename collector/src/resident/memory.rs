//! Reads of a process's memory.
//!
//! Large parts are read by the system call, which copies 64 MB in 10 ms; the file takes 42 ms, since it passes each page through
//! a buffer of the kernel. The file stays open meanwhile: it is of one image of one process, whoever gets its id later.
//!
//! Invariant: what was read is of the process if [`ProcessMemory::is_there`] says so afterwards.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes from which on the system call is used.
const LARGE: usize = 4096;

/// The memory of a process.
#[derive(Debug)]
pub(super) struct ProcessMemory {
    file: File,
    /// The process; `None`: the file alone is read.
    pid: Option<i32>,
    /// An address that was read by the system call.
    seen: Cell<Option<u64>>,
}

impl ProcessMemory {
    /// That of a running process.
    ///
    /// # Errors
    /// It has ended, or may not be read.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/mem"))?, pid: Some(pid), seen: Cell::new(None) })
    }

    /// A file that stands for the memory of a process.
    #[cfg(test)]
    pub(super) fn in_file(file: File) -> Self {
        Self { file, pid: None, seen: Cell::new(None) }
    }

    /// Fills `buffer` with what is at an address.
    ///
    /// # Errors
    /// Not all of it can be read.
    pub(super) fn read(&self, buffer: &mut [u8], address: u64) -> io::Result<()> {
        if buffer.len() >= LARGE && self.pid.is_some_and(|pid| copied(pid, buffer, address)) {
            self.seen.set(Some(address));
            return Ok(());
        }
        self.file.read_exact_at(buffer, address)
    }

    /// Whether all reads so far were of the process that this was made for, and of its image.
    pub(super) fn is_there(&self) -> bool {
        self.seen.get().is_none_or(|address| self.file.read_exact_at(&mut [0], address).is_ok())
    }

    /// Words at an address.
    pub(super) fn words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let mut bytes = [0; 32];
        self.read(bytes.get_mut(..N * 8)?, address).ok()?;
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        Some(std::array::from_fn(|_| words.next().unwrap_or(0)))
    }
}

/// Copies memory of a process; `false`: not all of it was there, or the system forbids it.
fn copied(pid: i32, buffer: &mut [u8], address: u64) -> bool {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: the system writes into `buffer` alone, and checks the address that it reads from.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read) == Ok(buffer.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::ProcessMemory;

    #[test]
    fn large_and_small_parts_are_read() {
        let bytes: Vec<u8> = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
        let memory = ProcessMemory::of(std::process::id().cast_signed()).unwrap();
        let mut found = vec![0; bytes.len()];
        memory.read(&mut found, bytes.as_ptr() as u64).unwrap();
        assert!(found == bytes && memory.is_there());
        let [word] = memory.words(bytes.as_ptr() as u64).unwrap();
        assert_eq!(word, u64::from_ne_bytes(bytes[..8].try_into().unwrap()));
        assert!(memory.read(&mut found, 64).is_err() && memory.words::<1>(64).is_none());
    }

    #[test]
    fn what_has_ended_is_not_there() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let maps = loop {
            let text = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
            // That of the program, not of this one before it is executed.
            if text.lines().next().is_some_and(|line| line.ends_with("sleep")) {
                break text;
            }
        };
        let memory = ProcessMemory::of(child.id().cast_signed()).unwrap();
        let start = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        memory.read(&mut [0; 4096], start).unwrap();
        assert!(memory.is_there());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!memory.is_there());
        assert!(memory.read(&mut [0; 4096], start).is_err());
    }
}
