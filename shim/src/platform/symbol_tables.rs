//! Whether and where a loaded object defines a symbol, found out without dlsym.
//!
//! Why: a dlsym that fails makes the C library allocate an error text, which it frees at a later call through the
//! program's own `free`; a program whose `free` begins with a dlsym then calls itself without end. And dlsym does not
//! say where the entry stands. Invariant: nothing here allocates, and only memory inside a loaded segment is read,
//! whatever the tables say.

#![expect(clippy::disallowed_methods, reason = "called at start-up, and in a dlopen or dlsym")]

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

use libc::{Elf64_Phdr, Elf64_Sym, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Bytes of an entry of the dynamic section: a tag and a value.
const ENTRY: usize = 16;

/// Whether some loaded object, of whatever scope, defines `name`.
pub(crate) fn is_defined(name: &CStr) -> bool {
    search(name, None)
}

/// Whether the object in which an address lies defines `name`.
pub(crate) fn is_defined_beside(address: usize, name: &CStr) -> bool {
    search(name, Some(address))
}

fn search(name: &CStr, within: Option<usize>) -> bool {
    let mut search = SymbolSearch { name: name.to_bytes_with_nul(), within, found: false };
    // SAFETY: the callback gets the address of `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_into), (&raw mut search).cast()) };
    search.found
}

struct SymbolSearch<'a> {
    /// With the zero at its end.
    name: &'a [u8],
    /// Only the object in which this address lies is looked into.
    within: Option<usize>,
    found: bool,
}

unsafe extern "C" fn look_into(info: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: this is the address that `is_defined` passed.
    let search = unsafe { &mut *search.cast::<SymbolSearch<'_>>() };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader keeps that many headers there for as long as the object is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let object = Object { base: info.dlpi_addr as usize, headers };
    if search.within.is_some_and(|address| !object.covers(address)) {
        return 0;
    }
    search.found = object.any_definition(search.name, |_| true).unwrap_or(false);
    c_int::from(search.found)
}

/// Calls `visit` with the place of each symbol table entry by which an object defines `name`: one for each version.
pub(crate) fn for_each_definition(
    base: usize,
    headers: &[Elf64_Phdr],
    name: &CStr,
    mut visit: impl FnMut(*mut Elf64_Sym),
) {
    let object = Object { base, headers };
    // What is read up to a table that is not as it should be is good.
    let _ = object.any_definition(name.to_bytes_with_nul(), |place| {
        visit(place as *mut Elf64_Sym);
        false
    });
}

/// A loaded object. `None` from its functions: its tables are not as they should be, or not there.
#[derive(Debug)]
struct Object<'a> {
    base: usize,
    headers: &'a [Elf64_Phdr],
}

/// Where what is needed of an object's dynamic section begins.
#[derive(Clone, Copy, Debug, Default)]
struct SymbolSections {
    symbols: Option<usize>,
    strings: Option<usize>,
    gnu_hash: Option<usize>,
    hash: Option<usize>,
}

