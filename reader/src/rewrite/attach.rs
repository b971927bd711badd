//! Stores names of native code in a capture, so that reports need not have the program's files.
//!
//! They are inserted in front of everything else, so that a truncated end and damage stay where they are. Invariant:
//! every block is copied unchanged, except names that were stored earlier.

use std::io::{self, Read, Seek, SeekFrom, Write};

use memtrack_format::block::{BlockHeader, BlockKind, HEADER_LEN};
use memtrack_format::header;
use memtrack_format::symbols::ModuleSymbols;

use super::CaptureBlocks;

/// Bytes that are copied at a time.
const COPIED: u64 = 1 << 20;

/// Copies the capture to `out`, with these names instead of those that it begins with. `progress` is called now and then
/// with the bytes since.
///
/// # Errors
/// What reading or writing says; [`io::ErrorKind::InvalidData`] when it is no capture, or one of several processes:
/// each of those has names of its own.
pub fn attach<W: Write>(
    capture: &mut (impl Read + Seek),
    names: &[ModuleSymbols],
    mut out: W,
    mut progress: impl FnMut(u64),
) -> io::Result<()> {
    let mut head = [0; header::LEN];
    capture.read_exact(&mut head)?;
    header::decode(&head)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a memtrack capture, or an unsupported version"))?;
    out.write_all(&head)?;
    let mut at = header::LEN as u64;
    while let Some(block) = block_at(capture, at)? {
        match block.kind {
            BlockKind::Symbols => at += HEADER_LEN as u64 + u64::from(block.stored_len),
            BlockKind::Members => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a merged capture file"));
            }
            _ => break,
        }
    }
    let mut blocks = CaptureBlocks::after(&mut out);
    blocks.symbols(names)?;
    capture.seek(SeekFrom::Start(at))?;
    loop {
        let copied = io::copy(&mut capture.take(COPIED), &mut out)?;
        progress(copied);
        if copied == 0 {
            return out.flush();
        }
    }
}

/// The intact header that stands here, if one does.
fn block_at(capture: &mut (impl Read + Seek), at: u64) -> io::Result<Option<BlockHeader>> {
    capture.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::with_capacity(HEADER_LEN);
    capture.take(HEADER_LEN as u64).read_to_end(&mut bytes)?;
    Ok(BlockHeader::decode(&bytes).ok())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use memtrack_format::block::{BlockHeader, BlockKind};
    use memtrack_format::header;
    use memtrack_format::meta::Process;
    use memtrack_format::symbols::{ModuleSymbols, OffsetSymbols, Symbol};

    use super::attach;
    use crate::rewrite::CaptureBlocks;
    use crate::source::CaptureReader;

    fn names(function: &str) -> Vec<ModuleSymbols> {
        let symbol = Symbol { function: function.into(), file: "".into(), line: 0 };
        let places = vec![OffsetSymbols { offset: 7, symbols: vec![symbol] }];
        vec![ModuleSymbols { path: b"/bin/x".to_vec(), build_id: vec![1, 2, 3], places }]
    }

    fn capture() -> Vec<u8> {
        let mut blocks = CaptureBlocks::new(Vec::new()).unwrap();
        blocks.process(&Process { pid: Some(7), ..Process::default() }, 0).unwrap();
        blocks.finish(true).unwrap()
    }

    fn open(bytes: &[u8]) -> CaptureReader {
        CaptureReader::of_bytes(bytes).unwrap()
    }

    fn attached(capture: &[u8], names: &[ModuleSymbols]) -> Vec<u8> {
        let mut out = Vec::new();
        attach(&mut Cursor::new(capture), names, &mut out, |_| {}).unwrap();
        out
    }

    #[test]
    fn names_are_read_back_and_replaced() {
        let first = attached(&capture(), &names("first"));
        assert_eq!(open(&first).symbols(), names("first"));
        let second = attached(&first, &names("second"));
        assert_eq!(open(&second).symbols(), names("second"));
        assert!(open(&second).complete());
        assert_eq!(open(&second).process().pid, Some(7));
        assert_eq!(attached(&second, &[]), capture());
    }

    #[test]
    fn every_cut_of_a_capture_stays_what_it_is() {
        let whole = capture();
        for len in header::LEN..whole.len() {
            let (cut, with_names) = (open(&whole[..len]), open(&attached(&whole[..len], &names("f"))));
            assert_eq!(with_names.symbols(), names("f"));
            assert_eq!((with_names.complete(), with_names.lost()), (cut.complete(), cut.lost()), "{len}");
        }
    }

    #[test]
    fn damaged_names_are_lost_and_nothing_else() {
        let mut bytes = attached(&capture(), &names("f"));
        bytes[header::LEN + 60] ^= 1;
        let read = open(&bytes);
        assert!(read.symbols().is_empty() && read.complete());
        assert_eq!((read.lost().blocks, read.process().pid), (1, Some(7)));
    }

    #[test]
    fn what_is_no_single_capture_is_refused() {
        let mut blocks = CaptureBlocks::new(Vec::new()).unwrap();
        blocks.block(BlockHeader::plain(BlockKind::Members), &[]).unwrap();
        for bytes in [b"no capture at all, but long enough".to_vec(), blocks.finish(false).unwrap()] {
            assert!(attach(&mut Cursor::new(bytes), &names("f"), Vec::new(), |_| {}).is_err());
        }
    }
}
