//! Finds the files of a module: its own, its separate debug file, and the file that debug files share.
//!
//! Invariant: a file is used only if it is proven to belong: by the recorded build-id; without one, by the file stamp
//! of the module's own file, and for a debug file by the checksum in the link to it. It is used by its name alone only
//! for captures of versions that recorded neither.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crc32fast::hash as crc32;

use super::debuginfod::Debuginfod;
use super::elf::{FileBytes, SymbolFile};
use super::error::SymbolError;
use super::hex::hex;
use super::opened::Opened;
use super::root::FileRoot;
use super::{Files, ModuleKey, key};
use crate::native::{self, NativeModule};

/// Where distributions put debug files.
const SYSTEM: &str = "/usr/lib/debug";
/// What the kernel appends to the path of a deleted file.
const GONE: &[u8] = b" (deleted)";
/// The largest debug file whose checksum is computed, in bytes.
const LARGEST_CHECKED: u64 = 2 << 30;

/// The largest file that is opened under a time limit, in bytes, since opening cannot be interrupted.
const LARGEST_IN_TIME: u64 = 1 << 30;

/// At least this part of the time that passes counts where work is counted: who waits for a disk, or for a processor, does not
/// wait for ever.
const WAITED_PART: u32 = 4;

/// Where files are looked for.
#[derive(Clone, Debug)]
pub struct DebugFileSearch {
    debug_dirs: Vec<PathBuf>,
    /// Roots in which modules have the paths that were recorded.
    roots: Vec<Arc<dyn FileRoot>>,
    /// Whether one of them had a file.
    used_root: Arc<AtomicBool>,
    debuginfod: Option<Arc<Debuginfod>>,
    opened: Opened,
    limit: Option<Arc<TimeLimit>>,
}

/// The time limits for looking up names.
#[derive(Debug)]
struct TimeLimit {
    /// For names with their lines and inlined functions.
    whole: Duration,
    /// For names of functions only, which take less.
    most: Duration,
    /// Since when they count.
    begun: Arc<OnceLock<Instant>>,
    /// They count from the first look-up on; else somebody says when.
    from_first: bool,
    /// Tells the work that was done, where a machine that lets it wait is not to use the time up.
    work: Option<WorkClock>,
    is_brief: AtomicBool,
    is_over: AtomicBool,
    /// Whether the cause is a file that is too large, not the time.
    is_too_large: AtomicBool,
}

/// The work of this process since the first look-up.
#[derive(Debug)]
struct WorkClock {
    processor_time: ProcessorTime,
    begun: OnceLock<Option<Duration>>,
}

/// Tells the processor time of this process; `None` where that cannot be told, and so all that passes counts.
pub type ProcessorTime = fn() -> Option<Duration>;

/// What there is time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeLeft {
    /// Names with their lines and inlined functions.
    Whole,
    /// Names of functions.
    Brief,
    Nothing,
}

impl TimeLimit {
    /// `begun`: says since when they count; else that is the first look-up.
    fn new([whole, most]: [Duration; 2], begun: Option<Arc<OnceLock<Instant>>>) -> Self {
        let [is_brief, is_over, is_too_large] = [false; 3].map(AtomicBool::new);
        let from_first = begun.is_none();
        Self { whole, most, begun: begun.unwrap_or_default(), from_first, work: None, is_brief, is_over, is_too_large }
    }

    /// The time that has been used; `None`: it does not count yet.
    fn used(&self) -> Option<Duration> {
        let work = self.work.as_ref();
        let begun = work.and_then(|work| *work.begun.get_or_init(work.processor_time));
        if self.from_first {
            self.begun.get_or_init(Instant::now);
        }
        let passed = self.begun.get()?.elapsed();
        if passed < self.whole.min(self.most) {
            // No more was used, however much was done.
            return Some(passed);
        }
        let now = work.and_then(|work| (work.processor_time)());
        let done = begun.zip(now).map(|(begun, now)| now.saturating_sub(begun));
        Some(done.map_or(passed, |done| counted(passed, done)))
    }
}

