//! One loaded object as its program headers describe it: its ranges, and what is write-protected after relocation.
//!
//! Invariant: the headers are the loader's own memory, valid only under the loader's lock, where all of this is used.

use libc::{Elf64_Phdr, PF_W, PT_DYNAMIC, PT_GNU_RELRO, PT_LOAD};

/// A note of this type by GNU is the build-id.
const BUILD_ID: u32 = 3;
/// Longest build-id that is taken for one, in bytes.
const LONGEST_ID: usize = 64;

/// An object of the process, copied out of `dl_iterate_phdr`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedObject<'a> {
    /// What the loader added to the addresses in the file.
    pub(crate) base: usize,
    /// Its program headers.
    pub(crate) headers: &'a [Elf64_Phdr],
    /// Address of the loader's copy of its name.
    pub(crate) name: usize,
}

/// A range of addresses, `start..end`.
pub(crate) type Range = std::ops::Range<usize>;

impl LoadedObject<'_> {
    /// What the loader describes; `None` where there are no program headers.
    ///
    /// # Safety
    /// The result is used under the loader's lock only.
    pub(crate) unsafe fn of(info: &libc::dl_phdr_info) -> Option<Self> {
        if info.dlpi_phnum == 0 || info.dlpi_phdr.is_null() {
            return None;
        }
        // SAFETY: the loader keeps that many headers there for as long as the object is loaded.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        Some(Self { base: info.dlpi_addr as usize, headers, name: info.dlpi_name as usize })
    }

    /// From its lowest to its highest loaded address.
    pub(crate) fn range(&self) -> Range {
        let loads = || self.of_type(PT_LOAD);
        let start = loads().map(|load| load.start).min().unwrap_or(0);
        let end = loads().map(|load| load.end).max().unwrap_or(0);
        start..end
    }

    /// Whether the word at `address` lies in one of its writable segments.
    pub(crate) fn has_writable_word(&self, address: usize) -> bool {
        let writable = self.headers.iter().filter(|header| header.p_type == PT_LOAD && header.p_flags & PF_W != 0);
        let mut ranges = writable.map(|header| self.range_of(header));
        address.is_multiple_of(size_of::<usize>()) && ranges.any(|range| holds(&range, address, size_of::<usize>()))
    }

    /// The dynamic section.
    pub(crate) fn dynamic(&self) -> Option<Range> {
        self.of_type(PT_DYNAMIC).next()
    }

    /// The whole pages that the loader made read-only after relocation; empty when there are none.
    pub(crate) fn relro_pages(&self, page_size: usize) -> Range {
        let down = |address: usize| address & !page_size.wrapping_sub(1);
        let relro = self.of_type(PT_GNU_RELRO).next().unwrap_or(0..0);
        down(relro.start)..down(relro.end)
    }

    /// Its headers of one type, as ranges.
    pub(crate) fn of_type(&self, kind: u32) -> impl Iterator<Item = Range> {
        self.headers.iter().filter(move |header| header.p_type == kind).map(|header| self.range_of(header))
    }

    /// The addresses of one of its headers.
    pub(crate) fn range_of(&self, header: &Elf64_Phdr) -> Range {
        let start = self.base.wrapping_add(header.p_vaddr as usize);
        start..start.saturating_add(header.p_memsz as usize)
    }
}

/// Whether `range` holds all of the `length` bytes from `address`.
pub(crate) fn holds(range: &Range, address: usize, length: usize) -> bool {
    address >= range.start && address.checked_add(length).is_some_and(|end| end <= range.end)
}

/// The build-id among these notes, which the object keeps while it is loaded.
pub(crate) fn build_id(notes: &Range) -> Option<&'static [u8]> {
    // SAFETY: a range inside a loaded segment.
    let mut rest = unsafe { std::slice::from_raw_parts(notes.start as *const u8, notes.len()) };
    loop {
        let (head, after) = rest.split_first_chunk::<12>()?;
        let number = |at: usize| {
            head.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let (name_size, size, kind) = (number(0) as usize, number(4) as usize, number(8));
        let (name, after) = after.split_at_checked(name_size.checked_next_multiple_of(4)?)?;
        let (content, after) = after.split_at_checked(size.checked_next_multiple_of(4)?)?;
        if kind == BUILD_ID && name == b"GNU\0" && size <= LONGEST_ID {
            return content.get(..size);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(p_type: u32, p_flags: u32, p_vaddr: u64, p_memsz: u64) -> Elf64_Phdr {
        Elf64_Phdr { p_type, p_flags, p_offset: 0, p_vaddr, p_paddr: 0, p_filesz: 0, p_memsz, p_align: 0 }
    }

    #[test]
    fn only_whole_pages_of_relro_count_as_protected() {
        let headers = [
            header(PT_LOAD, 5, 0, 0x2000),
            header(PT_LOAD, PF_W, 0x3d00, 0x1400),
            header(PT_GNU_RELRO, 4, 0x3d00, 0x1200),
        ];
        let object = LoadedObject { base: 0x1_0000, headers: &headers, name: 0 };
        assert_eq!(object.relro_pages(0x1000), 0x1_3000..0x1_4000);
        assert_eq!(object.range(), 0x1_0000..0x1_5100);
        assert!(object.has_writable_word(0x1_3d00));
        assert!(!object.has_writable_word(0x1_3d04), "not aligned");
        assert!(!object.has_writable_word(0x1_0100), "code");
        assert!(!object.has_writable_word(0x1_5100), "past the end");
    }

    #[test]
    fn an_object_without_relro_has_no_protected_pages() {
        let headers = [header(PT_LOAD, PF_W, 0, 0x1000)];
        assert!(LoadedObject { base: 0, headers: &headers, name: 0 }.relro_pages(0x1000).is_empty());
    }
}
