//! Symbolizes native frames: finds function, file and line of an offset in a module.
//!
//! Names that are [stored in the capture](Symbolizer::know) come first. Else [`DebugFileSearch`] finds the files of the
//! module (`elf` opens them, also in another `root`, `debuginfod` downloads them), `image` reads their names (`table`: symbols; DWARF: lines
//! and inlined functions), and `demangle` makes them readable. Modules are opened once and results are cached;
//! [`Symbolizer::prefetch`] processes modules in parallel. Symbolizers that share a [`DebugFileSearch`] share the files
//! that are `opened`.
//!
//! Invariant: a file is used for a module only if it has the recorded build-id, or is the very same file if there was
//! none, so a name is never that of another version of the code. A frame without a name is shown as module and offset,
//! and [`Symbolizer::problems`] has the reason.

mod apply;
mod debuginfod;
mod demangle;
mod elf;
mod error;
mod hex;
mod image;
mod opened;
mod root;
mod search;
mod table;
mod variables;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use memtrack_format::symbols::{ModuleSymbols, OffsetSymbols};
use rayon::prelude::{IntoParallelRefMutIterator, ParallelIterator};
use rustc_hash::FxHashMap;

pub(crate) use self::apply::{UNKNOWN, frames_of};
pub use self::apply::{apply, places};
pub use self::debuginfod::Debuginfod;
pub use self::root::FileRoot;
use self::search::TimeLeft;
pub use self::search::{DebugFileSearch, ProcessorTime};
pub use self::variables::{VariablePlace, variables};

use self::error::SymbolError;
use self::image::ModuleNames;
use crate::decode_threads;
use crate::native::{ModuleSource, NativeModule};

/// A function at an address: the called one, or one that was inlined there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedSymbol {
    /// The function's name, demangled; `module+0xoffset` where none is known.
    pub function: Arc<str>,
    /// Its source file.
    pub file: Option<Arc<str>>,
    /// The line, from 1; 0 when not known.
    pub line: u32,
}

/// The key of a module: its path and its identity.
type ModuleKey = (Vec<u8>, Vec<u8>);

/// Finds names, and caches them.
#[derive(Debug)]
pub struct Symbolizer {
    /// `None`: there are no files to look for.
    search: Option<DebugFileSearch>,
    modules: FxHashMap<ModuleKey, ResolvedModule>,
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new(DebugFileSearch::default())
    }
}

impl Drop for Symbolizer {
    /// Passes the open files on to the next symbolizer.
    fn drop(&mut self) {
        let Some(search) = &self.search else { return };
        for ((path, build_id), module) in self.modules.drain() {
            if !matches!(module.files, Files::Unopened) {
                search.leave((path, build_id), module.files);
            }
        }
    }
}

/// Offsets of one module that are wanted.
#[derive(Clone, Debug)]
pub struct WantedOffsets {
    /// The module.
    pub module: NativeModule,
    /// Offsets in it, in any order; repeated ones cost nothing.
    pub offsets: Vec<u64>,
}

/// A module without names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolProblem {
    /// Path of the module.
    pub module: String,
    /// The reason, in words.
    pub reason: String,
    /// The module exports functions, but none of them is asked for: usual of libraries, which are stripped mostly.
    pub exports_others: bool,
}

impl Symbolizer {
    /// Looks for files in these places.
    #[must_use]
    pub fn new(search: DebugFileSearch) -> Self {
        Self { search: Some(search), modules: FxHashMap::default() }
    }

    /// Uses stored names only.
    #[must_use]
    pub fn nowhere() -> Self {
        Self { search: None, modules: FxHashMap::default() }
    }

    /// Adds names that are stored in the capture. They take precedence over files.
    pub fn know(&mut self, names: &[ModuleSymbols]) {
        for named in names {
            let module = self.modules.entry((named.path.clone(), named.build_id.clone())).or_default();
            for place in &named.places {
                let symbols = place.symbols.iter().map(ResolvedSymbol::from).collect::<Vec<_>>();
                if !symbols.is_empty() {
                    module.names.insert(place.offset, AddressNames { symbols, found: true });
                }
            }
        }
    }

    /// The functions at this offset of the module, innermost first, inlined ones included; at least one.
    pub fn resolve(&mut self, module: &NativeModule, offset: u64) -> &[ResolvedSymbol] {
        let known = self.modules.entry(key(module)).or_default();
        if !known.names.contains_key(&offset) {
            known.find(module, self.search.as_ref(), &[offset]);
        }
        known.names.get(&offset).map_or(&[], |names| &names.symbols)
    }

    /// Looks up many offsets, one thread per module; [`Symbolizer::resolve`] then returns them from the cache.
    pub fn prefetch(&mut self, wanted: &[WantedOffsets]) {
        let mut by_module: FxHashMap<ModuleKey, (&NativeModule, Vec<u64>)> = FxHashMap::default();
        for one in wanted {
            let (_, offsets) = by_module.entry(key(&one.module)).or_insert_with(|| (&one.module, Vec::new()));
            offsets.extend_from_slice(&one.offsets);
        }
        let mut work: Vec<_> = by_module
            .into_iter()
            .map(|(key, (module, offsets))| (self.modules.remove(&key).unwrap_or_default(), key, module, offsets))
            .collect();
        decode_threads::start();
        let search = self.search.as_ref();
        work.par_iter_mut().for_each(|(known, _, module, offsets)| known.find(module, search, offsets));
        self.modules.extend(work.into_iter().map(|(known, key, ..)| (key, known)));
    }

