//! Names of native code of a process that has another root directory, as in a container.
//!
//! Its files are at other paths here, or nowhere once it has ended. So its root directory is opened when its recording begins, and
//! the names are written into the capture when it ends. Invariant: a capture is replaced by a complete one, or stays
//! unchanged.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use memtrack_collector::RootDirectory;
use memtrack_collector::control_groups::memory_limit;
use memtrack_reader::rewrite::attach;
use memtrack_reader::source::CaptureReader;
use memtrack_reader::symbols::{DebugFileSearch, FileRoot};

use super::final_summary::MEMORY_FOR_NAMES;
use crate::commands::symbolize::wanted;
use crate::message;
use crate::other_root::SymbolRoot;
use crate::output::temporary_beside;

/// Time limits for all captures together: for names with lines, and for names of functions alone.
const LINES_TAKE: Duration = Duration::from_secs(20);
const NAMES_TAKE: Duration = Duration::from_secs(30);

/// The root directory of a process, if it is not this one's.
#[derive(Clone, Debug)]
pub(super) struct OtherRoot(Arc<SymbolRoot>);

impl OtherRoot {
    pub(super) fn of_process(pid: i32) -> Option<Self> {
        RootDirectory::of_process(pid).map(|root| Self(Arc::new(SymbolRoot(root))))
    }

    /// Writes the names that are found in it into the captures.
    pub(super) fn keep_names(&self, captures: &[PathBuf]) {
        if memory_limit().is_some_and(|limit| limit < MEMORY_FOR_NAMES) {
            return;
        }
        let root: Arc<dyn FileRoot> = Arc::<SymbolRoot>::clone(&self.0);
        // Of all that passes: on a busy machine, too, it ends soon.
        let search = DebugFileSearch::limited(LINES_TAKE, NAMES_TAKE, None).with_root(root);
        for path in captures.iter().filter(|path| path.is_file()) {
            if search.is_over() {
                break;
            }
            if let Err(error) = keep(path, &search) {
                message::warning(format_args!("{}: no names of native code are kept: {error:#}", path.display()));
            }
        }
    }
}

/// Writes the names into one capture. What the search has opened serves the next one, too.
fn keep(path: &Path, search: &DebugFileSearch) -> Result<()> {
    let path = fs::canonicalize(path)?;
    let mut capture = CaptureReader::open(&path)?;
    capture.look_in(search.clone());
    let wanted = wanted(&capture)?;
    let mut symbolizer = capture.symbolizer();
    symbolizer.prefetch(&wanted);
    if !search.used_root() {
        return Ok(());
    }
    let mut out = BufWriter::new(temporary_beside(&path, 0o666)?);
    attach(&capture, &symbolizer.named(), &mut out, |_| ())?;
    out.flush()?;
    let file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.persist(&path).with_context(|| format!("{}", path.display()))?;
    Ok(())
}
