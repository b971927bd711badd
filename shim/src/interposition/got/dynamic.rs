//! Validates the dynamic section of an object before it is passed to plt-rs.
//!
//! Why: plt-rs asserts entry sizes and walks to DT_NULL unbounded; a panic here would end the user's program. Invariant:
//! an object for which [`Dynamic::read`] gives something has well-formed tables that lie inside the object.

use crate::platform::loaded_object::{LoadedObject, Range, holds};

const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELAENT: u64 = 9;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_REL: u64 = 17;
const DT_RELSZ: u64 = 18;
const DT_RELENT: u64 = 19;
const DT_PLTREL: u64 = 20;
const DT_JMPREL: u64 = 23;
/// How many of the relocations, all of them at the front, only add the base.
const DT_RELACOUNT: u64 = 0x6fff_fff9;
/// Sizes of Elf64_Dyn, Elf64_Sym, Elf64_Rela and Elf64_Rel.
const ENTRY: usize = 16;
const SYMBOL: u64 = 24;
const RELA: u64 = 24;
const REL: u64 = 16;
/// Highest of the low tags that are looked at, plus one; and one place more, for DT_RELACOUNT.
const TAGS: usize = 24;

/// What is needed of an object's dynamic section.
#[derive(Debug)]
pub(super) struct Dynamic {
    base: usize,
    symbols: usize,
    strings: Range,
    range: Range,
    relative: usize,
}

impl Dynamic {
    /// The dynamic section of `object`, or `None` when plt-rs must not see it.
    pub(super) fn read(object: &LoadedObject<'_>) -> Option<Self> {
        let range = object.range();
        let section = object.dynamic().filter(|section| holds(&range, section.start, section.len()))?;
        let tags = tags(&section)?;
        let tables = DynamicTables { base: object.base, range: &range, tags: &tags };
        let sound = tables.symbols_and_strings() && tables.relocations() && tables.linkage();
        let symbols = tables.rebased(DT_SYMTAB)?;
        let strings = tables.rebased(DT_STRTAB)?;
        let strings = strings..strings.saturating_add(tables.value(DT_STRSZ)? as usize);
        let relative = tables.value(DT_RELACOUNT).map_or(0, |count| count as usize);
        sound.then_some(Self { base: object.base, symbols, strings, range, relative })
    }

    /// How many of the relocations with addends, at the front of their table, name no symbol; the object's own word.
    pub(super) fn relative_count(&self) -> usize {
        self.relative
    }

    /// The beginning of the name of symbol `index`, of `length` bytes at the most; its zero and what follows it may be
    /// in it. plt-rs would look at the whole name, and make a text of it.
    pub(super) fn name_start(&self, index: u32, length: usize) -> Option<&[u8]> {
        let start = self.strings.start.checked_add(self.symbol(index)?.st_name as usize)?;
        let length = self.strings.end.checked_sub(start)?.min(length);
        // SAFETY: in the table of strings, which lies inside the loaded object.
        Some(unsafe { std::slice::from_raw_parts(start as *const u8, length) })
    }

    /// The size of what symbol `index` stands for.
    pub(super) fn size(&self, index: u32) -> Option<usize> {
        self.symbol(index).map(|symbol| symbol.st_size as usize)
    }

    /// Address of symbol `index` where the object defines it itself; `None` for an import.
    pub(super) fn own_definition(&self, index: u32) -> Option<usize> {
        let symbol = self.symbol(index)?;
        (symbol.st_shndx != 0).then(|| self.base.wrapping_add(symbol.st_value as usize))
    }

    fn symbol(&self, index: u32) -> Option<&libc::Elf64_Sym> {
        let symbol = self.symbols.checked_add((index as usize).checked_mul(SYMBOL as usize)?)?;
        if !holds(&self.range, symbol, SYMBOL as usize) {
            return None;
        }
        // SAFETY: the symbol lies inside the loaded object, aligned as its table is.
        Some(unsafe { &*(symbol as *const libc::Elf64_Sym) })
    }
}

/// The values of the tags, at their [`place`]s.
type Tags = [Option<u64>; TAGS + 1];

/// Where a tag's value is kept.
fn place(tag: u64) -> Option<usize> {
    match tag {
        DT_RELACOUNT => Some(TAGS),
        _ => usize::try_from(tag).ok().filter(|tag| *tag < TAGS),
    }
}

/// The values of the tags; `None` when the section does not end inside its range.
fn tags(section: &Range) -> Option<Tags> {
    let mut tags = [None; TAGS + 1];
    if !section.start.is_multiple_of(align_of::<u64>()) {
        return None;
    }
    let mut at = section.start;
    while holds(section, at, ENTRY) {
        // SAFETY: both words lie in the object's dynamic section, which is aligned.
        let [tag, value] = unsafe { *(at as *const [u64; 2]) };
        if tag == 0 {
            return Some(tags);
        }
        // The first entry of a tag counts, as it does for plt-rs.
        if let Some(place) = place(tag).and_then(|place| tags.get_mut(place)) {
            place.get_or_insert(value);
        }
        at = at.wrapping_add(ENTRY);
    }
    None
}

/// The checks of the tables, over the tags of one object.
struct DynamicTables<'a> {
    base: usize,
    range: &'a Range,
    tags: &'a Tags,
}

