//! The static variables of a module, by address: from its symbol table, that of its debug file, or what it exports.
//!
//! Invariant: an address has a name only if it lies in the variable, by the size in the table.

use super::demangle::demangle;
use super::elf::SymbolFile;
use super::search::DebugFileSearch;
use super::table::SymbolTable;
use crate::native::NativeModule;

/// A place in a static variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariablePlace {
    /// The variable's name, as people write it.
    pub name: String,
    /// Bytes from its begin.
    pub offset: u64,
}

/// The variables at these addresses of the module's file.
#[must_use]
pub fn variables(search: &DebugFileSearch, module: &NativeModule, addresses: &[u64]) -> Vec<Option<VariablePlace>> {
    let table = table_of(search, module);
    let place = |address: &u64| {
        let (name, offset) = table.place(*address)?;
        let name = demangle(name);
        Some(VariablePlace { name: as_in_source(&name).to_owned(), offset })
    };
    addresses.iter().map(place).collect()
}

/// A name without what compilers add: to variables of a function (`cache.0`), and to those of a file when they link several as one
/// (`cache.lto_priv.0`).
fn as_in_source(name: &str) -> &str {
    let name = name.split_once(" [clone ").map_or(name, |(name, _)| name);
    let name = name.split_once(".lto_priv").map_or(name, |(name, _)| name);
    let numbered = name.rsplit_once('.').filter(|(_, end)| end.bytes().all(|byte| byte.is_ascii_digit()));
    numbered.map_or(name, |(name, _)| name)
}

/// The first table that has more than what the module exports, else that of what it exports.
fn table_of(search: &DebugFileSearch, module: &NativeModule) -> SymbolTable {
    let main = search.own_file(module);
    let main_elf = main.as_ref().ok().and_then(|source| SymbolFile::parse(source).ok());
    if let Some(elf) = main_elf.as_ref().filter(|elf| elf.has_symbols()) {
        return SymbolTable::of_variables(elf);
    }
    let debug = search.debug_file(module, main.as_ref().ok()).ok();
    let debug_elf = debug.as_ref().and_then(|source| SymbolFile::parse(source).ok());
    let best = debug_elf.as_ref().filter(|elf| elf.has_symbols()).or(main_elf.as_ref());
    best.map(SymbolTable::of_variables).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::as_in_source;

    #[test]
    fn names_are_those_of_the_source() {
        let named = ["cache", "cache.12", "cache.lto_priv.0", "cache [clone .lto_priv.0]", "cache.3.lto_priv.1"];
        assert!(named.into_iter().all(|name| as_in_source(name) == "cache"));
        assert_eq!(as_in_source("app::CACHE"), "app::CACHE");
        assert_eq!(as_in_source("_ZGVZ1fvE1a.b"), "_ZGVZ1fvE1a.b");
    }
}
