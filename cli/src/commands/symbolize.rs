//! `memtrack symbolize`: writes the names of native code into a capture, so that it reads the same on any machine.
//!
//! Invariant: a capture that may still be written to is never replaced.

use std::fs::File;

use anyhow::{Context, Result, bail};
use memtrack_reader::symbols::{Debuginfod, Search, Symbolizer, attach};

use super::rewrite::open_single;
use crate::args::symbolize::Symbolize;
use crate::load::warn_unnamed;
use crate::message;
use crate::output::Report;
use crate::units::count;

/// Finds the names and writes them.
///
/// # Errors
/// A capture that cannot be read or holds no native code, or an output that cannot be written.
pub(crate) fn run(options: &Symbolize) -> Result<u8> {
    let path = &options.capture;
    let capture = open_single(path, "symbolize")?;
    if capture.aggregated() {
        bail!("{}: an aggregated capture has had its names since it was recorded", path.display());
    }
    if !capture.complete() && options.output.output.is_none() {
        bail!("{}: not complete, so it may still be written to; name another file with -o", path.display());
    }
    let wanted = capture.native_places()?;
    if wanted.is_empty() {
        bail!("{}: no native code in its stacks; record with 'memtrack run --native'", path.display());
    }
    let to = options.output.output.as_deref().unwrap_or(path);
    let mut out = Report::printed(Some(to), options.output.force)?;
    let mut symbolizer = Symbolizer::new(Search::new(&options.debug_dir, Debuginfod::from_environment()));
    symbolizer.know(capture.symbols());
    symbolizer.prefetch(&wanted);
    let names = symbolizer.named();
    let mut from = File::open(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    attach(&mut from, &names, &mut out).with_context(|| format!("{}: names cannot be written", to.display()))?;
    warn_unnamed(&symbolizer.problems());
    let places: usize = wanted.iter().map(|one| one.offsets.len()).sum();
    let named: usize = names.iter().map(|module| module.places.len()).sum();
    if let Some(written) = out.finish()? {
        let (named, places) = (count(named as u64), count(places as u64));
        message::line(format_args!("{}: written; {named} of {places} native places have names", written.display()));
    }
    Ok(0)
}
