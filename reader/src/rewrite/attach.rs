//! Stores names of native code in a capture, so that reports need not have the program's files.
//!
//! They are inserted in front of everything else, so that a truncated end and damage stay where they are. Invariant:
//! every block is copied unchanged, except names that were stored earlier.

use std::io::Write;

use memtrack_format::symbols::ModuleSymbols;

use super::CaptureBlocks;
use crate::error::Error;
use crate::source::CaptureReader;

/// Copies the capture to `out`, with these names instead of those that it begins with. `progress` is called now and then
/// with the bytes since.
///
/// # Errors
/// What reading or writing says.
pub fn attach<W: Write>(
    capture: &CaptureReader,
    names: &[ModuleSymbols],
    mut out: W,
    progress: impl FnMut(u64),
) -> Result<(), Error> {
    capture.copy_with_names(&mut out, |out| CaptureBlocks::after(out).symbols(names), progress)
}

#[cfg(test)]
mod tests {
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
        attach(&open(capture), names, &mut out, |_| {}).unwrap();
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
}
