//! The captures of the children of a program, where they are recorded: one for each process, beside the program's own.
//!
//! Invariant: a name has the child's number in the tree in it, so that a process id that is used again overwrites nothing.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memtrack_collector::{NewChild, OpenSink};

use super::{Form, sink};
use crate::output::CaptureFile;

/// The captures that were made.
#[derive(Clone, Debug, Default)]
pub(super) struct Children(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    named: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The program's own capture, once its name is known.
    own: Option<PathBuf>,
    captures: Vec<(u32, CaptureFile)>,
}

impl Children {
    /// Gives each child a file of its own, beside the program's.
    pub(super) fn opener(&self, form: Form, force: bool) -> OpenSink {
        let shared = Arc::clone(&self.0);
        Box::new(move |child| {
            let own = shared.own();
            let (capture, file) = open(&own, child, force).map_err(|error| io::Error::other(format!("{error:#}")))?;
            let sink = sink(form, file)?;
            shared.lock().captures.push((child.number, capture));
            Ok(sink)
        })
    }

    /// The program's own capture has this name; nothing is opened before it is known.
    pub(super) fn name(&self, own: &Path) {
        self.0.lock().own = Some(own.into());
        self.0.named.notify_all();
    }

    /// Takes out the capture of the child with this number in the tree.
    pub(super) fn take(&self, number: u32) -> Option<CaptureFile> {
        let captures = &mut self.0.lock().captures;
        let place = captures.iter().position(|(known, _)| *known == number)?;
        Some(captures.swap_remove(place).1)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own(&self) -> PathBuf {
        let mut state = self.lock();
        loop {
            match &state.own {
                Some(path) => return path.clone(),
                None => state = self.named.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Opens `capture.<pid>-<n>.bin` for `capture.bin`, or one with a further number where that exists and is to stay.
fn open(own: &Path, child: NewChild, force: bool) -> anyhow::Result<(CaptureFile, std::fs::File)> {
    let mut path = beside(own, &format!(".{}-{}", child.pid, child.number));
    for further in 2.. {
        if force || !path.is_file() {
            break;
        }
        path = beside(own, &format!(".{}-{}-{further}", child.pid, child.number));
    }
    CaptureFile::named(&path, force)
}

/// `path` with `insert` before its suffix; a device stays itself.
fn beside(path: &Path, insert: &str) -> PathBuf {
    if path.exists() && !path.is_file() {
        return path.into();
    }
    let mut name = OsString::from(path.file_stem().unwrap_or_default());
    name.push(insert);
    if let Some(suffix) = path.extension() {
        name.push(".");
        name.push(suffix);
    }
    path.with_file_name(name)
}

/// What a shell makes the captures of the children of; nothing else that stands beside them, such as `capture2.bin`.
pub(super) fn pattern(own: &Path) -> PathBuf {
    beside(own, ".*-*")
}

#[cfg(test)]
mod tests {
    use super::{beside, open, pattern};
    use memtrack_collector::NewChild;
    use std::path::Path;

    #[test]
    fn names() {
        assert_eq!(beside(Path::new("d/capture.bin"), ".7-1"), Path::new("d/capture.7-1.bin"));
        assert_eq!(beside(Path::new("memtrack-app.py.4.bin"), ".7-1"), Path::new("memtrack-app.py.4.7-1.bin"));
        assert_eq!(beside(Path::new("capture"), ".7-1"), Path::new("capture.7-1"));
        assert_eq!(beside(Path::new("/dev/null"), ".7-1"), Path::new("/dev/null"));
        assert_eq!(pattern(Path::new("capture.bin")), Path::new("capture.*-*.bin"));
    }

    #[test]
    fn what_exists_stays() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("capture.bin");
        let child = NewChild { pid: 7, number: 1 };
        let paths = [false, false, true].map(|force| open(&own, child, force).unwrap().0.path().to_owned());
        let expected = ["capture.7-1.bin", "capture.7-1-2.bin", "capture.7-1.bin"];
        assert_eq!(paths, expected.map(|name| directory.path().join(name)));
    }
}
