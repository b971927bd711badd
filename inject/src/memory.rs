//! The memory of another process, read and written through `/proc/PID/mem`.
//!
//! Invariant: a read returns all bytes that were asked for, or an error; its size is bounded by [`MOST`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The most bytes that are read at once.
const MOST: u64 = 128 << 20;

/// The memory of a process.
#[derive(Debug)]
pub(crate) struct RemoteMemory(File);

impl RemoteMemory {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).map(Self)
    }

    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, address)
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
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
