//! `memtrack symbolize`: writes the names of native code into a capture, so that it reads the same on any machine.
//!
//! Invariant: a capture that may still be written to is never replaced.

use std::path::Path;

use anyhow::{Context, Result, bail};
use memtrack_format::aggregate::Aggregate;
use memtrack_reader::rewrite::attach;
use memtrack_reader::symbols::{WantedOffsets, places};
use memtrack_reader::{aggregate, source};

use super::rewrite::{native_places, open_single};
use crate::args::symbolize::SymbolizeArgs;
use crate::load::{search, warn_unnamed};
use crate::message;
use crate::output::ReportOutput;
use crate::terminal::Progress;
use crate::units::count;

/// Resolves the native frames of a capture and writes their symbols.
///
/// # Errors
/// A capture that cannot be read or holds no native code, or an output that cannot be written.
pub(crate) fn run(options: &SymbolizeArgs) -> Result<u8> {
    let path = &options.capture;
    let mut capture = open_single(path, "symbolize")?;
    capture.look_in(search(&options.names.debug_dir));
    let to = target(&capture, options)?;
    let wanted = wanted(&capture)?;
    if wanted.is_empty() {
        bail!("{}", without_places(&capture));
    }
    let mut out = ReportOutput::capture(Some(to), options.output.force, path, "symbolized")?;
    let mut symbolizer = capture.symbolizer();
    symbolizer.prefetch(&wanted);
    let names = symbolizer.named();
    let mut progress = Progress::new(capture.file_bytes(), "writing");
    attach(&capture, &names, &mut out, |bytes| progress.add(bytes))
        .with_context(|| format!("{}: names cannot be written", to.display()))?;
    drop(progress);
    warn_unnamed(&symbolizer.problems());
    let places: usize = wanted.iter().map(|one| one.offsets.len()).sum();
    let named: usize = names.iter().map(|module| module.places.len()).sum();
    if let Some(written) = out.finish()? {
        let (named, places) = (count(named as u64), count(places as u64));
        message::line(format_args!("{}: written; {named} of {places} native frames symbolized", written.display()));
    }
    Ok(0)
}

/// The output path: the capture itself unless another is named.
fn target<'a>(capture: &source::CaptureReader, options: &'a SymbolizeArgs) -> Result<&'a Path> {
    let path = &options.capture;
    match &options.output.output {
        Some(other) => Ok(other),
        None if !capture.complete() => {
            bail!("{}: incomplete, possibly still being recorded; name another file with -o", path.display())
        }
        None if !path.exists() => {
            bail!("{}: one of several captures in a file; name another file with -o", path.display())
        }
        None => Ok(path),
    }
}

/// The native frames in the capture's stacks: offsets by module.
pub(super) fn wanted(capture: &source::CaptureReader) -> Result<Vec<WantedOffsets>> {
    if !capture.aggregated() {
        return native_places(capture);
    }
    let aggregate = capture.aggregate()?.and_then(|payload| Aggregate::decode(&payload));
    let damaged = || format!("{}: the aggregated data is corrupt", capture.path().display());
    let (_, frames, _) = aggregate::restore(&aggregate.with_context(damaged)?)?;
    Ok(places(&frames))
}

fn without_places(capture: &source::CaptureReader) -> String {
    let path = capture.path().display();
    if capture.aggregated() && capture.process().native_traces {
        return format!(
            "{path}: no unresolved native frames; aggregated captures of older versions were symbolized while recording"
        );
    }
    format!("{path}: the stacks have no native frames; record with 'memtrack run --native'")
}
