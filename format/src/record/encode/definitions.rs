//! The encoder's records with texts: names of threads, code objects and modules, each written once before it is referred to.
//!
//! Invariant: as for the other records; a text is cut to [`MAX_TEXT`] bytes.

use super::{Encoder, begin_extra};
use crate::WritableBytes;
use crate::record::byte_writer::MAX_TEXT;
use crate::record::{AllocationCount, CodeHead, ModuleRecord, extra};

impl Encoder {
    /// See [`crate::record::Record::ThreadName`].
    pub fn thread_name(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        tid: i32,
        name: &[u8],
    ) -> Option<usize> {
        name_of(bytes, at, extra::THREAD_NAME, tid, name)
    }

    /// See [`crate::record::Record::PythonName`].
    pub fn python_name(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        tid: i32,
        name: &[u8],
    ) -> Option<usize> {
        name_of(bytes, at, extra::PYTHON_NAME, tid, name)
    }

    /// See [`crate::record::Record::Counted`].
    pub fn counted(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        count: &AllocationCount,
    ) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::COUNTED, 0)?;
        out.number(count.stretch)?;
        out.number(count.allocations)?;
        out.number(count.bytes)?;
        Some(out.at())
    }

    /// See [`crate::record::Record::SampleDistance`].
    pub fn sample_distance(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        distance: u64,
    ) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::SAMPLE_DISTANCE, 0)?;
        out.number(distance)?;
        Some(out.at())
    }

    /// See [`crate::record::Record::Code`].
    pub fn code(&mut self, bytes: &mut (impl WritableBytes + ?Sized), at: usize, code: &CodeHead<'_>) -> Option<usize> {
        let mut out =
            begin_extra(bytes, at, extra::CODE, code.name.len().min(MAX_TEXT) + code.file.len().min(MAX_TEXT))?;
        out.number(u64::from(code.id))?;
        out.number(u64::from(code.first_line))?;
        out.byte(code.lines as u8)?;
        out.number(u64::from(code.lines_len))?;
        out.text(code.name)?;
        out.text(code.file)?;
        Some(out.at())
    }

    /// See [`crate::record::Record::Module`].
    pub fn module(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        module: &ModuleRecord<'_>,
    ) -> Option<usize> {
        let mut out = begin_extra(
            bytes,
            at,
            extra::MODULE,
            module.path.len().min(MAX_TEXT) + module.build_id.len().min(MAX_TEXT),
        )?;
        out.number(u64::from(module.id))?;
        out.number(module.bias)?;
        out.number(module.start)?;
        out.number(module.end)?;
        out.text(module.path)?;
        out.text(module.build_id)?;
        Some(out.at())
    }

    /// See [`crate::record::Record::CodeLines`]; at most [`MAX_TEXT`] bytes.
    pub fn code_lines(
        &mut self,
        bytes: &mut (impl WritableBytes + ?Sized),
        at: usize,
        id: u32,
        part: &[u8],
    ) -> Option<usize> {
        let mut out = begin_extra(bytes, at, extra::CODE_LINES, part.len().min(MAX_TEXT))?;
        out.number(u64::from(id))?;
        out.text(part)?;
        Some(out.at())
    }
}

/// A name of a thread, in the record that says whose it is.
fn name_of(bytes: &mut (impl WritableBytes + ?Sized), at: usize, which: u8, tid: i32, name: &[u8]) -> Option<usize> {
    let mut out = begin_extra(bytes, at, which, name.len())?;
    out.number(u64::from(tid.cast_unsigned()))?;
    out.text(name)?;
    Some(out.at())
}