impl Object<'_> {
    /// Asks about the entries that define `name`, until one is it.
    fn any_definition(&self, name: &[u8], mut is_it: impl FnMut(usize) -> bool) -> Option<bool> {
        let SymbolSections { symbols: Some(symbols), strings: Some(strings), gnu_hash: modern, hash: old } =
            self.tables()?
        else {
            return None;
        };
        let mut is_it = |index: u32| {
            let place = symbols.checked_add((index as usize).checked_mul(size_of::<Elf64_Sym>())?)?;
            Some(self.is_definition(place, strings, name)? && is_it(place))
        };
        match (modern, old) {
            (Some(hash), _) => self.any_of_bucket(hash, gnu_hash(name), is_it),
            // One chain entry for each symbol.
            (None, Some(hash)) => (0..self.read::<u32>(hash.checked_add(4)?)?)
                .try_fold(false, |found, index| Some(found || is_it(index)?)),
            (None, None) => None,
        }
    }

    /// Asks about the symbols whose hash value is `hash`, by the GNU table: four numbers, a filter of 64-bit words, in
    /// one of which each symbol has two bits, the first symbol of each bucket, and the hash of each symbol, whose
    /// lowest bit ends the bucket.
    fn any_of_bucket(&self, table: usize, hash: u32, mut is_it: impl FnMut(u32) -> Option<bool>) -> Option<bool> {
        let [buckets, first, filter_words, shift] = self.read::<[u32; 4]>(table)?;
        let filter = table.checked_add(16)?;
        let word = (hash / 64).checked_rem(filter_words)? as usize;
        let bits = 1_u64.wrapping_shl(hash) | 1_u64.wrapping_shl(hash.wrapping_shr(shift));
        if self.read::<u64>(filter.checked_add(word.checked_mul(8)?)?)? & bits != bits {
            return Some(false);
        }
        let starts = filter.checked_add((filter_words as usize).checked_mul(8)?)?;
        let chains = starts.checked_add((buckets as usize).checked_mul(4)?)?;
        let bucket = hash.checked_rem(buckets)? as usize;
        let mut index = self.read::<u32>(starts.checked_add(bucket.checked_mul(4)?)?)?;
        if index < first {
            return Some(false);
        }
        loop {
            let place = chains.checked_add((index.checked_sub(first)? as usize).checked_mul(4)?)?;
            let value = self.read::<u32>(place)?;
            if value | 1 == hash | 1 && is_it(index)? {
                return Some(true);
            }
            if value & 1 == 1 {
                return Some(false);
            }
            index = index.checked_add(1)?;
        }
    }

    fn is_definition(&self, place: usize, strings: usize, name: &[u8]) -> Option<bool> {
        let symbol = self.read::<Elf64_Sym>(place)?;
        let text = strings.checked_add(symbol.st_name as usize)?;
        let same = || name.iter().zip(text..).all(|(byte, at)| self.read::<u8>(at) == Some(*byte));
        Some(symbol.st_shndx != 0 && same())
    }

    /// The addresses that the dynamic section gives; the first entry of a kind counts.
    fn tables(&self) -> Option<SymbolSections> {
        let section = self.headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
        let start = self.base.wrapping_add(section.p_vaddr as usize);
        let end = start.saturating_add(section.p_memsz as usize).min(self.readable_end(start)?);
        let mut tables = SymbolSections::default();
        for at in (start..end.saturating_sub(ENTRY - 1)).step_by(ENTRY) {
            // SAFETY: both words lie in a readable segment.
            let [tag, value] = unsafe { (at as *const [u64; 2]).read_unaligned() };
            let place = match tag {
                0 => break,
                DT_SYMTAB => &mut tables.symbols,
                DT_STRTAB => &mut tables.strings,
                DT_GNU_HASH => &mut tables.gnu_hash,
                DT_HASH => &mut tables.hash,
                _ => continue,
            };
            let address = value as usize;
            // The loader has added the base to the addresses of all objects but the kernel's own.
            place.get_or_insert(if address < self.base { address.wrapping_add(self.base) } else { address });
        }
        Some(tables)
    }

    /// A plain value at this address, if one of the object's readable segments has all of it.
    fn read<T: Copy>(&self, address: usize) -> Option<T> {
        if address.checked_add(size_of::<T>())? > self.readable_end(address)? {
            return None;
        }
        // SAFETY: the bytes are mapped and readable; callers ask for integers and structures of integers only.
        Some(unsafe { (address as *const T).read_unaligned() })
    }

    /// Whether an address lies in one of its segments.
    fn covers(&self, address: usize) -> bool {
        self.segments().any(|(_, range)| range.contains(&address))
    }

    /// The end of the readable segment that `address` lies in.
    fn readable_end(&self, address: usize) -> Option<usize> {
        let mut readable = self.segments().filter(|(flags, _)| flags & libc::PF_R != 0);
        Some(readable.find(|(_, range)| range.contains(&address))?.1.end)
    }

    /// Flags and addresses of its segments.
    fn segments(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        self.headers.iter().filter(|header| header.p_type == PT_LOAD).map(|header| {
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            (header.p_flags, start..start.saturating_add(header.p_memsz as usize))
        })
    }
}

/// The hash of the GNU table, over the name without its zero.
fn gnu_hash(name: &[u8]) -> u32 {
    let bytes = name.iter().take_while(|byte| **byte != 0);
    bytes.fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::{for_each_definition, is_defined};
    use std::ffi::{c_int, c_void};

    #[test]
    fn what_the_c_library_defines_is_found_and_nothing_else() {
        for name in [c"malloc", c"strlen", c"dlsym", c"_exit"] {
            assert!(is_defined(name), "{name:?}");
        }
        for name in [c"", c"mallo", c"malloc_", c"Py_GetVersion", c"no_such_symbol_anywhere"] {
            assert!(!is_defined(name), "{name:?}");
        }
    }

    /// Counts the entries of an object that give its `malloc` the address that dlsym finds.
    unsafe extern "C" fn count(info: *mut libc::dl_phdr_info, _size: usize, counted: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid description.
        let info = unsafe { &*info };
        // SAFETY: a pseudo handle and a name that ends in zero.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) } as u64;
        // SAFETY: as many headers as the loader says.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        for_each_definition(info.dlpi_addr as usize, headers, c"malloc", |symbol| {
            // SAFETY: an entry of a symbol table.
            let value = unsafe { symbol.read() }.st_value;
            // SAFETY: the number that the caller has passed.
            let counted = unsafe { &mut *counted.cast::<u32>() };
            *counted += u32::from(info.dlpi_addr + value == address);
        });
        0
    }

    #[test]
    fn the_entry_that_dlsym_finds_is_found() {
        let mut counted = 0_u32;
        // SAFETY: the callback gets the address of `counted`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut counted).cast()) };
        assert_eq!(counted, 1);
    }
}