/// What counts of the time that has passed: that in which something was done, by one thread or several.
fn counted(passed: Duration, done: Duration) -> Duration {
    done.max(passed / WAITED_PART).min(passed)
}

impl Default for DebugFileSearch {
    /// The system's directories, and the servers in the environment.
    fn default() -> Self {
        Self::new(&[], Debuginfod::from_environment())
    }
}

impl DebugFileSearch {
    /// These directories first, each laid out like `/usr/lib/debug`, then that one, then the servers.
    #[must_use]
    pub fn new(debug_dirs: &[PathBuf], debuginfod: Option<Debuginfod>) -> Self {
        let mut debug_dirs = debug_dirs.to_vec();
        debug_dirs.push(SYSTEM.into());
        Self {
            debug_dirs,
            roots: Vec::new(),
            used_root: Arc::default(),
            debuginfod: debuginfod.map(Arc::new),
            opened: Opened::default(),
            limit: None,
        }
    }

    /// Looks for what is not found on this machine in this root, too.
    #[must_use]
    pub fn with_root(mut self, root: Arc<dyn FileRoot>) -> Self {
        self.roots.push(root);
        self
    }

    /// Whether a file of another root was used.
    #[must_use]
    pub fn used_root(&self) -> bool {
        self.used_root.load(Relaxed)
    }

    /// What is found in the first root that has it.
    fn in_roots(&self, find: impl FnMut(&Arc<dyn FileRoot>) -> Option<FileBytes>) -> Option<FileBytes> {
        let found = self.roots.iter().find_map(find);
        if found.is_some() {
            self.used_root.store(true, Relaxed);
        }
        found
    }

    /// Searches on this machine only, for this long with lines and inlined functions, and for this long at all: what is not
    /// found by then has no name. Clones share the limits. They are of the time that this process has a processor, of which a
    /// fourth of what passes counts at least: so a machine with much else to do leaves no names out. `None`: all that passes counts.
    #[must_use]
    pub fn limited(whole: Duration, most: Duration, processor_time: Option<ProcessorTime>) -> Self {
        let work = processor_time.map(|processor_time| WorkClock { processor_time, begun: OnceLock::new() });
        let limit = TimeLimit { work, ..TimeLimit::new([whole, most], None) };
        Self { limit: Some(Arc::new(limit)), ..Self::new(&[], None) }
    }

    /// Limits of the time that passes from the moment on that somebody sets, with the servers until then.
    #[must_use]
    pub fn limited_from(self, moment: Arc<OnceLock<Instant>>, whole: Duration, most: Duration) -> Self {
        Self { limit: Some(Arc::new(TimeLimit::new([whole, most], Some(moment)))), ..self }
    }

