//! A process that is to be used: looked at from outside, before it is touched.
//!
//! Invariant: what is found here is a refusal or facts; nothing in the process is changed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::denial::why_denied;
use crate::maps::Mappings;
use crate::memory::RemoteMemory;
use crate::object::{ObjectClass, RemoteObject, class_at};
use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;

/// Entries of the auxiliary vector.
const AT_ENTRY: u64 = 9;
const AT_PHDR: u64 = 3;
const AT_BASE: u64 = 7;

/// `dlopen`'s kinds.
const RTLD_NOW: u64 = 2;
/// What the loader's own function is told in place of the caller's check, before glibc 2.34.
const RTLD_DLOPEN: u64 = 0x8000_0000;

/// A process that passed the first checks.
#[derive(Debug)]
pub(crate) struct TargetProcess {
    pub(crate) pid: i32,
    pub(crate) facts: ProcessFacts,
    pub(crate) own: ProcessFacts,
    pub(crate) memory: RemoteMemory,
    /// The start of its executable's code, which has run and does not run again.
    pub(crate) entry: u64,
    /// The header of the loader, if the kernel loaded one.
    pub(crate) loader: Option<u64>,
}

/// The functions of the target's C library that load a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoaderFunctions {
    pub(crate) open: u64,
    pub(crate) mode: u64,
    /// Tells why it failed.
    pub(crate) error: Option<u64>,
    /// Unloads one.
    pub(crate) close: Option<u64>,
    /// The C library has them itself, and no library of their own is needed.
    pub(crate) in_libc: bool,
}

