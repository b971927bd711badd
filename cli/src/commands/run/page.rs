//! `memtrack run --flamegraph`: the page of what was just recorded.
//!
//! Invariant: it changes nothing about the program's exit status; what keeps it from being made is said.

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

/// Refuses what would keep the page of a capture with a given name from being written.
///
/// # Errors
/// A file that is there already; a capture that is no file.
pub(super) fn refuse(options: &args::RunArgs) -> Result<()> {
    let Some(capture) = options.output.as_ref().filter(|_| options.flamegraph) else { return Ok(()) };
    if capture.exists() && !capture.is_file() {
        bail!("{}: --flamegraph needs a capture in a regular file; name one with -o", capture.display());
    }
    // What will be recorded is not known yet: only a page of another capture can be there.
    let to = destination(options.force, &[]);
    to.check(&Destination { captures: std::slice::from_ref(capture), ..to }.file("flamegraph", "html"))
}

/// Makes the page of these captures, and shows it if that was asked for.
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