    /// Whether the time that is left is limited by now.
    fn is_limited(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.begun.get().is_some())
    }

    /// Whether the time limit was reached before all names were found.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.is_over.load(Relaxed))
    }

    /// Whether a file was left out that is too large to be read within the limits.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.is_too_large.load(Relaxed))
    }

    /// Whether some names were looked up without lines and inlined functions.
    #[must_use]
    pub fn is_brief(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.is_brief.load(Relaxed))
    }

    /// What there is time left for, to look up a name.
    pub(super) fn time_left(&self) -> TimeLeft {
        let Some(limit) = &self.limit else { return TimeLeft::Whole };
        let Some(used) = limit.used() else { return TimeLeft::Whole };
        if self.is_over() || used >= limit.most {
            limit.is_over.store(true, Relaxed);
            TimeLeft::Nothing
        } else if used >= limit.whole {
            limit.is_brief.store(true, Relaxed);
            TimeLeft::Brief
        } else {
            TimeLeft::Whole
        }
    }

    /// The same, to open the files of a module, judged by the size of its own file.
    pub(super) fn time_left_to_open(&self, module: &NativeModule) -> TimeLeft {
        let is_large = || {
            let path = Path::new(OsStr::from_bytes(&module.path));
            fs::metadata(path).is_ok_and(|file| file.len() > LARGEST_IN_TIME)
        };
        match &self.limit {
            Some(limit) if self.is_limited() && is_large() => {
                limit.is_too_large.store(true, Relaxed);
                limit.is_over.store(true, Relaxed);
                TimeLeft::Nothing
            }
            _ => self.time_left(),
        }
    }

    /// Files of a module that another symbolizer has opened.
    pub(super) fn opened(&self, module: &NativeModule) -> Option<Files> {
        if module.build_id.is_empty() { None } else { self.opened.take(&key(module)) }
    }

    /// Pools a module's files; those of a module without a build-id are closed.
    pub(super) fn leave(&self, key: ModuleKey, files: Files) {
        // A build-id has more bytes than what stands for none.
        if key.1.len() > 1 {
            self.opened.put(key, files);
        }
    }

    /// The module's debug file, or another copy of the module itself; `main` is its own file, where that can be used.
    pub(super) fn debug_file(&self, module: &NativeModule, main: Option<&FileBytes>) -> Result<FileBytes, SymbolError> {
        if let Some(found) = self.by_build_id(&module.build_id) {
            return Ok(found);
        }
        if let Some(found) = main.and_then(|main| self.by_link(module, main)) {
            return Ok(found);
        }
        let servers = self.debuginfod.as_ref().filter(|_| !self.is_limited());
        let (Some(servers), false) = (servers, module.build_id.is_empty()) else {
            return Err(SymbolError::NoDebugFile);
        };
        let path = servers.fetch(&module.build_id).map_err(|error| SymbolError::NoDebugFile.and(error))?;
        with_build_id(None, &path, &module.build_id).map_err(|error| SymbolError::FromServer(Box::new(error)))
    }

    /// The module's own file, if it is the one that was recorded.
    pub(super) fn own_file(&self, module: &NativeModule) -> Result<FileBytes, SymbolError> {
        let path = check_path(module)?;
        own_file_in(None, module).or_else(|reason| {
            let found = self.in_roots(|root| own_file_in(Some(root), module).ok().filter(|_| path.is_absolute()));
            found.ok_or(reason)
        })
    }

    /// The file that debug information of this file refers to.
    pub(super) fn alternate_file(&self, file: &FileBytes, name: &[u8], build_id: &[u8]) -> Option<FileBytes> {
        let name = OsStr::from_bytes(name);
        // Relative names are relative to the real file, not to a link to it.
        let named = match file.root() {
            Some(_) => file.path().parent()?.join(name),
            None => fs::canonicalize(file.path()).ok()?.parent()?.join(name),
        };
        with_build_id(file.root(), &named, build_id).ok().or_else(|| self.by_build_id(build_id))
    }

    fn by_build_id(&self, build_id: &[u8]) -> Option<FileBytes> {
        let (first, rest) = build_id.split_first().filter(|(_, rest)| !rest.is_empty())?;
        let rest = hex(rest);
        let candidates = |dir: &Path| {
            let dir = dir.join(".build-id").join(hex(&[*first]));
            [dir.join(format!("{rest}.debug")), dir.join(&rest)]
        };
        let find = |root: Option<&Arc<dyn FileRoot>>, dir: &Path| {
            candidates(dir).into_iter().find_map(|path| with_build_id(root, &path, build_id).ok())
        };
        let here = self.debug_dirs.iter().find_map(|dir| find(None, dir));
        here.or_else(|| self.in_roots(|root| find(Some(root), Path::new(SYSTEM))))
    }

    /// The debug file that the module's own file names, beside it or in a debug directory.
    fn by_link(&self, module: &NativeModule, main: &FileBytes) -> Option<FileBytes> {
        let elf = SymbolFile::parse(main).ok()?;
        let (name, checksum) = elf.debug_link()?;
        if name.is_empty() || name.contains(&b'/') || name == b".." {
            return None;
        }
        let name = OsStr::from_bytes(name);
        let dir = main.path().parent()?;
        let below = dir.strip_prefix("/").unwrap_or(dir);
        let nearby = [dir.join(name), dir.join(".debug").join(name)];
        if let root @ Some(_) = main.root() {
            let candidates = nearby.into_iter().chain([Path::new(SYSTEM).join(below).join(name)]);
            let build_id = Some(&module.build_id).filter(|build_id| !build_id.is_empty())?;
            return candidates
                .filter(|path| path != main.path())
                .find_map(|path| with_build_id(root, &path, build_id).ok());
        }
        let candidates = nearby.into_iter().chain(self.debug_dirs.iter().map(|debug| debug.join(below).join(name)));
        candidates.filter(|path| path != main.path()).find_map(|path| linked(&path, &module.build_id, checksum))
    }
}