impl TargetProcess {
    /// Looks at the process.
    pub(crate) fn inspect(pid: i32) -> Result<Self, Refusal> {
        let own = ProcessFacts::read(std::process::id().cast_signed()).unwrap_or_default();
        let facts = ProcessFacts::read(pid).filter(|_| pid > 0).ok_or(Refusal::NoProcess)?;
        facts.check(&own)?;
        let denied = |error: io::Error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => why_denied(&facts, &own),
            Some(libc::ENOENT | libc::ESRCH) => Refusal::Gone,
            _ => Refusal::Own { what: "the process's memory cannot be opened", error },
        };
        let memory = RemoteMemory::open(pid).map_err(denied)?;
        // First, because the words of the vector have the program's size.
        if is_narrow(&format!("/proc/{pid}/exe")) {
            return Err(Refusal::Narrow);
        }
        let vector = fs::read(format!("/proc/{pid}/auxv")).map_err(denied)?;
        let value = |key| auxiliary(&vector, key);
        let target = Self {
            pid,
            entry: value(AT_ENTRY).ok_or(Refusal::Gone)?,
            loader: value(AT_BASE).filter(|base| *base != 0),
            memory,
            facts: facts.clone(),
            own,
        };
        if same_file(&format!("/proc/{pid}/exe"), "/proc/self/exe") {
            return Err(Refusal::Itself);
        }
        let mappings = target.mappings()?;
        let program = value(AT_PHDR).and_then(|headers| mappings.object_base(headers)).ok_or(Refusal::Gone)?;
        match class_at(&target.memory, program.start) {
            ObjectClass::Supported => {}
            ObjectClass::Narrow => return Err(Refusal::Narrow),
            ObjectClass::Other => return Err(target.unless_gone(Refusal::Architecture)),
        }
        if !mappings
            .iter()
            .any(|mapping| mapping.executable && mapping.start <= target.entry && target.entry < mapping.end)
        {
            return Err(Refusal::Gone);
        }
        Ok(target)
    }

    pub(crate) fn mappings(&self) -> Result<Mappings, Refusal> {
        let text = fs::read(format!("/proc/{}/maps", self.pid)).map_err(|_| Refusal::Gone)?;
        if text.is_empty() { Err(Refusal::Gone) } else { Ok(Mappings::parse(&text)) }
    }

    /// This, unless the process has ended since: then nothing of it could be read.
    pub(crate) fn unless_gone(&self, refusal: Refusal) -> Refusal {
        self.mappings().err().unwrap_or(refusal)
    }

    /// The process's threads.
    pub(crate) fn threads(&self) -> Vec<i32> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Whether the path is there in the root directory of the process.
    pub(crate) fn has_path(&self, path: &str) -> bool {
        fs::symlink_metadata(format!("/proc/{}/root{path}", self.pid)).is_ok()
    }

    /// How a library is loaded into it.
    pub(crate) fn loader_functions(&self, mappings: &Mappings) -> Result<LoaderFunctions, Refusal> {
        // Its names on Alpine; on Debian it is in a directory of that name.
        let is_musl = |path: &[u8]| {
            [&b"/ld-musl-"[..], b"/libc.musl-", b"-linux-musl/libc.so"].iter().any(|name| has(path, name))
        };
        if mappings.iter().any(|mapping| is_musl(&mapping.path)) {
            return Err(Refusal::Musl);
        }
        let mut oldest = None;
        let mut separate = None;
        for base in mappings.iter().filter(|mapping| mapping.offset == 0 && mapping.readable) {
            if !has(&base.path, b".so") && !has(&base.path, b"memfd:") || base.path.starts_with(b"[") {
                continue;
            }
            let Some(object) = RemoteObject::read(&self.memory, base.start) else { continue };
            let exports = object.exports(&self.memory);
            let [open, error, close] = [&b"dlopen"[..], b"dlerror", b"dlclose"].map(|name| exports.find(name));
            match (&*exports.soname, open) {
                (b"libc.so.6", Some(open)) => {
                    return Ok(LoaderFunctions { open, mode: RTLD_NOW, error, close, in_libc: true });
                }
                (b"libc.so.6", None) => {
                    let open = exports.find(b"__libc_dlopen_mode");
                    oldest = open.map(|open| LoaderFunctions {
                        open,
                        mode: RTLD_NOW | RTLD_DLOPEN,
                        error: None,
                        close: exports.find(b"__libc_dlclose"),
                        in_libc: false,
                    });
                }
                (b"libdl.so.2", Some(open)) => {
                    separate = Some(LoaderFunctions { open, mode: RTLD_NOW, error, close, in_libc: false });
                }
                _ => {}
            }
        }
        let none = if self.loader.is_none() { Refusal::Static } else { Refusal::NoLoader };
        separate.or(oldest).ok_or(none)
    }
}

fn has(path: &[u8], part: &[u8]) -> bool {
    path.windows(part.len()).any(|window| window == part)
}

/// Whether a file is a 32-bit ELF object.
fn is_narrow(path: &str) -> bool {
    let mut header = [0; 5];
    File::open(path).and_then(|mut file| file.read_exact(&mut header)).is_ok() && header == *b"\x7fELF\x01"
}

fn same_file(one: &str, other: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &str| fs::metadata(Path::new(path)).ok().map(|found| (found.dev(), found.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// An entry of the vector that the kernel hands to a program.
fn auxiliary(vector: &[u8], key: u64) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    let mut entries = vector.chunks_exact(16).filter_map(|entry| word(entry.get(..8)?).zip(word(entry.get(8..)?)));
    entries.find(|(known, _)| *known == key).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::{TargetProcess, auxiliary};
    use crate::refusal::Refusal;

    #[test]
    fn entries_are_found_by_key() {
        let vector: Vec<u8> = [3_u64, 30, 9, 90, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!((auxiliary(&vector, 9), auxiliary(&vector, 7)), (Some(90), None));
    }

    #[test]
    fn processes_that_are_none_are_refused() {
        assert!(matches!(TargetProcess::inspect(0), Err(Refusal::NoProcess)));
        assert!(matches!(TargetProcess::inspect(i32::MAX), Err(Refusal::NoProcess)));
        assert!(matches!(TargetProcess::inspect(std::process::id().cast_signed()), Err(Refusal::Itself)));
    }
}
