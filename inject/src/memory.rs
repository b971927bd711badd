//! The memory of another process, read and written through `/proc/PID/mem`; large parts are read by a system call, since the
//! file passes each page through a buffer of the kernel.
//!
//! Invariant: a read returns all bytes that were asked for, or an error; its size is bounded by [`MOST`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The most bytes that are read at once.
const MOST: u64 = 128 << 20;
/// Bytes from which on the system call is used.
const LARGE: usize = 4096;

/// The most places that are read by one system call, which takes no more.
const MOST_PLACES: usize = 1024;

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct RemoteMemory {
    file: File,
    pid: i32,
}

impl RemoteMemory {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Self { file, pid })
    }

    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        if into.len() >= LARGE && self.copied(address, into) {
            return Ok(());
        }
        self.file.read_exact_at(into, address)
    }

    /// `false`: not all of it is readable, or the system forbids it.
    fn copied(&self, address: u64, into: &mut [u8]) -> bool {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: the system writes into `into` alone, and checks the address that it reads from.
        let read = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(read) == Ok(into.len())
    }

    /// Reads `len` bytes at an address and at every `step` bytes behind it, one after the other; returns how many bytes
    /// could be read, from the first on. At most [`MOST_PLACES`] are read.
    pub(crate) fn read_spread(&self, address: u64, step: u64, len: usize, into: &mut [u8]) -> usize {
        let remote: Vec<libc::iovec> = (0..into.len() / len.max(1))
            .take(MOST_PLACES)
            .map_while(|number| address.checked_add(step.checked_mul(number as u64)?))
            .map(|at| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: len })
            .collect();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: remote.len() * len };
        let count = remote.len() as libc::c_ulong;
        // SAFETY: the system writes into `into` alone, and checks the addresses that it reads from.
        let read = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, remote.as_ptr(), count, 0) };
        usize::try_from(read).unwrap_or(0)
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, address)
    }

    pub(crate) fn bytes(&self, address: u64, len: u64) -> io::Result<Vec<u8>> {
        if len > MOST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u64(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The text up to a zero byte, at most `most` bytes.
    pub(crate) fn text(&self, address: u64, most: usize) -> String {
        let mut text = Vec::new();
        let mut byte = [0];
        while text.len() < most && self.read(address.wrapping_add(text.len() as u64), &mut byte).is_ok() && byte[0] != 0
        {
            text.push(byte[0]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}