impl DynamicTables<'_> {
    fn symbols_and_strings(&self) -> bool {
        self.value(DT_SYMENT) == Some(SYMBOL) && self.inside(DT_SYMTAB, Some(SYMBOL), 8) && {
            self.inside(DT_STRTAB, self.value(DT_STRSZ), 1)
        }
    }

    fn relocations(&self) -> bool {
        let rela = self.value(DT_RELA).is_none()
            || self.value(DT_RELAENT) == Some(RELA) && self.inside(DT_RELA, self.value(DT_RELASZ), 8);
        let rel = self.value(DT_REL).is_none()
            || self.value(DT_RELENT) == Some(REL) && self.inside(DT_REL, self.value(DT_RELSZ), 8);
        rela && rel
    }

    /// The procedure linkage table's relocations, which may be absent.
    fn linkage(&self) -> bool {
        match self.value(DT_PLTREL) {
            None => true,
            Some(DT_RELA | DT_REL) => self.inside(DT_JMPREL, self.value(DT_PLTRELSZ), 8),
            Some(_) => false,
        }
    }

    fn inside(&self, tag: u64, length: Option<u64>, alignment: usize) -> bool {
        let (Some(start), Some(length)) = (self.rebased(tag), length) else {
            return false;
        };
        start.is_multiple_of(alignment) && holds(self.range, start, length as usize)
    }

    /// A table's address: most loaders have added the base in place, some have not (the rule of plt-rs).
    fn rebased(&self, tag: u64) -> Option<usize> {
        let address = self.value(tag)? as usize;
        Some(if address <= self.base { address.wrapping_add(self.base) } else { address })
    }

    fn value(&self, tag: u64) -> Option<u64> {
        self.tags.get(place(tag)?).copied().flatten()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use super::*;
    use libc::{Elf64_Phdr, PF_W, PT_DYNAMIC, PT_LOAD};

    const GOOD: [u64; 16] =
        [DT_SYMTAB, 0x100, DT_SYMENT, 24, DT_STRTAB, 0x200, DT_STRSZ, 16, DT_RELA, 0x300, DT_RELASZ, 48, 9, 24, 0, 0];

    fn accepts(section: [u64; 16]) -> bool {
        read(&image(section)).is_some()
    }

    fn image(section: [u64; 16]) -> Vec<u64> {
        let mut image = vec![0u64; 0x800 / 8];
        for (to, from) in image.iter_mut().zip(section) {
            *to = from;
        }
        image
    }

    fn read(image: &[u64]) -> Option<Dynamic> {
        let header = |p_type, p_memsz| Elf64_Phdr {
            p_type,
            p_flags: PF_W,
            p_offset: 0,
            p_vaddr: 0,
            p_paddr: 0,
            p_filesz: 0,
            p_memsz,
            p_align: 0,
        };
        let headers = [header(PT_LOAD, 0x800), header(PT_DYNAMIC, 16 * 8)];
        Dynamic::read(&LoadedObject { base: image.as_ptr() as usize, headers: &headers, name: 0 })
    }

    fn with(place: usize, value: u64) -> [u64; 16] {
        std::array::from_fn(|at| if at == place { value } else { GOOD.get(at).copied().unwrap_or(0) })
    }

    #[test]
    fn well_formed_tables_are_accepted() {
        assert!(accepts(GOOD));
    }

    #[test]
    fn names_end_with_the_table_of_strings() {
        let mut image = image(GOOD);
        let symbol = |name: u64, to: &mut [u64]| to[0x100 / 8 + 3] = name;
        symbol(4, &mut image);
        image[0x200 / 8] = u64::from_le_bytes(*b"\0abcmall");
        image[0x208 / 8] = u64::from_le_bytes(*b"oc\0xyz\0\0");
        assert_eq!(read(&image).unwrap().name_start(1, 8), Some(&b"malloc\0x"[..]));
        assert_eq!(read(&image).unwrap().name_start(1, 99).map(<[u8]>::len), Some(12), "to the table's end");
        assert_eq!(read(&image).unwrap().name_start(0, 99).map(<[u8]>::len), Some(16));
        symbol(16, &mut image);
        assert_eq!(read(&image).unwrap().name_start(1, 99), Some(&b""[..]));
        symbol(17, &mut image);
        assert_eq!(read(&image).unwrap().name_start(1, 99), None);
        assert_eq!(read(&image).unwrap().name_start(u32::MAX, 99), None, "no such symbol");
    }

    #[test]
    fn relocations_without_a_symbol_are_counted() {
        assert_eq!(read(&image(GOOD)).unwrap().relative_count(), 0, "not said");
        let mut section = GOOD;
        section[8..].copy_from_slice(&[DT_RELACOUNT, 22_671, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read(&image(section)).unwrap().relative_count(), 22_671);
    }

    #[test]
    fn what_plt_rs_would_panic_or_run_off_on_is_refused() {
        assert!(!accepts(with(3, 16)), "symbol size");
        assert!(!accepts(with(13, 16)), "relocation size");
        assert!(!accepts(with(1, 0x104)), "unaligned symbols");
        assert!(!accepts(with(5, 0x900)), "strings outside");
        assert!(!accepts(with(11, u64::MAX)), "relocations without end");
        assert!(!accepts(with(14, 0x77)), "no terminator");
        assert!(!accepts(with(4, DT_PLTREL)), "linkage of unknown kind, and no strings");
    }
}
