//! The functions or the variables of a symbol table, by address.
//!
//! Invariant: an address has a name only if it lies in what the symbol names: between its start and its end in the table or, for
//! symbols without a size, the start of the next one.

use super::elf::{Raw, SymbolFile};

/// Symbols, sorted by address, no two at the same.
#[derive(Debug, Default)]
pub(super) struct SymbolTable {
    symbols: Vec<TableSymbol>,
    names: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct TableSymbol {
    start: u64,
    end: u64,
    /// Into `names`.
    name: u32,
    name_len: u32,
}

impl SymbolTable {
    /// The functions of the file's symbol table, or of what it exports where it has no other.
    pub(super) fn read(elf: &SymbolFile<'_>) -> Self {
        Self::new(elf.functions())
    }

    /// The variables of the same.
    pub(super) fn of_variables(elf: &SymbolFile<'_>) -> Self {
        Self::new(elf.variables())
    }

    fn new(mut raw: Vec<Raw<'_>>) -> Self {
        // Of several names of one address, the public and plainest one.
        let underscores = |name: &[u8]| name.iter().take_while(|&&byte| byte == b'_').count();
        raw.sort_by_key(|one| (one.address, one.size == 0, one.local, underscores(one.name), one.name.len(), one.name));
        raw.dedup_by_key(|one| one.address);
        let mut table = Self::default();
        for (at, one) in raw.iter().enumerate() {
            let next = raw.get(at + 1).map_or(u64::MAX, |next| next.address);
            let end = if one.size == 0 { next } else { one.address.saturating_add(one.size) };
            let (Ok(name), Ok(name_len)) = (u32::try_from(table.names.len()), u32::try_from(one.name.len())) else {
                break; // 4 GB of names
            };
            table.names.extend_from_slice(one.name);
            table.symbols.push(TableSymbol { start: one.address, end, name, name_len });
        }
        table
    }

    pub(super) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The name, as it stands in the file, of the symbol that this address is in.
    pub(super) fn name(&self, address: u64) -> Option<&[u8]> {
        self.place(address).map(|(name, _)| name)
    }

    /// The same, with the bytes from the symbol's start.
    pub(super) fn place(&self, address: u64) -> Option<(&[u8], u64)> {
        let at = self.symbols.partition_point(|symbol| symbol.start <= address).checked_sub(1)?;
        let symbol = self.symbols.get(at).filter(|symbol| address < symbol.end)?;
        let (start, len) = (symbol.name as usize, symbol.name_len as usize);
        Some((self.names.get(start..start + len)?, address - symbol.start))
    }
}

#[cfg(test)]
mod tests {
    use super::{Raw, SymbolTable};

    fn raw(address: u64, size: u64, name: &str) -> Raw<'_> {
        Raw { address, size, name: name.as_bytes(), local: false }
    }

    #[test]
    fn addresses_between_functions_have_no_name() {
        let table = SymbolTable::new(vec![raw(0x30, 0, "asm"), raw(0x10, 0x10, "first"), raw(0x40, 4, "last")]);
        let name = |address| table.name(address).map(|name| std::str::from_utf8(name).unwrap());
        assert_eq!([name(0), name(0xf), name(0x20), name(0x44)], [None; 4]);
        assert_eq!([name(0x10), name(0x1f)], [Some("first"); 2]);
        assert_eq!([name(0x30), name(0x3f)], [Some("asm"); 2]);
        assert_eq!(name(0x43), Some("last"));
        assert!(!table.is_empty() && SymbolTable::default().is_empty());
    }

    #[test]
    fn the_public_name_is_taken() {
        let local = Raw { local: true, ..raw(1, 9, "a") };
        let table = SymbolTable::new(vec![raw(1, 9, "__libc_malloc"), raw(1, 9, "malloc"), local, raw(1, 0, "m")]);
        assert_eq!(table.name(5), Some(b"malloc".as_slice()));
    }
}
