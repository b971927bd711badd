//! A reader of the bytes of one capture, which may be one of several in a file.
//!
//! Invariant: nothing outside the capture is read.

use std::io::{self, Read, Seek, SeekFrom};

use super::file::OpenCaptureFile;
use crate::error::Error;

/// A reader of a capture's bytes.
#[derive(Debug)]
pub struct CaptureBytes<'a> {
    pub(super) file: &'a OpenCaptureFile,
    pub(super) at: u64,
}

impl Read for CaptureBytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(self.at, into).map_err(|error| match error {
            Error::Io { source, .. } => source,
            other => io::Error::other(other),
        })?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for CaptureBytes<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let outside = || io::Error::new(io::ErrorKind::InvalidInput, "before the capture");
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(by) => self.file.len().checked_add_signed(by).ok_or_else(outside)?,
            SeekFrom::Current(by) => self.at.checked_add_signed(by).ok_or_else(outside)?,
        };
        Ok(self.at)
    }
}