    /// Modules without any names, by path.
    #[must_use]
    pub fn problems(&self) -> Vec<SymbolProblem> {
        let mut problems: Vec<_> = self.modules.iter().filter_map(|(key, module)| module.problem(&key.0)).collect();
        problems.sort_by(|a, b| a.module.cmp(&b.module));
        problems
    }

    /// All names that are known, in the form in which a capture stores them.
    #[must_use]
    pub fn named(&self) -> Vec<ModuleSymbols> {
        let mut named: Vec<_> = self.modules.iter().map(|(key, module)| module.named(key)).collect();
        named.retain(|named| !named.places.is_empty());
        named.sort_by(|a, b| (&a.path, &a.build_id).cmp(&(&b.path, &b.build_id)));
        named
    }
}

/// What is known of one module.
#[derive(Debug, Default)]
struct ResolvedModule {
    names: FxHashMap<u64, AddressNames>,
    files: Files,
}

/// The names of one place.
#[derive(Debug)]
struct AddressNames {
    symbols: Vec<ResolvedSymbol>,
    /// Whether they are more than the module and the offset.
    found: bool,
}

/// The files of a module.
#[derive(Debug, Default)]
enum Files {
    /// Not searched yet.
    #[default]
    Unopened,
    /// They were found.
    Open(Box<ModuleNames>),
    /// None can be used, for this reason.
    None(SymbolError),
}

impl ResolvedModule {
    fn find(&mut self, module: &NativeModule, search: Option<&DebugFileSearch>, offsets: &[u64]) {
        for &offset in offsets {
            if self.names.contains_key(&offset) {
                continue;
            }
            let time = search.map_or(TimeLeft::Whole, DebugFileSearch::time_left);
            if let (Files::Unopened, Some(search)) = (&self.files, search)
                && time != TimeLeft::Nothing
                && let left @ (TimeLeft::Whole | TimeLeft::Brief) = search.time_left_to_open(module)
            {
                let open = || match ModuleNames::open(module, search, left == TimeLeft::Whole) {
                    Ok(image) => Files::Open(Box::new(image)),
                    Err(reason) => Files::None(reason),
                };
                self.files = search.opened(module).unwrap_or_else(open);
            }
            let symbols = match (&self.files, time) {
                (Files::Open(image), TimeLeft::Whole) => image.symbols(offset),
                (Files::Open(image), TimeLeft::Brief) => image.function(offset),
                _ => Vec::new(),
            };
            let found = !symbols.is_empty();
            let unnamed = || ResolvedSymbol { function: module.place(offset).into(), file: None, line: 0 };
            let symbols = if found { symbols } else { vec![unnamed()] };
            self.names.insert(offset, AddressNames { symbols, found });
        }
    }

    fn problem(&self, path: &[u8]) -> Option<SymbolProblem> {
        let (reason, exports_others) = match &self.files {
            Files::None(reason) => (reason, false),
            Files::Open(image) if !self.names.values().any(|names| names.found) => (image.only_exports()?, true),
            Files::Open(_) | Files::Unopened => return None,
        };
        let module = String::from_utf8_lossy(path).into_owned();
        Some(SymbolProblem { module, reason: reason.to_string(), exports_others })
    }

    fn named(&self, (path, build_id): &ModuleKey) -> ModuleSymbols {
        let found = self.names.iter().filter(|(_, names)| names.found);
        let mut places: Vec<_> = found.map(|(&offset, names)| place(offset, &names.symbols)).collect();
        places.sort_by_key(|place| place.offset);
        ModuleSymbols { path: path.clone(), build_id: build_id.clone(), places }
    }
}

fn key(module: &NativeModule) -> ModuleKey {
    // The file of a mapping without a build-id is never trusted, even if the same path was loaded by the loader.
    let unproven = module.source == ModuleSource::Maps && module.build_id.is_empty();
    (module.path.clone(), if unproven { vec![0] } else { module.identity() })
}

fn place(offset: u64, symbols: &[ResolvedSymbol]) -> OffsetSymbols {
    let symbols = symbols.iter().map(|symbol| memtrack_format::symbols::Symbol {
        function: Arc::clone(&symbol.function),
        file: symbol.file.clone().unwrap_or_else(|| Arc::from("")),
        line: symbol.line,
    });
    OffsetSymbols { offset, symbols: symbols.collect() }
}

impl From<&memtrack_format::symbols::Symbol> for ResolvedSymbol {
    fn from(known: &memtrack_format::symbols::Symbol) -> Self {
        let file = (!known.file.is_empty()).then(|| Arc::clone(&known.file));
        Self { function: Arc::clone(&known.function), file, line: known.line }
    }
}
