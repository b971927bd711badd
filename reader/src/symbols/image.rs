//! The names of one module: its symbol table, and its DWARF where there is any.
//!
//! Invariant: whatever the DWARF says, the answer for an address is bounded: at most [`DEEPEST`] inlined functions.

use std::fmt;
use std::sync::Arc;

use addr2line::Context;
use gimli::{EndianArcSlice, RunTimeEndian, SectionId};

use super::ResolvedSymbol;
use super::demangle::demangle;
use super::elf::{FileBytes, SymbolFile};
use super::error::SymbolError;
use super::search::DebugFileSearch;
use super::table::SymbolTable;
use crate::native::NativeModule;

/// Maximum number of functions at one address.
const DEEPEST: usize = 256;

type Slice = EndianArcSlice<RunTimeEndian>;
type Dwarf = gimli::Dwarf<Slice>;

/// The names in a module's files.
pub(super) struct ModuleNames {
    table: SymbolTable,
    dwarf: Option<Context<Slice>>,
    /// Why there is no more than what the module exports.
    only_exports: Option<SymbolError>,
}

impl fmt::Debug for ModuleNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("dwarf", &self.dwarf.is_some()).finish_non_exhaustive()
    }
}

impl ModuleNames {
    /// Finds and opens the module's files.
    /// Without `with_dwarf`: for the names of functions only.
    ///
    /// # Errors
    /// Why none can be used.
    pub(super) fn open(module: &NativeModule, search: &DebugFileSearch, with_dwarf: bool) -> Result<Self, SymbolError> {
        let main = search.own_file(module);
        let main_elf = main.as_ref().ok().and_then(|source| SymbolFile::parse(source).ok());
        let whole = main_elf.as_ref().is_some_and(SymbolFile::has_dwarf);
        let debug = (!whole).then(|| search.debug_file(module, main.as_ref().ok()));
        let debug_file = debug.as_ref().and_then(|debug| debug.as_ref().ok());
        let debug_elf = debug_file.and_then(|source| SymbolFile::parse(source).ok());
        let files: Vec<_> = [(debug_file, &debug_elf), (main.as_ref().ok(), &main_elf)]
            .into_iter()
            .filter_map(|(source, elf)| Some((source?, elf.as_ref()?)))
            .collect();
        let with_dwarf = files.iter().find(|(_, elf)| with_dwarf && elf.has_dwarf());
        let dwarf = with_dwarf.and_then(|(source, elf)| context(source, elf, search));
        let with_symbols = files.iter().find(|(_, elf)| elf.has_symbols());
        let table = with_symbols.or(files.last()).map(|(_, elf)| SymbolTable::read(elf)).unwrap_or_default();
        let has_more = with_symbols.is_some() || files.iter().any(|(_, elf)| elf.has_dwarf());
        let image = Self { table, dwarf, only_exports: None };
        match (image.is_empty(), main, debug) {
            (false, Ok(_), Some(Err(debug))) if !has_more => {
                Ok(Self { only_exports: Some(SymbolError::OnlyExports.and(debug)), ..image })
            }
            (false, ..) => Ok(image),
            (true, Err(own), Some(Err(debug))) => Err(own.and(debug)),
            (true, Ok(_), Some(Err(debug))) => Err(SymbolError::Stripped.and(debug)),
            (true, ..) => Err(SymbolError::NoNames),
        }
    }

    /// Why there is no more than what the module exports; `None` if there is more.
    pub(super) fn only_exports(&self) -> Option<&SymbolError> {
        self.only_exports.as_ref()
    }

    fn is_empty(&self) -> bool {
        self.table.is_empty() && self.dwarf.is_none()
    }

