//! `memtrack run --flamegraph`: writes the page of the new capture.
//!
//! Invariant: failures are printed and do not change the exit status.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use memtrack_reader::Options;

use crate::args;
use crate::commands::views::{show, write_page};
use crate::load::Request;
use crate::message;
use crate::open;
use crate::output::{Destination, ReportOutput};
use crate::reports::page::PageStart;

/// Reports before the run what would prevent writing the page of a capture with a given name.
///
/// # Errors
/// The page exists already, or the capture is not a regular file.
pub(super) fn refuse(options: &args::RunArgs) -> Result<()> {
    let Some(capture) = options.output.as_ref().filter(|_| options.flamegraph) else { return Ok(()) };
    if capture.exists() && !capture.is_file() {
        bail!("{}: --flamegraph needs a capture in a regular file; name one with -o", capture.display());
    }
    // There is no capture yet, so an existing page belongs to another one.
    let to = destination(options.force, &[]);
    to.check(&Destination { captures: std::slice::from_ref(capture), ..to }.file("flamegraph", "html"))
}

/// Writes the page of these captures, and opens it if requested.
pub(super) fn make(options: &args::RunArgs, captures: &[PathBuf]) {
    if captures.is_empty() {
        return;
    }
    match write(options, captures) {
        Ok(Some(page)) if !options.quiet => show(Some(&page), options.open),
        Ok(Some(page)) if options.open => open::in_browser(&page),
        Ok(_) => {}
        Err(error) => message::error(format_args!("{error:#}")),
    }
}

fn write(options: &args::RunArgs, captures: &[PathBuf]) -> Result<Option<PathBuf>> {
    let out = ReportOutput::file(destination(options.force, captures), "flamegraph", "html")?;
    let request = Request { paths: captures, quiet: true, ..Request::default() };
    write_page(request, Options::default(), (PageStart::default(), options.embed_sources), out)
}

fn destination(force: bool, captures: &[PathBuf]) -> Destination<'_> {
    Destination { named: None::<&Path>, force, captures }
}
