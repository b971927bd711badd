//! Recompresses captures after the program has ended, at levels too slow for recording.
//!
//! Invariant: a capture is replaced by a complete one, or stays unchanged.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memtrack_collector::{Compression, Packer};
use memtrack_reader::source;

use crate::message;
use crate::output::temporary_beside;
use crate::sys::ChildrenWait;
use crate::terminal::Progress;

/// The highest level used while recording; at higher ones compression would be slower than a busy program, which would
/// have to wait.
const HIGHEST_LIVE: i32 = 6;

/// The compression while recording, and the one to recompress with afterwards, if any.
pub(super) fn plan(wanted: Compression) -> (Compression, Option<Compression>) {
    match wanted {
        Compression::Zstd(level) if level > HIGHEST_LIVE => (Compression::default(), Some(wanted)),
        _ => (wanted, None),
    }
}

/// Recompresses the captures. A signal stops it and leaves the remaining captures unchanged.
pub(super) fn repack(captures: &[PathBuf], compression: Compression, waiting: &ChildrenWait) {
    waiting.begin();
    for path in captures.iter().filter(|path| path.is_file()) {
        match one(path, compression, waiting) {
            Ok(true) => {}
            Ok(false) => {
                message::line("memtrack: interrupted; the capture keeps the compression level used while recording");
                break;
            }
            Err(error) => {
                message::warning(format_args!(
                    "{}: recompression failed, the capture is unchanged: {error:#}",
                    path.display()
                ));
            }
        }
    }
    waiting.end();
}

fn one(path: &Path, compression: Compression, waiting: &ChildrenWait) -> Result<bool> {
    let path = fs::canonicalize(path)?;
    let capture = source::CaptureReader::open(&path)?;
    let mut out = BufWriter::new(temporary_beside(&path, 0o666)?);
    let mut packer = Packer::new(compression)?;
    let mut progress = Progress::new(capture.file_bytes(), "compressing");
    let mut pack = |kind, payload: &[u8], before: &[u8], stored: &mut Vec<u8>| {
        let (codec, bytes) = packer.pack(kind, payload, before);
        stored.extend_from_slice(bytes);
        codec
    };
    let whole = capture.repack(&mut out, &mut pack, &mut |bytes| {
        progress.add(bytes);
        !waiting.is_interrupted()
    })?;
    drop(progress);
    if whole {
        out.flush()?;
        let file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.persist(&path).with_context(|| format!("{}", path.display()))?;
    }
    Ok(whole)
}
