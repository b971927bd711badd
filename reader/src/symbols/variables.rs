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
        // What the compiler adds to the name of a variable within a function.
        let plain = name.rsplit_once('.').filter(|(_, end)| end.bytes().all(|byte| byte.is_ascii_digit()));
        Some(VariablePlace { name: plain.map_or(name.as_str(), |(plain, _)| plain).to_owned(), offset })
    };
    addresses.iter().map(place).collect()
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