/// The module's path, if it can lead to its file.
fn check_path(module: &NativeModule) -> Result<&Path, SymbolError> {
    if module.path.is_empty() {
        return Err(SymbolError::NoPath);
    }
    let path = Path::new(OsStr::from_bytes(&module.path));
    if !path.is_absolute() && module.build_id.is_empty() {
        return Err(SymbolError::RelativePath);
    }
    // The file at a mapping's path need not be the mapped one.
    if module.source == native::ModuleSource::Maps && module.build_id.is_empty() {
        return Err(SymbolError::Unidentified);
    }
    Ok(path)
}

/// The module's own file in this root, if it is the one that was recorded.
fn own_file_in(root: Option<&Arc<dyn FileRoot>>, module: &NativeModule) -> Result<FileBytes, SymbolError> {
    let path = Path::new(OsStr::from_bytes(&module.path));
    let own = with_build_id(root, path, &module.build_id).or_else(|reason| without_mark(root, module).ok_or(reason))?;
    match module.stamp {
        Some(recorded) if own.stamp() != recorded => Err(SymbolError::Changed),
        // Without a build-id nothing tells a file of another root from the one that was recorded.
        None if root.is_some() && module.build_id.is_empty() => Err(SymbolError::Unidentified),
        _ => Ok(own),
    }
}

/// For a deleted file: another copy of the same build at its path.
fn without_mark(root: Option<&Arc<dyn FileRoot>>, module: &NativeModule) -> Option<FileBytes> {
    let path = module.path.strip_suffix(GONE).filter(|_| !module.build_id.is_empty())?;
    with_build_id(root, Path::new(OsStr::from_bytes(path)), &module.build_id).ok()
}

/// The file, if it has this build-id.
fn with_build_id(root: Option<&Arc<dyn FileRoot>>, path: &Path, build_id: &[u8]) -> Result<FileBytes, SymbolError> {
    let source = FileBytes::open(root, path)?;
    let found = SymbolFile::parse(&source)?.build_id();
    if build_id != found {
        return Err(SymbolError::OtherBuild { expected: build_id.to_vec(), found: found.to_vec() });
    }
    Ok(source)
}

/// The debug file, if it is the one that is linked to.
fn linked(path: &Path, build_id: &[u8], checksum: u32) -> Option<FileBytes> {
    let source = FileBytes::open(None, path).ok()?;
    let own = SymbolFile::parse(&source).ok()?.build_id().to_vec();
    let belongs = if own.is_empty() || build_id.is_empty() {
        let small = fs::metadata(path).is_ok_and(|metadata| metadata.len() <= LARGEST_CHECKED);
        small && fs::read(path).is_ok_and(|bytes| crc32(&bytes) == checksum)
    } else {
        own == build_id
    };
    belongs.then_some(source)
}
