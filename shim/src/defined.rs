//! Whether and where a loaded object defines a symbol, found out without dlsym.
//!
//! Why: a dlsym that fails makes the C library allocate an error text, which it frees at a later call through the
//! program's own `free`; a program whose `free` begins with a dlsym then calls itself without end. And dlsym does not
//! say where the entry stands. Invariant: nothing here allocates, and only memory inside a loaded segment is read,
//! whatever the tables say.

use std::ffi::{CStr, c_int, c_void};

use libc::{Elf64_Phdr, Elf64_Sym, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Whether some loaded object, of whatever scope, defines `name`.
pub(crate) fn is_defined(name: &CStr) -> bool {
    let mut search = Search { name: name.to_bytes_with_nul(), found: false };
    // SAFETY: the callback gets the address of `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_into), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    /// With the zero at its end.
    name: &'a [u8],
    found: bool,
}

unsafe extern "C" fn look_into(info: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: this is the address that `is_defined` passed.
    let search = unsafe { &mut *search.cast::<Search<'_>>() };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader keeps that many headers there for as long as the object is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let object = Object { base: info.dlpi_addr as usize, headers };
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

impl Object<'_> {
    /// Asks about the entries that define `name`, until one is it.
    fn any_definition(&self, name: &[u8], mut is_it: impl FnMut(usize) -> bool) -> Option<bool> {
        let (symbols, strings) = (self.table(DT_SYMTAB)?, self.table(DT_STRTAB)?);
        let mut is_it = |index: u32| {
            let place = symbols.checked_add((index as usize).checked_mul(size_of::<Elf64_Sym>())?)?;
            Some(self.is_definition(place, strings, name)? && is_it(place))
        };
        match (self.table(DT_GNU_HASH), self.table(DT_HASH)) {
            (Some(hash), _) => self.any_of_bucket(hash, gnu_hash(name), is_it),
            // One chain entry for each symbol.
            (None, Some(hash)) => (0..self.read::<u32>(hash.checked_add(4)?)?)
                .try_fold(false, |found, index| Some(found || is_it(index)?)),
            (None, None) => None,
        }
    }

    /// Asks about the symbols whose hash value is `hash`, by the GNU table: four numbers, a filter of 64-bit words, the
    /// first symbol of each bucket, and the hash of each symbol, whose lowest bit ends the bucket.
    fn any_of_bucket(&self, table: usize, hash: u32, mut is_it: impl FnMut(u32) -> Option<bool>) -> Option<bool> {
        let [buckets, first, filter_words, _shift] = self.read::<[u32; 4]>(table)?;
        let starts = table.checked_add(16)?.checked_add((filter_words as usize).checked_mul(8)?)?;
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

    /// The address that the dynamic section gives for `tag`.
    fn table(&self, tag: u64) -> Option<usize> {
        let section = self.headers.iter().find(|header| header.p_type == PT_DYNAMIC)?;
        let start = self.base.wrapping_add(section.p_vaddr as usize);
        let mut entries = (0..section.p_memsz as usize / size_of::<[u64; 2]>()).map_while(|entry| {
            let entry = self.read::<[u64; 2]>(start.checked_add(entry.checked_mul(16)?)?)?;
            (entry[0] != 0).then_some(entry)
        });
        let address = entries.find(|entry| entry[0] == tag)?[1] as usize;
        // The loader has added the base to the addresses of all objects but the kernel's own.
        Some(if address < self.base { address.wrapping_add(self.base) } else { address })
    }

    /// A plain value at this address, if one of the object's readable segments has all of it.
    fn read<T: Copy>(&self, address: usize) -> Option<T> {
        let end = address.checked_add(size_of::<T>())?;
        let holds = |header: &&Elf64_Phdr| {
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            header.p_type == PT_LOAD
                && header.p_flags & libc::PF_R != 0
                && address >= start
                && end <= start.saturating_add(header.p_memsz as usize)
        };
        self.headers.iter().find(holds)?;
        // SAFETY: the bytes are mapped and readable; callers ask for integers and structures of integers only.
        Some(unsafe { (address as *const T).read_unaligned() })
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
