//! The compression of heaptrack's files. heaptrack's programs go by a file's name: `.gz` and `.zst` are compressed, all
//! others text; they take what they cannot read for an empty recording.
//!
//! Invariant: what is written is what the name says; without a name, on standard output, it is gzip.

use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

/// A writer of one of these kinds.
pub(crate) enum Packed<W: Write> {
    /// `.gz`.
    Gzip(GzEncoder<W>),
    /// `.zst`.
    Zstd(zstd::Encoder<'static, W>),
    /// Every other name.
    Text(W),
}

impl<W: Write> Packed<W> {
    /// The writer for a file of this name.
    ///
    /// # Errors
    /// The compressor cannot be set up.
    pub(crate) fn named(name: Option<&Path>, out: W) -> io::Result<Self> {
        let suffix = name.filter(|name| *name != Path::new("-")).map(|name| name.extension().unwrap_or_default());
        Ok(match suffix {
            Some(suffix) if suffix == "zst" => Self::Zstd(zstd::Encoder::new(out, 1)?),
            Some(suffix) if suffix != "gz" => Self::Text(out),
            _ => Self::Gzip(GzEncoder::new(out, Compression::fast())),
        })
    }

    /// Ends the compressed stream.
    ///
    /// # Errors
    /// The rest cannot be written.
    pub(crate) fn finish(self) -> io::Result<W> {
        match self {
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
            Self::Text(out) => Ok(out),
        }
    }
}

impl<W: Write> Write for Packed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(out) => out.write(bytes),
            Self::Zstd(out) => out.write(bytes),
            Self::Text(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Gzip(out) => out.flush(),
            Self::Zstd(out) => out.flush(),
            Self::Text(out) => out.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::Packed;

    #[test]
    fn the_name_says_how_a_file_is_compressed() {
        let begin = |name: Option<&str>| {
            let mut out = Packed::named(name.map(Path::new), Vec::new()).unwrap();
            out.write_all(b"v 10000").unwrap();
            out.finish().unwrap()[..2].to_vec()
        };
        let names = [None, Some("-"), Some("a.gz"), Some("a.zst"), Some("a.heaptrack"), Some("a")];
        let (gzip, zstd, text) = ([0x1f, 0x8b], [0x28, 0xb5], *b"v ");
        assert_eq!(names.map(begin), [gzip, gzip, gzip, zstd, text, text]);
    }
}
