//! From a module and an offset in it to functions, files and lines: the names of native frames, found at reading time.
//!
//! The way through: names that [stand in the capture](Symbolizer::know) come first; else [`DebugFileSearch`] finds the files that
//! belong to the module (`elf` opens them, `debuginfod` fetches them), `image` reads what names they hold (`table` for
//! symbols, DWARF for lines and inlined functions), and `demangle` makes them readable. Modules are opened once and
//! results kept; [`Symbolizer::prefetch`] does many modules side by side. Symbolizers that share a [`DebugFileSearch`] share what
//! it has `opened`.
//!
//! Invariant: a file names a module only if it has the build-id that was recorded, or is the very file where there was none,
//! so a name is never that of another version of the code; what has no name is called by module and offset, and [`Symbolizer::problems`] says why.

mod apply;
mod debuginfod;
mod demangle;
mod elf;
mod error;
mod image;
mod opened;
mod search;
mod table;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use memtrack_format::symbols::{ModuleSymbols, OffsetSymbols};
use rayon::prelude::{IntoParallelRefMutIterator, ParallelIterator};
use rustc_hash::FxHashMap;

pub(crate) use self::apply::{UNKNOWN, frames_of};
pub use self::apply::{apply, places};
pub use self::debuginfod::Debuginfod;
pub use self::search::DebugFileSearch;

use self::error::SymbolError;
use self::image::ModuleNames;
use crate::native::{ModuleSource, NativeModule};

/// A place in the source that an address stands for: the function that was called, or one that was inlined there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedSymbol {
    /// The function's name, demangled; `module+0xoffset` where none is known.
    pub function: Arc<str>,
    /// Its source file.
    pub file: Option<Arc<str>>,
    /// The line, from 1; 0 when not known.
    pub line: u32,
}

/// What a module's names are kept under: its path and its identity.
type ModuleKey = (Vec<u8>, Vec<u8>);

/// Finds names, and remembers them.
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
    /// Leaves the files to the next.
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
    /// Why there are none, for a person.
    pub reason: String,
}

impl Symbolizer {
    /// Looks for files in these places.
    #[must_use]
    pub fn new(search: DebugFileSearch) -> Self {
        Self { search: Some(search), modules: FxHashMap::default() }
    }

    /// Knows what it is told, and looks for no files.
    #[must_use]
    pub fn nowhere() -> Self {
        Self { search: None, modules: FxHashMap::default() }
    }

    /// Takes over names that were written into a capture. They are preferred to what files say now.
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

    /// What stands at this offset of the module, innermost first, inlined functions included; at least one.
    pub fn resolve(&mut self, module: &NativeModule, offset: u64) -> &[ResolvedSymbol] {
        let known = self.modules.entry(key(module)).or_default();
        if !known.names.contains_key(&offset) {
            known.find(module, self.search.as_ref(), &[offset]);
        }
        known.names.get(&offset).map_or(&[], |names| &names.symbols)
    }

    /// Finds the names of many offsets at once, one thread for each module; [`Symbolizer::resolve`] has them then.
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
        let search = self.search.as_ref();
        work.par_iter_mut().for_each(|(known, _, module, offsets)| known.find(module, search, offsets));
        self.modules.extend(work.into_iter().map(|(known, key, ..)| (key, known)));
    }

    /// Modules that were asked for and of which nothing could be named, by path.
    #[must_use]
    pub fn problems(&self) -> Vec<SymbolProblem> {
        let mut problems: Vec<_> = self.modules.iter().filter_map(|(key, module)| module.problem(&key.0)).collect();
        problems.sort_by(|a, b| a.module.cmp(&b.module));
        problems
    }

    /// Everything that was found by now or known before, in the form that a capture keeps.
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
    /// Nobody has looked for them.
    #[default]
    Unopened,
    /// They were found.
    Open(Box<ModuleNames>),
    /// There are none that can be used, because of this.
    None(SymbolError),
}

impl ResolvedModule {
    fn find(&mut self, module: &NativeModule, search: Option<&DebugFileSearch>, offsets: &[u64]) {
        for &offset in offsets {
            if self.names.contains_key(&offset) {
                continue;
            }
            let is_in_time = search.is_none_or(DebugFileSearch::has_time);
            if let (Files::Unopened, Some(search), true) = (&self.files, search, is_in_time)
                && search.has_time_to_open(module)
            {
                self.files = search.opened(module).unwrap_or_else(|| match ModuleNames::open(module, search) {
                    Ok(image) => Files::Open(Box::new(image)),
                    Err(reason) => Files::None(reason),
                });
            }
            let symbols = match &self.files {
                Files::Open(image) if is_in_time => image.symbols(offset),
                _ => Vec::new(),
            };
            let found = !symbols.is_empty();
            let unnamed = || ResolvedSymbol { function: module.place(offset).into(), file: None, line: 0 };
            let symbols = if found { symbols } else { vec![unnamed()] };
            self.names.insert(offset, AddressNames { symbols, found });
        }
    }

    fn problem(&self, path: &[u8]) -> Option<SymbolProblem> {
        let Files::None(reason) = &self.files else { return None };
        let module = String::from_utf8_lossy(path).into_owned();
        Some(SymbolProblem { module, reason: reason.to_string() })
    }

    fn named(&self, (path, build_id): &ModuleKey) -> ModuleSymbols {
        let found = self.names.iter().filter(|(_, names)| names.found);
        let mut places: Vec<_> = found.map(|(&offset, names)| place(offset, &names.symbols)).collect();
        places.sort_by_key(|place| place.offset);
        ModuleSymbols { path: path.clone(), build_id: build_id.clone(), places }
    }
}

fn key(module: &NativeModule) -> ModuleKey {
    // Of a mapped file without a build-id nothing is believed, whatever is known of one that was loaded from there.
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
