//! The checksum of a Parquet file: of all its bytes, in its own metadata.
//!
//! A byte that has changed since a file was written gives other figures, and no engine notices it: Parquet's checksums of pages are
//! rarely written, and rarely looked at. Invariant: the checksum is that of the file with zeros in the place of the checksum's digits,
//! so that it covers what it stands in.

use std::fs::File;
use std::hash::Hasher as _;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;

use twox_hash::XxHash64;

/// The key in the metadata.
pub(super) const CHECKSUM_KEY: &str = "memtrack.checksum";
/// What stands in the place of the digits while they are not known.
pub(super) const NO_DIGITS: &str = "0000000000000000";
/// How a file ends: the length of the footer, and four letters.
const TAIL: u64 = 8;
/// The longest footer in which a checksum is looked for.
const MOST_FOOTER: u64 = 64 << 20;
/// Bytes that are read at once.
const PIECE: usize = 1 << 18;

/// Writes a file, and sums what is written.
pub(super) struct ChecksumWriter {
    file: File,
    hasher: XxHash64,
}

impl ChecksumWriter {
    /// For a file that can be read, too.
    pub(super) fn new(file: File) -> Self {
        Self { file, hasher: XxHash64::with_seed(0) }
    }

    /// Puts the checksum of what was written, the whole file, into its place.
    ///
    /// # Errors
    /// The file cannot be read or written, or has no place for it.
    pub(super) fn seal(self) -> io::Result<()> {
        let at = place(&self.file)?.ok_or_else(|| io::Error::other("it has no place for a checksum"))?;
        self.file.write_all_at(format!("{:016x}", self.hasher.finish()).as_bytes(), at)
    }
}

impl Write for ChecksumWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.write(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Whether the bytes of a file are those that were written; `true` of one without a checksum, too.
///
/// # Errors
/// It cannot be read.
pub(crate) fn is_as_written(file: &File) -> io::Result<bool> {
    let Some(place) = place(file)? else { return Ok(true) };
    let digits = place..place + NO_DIGITS.len() as u64;
    let mut found = [0; NO_DIGITS.len()];
    file.read_exact_at(&mut found, place)?;
    let mut hasher = XxHash64::with_seed(0);
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut piece, at)?;
        if read == 0 {
            break;
        }
        let here = |position| index(position, at).min(read);
        piece[here(digits.start)..here(digits.end)].fill(b'0');
        hasher.write(&piece[..read]);
        at += read as u64;
    }
    Ok(found == *format!("{:016x}", hasher.finish()).as_bytes())
}

/// How far behind another position this one is.
fn index(position: u64, from: u64) -> usize {
    usize::try_from(position.saturating_sub(from)).unwrap_or(usize::MAX)
}

/// Where in the file the digits are: behind the key, which is the last text with this content, and their length.
fn place(file: &File) -> io::Result<Option<u64>> {
    let length = file.metadata()?.len();
    let mut tail = [0; 4];
    let Some(tail_at) = length.checked_sub(TAIL) else { return Ok(None) };
    file.read_exact_at(&mut tail, tail_at)?;
    let footer_bytes = u64::from(u32::from_le_bytes(tail));
    let Some(begin) = tail_at.checked_sub(footer_bytes).filter(|_| footer_bytes <= MOST_FOOTER) else {
        return Ok(None);
    };
    let mut footer = vec![0; index(tail_at, begin)];
    file.read_exact_at(&mut footer, begin)?;
    let key = CHECKSUM_KEY.as_bytes();
    let found = footer.windows(key.len()).rposition(|text| text == key);
    // Between key and value are the value's field and its length.
    let digits = found.map(|found| found + key.len() + 2).filter(|at| at + NO_DIGITS.len() <= footer.len());
    Ok(digits.map(|at| begin + at as u64))
}
