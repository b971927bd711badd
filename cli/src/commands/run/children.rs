//! Names and opens the captures of child processes, in the directory of the main capture.
//!
//! A later run often reuses the name of the main capture (`-f -o capture.bin`). The captures of the earlier run's
//! children are then removed with it. If other files match the pattern, they stay, and the captures of this run's
//! children have a run number in their names. Invariant: [`Children::pattern`] matches the captures of this run's
//! children and no other file; and each name contains the child's number in the process tree, so that a reused process
//! id overwrites nothing.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memtrack_collector::{NewChild, OpenSink};

use super::{CaptureMode, sink};
use crate::capture_file::CaptureFile;
use crate::child_captures::{ChildrenOf, children_to_replace, inserted, is_device, matching};
use crate::reports::capture_info::{quoted, quoted_path};
use crate::set_aside::SetAside;

/// The captures of child processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Children(Arc<ChildrenShared>);

#[derive(Debug, Default)]
struct ChildrenShared {
    state: Mutex<ChildrenState>,
    named: Condvar,
}

#[derive(Debug, Default)]
struct ChildrenState {
    names: Option<CaptureNames>,
    captures: Vec<(u32, CaptureFile)>,
    /// Captures of an earlier run's children, until the recording has begun.
    set_aside: Vec<SetAside>,
    /// Their number.
    replaced: usize,
}

/// Derives the names of the children's captures from that of the main capture.
#[derive(Clone, Debug)]
struct CaptureNames {
    /// The main capture.
    own: PathBuf,
    /// Run number and a point, or empty; precedes the process id.
    run: String,
}

impl Children {
    /// Opens a capture for each child, beside the main capture.
    pub(super) fn opener(&self, mode: CaptureMode) -> OpenSink {
        let shared = Arc::clone(&self.0);
        Box::new(move |child| {
            let path = shared.names().path(child);
            let opened = CaptureFile::named(&path, true);
            let (mut capture, file) = opened.map_err(|error| io::Error::other(format!("{error:#}")))?;
            capture.has_begun();
            let sink = sink(mode, file, None)?;
            shared.lock().captures.push((child.number, capture));
            Ok(sink)
        })
    }

    /// Sets the path of the main capture; openers wait for it.
    pub(super) fn name(&self, own: &Path) {
        self.0.lock().names = Some(CaptureNames::new(own));
        self.0.named.notify_all();
    }

    /// The same where no child is recorded: nothing is looked up for their names.
    pub(super) fn name_alone(&self, own: &Path) {
        self.0.lock().names = Some(CaptureNames { own: own.into(), run: String::new() });
    }

    /// Sets aside the captures of the children of an earlier run whose main capture is about to be overwritten, if that
    /// capture contains its recording id.
    pub(super) fn replace(&self, own: &Path) {
        let earlier = children_to_replace(own, ChildrenOf::Recording);
        let mut state = self.0.lock();
        state.set_aside = earlier.iter().filter_map(|path| SetAside::take(path)).collect();
        state.replaced = state.set_aside.len();
    }

    /// The recording has begun: the captures of the earlier run's children are gone.
    pub(super) fn has_begun(&self) {
        self.0.lock().set_aside.clear();
    }

    /// It has not begun, and never will: puts them back.
    pub(super) fn put_back(&self) {
        std::mem::take(&mut self.0.lock().set_aside).into_iter().for_each(SetAside::put_back);
    }

    /// The whole path of the capture of the process with this number in the tree; the first process has 0.
    pub(super) fn capture(&self, number: u32) -> Option<PathBuf> {
        let state = self.0.lock();
        let path = match number {
            0 => state.names.as_ref()?.own.clone(),
            _ => state.captures.iter().find(|(known, _)| *known == number)?.1.path().to_path_buf(),
        };
        drop(state);
        Some(path.canonicalize().unwrap_or(path))
    }

    /// The numbers of the children that have captures, in the order in which they began.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.0.lock().captures.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Number of removed captures.
    pub(super) fn replaced(&self) -> usize {
        self.0.lock().replaced
    }

    /// A shell pattern that expands to the captures of the children.
    pub(super) fn pattern(&self) -> String {
        self.0.names().pattern()
    }