    /// The functions at this address of the file, innermost first; empty if unknown.
    pub(super) fn symbols(&self, address: u64) -> Vec<ResolvedSymbol> {
        if address == u64::MAX {
            return Vec::new(); // addr2line looks for what is before the address behind it
        }
        let mut symbols = self.dwarf.as_ref().map(|dwarf| frames(dwarf, address)).unwrap_or_default();
        match symbols.last_mut() {
            // Functions that DWARF does not name, as those in assembly, may stand in the table; those that no other file can call,
            // as lambdas, have only the last part of their name in DWARF.
            Some(outermost) => {
                if !is_qualified(&outermost.function)
                    && let Some(name) = self.name(address).filter(|name| is_more_of(name, &outermost.function))
                {
                    outermost.function = name;
                }
            }
            None => {
                let function = self.name(address);
                symbols.extend(function.map(|function| ResolvedSymbol { function, file: None, line: 0 }));
            }
        }
        symbols.retain(|symbol| !symbol.function.is_empty());
        symbols
    }

    /// The function at this address of the file by the symbol table alone, without inlined ones; empty when nothing is known.
    pub(super) fn function(&self, address: u64) -> Vec<ResolvedSymbol> {
        let symbol = |function| ResolvedSymbol { function, file: None, line: 0 };
        self.name(address).map(symbol).into_iter().collect()
    }

    fn name(&self, address: u64) -> Option<Arc<str>> {
        self.table.name(address).map(|raw| demangle(raw).into())
    }
}

/// Whether a name of the symbol table has this name of DWARF in it, behind the namespaces and classes that it lies in.
fn is_more_of(name: &str, part: &str) -> bool {
    // Both write template arguments in their own way.
    let part = without_arguments(part);
    part.is_empty()
        || name.match_indices(part).any(|(at, _)| name.get(..at).is_some_and(|before| before.ends_with("::")))
}

/// Whether a name has a namespace or a class.
fn is_qualified(name: &str) -> bool {
    without_arguments(name).contains("::")
}

/// A name up to its template arguments and parameters.
fn without_arguments(name: &str) -> &str {
    const CALL: &str = "operator()";
    if name.starts_with(CALL) {
        return CALL;
    }
    let ends: &[char] = if name.starts_with("operator") { &['('] } else { &['<', '('] };
    name.split(ends).next().unwrap_or(name)
}

/// The functions at an address; those that DWARF does not name have an empty name.
fn frames(dwarf: &Context<Slice>, address: u64) -> Vec<ResolvedSymbol> {
    let mut symbols = Vec::new();
    let Ok(mut frames) = dwarf.find_frames(address).skip_all_loads() else { return symbols };
    while let Ok(Some(frame)) = frames.next() {
        let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
        let location = frame.location.as_ref();
        symbols.push(ResolvedSymbol {
            function: name.map(|name| demangle(name.as_bytes())).unwrap_or_default().into(),
            file: location.and_then(|location| location.file).map(Arc::from),
            line: location.and_then(|location| location.line).unwrap_or(0),
        });
        if symbols.len() >= DEEPEST {
            break;
        }
    }
    symbols
}

/// The DWARF of a file; `None` when it cannot be read.
fn context(file: &FileBytes, elf: &SymbolFile<'_>, search: &DebugFileSearch) -> Option<Context<Slice>> {
    let mut dwarf = load(elf);
    if let Some((name, build_id)) = elf.alternate()
        && let Some(source) = search.alternate_file(file, name, build_id)
        && let Ok(shared) = SymbolFile::parse(&source)
    {
        dwarf.set_sup(load(&shared));
    }
    Context::from_dwarf(dwarf).ok()
}

fn load(elf: &SymbolFile<'_>) -> Dwarf {
    let endian = if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let section = |id: SectionId| {
        let bytes = if is_needed(id) { elf.debug_section(id.name()) } else { Arc::from([]) };
        Ok::<_, std::convert::Infallible>(Slice::new(bytes, endian))
    };
    match Dwarf::load(section) {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}

/// Whether functions and lines are found with the help of this section.
fn is_needed(section: SectionId) -> bool {
    use SectionId::{
        DebugAbbrev, DebugAddr, DebugAranges, DebugInfo, DebugLine, DebugLineStr, DebugRanges, DebugRngLists, DebugStr,
        DebugStrOffsets,
    };
    matches!(
        section,
        DebugAbbrev
            | DebugAddr
            | DebugAranges
            | DebugInfo
            | DebugLine
            | DebugLineStr
            | DebugRanges
            | DebugRngLists
            | DebugStr
            | DebugStrOffsets
    )
}