    /// Removes and returns the capture of the child with this number in the process tree.
    pub(super) fn take(&self, number: u32) -> Option<CaptureFile> {
        let captures = &mut self.0.lock().captures;
        let place = captures.iter().position(|(known, _)| *known == number)?;
        Some(captures.swap_remove(place).1)
    }

    /// Deletes the remaining captures: their recordings could not be started.
    pub(super) fn discard_rest(&self) {
        std::mem::take(&mut self.0.lock().captures).into_iter().for_each(|(_, capture)| capture.discard());
    }
}

impl ChildrenShared {
    fn lock(&self) -> MutexGuard<'_, ChildrenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> CaptureNames {
        let mut state = self.lock();
        loop {
            match &state.names {
                Some(names) => return names.clone(),
                None => state = self.named.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl CaptureNames {
    fn new(own: &Path) -> Self {
        let others = matching(own);
        let is_free = |run: &String| others.iter().all(|name| !begins(name, own, run));
        let run = (1_u32..).map(|run| if run == 1 { String::new() } else { format!("{run}.") }).find(is_free);
        Self { own: own.into(), run: run.unwrap_or_default() }
    }

    /// `capture.<pid>-<n>.bin` for `capture.bin`, or `capture.2.<pid>-<n>.bin` if files of another run match that
    /// pattern.
    fn path(&self, child: NewChild) -> PathBuf {
        inserted(&self.own, &format!(".{}{}-{}", self.run, child.pid, child.number))
    }

    fn pattern(&self) -> String {
        let Self { own, run } = self;
        if is_device(own) {
            return quoted_path(own);
        }
        let stem = own.with_file_name(own.file_stem().unwrap_or_default());
        let suffix = own.extension().map(|suffix| format!(".{}", quoted(&suffix.to_string_lossy())));
        format!("{}.{run}*-*{}", quoted_path(&stem), suffix.unwrap_or_default())
    }
}

/// Whether the pattern of this run's children matches the name.
fn begins(name: &OsStr, own: &Path, run: &str) -> bool {
    let stem = own.file_stem().unwrap_or_default().as_bytes();
    name.as_bytes().starts_with(&[stem, b".", run.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::CaptureNames;
    use crate::child_captures::{inserted, matching};
    use memtrack_collector::NewChild;
    use std::path::Path;

    #[test]
    fn names() {
        assert_eq!(inserted(Path::new("d/capture.bin"), ".7-1"), Path::new("d/capture.7-1.bin"));
        assert_eq!(inserted(Path::new("memtrack-app.py.4.bin"), ".7-1"), Path::new("memtrack-app.py.4.7-1.bin"));
        assert_eq!(inserted(Path::new("capture"), ".7-1"), Path::new("capture.7-1"));
        assert_eq!(inserted(Path::new("/dev/null"), ".7-1"), Path::new("/dev/null"));
    }

    #[test]
    fn patterns_are_typed_as_a_shell_reads_them() {
        let pattern = |own: &str| CaptureNames::new(Path::new(own)).pattern();
        assert_eq!(pattern("capture.bin"), "capture.*-*.bin");
        assert_eq!(pattern("/no/where/my capture.bin"), "'/no/where/my capture'.*-*.bin");
        assert_eq!(pattern("/no/where/capture"), "/no/where/capture.*-*");
        assert_eq!(pattern("/dev/null"), "/dev/null");
    }

    #[test]
    fn what_exists_stays_and_is_not_matched() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("capture.bin");
        let child = NewChild { pid: 7, number: 1 };
        let mut made = Vec::new();
        for _ in 0..3 {
            let path = CaptureNames::new(&own).path(child);
            std::fs::write(&path, b"").unwrap();
            made.push(path);
        }
        let expected = ["capture.7-1.bin", "capture.2.7-1.bin", "capture.3.7-1.bin"];
        assert_eq!(made, expected.map(|name| directory.path().join(name)));
        assert_eq!(matching(&own).len(), 3);
        // Files of similar names that the pattern does not match do not count.
        let other = directory.path().join("other.bin");
        for name in ["other2.7-1.bin", "other.bin", "other.7.bin", "other.7-1.txt"] {
            std::fs::write(directory.path().join(name), b"").unwrap();
        }
        assert_eq!(CaptureNames::new(&other).path(child), directory.path().join("other.7-1.bin"));
    }
}
